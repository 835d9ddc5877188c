"""Whose each part is and in which state: parts of every kind, idleness dated back, acknowledgements, the unknown."""

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.builders import HOUR as HOURS
from tests.builders import NOW, World, busy, idle, mandate, unseen
from tests.unit.account.paper import DAY0, Paper, Scene, held_rows

from fallow.account import acks, hour_use
from fallow.account.attribution import KeepingAck
from fallow.decide.idle import plan
from fallow.model import cluster, usage
from fallow.model.cost import WHOLE, Sharing, SpendState
from fallow.model.decision import Memory
from fallow.model.usage import HourReading, Signal

HOUR = 3600
KAI = "kai-resource-reservation"


def spans(paper: Paper, pod: str = "a") -> list[tuple[int, int, SpendState]]:
    mine = [each for each in paper.intervals if each.slice.pod_name == pod]
    return sorted((each.t0 - DAY0, each.t1 - DAY0, each.slice.state) for each in mine)


def held(scene: Scene) -> dict[str, tuple[float, str]]:
    """What of a GPU each pod holds at the end, and how."""
    found: dict[str, tuple[float, str]] = {}
    for each in scene.paper.rows.values():
        if each.is_open and each.slice.pod_uid:
            share, _ = found.get(each.slice.pod_name, (0.0, ""))
            found[each.slice.pod_name] = (share + each.slice.share / WHOLE, str(each.slice.key.sharing))
    return found


# ---- parts ----------------------------------------------------------------------------------------------------------


def test_parts_by_hami_are_the_greater_of_memory_and_cores_and_its_nodes_have_the_gpus_that_it_registers():
    scene = Scene()
    boards = (cluster.RegisteredGpu("GPU-1", 80_000), cluster.RegisteredGpu("GPU-2", 80_000))
    scene.node("n", 20, boards=boards)  # of which it offers ten times as many
    said = {"hami.io/vgpu-devices-allocated": "GPU-2,NVIDIA,20000,10:;"}
    scene.world.pod("memory", node="n", bound_at=float(DAY0), annotations=said,
                    part={"nvidia.com/gpumem": 20_000, "nvidia.com/gpucores": 10})
    scene.world.pod("cores", node="n", bound_at=float(DAY0), part={"nvidia.com/gpumem-percentage": 10,
                                                                    "nvidia.com/gpucores": 50})
    scene.world.pod("all", node="n", bound_at=float(DAY0), part={"nvidia.com/gpucores": 5})
    scene.look(DAY0)
    assert held(scene) == {"memory": (0.25, "hami"), "cores": (0.5, "hami"), "all": (1.0, "hami")}
    on = {each.slice.pod_name: each.slice.gpu for each in scene.paper.rows.values()}
    assert on["memory"] == "GPU-2" != on["all"]
    assert scene.books.odd == []
    scene.look(DAY0 + 60)
    assert scene.paper.hours() * HOUR == 120


def test_parts_by_kai_are_on_one_gpu_by_their_group_and_its_reservations_are_looked_through():
    scene = Scene()
    scene.node("n", 2)
    group = {"runai-gpu-group": "g1"}
    for name, fraction in (("a", "0.5"), ("b", "0.25")):
        scene.world.pod(name, node="n", bound_at=float(DAY0), labels=group, annotations={"gpu-fraction": fraction},
                        resources={"nvidia.com/gpu.shared": 1})
    scene.world.pod("reservation", node="n", namespace=KAI, bound_at=float(DAY0), labels=group)
    scene.world.pod("opaque", node="n", namespace=KAI, bound_at=float(DAY0), labels={"runai-gpu-group": "g2"})
    scene.look(DAY0)
    assert held(scene) == {"a": (0.5, "kai"), "b": (0.25, "kai"), "opaque": (1.0, "exclusive")}
    assert len({each.slice.gpu for each in scene.paper.rows.values() if each.slice.pod_name in "ab"}) == 1
    scene.world.pod("c", node="n", bound_at=float(DAY0 + 30), labels={"runai-gpu-group": "g2"},
                    annotations={"gpu-memory": "20480"}, resources={"nvidia.com/gpu.shared": 1})
    scene.look(DAY0 + 60)  # somebody is seen behind it
    scene.look(DAY0 + 120)
    assert held(scene)["c"] == (0.5, "kai")
    assert "opaque" not in held(scene)
    assert scene.paper.hours() * HOUR == 240


