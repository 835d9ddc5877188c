"""Whom sharing hurt: who is watched, what trips, how long whole GPUs follow, and when a policy has hurt too many."""

from __future__ import annotations

from typing import Any

import pytest
from tests import builders
from tests.unit.decide.sharing import scenes

from fallow import names
from fallow.decide import sharing
from fallow.model import cluster, units
from fallow.model.policies import sharing_crd
from fallow.model.policies.sharing import HurtGuard
from fallow.model.seen import ABSENT, Known
from fallow.model.selectors import Selector
from fallow.model.share_hurts import (
    Hurt,
    HurtReason,
    HurtSeen,
    PolicyReverts,
    RevertsKept,
    SharedOwner,
    ShareRevert,
)
from fallow.model.sharing import KeptWhole, ShareReason, TopOwner
from fallow.model.units import DAY, HOUR

NOW = builders.NOW
SHARED = {names.OPTIMIZED: "true", names.OPTIMIZATION_STRATEGY: "mps", names.OPTIMIZATION_POLICY: "small"}
RESTARTS = Hurt(HurtReason.Restarts, "x")


def world(age: float = HOUR, marks: dict[str, str] | None = None, **pod: Any) -> builders.World:
    made = builders.World()
    made.workload(annotations=marks or {}, pod={"annotations": SHARED, "created_at": NOW - age, **pod})
    return made


def sharers(made: builders.World, *, nodes: bool = True) -> sharing.SharersSeen:
    """`nodes`: they share what they have without renaming it."""
    for pod in made.pods:
        made.namespace(pod.namespace, labels={"team": pod.namespace})
    made.node("node-1", shared=nodes)
    return sharing.SharersSeen(
        workloads=made.workloads, pods=made.pods, namespaces=made.namespaces, nodes=made.nodes
    )


def watch(made: builders.World) -> tuple[SharedOwner, ...]:
    guarded = scenes.policy(guard=HurtGuard(max_restarts=5))
    return sharing.find_watched(made.workloads, made.pods, (guarded,), NOW)


def test_an_owner_is_watched_for_a_day_after_its_first_shared_pod() -> None:
    (owner,) = watch(world())
    assert (owner.policy, owner.strategy, owner.guard.max_restarts) == ("small", "mps", 5)
    assert (owner.pods, owner.since) == (("llm-0",), NOW - HOUR)
    assert watch(world(age=25 * HOUR)) == ()
    assert watch(world(annotations={})) == ()
    assert watch(world(phase="Failed")) == ()


@pytest.mark.parametrize(("until", "age", "watched"), [
    (NOW + HOUR, HOUR, False), (NOW - 2 * HOUR, HOUR, True), (NOW - HOUR / 2, HOUR, False),
])
def test_back_off_ends_the_watch_and_pods_from_before_it_do_not_begin_it(
    until: float, age: float, watched: bool
) -> None:
    assert bool(watch(world(age, {names.BACKOFF_UNTIL: units.rfc3339(until)}))) is watched


def test_a_back_off_that_is_no_time_does_not_end() -> None:
    assert watch(world(marks={names.BACKOFF_UNTIL: "soon"})) == ()


@pytest.mark.parametrize(("seen", "reason"), [
    (HurtSeen(restarts=3, restarts_before=0), HurtReason.Restarts),
    (HurtSeen(restarts=2, restarts_before=0), None),
    (HurtSeen(restarts=3, restarts_before=1), None),
    (HurtSeen(restarts=3), None),  # nobody knows how it was before
    (HurtSeen(restarts_before=0), None),
    (HurtSeen(fault=31), HurtReason.GpuFault),
    (HurtSeen(latencies=(1.3, 1.4, 1.26), latency_before=1.0), HurtReason.Latency),
    (HurtSeen(latencies=(1.3, 1.4, 1.25), latency_before=1.0), None),
    (HurtSeen(latencies=(1.3, None, 1.4), latency_before=1.0), None),
    (HurtSeen(latencies=(9.0, 9.0, 9.0)), None),
    (HurtSeen(latencies=(9.0, 9.0, 9.0), latency_before=0.0), None),
    (HurtSeen(full=0.95), HurtReason.ShareFull),
    (HurtSeen(full=0.94), None),
    (HurtSeen(), None),
])
def test_what_hurts_and_that_nobody_is_hurt_by_what_is_not_known(seen: HurtSeen, reason: HurtReason | None) -> None:
    found = sharing.judge_hurt(seen, HurtGuard())
    assert (found.reason if found is not None else None) is reason


