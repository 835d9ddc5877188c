"""What pods do with the GPUs they hold: one node's polls as tables, and laws that hold for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fallow.decide.node import tenancies as judge
from fallow.model import processes as nouns
from fallow.model.processes import Device, Grant, Judged, Poll, Process, ProcessOwner, Share, Tenancy, Type

GPU, OTHER_GPU = "GPU-1", "GPU-2"
NOW, STALE = 1_000_000.0, 30.0
HOST, UNKNOWN = ProcessOwner(), ProcessOwner(is_known=False)


def process(pid: int, sm: int | None = 0, memory: int | None = 100, **more: Any) -> Process:
    given = {
        "type": Type.compute, "idle_seconds": None, "idle_memory": None, "last_active": None, "in_seed": True, **more
    }
    return Process(pid=pid, start=1, name="python", memory=memory, sm=sm, is_unknown=sm is None, **given)


def device(
    processes: Sequence[Process] | None, utilization: int | None = 0, is_supported: bool | None = True, uuid: str = GPU,
    **more: Any
) -> Judged:
    holders = None if processes is None else [nouns.Holder(each.pid, each.memory) for each in processes]
    known = Device(index=0 if uuid == GPU else 1, uuid=uuid, utilization=utilization, holders=holders, **more)
    return Judged(known, None if processes is None else list(processes), None, is_supported)


def grant(pod: str = "a", share: Share = Share.exclusive, container: str = "main", **more: Any) -> Grant:
    given = {"uuid": GPU, "gi": None, **more}
    return Grant(namespace="ml", pod=pod, container=container, resource="nvidia.com/gpu", share=share, **given)


def owner(pod: str = "a", container: str = "main", uid: str = "") -> ProcessOwner:
    return ProcessOwner("ml", pod, container, uid or f"uid-{pod}", "id")


class Node:
    """One poll after the other."""

    def __init__(self, history: judge.TenancyHistory | None = None) -> None:
        self.history = history or judge.TenancyHistory()

    def poll(
        self, judged: Judged | Sequence[Judged], owners: dict[int, ProcessOwner], grants: Sequence[Grant] | None,
        at: float = 0.0
    ) -> list[Tenancy]:
        devices = [judged] if isinstance(judged, Judged) else list(judged)
        poll = Poll(at=NOW + at, result=nouns.Result.ok, driver_version="570", devices=devices)
        by_process = {(pid, 1): owner for pid, owner in owners.items()}
        return judge.tenancies(poll, by_process, grants, self.history, NOW + at, 500.0 + at, STALE)


def look(judged: Judged, owners: dict[int, ProcessOwner], *grants: Grant) -> list[Tenancy]:
    return Node().poll(judged, owners, grants)


# ---- who does what -------------------------------------------------------------------------------------------------


@pytest.mark.accepts("exporter", 20)
def test_on_a_time_sliced_gpu_each_pod_has_its_own_utilisation() -> None:
    judged = device([process(1, sm=80), process(2, sm=0), process(3, sm=5, memory=7)], utilization=85)
    owners = {1: owner("busy"), 2: owner("idle"), 3: owner("busy")}
    busy, idle = look(judged, owners, grant("busy", Share.timeslice), grant("idle", Share.timeslice))
    assert (
        busy.grant.pod, busy.utilization, busy.processes, busy.memory, busy.scope
    ) == ("busy", 85, 2, 107, "process")
    assert (idle.grant.pod, idle.utilization, idle.processes, idle.memory, idle.scope) == ("idle", 0, 1, 100, "process")
    assert (busy.no_process_seconds, idle.no_process_seconds) == (0, 0)


def test_the_sum_is_at_most_100() -> None:
    [one] = look(device([process(1, sm=70), process(2, sm=70)]), {1: owner(), 2: owner()}, grant())
    assert one.utilization == 100


@pytest.mark.accepts("exporter", 19)
def test_a_held_gpu_without_a_process_is_counted_from_its_first_poll() -> None:
    node = Node()
    for at in (0.0, 5.0, 65.0 - 40.0):
        [one] = node.poll(device([]), {}, [grant()], at)
        assert (
            one.no_process_seconds, one.utilization, one.processes, one.memory, one.scope
        ) == (at, 0, 0, 0, "process")
        assert one.observed_since == NOW
        assert one.last_active is None


def test_processes_of_others_are_not_the_pods() -> None:
    judged = device([process(1, sm=50), process(2, sm=30)], utilization=80)
    [one] = look(judged, {1: HOST, 2: owner("monitoring")}, grant())
    assert (one.processes, one.utilization, one.no_process_seconds) == (0, 0, 0)


def test_a_process_ends_the_count_and_the_next_one_begins_anew() -> None:
    node = Node()
    node.poll(device([]), {}, [grant()], 0)
    assert node.poll(device([]), {}, [grant()], 10)[0].no_process_seconds == 10
    assert node.poll(device([process(1)]), {1: owner()}, [grant()], 15)[0].no_process_seconds == 0
    assert node.poll(device([]), {}, [grant()], 20)[0].no_process_seconds == 0
    assert node.poll(device([]), {}, [grant()], 25)[0].no_process_seconds == 5


@pytest.mark.parametrize(
    ("judged", "owners"),
    [
        (device(None), {}),
        (device([process(1)]), {1: UNKNOWN}),
        (device([process(1)]), {}),
        (device([process(1)]), {1: ProcessOwner(pod_uid="u", container_id="c")}),
        (device([], utilization=6), {}),
    ],
    ids=["list-failed", "owner-unknown", "owner-missing", "pod-without-a-name", "device-works-and-nobody-is-listed"],
)
def test_unknown_is_never_no_process(judged: Judged, owners: dict[int, ProcessOwner]) -> None:
    [one] = look(judged, owners, grant(share=Share.timeslice))
    assert (one.processes, one.memory, one.no_process_seconds, one.utilization, one.observed_since) == (None,) * 5


def test_a_pod_that_the_api_server_knows_is_no_nameless_one() -> None:
    [one] = look(device([process(1)]), {1: ProcessOwner(pod_uid="u", container_id="c")}, grant(pod_uid="uid-a"))
    assert one.processes == 0


def test_an_empty_list_of_somebody_who_sees_only_himself_proves_nothing() -> None:
    alone, shared = grant(may_hide=True), grant(share=Share.timeslice, may_hide=True)
    [one] = look(device([], utilization=3), {}, alone)
    assert (one.no_process_seconds, one.processes, one.scope, one.utilization) == (None, None, "device", 3)
    [one] = look(device([], utilization=3), {}, shared)
    assert (one.no_process_seconds, one.processes, one.scope, one.utilization) == (None, None, "process", None)


def test_a_busy_neighbour_explains_a_busy_device() -> None:
    judged = device([process(1, sm=90)], utilization=90)
    _, idle = look(judged, {1: owner("a")}, grant("a", Share.timeslice), grant("b", Share.timeslice))
    assert (idle.no_process_seconds, idle.utilization) == (0, 0)


def test_memory_that_is_not_available_is_not_summed() -> None:
    [one] = look(device([process(1, memory=None), process(2)]), {1: owner(), 2: owner()}, grant())
    assert (one.memory, one.processes) == (None, 2)


def test_a_process_that_could_not_be_measured_makes_the_sum_unknown() -> None:
    [one] = look(device([process(1, sm=None), process(2, sm=9)]), {1: owner(), 2: owner()}, grant())
    assert (one.utilization, one.processes, one.no_process_seconds) == (None, 2, 0)


@pytest.mark.parametrize(("sm", "shown"), [(0, None), (7, 7)], ids=["a zero is withheld", "work is work"])
def test_a_container_of_which_nothing_is_known_makes_its_sibling_no_proof_of_idleness(
    sm: int, shown: float | None
) -> None:
    judged = device([process(1, sm=sm), process(2, sm=None), process(3, sm=0)], utilization=0)
    owners = {1: owner(container="one"), 2: owner(container="two"), 3: owner("neighbour")}
    held = [grant(container=name, share=Share.timeslice) for name in ("one", "two")]
    one, two, neighbour = look(judged, owners, *held, grant("neighbour", Share.timeslice))
    assert (one.utilization, two.utilization, neighbour.utilization) == (shown, None, 0)


def test_an_mps_server_works_for_its_clients() -> None:
    judged = device([process(1, sm=None, type=Type.mps_server), process(2, sm=4, type=Type.mps_client)])
    [one] = look(judged, {1: owner(), 2: owner()}, grant(share=Share.mps))
    assert (one.utilization, one.processes) == (4, 2)


# ---- containers ----------------------------------------------------------------------------------------------------


def test_a_container_that_is_not_known_is_the_only_one_that_holds_the_gpu() -> None:
    [one] = look(device([process(1, sm=5)]), {1: owner(container="")}, grant())
    assert (one.processes, one.utilization) == (1, 5)


def test_two_containers_of_a_pod_are_told_apart_by_name_or_not_at_all() -> None:
    both = grant(container="x"), grant(container="y")
    first, second = look(device([process(1, sm=5)]), {1: owner(container="y")}, *both)
    assert [(one.grant.container, one.processes) for one in (first, second)] == [("x", 0), ("y", 1)]
    first, second = look(device([process(1, sm=5)]), {1: owner(container="")}, *both)
    assert [(one.processes, one.no_process_seconds) for one in (first, second)] == [(None, None)] * 2


# ---- MIG, and devices that cannot tell processes apart -------------------------------------------------------------


def mig(processes: Sequence[Process] | None, *loads: float | None, cis: Sequence[int] = (0, 0, 0)) -> Judged:
    instances = [
        nouns.Instance(gi, cis[at], f"MIG-{gi}", utilization=load) for at,
        (gi, load) in enumerate(zip((1, 2, 2), loads, strict=False))
    ]
    return device(processes, None, False, is_mig=True, instances=instances)


@pytest.mark.accepts("exporter", 6)
def test_a_mig_instance_without_a_meter_is_never_idle_and_its_memory_is_known() -> None:
    judged = mig([process(1, sm=None, instances=((1, 0),))], None, None)
    one, two = look(judged, {1: owner("a")}, grant("a", Share.mig, gi=1), grant("b", Share.mig, gi=2))
    assert (
        one.scope, one.utilization, one.processes, one.memory, one.observed_since
    ) == ("instance", None, 1, 100, None)
    assert (two.scope, two.utilization, two.processes, two.no_process_seconds) == ("instance", 0, 0, 0)


def test_a_mig_instance_with_a_meter_speaks_for_who_has_it_alone() -> None:
    judged = mig([process(1, sm=None, instances=((1, 0),))], 42.5, 0.0)
    one, two = look(judged, {1: owner("a")}, grant("a", Share.mig, gi=1), grant("b", Share.mig, gi=2))
    assert (one.scope, one.utilization, one.last_active, one.observed_since) == ("instance", 42.5, NOW, NOW)
    assert (two.utilization, two.last_active, two.no_process_seconds) == (0, None, 0)


def test_a_mig_instance_that_works_without_a_listed_process_is_not_without_one() -> None:
    [one] = look(mig([], 50.0), {}, grant(share=Share.mig, gi=1))
    assert (one.processes, one.no_process_seconds, one.utilization, one.last_active) == (None, None, 50, NOW)


def test_a_mig_instance_of_two_pods_speaks_for_neither() -> None:
    judged = mig([process(1, sm=None, instances=((1, 0),))], 42.5)
    one, two = look(judged, {1: owner("a")}, grant("a", Share.mig, gi=1), grant("b", Share.mig, gi=1))
    assert (one.utilization, one.processes, one.last_active) == (None, 1, None)
    assert (two.utilization, two.processes, two.no_process_seconds) == (0, 0, 0)


def test_compute_instances_are_told_apart() -> None:
    judged = mig([process(1, sm=None, instances=((2, 1),))], None, None, None, cis=(0, 0, 1))
    one, two = look(judged, {1: owner("a")}, grant("a", Share.mig, gi=2, ci=1), grant("b", Share.mig, gi=2, ci=0))
    assert (one.processes, two.processes) == (1, 0)


def test_a_stranger_makes_only_his_own_instance_uncertain() -> None:
    judged = mig([process(1, sm=None, instances=((2, 0),))], None, None)
    one, two = look(judged, {1: UNKNOWN}, grant("a", Share.mig, gi=1), grant("b", Share.mig, gi=2))
    assert (one.no_process_seconds, two.no_process_seconds) == (0, None)


def test_a_process_on_an_instance_that_is_not_told_may_be_on_any() -> None:
    grants = grant("a", Share.mig, gi=1), grant("a", Share.mig, gi=2)
    assert [
        one.processes for one in look(mig([process(1, sm=None)], None, None), {1: owner("a")}, *grants)
    ] == [None, None]


@pytest.mark.parametrize(
    ("judged", "whose"),
    [(device([process(1, sm=None)], 37, False), owner()), (device([process(1, sm=3)], 37), UNKNOWN)],
    ids=["driver-cannot-tell", "owner-unknown"],
)
def test_an_exclusive_gpu_speaks_for_its_pod_where_processes_cannot(judged: Judged, whose: ProcessOwner) -> None:
    [one] = look(judged, {1: whose}, grant())
    assert (one.scope, one.utilization, one.last_active) == ("device", 37, NOW)
    [one] = look(judged, {1: whose}, grant(share=Share.timeslice))
    assert (one.scope, one.utilization, one.last_active) == ("process", None, None)


def test_a_device_value_that_is_not_available_is_absent() -> None:
    [one] = look(device([process(1, sm=None)], None, False), {1: owner()}, grant())
    assert (one.scope, one.utilization, one.observed_since) == ("device", None, None)


# ---- memory --------------------------------------------------------------------------------------------------------


def test_activity_is_remembered_after_its_process_has_gone() -> None:
    node = Node()
    node.poll(device([process(1, sm=9, last_active=NOW - 1)]), {1: owner()}, [grant()], 0)
    [one] = node.poll(device([]), {}, [grant()], 5)
    assert (one.last_active, one.observed_since) == (NOW - 1, NOW)


@pytest.mark.parametrize(("gap", "since"), [(30.0, NOW), (30.1, NOW + 30.1)], ids=["short", "long"])
@pytest.mark.parametrize("how", ["no-poll", "no-grants", "no-device", "no-list"])
def test_a_long_gap_begins_everything_anew(gap: float, since: float, how: str) -> None:
    node = Node()
    node.poll(device([process(1, sm=9, last_active=NOW - 1)]), {1: owner()}, [grant()], -1)
    node.poll(device([]), {}, [grant()], 0)
    between: dict[str, tuple[Any, Any]] = {
        "no-grants": (device([]), None), "no-device": ([], [grant()]), "no-list": (device(None), [grant()]),
    }
    for at in (10.0, 20.0):
        if how in between:
            judged, grants = between[how]
            assert all(one.no_process_seconds is None for one in node.poll(judged, {}, grants, at))
    [one] = node.poll(device([]), {}, [grant()], gap)
    is_short = since == NOW
    assert one.observed_since == (NOW - 1 if is_short else since)
    assert one.no_process_seconds == (gap if is_short else 0)
    assert one.last_active == (NOW - 1 if is_short else None)


def test_while_it_cannot_be_seen_for_long_nothing_is_said() -> None:
    node = Node()
    node.poll(device([]), {}, [grant()], 0)
    [one] = node.poll(device(None), {}, [grant()], 20)
    assert one.observed_since == NOW
    [one] = node.poll(device(None), {}, [grant()], 31)
    assert (one.observed_since, one.no_process_seconds) == (None, None)


def test_a_new_pod_with_an_old_name_begins_anew() -> None:
    node = Node()
    node.poll(device([]), {}, [grant()], 0)
    assert node.poll(device([]), {}, [grant(pod_uid="1")], 5)[0].no_process_seconds == 5
    assert node.poll(device([]), {}, [grant()], 10)[0].no_process_seconds == 10
    [one] = node.poll(device([]), {}, [grant(pod_uid="2")], 15)
    assert (one.no_process_seconds, one.observed_since) == (0, NOW + 15)


def test_what_is_gone_is_forgotten() -> None:
    node = Node()
    node.poll([device([]), device([], uuid=OTHER_GPU)], {}, [grant(f"p{n}", Share.timeslice) for n in range(50)], 0)
    assert len(node.history.export()) == 50
    node.poll(device([]), {}, [grant()], 31)
    assert len(node.history.export()) == 1


def restart(node: Node, at: float) -> Node:
    history = judge.TenancyHistory()
    assert history.restore(msgspec.json.decode(msgspec.json.encode(node.history.export())), 500.0 + at) == ""
    return Node(history)


@pytest.mark.accepts("exporter", 23)
@pytest.mark.parametrize(("gap", "seconds"), [(20.0, 30.0), (40.0, 0.0)], ids=["short", "long"])
def test_a_short_restart_goes_on(gap: float, seconds: float) -> None:
    node = Node()
    node.poll(device([]), {}, [grant(), grant("b", gi=1)], 0)
    node.poll(device([]), {}, [grant(), grant("b", gi=1)], 10)
    found = restart(node, 10 + gap).poll(device([]), {}, [grant(), grant("b", gi=1)], 10 + gap)
    assert [(one.grant.pod, one.no_process_seconds) for one in found] == [("a", seconds), ("b", seconds)]
    assert {one.observed_since for one in found} == {NOW if seconds else NOW + 10 + gap}


def test_what_was_observed_in_the_future_is_not_used() -> None:
    node = Node()
    node.poll(device([]), {}, [grant()], 10)
    assert len(restart(node, 5).history.export()) == 0


@pytest.mark.accepts("exporter", 23)
@pytest.mark.parametrize("kept", [{}, "x", [1], [["uuid"]], [["u", 1, "n", "p", "c", "", "soon"]]])
def test_a_memory_that_cannot_be_read_is_not_used(kept: Any) -> None:
    history = judge.TenancyHistory()
    is_nothing = kept == {}
    assert bool(history.restore(kept, 500)) is not is_nothing
    assert len(history.export()) == 0


def test_without_a_memory_it_begins_empty() -> None:
    assert judge.TenancyHistory().restore(None, 1) == ""


# ---- laws ----------------------------------------------------------------------------------------------------------

pods = st.sampled_from(["a", "b"])
whose = st.sampled_from([owner("a"), owner("b"), owner("a", ""), owner("c"), HOST, UNKNOWN, ProcessOwner(pod_uid="u")])
lists = st.none() | st.lists(st.tuples(st.none() | st.integers(0, 100), whose), max_size=3)
moments = st.lists(
    st.tuples(lists, st.none() | st.integers(0, 100), st.booleans(), st.floats(1, 50)), min_size=1, max_size=8
)


@given(moments, st.sampled_from([Share.exclusive, Share.timeslice]))
def test_laws_of_every_series(story: list[tuple[Any, int | None, bool, float]], share: Share) -> None:
    node, at = Node(), 0.0
    for listed, load, is_known, pause in story:
        at += pause
        processes = None if listed is None else [process(pid, sm) for pid, (sm, _) in enumerate(listed, 1)]
        owners = {pid: owned for pid, (_, owned) in enumerate(listed or (), 1)}
        grants = [grant("a", share)] + ([grant("b", share)] if share is Share.timeslice else [])
        found = node.poll(device(processes, load), owners, grants if is_known else None, at)
        assert len(found) == (len(grants) if is_known else 0)
        for one in found:
            mine = [owned for _, owned in listed or () if owned.pod == one.grant.pod]
            doubtful = listed is None or any(
                not owned.is_known or (owned.pod_uid and not owned.pod) for _, owned in listed
            )
            if mine or doubtful:
                assert not one.no_process_seconds
            if doubtful:
                assert one.processes is None
            if one.no_process_seconds is not None:
                assert 0 <= one.no_process_seconds <= at
            assert one.utilization is None or 0 <= one.utilization <= 100
            assert one.observed_since is None or one.observed_since <= NOW + at
            assert one.scope == "process" or (share is Share.exclusive and one.scope == "device")