def test_devices_by_claims_hold_what_of_their_memory_was_given_else_all_of_it():
    scene = Scene()
    scene.node("n", 0, offers={"cpu": 0}, labels={"nvidia.com/gpu.count": "3", "nvidia.com/gpu.memory": "40960"})
    given = {
        "part": cluster.ClaimedGpu("n", "gpu-0", 10240), "whole": cluster.ClaimedGpu("n", "gpu-1"),
        "instance": cluster.ClaimedGpu("n", "gpu-2", profile="2g.10gb"),
    }
    for name, device in given.items():
        scene.world.pod(name, node="n", bound_at=float(DAY0), resources={}, claims=("c",), claimed=1, devices=(device,))
    scene.look(DAY0)
    assert held(scene) == {"part": (0.25, "dra"), "whole": (1.0, "dra"), "instance": (0.285714, "dra")}
    scene.look(DAY0 + 60)
    assert scene.paper.hours() * HOUR == 180


def test_parts_that_come_to_more_than_their_gpu_are_scaled_down_alike():
    scene = Scene()
    scene.node("n", 1)
    for at in range(3):
        scene.world.pod(f"p{at}", node="n", bound_at=float(DAY0), labels={"runai-gpu-group": "g"},
                        annotations={"gpu-fraction": "0.5"}, resources={"nvidia.com/gpu.shared": 1})
    scene.look(DAY0)
    assert sorted(share for share, _ in held(scene).values()) == [0.333333, 0.333333, 0.333334]


@pytest.mark.accepts("cost", 3)
@pytest.mark.parametrize("first", ["claimant", "victim"])
def test_who_only_writes_that_it_has_a_gpu_takes_no_cost_off_who_asked_for_one(first):
    """A CPU pod with KAI's annotation, on a node whose GPUs are all held by resources."""
    scene = Scene()
    scene.node("n", 2)
    said = {"gpu-fraction": "1", "gpu-fraction-num-devices": "99"}
    came = {"claimant": DAY0 + 60 * (first == "victim"), "victim": DAY0 + 60 * (first == "claimant")}
    scene.world.pod("claimant", node="n", bound_at=float(came["claimant"]), annotations=said,
                    resources={"nvidia.com/gpu.shared": 1})
    scene.world.pod("victim", node="n", bound_at=float(came["victim"]), resources={"nvidia.com/gpu": 2})
    for at in (0, 60, 120, 180):
        scene.look(DAY0 + at, [pod for pod in scene.world.pods if came[pod.name] <= DAY0 + at])
    assert held(scene) == {"victim": (2.0, "exclusive")}
    assert scene.paper.hours() * HOUR == 2 * 180
    assert scene.books.odd == ["pods hold more than the 2 GPUs of n"]


@pytest.mark.accepts("cost", 3)
def test_a_pod_that_holds_many_times_what_its_node_has_pays_for_all_of_it_and_for_no_more():
    scene = Scene()
    scene.node("n", 2)
    scene.world.pod("a", node="n", bound_at=float(DAY0), resources={"nvidia.com/gpu": 8})
    for at in (0, 60):
        scene.look(DAY0 + at)
    assert held(scene)["a"][0] == pytest.approx(2.0)
    assert scene.paper.hours() * HOUR == 2 * 60


