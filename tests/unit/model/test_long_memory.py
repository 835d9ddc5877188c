"""What stands on the Lease, read and written."""

from typing import Any

import pytest

from fallow import names
from fallow.model import long_memory
from fallow.model.long_memory import Attempt, Level, LongMemory, PastPause

NOW = 1_800_000_000.0


def ref(kind: str, group: str = "apps.kruise.io") -> long_memory.KindName:
    return group, "v1alpha1", kind


def test_what_is_written_is_read_again() -> None:
    memory = LongMemory(
        at=NOW, levels=(Level(1, 9, NOW),), baseline_reset=True, pauses=(PastPause("u", NOW, 4, "flags"),),
        attempts=(Attempt("v", 2, NOW + 240, "403 Forbidden"),), policies=("a",), policies_at=NOW, lost_at=NOW,
    )
    assert long_memory.read(long_memory.write(memory), NOW) == (memory, "")
    assert long_memory.read({}, NOW) == (LongMemory(), "")


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"at":"yesterday"}', '{"pauses":[["u",1,-4,"flags"]]}', '{"levels":[1]}', "\udcff"]
)
def test_what_cannot_be_read_is_lost_and_said(text: str) -> None:
    found, problem = long_memory.read({names.MEMORY: text}, NOW)
    assert found == LongMemory(lost_at=NOW)
    assert names.MEMORY in problem


@pytest.mark.parametrize("rule", ["flags", "p" * 253])
def test_it_is_bounded_and_no_gpu_is_forgotten(rule: str) -> None:
    pauses = tuple(PastPause(f"{index:036}", NOW + index, 2, rule) for index in range(5000))
    attempts = tuple(Attempt(f"{index:036}", 1, NOW + index, "\N{SNOWMAN}" * 120) for index in range(5000))
    said = long_memory.write(LongMemory(at=NOW, pauses=pauses, attempts=attempts))
    found, problem = long_memory.read(said, NOW)
    assert (len(said[names.MEMORY].encode()) <= long_memory.MOST_BYTES, problem) == (True, "")
    assert sum(each.gpus for each in found.pauses) == 10_000
    assert (found.pauses[-1], found.attempts[-1]) == (pauses[-1], attempts[-1])
    assert found.pauses[0].at == NOW + 4999 - len(found.pauses) + 1


NEWER: dict[str, Any] = {"ours": (2.0, 1.0, "own"), "same": (2.0, 2.0, "own"), "theirs": (1.0, 2.0, "lease"),
                         "none": (0.0, 0.0, "own")}


@pytest.mark.parametrize(("own", "on_lease", "which"), NEWER.values(), ids=NEWER.keys())
def test_ours_counts_until_somebody_wrote_after_us(own: float, on_lease: float, which: str) -> None:
    found = long_memory.newer(LongMemory(at=own, policies=("own",)), LongMemory(at=on_lease, policies=("lease",)))
    assert found.policies == (which,)


def test_kinds_that_were_paused_are_added_once() -> None:
    first = long_memory.add_kinds({}, [ref("CloneSet"), ref("CloneSet")])
    assert first == {names.PAUSED_KINDS: "apps.kruise.io/v1alpha1/CloneSet"}
    assert long_memory.add_kinds(first, [ref("CloneSet")]) == {}
    both = long_memory.add_kinds(first, [ref("Old", "example.com")])
    known = (("apps.kruise.io", "v1alpha1", "CloneSet"), ("example.com", "v1alpha1", "Old"))
    assert long_memory.read_kinds(both) == known


def test_the_list_of_kinds_is_bounded_and_odd_words_in_it_are_nothing() -> None:
    many = long_memory.add_kinds({}, [ref(f"Kind{number}") for number in range(100)])
    found = long_memory.read_kinds(many)
    assert (len(found), found[-1][2]) == (long_memory.MOST_KINDS, "Kind99")
    assert long_memory.read_kinds({names.PAUSED_KINDS: "CloneSet a/b a/b/c/d"}) == ()
