"""Whatever cannot be seen, nothing is paused that a world in full sight would not have paused.

Small random worlds: nodes that are not ready, shared or cut, namespaces that opted out or are acknowledged,
autoscalers, queues, budgets, policies, claims, notices, workloads of several pods. Each world is planned twice: in full
sight, and with any of its inputs hidden, as the eyes hide them: a node's sharing goes with the node, a pod whose chain
broke leaves its workload, a claim its pod's count, a board its floor, a GPU all that was before its window.
"""

import random
from typing import Any

import pytest
from tests import builders
from tests.builders import NOW, Gpu, World

from fallow import names
from fallow.decide.idle import plan
from fallow.model import cluster
from fallow.model.decision import Memory, Pause, Warn
from fallow.model.policies import idle as policy
from fallow.model.policies.idle import Action, ActionType
from fallow.model.seen import ABSENT, Known, Register, Unseen, several
from fallow.model.selectors import Selector
from fallow.model.units import HOUR, MINUTE, rfc3339
from fallow.model.usage import Signal

WHY = Unseen("403: it may not be read")
NODES, SPACES = 5, ("ml", "hr")
KINDS = ("Deployment", "StatefulSet", "Job", "InferenceService", "LeaderWorkerSet", "RayJob")
DEVICE = (Signal.gr_engine, Signal.gpu_util, Signal.device_util)
OWN = (Signal.process_sm, Signal.last_kernel)


def pick(rng: random.Random, usual: Any, *others: Any, share: float = 0.12) -> Any:
    """The usual, mostly: a world in which nothing is idle shows nothing."""
    return rng.choice(others) if rng.random() < share else usual


def draw_gpu(rng: random.Random) -> dict[str, Any]:
    device = pick(rng, {Signal.gr_engine: 0.0}, {}, {rng.choice(DEVICE): 0.9}, dict.fromkeys(DEVICE, 0.0))
    own = rng.choice([{}, {Signal.process_sm: 0.0}, {Signal.last_kernel: 0.0}, dict.fromkeys(OWN, 0.0)])
    return {
        "device": device, "own": {**own, **pick(rng, {}, {Signal.process_sm: 0.9}, share=0.05)},
        "power": pick(rng, None, 60.0, 390.0, share=0.3), "model": pick(rng, "NVIDIA A100", "", share=0.3),
        "uuid": pick(rng, "", "GPU-a", "GPU-b", share=0.3), "floor": pick(rng, 60.0, 20.0),
        "last_busy": pick(rng, NOW - 2 * HOUR, NOW - 40 * MINUTE),
    }


def draw_pod(rng: random.Random) -> dict[str, Any]:
    return {
        "node": rng.randrange(NODES), "gpu": draw_gpu(rng), "ready": pick(rng, True, False, share=0.05),
        "resource": pick(rng, names.GPU, names.GPU_SHARED), "claims": pick(rng, False, True),
    }


def draw_workload(rng: random.Random) -> dict[str, Any]:
    return {
        "kind": rng.choice(KINDS), "space": rng.choice(SPACES), "told": pick(rng, False, True, share=0.3),
        "pods": [draw_pod(rng) for _ in range(rng.choice((1, 2)))],
        **{which: pick(rng, "none", "gentle", "strict", share=0.2) for which in builders.STEERING},
    }


def draw_content(rng: random.Random) -> dict[str, Any]:
    products = ("NVIDIA A100", None, "NVIDIA-A100-MIG-1g.5gb")
    return {
        "nodes": [
            {"ready": pick(rng, True, False), "shared": pick(rng, False, True), "product": pick(rng, *products)}
            for _ in range(NODES)
        ],
        "workloads": [draw_workload(rng) for _ in range(12)], "opted_out": pick(rng, set(), {"ml"}, {"hr"}, share=0.3),
        "policies": pick(rng, [], ["report"], ["long"], ["labelled"], ["long", "report"], ["models"], share=0.4),
        "acked": pick(rng, set(), {"ml"}, {"hr"}, share=0.3),
    }


OF_PODS = ("strays", "claims", "floors", "past")
NOTHING: dict[str, Any] = {
    "nodes": set(), "spaces": set(), "policies": False, "queued": False, "steering": set(), "series": set(),
    **{part: set() for part in OF_PODS},
}


def draw_hiding(rng: random.Random) -> dict[str, Any]:
    """Of each input any part, mostly of one: many hidings would hide each other's misses."""
    some: dict[str, Any] = {
        "nodes": set(rng.sample(range(NODES), rng.randint(1, NODES))), "policies": True,
        "spaces": {rng.choice(SPACES)}, "steering": {rng.choice(builders.STEERING)}, "queued": True,
        **{part: set(rng.sample(range(12), 5)) for part in OF_PODS},
    }
    chosen = rng.sample(list(some), rng.choice((1, 1, 1, 2, 5)))
    return {**NOTHING, **{part: some[part] for part in chosen}}


