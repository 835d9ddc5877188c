"""The ladder, rung by rung, and how verdicts of GPUs become those of pods and workloads."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests import builders
from tests.builders import NOW, Gpu, World, busy, idle, never_used, unseen

from fallow.decide.idle import plan
from fallow.model import decision
from fallow.model.cluster import Trouble
from fallow.model.decision import Finding, Memory, Reason, Verdict
from fallow.model.policies import idle as policy
from fallow.model.seen import Register, Unseen
from fallow.model.units import HOUR, MINUTE
from fallow.model.usage import Signal, SourceTrouble

NAN = float("nan")


def judge(world: World, index: int = 0, rule: policy.Rule | None = None, *windows: float) -> Finding:
    return plan.make_plan(world.snapshot(*windows), builders.mandate(rule), Memory(), world.now).findings[index]


def judge_gpus(*gpus: Gpu, rule: policy.Rule | None = None, **pod: Any) -> Finding:
    world = World()
    world.workload(gpus=gpus, pod=pod)
    return judge(world, 0, rule)


RUNGS = {
    "quiet": (idle(), Reason.GoneIdle),
    "noise": (idle(signals={Signal.gr_engine: 0.0099}), Reason.GoneIdle),
    "at-the-threshold": (idle(signals={Signal.gr_engine: 0.01}), Reason.Busy),
    "one-busy-sample": (busy(), Reason.Busy),
    "exporter-down": (busy(exporter_up=False), Reason.ExporterDown),
    "energy-frozen": (idle(frozen=True), Reason.FrozenSeries),
    "profiling-0-util-80-is-suspect": (idle(signals={Signal.gpu_util: 0.8}), Reason.ExporterSuspect),
    "profiling-0-power-over-floor-is-suspect": (
        idle(signals={Signal.power: 251.0}, floor=100.0), Reason.ExporterSuspect
    ),
    "profiling-0-power-near-floor": (idle(signals={Signal.power: 249.0}, floor=100.0), Reason.GoneIdle),
    "profiling-0-power-of-an-open-context": (idle(signals={Signal.power: 100.0}, floor=34.0), Reason.GoneIdle),
    "profiling-0-power-beyond-a-context": (idle(signals={Signal.power: 110.0}, floor=34.0), Reason.ExporterSuspect),
    "profiling-0-half-of-rated-power": (
        idle(signals={Signal.power: 176.0}, floor=170.0, model="NVIDIA H100 80GB HBM3"), Reason.ExporterSuspect
    ),
    "profiling-0-below-half-of-rated-power": (
        idle(signals={Signal.power: 174.0}, floor=34.0, model="NVIDIA H100 80GB HBM3"), Reason.GoneIdle
    ),
    "profiling-low-util-80-contradicts": (
        idle(signals={Signal.gr_engine: 0.002, Signal.gpu_util: 0.8}), Reason.SignalContradiction
    ),
    "profiling-low-util-low": (idle(signals={Signal.gr_engine: 0.002, Signal.gpu_util: 0.009}), Reason.GoneIdle),
    "util-alone-busy": (busy(primaries=(Signal.gpu_util,)), Reason.Busy),
    "util-alone-quiet": (idle(primaries=(Signal.gpu_util,)), Reason.GoneIdle),
    "mig-with-util-only": (idle(primaries=(Signal.gpu_util,), mig=True), Reason.MigUtilOnly),
    "mig-with-device-util-only": (busy(primaries=(Signal.device_util,), mig=True), Reason.MigUtilOnly),
    "mig-with-engine": (idle(mig=True), Reason.GoneIdle),
    "mig-util-does-not-contradict": (idle(mig=True, signals={Signal.gpu_util: 0.8}), Reason.GoneIdle),
    "mig-copy-does-not-count": (idle(mig=True, signals={Signal.copy: 50.0}), Reason.GoneIdle),
    "mig-memory-counts": (idle(mig=True, signals={Signal.fb_growth: 300.0}), Reason.Busy),
    "tensor": (idle(signals={Signal.tensor: 0.01}), Reason.Busy),
    "dram": (idle(signals={Signal.dram: 0.02}), Reason.Busy),
    "copy": (idle(signals={Signal.copy: 1.0}), Reason.Busy),
    "copy-a-little": (idle(signals={Signal.copy: 0.9}), Reason.GoneIdle),
    "encoder": (idle(signals={Signal.enc: 1.0}), Reason.Busy),
    "decoder": (idle(signals={Signal.dec: 3.0}), Reason.Busy),
    "pcie": (idle(signals={Signal.pcie: 10.0 * 2**20}), Reason.Busy),
    "pcie-a-little": (idle(signals={Signal.pcie: 9.9 * 2**20}), Reason.GoneIdle),
    "memory-grew": (idle(signals={Signal.fb_growth: 256.0}), Reason.Busy),
    "requests": (idle(signals={Signal.requests: 1.0}), Reason.Busy),
    "no-requests": (idle(signals={Signal.requests: 0.0}), Reason.GoneIdle),
    "power-is-not-asked-for": (idle(signals={Signal.power: 400.0}, floor=350.0), Reason.GoneIdle),
    "kernel-within-the-window": (Gpu(signals={Signal.last_kernel: 29 * MINUTE}), Reason.Busy),
    "kernel-before-the-window": (Gpu(signals={Signal.last_kernel: 31 * MINUTE}), Reason.GoneIdle),
    "only-secondary-signals": (Gpu(primaries=(), signals={Signal.dram: 0.0}), Reason.NoSignal),
    "stale": (idle(age=10 * MINUTE), Reason.Stale),
    "just-fresh": (idle(age=180.0), Reason.GoneIdle),
    "just-stale": (idle(age=181.0), Reason.Stale),
    "busy-though-stale": (busy(age=10 * MINUTE), Reason.Busy),
    "from-the-future": (idle(age=-61.0), Reason.FutureSamples),
    "a-second-ahead": (idle(age=-1.0), Reason.GoneIdle),
    "covered": (idle(coverage=0.8), Reason.GoneIdle),
    "not-covered": (idle(coverage=0.79), Reason.LowCoverage),
    "one-sample-in-the-window": (idle(coverage=1 / 60), Reason.LowCoverage),
    "value-not-known": (Gpu(primaries=(), signals={Signal.gr_engine: NAN}), Reason.NoSignal),
    "blanks-beside-a-quiet-one": (idle(primaries=(Signal.gpu_util,), blank=(Signal.gr_engine,)), Reason.BlankSamples),
    "blanks-and-nothing-else": (Gpu(primaries=(), blank=(Signal.gr_engine,)), Reason.BlankSamples),
    "blanks-beside-a-busy-one": (busy(primaries=(Signal.gpu_util,), blank=(Signal.sm_active,)), Reason.Busy),
    "blanks-of-another-signal": (idle(blank=(Signal.enc,)), Reason.BlankSamples),
    "blanks-of-power-that-no-rule-asks-for": (idle(blank=(Signal.power,)), Reason.GoneIdle),
    "blanks-of-what-does-not-count": (idle(mig=True, blank=(Signal.gpu_util,)), Reason.GoneIdle),
    "blanks-on-a-shared-device": (idle(shared=True, blank=(Signal.gr_engine,)), Reason.BlankSamples),
    "negative-value-is-no-value": (Gpu(primaries=(), signals={Signal.gr_engine: -1.0}), Reason.NoSignal),
}


@pytest.mark.accepts("idle", 4, 6, 7)
@pytest.mark.parametrize(("gpu", "reason"), RUNGS.values(), ids=RUNGS.keys())
def test_the_first_rung_that_holds_decides(gpu: Gpu, reason: Reason) -> None:
    finding = judge_gpus(gpu)
    assert finding.reason is reason
    assert finding.verdict is {Reason.Busy: Verdict.active, Reason.GoneIdle: Verdict.idle}.get(reason, Verdict.unknown)
    assert finding.because
    assert (finding.idle_since is not None) == (reason is Reason.GoneIdle)


SHARED = {
    "own-process-quiet-device-busy": (busy(shared=True, signals={Signal.process_sm: 0.0}), Reason.SharedDevice),
    "own-process-quiet-device-quiet": (idle(shared=True, signals={Signal.process_sm: 0.0}), Reason.GoneIdle),
    "own-process-busy": (idle(shared=True, signals={Signal.process_sm: 0.5}), Reason.Busy),
    "own-kernel-long-ago-device-busy": (busy(shared=True, signals={Signal.last_kernel: 2 * HOUR}), Reason.SharedDevice),
    "nothing-of-its-own-device-busy": (busy(shared=True), Reason.SharedDevice),
    "nothing-of-its-own-device-quiet": (idle(shared=True), Reason.GoneIdle),
    "dcgm-util-alone-is-not-valid": (idle(shared=True, primaries=(Signal.gpu_util,)), Reason.NoSignal),
    "device-util-alone-is": (idle(shared=True, primaries=(Signal.device_util,)), Reason.GoneIdle),
    "requests-of-its-own": (busy(shared=True, signals={Signal.requests: 2.0}), Reason.Busy),
    "device-memory-moves": (idle(shared=True, signals={Signal.dram: 0.4}), Reason.SharedDevice),
    "own-process-stale": (Gpu(shared=True, signals={Signal.process_sm: 0.0}, age=HOUR), Reason.Stale),
}


@pytest.mark.accepts("idle", 8)
@pytest.mark.parametrize(("gpu", "reason"), SHARED.values(), ids=SHARED.keys())
def test_on_a_shared_gpu_only_the_pods_own_signals_show_activity(gpu: Gpu, reason: Reason) -> None:
    assert judge_gpus(gpu).reason is reason


QUIET, WORKS, LAUNCHES = {Signal.process_sm: 0.0}, {Signal.process_sm: 0.9}, {Signal.last_kernel: 5.0}
ACQUITTALS: dict[str, tuple[dict[Signal, float], dict[Signal, float], str, Reason]] = {
    "a neighbour's processes explain it": (QUIET, WORKS, "GPU-1", Reason.GoneIdle),
    "a neighbour's kernels explain it": ({Signal.last_kernel: 2 * HOUR}, LAUNCHES, "GPU-1", Reason.GoneIdle),
    "of two exporters neither": (QUIET, LAUNCHES, "GPU-1", Reason.SharedDevice),
    "nobody's processes explain it": (QUIET, QUIET, "GPU-1", Reason.SharedDevice),
    "a neighbour of another GPU": (QUIET, WORKS, "GPU-2", Reason.SharedDevice),
    "requests explain nothing": (QUIET, {Signal.requests: 3.0}, "GPU-1", Reason.SharedDevice),
}


@pytest.mark.accepts("idle", 8, 47)
@pytest.mark.parametrize("name", ACQUITTALS)
def test_a_busy_shared_device_must_be_explained_before_a_quiet_pod_is_idle(name: str) -> None:
    own, others, uuid, reason = ACQUITTALS[name]
    world = World()
    world.workload("ml/quiet", gpus=[busy(shared=True, signals=own, uuid="GPU-1")])
    world.workload("ml/other", gpus=[busy(shared=True, signals=others, uuid=uuid)])
    assert judge(world).reason is reason


CUT = {
    "the pod asks for an instance": ({"resources": {"nvidia.com/mig-1g.10gb": 1}}, {}, Reason.MigUtilOnly),
    "the node's product": ({}, {"product": "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb"}, Reason.MigUtilOnly),
    "the node's strategy": (
        {}, {"product": None, "labels": {"nvidia.com/mig.strategy": "single"}}, Reason.MigUtilOnly
    ),
    # NVIDIA's operator sets the strategy on every node; where GPUs are cut by it, their product says so, too.
    "a strategy that cuts nothing": ({}, {"labels": {"nvidia.com/mig.strategy": "single"}}, Reason.GoneIdle),
    "nobody": ({}, {}, Reason.GoneIdle),
}


@pytest.mark.accepts("idle", 44)
@pytest.mark.parametrize("name", CUT)
def test_a_gpu_is_cut_also_where_only_node_or_pod_say_so(name: str) -> None:
    pod, node, reason = CUT[name]
    world = World()
    world.node("node-1", **node)
    world.workload(gpus=[idle(primaries=(Signal.gpu_util,))], pod=pod)
    assert judge(world).reason is reason


@pytest.mark.parametrize("seen", [Signal.gpu_util, Signal.copy])
def test_what_may_be_cut_excuses_no_activity(seen: Signal) -> None:
    world = World()
    world.workload(gpus=[idle(signals={seen: 80.0})], pod={"resources": {"nvidia.com/mig-1g.10gb": 1}})
    assert judge(world).verdict is not Verdict.idle


ONE, TWO = {"nvidia.com/gpu": 1}, {"nvidia.com/gpu": 2}
CLAIMS: dict[str, tuple[list[tuple[dict[str, Any], list[Gpu]]], Reason]] = {
    "two pods, one GPU": ([({}, [idle(uuid="GPU-1")]), ({}, [idle(uuid="GPU-1")])], Reason.SignalContradiction),
    "declared shared": (
        [({}, [idle(uuid="GPU-1", shared=True)]), ({}, [idle(uuid="GPU-1", shared=True)])], Reason.GoneIdle
    ),
    "one of them ends": ([({}, [idle(uuid="GPU-1")]), ({"terminating": True}, [idle(uuid="GPU-1")])], Reason.GoneIdle),
    "more GPUs than asked for": ([({"resources": ONE}, [idle(), idle()])], Reason.SignalContradiction),
    "as many as asked for": ([({"resources": TWO}, [idle(), idle()])], Reason.GoneIdle),
    "nobody knows how many": ([({"claims": ("c",), "claimed": None}, [idle(), idle()])], Reason.MissingGpuSeries),
    "a board and its instance": (
        [({"resources": {"nvidia.com/mig-1g.10gb": 1}}, [idle(uuid="GPU-1/3", mig=True), idle(uuid="GPU-1")])],
        Reason.GoneIdle,
    ),
    "instances without labels": (
        [({"resources": {"nvidia.com/mig-1g.10gb": 1}}, [idle(uuid="GPU-1")])] * 2, Reason.GoneIdle
    ),
}


@pytest.mark.accepts("idle", 47)
@pytest.mark.parametrize("name", CLAIMS)
def test_a_gpu_that_is_claimed_twice_is_a_contradiction_and_not_shared(name: str) -> None:
    claims, reason = CLAIMS[name]
    world = World()
    for number, (pod, gpus) in enumerate(claims):
        world.workload(f"ml/{number}", gpus=gpus, pod=pod)
    finding = judge(world)
    assert finding.reason is reason
    assert reason is not Reason.SignalContradiction or "named for" in finding.because


@pytest.mark.parametrize("how", ["node", "resource"])
def test_a_gpu_is_shared_also_where_only_node_or_pod_say_so(how: str) -> None:
    world = World()
    world.node("node-1", shared=how == "node")
    world.workload(
        gpus=[busy()], pod={"resources": {"nvidia.com/gpu.shared" if how == "resource" else "nvidia.com/gpu": 1}}
    )
    assert judge(world).reason is Reason.SharedDevice


def test_the_canary_makes_every_gpu_of_the_node_unknown() -> None:
    world = World()
    world.workload("ml/a", gpus=[idle()])
    world.workload("ml/b", gpus=[idle(primaries=(), signals={Signal.gpu_util: 0.8})])
    world.workload("ml/c", gpus=[idle()], pod={"node": "node-2"})
    assert [judge(world, index).reason for index in range(3)] == [
        Reason.ExporterSuspect, Reason.ExporterSuspect, Reason.GoneIdle
    ]


def test_one_profiling_value_above_0_calms_the_canary() -> None:
    world = World()
    world.workload("ml/a", gpus=[idle()])
    world.workload("ml/b", gpus=[idle(signals={Signal.gr_engine: 0.5, Signal.gpu_util: 0.8})])
    assert [judge(world, index).reason for index in range(2)] == [Reason.GoneIdle, Reason.Busy]


@pytest.mark.parametrize(("said", "gpu", "reason"), [
    ({"power_watts": 100.0}, idle(signals={Signal.power: 100.0}, floor=60.0), Reason.Busy),
    ({"power_watts": 100.0}, idle(signals={Signal.power: 99.0}, floor=60.0), Reason.GoneIdle),
    ({"power_floor": True}, idle(signals={Signal.power: 116.0}, floor=100.0), Reason.Busy),
    ({"power_floor": True}, idle(signals={Signal.power: 115.0}, floor=100.0), Reason.GoneIdle),
    ({"power_floor": True}, idle(signals={Signal.power: 400.0}), Reason.ExporterSuspect),
    ({"activity": 0.05}, idle(signals={Signal.gr_engine: 0.04}), Reason.GoneIdle),
    ({"disabled_signals": frozenset({"pcie"})}, idle(signals={Signal.pcie: 1e9}), Reason.GoneIdle),
    ({"coverage": 0.5}, idle(coverage=0.6), Reason.GoneIdle),
    ({"max_sample_age": 900.0}, idle(age=600.0), Reason.GoneIdle),
], ids=["watts", "few-watts", "floor", "at-the-floor", "floor-not-learned", "threshold", "disabled", "coverage", "age"])
def test_the_rule_sets_the_measures(said: dict[str, Any], gpu: Gpu, reason: Reason) -> None:
    assert judge_gpus(gpu, rule=builders.rule(**said)).reason is reason


# ---- pods and workloads --------------------------------------------------------------------------------------------


@pytest.mark.accepts("idle", 1)
def test_one_busy_gpu_of_eight_makes_the_pod_active() -> None:
    finding = judge_gpus(*[idle()] * 7, busy())
    assert (finding.verdict, finding.idle_gpus, finding.gpus) == (Verdict.active, 7, 8)


@pytest.mark.accepts("idle", 2)
def test_one_busy_replica_of_ten_makes_the_deployment_active() -> None:
    world = World()
    pods = [world.pod(gpus=[idle()]) for _ in range(9)] + [world.pod(gpus=[busy()])]
    world.workload(pods=pods)
    assert judge(world).verdict is Verdict.active


@pytest.mark.accepts("idle", 3)
def test_three_series_for_four_gpus_are_not_enough() -> None:
    finding = judge_gpus(idle(), idle(), idle(), unseen())
    assert finding.reason is Reason.MissingGpuSeries
    assert "asked for 4 GPUs, and 3 of them are measured" in finding.because


@pytest.mark.parametrize(
    "said", [{"claimed": None}, {"resources": {}}], ids=["claim-unseen", "asks-for-nothing-and-has-nothing"]
)
def test_a_count_that_is_not_known_is_never_met(said: dict[str, Any]) -> None:
    world = World()
    world.workload(gpus=[idle()] if "claimed" in said else [unseen()], pod=said)
    assert judge(world).reason is Reason.MissingGpuSeries


def test_the_same_gpu_twice_does_not_stand_in_for_a_missing_one() -> None:
    assert judge_gpus(idle(uuid="GPU-a"), idle(uuid="GPU-a")).reason is Reason.MissingGpuSeries


def test_a_busy_pod_with_a_missing_gpu_is_unknown_but_a_busy_sister_makes_the_workload_active() -> None:
    world = World()
    world.workload("ml/a", pods=[world.pod(gpus=[busy(), unseen()])])
    world.workload("ml/b", pods=[world.pod(gpus=[idle(), unseen()]), world.pod(gpus=[busy()])])
    assert [judge(world, index).reason for index in range(2)] == [Reason.MissingGpuSeries, Reason.Busy]


@pytest.mark.parametrize(("gpus", "fraction", "verdict"), [
    ([idle()] * 7 + [busy()], 0.8, Verdict.idle),
    ([idle()] * 6 + [busy()] * 2, 0.8, Verdict.active),
    ([idle()] * 4 + [busy()], 0.8, Verdict.idle),
    ([idle()] * 7 + [idle(age=HOUR)], 0.8, Verdict.unknown),
    ([idle()] * 7 + [unseen()], 0.8, Verdict.unknown),
    ([busy()] * 2, 0.0, Verdict.active),
], ids=["enough", "too-few", "exactly", "one-unknown", "one-missing", "none-idle"])
def test_a_share_of_idle_gpus_may_suffice_but_unknown_never_counts(
    gpus: list[Gpu], fraction: float, verdict: Verdict
) -> None:
    assert judge_gpus(*gpus, rule=builders.rule(idle_gpu_fraction=fraction)).verdict is verdict


PODS = {
    "healthy": ({}, Reason.GoneIdle),
    "phase-unknown": ({"phase": "Unknown"}, Reason.NodeNotReady),
    "node-not-ready": ({"node": "node-down"}, Reason.NodeNotReady),
    "node-not-known": ({"node": "node-gone"}, Reason.NodeNotReady),
    "not-started": ({"started_at": None, "phase": "Pending"}, Reason.PodStarting),
    "restarting": ({"started_at": None}, Reason.PodStarting),
    "not-ready-1h": ({"ready": False, "ready_since": NOW - HOUR}, Reason.NotReady),
    "not-ready-2h": ({"ready": False, "ready_since": NOW - 2 * HOUR}, Reason.GoneIdle),
    "not-ready-and-restarted-1h-ago": (
        {"ready": False, "ready_since": NOW - 9 * HOUR, "started_at": NOW - HOUR}, Reason.NotReady
    ),
    "ready-1min": ({"ready_since": NOW - MINUTE}, Reason.TooYoung),
    "pending-2h-running-1min": (
        {"created_at": NOW - 2 * HOUR, "started_at": NOW - MINUTE, "ready_since": NOW - MINUTE}, Reason.TooYoung
    ),
    "restarted-5min-ago": ({"started_at": NOW - 5 * MINUTE}, Reason.TooYoung),
    "almost-old-enough": ({"started_at": NOW - 34.9 * MINUTE}, Reason.TooYoung),
    "old-enough": ({"started_at": NOW - 35 * MINUTE}, Reason.NeverUsed),
    "ready-since-not-known": ({"ready_since": None}, Reason.TooYoung),
    "reservation": ({"namespace": "kai-resource-reservation"}, Reason.ReservationOpaque),
}


@pytest.mark.accepts("idle", 10)
@pytest.mark.parametrize(("said", "reason"), PODS.values(), ids=PODS.keys())
def test_a_pod_must_be_up_and_old_enough_to_be_idle(said: dict[str, Any], reason: Reason) -> None:
    world = World()
    world.node("node-1")
    world.node("node-down", ready=False)
    world.workload(gpus=[idle()], pod=said)
    known = {name: node for name, node in world.snapshot().nodes.known.items() if name != "node-gone"}
    snapshot = world.snapshot(nodes=Register(known))
    assert plan.make_plan(snapshot, builders.mandate(), Memory(), NOW).findings[0].reason is reason


def test_a_young_pod_can_be_busy_but_not_idle() -> None:
    assert judge_gpus(busy(), started_at=NOW - MINUTE).reason is Reason.Busy


@pytest.mark.parametrize("said", [
    {"terminating": True}, {"phase": "Succeeded"}, {"phase": "Failed"},
    {"node": "", "phase": "Pending", "started_at": None},
], ids=["terminating", "succeeded", "failed", "unscheduled"])
def test_pods_that_hold_nothing_are_ignored(said: dict[str, Any]) -> None:
    world = World()
    world.workload("ml/a", pods=[world.pod(gpus=[idle()]), world.pod(gpus=[busy()], **said)])
    world.workload("ml/b", pods=[world.pod(gpus=[idle()], **said)])
    assert [judge(world, index).reason for index in range(2)] == [Reason.GoneIdle, Reason.NoGpuPods]


def judge_unseen(*gpus: Gpu, **pod: Any) -> decision.Finding:
    """On a node that cannot be seen."""
    world = World()
    world.workload(gpus=gpus, pod=pod)
    unseen_nodes: Register[Any] = Register({}, Unseen("403: nodes may not be listed"))
    return plan.make_plan(world.snapshot(nodes=unseen_nodes), builders.mandate(), Memory(), NOW).findings[0]


@pytest.mark.accepts("idle", 43)
@pytest.mark.parametrize(("gpu", "reason"), [
    (idle(), Reason.NodeUnseen),
    (idle(primaries=(Signal.gpu_util,)), Reason.NodeUnseen),
    (busy(), Reason.NodeUnseen),  # it may be a neighbour's
    (idle(primaries=(Signal.process_sm,)), Reason.GoneIdle),
    (idle(primaries=(), signals={Signal.last_kernel: HOUR}), Reason.GoneIdle),
    (idle(primaries=(Signal.process_sm, Signal.gr_engine)), Reason.GoneIdle),
    (busy(primaries=(Signal.process_sm,)), Reason.Busy),
], ids=["device", "utilisation", "busy-device", "process", "kernel", "process-and-device", "busy-process"])
def test_on_a_node_that_cannot_be_seen_only_what_the_pod_says_of_itself_counts(gpu: Gpu, reason: Reason) -> None:
    found = judge_unseen(gpu)
    assert found.reason is reason
    if reason is Reason.NodeUnseen:
        assert "node-1 of its pod llm-0 cannot be seen" in found.because
        assert "403: nodes may not be listed" in found.because


@pytest.mark.accepts("idle", 43)
def test_on_a_node_that_cannot_be_seen_a_pod_must_be_ready() -> None:
    gpu, stuck = idle(primaries=(Signal.process_sm,)), {"ready": False, "ready_since": NOW - 3 * HOUR}
    assert judge_unseen(gpu, **stuck).reason is Reason.NodeUnseen
    assert judge_unseen(gpu).verdict is Verdict.idle


def test_pods_that_may_be_its_own_make_it_unknown() -> None:
    world = World()
    world.workload(strays=Unseen("pod x may be part of it"))
    found = judge(world)
    assert (found.reason, found.because) == (Reason.OwnerLookupFailed, "pod x may be part of it")


def test_an_owner_that_could_not_be_asked_makes_the_workload_unknown() -> None:
    world = World()
    world.workload(trouble=Trouble.OwnerLookupFailed)
    assert judge(world).reason is Reason.OwnerLookupFailed


@pytest.mark.accepts("idle", 5)
@pytest.mark.parametrize(("word", "reason"), [
    ("SourceError", Reason.SourceDown), ("PartialResponse", Reason.SourceDown), ("NoData", Reason.SourceDown),
    ("WarmingUp", Reason.WarmingUp),
])
def test_trouble_with_the_source_makes_everything_unknown(word: str, reason: Reason) -> None:
    world = World()
    world.workload(annotations=builders.pending_marks(NOW - HOUR))
    world.trouble = SourceTrouble(word, "the server said no")
    made = plan.make_plan(world.snapshot(), builders.mandate(), Memory(), NOW)
    found = made.findings[0]
    assert (found.verdict, found.reason, found.because) == (Verdict.unknown, reason, "the server said no")
    assert made.decisions == ()
    assert made.memory.long.levels == ()
    assert (made.totals.unknown_gpus, made.totals.idle_gpus) == (1, 0)


# ---- since when, and over which window -----------------------------------------------------------------------------


@pytest.mark.parametrize(("gpu", "since", "at_least", "never"), [
    (idle(for_=3 * HOUR), NOW - 3 * HOUR, False, False),
    (idle(for_=22 * HOUR), NOW - 20 * HOUR, False, True),
    (never_used(), NOW - 20 * HOUR, False, True),
    (never_used(seen_since=NOW - 5 * HOUR), NOW - 5 * HOUR, True, False),
    (never_used(seen_since=NAN), NOW - 30 * MINUTE, True, False),
    (idle(looked_back=False), NOW - 30 * MINUTE, True, False),
    (Gpu(last_busy=NOW - 10 * MINUTE, signals={Signal.gr_engine: 0.0}), NOW - 30 * MINUTE, False, False),
], ids=["last-active", "before-the-start", "never", "not-covered-so-far", "coverage-not-known", "not-looked-up",
        "window-knows-better"])
def test_idle_since_is_the_last_activity_or_the_start_or_as_far_as_was_looked(
    gpu: Gpu, since: float, at_least: bool, never: bool
) -> None:
    finding = judge_gpus(gpu)
    assert (finding.idle_since, finding.at_least, finding.never_used) == (since, at_least, never)
    assert finding.reason is (Reason.NeverUsed if never else Reason.GoneIdle)


def test_a_workload_is_idle_since_the_latest_of_its_gpus() -> None:
    finding = judge_gpus(idle(for_=3 * HOUR), idle(for_=HOUR), never_used(seen_since=NOW - 2 * HOUR))
    assert (finding.idle_since, finding.at_least) == (NOW - HOUR, False)


TWO_WINDOWS = {
    "never-used-short-enough": (
        [never_used()], 20 * MINUTE, 2 * HOUR, 21 * MINUTE + 5 * MINUTE, Reason.NeverUsed, 20 * MINUTE
    ),
    "used-must-wait-longer": ([idle(for_=HOUR)], 20 * MINUTE, 2 * HOUR, 20 * HOUR, Reason.Busy, 2 * HOUR),
    "used-long-ago": ([idle(for_=3 * HOUR)], 20 * MINUTE, 2 * HOUR, 20 * HOUR, Reason.GoneIdle, 2 * HOUR),
    "never-used-gets-more-time": ([never_used()], 2 * HOUR, 20 * MINUTE, HOUR, Reason.TooYoung, 2 * HOUR),
    "used-gets-less": ([idle(for_=30 * MINUTE)], 2 * HOUR, 20 * MINUTE, HOUR, Reason.GoneIdle, 20 * MINUTE),
    "one-used-of-two": (
        [never_used(), idle(for_=30 * MINUTE)], 2 * HOUR, 20 * MINUTE, HOUR, Reason.GoneIdle, 20 * MINUTE
    ),
    "not-known-takes-the-longer": (
        [idle(for_=30 * MINUTE, looked_back=False)], 20 * MINUTE, 2 * HOUR, 20 * HOUR, Reason.Busy, 2 * HOUR
    ),
    "not-covered-takes-the-longer": (
        [never_used(seen_since=NOW - HOUR)], 2 * HOUR, 20 * MINUTE, 90 * MINUTE, Reason.TooYoung, 2 * HOUR
    ),
}


@pytest.mark.parametrize(
    ("gpus", "never", "gone", "age", "reason", "window"), TWO_WINDOWS.values(), ids=TWO_WINDOWS.keys()
)
def test_what_was_never_used_has_a_window_of_its_own(
    gpus: list[Gpu], never: float, gone: float, age: float, reason: Reason, window: float
) -> None:
    world = World()
    world.workload(gpus=gpus, pod={"started_at": NOW - age, "ready_since": NOW - age})
    finding = judge(world, 0, builders.rule(gone_idle=gone, never_used=never), never, gone)
    assert (finding.reason, finding.window) == (reason, window)


def test_idle_over_the_longer_window_must_be_idle_over_the_shorter_too() -> None:
    """The samples of the last minutes may be too few although the long window has enough."""
    world = World()
    world.workload(gpus=[idle(for_=5 * HOUR)])
    snapshot = world.snapshot(20 * MINUTE, 2 * HOUR)
    snapshot.evidence.usage[20 * MINUTE].count[Signal.gr_engine][:] = 3.0
    mandate = builders.mandate(builders.rule(gone_idle=2 * HOUR, never_used=20 * MINUTE))
    assert plan.make_plan(snapshot, mandate, Memory(), NOW).findings[0].reason is Reason.LowCoverage


def test_a_window_nobody_asked_the_source_for_is_not_judged() -> None:
    world = World()
    world.workload()
    found = judge(world, 0, builders.rule(gone_idle=HOUR, never_used=HOUR), 30 * MINUTE)
    assert found.reason is Reason.MissingGpuSeries


# ---- invariants ----------------------------------------------------------------------------------------------------

maybe = st.sampled_from([NAN, 0.0, 0.004, 0.02, 0.9])
gpu_strategy = st.builds(
    Gpu,
    last_busy=st.sampled_from([None, NOW - 3 * HOUR, NOW - MINUTE]),
    signals=st.dictionaries(
        st.sampled_from([Signal.gr_engine, Signal.sm_active, Signal.gpu_util, Signal.process_sm, Signal.dram]), maybe
    ),
    coverage=st.sampled_from([1.0, 0.8, 0.5, NAN]), age=st.sampled_from([15.0, 200.0, -100.0, NAN]),
    looked_back=st.booleans(),
    mig=st.booleans(), shared=st.booleans(), exporter_up=st.booleans(), frozen=st.booleans(), measured=st.booleans(),
)
pod_strategy = st.fixed_dictionaries({
    "phase": st.sampled_from(["Running", "Pending", "Unknown", "Succeeded"]), "ready": st.booleans(),
    "terminating": st.booleans(),
    "node": st.sampled_from(["node-1", "node-2", ""]), "claimed": st.sampled_from([0, None, 1]),
    "started_at": st.sampled_from([None, NOW - MINUTE, NOW - 20 * HOUR]),
    "ready_since": st.sampled_from([None, NOW - MINUTE, NOW - 20 * HOUR]),
})
workload_strategy = st.lists(st.tuples(st.lists(gpu_strategy, max_size=3), pod_strategy), max_size=3)


@given(st.lists(workload_strategy, max_size=4))
def test_nothing_is_ever_done_to_a_workload_with_an_active_unknown_or_missing_gpu(workloads: list[Any]) -> None:
    world = World()
    for index, pods in enumerate(workloads):
        world.workload(f"ml/w{index}", pods=[world.pod(gpus=gpus, **said) for gpus, said in pods])
    snapshot = world.snapshot()
    mandate = builders.mandate()
    made = plan.make_plan(snapshot, mandate, Memory(), NOW)
    touched = {
        each.finding.workload.ref.uid for each in made.decisions if isinstance(each, decision.Warn | decision.Pause)
    }
    for index, workload in enumerate(snapshot.workloads):
        finding, gpus = made.findings[index], made.findings.evidence(index)
        held = [snapshot.pods[at] for at in workload.pods]
        running = [pod for pod in held if pod.node and not pod.terminating]
        asked = [pod.gpu_count for pod in running if pod.phase not in ("Succeeded", "Failed")]
        all_idle = all(gpu.verdict is Verdict.idle for gpu in gpus) and len(gpus) >= sum(filter(None, asked))
        is_sure = bool(asked) and None not in asked and all_idle
        assert (finding.verdict is Verdict.idle) <= is_sure
        assert (workload.ref.uid in touched) <= (finding.verdict is Verdict.idle)
    total = made.totals
    assert total.active_gpus + total.idle_gpus + total.unknown_gpus == total.gpus
    assert sum(total.verdicts.values()) == len(workloads)