def test_who_asked_for_next_to_nothing_of_a_gpu_is_in_the_books_all_the_same():
    scene = Scene()
    scene.node("n", 1)
    scene.world.pod("a", node="n", bound_at=float(DAY0), annotations={"gpu-fraction": "1e-9"},
                    resources={"nvidia.com/gpu.shared": 1})
    scene.look(DAY0)
    assert held(scene) == {"a": (0.000001, "kai")}


# ---- states ---------------------------------------------------------------------------------------------------------


def test_idleness_counts_from_the_last_work_on_as_far_back_as_nothing_is_rolled_up():
    scene = Scene()
    scene.node("n", 1)
    scene.world.pod("a", node="n", bound_at=float(DAY0))
    scene.look(DAY0, rows=held_rows([(0, "GPU-1", None, 0.5)]))
    for now in range(60, 3600, 60):
        scene.look(DAY0 + now, rows=held_rows([(0, "GPU-1", None, 0.3)]))
    scene.look(DAY0 + 3600, rows=held_rows([(0, "GPU-1", DAY0 + 1800.0, 0.0)]))
    assert spans(scene.paper) == [(0, 1800, SpendState.used), (1800, 3600, SpendState.held_idle)]
    scene.look(DAY0 + 3660, rows=held_rows([(0, "GPU-1", None, 0.9)]))
    scene.book.settle(DAY0 + 3600)
    scene.look(DAY0 + 5400, rows=held_rows([(0, "GPU-1", DAY0 + 60.0, 0.0)]))  # too far
    assert spans(scene.paper)[:2] == [(0, 1800, SpendState.used), (1800, 3660, SpendState.held_idle)]
    assert scene.paper.hours(pod="a") * HOUR == 5400


@pytest.mark.accepts("cost", 10)
def test_idle_all_day_with_prometheus_down_for_half_of_it():
    scene = Scene(DAY0)
    scene.node("n", 1)
    scene.world.pod("a", node="n", bound_at=float(DAY0))
    noon, end = DAY0 + 12 * HOUR, DAY0 + 24 * HOUR
    for now in range(DAY0, end + 1, 60):
        scene.look(now, rows=held_rows([(0, "GPU-1", float(DAY0), 0.0)]) if now < noon else None)
    half = scene.paper.cost() / 2
    assert scene.paper.cost(state=SpendState.held_idle) == half == scene.paper.cost(state=SpendState.use_unknown) == 12
    assert len(scene.paper.rows) == 2  # two halves


def test_who_has_no_row_or_none_that_can_be_trusted_has_a_cost_and_no_use():
    scene = Scene()
    scene.node("n", 3)
    for name in "abc":
        scene.world.pod(name, node="n", bound_at=float(DAY0))
    rows = [(0, "GPU-1", None, 0.5), (1, "GPU-2", None, None)]
    for now in (0, 60):
        scene.look(DAY0 + now, rows=held_rows(rows))
    assert spans(scene.paper, "a") == [(0, 60, SpendState.used)]
    assert spans(scene.paper, "b") == spans(scene.paper, "c") == [(0, 60, SpendState.use_unknown)]


def test_who_is_going_stays_what_he_was():
    scene = Scene()
    scene.node("n", 1)
    scene.world.pod("a", node="n", bound_at=float(DAY0))
    scene.look(DAY0, rows=held_rows([(0, "GPU-1", None, 0.5)]))
    scene.world.pods[0] = msgspec.structs.replace(scene.world.pods[0], terminating=True)
    scene.look(DAY0 + 60, rows=held_rows([]))
    scene.look(DAY0 + 120, rows=held_rows([]))
    assert spans(scene.paper) == [(0, 120, SpendState.used)]


def test_a_part_is_as_busy_as_its_own_processes_make_it():
    scene = Scene()
    scene.node("n", 4, shared=True, labels={"nvidia.com/gpu.replicas": "4"})
    scene.world.pod("a", node="n", bound_at=float(DAY0))
    scene.look(DAY0, rows=held_rows([(0, "GPU-1", None, 0.1)]))  # of the whole device
    (mine,) = [each for each in scene.paper.rows.values() if each.slice.pod_name == "a"]
    assert mine.use == (400_000,)