def steering_of(which: str, how: str, name: str) -> tuple[cluster.Companion, ...]:
    """One that lets a pause pass, or one that speaks against it."""
    if how == "none":
        return ()
    specs: dict[str, dict[str, Any]] = {
        "hpas": {"minReplicas": 0 if how == "strict" else 2}, "kueue": {"active": True}, "budgets": {},
        "scaled_objects": {"scaleTargetRef": {"name": name, "apiVersion": "apps/v1", "kind": "Deployment"}},
    }
    ref = cluster.Ref("g", "v1", which, "ml", f"{which}-{name}", f"uid-{which}-{name}")
    one = cluster.Companion(ref, "1", {}, {}, {"spec": specs[which]})
    return (one, one) if how == "strict" and which in ("kueue", "scaled_objects") else (one,)


def make_policies(which: list[str]) -> tuple[policy.IdlePolicy, ...]:
    rules = {
        "report": builders.rule(name="report", action=ActionType.report),
        "long": builders.rule(name="long", gone_idle=20 * HOUR, never_used=20 * HOUR),
        "labelled": builders.rule(name="labelled", action=ActionType.report),
        "models": builders.rule(name="models", action=ActionType.report),
    }
    selects = {"labelled": Selector({"team": "hr"})}
    return tuple(
        policy.IdlePolicy(
            name=name, uid=name, generation=1, rule=rules[name], namespace_selector=selects.get(name, Selector()),
            namespaces=(builders.pattern("ml"),) if name == "report" else (),
            gpu_models=(builders.pattern("NVIDIA A100"),) if name == "models" else (),
        )
        for name in which
    )


def uuid_of(pod: dict[str, Any]) -> str:
    return f"{pod['gpu']['uuid']}-{pod['node']}" if pod["gpu"]["uuid"] else ""


def measure(
    pod: dict[str, Any], number: int, hidden: dict[str, Any], *, shared: bool, loudest: dict[Signal, float]
) -> Gpu:
    """Where a GPU is known to be shared, the eyes give every holder the device's values."""
    gpu = pod["gpu"]
    device = {**gpu["device"], **loudest} if shared else gpu["device"]
    own = {signal: HOUR if signal is Signal.last_kernel and not peak else peak for signal, peak in gpu["own"].items()}
    power = {} if gpu["power"] is None else {Signal.power: gpu["power"]}
    said = {**device, **own, **power}
    return Gpu(
        primaries=(), signals=said, shared=shared, uuid=uuid_of(pod), model=gpu["model"], last_busy=gpu["last_busy"],
        floor=float("nan") if number in hidden["floors"] else gpu["floor"], looked_back=number not in hidden["past"],
        measured=number not in hidden["series"],
    )


def build(content: dict[str, Any], hidden: dict[str, Any]) -> cluster.Snapshot:
    world = World()
    for number, node in enumerate(content["nodes"]):
        world.node(f"n{number}", **node)
    for space in SPACES:
        opted_out = {names.OPT_OUT: "ignore"} if space in content["opted_out"] else {}
        acked = {names.ACK_UNTIL: rfc3339(NOW + HOUR)} if space in content["acked"] else {}
        world.namespace(space, labels={"team": space}, annotations={**opted_out, **acked})
    everyone = [pod for one in content["workloads"] for pod in one["pods"]]
    count = 0
    for number, one in enumerate(content["workloads"]):
        kept, strays = [], False
        for pod in one["pods"]:
            is_known = pod["node"] not in hidden["nodes"]
            shared = (is_known and content["nodes"][pod["node"]]["shared"]) or pod["resource"] == names.GPU_SHARED
            gpu = measure(pod, count, hidden, shared=shared, loudest=loudest_of(everyone, pod))
            asked = {"resources": {pod["resource"]: 1}}
            if pod["claims"]:
                asked = {"resources": {}, "claims": ("c",), "claimed": None if count in hidden["claims"] else 1}
            index = world.pod(
                gpus=[gpu], namespace=one["space"], node=f"n{pod['node']}", **asked,
                # The server itself marks the pods of a node that is not ready.
                ready=pod["ready"] and content["nodes"][pod["node"]]["ready"], ready_since=NOW - 20 * HOUR,
            )
            strays |= count in hidden["strays"]
            kept += [] if count in hidden["strays"] else [index]
            count += 1
        steering = {
            which: WHY if which in hidden["steering"] else several(steering_of(which, one[which], f"w{number}"))
            for which in builders.STEERING
        }
        if kept or not strays:
            more = {"strays": WHY} if strays else {}
            told = builders.pending_marks(NOW - HOUR) if one["told"] else {}
            world.workload(f"{one['space']}/w{number}", one["kind"], pods=kept, **BODIES.get(one["kind"], {}),
                           annotations=told, **steering, **more)
    waits = {"node": "", "phase": "Pending", "started_at": None, "unschedulable_since": NOW - HOUR}
    world.pod("waits", [builders.unseen()], **waits)
    return world.snapshot(*WINDOWS, **hide(content, hidden, world))


WINDOWS = (builders.WINDOW, 20 * HOUR)
BODIES: dict[str, dict[str, Any]] = {
    "RayJob": {"body": {"spec": {"shutdownAfterJobFinishes": True}, "status": {"jobDeploymentStatus": "Running"}}},
    "Job": {"body": {"spec": {}}},
}


