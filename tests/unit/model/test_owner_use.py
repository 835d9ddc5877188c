"""What the daemon tells the webhook of owners: read back as it was, or not at all."""

from __future__ import annotations

import pytest

from fallow.model import owner_use
from fallow.model.classes import Behaviour
from fallow.model.seen import ABSENT, Known, Unseen
from fallow.model.sharing import OwnerUse

NOW = 1_800_000_000.0
SEEN = Behaviour(seconds=90_000.0, coverage=0.9, mean=0.2, deviation=0.05, idle=0.5)
USE = OwnerUse(coverage=0.9, peak_memory=6000, mean=0.2, p95=0.4, behaviour=Known(SEEN))
BARE = OwnerUse(coverage=0.1)


def test_a_table_is_read_back_as_it_was() -> None:
    table = owner_use.read(owner_use.write({"a": USE, "b": BARE}, NOW))
    assert [table.find(uid, NOW) for uid in "abc"] == [Known(USE), Known(BARE), ABSENT]


@pytest.mark.parametrize(("age", "is_known"), [(0, True), (6 * 3600, True), (6 * 3600 + 1, False), (-299, True),
                                               (-301, False)])
def test_an_old_table_and_one_of_the_future_tell_nothing(age: float, is_known: bool) -> None:
    found = owner_use.read(owner_use.write({"a": USE}, NOW)).find("a", NOW + age)
    assert isinstance(found, Known if is_known else Unseen)


def test_it_never_grows_beyond_what_an_object_may_hold() -> None:
    text = owner_use.write({f"{number:036d}": USE for number in range(6000)}, NOW)
    assert len(owner_use.read(text).owners) == owner_use.MOST
    assert len(text) < 900_000


@pytest.mark.parametrize("text", ["", "{", "[]", '{"v": 2, "at": 1, "owners": {}}', '{"v": 1, "at": "x"}'])
def test_what_is_no_table_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        owner_use.read(text)
