"""Who lives in a pretend cluster: nodes of several models and modes, workloads of every kind, their owners.

In: a seed, how many nodes, workloads and hours. Out: a World, the same for the same numbers.
The mix follows what is seen in shared clusters: services and notebooks are many and small, training is few and large,
some of everything is held and never used.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec
import numpy as np

from fallow.decide import packing
from fallow.model import gpus
from fallow.model.units import HOUR, MINUTE, Instant, parse_instant
from fallow.sim import calling
from fallow.sim.traces import openb, published
from fallow.sim.world import lives, shapes
from fallow.sim.world.lives import LifeSpan, Percents
from fallow.sim.world.nouns import PARTS, Mode, Part, SimNode
from fallow.sim.world.world import World

MONDAY: Final[Instant] = parse_instant("2026-11-16T00:00:00Z")
MODELS: Final = ("NVIDIA-A100-SXM4-80GB", "NVIDIA-A100-SXM4-40GB", "Tesla-V100-SXM2-16GB", "Tesla-T4")
_MODES: Final[tuple[Mode, ...]] = ("whole",) * 7 + ("mig", "time-sliced", "mps")
REAL: Final = frozenset({"inference", "notebook"})  # lives that a trace of duty cycles can stand for
BURST_AT: Final = 0.64  # of the day
_MEMORY: Final = 24 * 1024.0  # MiB that a model and its context take
_ALONE: Final = SimNode("l40s-01", "NVIDIA-L40S", 1, pool="dev-l40s")
_TEAMS: Final = ("vision", "speech", "search", "ads", "robotics", "bio", "maps", "chat")


class Role(msgspec.Struct, frozen=True):
    """One line of the cast. `gpus`: per pod, any of these; `share`: how many of a hundred workloads."""

    share: int
    kinds: tuple[str, ...]
    class_: str
    life: str
    gpus: tuple[int, ...] = (1,)
    replicas: tuple[int, ...] = (1,)
    owners: tuple[str, ...] = ("attentive", "absent", "polite", "impatient")
    group_size: int = 1
    ends: bool = False


_SERVING: Final = ("Deployment", "InferenceService", "LLMInferenceService", "Rollout")
_TRAINING: Final = (*shapes.TRAINING_JOBS, "TrainJob", "JobSet", "RayJob")
_HELD: Final = ("Deployment", "ReplicaSet", "StatefulSet", "Notebook")
CAST: Final = (
    Role(26, _SERVING, "inference", "inference", (1, 1, 2), (1, 2, 3), ("machine", "attentive", "absent")),
    Role(4, ("RayService", "Deployment"), "inference", "inference", (4,), (1, 2), ("machine",)),
    Role(24, ("Notebook", "Workspace", "StatefulSet"), "notebook", "notebook", (1, 1, 1, 2)),
    Role(13, _TRAINING, "training", "training", (2, 4, 8), ends=True),
    Role(3, ("StatefulSet", "RayCluster"), "training", "training", (8,)),
    Role(12, ("Job", "AppWrapper", "JobSet"), "batch", "batch", (1, 2), ends=True),
    Role(9, _HELD, "notebook", "held", (1, 2, 4), (1,), ("absent", "attentive")),
    Role(6, ("Deployment", "RayCluster"), "batch", "flapping", (1, 2)),
    Role(3, ("LeaderWorkerSet",), "inference", "group", (4,), (1,), ("absent", "attentive"), 2),
)


def make_nodes(count: int) -> list[SimNode]:
    """Seven of ten are whole, one is cut by MIG, one is time-sliced, one is shared by MPS."""
    named = Counter[str]()
    made = []
    for number in range(count):
        mode = _MODES[number % 10]
        model = MODELS[0] if mode in ("mig", "mps") else MODELS[number % len(MODELS)]
        pool = calling.pool(model, mode)
        named[family := calling.family(pool)] += 1
        made.append(SimNode(f"{family}-{named[family]:02}", model, 8, mode, pool=pool))
    return made


def make_parts(count: int, span: LifeSpan, rng: np.random.Generator) -> list[Part]:
    shares = np.array([role.share for role in CAST], float)
    roles = rng.choice(len(CAST), count, p=shares / shares.sum())
    called = _call(CAST[int(role)].life for role in roles)
    cast = zip((CAST[int(role)] for role in roles), called, strict=True)
    return [_make_part(role, number, name, span, rng) for number, (role, name) in enumerate(cast)]


def _call(lives_: Iterable[str]) -> Iterator[str]:
    before = Counter[str]()
    for life in lives_:
        yield calling.workload(life, before[life])
        before[life] += 1


def _make_part(role: Role, number: int, name: str, span: LifeSpan, rng: np.random.Generator) -> Part:
    kind, team = str(rng.choice(role.kinds)), _TEAMS[int(rng.integers(len(_TEAMS)))]
    gpus, draw = int(rng.choice(role.gpus)), rng.random()
    mode: Mode = "whole" if gpus > 1 or draw < 0.8 else "mig" if draw < 0.9 else "time-sliced"
    arrives = span.start + float(rng.uniform(0, span.columns * span.step)) if rng.random() < 0.2 else None
    ends = (arrives or span.start) + float(rng.lognormal(np.log(5 * HOUR), 0.8)) if role.ends else None
    return Part(
        namespace=f"team-{team}", name=name, kind=kind, class_=role.class_, life=role.life,
        replicas=int(rng.choice(role.replicas)), gpus=gpus, group_size=role.group_size, mode=mode,
        owner=str(rng.choice(role.owners)), arrives_at=arrives, ends_at=ends,
        person=calling.person(number), room=f"#team-{team}" if role.class_ != "notebook" else "", memory=_MEMORY,
    )


def draw_lives(
    parts: Sequence[Part], span: LifeSpan, rng: np.random.Generator, real: published.Trace | None = None
) -> Percents:
    """With a real trace, services and notebooks do what its GPUs did."""
    rows, first = np.zeros((sum(part.seats for part in parts), span.columns), np.uint8), 0
    for part in parts:
        if real is not None and part.life in REAL:
            drawn = published.cut_lives(real, span, part.pods, part.gpus, rng)
        else:
            drawn = lives.draw(part.life, span, part.pods, part.gpus, rng)
        rows[first : first + part.seats] = drawn
        first += part.seats
    return rows


def _begin(hours: float) -> LifeSpan:
    """Minute by minute from a Monday on."""
    return LifeSpan(MONDAY, MINUTE, round(hours * HOUR / MINUTE))


def make_world(
    *, seed: int = 0, nodes: int = 40, workloads: int | None = None, hours: float = 24.0,
    real: published.Trace | None = None, bursts: bool = False,
) -> World:
    """Without a number of workloads: about as many as fill the nodes. `real`: a trace that lives are cut from.
    `bursts`: in the second half of the day more is asked for at once than usual."""
    span, rng, machines = _begin(hours), np.random.default_rng([seed, 0]), make_nodes(nodes)
    parts = make_parts(3 * nodes if workloads is None else workloads, span, rng)
    parts += [_make_crowded(span)] if any(node.mode == "mps" for node in machines) else []
    parts += _make_burst(span, nodes) if bursts else []
    wanted = draw_lives(parts, span, rng, real)
    if bursts:
        machines, guests = [*machines, _ALONE], _make_guests(span)
        parts, wanted = [*guests, *parts], np.vstack([draw_lives(guests, span, rng), wanted])
    return World(machines, parts, wanted, span, seed=seed)


def _make_guests(span: LifeSpan) -> list[Part]:
    """One that would run on any GPU and has the only one of its model, and one that later needs just that."""
    day = span.columns * span.step
    return [
        Part(
            namespace="team-vision", name="thumb-render", kind="Deployment", class_="inference", life="crowded",
            owner="machine", person=calling.person(1), room="#team-vision", roams=True,
        ),
        Part(
            namespace="team-vision", name="style-tune", kind="PyTorchJob", class_="training", life="batch",
            model=_ALONE.model, owner="machine", person=calling.person(2), room="#team-vision",
            arrives_at=span.start + 0.05 * day, ends_at=span.start + 0.5 * day,
        ),
    ]


def _make_crowded(span: LifeSpan) -> Part:
    """A service for which a part of a GPU is too little; late in the day its owner rolls it out anew."""
    day = span.columns * span.step
    return Part(
        namespace="team-vision", name="video-upscale", kind="Deployment", class_="inference", life="crowded",
        owner="machine", person=calling.person(0), room="#team-vision", arrives_at=span.start + 0.6 * day,
        restarts_at=span.start + 0.75 * day,
    )


def _make_burst(span: LifeSpan, nodes: int) -> list[Part]:
    """Jobs that want a whole machine each, one for four nodes, which come together and run for an eighth of the day."""
    day = span.columns * span.step
    return [
        Part(
            namespace="team-maps", name=f"city-tiles-{number + 1}", kind="Job", class_="batch", life="batch", gpus=8,
            owner="machine", person=calling.person(number), room="#team-maps", memory=_MEMORY, errand=True,
            arrives_at=span.start + BURST_AT * day, ends_at=span.start + (BURST_AT + 0.125) * day,
        )
        for number in range(max(1, nodes // 4))
    ]


def make_helios_world(demands: Sequence[published.Demand], *, seed: int = 0, hours: float = 24.0) -> World:
    """As many nodes of eight GPUs as there were, and jobs that ask for as many as were asked for, with drawn lives."""
    span, rng = _begin(hours), np.random.default_rng([seed, 5])
    nodes = [SimNode(f"{one.name.lower()}-{number:03}") for one in demands for number in range(-(-one.total // 8))]
    parts = [part for one in demands for part in published.demand_parts(one, span)]
    return World(nodes, parts, draw_lives(parts, span, rng), span, seed=seed)


def cut_openb(
    nodes: Sequence[packing.PackingNode], pods: Sequence[openb.AskingPod], count: int | None, *, seed: int = 0
) -> tuple[list[packing.PackingNode], list[openb.AskingPod]]:
    """So many of the nodes that have GPUs, whichever come first by the seed, and pods that some of them can hold until
    as many GPUs are asked for as there are; all of both without a count."""
    machines = [node for node in nodes if node.gpus]
    if count is None or count >= len(machines):
        return machines, list(pods)
    rng = np.random.default_rng([seed, 6])
    chosen = [machines[number] for number in sorted(rng.permutation(len(machines))[:count].tolist())]
    room, guests = float(sum(node.gpus for node in chosen)), list[openb.AskingPod]()
    for number in rng.permutation(len(pods)).tolist():
        pod = pods[number].pod
        asked, suiting = pod.gpus * pod.milli / packing.GPU, [node for node in chosen if node.gpus >= pod.gpus]
        if asked <= room and any(not pod.models or node.model in pod.models for node in suiting):
            room -= asked
            guests.append(pods[number])
    return chosen, guests


def make_openb_world(
    nodes: Iterable[packing.PackingNode], pods: Iterable[openb.AskingPod], *, seed: int = 0, hours: float = 24.0
) -> World:
    """The nodes of the trace, and all of its pods at once, as in the runs that were published with it. What they did is
    drawn, for the trace does not say: serving for the latency-sensitive, batch work and training for the others. Pods
    that ask for a share of a GPU live on time-sliced nodes, of which there are as many as they need."""
    span, rng = _begin(hours), np.random.default_rng([seed, 2])
    parts = [_make_openb_part(pod) for pod in pods if pod.pod.gpus]
    machines = [SimNode(node.name, gpus.normalise(node.model), node.gpus) for node in nodes if node.gpus]
    sliced = _slice(machines, sum(part.mode == "time-sliced" for part in parts))
    return World(sliced, parts, draw_lives(parts, span, rng), span, seed=seed)


def _make_openb_part(asking: openb.AskingPod) -> Part:
    pod, is_serving, qos = asking.pod, asking.qos == "LS", asking.qos.lower() or "pods"
    is_share = pod.gpus == 1 and pod.milli < 1000
    life = "inference" if is_serving else "training" if pod.gpus > 1 else "batch"
    model = pod.models[0] if len(pod.models) == 1 and not is_share else ""
    return Part(
        namespace=f"openb-{qos}", name=pod.name, kind="Deployment" if is_serving else "Job", class_=life, life=life,
        gpus=pod.gpus, mode="time-sliced" if is_share else "whole", model=gpus.normalise(model),
        owner="machine" if is_serving else "attentive",
    )


def _slice(nodes: Sequence[SimNode], shares: int) -> list[SimNode]:
    """Every third node is time-sliced until there is a slot for every share."""
    made = []
    for number, node in enumerate(nodes):
        is_sliced = shares > 0 and number % 3 == 0
        shares -= node.gpus * PARTS["time-sliced"] if is_sliced else 0
        made.append(SimNode(node.name, node.model, node.gpus, "time-sliced" if is_sliced else "whole"))
    return made
