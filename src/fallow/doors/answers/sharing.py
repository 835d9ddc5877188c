"""What sharing made of a workload: which part of a GPU its pods have, what the next would get, and how to opt out.

In: a ShareWhy of one of its pods, and all of its pods. Out: ShareTold, and the lines that people read of it.
Invariant: what a way of sharing does not protect is said of everybody who shares by it, or would.
"""

from collections.abc import Iterator, Sequence
from typing import Final, Literal

from fallow import names
from fallow.doors import answers
from fallow.model import cluster, kinds, units
from fallow.model.classes import ClassSource
from fallow.model.sharing import KeptWhole, PartHad, ShareReason, ShareWhy
from fallow.model.units import Instant

_UNPROTECTED: Final = {
    "timeslicing": "time-slicing keeps nothing apart: who fills the memory of the GPU, or makes it fault, takes the "
                   "others on it along",
    "mps": "MPS keeps memory apart as far as its limits go, and no faults: one that crashes the GPU takes the others "
           "on it along",
    "mig": "an instance of MIG has memory, compute and faults of its own; a reset of the whole GPU ends all of them",
}
_SOURCES: Final = {
    ClassSource.label: f"{names.WORKLOAD_TYPE} says so", ClassSource.owner: "what owns it is of that kind",
    ClassSource.pattern: "what its containers run", ClassSource.observed: "how it used its GPUs for a day or more",
    ClassSource.resources: "how much it asks for", ClassSource.default: "nothing tells more",
}
OPT_OUT: Final = f"{names.SHARING}: disabled"
_OUT: Final = frozenset({ShareReason.OptedOut, ShareReason.ExemptNamespace})


class ShareChange(answers.Shape, frozen=True, kw_only=True):
    """`was`: GPUs that it asked for; `resource`: what it asks for now, None where only its nodes were
    chosen; `policy`: None where the pod itself asked for it."""

    was: str
    resource: str | None
    strategy: str
    policy: str | None
    at: str | None


class ShareTakenBack(answers.Shape, frozen=True, kw_only=True):
    """`until`: None where it does not end by itself."""

    until: str | None
    because: str | None
    policy: str | None
    times: int


class ShareTold(answers.Shape, frozen=True, kw_only=True):
    """`pod`: the one that was looked at; `shared_pods` of its `pods` were changed. `next`: what a pod like it would get
    now, by `reason`: a part of a GPU (`resource`), the same if somebody let it (audited), or a whole one.
    `unprotected`: what its way of sharing does not keep apart. `opt_out`: the annotation, and the command. `assumed`:
    what of the webhook nobody saw."""

    pod: str
    pods: int
    shared_pods: int
    changed: ShareChange | None
    work_class: str
    class_source: str
    taken_back: ShareTakenBack | None
    next: Literal["part", "audited", "whole"]
    reason: str
    because: str
    resource: str | None
    unprotected: str | None
    opt_out: str | None
    opt_out_command: str | None
    assumed: str | None = None


def tell(why: ShareWhy, ref: cluster.Ref, pods: Sequence[cluster.Pod]) -> ShareTold:
    verdict, had = why.verdict, why.had
    part = None if isinstance(verdict, KeptWhole) else verdict.part
    way = had.strategy if had is not None else str(part.strategy) if part is not None else ""
    is_out = verdict.reason in _OUT
    shared = sum(pod.annotations.get(names.OPTIMIZED) == "true" for pod in pods)
    return ShareTold(
        pod=why.pod, pods=max(1, len(pods)), shared_pods=max(shared, had is not None),
        changed=None if had is None else _tell_change(had), work_class=str(why.work.work),
        class_source=str(why.work.source), taken_back=_tell_back_off(why),
        next="whole" if isinstance(verdict, KeptWhole) else "audited" if verdict.is_audited else "part",
        reason=str(verdict.reason), because=verdict.because, resource=None if part is None else part.called,
        unprotected=_UNPROTECTED.get(way), opt_out=None if is_out else OPT_OUT,
        opt_out_command=None if is_out else _command(ref), assumed=why.assumed or None,
    )


def _tell_change(had: PartHad) -> ShareChange:
    return ShareChange(
        was=had.was, resource=had.resource or None, strategy=had.strategy, policy=had.policy or None,
        at=answers.instant(had.at),
    )


def _tell_back_off(why: ShareWhy) -> ShareTakenBack | None:
    found = why.back_off
    return None if found is None else ShareTakenBack(
        until=answers.instant(found.until), because=found.because or None, policy=found.policy or None,
        times=found.times,
    )


def _command(ref: cluster.Ref) -> str | None:
    """None for a pod that nobody makes again: then its manifest must say it."""
    if ref.kind == "Pod":
        return None
    return f"kubectl annotate {kinds.typed(ref)} -n {ref.namespace} {names.SHARING}=disabled"


def is_of_interest(said: ShareTold) -> bool:
    """Where nobody shares anything, and nothing was asked for, there is nothing to say."""
    return said.changed is not None or said.reason != ShareReason.NoPolicy or said.taken_back is not None


def list_lines(said: ShareTold, now: Instant) -> Iterator[tuple[str, str]]:
    """For a page: what each line is about, and a sentence."""
    if said.changed is not None:
        yield "shares", _say_change(said, said.changed, now)
    if said.taken_back is not None:
        yield "taken back", _say_back_off(said.taken_back)
    yield "class", f"{said.work_class}: {_SOURCES[ClassSource(said.class_source)]}"
    yield "next pods", _say_next(said)
    if said.assumed is not None:
        yield "webhook", said.assumed
    if said.unprotected is not None:
        yield "beware", said.unprotected
    if said.opt_out is not None and (said.changed is not None or said.next != "whole"):
        yield "opt out", f"{said.opt_out} on it, its pods or its namespace; whole GPUs from its next pods on"
    if said.opt_out_command is not None and (said.changed is not None or said.next != "whole"):
        yield "so", said.opt_out_command


def _say_change(said: ShareTold, change: ShareChange, now: Instant) -> str:
    has = f"asks for {change.resource}" if change.resource else "keeps to nodes that share GPUs"
    by = f"GPUSharingPolicy {change.policy}" if change.policy else "an annotation of its own"
    at = units.read_instant(change.at)
    since = f", {units.humane(now - at)} ago ({change.at})" if at is not None else ""
    many = "" if said.pods == 1 else f"; so do {said.shared_pods} of its {said.pods} pods"
    whole = "a whole GPU" if change.was == "1" else f"{change.was} GPUs"
    return f"{said.pod} asked for {whole} and {has} instead, by {change.strategy} and {by}{since}{many}"


def _say_back_off(back: ShareTakenBack) -> str:
    until = f"until {back.until}" if back.until else f"until somebody removes {names.BACKOFF_UNTIL}"
    why = f": {back.because}" if back.because else ""
    times = f"; that was the {back.times}. time" if back.times > 1 else ""
    return f"whole GPUs {until}, because sharing hurt it{why}{times}"


def _say_next(said: ShareTold) -> str:
    match said.next:
        case "part":
            gets = f"would ask for {said.resource}"
        case "audited":
            gets = f"keep whole GPUs, and would ask for {said.resource} if it were in force"
        case "whole":
            gets = "keep whole GPUs"
    return f"{gets} ({said.reason}): {said.because}"


def choose_pod(pods: Sequence[cluster.Pod]) -> cluster.Pod | None:
    """The one that tells most: one that we changed before others, the newest of them; None: it has none."""
    living = [pod for pod in pods if not pod.has_ended]
    return max(living, key=lambda pod: (pod.annotations.get(names.OPTIMIZED) == "true", pod.created_at), default=None)