def loudest_of(everyone: list[dict[str, Any]], pod: dict[str, Any]) -> dict[Signal, float]:
    uuid = uuid_of(pod)
    sharers = [each["gpu"]["device"] for each in everyone if uuid and uuid_of(each) == uuid]
    return {signal: max(one.get(signal, 0.0) for one in sharers) for device in sharers for signal in device}


def hide(content: dict[str, Any], hidden: dict[str, Any], world: World) -> dict[str, Any]:
    nodes = {name: node for name, node in world.nodes.items() if int(name[1:]) not in hidden["nodes"]}
    spaces = {name: space for name, space in world.namespaces.items() if name not in hidden["spaces"]}
    policies = several(make_policies(content["policies"]))
    return {
        "nodes": Register(nodes, WHY) if hidden["nodes"] else Register(nodes),
        "namespaces": Register(spaces, WHY) if hidden["spaces"] else Register(spaces),
        "policies": WHY if hidden["policies"] else policies, "queued": WHY if hidden["queued"] else ABSENT,
    }


def plan_steps(snapshot: cluster.Snapshot, rule: policy.Rule) -> tuple[set[str], set[str]]:
    """Whom it pauses, and whom it tells."""
    made = plan.make_plan(snapshot, builders.mandate(rule), Memory(), NOW).decisions
    pauses, warns = ([each for each in made if isinstance(each, kind)] for kind in (Pause, Warn))
    return {each.finding.workload.ref.uid for each in pauses}, {each.finding.workload.ref.uid for each in warns}


def paused(snapshot: cluster.Snapshot, rule: policy.Rule) -> set[str]:
    return plan_steps(snapshot, rule)[0]


TOLD = builders.rule(notice=builders.notice(grace=5 * MINUTE))
PRESSED = builders.rule(pressure="only")
RULES = (
    policy.Rule(action=Action(type=ActionType.pause)),
    policy.Rule(action=Action(type=ActionType.pause, respect_pdb=True)),
    TOLD, PRESSED,
)


@pytest.mark.parametrize("seed", range(300))
def test_no_pause_and_no_notice_that_a_world_in_full_sight_would_not_have_made(seed: int) -> None:
    rng = random.Random(seed)
    content, rule = draw_content(rng), rng.choice(RULES)
    # Whoever goes for another's sake in full sight may go himself where that other is not seen.
    pauses, warns = plan_steps(build(content, NOTHING), RULES[0] if rule is PRESSED else rule)
    for _ in range(3):
        hidden = draw_hiding(rng)
        paused_now, warned_now = plan_steps(build(content, hidden), rule)
        assert paused_now <= pauses, hidden
        assert warned_now <= pauses | warns, hidden


SIMPLE: dict[str, Any] = {
    "nodes": [{"ready": True, "shared": False, "product": None}] * 3, "opted_out": set(), "acked": set(),
    "policies": [],
    "workloads": [{
        "kind": "Deployment", "space": "ml", "told": True, **dict.fromkeys(builders.STEERING, "none"),
        "pods": [{
            "node": 0, "ready": True, "resource": names.GPU, "claims": True,
            "gpu": {
                "device": {Signal.gr_engine: 0.0}, "own": {}, "power": 100.0, "model": "", "uuid": "", "floor": 60.0,
                "last_busy": NOW - 2 * HOUR,
            },
        }],
    }],
}


def test_in_full_sight_such_worlds_are_paused_and_each_hiding_alone_can_stop_it() -> None:
    """Else the property above would hold of a brain that does nothing."""
    rule = policy.Rule(action=Action(type=ActionType.pause, respect_pdb=True))
    assert paused(build(SIMPLE, NOTHING), rule)
    for which in ("hpas", "scaled_objects", "budgets"):
        assert not paused(build(SIMPLE, {**NOTHING, "steering": {which}}), rule)
    parts = {"nodes": {0}, "spaces": {"ml"}, "policies": True, "series": {0}, **{part: {0} for part in OF_PODS}}
    for part, value in parts.items():
        stops = part != "past"  # without a notice nothing rests on what was before its window
        assert bool(paused(build(SIMPLE, {**NOTHING, part: value}), rule)) is not stops, part
    assert paused(build(SIMPLE, NOTHING), TOLD)
    assert not paused(build(SIMPLE, {**NOTHING, "past": {0}}), TOLD)
    (one,) = SIMPLE["workloads"]
    plain = SIMPLE | {"workloads": [{**one, "pods": [{**one["pods"][0], "claims": False}]}]}
    assert paused(build(plain, NOTHING), PRESSED)
    assert not paused(build(plain, {**NOTHING, "queued": True}), PRESSED)
    job = SIMPLE | {"workloads": [{**one, "kind": "Job"}]}
    assert paused(build(job, NOTHING), rule)
    assert not paused(build(job, {**NOTHING, "steering": {"kueue"}}), rule)
    assert isinstance(build(SIMPLE, NOTHING).nodes.find("n0"), Known)
