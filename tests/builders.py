"""Snapshots in the language of tests: a small World of nodes, workloads and GPUs at one instant.

    world = World()
    llm = world.workload("ml/llm", gpus=[idle(for_=HOUR), busy()])
    plan = make_plan(world.snapshot(), mandate(), Memory(), world.now)

What a test does not say is healthy: nodes and pods ready for a day, GPUs quiet for two hours, every sample there, all
looked back at.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import re2

from fallow.model import cluster, usage
from fallow.model.policies import idle as policy
from fallow.model.policies.idle import Action, ActionType, Brakes, Channel, Mandate, Notice, Rule
from fallow.model.seen import Register, several
from fallow.model.units import DAY, HOUR, MINUTE, Instant, Seconds, parse_instant, rfc3339
from fallow.model.usage import Signal

NOW: Instant = parse_instant("2026-11-15T12:00:00Z")  # a Sunday
WINDOW: Seconds = 30 * MINUTE
GROUPS = {
    "Deployment": "apps", "ReplicaSet": "apps", "StatefulSet": "apps", "DaemonSet": "apps",
    "InferenceService": "serving.kserve.io",
    "Notebook": "kubeflow.org", "Job": "batch", "Pod": "", "LeaderWorkerSet": "leaderworkerset.x-k8s.io",
    "PyTorchJob": "kubeflow.org", "RayJob": "ray.io",
}


STEERING = ("hpas", "scaled_objects", "kueue", "budgets")


def steering(given: Any) -> cluster.Steering:
    """As the eyes give it: a test may just say which there are."""
    return several(given) if isinstance(given, tuple) else given


class Gpu(msgspec.Struct, frozen=True):
    """One pod's hold on one GPU. `last_busy` is an instant; None = never."""

    last_busy: Instant | None = NOW - 2 * HOUR
    signals: Mapping[Signal, float] = {}  # highest in the window, instead of what last_busy gives
    primaries: tuple[Signal, ...] = (Signal.gr_engine,)
    coverage: float = 1.0
    age: Seconds = 15.0  # of the newest sample
    looked_back: bool = True
    seen_since: Instant = NOW - 24 * HOUR
    mig: bool = False
    shared: bool = False
    exporter_up: bool = True
    frozen: bool = False
    floor: float = float("nan")
    uuid: str = ""
    model: str = "NVIDIA A100"
    measured: bool = True  # False: no series at all
    blank: tuple[Signal, ...] = ()  # some samples of these are none


def idle(for_: Seconds = 2 * HOUR, **said: Any) -> Gpu:
    return Gpu(last_busy=NOW - for_, **said)


def busy(**said: Any) -> Gpu:
    return Gpu(last_busy=NOW - MINUTE, **said)


def never_used(**said: Any) -> Gpu:
    return Gpu(last_busy=None, **said)


def unseen() -> Gpu:
    return Gpu(measured=False)


def pattern(text: str) -> Any:
    return re2.compile(text)


SLACK = Channel("team", "slack")


def rule(
    *, notice: Notice | None = None, action: ActionType = ActionType.pause, pressure: Any = "off", **said: Any
) -> Rule:
    """By default it pauses without a notice, as the old tool does."""
    return Rule(notice=notice or Notice(), action=Action(type=action, pressure=pressure), **said)


def notice(grace: Seconds = 5 * MINUTE, *, required: bool = True) -> Notice:
    return Notice(required=required, grace=grace, channels=(SLACK,))


def mandate(
    a_rule: Rule | None = None, *, acting: bool = True, scope: policy.Scope | None = None, brakes: Brakes | None = None,
    **said: Any,
) -> Mandate:
    """By default one cycle confirms and no cap is near."""
    wide = Brakes(
        confirm_cycles=1, max_actions_per_cycle=1000, max_actions_per_namespace=1000, max_percent_per_hour=100.0
    )
    scope = scope or policy.Scope(letters=frozenset("drsinlmowyjck"))
    return Mandate(rule=a_rule or rule(), scope=scope, brakes=brakes or wide, acting=acting, **said)


