"""May this pod share a GPU, by which strategy, on which part? A ladder: the first rung that applies answers.

In: a pod that somebody makes, what stands around it (ShareAround), the terms of the installation. Out: PartGiven, with
the part to ask for instead, in force or only audited; or KeptWhole. Both with a reason and a sentence.
The rungs: what is left alone anyhow; what the pod says itself; the matching policy that ranks first; else a whole GPU.
Invariant: only a pod with exactly one whole GPU, in one of its containers, is ever changed. Whatever is not seen leaves
it alone. The same pod in the same surroundings has the same verdict.
"""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from fallow import names
from fallow.decide.sharing import claims, hurts, needs, parts
from fallow.decide.sharing.needs import ShareNeeds
from fallow.decide.sharing.parts import PartIndex
from fallow.model import classes, cluster, kinds, quantities, units
from fallow.model.claims import ClaimGround
from fallow.model.classes import ClassFound, ClassSource, PodEvent, WorkClass, WorkFacts
from fallow.model.patterns import Pattern
from fallow.model.policies.sharing import SharingPolicy, Strategy
from fallow.model.seen import ABSENT, Input, Known, Unseen
from fallow.model.sharing import (
    GpuPart,
    KeptWhole,
    OwnerUse,
    PartGiven,
    ShareContainer,
    SharePod,
    ShareReason,
    TopOwner,
)
from fallow.model.units import Instant

_LADDER: Final = (Strategy.mig, Strategy.mps, Strategy.timeslicing)
_ANNOTATED: Final = (*_LADDER, Strategy.exclusive)
_ASKING: Final = frozenset(
    key.replace(names.GROUP, group, 1) for group in (names.GROUP, names.SEED_GROUP)
    for key in (names.SHARING_MODE, names.SHARING, names.MPS_ENABLED, *names.TIMESLICING)
)
_READ: Final = (
    names.OPTIMIZE, names.SHARING, names.SHARING_MODE, names.SHARING_PROFILE, names.MPS_ENABLED, *names.TIMESLICING,
    names.GPU_MEMORY_NEED, names.GPU_COMPUTE_NEED,
)
_GUESSED: Final = frozenset({ClassSource.resources, ClassSource.default})
_BUSY: Final = 0.5  # a batch that keeps its GPU as busy has it for itself
_FIRST: Final = {WorkClass.inference: Strategy.mig, WorkClass.notebook: Strategy.timeslicing,
                 WorkClass.batch: Strategy.timeslicing}


class ShareTerms(msgspec.Struct, frozen=True, kw_only=True):
    """What the installation says. `rewrites`: whether anything may be changed at all. `by_claims`: parts are given by
    ResourceClaims, and not by the device plugin. `without`: ways of sharing that are not used."""

    exempt: Pattern
    schedulers: frozenset[str]
    patterns: classes.Patterns
    rewrites: bool
    by_claims: bool = False
    without: frozenset[Strategy] = frozenset()


class ShareAround(msgspec.Struct, frozen=True, kw_only=True):
    """What the verdict on one pod rests on. `policies` in the order of their rank. `claims`: what there is for parts
    that are given by them."""

    namespace: Input[cluster.Namespace]
    owner: Input[TopOwner] = ABSENT
    use: Input[OwnerUse] = ABSENT
    policies: Input[tuple[SharingPolicy, ...]] = ABSENT
    nodes: Input[PartIndex] = ABSENT
    claims: Input[ClaimGround] = ABSENT