@pytest.mark.parametrize(("before", "hours", "then"), [
    ({}, 24, "1"), ({names.SHARING_REVERTS: "1"}, 72, "2"), ({names.SHARING_REVERTS: "2"}, 720, "3"),
    ({names.SHARING_REVERTS: "7"}, 720, "8"), ({names.SHARING_REVERTS: "-1"}, 720, "4"),
])
@pytest.mark.accepts("packing", 21)
def test_whole_gpus_follow_for_longer_each_time_and_the_next_pod_has_one(
    before: dict[str, str], hours: int, then: str
) -> None:
    (owner,) = watch(world(marks=before))
    mark = sharing.revert(owner, RESTARTS, NOW)
    changes = {key: text for key, text in mark.changes.items() if text is not None}
    assert changes == {
        names.BACKOFF_UNTIL: units.rfc3339(NOW + hours * HOUR), names.SHARING_REVERTS: then,
        names.REVERTED_POLICY: "small", names.REVERTED_BECAUSE: RESTARTS.because,
    }
    assert (mark.on, mark.event) == (owner.workload.ref, names.Event.SHARING_REVERTED)
    top = TopOwner(group="apps", kind="Deployment", name="llm", uid="u-1", annotations=changes)
    around = sharing.ShareAround(namespace=Known(scenes.ML), owner=Known(top), policies=Known((scenes.policy(),)),
                                 nodes=ABSENT)
    verdict = sharing.judge(scenes.needing(), around, scenes.TERMS, NOW + HOUR)
    assert isinstance(verdict, KeptWhole)
    assert verdict.reason is ShareReason.BackOff


@pytest.mark.parametrize(("recent", "owners", "too_many"), [(1, 5, False), (2, 9, True), (1, 4, True), (0, 0, False)])
def test_more_than_a_fifth_within_a_day_is_too_many(recent: int, owners: int, too_many: bool) -> None:
    assert sharing.hurts_too_many(PolicyReverts(recent=recent, owners=owners)) is too_many


def test_reverts_are_counted_by_the_policys_own_status_and_not_by_what_tenants_edit() -> None:
    made = builders.World()
    for name in ("a", "b", "c"):
        made.workload(f"ml/{name}", pod={"annotations": SHARED})
    backing = {names.BACKOFF_UNTIL: units.rfc3339(NOW + HOUR), names.REVERTED_POLICY: "small"}
    made.workload("ml/d", annotations=backing, pod={"annotations": {}})
    reverts = (ShareRevert("uid-ml/a", NOW - HOUR), ShareRevert("gone", NOW - HOUR), ShareRevert("old", NOW - DAY))
    counts = sharing.count_reverts(scenes.policy(), sharers(made), RevertsKept(reverts), NOW)
    assert counts == PolicyReverts(reverted=1, owners=4, recent=2)
    standing = sharing.stand_policy(scenes.policy(), ABSENT, counts)
    assert (standing.degraded[:2], standing.reverted) == (("True", "TooManyReverts"), 1)


def test_pods_that_only_wait_and_say_that_they_share_do_not_make_those_few_whom_a_policy_hurt() -> None:
    made = builders.World()
    for name in ("a", "b", "c"):
        made.workload(f"ml/{name}", pod={"annotations": SHARED})
    for number in range(100):
        made.workload(f"evil/{number}", pod={"annotations": SHARED, "node": "", "phase": "Pending"})
    reverts = RevertsKept((ShareRevert("uid-ml/a", NOW - HOUR),))
    counts = sharing.count_reverts(scenes.policy(), sharers(made), reverts, NOW)
    assert (counts.owners, sharing.hurts_too_many(counts)) == (3, True)


@pytest.mark.parametrize("pod", [
    {"resources": {names.GPU: 1}},  # a whole GPU
    {"resources": {names.GPU: 1}, "node": "unheard-of"},
    {"resources": {}, "claims": ("gpu",), "claimed": 1, "devices": (cluster.ClaimedGpu("p", "gpu-0"),)},
    {"resources": {names.GPU_SHARED: 1}, "labels": {"app": "other"}},  # not what it selects
    {"resources": {names.GPU_SHARED: 1}, "namespace": "elsewhere"},
])
def test_pods_that_say_they_share_and_do_not_make_those_few_whom_a_policy_hurt(pod: dict[str, Any]) -> None:
    """A tenant can write our annotations on whatever it runs."""
    made, alike = builders.World(), {"annotations": SHARED, "labels": {"app": "llm"}}
    for name in ("a", "b", "c"):
        made.workload(f"ml/{name}", pod={**alike, "resources": {names.GPU_SHARED: 1}})
    for number in range(100):
        made.workload(f"evil/{number}", pod={**alike, "namespace": "ml", **pod})
    policy = scenes.policy(
        pod_selector=Selector({"app": "llm"}), namespace_selector=Selector({"team": "ml"}),
    )
    reverts = RevertsKept((ShareRevert("uid-ml/a", NOW - HOUR),))
    counts = sharing.count_reverts(policy, sharers(made, nodes=False), reverts, NOW)
    assert (counts.owners, sharing.hurts_too_many(counts)) == (3, True)


