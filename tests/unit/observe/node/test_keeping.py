"""What survives a restart of the exporter: the file, and every reason not to use it."""

import json
import os
import pathlib
import stat
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fallow.clients import errors
from fallow.model.processes import KeptProcess
from fallow.observe.node import keeping
from fallow.observe.node.keeping import SavedState

NOW = 1_800_000_000.0
BOOT = "3f1c"
KEPT = [
    KeptProcess(
        uuid="GPU-0", pid=42, start=777, streak=3, first_zero=900.0, known=910.0, last_active=NOW - 60,
        stamp=1_800_000_000_000_000,
    ),
    KeptProcess(uuid="GPU-0", pid=43, start=778, streak=0, first_zero=0.0, known=0.0, last_active=None, stamp=0),
]


def save(folder: pathlib.Path, **said: Any) -> pathlib.Path:
    usual = {"boot_id": BOOT, "at": NOW, "monotonic": 1000.0, "processes": KEPT, "tenancies": {"a": [1]}}
    keeping.save(str(folder), SavedState(**{**usual, **said}))
    return folder / "state.json"


def load(
    folder: pathlib.Path, *, boot_id: str = BOOT, gap: float = 20.0, monotonic_gap: float | None = None
) -> tuple[SavedState | None, str]:
    monotonic = 1000.0 + (gap if monotonic_gap is None else monotonic_gap)
    return keeping.load(str(folder), boot_id, 300.0, NOW + gap, monotonic)


@pytest.mark.accepts("exporter", 23)
@pytest.mark.parametrize("gap", [0.0, 20.0, 300.0])
def test_what_was_saved_is_there_after_a_restart(tmp_path: pathlib.Path, gap: float) -> None:
    save(tmp_path)
    state, why = load(tmp_path, gap=gap)
    assert why == ""
    assert state == SavedState(BOOT, NOW, 1000.0, KEPT, {"a": [1]})


@pytest.mark.accepts("exporter", 23)
@pytest.mark.parametrize(("said", "because"), [
    ({"boot_id": "other"}, "another boot"),
    ({"boot_id": ""}, "another boot"),
    ({"gap": 300.1}, "5m old"),
    ({"gap": -1.0}, "set back"),
    ({"gap": 20.0, "monotonic_gap": 301.0}, "5m old"),
    ({"gap": 20.0, "monotonic_gap": -1.0}, "set back"),
], ids=[
    "rebooted", "boot-not-known", "too-old", "clock-set-back", "too-old-by-the-other-clock", "other-clock-set-back",
])
def test_what_is_of_another_time_is_not_used(tmp_path: pathlib.Path, said: dict[str, Any], because: str) -> None:
    path = save(tmp_path)
    state, why = load(tmp_path, **said)
    assert state is None
    assert because in why
    assert str(path) in why
    assert "start anew" in why


def test_a_boot_that_could_not_be_read_is_like_no_other_not_even_itself(tmp_path: pathlib.Path) -> None:
    save(tmp_path, boot_id="")
    assert load(tmp_path, boot_id="")[0] is None


WHOLE: dict[str, Any] = {
    "boot_id": BOOT, "at": NOW, "monotonic": 1000.0, "version": 1, "tenancies": None,
    "processes": [["GPU-0", 42, 777, 3, 900.0, 910.0, None, 5]],
}


@pytest.mark.accepts("exporter", 23)
@pytest.mark.parametrize("content", [
    b"", b"{", b"null", b"[]", b"\xff\xfe", b"{}", b"[" * 100_000,
    json.dumps(WHOLE).encode()[:-9],
    json.dumps({**WHOLE, "version": 2}).encode(),
    json.dumps({**WHOLE, "more": 1}).encode(),
    json.dumps({**WHOLE, "at": "now"}).encode(),
    json.dumps({**WHOLE, "processes": [["GPU-0", 42, 777, -1, 900.0, 910.0, None, 5]]}).encode(),
    json.dumps({**WHOLE, "processes": [["GPU-0", 42, 777, 3, None, 910.0, None, 5]]}).encode(),
    json.dumps({**WHOLE, "processes": [["GPU-0", 42]]}).encode(),
], ids=[
    "empty", "torn", "null", "list", "binary", "nothing-in-it", "deep", "cut", "other-version", "unknown-field",
    "no-time",
    "negative-streak", "no-first-zero", "short-row",
])
def test_a_damaged_file_is_said_and_not_used(tmp_path: pathlib.Path, content: bytes) -> None:
    (tmp_path / "state.json").write_bytes(content)
    state, why = load(tmp_path)
    assert state is None
    assert "is damaged" in why
    assert "\n" not in why


def test_the_whole_file_of_that_table_would_be_used(tmp_path: pathlib.Path) -> None:
    (tmp_path / "state.json").write_text(json.dumps(WHOLE))
    assert load(tmp_path)[0] is not None


@given(st.binary(max_size=200))
def test_no_bytes_whatever_raise(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    folder = tmp_path_factory.mktemp("state")
    (folder / "state.json").write_bytes(content)
    assert load(folder)[0] is None


def test_no_file_is_nothing_to_speak_of(tmp_path: pathlib.Path) -> None:
    assert load(tmp_path) == load(tmp_path / "nowhere") == (None, "")


def test_a_file_that_cannot_be_read_is_said(tmp_path: pathlib.Path) -> None:
    (tmp_path / "state.json").mkdir()
    state, why = load(tmp_path)
    assert state is None
    assert "cannot be read" in why


def test_the_file_is_replaced_as_a_whole_and_only_ours_to_read(tmp_path: pathlib.Path) -> None:
    path = save(tmp_path / "made" / "for-it")
    first = path.stat()
    with path.open("rb") as before:
        save(path.parent, at=NOW + 30)
        assert json.loads(before.read())["at"] == NOW  # who had it open still sees the old one, whole
    assert json.loads(path.read_bytes())["at"] == NOW + 30
    assert path.stat().st_ino != first.st_ino
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(path.parent) == ["state.json"]


def test_a_directory_that_cannot_be_used_is_one_sentence(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(errors.Misconfigured, match=r"STATE_DIR: .*state\.json cannot be written"):
        save(tmp_path / "file")


def test_nothing_is_written_through_a_link(tmp_path: pathlib.Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("keep")
    folder = tmp_path / "state"
    folder.mkdir()
    (folder / ".state.json.new").symlink_to(precious)
    with pytest.raises(errors.Misconfigured):
        save(folder)
    assert precious.read_text() == "keep"


def test_a_failed_save_leaves_the_file_as_it_was(tmp_path: pathlib.Path) -> None:
    path = save(tmp_path)
    (tmp_path / ".state.json.new").mkdir()
    with pytest.raises(errors.Misconfigured):
        save(tmp_path, at=NOW + 30)
    assert json.loads(path.read_bytes())["at"] == NOW