class _Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked for: by the pod itself (`policy` None), or by a policy."""

    strategy: Strategy
    profile: str = ""
    policy: SharingPolicy | None = None

    @property
    def called(self) -> str:
        return self.policy.name if self.policy is not None else ""


def judge(pod: SharePod, around: ShareAround, terms: ShareTerms, now: Instant) -> PartGiven | KeptWhole:
    if left := leave_alone(pod, terms) or heed_surroundings(pod, around, now):
        return left
    found = classify(pod, around, terms)
    wish = _find_wish(pod, around, found)
    made = wish if isinstance(wish, KeptWhole) else _choose(pod, around, found, wish, terms)
    return msgspec.structs.replace(made, work=found, events=_once(found.events, made.events))


def _once(*events: tuple[PodEvent, ...]) -> tuple[PodEvent, ...]:
    return tuple(dict.fromkeys(each for some in events for each in some))


def _left(reason: ShareReason, because: str, *, policy: str = "", events: tuple[PodEvent, ...] = ()) -> KeptWhole:
    return KeptWhole(reason=reason, because=because, policy=policy, events=events)


# ---- 1. left alone ---------------------------------------------------------------------------------------------------


def leave_alone(pod: SharePod, terms: ShareTerms) -> KeptWhole | None:
    """What the pod alone tells, without looking anywhere else."""
    if terms.exempt.fullmatch(pod.namespace):
        return _left(ShareReason.ExemptNamespace, f"namespace {pod.namespace} is exempt")
    if said := _find_opt_out(pod.marks):
        return _left(ShareReason.OptedOut, f"the pod says {said}")
    if pod.node_name:
        return _left(ShareReason.NodeChosen, f"it is bound to node {pod.node_name} already")
    if pod.is_static:
        return _left(ShareReason.StaticPod, "it is the mirror of a pod that a kubelet runs by itself")
    if is_optimized(pod):
        return _left(ShareReason.AlreadyOptimized, "it asks for a part of a GPU by us already")
    if why := next(_find_others(pod), None):
        return _left(*why)
    if count_gpus(pod) != 1:
        return _left(ShareReason.NotOneGpu, "it does not ask for exactly one whole GPU over all containers")
    if find_container(pod) is None:
        return _left(ShareReason.GpuInInitContainer, "an init container holds its GPU")
    scheduler = pod.scheduler or names.DEFAULT_SCHEDULER
    if scheduler not in terms.schedulers:
        return _left(ShareReason.OtherScheduler, f"it is placed by {scheduler}, of which we know no rules")
    return None


def _find_opt_out(said: Mapping[str, str]) -> str:
    """Whoever answers with anything but yes ("off", "no", a word we do not know) is left alone."""
    for key, yes in ((names.OPTIMIZE, "true"), (names.SHARING, "enabled")):
        word = classes.read_key(said, key)[0]
        if word is not None and word.strip().lower() != yes:
            return f"{key}: {word[:40]}"
    return ""


def is_optimized(pod: SharePod) -> bool:
    """We changed it before: it has no whole GPU any more, or keeps to nodes that share without renaming."""
    if pod.marks.get(names.OPTIMIZED) != "true":
        return False
    return count_gpus(pod) == 0 or names.GPU_SHARING in (pod.node_selector or {})


def find_policy_name(pod: SharePod) -> str:
    """Of the policy by which we changed it; "": the pod itself asked for it."""
    return pod.marks.get(names.OPTIMIZATION_POLICY, "")


def _find_others(pod: SharePod) -> Iterator[tuple[ShareReason, str]]:
    everybody = (*pod.containers, *pod.init_containers)
    if pod.has_claims or any(each.has_claims for each in everybody):
        yield ShareReason.UsesClaims, "it asks for devices by resource claims"
    asked = {resource for each in everybody for resource in each.asked}
    if named := sorted(each for each in asked if each == names.GPU_SHARED or each.startswith(names.MIG_PREFIX)):
        yield ShareReason.AlreadyShares, f"it asks for {named[0]} itself"
    foreign = sorted({*(asked & {*names.HAMI_PARTS}), *(pod.marks.keys() & {*names.GPU_FRACTIONS})})
    if foreign:
        yield ShareReason.OtherSharer, f"it asks another program for a part of a GPU: {foreign[0]}"
    if any(each.sets_devices for each in everybody):
        yield ShareReason.VisibleDevicesSet, f"it sets {names.VISIBLE_DEVICES} itself"
    if any(each.is_privileged for each in everybody):
        yield ShareReason.Privileged, "a privileged container sees every GPU of its node, whatever it asks for"


def count_gpus(pod: SharePod) -> int | None:
    """Whole GPUs over all containers; None: that cannot be read, or limit and request differ."""
    total = 0
    for container in (*pod.containers, *pod.init_containers):
        found = _count_in(container)
        if found is None:
            return None
        total += found
    return total


def _count_in(container: ShareContainer) -> int | None:
    asked = (where.get(names.GPU) for where in (container.limits, container.requests) if where is not None)
    said = {text for text in asked if text is not None}
    try:
        counts = {quantities.parse(text) for text in said}
    except ValueError:
        return None
    if not counts:
        return 0
    first, *others = counts
    return None if others or first != int(first) or first < 0 else int(first)


def find_container(pod: SharePod) -> int | None:
    """The place of the container that holds its GPU; None: an init container does."""
    return next((place for place, each in enumerate(pod.containers) if _count_in(each)), None)


def heed_surroundings(pod: SharePod, around: ShareAround, now: Instant) -> KeptWhole | None:
    """Its namespace and who owns it may say no; where they are not seen, nobody knows."""
    place, owner = around.namespace, around.owner
    if not isinstance(place, Known):
        why = place.why if isinstance(place, Unseen) else "it is new"
        return _left(ShareReason.NamespaceUnseen, f"namespace {pod.namespace} is not seen: {why}")
    labels = place.value.labels
    if labels.get(names.WEBHOOK_DISABLED[0]) == names.WEBHOOK_DISABLED[1]:
        return _left(ShareReason.ExemptNamespace, f"namespace {pod.namespace} has switched the webhook off")
    if said := _find_opt_out({**labels, **place.value.annotations}):
        return _left(ShareReason.OptedOut, f"namespace {pod.namespace} says {said}")
    if isinstance(owner, Unseen):
        return _left(ShareReason.OwnerUnseen, f"who owns it is not seen: {owner.why}")
    return _heed_owner(owner.value, now) if isinstance(owner, Known) else None


def _heed_owner(owner: TopOwner, now: Instant) -> KeptWhole | None:
    if said := _find_opt_out({**owner.labels, **owner.annotations}):
        return _left(ShareReason.OptedOut, f"{owner.kind}/{owner.name} says {said}")
    if not hurts.is_backing_off(owner.annotations, now):
        return None
    until = owner.annotations[names.BACKOFF_UNTIL]
    end = units.read_instant(until)
    when = f"until {units.rfc3339(end)}" if end is not None else f"({until[:40]!r} is no time)"
    return _left(ShareReason.BackOff, f"sharing hurt {owner.kind}/{owner.name}; it has whole GPUs {when}")


def classify(pod: SharePod, around: ShareAround, terms: ShareTerms) -> ClassFound:
    owner = around.owner.value if isinstance(around.owner, Known) else None
    above = (owner.labels, owner.annotations) if owner is not None else ()
    place = around.namespace
    beside = (place.value.labels, place.value.annotations) if isinstance(place, Known) else ()
    return classes.classify(WorkFacts(
        said=(pod.labels, pod.marks, *above, *beside), gpus=count_gpus(pod), memory=_largest_memory(pod),
        owned=kinds.find_class(owner.group, owner.kind) if owner is not None else None,
        containers=tuple(each.runs for each in pod.containers),
        behaviour=around.use.value.behaviour if isinstance(around.use, Known) else ABSENT,
    ), terms.patterns)


def _largest_memory(pod: SharePod) -> int | None:
    """Bytes of the largest request; what cannot be read is not known."""
    found = []
    for container in pod.containers:
        try:
            found.append(int(quantities.parse(container.asked.get("memory", "0"))))
        except ValueError:
            continue
    return max(found, default=None)


def needs_owner(pod: SharePod, around: ShareAround) -> bool:
    """Could it share at all? If not, nobody has to be asked who owns it."""
    if isinstance(around.policies, Unseen) or any(key in pod.marks for key in _ASKING):
        return True
    labels = around.namespace.value.labels if isinstance(around.namespace, Known) else {}
    known = around.policies.value if isinstance(around.policies, Known) else ()
    return any(fits(each, pod, labels) for each in known)


# ---- 2. and 3. who asks for it ---------------------------------------------------------------------------------------


def _find_wish(pod: SharePod, around: ShareAround, found: ClassFound) -> _Wish | KeptWhole:
    mode, conflict = classes.read_key(pod.marks, names.SHARING_MODE)
    if event := find_mode_fault(pod.marks):
        return _left(ShareReason.InvalidSharingMode, event.message, events=(*conflict, event))
    if mode is not None:
        profile = classes.read_key(pod.marks, names.SHARING_PROFILE)[0] or ""
        return _Wish(strategy=Strategy(mode), profile=profile)
    if strategy := _read_seed_marks(pod.marks):
        return _Wish(strategy=strategy)
    return _find_policy(pod, around, found)


def find_mode_fault(marks: Mapping[str, str]) -> PodEvent | None:
    """Of a pod that asks for a way of sharing that there is not."""
    mode, _ = classes.read_key(marks, names.SHARING_MODE)
    if mode is None or mode in _ANNOTATED:
        return None
    said = f"{names.SHARING_MODE}: {mode[:40]!r} is none of {', '.join(_ANNOTATED)}; the pod keeps its whole GPU"
    return PodEvent(names.Event.INVALID_SHARING_MODE, said)


def find_pod_events(labels: Mapping[str, str], marks: Mapping[str, str]) -> tuple[PodEvent, ...]:
    """What its people should be told of what they wrote on a pod: the webhook, which only reads, cannot."""
    fault = find_mode_fault(marks)
    conflicts = (event for key in _READ for event in classes.read_key(marks, key)[1])
    spoken = classes.classify(WorkFacts(said=(labels, marks))).events
    return _once((*((fault,) if fault else ()), *conflicts, *spoken))


def _read_seed_marks(marks: Mapping[str, str]) -> Strategy | None:
    def says(key: str, word: str) -> bool:
        return (classes.read_key(marks, key)[0] or "").lower() == word

    if says(names.MPS_ENABLED, "true"):
        return Strategy.mps
    if any(says(key, "true") for key in names.TIMESLICING):
        return Strategy.timeslicing
    return Strategy.auto if says(names.SHARING, "enabled") else None


def _find_policy(pod: SharePod, around: ShareAround, found: ClassFound) -> _Wish | KeptWhole:
    if isinstance(around.policies, Unseen):
        return _left(ShareReason.NotLoaded, f"policies are not seen: {around.policies.why}")
    known = around.policies.value if isinstance(around.policies, Known) else ()
    labels = around.namespace.value.labels if isinstance(around.namespace, Known) else {}
    for policy in known:
        if policy.work and (unclear := _why_unclear(found, around.use)) and fits(policy, pod, labels):
            return _left(ShareReason.UsageUnknown, f"policy {policy.name} may decide: {unclear}", policy=policy.name)
        if not matches(policy, pod, labels, found.work):
            continue
        if policy.invalid:  # what it would say if it were right, nobody knows
            because = f"policy {policy.name} would decide, and is wrong: {policy.invalid[0]}"
            return _left(ShareReason.PolicyInvalid, because, policy=policy.name)
        return _Wish(strategy=policy.strategy, profile=policy.profile, policy=policy)
    return _left(ShareReason.NoPolicy, "no GPUSharingPolicy matches it, so it keeps its whole GPU")


def _why_unclear(found: ClassFound, use: Input[OwnerUse]) -> str:
    """Why its class may be another one: what its owner did would say more than what was guessed. "": it may not."""
    if not isinstance(use, Unseen) or found.source not in _GUESSED:
        return ""
    return f"whether it is {found.work} is not known, for what its owner used is not seen: {use.why}"


def matches(policy: SharingPolicy, pod: SharePod, labels: Mapping[str, str], work: WorkClass) -> bool:
    """`labels`: of its namespace."""
    return (not policy.work or work in policy.work) and fits(policy, pod, labels)


def fits(policy: SharingPolicy, pod: SharePod, labels: Mapping[str, str]) -> bool:
    """Whatever its class."""
    return policy.selects(labels, pod.labels)


# ---- which part ------------------------------------------------------------------------------------------------------


def _choose(
    pod: SharePod, around: ShareAround, found: ClassFound, wish: _Wish, terms: ShareTerms
) -> PartGiven | KeptWhole:
    try:
        needed = needs.find(pod.marks, around.use)
    except ValueError as problem:
        return _left(ShareReason.InvalidNeed, str(problem), policy=wish.called)
    tried = _order(wish, found, needed)
    if isinstance(tried, KeptWhole):
        return tried
    if not (tried := tuple(each for each in tried if each not in terms.without)):
        return _left(ShareReason.NoTargetNode, "this way of sharing is switched off", policy=wish.called)
    if isinstance(around.nodes, Unseen):
        return _left(ShareReason.NotLoaded, f"nodes are not seen: {around.nodes.why}", policy=wish.called)
    if terms.by_claims and (left := _heed_claims(around, wish)):
        return left
    selector = wish.policy.node_selector if wish.policy is not None else {}
    if conflict := _find_conflict(pod, selector):
        return _left(ShareReason.SelectorConflict, conflict, policy=wish.called)
    accepted = parts.find_nodes(pod, around.nodes.value, selector) if isinstance(around.nodes, Known) else ()
    find = claims.find if terms.by_claims else parts.find
    options = (find(each, needed, accepted, profile=wish.profile) for each in tried)
    part = next(filter(None, options), None)
    if part is None:
        because = claims.NO_MPS if terms.by_claims and tried == (Strategy.mps,) else _say_no_target(tried, needed, wish)
        return _left(ShareReason.NoTargetNode, because, policy=wish.called)
    if conflict := _find_conflict(pod, part.selector):
        return _left(ShareReason.SelectorConflict, conflict, policy=wish.called)
    part = msgspec.structs.replace(part, selector={**selector, **part.selector})
    return _share(pod, around, found, wish, terms, part)


def _heed_claims(around: ShareAround, wish: _Wish) -> KeptWhole | None:
    if isinstance(around.claims, Unseen):
        return _left(ShareReason.NotLoaded, f"claims are not seen: {around.claims.why}", policy=wish.called)
    if not isinstance(around.claims, Known) or not claims.CLASSES.issubset(around.claims.value.classes):
        because = f"the API server does not have the device classes {' and '.join(sorted(claims.CLASSES))}"
        return _left(ShareReason.ClaimsNotServed, because, policy=wish.called)
    return None


def _order(wish: _Wish, found: ClassFound, needed: ShareNeeds) -> tuple[Strategy, ...] | KeptWhole:
    """What is tried, in this order."""
    if wish.strategy is Strategy.exclusive:
        return _left(ShareReason.Exclusive, f"{_who(wish)} says exclusive: it keeps its whole GPU", policy=wish.called)
    if wish.strategy is not Strategy.auto:
        if wish.strategy is Strategy.mig and not wish.profile and needed.memory is None:
            return _left(ShareReason.VramUnknown, _say_unknown(), policy=wish.called)
        return (wish.strategy,)
    first = _FIRST.get(found.work)
    if first is None:
        return _left(ShareReason.KeepsWholeGpu, f"{found.work} keeps its whole GPU", policy=wish.called)
    if needed.memory is None and found.work is not WorkClass.notebook:
        return _left(ShareReason.VramUnknown, _say_unknown(), policy=wish.called)
    if found.work is WorkClass.batch and needed.mean is None:
        return _left(ShareReason.UsageUnknown, "how busy its owner keeps a GPU is not known", policy=wish.called)
    if found.work is WorkClass.batch and (needed.mean or 0.0) >= _BUSY:
        because = f"its owner keeps a GPU busy for {needed.mean:.0%} of the time"
        return _left(ShareReason.KeepsWholeGpu, because, policy=wish.called)
    return _LADDER[_LADDER.index(first):]


def _who(wish: _Wish) -> str:
    return f"policy {wish.policy.name}" if wish.policy is not None else "the pod"


def _say_unknown() -> str:
    return (
        "how much GPU memory it needs is not known: nothing was measured for long enough, and it does not say "
        f"{names.GPU_MEMORY_NEED}"
    )


def _say_no_target(tried: tuple[Strategy, ...], needed: ShareNeeds, wish: _Wish) -> str:
    ways = " or ".join(tried) + (f" {wish.profile}" if wish.profile else "")
    much = f" with {needed.memory:,} MiB" if needed.memory is not None else ""
    return f"no node that is Ready, open and accepted by pod and policy offers a part of a GPU by {ways}{much}"


def _find_conflict(pod: SharePod, selector: Mapping[str, str]) -> str:
    own = pod.node_selector or {}
    odd = sorted(key for key, value in selector.items() if own.get(key, value) != value)
    return f"it selects nodes with {odd[0]}={own[odd[0]]}, we would with {selector[odd[0]]}" if odd else ""


def _share(
    pod: SharePod, around: ShareAround, found: ClassFound, wish: _Wish, terms: ShareTerms, part: GpuPart
) -> PartGiven | KeptWhole:
    reason, because = _find_force(pod, around, wish, terms)
    if reason is ShareReason.Shared and part.template and not _has_template(pod, around, part):
        missing = f"namespace {pod.namespace} has no ResourceClaimTemplate {part.template} of ours that asks for it"
        return _left(ShareReason.TemplateMissing, missing, policy=wish.called)
    by = f" on {part.profile}" if part.profile else ""
    return PartGiven(
        part=part, container=find_container(pod) or 0, reason=reason, work=found, policy=wish.called,
        because=f"{found.work} by {part.strategy}{by}, as {_who(wish)} asks{because}",
    )


def _has_template(pod: SharePod, around: ShareAround, part: GpuPart) -> bool:
    ground = around.claims.value if isinstance(around.claims, Known) else ClaimGround()
    interval = claims.find_interval(around.policies.value if isinstance(around.policies, Known) else ())
    return claims.is_given(ground.templates.get((pod.namespace, part.template)), part, interval)


def _find_force(pod: SharePod, around: ShareAround, wish: _Wish, terms: ShareTerms) -> tuple[ShareReason, str]:
    if not terms.rewrites:
        return ShareReason.RewritesOff, "; nothing is changed, because rewriting requests is switched off"
    if wish.policy is None:
        return ShareReason.Shared, ""
    if not wish.policy.enforces:
        why = "sharing hurt too many" if wish.policy.reverts_too_often else "it audits"
        return ShareReason.PolicyAudits, f"; nothing is changed: {why}"
    if find_bucket(pod, around.owner) >= wish.policy.rollout_percent:
        return ShareReason.NotInRollout, f"; it is not among the first {wish.policy.rollout_percent} % of owners"
    return ShareReason.Shared, ""


def find_bucket(pod: SharePod, owner: Input[TopOwner]) -> int:
    """0 to 99, the same for all pods of an owner; of a pod without one, by its name."""
    who = owner.value.uid if isinstance(owner, Known) else f"{pod.namespace}/{pod.name}"
    return int.from_bytes(hashlib.blake2b(who.encode(errors="replace"), digest_size=8).digest()) % 100