class World:
    """Nodes, pods, workloads and their GPUs, as they are at `now`."""

    def __init__(self, now: Instant = NOW) -> None:
        self.now = now
        self.nodes: dict[str, cluster.Node] = {}
        self.namespaces: dict[str, cluster.Namespace] = {}
        self.pods: list[cluster.Pod] = []
        self.workloads: list[cluster.Workload] = []
        self.gpus: list[tuple[int, Gpu]] = []
        self.policies: list[policy.IdlePolicy] = []
        self.trouble: usage.SourceTrouble | None = None

    def node(
        self, name: str, *, ready: bool = True, product: str | None = "NVIDIA A100", shared: bool = False,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        self.nodes[name] = cluster.Node(
            name=name, hostname=name, addresses=(), ready=ready, gpu_product=product, shared=shared, labels=labels or {}
        )

    def namespace(
        self, name: str, *, labels: Mapping[str, str] | None = None, annotations: Mapping[str, str] | None = None
    ) -> None:
        self.namespaces[name] = cluster.Namespace(name, labels or {}, annotations or {})

    def pod(self, name: str = "", gpus: Sequence[Gpu] = (Gpu(),), **said: Any) -> int:
        """A pod and its GPUs; gives its place in the snapshot."""
        index = len(self.pods)
        name = name or f"pod-{index}"
        facts: dict[str, Any] = {
            "namespace": "ml", "name": name, "uid": f"uid-{name}-{index}", "node": "node-1", "phase": "Running",
            "terminating": False, "owner": None, "labels": {}, "annotations": {},
            "resources": {"nvidia.com/gpu": len(gpus)}, "claims": (), "claimed": 0, "created_at": NOW - DAY,
            "started_at": NOW - 20 * HOUR, "ready": True, "ready_since": NOW - 20 * HOUR, "ip": "10.0.0.1",
            "static": False, "node_selector": {}, "affinity": None, "unschedulable_since": None,
        }
        self.pods.append(cluster.Pod(**{**facts, **said}))
        self.gpus += [(index, gpu) for gpu in gpus if gpu.measured]
        return index

    def workload(
        self, where: str = "ml/llm", kind: str = "Deployment", gpus: Sequence[Gpu] = (Gpu(),), *, replicas: int = 1,
        pod: Mapping[str, Any] | None = None, pods: Sequence[int] | None = None,
        annotations: Mapping[str, str] | None = None, marks: Mapping[str, str] | None = None,
        marks_on: cluster.Ref | None = None, labels: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None, trouble: cluster.Trouble | None = None, **said: Any,
    ) -> int:
        """A workload of `replicas` equal pods, or of the `pods` given; gives its place in the snapshot."""
        namespace, _, name = where.partition("/")
        if pods is None:
            pods = [
                self.pod(f"{name}-{count}", gpus, **{"namespace": namespace, **(pod or {})})
                for count in range(replicas)
            ]
        ref = cluster.Ref(GROUPS.get(kind, "example.com"), "v1", kind, namespace, name, f"uid-{where}")
        self.workloads.append(cluster.Workload(
            ref=ref, resource_version="7", labels=labels or {}, annotations=annotations or {},
            body={"spec": {"replicas": max(1, len(pods))}} if body is None else body, pods=tuple(pods), chain=(),
            chain_bodies=(), trouble=trouble, trouble_because="", marks_ref=marks_on or ref,
            marks=(annotations or {}) if marks is None else marks,
            **{name: steering(said.pop(name, ())) for name in STEERING}, **said,
        ))
        return len(self.workloads) - 1

    def snapshot(self, *windows: Seconds, version: int | None = None, **said: Any) -> cluster.Snapshot:
        """`version`: of everything in it, for who asks more than once; by default nothing is said to be as it was."""
        for pod in self.pods:
            if pod.node and pod.node not in self.nodes:
                self.node(pod.node)
        for workload in self.workloads:
            if workload.ref.namespace not in self.namespaces:
                self.namespace(workload.ref.namespace)
        measured = {window: self.usage(window, version) for window in windows or (WINDOW,)}
        evidence = usage.Evidence(self.now, {} if self.trouble else measured, self.trouble, 0, {}, ())
        facts: dict[str, Any] = {
            "freeze": None, "missing": (), "policies": several(tuple(self.policies)),
            "nodes": Register(self.nodes), "namespaces": Register(self.namespaces),
        }
        return cluster.Snapshot(
            taken_at=self.now, pods=tuple(self.pods), workloads=tuple(self.workloads), evidence=evidence,
            version=version, **{**facts, **said},
        )

    def usage(self, window: Seconds, version: int | None = None) -> usage.Usage:
        gpus = [gpu for _, gpu in self.gpus]
        peaks = [self._peaks(gpu, window) for gpu in gpus]
        signals = sorted({signal for each in peaks for signal in each})
        primaries = [signal for signal in signals if signal in usage.PRIMARIES]
        interval = 30.0
        return usage.Usage(
            window=window, pod=np.array([pod for pod, _ in self.gpus], np.int32),
            gpu=tuple(gpu.uuid or f"GPU-{row}" for row, gpu in enumerate(gpus)), model=tuple(gpu.model for gpu in gpus),
            mig=np.array([gpu.mig for gpu in gpus], np.bool_), shared=np.array([gpu.shared for gpu in gpus], np.bool_),
            peak={signal: _column(each.get(signal) for each in peaks) for signal in signals}, mean={},
            count={
                signal: _column(
                    window / interval * gpu.coverage if signal in each else None
                    for gpu, each in zip(gpus, peaks, strict=True)
                )
                for signal in primaries
            },
            newest={
                signal: _column(
                    self.now - gpu.age if signal in each else None for gpu, each in zip(gpus, peaks, strict=True)
                )
                for signal in primaries
            },
            interval=np.full(len(gpus), interval), exporter_up=np.array([gpu.exporter_up for gpu in gpus], np.bool_),
            exporter_frozen=np.array([gpu.frozen for gpu in gpus], np.bool_),
            power_floor=_column(gpu.floor for gpu in gpus), last_active=_column(_last_active(gpu) for gpu in gpus),
            observed_since=_column(gpu.seen_since if gpu.looked_back else None for gpu in gpus), version=version,
            blank={
                signal: np.array([signal in gpu.blank for gpu in gpus], np.bool_)
                for signal in sorted({signal for gpu in gpus for signal in gpu.blank})
            },
        )

    def _peaks(self, gpu: Gpu, window: Seconds) -> dict[Signal, float]:
        is_busy = gpu.last_busy is not None and self.now - gpu.last_busy < window
        return {**dict.fromkeys(gpu.primaries, 0.9 if is_busy else 0.0), **gpu.signals}


def _last_active(gpu: Gpu) -> float | None:
    if not gpu.looked_back:
        return None
    return float("-inf") if gpu.last_busy is None else gpu.last_busy


def _column(values: Any) -> usage.Floats:
    return np.array(list(values), np.float64)


def paused_marks(at: Instant, gpus: int = 1, **more: str) -> dict[str, str]:
    """The annotations of a pause of ours."""
    group = "gpuautoscaler.io"
    return {
        f"{group}/paused-at": rfc3339(at), f"{group}/paused-by": "fallow", f"{group}/paused-gpus": str(gpus),
        f"{group}/original-state": '{"v":1,"fields":{"/spec/replicas":3}}', f"{group}/original-replicas": "3",
        **{f"{group}/{key.replace('_', '-')}": value for key, value in more.items()},
    }


def pending_marks(since: Instant) -> dict[str, str]:
    """The annotations of a notice that was delivered."""
    group = "gpuautoscaler.io"
    return {
        f"{group}/pending-since": rfc3339(since), f"{group}/idle-since": rfc3339(since - HOUR),
        f"{group}/idle-episode": "0123456789ab",
    }
