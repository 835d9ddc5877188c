"""Batches that wait in a file: whole or not at all, in order, and bounded."""

from __future__ import annotations

import os
import resource

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.ledgers import MIDNIGHT, lasting, part_of

from fallow.account import spool as spools
from fallow.model.cost import DAY, HOUR, CostBatch

BATCHES = [
    CostBatch(at=MIDNIGHT + at, intervals=(lasting(part_of(), MIDNIGHT, MIDNIGHT + at, is_open=True, use=(5,)),))
    for at in range(60, 360, 60)
]


def opened(path):
    spool = spools.Spool(path)
    return spool, spool.open()


def batches(records):
    """As they were given."""
    return [CostBatch(**{name: getattr(each, name) for name in CostBatch.__struct_fields__}) for _, each in records]


def fill(path, batches=BATCHES):
    spool, _ = opened(path)
    for batch in batches:
        spool.append(batch)
    return spool


@pytest.mark.accepts("cost", 25)
def test_what_waits_comes_back_in_order_with_names_that_stay(tmp_path):
    path = tmp_path / "deep" / "spool"
    before = fill(path).read()
    again, cut = opened(path)
    assert cut == ""
    assert batches(before) == BATCHES
    assert again.read() == before
    assert len({name for name, _ in before}) == len(BATCHES)
    again.clear()
    assert again.read() == []
    again.append(BATCHES[0])
    ((name, _),) = again.read()
    assert name not in {one for one, _ in before}  # a ledger that did the old ones must not take it for one of them


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_what_is_torn_or_altered_is_left_out_and_said(tmp_path, data):
    path = tmp_path / "spool"
    path.unlink(missing_ok=True)
    ends, spool = [23], opened(path)[0]
    for batch in BATCHES:
        spool.append(batch)
        ends.append(path.stat().st_size)
    names = [name for name, _ in spool.read()]
    said = bytearray(path.read_bytes())
    at = data.draw(st.integers(23, len(said) - 1))  # behind its name
    hit = sum(end <= at for end in ends) - 1  # which batch
    if is_altered := data.draw(st.booleans()):
        said[at] ^= data.draw(st.integers(1, 255))
    else:
        del said[at:]
    path.write_bytes(said)
    spool, cut = opened(path)
    found = batches(spool.read())
    if is_altered:  # its length, too
        assert found == BATCHES[:hit] + BATCHES[hit + 1 :]
        assert [name for name, _ in spool.read()] == names[:hit] + names[hit + 1 :]
    else:
        assert found == BATCHES[:hit]
    assert "cut off" in cut or "1 batches within it are altered" in cut or len(said) in ends  # torn between two
    spool.append(BATCHES[-1])  # and it goes on
    assert batches(opened(path)[0].read()) == [*found, BATCHES[-1]]


def delete(path):
    path.unlink()


def empty(path):
    os.truncate(path, 0)


def tear(path):
    os.truncate(path, path.stat().st_size - 10)


def overwrite(path):
    path.write_bytes(b"not at all what it was")


@pytest.mark.accepts("cost", 25)
@pytest.mark.parametrize(("hurt", "left"), [(delete, 0), (empty, 0), (tear, 2), (overwrite, 0)])
@pytest.mark.parametrize("goes_on", [True, False], ids=["then-more-wait", "then-it-is-read"])
def test_one_that_is_hurt_while_it_is_used_says_what_is_gone_and_goes_on(tmp_path, caplog, hurt, left, goes_on):
    path = tmp_path / "spool"
    spool = fill(path, BATCHES[:3])
    hurt(path)
    if goes_on:
        for batch in BATCHES[3:]:
            spool.append(batch, 1)
    want = BATCHES[:left] + (BATCHES[3:] if goes_on else [])
    assert batches(spool.read()) == want
    assert (spool.lost, spool.count) == (3 - left, len(want))
    assert f"{3 - left} of 3 batches are gone" in caplog.text
    assert batches(opened(path)[0].read()) == want


@pytest.mark.parametrize("at", [23, 26, 90], ids=["length", "length-by-little", "content"])
def test_one_that_is_altered_while_it_is_used_says_how_many_are_missing(tmp_path, caplog, at):
    path = tmp_path / "spool"
    spool = fill(path)
    said = bytearray(path.read_bytes())
    said[at] ^= 1
    path.write_bytes(said)
    assert batches(spool.read()) == BATCHES[1:]
    assert "1 batches that waited are altered and are left out" in caplog.text
    assert spool.lost == 1


def test_who_made_a_batch_is_kept_and_what_was_written_before_that_was_is_read(tmp_path):
    path = tmp_path / "spool"
    spool = fill(path, BATCHES[:1])
    spool.append(BATCHES[1], 7)
    spool.append(BATCHES[2], 5)
    again, _ = opened(path)
    assert [batch.epoch for _, batch in again.read()] == [None, 7, 5]
    assert again.waits_for[1] == 5


@pytest.mark.parametrize("left", [0, 5], ids=["of-nothing-but-zeros", "with-a-hurt-beginning"])
def test_one_that_cannot_be_read_at_the_start_is_set_aside(tmp_path, left):
    """What a power cut leaves must not keep a daemon from starting."""
    path = tmp_path / "spool"
    fill(path)
    said = path.read_bytes()
    hurt = b"F" + said[1:] if left else bytes(len(said))
    path.write_bytes(hurt)
    spool, told = opened(path)
    assert f"was set aside as {path}.unreadable; {left} batches of it are whole" in told
    assert (tmp_path / "spool.unreadable").read_bytes() == hurt
    spool.append(BATCHES[0])
    assert batches(opened(path)[0].read()) == [*BATCHES[:left], BATCHES[0]]


def test_a_file_of_another_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "notes"
    path.write_text("do not lose this, it is somebody else's")
    with pytest.raises(OSError, match="is no spool of ours"):
        opened(path)
    assert path.read_text().startswith("do not lose this")


@pytest.mark.parametrize("left", range(1, 23))
def test_a_file_torn_in_its_first_bytes_begins_anew(tmp_path, left):
    path = tmp_path / "spool"
    fill(path)
    os.truncate(path, left)
    spool, cut = opened(path)
    assert "no batch was in it" in cut
    spool.append(BATCHES[0])
    assert batches(opened(path)[0].read()) == BATCHES[:1]


@pytest.mark.accepts("cost", 25)
def test_a_day_of_batches_is_kept_and_the_oldest_stay(tmp_path):
    spool = fill(tmp_path / "spool", [CostBatch(at=MIDNIGHT + hour * HOUR) for hour in range(25)])
    with pytest.raises(spools.SpoolFull, match="has batches of 24 hours and takes no more"):
        spool.append(CostBatch(at=MIDNIGHT + DAY + 1))
    assert [batch.at for _, batch in spool.read()] == [MIDNIGHT + hour * HOUR for hour in range(25)]


def test_a_full_disk_loses_nothing_that_was_there(tmp_path):
    path = tmp_path / "spool"
    spool = fill(path)
    before, size = spool.read(), path.stat().st_size
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 40, limits[1]))  # room for less than a record
    try:
        with pytest.raises(spools.SpoolFull, match="cannot be written: File too large"):
            spool.append(BATCHES[0])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.stat().st_size == size
    assert opened(path)[0].read() == before
    spool.append(BATCHES[0])
    assert len(opened(path)[0].read()) == len(before) + 1
