"""The kinds that we ever paused, on the Lease: added once, bounded, and never a reason to fail."""

import json

import pytest

from fallow import names
from fallow.act import kept_kinds
from fallow.model import cluster

CLONES = cluster.Ref("apps.kruise.io", "v1alpha1", "CloneSet", "ml", "llm", "u-1")


class Board:
    """A Lease that takes what is written on it."""

    def __init__(self, text: str | None = None) -> None:
        self.annotations = {} if text is None else {names.PAUSED_KINDS: text}
        self.writes = 0

    async def annotate(self, changes):
        self.annotations |= changes
        self.writes += 1


async def test_a_kind_is_written_down_once_and_read_back():
    board = Board()
    kept = kept_kinds.KeptKinds(board)
    await kept.keep(CLONES)
    await kept.keep(CLONES)
    assert (kept.known(), board.writes) == ((("apps.kruise.io", "CloneSet"),), 1)


async def test_kinds_of_the_table_need_no_list():
    board = Board()
    await kept_kinds.KeptKinds(board).keep(cluster.Ref("apps", "v1", "Deployment", "ml", "llm", "u-1"))
    assert board.writes == 0


async def test_the_first_is_forgotten_first():
    known = [["example.com", f"Kind{number}"] for number in range(kept_kinds.MOST_KINDS)]
    kept = kept_kinds.KeptKinds(Board(json.dumps(known)))
    await kept.keep(CLONES)
    assert kept.known() == (*map(tuple, known[1:]), ("apps.kruise.io", "CloneSet"))


@pytest.mark.parametrize("text", ["", "{", "[1]", '[["a"]]', '{"a": 1}'])
def test_what_cannot_be_read_is_nothing(text):
    assert kept_kinds.read({names.PAUSED_KINDS: text}) == ()
