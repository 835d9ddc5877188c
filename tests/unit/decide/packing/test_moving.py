"""Which pod is moved for another that waits, and each next step of a move: whatever is not certain ends it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.unit.decide.packing.test_live import machine, tenant

from fallow import names
from fallow.decide import packing
from fallow.decide.packing import MoveRests
from fallow.model import cluster, moving, units
from fallow.model.moving import HeldPlace, MoveEnd, MoveNode, MoveNow, MoveRecord

NOW = 1_800_000_000.0
SCHEDULERS = frozenset({names.DEFAULT_SCHEDULER})
CLUSTER = [machine("old", 1, product="T4"), machine("new", 1, product="A100")]
TAINTED = [msgspec.structs.replace(each, taints=("NoSchedule",)) for each in CLUSTER]


def stuck(name: str = "picky", since: float = NOW - 601, **more: Any) -> cluster.Pod:
    made = tenant(name, **{"products": ("A100",), **more})
    return msgspec.structs.replace(made, unschedulable_since=since)


def there(name: str = "any", node: str = "new", **more: Any) -> cluster.Pod:
    owner = cluster.Owner("apps", "v1", "ReplicaSet", "r", f"o-{name}")
    return msgspec.structs.replace(tenant(name, node, **more), owner=owner, ready=True)


def ranked(pod: cluster.Pod, priority: int) -> cluster.Pod:
    return msgspec.structs.replace(pod, priority=priority)


def choose(*pods: cluster.Pod, machines: Any = CLUSTER, **more: Any) -> packing.MoveChoice:
    seen = cluster.Capacity(tuple(machines), pods, "c", 0)
    return packing.choose_move(seen, NOW, **{"schedulers": SCHEDULERS, **more})


def test_who_minds_least_goes_where_it_fits_so_that_the_other_comes_in() -> None:
    found = choose(there(), stuck())
    assert found.moved is not None
    assert found.waits is not None
    assert (found.moved.name, found.waits.name, found.source, found.target) == ("any", "picky", "new", "old")


@pytest.mark.parametrize(("pods", "more"), [
    ((there(), stuck(since=NOW - 599)), {}),
    ((there(), tenant("picky", products=("A100",))), {}),
    ((there(), stuck(scheduler="volcano")), {}),
    ((there(scheduler="volcano"), stuck()), {}),
    ((there(fixed="does work that an eviction would lose"), stuck()), {}),
    ((there(unclear="minds which pods are beside it"), stuck()), {}),
    ((there(created_at=NOW - 599), stuck()), {}),
    ((msgspec.structs.replace(there(), owner=None), stuck()), {}),
    ((msgspec.structs.replace(there(), terminating=True), stuck()), {}),
    ((msgspec.structs.replace(there(), ready=False), stuck()), {}),
    ((msgspec.structs.replace(there(), annotations={names.ACK_UNTIL: units.rfc3339(NOW + 60)}), stuck()), {}),
    ((there(), stuck()), {"why_kept": lambda pod: "ada keeps it"}),
    ((there(), stuck()), {"rests": MoveRests(nodes={"new"})}),
    ((there(), stuck()), {"rests": MoveRests(nodes={"old"})}),
    ((there(), stuck()), {"rests": MoveRests(owners={"o-any"})}),
    ((there(), stuck()), {"rests": MoveRests(served={stuck().uid})}),
    ((there(), there("full", "old"), stuck()), {}),
    ((there(products=("A100",)), stuck()), {}),
    ((there(), stuck(gpus=2)), {}),
    ((there("beside", "new", gpus=0, cpu=30_000), stuck(cpu=8000)), {}),  # of who has no GPU nobody asks the extender
    ((there(), stuck()), {"machines": TAINTED}),
    ((there(), stuck(tolerates=("NoExecute",))), {"machines": TAINTED}),
    ((there(), stuck(tolerates=("NoSchedule",))), {"machines": TAINTED}),
    ((there(tolerates=("NoSchedule",)), stuck()), {"machines": TAINTED}),
    ((there(), stuck(beyond="asks for rdma/hca, too")), {}),
    ((there(beyond="asks for rdma/hca, too"), stuck()), {}),
    ((there(), stuck()), {"rests": MoveRests(in_vain={stuck().namespace})}),
    ((ranked(there(), 2), ranked(stuck(), 1)), {}),
    ((ranked(there(), 1), stuck()), {}),
    ((), {}),
], ids=[
    "hardly-waits", "not-refused", "other-scheduler", "moved-by-another", "loses-work", "minds-others", "young",
    "no-owner", "going", "not-ready", "acknowledged", "kept", "source-rests", "target-rests", "owner-rests",
    "machine-comes", "full", "fits-nowhere", "two-gpus", "no-gpu", "taint", "other-effect", "moved-minds-the-taint",
    "waits-minds-the-taint", "waits-for-more", "takes-more", "in-vain", "less-priority", "no-priority", "empty",
])
def test_nobody_is_moved_where_anything_is_doubtful(pods: tuple[cluster.Pod, ...], more: dict[str, Any]) -> None:
    found = choose(*pods, **more)
    assert (found.moved, bool(found.because)) == (None, True)


def test_taints_that_both_tolerate_and_priorities_that_are_in_order_are_no_doubt() -> None:
    every = {"tolerates": ("NoExecute", "NoSchedule")}
    assert choose(there(**every), stuck(**every), machines=TAINTED).moved is not None
    for moved, waits in ((1, 1), (0, 1), (-1, 0)):
        assert choose(ranked(there(), moved), ranked(stuck(), waits)).moved is not None


def test_who_has_the_most_priority_is_let_in_first_and_what_it_takes_is_taken() -> None:
    found = choose(ranked(there(), 1), ranked(stuck("little"), 0), ranked(stuck("much"), 2))
    assert found.waits is not None
    assert found.waits.name == "much"
    machines = [*CLUSTER, machine("spare", 1, product="T4")]
    first, later = ranked(stuck("first", products=("T4",)), 2), ranked(stuck("later"), 1)
    full = there("full", "old", products=("T4",))
    assert choose(there(), full, later, machines=machines).target == "spare"
    assert choose(there(), full, first, later, machines=machines).moved is None, "who comes first needs that room"


def test_nobody_is_sent_to_a_node_that_rests_while_another_has_room() -> None:
    machines = [*CLUSTER, machine("tight", 1, product="T4"), machine("wide", 2, product="T4")]
    homes = {choose(there(), stuck(), machines=machines, rests=MoveRests(nodes=resting)).target for resting in (
        {"old", "tight"}, {"tight", "old", "elsewhere"},
    )}
    assert homes == {"wide"}


def test_only_the_first_move_of_a_plan_is_made_because_a_later_one_counts_on_it() -> None:
    """`b` could go only where `a` has left."""
    machines = [machine("x", 1, product="X"), machine("y", 1, product="Y"), machine("z", 1, product="Z")]
    pods = [there("a", "y", products=("Y", "Z")), there("b", "x", products=("X", "Y"))]
    waits = [stuck("first", products=("Y",)), stuck("second", products=("X",))]
    found = choose(*pods, *waits, machines=machines)
    assert found.waits is not None
    assert found.waits.name == "first"
    assert choose(*pods, *waits, machines=machines, rests=MoveRests(nodes={"z"})).moved is None


def test_who_fits_already_needs_nobody_to_go() -> None:
    assert choose(there(), stuck(products=())).moved is None


# ---- a move that runs ------------------------------------------------------------------------------------------------


def begun() -> tuple[MoveRecord, HeldPlace]:
    step = packing.begin_move(choose(there(), stuck()), 1, NOW)
    assert step is not None
    return step.record, step.here


def seen(pod: cluster.Pod, **more: Any) -> cluster.Pod:
    return msgspec.structs.replace(pod, **more)


def held(record: MoveRecord | None = None, **more: Any) -> HeldPlace:
    """The place on the target."""
    made = MoveNow(**{
        "record": record or begun()[0], "source": MoveNode("new", "n-1", "1"), "waits": stuck(), "moved": there(),
        "target": MoveNode("old", "n-2", "1"), **more,
    })
    step = packing.advance_move(made, NOW + 10)
    assert isinstance(step, moving.HoldTarget)
    return step.place


def now_there(record: MoveRecord | None, **more: Any) -> MoveNow:
    given: dict[str, Any] = {
        "source": MoveNode("new", "n-1", "1"), "waits": stuck(), "ready": 0, "is_kept": True,
        "target": MoveNode("old", "n-2", "1", held=held()), "moved": there(), "record": record, **more,
    }
    return MoveNow(**given)


def test_both_places_are_written_down_for_whom_they_are_meant() -> None:
    (record, here), place = begun(), held()
    assert (here.pod, here.owner, place.pod, place.owner) == (record.waits.uid, "", "", "o-any")
    assert here.move == place.move == record.move
    assert (here.leaving, place.leaving) == (record.moved.uid, record.moved.uid)
    assert (here.is_kept(NOW), here.is_kept(NOW + moving.KEPT_FOR), here.is_kept(NOW - 3 * moving.KEPT_FOR)) == (
        True, False, False
    )
    assert moving.read_record(moving.write(record)) == record
    assert moving.read_place(moving.write(here)) == here
    assert [moving.read_place(text) for text in ("", "{", "[]", '{"v":2}', None)] == [None] * 5


@pytest.mark.parametrize(("uid", "namespace", "owner", "is_for"), [
    ("new", "ml", "o-any", True), ("new", "other", "o-any", False), ("new", "ml", "another", False),
    ("new", "ml", "", False),
])
def test_the_next_pod_of_the_owner_is_meant_and_nobody_else(
    uid: str, namespace: str, owner: str, is_for: bool
) -> None:
    (record, here), place = begun(), held()
    assert place.is_for(uid, namespace, owner) is is_for
    assert (place.is_taken_by(uid, namespace, owner, NOW + 1), place.is_taken_by(uid, namespace, owner, NOW - 1)) == (
        is_for, False), "who was there before is not who was to come"
    assert here.is_taken_by(record.waits.uid, "ml", "", NOW - 600)
    assert not place.is_for(record.moved.uid, "ml", "o-any"), "who leaves does not stay"
    assert (here.is_for(record.waits.uid, "ml", ""), here.is_for("new", "ml", "o-any")) == (True, False)


def node(name: str, **more: Any) -> MoveNode:
    return MoveNode(name, "n-1" if name == "new" else "n-2", "1", **more)


def another(seconds: float) -> HeldPlace:
    return msgspec.structs.replace(begun()[1], move="another", until=NOW + seconds)


# Of either pod, or of either node, while the pod is where it was.
CHANGED: list[Any] = [
    pytest.param({"waits": None}, MoveEnd.NotNeeded, id="waits-no-more"),
    pytest.param({"waits": seen(stuck(), node="elsewhere")}, MoveEnd.NotNeeded, id="has-a-place"),
    pytest.param({"waits": seen(stuck(), terminating=True)}, MoveEnd.NotNeeded, id="held-by-a-finalizer"),
    pytest.param({"waits": stuck(beyond="the scheduler makes room")}, MoveEnd.NotNeeded, id="nominated"),
    pytest.param({"fixed": "ada keeps it"}, MoveEnd.Unmovable, id="kept"),
    pytest.param({"target": None}, MoveEnd.ChangedByOther, id="target-gone"),
    pytest.param({"target": node("old", held=held(), closed="is cordoned")}, MoveEnd.ChangedByOther, id="cordoned"),
    pytest.param({"target": node("old", held=held(), other="is to leave")}, MoveEnd.ChangedByOther, id="leaves"),
    pytest.param({"target": node("old", held=another(600))}, MoveEnd.ChangedByOther, id="kept-for-another"),
    pytest.param({"source": node("new", closed="is not Ready")}, MoveEnd.ChangedByOther, id="source-not-ready"),
    pytest.param({"source": node("new", other="is to leave")}, MoveEnd.ChangedByOther, id="source-leaves"),
]


@pytest.mark.parametrize("evicting", [None, NOW], ids=["before", "refused"])
@pytest.mark.parametrize(("more", "reason"), CHANGED)
def test_while_the_pod_is_where_it_was_whatever_changed_ends_it(
    more: dict[str, Any], reason: MoveEnd, evicting: float | None
) -> None:
    record = msgspec.structs.replace(begun()[0], evicting=evicting)
    step = packing.advance_move(now_there(record, **more), NOW + 20)
    assert isinstance(step, moving.EndMove)
    assert step.reason is reason


@pytest.mark.parametrize(("more", "reason"), [
    ({"moved": None}, MoveEnd.NotNeeded), ({"moved": seen(there(), terminating=True)}, MoveEnd.NotNeeded),
    ({"target": node("old", held=begun()[1])}, None),  # the same move's: equal by its id
    ({"target": node("old", held=another(-1))}, None),  # a place that is over is none
    ({"is_kept": False}, None),
])
def test_before_anybody_is_evicted(more: dict[str, Any], reason: MoveEnd | None) -> None:
    step = packing.advance_move(now_there(begun()[0], **more), NOW + 20)
    assert (step.reason if isinstance(step, moving.EndMove) else None) is reason


def test_the_place_is_for_the_pod_as_it_is_whatever_stands_in_the_record() -> None:
    forged = msgspec.structs.replace(begun()[0], owner="another", waits=moving.MovedPod("x", "x", "x"))
    place = held(forged, moved=there(cpu=100, scheduler="volcano"))
    assert (place.owner, place.cpu, place.scheduler, place.namespace) == ("o-any", 100, "volcano", "ml")
    for odd in (seen(there(), owner=None), there(gpus=2), there(gpus=0)):
        step = packing.advance_move(now_there(forged, target=node("old"), moved=odd), NOW + 10)
        assert isinstance(step, moving.EndMove)
        assert step.reason is MoveEnd.Unmovable


def test_places_then_the_extenders_word_then_one_eviction() -> None:
    record = begun()[0]
    bare = MoveNode("old", "n-2", "1")
    assert packing.advance_move(now_there(record, target=bare), NOW + 10) == moving.HoldTarget(held())
    assert isinstance(packing.advance_move(now_there(record, is_kept=False), NOW + 20), moving.WaitMove)
    evicts = packing.advance_move(now_there(record), NOW + 30)
    assert evicts == moving.EvictMoved(msgspec.structs.replace(record, evicting=NOW + 30))
    late = packing.advance_move(now_there(record), NOW + 121)
    assert isinstance(late, moving.EndMove)
    assert late.reason is MoveEnd.NotKept, "also where it says so too late"


GOING = {"moved": seen(there(), terminating=True)}
BOUND = {"waits": seen(stuck(), node="new")}


@pytest.mark.parametrize(("more", "after", "reason"), [
    ({}, 10, None), ({}, 601, MoveEnd.Refused), ({"is_kept": False}, 10, MoveEnd.NotKept),
    ({"target": node("old")}, 10, MoveEnd.NotKept),
    (GOING, 10, None), (GOING, 601, MoveEnd.ReplacementLate),
    ({"moved": None}, 10, None), ({"moved": None}, 601, MoveEnd.ReplacementLate),
    ({"moved": None, "ready": 1}, 10, None), ({"moved": None, "ready": 1}, 601, MoveEnd.NotTaken),
    ({"moved": None, "ready": 1, **BOUND}, 10, MoveEnd.Moved),
    ({"moved": None, "ready": 1, "waits": None}, 10, MoveEnd.NotTaken),
    ({"moved": None, "ready": 1, "waits": seen(stuck(), terminating=True)}, 10, MoveEnd.NotTaken),
    ({"moved": None, "target": None}, 10, None),  # whoever was evicted is waited for, wherever it comes
    ({}, -31, None), ({}, moving.KEPT_FOR, MoveEnd.Overdue),
    ({}, -61, MoveEnd.Overdue),  # a clock that was set back: for how long nobody knows
])
def test_once_it_is_to_go(more: dict[str, Any], after: float, reason: MoveEnd | None) -> None:
    record = msgspec.structs.replace(begun()[0], evicting=NOW)
    step = packing.advance_move(now_there(record, **more), NOW + after)
    assert (step.reason if isinstance(step, moving.EndMove) else None) is reason


def test_where_the_waiting_pod_came_is_said_as_it_is() -> None:
    record = msgspec.structs.replace(begun()[0], evicting=NOW)
    elsewhere = seen(stuck(), node="third")
    step = packing.advance_move(now_there(record, moved=None, ready=1, waits=elsewhere), NOW + 10)
    assert isinstance(step, moving.EndMove)
    assert "on third" in step.because


@pytest.mark.parametrize("gone", [{"moved": None}, GOING], ids=["gone", "going"])
def test_switched_off_after_the_eviction_the_places_are_kept_until_they_are_taken(gone: dict[str, Any]) -> None:
    record = msgspec.structs.replace(begun()[0], evicting=NOW)
    assert isinstance(packing.advance_move(now_there(record, **gone), NOW + 10, is_on=False), moving.WaitMove)
    over = packing.advance_move(now_there(record, moved=None, ready=1, **BOUND), NOW + 10, is_on=False)
    assert isinstance(over, moving.EndMove)
    assert over.reason is MoveEnd.Moved


@pytest.mark.parametrize("names_", [{"moved": ""}, {"waits": ""}, {"waits": "../x"}, {"waits": "A b"}, {"target": ""}])
def test_a_record_that_names_what_nobody_can_ask_for_cannot_be_read(names_: dict[str, str]) -> None:
    record = begun()[0]
    odd = {key: text if key == "target" else moving.MovedPod("u", "ml", text) for key, text in names_.items()}
    assert moving.read_record(moving.write(msgspec.structs.replace(record, **odd))) is None  # type: ignore[arg-type]


@pytest.mark.parametrize("evicting", [None, NOW])
def test_switched_off_or_with_a_record_that_nobody_can_read_it_ends(evicting: float | None) -> None:
    record = msgspec.structs.replace(begun()[0], evicting=evicting)
    off = packing.advance_move(now_there(record), NOW + 10, is_on=False)
    assert isinstance(off, moving.EndMove)
    assert off.reason is MoveEnd.SwitchedOff
    broken = packing.advance_move(now_there(None), NOW)
    assert isinstance(broken, moving.EndMove)
    assert broken.reason is MoveEnd.RecordBroken
