"""Pods, nodes and policies for tests of sharing: each right, but for what a test changes."""

from __future__ import annotations

from typing import Any

from fallow import names
from fallow.decide import sharing
from fallow.model import classes, cluster, patterns
from fallow.model.classes import ContainerText
from fallow.model.policies.sharing import SharingMode, SharingPolicy, Strategy
from fallow.model.seen import ABSENT, Absent, Input, Known, Unseen
from fallow.model.sharing import KeptWhole, OwnerUse, PartGiven, PartNode, ShareContainer, SharePod, TopOwner

NOW = 1_794_900_000.0
TERMS = sharing.ShareTerms(
    exempt=patterns.compile_pattern("kube-system"), schedulers=frozenset({"default-scheduler"}),
    patterns=classes.Patterns(), rewrites=True,
)
ML = cluster.Namespace("ml", {"team": "ml"}, {})
OWNER = TopOwner(group="apps", kind="Deployment", name="llm", uid="u-1")
VLLM = ContainerText("vllm/vllm-openai")


def container(gpus: str | None = "1", image: str = "vllm", **more: Any) -> ShareContainer:
    limits = {} if gpus is None else {names.GPU: gpus}
    return ShareContainer(**{
        "runs": ContainerText(image), "requests": limits, "limits": limits, **more,
    })


def pod(*containers: ShareContainer, **more: Any) -> SharePod:
    return SharePod(**{"namespace": "ml", "name": "llm-0", "containers": containers or (container(),), **more})


def needing(memory: str = "8Gi", *containers: ShareContainer, **more: Any) -> SharePod:
    marks = {names.GPU_MEMORY_NEED: memory, **more.pop("annotations", {})}
    return pod(*containers, annotations=marks, **more)


def policy(strategy: str = "auto", **more: Any) -> SharingPolicy:
    return SharingPolicy(**{
        "name": "small", "uid": "p-1", "strategy": Strategy(strategy), "mode": SharingMode.enforce, **more,
    })


A100 = {names.GPU_PRODUCT: "NVIDIA-A100-SXM4-80GB", names.GPU_MEMORY: "81920"}


def mig_node(name: str = "cut", **offers: int) -> PartNode:
    """Profiles as `g1_10`: 1g.10gb."""
    named = {f"{names.MIG_PREFIX}{key[1:].replace('_', 'g.')}gb": count for key, count in offers.items()}
    return PartNode(name=name, labels=A100, offers=named)


def sharing_node(strategy: str = "time-slicing", replicas: int = 4, *, renames: bool = True, **more: Any) -> PartNode:
    labels = {**A100, names.GPU_SHARING: strategy, names.GPU_REPLICAS: str(replicas)}
    offers = {names.GPU_SHARED if renames else names.GPU: 8 * replicas, **({names.GPU: 0} if renames else {})}
    return PartNode(**{"name": f"{strategy}-{replicas}", "labels": labels, "offers": offers, **more})


CUT = mig_node(g1_10=3, g2_20=1)
SLICED, MPS = sharing_node(), sharing_node("mps", 8)


def around(
    *policies: SharingPolicy, nodes: tuple[PartNode, ...] | Absent | Unseen = (CUT, SLICED, MPS),
    use: Input[OwnerUse] = ABSENT, **more: Any,
) -> sharing.ShareAround:
    ranked = tuple(sorted(policies, key=lambda each: each.rank))
    return sharing.ShareAround(**{
        "namespace": Known(ML), "owner": Known(OWNER), "policies": Known(ranked) if ranked else ABSENT, "use": use,
        "nodes": Known(sharing.PartIndex(nodes)) if isinstance(nodes, tuple) else nodes, **more,
    })


def judge(
    made: SharePod, where: sharing.ShareAround, terms: sharing.ShareTerms = TERMS, now: float = NOW
) -> PartGiven | KeptWhole:
    return sharing.judge(made, where, terms, now)