def test_an_acknowledgement_costs_while_it_is_open_and_the_workload_idle():
    scene = Scene(patience=HOUR)
    scene.node("n", 1)
    scene.world.workload("ml/llm", pod={"node": "n", "bound_at": float(DAY0)})
    uid, quiet = scene.world.workloads[0].ref.uid, held_rows([(0, "GPU-1", DAY0 + 600.0, 0.0)])
    scene.look(DAY0, rows=held_rows([(0, "GPU-1", None, 0.5)]))
    scene.look(DAY0 + 1200, rows=quiet)
    open_ack = {uid: KeepingAck("it@then", DAY0 + 1230.0)}
    scene.look(DAY0 + 1260, rows=quiet, acks=open_ack)
    scene.look(DAY0 + 1800, rows=quiet, acks=open_ack)
    scene.look(DAY0 + 1860, rows=held_rows([(0, "GPU-1", None, 0.5)]), acks={})
    scene.look(DAY0 + 1920, rows=held_rows([(0, "GPU-1", None, 0.5)]), acks={})
    assert scene.paper.hours(ack="it@then") * HOUR == 1860 - 1230
    assert scene.paper.hours(state=SpendState.held_idle) * HOUR == 1860 - 600


def test_an_acknowledgement_that_was_there_before_counts_from_the_last_work_on():
    scene = Scene()
    scene.node("n", 1)
    scene.world.workload("ml/llm", pod={"node": "n", "bound_at": float(DAY0)})
    open_ack = {scene.world.workloads[0].ref.uid: KeepingAck("it@then", DAY0 - 1000.0)}
    scene.look(DAY0, rows=held_rows([(0, "GPU-1", None, 0.5)]), acks=open_ack)
    scene.look(DAY0 + 120, rows=held_rows([(0, "GPU-1", DAY0 + 30.0, 0.0)]), acks=open_ack)
    assert scene.paper.hours(ack="it@then") * HOUR == 90


@pytest.mark.accepts("cost", 21)
def test_what_a_deleted_namespace_cost_stays():
    scene = Scene()
    scene.node("n", 1)
    scene.world.namespace("doomed", labels={"team": "red"})
    scene.world.pod("a", node="n", namespace="doomed", bound_at=float(DAY0))
    for now in (0, 60, 120):
        scene.look(DAY0 + now)
    pod = scene.world.pods.pop()
    scene.world.namespaces.pop("doomed")
    scene.look(DAY0 + 180, [], [cluster.Departure(pod, float(DAY0 + 150))])
    scene.look(DAY0 + 7200, [])
    assert scene.paper.hours(namespace="doomed", team="red") * HOUR == 150


@pytest.mark.accepts("cost", 21)
def test_a_namespace_that_goes_before_its_last_pods_still_says_whose_they_are():
    scene = Scene()
    scene.node("n", 1)
    scene.world.namespace("doomed", labels={"team": "red"})
    scene.world.pod("a", node="n", namespace="doomed", bound_at=float(DAY0))
    scene.look(DAY0)
    scene.world.namespaces.pop("doomed")
    scene.look(DAY0 + 60)
    scene.world.pods[0] = msgspec.structs.replace(scene.world.pods[0], labels={"project": "late"})
    scene.look(DAY0 + 120)
    scene.look(DAY0 + 180)
    assert scene.paper.hours(namespace="doomed", team="red") * HOUR == 180


@pytest.mark.accepts("cost", 7)
def test_the_model_is_booked_by_its_one_name_also_where_the_price_names_none():
    scene = Scene()
    scene.node("n", 1, product="NVIDIA-A100-SXM4-80GB-MIG-1g.10gb")
    scene.look(DAY0)
    scene.look(DAY0 + 60)
    assert {each.slice.key.gpu_model for each in scene.paper.intervals} == {"A100-80GB"}