@pytest.mark.parametrize("pod", [
    {"resources": {names.GPU_SHARED: 1}}, {"resources": {f"{names.MIG_PREFIX}1g.10gb": 1}},
    {"resources": {names.GPU: 1}},  # its node shares, and renames nothing
    {"resources": {}, "claims": ("g",), "devices": (cluster.ClaimedGpu("p", "gpu-0", profile="1g.10gb"),)},
    {"resources": {}, "claims": ("g",), "devices": (cluster.ClaimedGpu("p", "gpu-0", is_shared=True),)},
])
def test_who_shares_in_any_way_is_one_of_its_owners(pod: dict[str, Any]) -> None:
    made = builders.World()
    made.workload(pod={"annotations": SHARED, **pod})
    assert sharing.count_reverts(scenes.policy(), sharers(made), RevertsKept(), NOW).owners == 1


def test_a_policy_that_hurt_too_many_only_audits_until_somebody_changes_it() -> None:
    said = {"type": "Degraded", "status": "True", "reason": "TooManyReverts", "observedGeneration": 3}
    written = {"metadata": {"name": "small", "generation": 3}, "spec": {"strategy": "mps", "mode": "enforce"},
               "status": {"conditions": [said]}}
    policy = sharing_crd.parse(written)
    assert (policy.reverts_too_often, policy.enforces) == (True, False)
    assert sharing.stand_policy(policy, ABSENT, PolicyReverts(owners=9)).degraded[1] == "TooManyReverts"
    changed = sharing_crd.parse({**written, "metadata": {"name": "small", "generation": 4}})
    assert changed.enforces


def test_what_a_status_keeps_of_reverts_is_a_day_and_one_of_each_owner() -> None:
    reverts = [ShareRevert(f"u-{place}", NOW - 60 * place) for place in range(200)]
    again, old = ShareRevert("u-0", NOW - HOUR), ShareRevert("o", NOW - DAY)
    kept = sharing.keep_reverts(RevertsKept(), NOW, *reverts, again, old)
    read = sharing_crd.read_reverts(sharing_crd.write_reverts(kept))
    assert (read, len(read)) == (kept, 200)
    assert (len(read.recent), len({each.owner for each in read.recent})) == (sharing_crd.MOST_REVERTS,) * 2
    assert ShareRevert("u-0", NOW) in read.recent
    assert len(sharing.keep_reverts(read, NOW, ShareRevert("u-0", NOW))) == 200  # who is named is not counted again
    assert len(sharing.keep_reverts(read, NOW + 26 * HOUR)) == 0
    odd = {"recentReverts": [{"owner": 3}, "x", {"owner": "u", "at": "soon"}], "earlierReverts": [{"hour": 3}, "x"]}
    assert sharing_crd.read_reverts(odd) == RevertsKept()


def test_the_brake_counts_more_owners_than_a_status_names_and_its_status_stays_small() -> None:
    """600 owners, one hurt every ten minutes: it trips at 121, whichever process counts."""
    made, policy, status = builders.World(), scenes.policy(), dict[str, Any]()
    for number in range(600):
        made.workload(f"ml/{number}", pod={"annotations": SHARED})
    seen = sharers(made)
    for number in range(1, 122):
        at = NOW + 600 * number
        kept = sharing.keep_reverts(sharing_crd.read_reverts(status), at, ShareRevert(f"uid-ml/{number}", at))
        status = sharing_crd.write_reverts(kept)
        counts = sharing.count_reverts(policy, seen, sharing_crd.read_reverts(status), at)
        assert (counts.recent, counts.owners) == (number, 600)
        assert sharing.hurts_too_many(counts) is (number == 121)
    assert (len(status["recentReverts"]), len(status["earlierReverts"]) <= 26) == (100, True)
