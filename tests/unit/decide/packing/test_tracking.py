"""A live cluster kept up to date pod by pod: who is where, what is promised, and what nothing is said about."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fallow.decide import packing
from fallow.decide.packing import fragments, reserve, tracking
from fallow.model import moving
from fallow.model.capacity import Machine, Needs, Tenant

NOW = 100.0
ONE = Needs(cpu=4000, memory=8192, gpus=1)
SHARE = Needs(cpu=1000, memory=1024, shared=1)


def machine(name: str, gpus: int = 4, replicas: int = 1, **more: object) -> Machine:
    has = {"cpu": 64_000, "memory": 262_144, "pods": 100, "is_renamed": replicas > 1, **more}
    return Machine(name=name, product="A100", gpus=gpus, replicas=replicas, **has)  # type: ignore[arg-type]


def make_room(*machines: Machine, policy: str = "BestFit") -> tracking.LiveRoom:
    ground = packing.lay_out(machines, "uid-of-kube-system")
    return packing.LiveRoom(ground, packing.prepare(policy, ground.nodes, []))


def tenant(uid: str, node: str, needs: Needs = ONE, gpu_memory: int | None = None) -> Tenant:
    return Tenant(uid, node, needs, 0.0, gpu_memory)


def rank(
    room: tracking.LiveRoom, uid: str, needs: Needs = ONE, now: float = NOW, nodes: tuple[str, ...] | None = None
) -> tuple[str, ...]:
    found = room.rank(uid, needs, tracking.offer(list(room.ground.rows) if nodes is None else nodes), now)
    assert isinstance(found, packing.Ranking)
    return found.nodes


def test_the_fuller_node_is_best_and_only_what_is_offered_is_ranked() -> None:
    room = make_room(machine("a"), machine("b"), machine("c"))
    room.see("1", tenant("1", "b"))
    assert rank(room, "p")[0] == "b"
    assert set(rank(room, "q", nodes=("a", "c", "unknown"))) == {"a", "c"}


@pytest.mark.accepts("packing", 19)
def test_of_two_pods_within_ten_milliseconds_one_is_steered_to_the_last_share() -> None:
    room = make_room(machine("full", gpus=1, replicas=4), machine("empty", gpus=1, replicas=4))
    for number in range(3):
        room.see(str(number), tenant(str(number), "full", SHARE))
    assert rank(room, "first", SHARE) == ("full", "empty")
    assert rank(room, "second", SHARE, NOW + 0.01) == ("empty",)
    assert rank(room, "first", SHARE, NOW + 0.02) == ("full", "empty")  # its own promise does not stand in its way


def test_a_promise_ends_when_the_pod_is_seen_bound_or_gone_or_after_half_a_minute() -> None:
    room = make_room(machine("a", gpus=1), machine("b", gpus=1))
    for ends in ("bound", "gone", "late"):
        room.see("p", None)
        rank(room, "p", nodes=("a",))
        assert rank(room, "q", nodes=("a",)) == ()
        assert len(room.promises) == 1
        if ends == "late":
            assert rank(room, "q", now=NOW + reserve.PROMISED_FOR, nodes=("a",)) == ("a",)
        else:
            room.see("p", tenant("p", "b") if ends == "bound" else None)
            assert rank(room, "q", nodes=("a",)) == ("a",)
        room.see("q", None)


def test_who_is_bound_elsewhere_than_promised_counts_where_it_is() -> None:
    room = make_room(machine("a", gpus=1), machine("b", gpus=1))
    best = rank(room, "p")[0]
    other = "b" if best == "a" else "a"
    room.bind("p", other, NOW)
    assert rank(room, "q") == (best,)
    room.see("q", None)
    room.see("p", tenant("p", other))
    room.see("p", tenant("p", other))
    assert (rank(room, "q"), room.allocated) == ((best,), 2000)


def test_somebody_unexpected_on_a_promised_place_ends_the_promise_not_the_truth() -> None:
    room = make_room(machine("a", gpus=1))
    rank(room, "p")
    room.see("other", tenant("other", "a"))
    assert (rank(room, "q"), len(room.promises), room.allocated) == ((), 0, 1000)


@pytest.mark.parametrize("odd", [
    Needs(unknown="asks for a MIG instance"), Needs(gpus=9, cpu=1), Needs(shared=1), Needs(gpus=1, cpu=1 << 50),
])
def test_a_node_that_runs_what_cannot_be_counted_is_not_ranked_until_that_is_gone(odd: Needs) -> None:
    room = make_room(machine("a"), machine("b"))
    room.see("x", tenant("x", "a", odd))
    assert rank(room, "p") == ("b",)
    room.see("x", None)
    room.see("p", None)
    assert set(rank(room, "p")) == {"a", "b"}


def test_what_did_not_fit_is_counted_as_soon_as_there_is_room() -> None:
    room = make_room(machine("a", gpus=1))
    room.see("1", tenant("1", "a"))
    room.see("2", tenant("2", "a"))  # one too many
    assert room.rank("p", ONE, tracking.offer(["a"]), NOW) is packing.NoOpinion.UnknownNodes
    room.see("1", None)
    assert (rank(room, "p"), room.allocated) == ((), 1000)


@pytest.mark.parametrize(("needs", "nodes", "why"), [
    (Needs(unknown="asks for devices by claims"), ("a",), "UnknownRequest"),
    (Needs(gpus=1), ("nobody", "knows"), "UnknownNodes"),
    (Needs(gpus=1), ("a", "s"), "UnevenShares"), (Needs(shared=2), ("s",), "UnknownRequest"),
])
def test_where_it_cannot_be_told_nothing_is_said(needs: Needs, nodes: tuple[str, ...], why: str) -> None:
    room = make_room(machine("a"), machine("s", replicas=4), machine("m", left_out="is cut by MIG"))
    assert room.rank("p", needs, tracking.offer(nodes), NOW) == why
    assert len(room.promises) == 0


def test_who_asks_for_no_gpu_is_packed_on_nodes_that_share_and_that_do_not() -> None:
    room = make_room(machine("a"), machine("s", replicas=4), machine("t", replicas=2, is_renamed=False))
    room.see("1", tenant("1", "s", SHARE))
    assert rank(room, "p", Needs(cpu=1000))[0] == "s"  # the fullest; by itself a scheduler would spread them


def test_a_shared_node_lacks_gpu_memory_only_where_that_is_certain() -> None:
    room = make_room(
        machine("s", gpus=1, replicas=4, gpu_memory=80_000), machine("unknown", gpus=1, replicas=4),
        machine("whole", gpus=1, gpu_memory=80_000),
    )
    everywhere = ("s", "unknown", "whole", "nobody")
    assert room.lacks_gpu_memory(80_001, everywhere) == ["s"]
    room.see("1", tenant("1", "s", SHARE, 15_000))
    assert (room.lacks_gpu_memory(65_000, everywhere), room.lacks_gpu_memory(65_001, everywhere)) == ([], ["s"])
    room.see("1", None)
    assert room.lacks_gpu_memory(80_000, everywhere) == []


def test_who_claims_gpu_memory_and_holds_no_gpu_or_more_than_its_share_has_keeps_nobody_away() -> None:
    room = make_room(machine("s", gpus=2, replicas=4, gpu_memory=80_000))
    room.see("none", tenant("none", "s", Needs(cpu=100, memory=128), 1_000_000))
    assert room.lacks_gpu_memory(160_000, ("s",)) == []
    room.see("much", tenant("much", "s", SHARE, 1_000_000))
    assert (room.lacks_gpu_memory(140_000, ("s",)), room.lacks_gpu_memory(140_001, ("s",))) == ([], ["s"])
    for uid in ("much", "none"):
        room.see(uid, None)
    assert room.lacks_gpu_memory(160_000, ("s",)) == []


def test_who_makes_thousands_of_pods_each_of_another_size_does_not_crowd_out_what_usually_comes() -> None:
    ground = packing.lay_out([machine("a")], "uid")
    odd = [tenant(f"o{number}", "", Needs(cpu=1000 + number, memory=1024, gpus=1)) for number in range(5000)]
    usual = [tenant(f"u{number}", "") for number in range(3)]
    sample = packing.draw_sample(ground, [*odd, *usual], NOW)
    assert len({(pod.cpu, pod.gpus) for pod in sample}) == fragments.MOST_CLASSES
    assert sum(pod.cpu == ONE.cpu for pod in sample) >= 3
    few = packing.draw_sample(ground, [*odd[:100], *usual], NOW)
    assert len(few) == 103


def test_a_new_room_keeps_what_the_old_one_promised() -> None:
    old = make_room(machine("a", gpus=1))
    rank(old, "p")
    new = make_room(machine("a", gpus=1), machine("b", gpus=1))
    new.adopt(old)
    assert (rank(new, "q"), len(new.promises)) == (("b",), 2)


def test_the_sample_is_of_a_week_or_of_all_where_they_are_few() -> None:
    ground = packing.lay_out([machine("a"), machine("s", replicas=4)], "")
    now = 30 * 86_400.0
    old = [tenant(f"o{number}", "a") for number in range(10)]
    young = [Tenant(f"y{number}", "s", SHARE, now - 5.0) for number in range(200)]
    assert {pod.milli for pod in packing.draw_sample(ground, [*old, *young], now)} == {250}
    assert sorted({pod.milli for pod in packing.draw_sample(ground, [*old, *young[:9]], now)}) == [250, 1000]


STEPS = st.lists(st.tuples(
    st.integers(0, 6), st.sampled_from(["", "a", "b", "s", "gone"]),
    st.sampled_from([ONE, SHARE, Needs(gpus=2), Needs()]), st.sampled_from(["see", "go", "rank"]), st.floats(0, 40),
), max_size=40)


@given(steps=STEPS)
def test_whatever_happens_in_the_end_all_is_free(steps: list[tuple[int, str, Needs, str, float]]) -> None:
    room, now = make_room(machine("a", gpus=2), machine("b", gpus=1), machine("s", gpus=1, replicas=4)), NOW
    empty = room._packer.room.gpu.copy()
    for number, node, needs, what, seconds in steps:
        now += seconds
        if what == "rank":
            room.rank(str(number), needs, tracking.offer(["a", "b"] if not needs.shared else ["s"]), now)
        else:
            room.see(str(number), tenant(str(number), node, needs) if what == "see" else None)
        assert 0 <= room.allocated <= 4000
    for number in range(7):
        room.see(str(number), None)
    room.promises.expire(now + reserve.PROMISED_FOR)
    assert np.array_equal(room._packer.room.gpu, empty)
    assert room.allocated == 0


@given(seed=st.integers(0, 1000), policy=st.sampled_from(["FGD", "BestFit", "GPUPacking"]))
def test_offered_all_nodes_the_best_is_what_the_engine_would_take(seed: int, policy: str) -> None:
    rng = np.random.default_rng(seed)
    machines = [machine(f"n{number}", gpus=int(rng.integers(1, 8))) for number in range(20)]
    ground = packing.lay_out(machines, "x")
    wishes = [
        Needs(cpu=int(cores) * 1000, memory=int(rng.choice([1000, 250_000])), gpus=int(rng.integers(1, 4)))
        for cores in rng.integers(1, 16, 40)
    ]
    sample = [pod for each in wishes if (pod := tracking.read_request(ground, each, 1))]
    room = packing.LiveRoom(ground, packing.prepare(policy, ground.nodes, sample))
    engine = packing.Packer(ground.nodes, packing.prepare(policy, ground.nodes, sample), ground.order)
    for number, (needs, pod) in enumerate(zip(wishes, sample, strict=True)):
        best, taken = rank(room, str(number), needs), engine.arrive(pod)
        assert best[:1] == (() if taken is None else (ground.nodes.names[taken.node],))
        if best:
            room.see(str(number), tenant(str(number), best[0], needs))


def test_what_was_tried_is_undone_also_where_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """A defect while two are tried in one place must not leave the first of them there."""
    room = make_room(machine("a", gpus=4))
    place = moving.HeldPlace(v=1, move="m", namespace="ml", until=0.0, cpu=4000, memory=8192, gpus=1, shared=0)
    find, asked = room._find_seat, list[packing.PackingPod]()

    def fail(pod: packing.PackingPod, row: int) -> packing.Placement | None:
        asked.append(pod)
        if len(asked) == 2:
            raise OverflowError("absurd")
        return find(pod, row)

    monkeypatch.setattr(room, "_find_seat", fail)
    with pytest.raises(OverflowError):
        room.has_place("a", place, ONE)
    assert room.allocated == 0