# ---- what the brain hands over --------------------------------------------------------------------------------------


def test_the_brain_tells_each_row_idle_since_when_and_how_busy():
    world = World()
    world.workload("ml/quiet", gpus=[idle(for_=2 * HOURS)])
    world.workload("ml/half", gpus=[idle(), busy()])
    world.workload("ml/dark", gpus=[idle(exporter_up=False)])
    world.workload("ml/nobody", gpus=[unseen()])
    seen = world.snapshot()
    use = next(iter(seen.evidence.usage.values()))
    use = msgspec.structs.replace(use, mean={Signal.gr_engine: np.array([0.0, 0.0, 0.7, 0.0])})
    seen = msgspec.structs.replace(seen, evidence=msgspec.structs.replace(seen.evidence, usage={use.window: use}))
    rows = plan.make_plan(seen, mandate(), Memory(), NOW).rows
    assert rows is not None
    found = {(seen.pods[pod].name, gpu): (since, mean) for pod, gpu, since, mean in zip(
        rows.pod.tolist(), rows.gpu, rows.idle_since.tolist(), rows.use.tolist(), strict=True)}
    nan = pytest.approx(float("nan"), nan_ok=True)
    assert found == {
        ("quiet-0", "GPU-0"): (NOW - 2 * HOURS, 0.0), ("half-0", "GPU-1"): (nan, 0.0), ("half-0", "GPU-2"): (nan, 0.7),
        ("dark-0", "GPU-3"): (nan, nan),
    }


def test_no_rows_where_the_source_has_trouble():
    world = World()
    world.workload("ml/a")
    world.trouble = usage.SourceTrouble("SourceError", "it is down")
    assert plan.make_plan(world.snapshot(), mandate(), Memory(), NOW).rows is None


def test_what_a_shared_device_did_is_nobodys_use():
    seen = World()
    seen.workload("ml/a", gpus=[busy(shared=True), busy()])
    use = msgspec.structs.replace(seen.usage(1800.0), mean={
        Signal.gpu_util: np.array([0.9, 0.4]), Signal.gr_engine: np.array([0.8, np.nan]),
        Signal.process_sm: np.array([0.2, np.nan]),
    })
    own = usage.mean_use(use, np.array([False, False]), np.array([True, False]))
    assert own.tolist() == [0.2, 0.4]
    cut = usage.mean_use(use, np.array([False, True]), np.array([False, False]))
    assert cut[0] == 0.8
    assert np.isnan(cut[1])  # of an instance no utilisation counts


def test_what_an_acknowledgement_is_called_every_database_can_keep():
    """Whoever gave it wrote until when as they liked, and it is read all the same."""
    world = World()
    world.workload("ml/kept", annotations={"gpuautoscaler.io/ack-until": "2026-11-15T20:00:00." + "0" * 999 + "Z\0"})
    seen = world.snapshot()
    ((_, ack),) = acks.find_open(plan.make_plan(seen, mandate(), Memory(), NOW), seen).items()
    assert (len(ack.id), "\0" in ack.id) == (253, False)


def test_acknowledgements_that_hold_have_one_name_for_as_long_as_they_do():
    world = World()
    until = "2026-11-15T20:00:00Z"
    given = {"gpuautoscaler.io/ack-until": until, "gpuautoscaler.io/ack-at": "2026-11-15T11:00:00Z"}
    world.workload("ml/kept", annotations=given)
    world.workload("ml/busy", gpus=[busy()], annotations=given)
    world.workload("ml/free")
    seen = world.snapshot()
    found = acks.find_open(plan.make_plan(seen, mandate(), Memory(), NOW), seen)
    assert found == {"uid-ml/kept": KeepingAck(f"uid-ml/kept@{until}", NOW - HOURS)}


