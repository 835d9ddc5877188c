"""How each GPUSharingPolicy stands: whether it can do what it asks for, what of it nobody heeds, whom it applies to.

In: a policy, the nodes as they are, running GPU pods each with what stands around it. Out: PolicyStanding, as its
status tells it, and PodCounts by policy.
Invariant: the same ladder judges here as in the webhook. A pod that cannot be judged is not counted; nodes that are not
seen make nobody ready or not ready.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from fallow import names
from fallow.decide.sharing import claims, parts, strategy
from fallow.decide.sharing import hurts as hurting
from fallow.decide.sharing.needs import ShareNeeds
from fallow.decide.sharing.parts import PartIndex
from fallow.decide.sharing.strategy import ShareAround, ShareTerms
from fallow.model import gpus
from fallow.model.policies.sharing import SharingPolicy, Strategy
from fallow.model.seen import Input, Known, Unseen
from fallow.model.share_hurts import PolicyReverts
from fallow.model.sharing import PartGiven, PolicyCounts, PolicyStanding, SharePod
from fallow.model.units import Instant

_SHARING: Final = (Strategy.mig, Strategy.mps, Strategy.timeslicing)
_PROFILES: Final = frozenset(
    profile.name for model in gpus.MODELS if model.mig is not None for profile in model.mig.profiles
)
_ALL_THREADS: Final = 100  # percent: what stands there where nobody wrote anything


class _Faults(msgspec.Struct, frozen=True):
    reason: str
    because: str


_HURTS: Final = _Faults("TooManyReverts", "sharing hurt more than a fifth of its owners within a day, so it only "
                                          "audits until somebody changes it")


class ByClaims(msgspec.Struct, frozen=True):
    """Parts are given by ResourceClaims. `interval`: of turns, for everybody (claims.find_interval)."""

    interval: str = ""


def stand(
    policy: SharingPolicy, nodes: Input[PartIndex], reverts: PolicyReverts | None = None,
    by_claims: ByClaims | None = None,
) -> PolicyStanding:
    """`reverts`: None where nobody counted. `by_claims`: None where the device plugin gives parts."""
    status, ready = _find_ready(policy, nodes, by_claims)
    hurts = policy.reverts_too_often or (reverts is not None and hurting.hurts_too_many(reverts))
    ignored = (*((_HURTS,) if hurts else ()), *_find_ignored(policy, by_claims))
    return PolicyStanding(
        reverted=None if reverts is None else reverts.reverted,
        ready=(status, ready.reason, ready.because),
        degraded=("True", ignored[0].reason, "; ".join(each.because for each in ignored)) if ignored
        else ("False", "AsAsked", "all of it is heeded"),
    )


def _find_ready(policy: SharingPolicy, nodes: Input[PartIndex], by_claims: ByClaims | None) -> tuple[str, _Faults]:
    if policy.invalid:
        reason = "InvalidSelector" if "elector" in policy.invalid[0] else "InvalidSpec"
        return "False", _Faults(reason, policy.invalid[0])
    if policy.profile and policy.profile not in _PROFILES:
        return "False", _Faults("ProfileNotInCatalogue", f"no GPU that is known is cut into {policy.profile}")
    if policy.strategy is Strategy.exclusive:
        return "True", _Faults("Ready", "pods keep their whole GPUs")
    if by_claims is not None and policy.strategy is Strategy.mps:
        return "False", _Faults("NoTargetNode", claims.NO_MPS)
    if isinstance(nodes, Unseen):
        return "Unknown", _Faults("NotSeen", f"nodes are not seen: {nodes.why}")
    if not isinstance(nodes, Known) or not _has_target(policy, nodes.value, by_claims):
        return "False", _Faults("NoTargetNode", "no node that is Ready, open and selected offers a part of a GPU by it")
    return "True", _Faults("Ready", "pods can share GPUs by it")


def _has_target(policy: SharingPolicy, nodes: PartIndex, by_claims: ByClaims | None) -> bool:
    """For a pod that asks for no more than to share."""
    accepted = parts.find_nodes(SharePod(namespace=""), nodes, policy.node_selector)
    offers = parts if by_claims is None else claims
    cut = [each for each in offers.list_profiles(accepted) if policy.profile in ("", each.profile)]
    if cut and policy.strategy in (Strategy.mig, Strategy.auto):
        return True
    ways = _SHARING[1:] if policy.strategy is Strategy.auto else (policy.strategy,)
    return any(way is not Strategy.mig and offers.find(way, ShareNeeds(), accepted) is not None for way in ways)


def _find_ignored(policy: SharingPolicy, by_claims: ByClaims | None) -> Iterable[_Faults]:
    """What NVIDIA's programs cannot do, and what they therefore do instead."""
    by_mps = policy.strategy in (Strategy.mps, Strategy.auto)
    asks_mps = policy.active_threads != _ALL_THREADS or policy.memory_limit is not None
    by_turns = policy.strategy in (Strategy.timeslicing, Strategy.auto)
    if by_claims is not None and by_mps and asks_mps:
        yield _Faults("MpsUnsupported", claims.NO_MPS)
    if by_claims is None and by_mps and asks_mps:
        yield _Faults("EqualSharesOnly", "the device plugin gives all MPS clients of a GPU equal shares of threads and "
                                         "memory, whatever mpsConfig says")
    if by_claims is not None and by_turns and policy.enforces and claims.interval_of(policy) != by_claims.interval:
        yield _Faults("SliceMsIgnored", "turns on a GPU are as the enforcing policy that ranks first has them, because "
                                        "the driver refuses claims that differ in it")
    if by_claims is None and by_turns and policy.slice_ms != claims.USUAL_SLICE:
        yield _Faults("SliceMsIgnored", "the device plugin cannot set how long a turn is")
    if by_turns and policy.fairness != "roundrobin":
        yield _Faults("FairnessModeIgnored", f"the driver knows roundrobin only, not {policy.fairness}")


def count(
    running: Iterable[tuple[SharePod, ShareAround]], terms: ShareTerms, now: Instant
) -> Mapping[str, PolicyCounts]:
    """By the policy's name: running pods that it changed, and those that it would change if they were made now."""
    applied, audited = dict[str, int](), dict[str, int]()
    for pod, around in running:
        if strategy.is_optimized(pod):
            name = strategy.find_policy_name(pod)
            applied[name] = applied.get(name, 0) + 1
            continue
        verdict = strategy.judge(msgspec.structs.replace(pod, node_name=""), around, terms, now)
        if isinstance(verdict, PartGiven) and verdict.policy:
            audited[verdict.policy] = audited.get(verdict.policy, 0) + 1
    return {
        name: PolicyCounts(applied.get(name, 0), audited.get(name, 0)) for name in {*applied, *audited} if name
    }


def count_shared(running: Iterable[SharePod]) -> Mapping[Strategy, int]:
    """By the strategy by which they were changed; a word that is none of ours was not written by us."""
    found = dict.fromkeys(_SHARING, 0)
    for pod in running:
        word = pod.marks.get(names.OPTIMIZATION_STRATEGY, "")
        if strategy.is_optimized(pod) and word in _SHARING:
            found[Strategy(word)] += 1
    return found