# ---- hours ----------------------------------------------------------------------------------------------------------


def reading(gpu: str, pod: str = "a", **found: float) -> HourReading:
    return HourReading(node="n", namespace="ml" if pod else "", pod=pod, gpu=gpu, **found)


def measured(*readings: HourReading, settle: bool = False) -> Scene:
    """A pod on a GPU from 0:10 to 0:40, quiet since 0:25, of a node with two."""
    scene = Scene()
    scene.node("n", 2)
    scene.look(DAY0)
    scene.world.pod("a", node="n", bound_at=DAY0 + 600.0)
    for now in range(DAY0 + 600, DAY0 + 2400, 60):
        since = DAY0 + 1500.0 if now >= DAY0 + 2000 else None
        scene.look(now, rows=held_rows([(0, "GPU-1", since, 0.6)]))
    scene.look(DAY0 + 2460, [], [cluster.Departure(scene.world.pods[0], DAY0 + 2400.0)])
    scene.look(DAY0 + HOUR + 60, [])
    hour_use.apply(scene.book, DAY0, readings)
    scene.look(DAY0 + HOUR + 120, [])
    return scene


def test_use_of_an_hour_is_of_the_time_in_which_it_worked():
    """Half of the time it was held nothing ran: what was done was done in the other half."""
    scene = measured(reading("GPU-1", use=0.25))
    uses = {each.slice.state: each.use for each in scene.paper.intervals if each.slice.pod_name == "a"}
    assert uses == {SpendState.used: (500_000,), SpendState.held_idle: (0,)}


def test_energy_goes_to_who_held_the_gpu_and_of_free_ones_to_nobody():
    scene = measured(reading("GPU-1", energy_mj=600_000.0), reading("GPU-1", "", energy_mj=90_000.0),
                     reading("GPU-2", "", watts=50.0))
    by_pod: dict[str, int] = {}
    for each in scene.paper.intervals:
        first = each.energy_mj[0] if each.t0 < DAY0 + HOUR else None
        by_pod[each.slice.pod_name] = by_pod.get(each.slice.pod_name, 0) + (first or 0)
    assert by_pod == {"a": 600_000, "": 90_000 + 50 * 3600 * 1000}


def test_an_hour_that_nobody_measured_keeps_what_the_cycles_showed():
    scene = measured()
    uses = {each.slice.state: each.use for each in scene.paper.intervals if each.slice.pod_name == "a"}
    assert uses == {SpendState.used: (600_000,), SpendState.held_idle: (0,)}


def test_what_names_no_pod_is_no_use_of_one_of_several_instances():
    scene = Scene()
    scene.node("n", 0, offers={"nvidia.com/mig-3g.20gb": 2}, gpu_product="NVIDIA-A100-SXM4-40GB")
    for name in ("a", "b"):
        scene.world.pod(name, node="n", bound_at=float(DAY0), resources={"nvidia.com/mig-3g.20gb": 1})
    rows = held_rows([(0, "GPU-1/1", None, 0.1), (1, "GPU-1/2", None, 0.1)], mig=np.ones(2, np.bool_))
    for now in range(DAY0, DAY0 + HOUR + 60, 60):
        scene.look(now, rows=rows)
    hour_use.apply(scene.book, DAY0, [reading("GPU-1/1", "", use=0.0), reading("GPU-1/2", "", use=1.0)])
    scene.look(DAY0 + HOUR + 60, rows=rows)
    uses = {each.slice.pod_name: each.use[0] for each in scene.paper.rows.values() if each.slice.pod_name}
    assert uses == {"a": 100_000, "b": 100_000}, "what the cycles showed"


def test_of_a_gpu_in_parts_only_what_the_pods_own_processes_did_is_use():
    scene = Scene()
    scene.node("n", 4, shared=True, labels={"nvidia.com/gpu.replicas": "4"})
    scene.world.pod("a", node="n", bound_at=float(DAY0))
    for now in range(DAY0, DAY0 + HOUR + 60, 60):
        scene.look(now, rows=held_rows([(0, "GPU-1", None, 0.1)]))
    hour_use.apply(scene.book, DAY0, [reading("GPU-1", use=0.9, own_use=0.2, energy_mj=4000.0)])
    scene.look(DAY0 + HOUR + 60, rows=held_rows([(0, "GPU-1", None, 0.1)]))
    (mine,) = [each for each in scene.paper.rows.values() if each.slice.pod_name == "a"]
    assert mine.use[0] == 800_000
    assert mine.energy_mj[0] == 1000
    assert {each.slice.key.sharing for each in scene.paper.rows.values()} == {Sharing.timeslicing, Sharing.idle}


# ---- energy of a GPU in parts ---------------------------------------------------------------------------------------


def sliced(*readings: HourReading, pods: int = 2) -> dict[str, int]:
    """What each pod of an hour burned, and what nobody did (""): pods a, b, ... on a GPU that four take turns on."""
    scene = Scene()
    scene.node("n", 4, shared=True, labels={"nvidia.com/gpu.replicas": "4"})
    for name in "abcd"[:pods]:
        scene.world.pod(name, node="n", bound_at=float(DAY0))
    for now in range(DAY0, DAY0 + HOUR + 60, 60):
        scene.look(now, rows=held_rows([(at, "GPU-1", None, 0.1) for at in range(pods)]))
    hour_use.apply(scene.book, DAY0, readings)
    scene.look(DAY0 + HOUR + 60, rows=held_rows([(at, "GPU-1", None, 0.1) for at in range(pods)]))
    found: dict[str, int] = {}
    for each in scene.paper.rows.values():
        if each.t0 < DAY0 + HOUR:
            found[each.slice.pod_name] = found.get(each.slice.pod_name, 0) + (each.energy_mj[0] or 0)
    return found


def test_what_a_shared_gpu_draws_at_rest_is_divided_by_share_and_the_rest_by_use():
    """180 W of which 60 at rest: 15 for each of four slots, and two have nobody. Of the other 120 who did three times
    as much burned three times as much. An hour of a watt is 3,600,000 mJ."""
    watt = 3600 * 1000
    burned = sliced(
        reading("GPU-1", "a", own_use=0.1, watts=180.0, floor_watts=60.0),
        reading("GPU-1", "b", own_use=0.3, watts=180.0, floor_watts=60.0),
    )
    assert burned == {"a": (15 + 30) * watt, "b": (15 + 90) * watt, "": 30 * watt}


@pytest.mark.parametrize("others", [
    {"own_use": 0.3},  # what it draws at rest is not known
    {"floor_watts": 60.0},  # what one of them did is not known
    {"own_use": 0.0, "floor_watts": 60.0, "quiet": True},  # nobody did anything
    {"own_use": 0.3, "floor_watts": 500.0},  # less than that was drawn
])
def test_what_is_not_known_is_divided_by_share_and_time(others):
    mine = {"own_use": 0.0 if others.pop("quiet", False) else 0.1}
    floor = {key: value for key, value in others.items() if key == "floor_watts"}
    burned = sliced(
        reading("GPU-1", "a", energy_mj=4001.0, **mine, **floor), reading("GPU-1", "b", energy_mj=4001.0, **others)
    )
    assert sum(burned.values()) == 4001
    assert (burned["a"], burned["b"]) == (pytest.approx(1000, abs=1), pytest.approx(1000, abs=1))


def test_who_works_beyond_its_part_burns_what_it_works():
    """Nothing keeps who takes turns to a quarter: 90 % and 10 % of what was done, of 100 W above 40."""
    watt = 3600 * 1000
    burned = sliced(
        reading("GPU-1", "a", own_use=0.9, watts=140.0, floor_watts=40.0),
        reading("GPU-1", "b", own_use=0.1, watts=140.0, floor_watts=40.0),
    )
    assert burned == {"a": (10 + 90) * watt, "b": (10 + 10) * watt, "": 20 * watt}


def test_who_was_there_for_part_of_the_hour_burned_for_that_long():
    """Both kept a fifth busy, the second for 20 minutes: 90 W above the floor are as 3 to 1. Its quarter of the 40 W at
    rest is the platform's for 40 minutes."""
    scene = Scene()
    scene.node("n", 2, shared=True, labels={"nvidia.com/gpu.replicas": "2"})
    scene.world.pod("a", node="n", bound_at=float(DAY0))
    scene.look(DAY0)
    scene.world.pod("b", node="n", bound_at=float(DAY0 + 2400))
    for now in range(DAY0 + 2400, DAY0 + HOUR + 60, 60):
        scene.look(now)
    both = {"own_use": 0.2, "watts": 130.0, "floor_watts": 40.0}
    hour_use.apply(scene.book, DAY0, [reading("GPU-1", "a", **both), reading("GPU-1", "b", **both)])
    scene.look(DAY0 + HOUR + 60)
    found: dict[str, float] = {}
    for each in scene.paper.rows.values():
        if each.t0 < DAY0 + HOUR:
            found[each.slice.pod_name] = found.get(each.slice.pod_name, 0) + (each.energy_mj[0] or 0) / 3_600_000
    assert found == pytest.approx({"a": 20 + 67.5, "b": 20 / 3 + 22.5, "": 40 / 3})


def test_of_instances_each_burns_by_its_size_and_use():
    """3g.20gb is half of an A100. Of 150 W above 50: one in full, the other at half of its instance."""
    scene = Scene()
    scene.node("n", 0, offers={"nvidia.com/mig-3g.20gb": 2}, gpu_product="NVIDIA-A100-SXM4-40GB")
    for name in ("a", "b"):
        scene.world.pod(name, node="n", bound_at=float(DAY0), resources={"nvidia.com/mig-3g.20gb": 1})
    rows = held_rows([(0, "GPU-1/1", None, 0.1), (1, "GPU-1/2", None, 0.1)], mig=np.ones(2, np.bool_))
    for now in range(DAY0, DAY0 + HOUR + 60, 60):
        scene.look(now, rows=rows)
    both = {"watts": 200.0, "floor_watts": 50.0}
    readings = [reading("GPU-1/1", "a", use=1.0, **both), reading("GPU-1/2", "b", use=0.5, **both)]
    hour_use.apply(scene.book, DAY0, readings)
    scene.look(DAY0 + HOUR + 60, rows=rows)
    found = {each.slice.pod_name: (each.energy_mj[0] or 0) / 3_600_000 for each in scene.paper.rows.values()}
    assert found == pytest.approx({"a": 25 + 100, "b": 25 + 50})


@settings(max_examples=60, deadline=None)
@given(
    uses=st.lists(st.none() | st.floats(0, 1), min_size=1, max_size=4), energy=st.floats(0, 10**12),
    floor=st.none() | st.floats(0, 1000),
)
def test_the_parts_of_what_a_gpu_burned_come_to_all_of_it(uses, energy, floor):
    found = [
        reading("GPU-1", name, own_use=use, energy_mj=energy, floor_watts=floor)
        for name, use in zip("abcd", uses, strict=False)
    ]
    burned = sliced(*found, pods=len(uses))
    assert sum(burned.values()) == round(energy)
    assert min(burned.values()) >= 0
    if None not in uses and any(round(use * WHOLE) for use in uses) and floor is not None:
        at_rest = min(round(energy), round(floor * 3600 * 1000))
        assert burned.get("", 0) == pytest.approx(at_rest * (4 - len(uses)) / 4, abs=4)
    else:
        assert burned.get("", 0) == pytest.approx(round(energy) * (4 - len(uses)) / 4, abs=4)
