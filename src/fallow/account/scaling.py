"""What nodes that come and go amount to: metrics, entries of the audit, demand by the hour, what removed nodes save.

In: a sight and its plan, what was done. Out: values of telemetry; chapters for the audit, by which savings are booked
later; the hours of demand that are over.
Invariant: what is not known has no series, never 0.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from fallow import names, telemetry
from fallow.account.chronicle import Chapter
from fallow.account.demand_hours import DemandHours
from fallow.account.spot_hours import SpotHours
from fallow.decide import scaling as deciding
from fallow.model import cluster, scaling_status
from fallow.model.cost import CapacityType, DemandHour
from fallow.model.history import AuditEntry, CameBy, Happened
from fallow.model.policies.scaling import NodePool, ScalingPolicy
from fallow.model.scaling import DrainKind, ScaledNode, ScalingSight, WaitHold
from fallow.model.scaling_plan import Fit, Grow, GrowReason, PolicyPlan, ScalingPlan
from fallow.model.seen import sure
from fallow.model.units import DAY, Instant, Seconds

_MONTH: Final = 730  # hours
_OURS: Final = "gpu_autoscaler_"
_ACTIONS: Final = {GrowReason.Forecast: "prewarm", GrowReason.SpotReplacement: "spot_replace"}


class ScalingAccount:
    """`put`: into the audit. `informed`: uids of pods whose people know."""

    def __init__(
        self, metrics: telemetry.Telemetry, *, put: Callable[[Chapter], None] = lambda chapter: None,
        currency: str = "USD",
    ) -> None:
        self._metrics, self._put, self._currency = metrics, put, currency
        self.demand, self.spot = DemandHours(), SpotHours()
        self.informed: set[str] = set()
        self._removed: list[tuple[Instant, str, float]] = []  # when, of which policy, what it cost an hour
        self._interrupted: dict[str, str] = {}  # uid of a node -> policy, while it is there
        self._counts = Counter[str]()  # by policy: interruptions since we started

    # ---- what was done ----

    def note(self, type_: Happened, ref: cluster.Ref, sentence: str, now: Instant, *, policy: str) -> None:
        self._put(Chapter((_entry(type_, sentence, now, ref=ref, policy=policy),)))

    def note_growth(
        self, policy: ScalingPolicy, wanted: Grow, pool: NodePool | None, said: str, now: Instant, took: Seconds
    ) -> None:
        action = _ACTIONS.get(wanted.reason, "scale_up")
        tier = str(pool.tier if pool is not None else wanted.tier)
        self._count(policy.name, action, tier, "false" if pool is None else "true")
        self._metrics.observe(f"{_OURS}scaling_duration_seconds", took, (policy.name, action))
        if pool is None:
            return
        gpus = (pool.gpus or 0) * wanted.count or None
        price = wanted.price if pool is wanted.pool else None
        self._put(Chapter((_entry(
            Happened.nodes_added, said, now, ref=policy.ref, policy=policy.name, reason=str(wanted.reason),
            detail=pool.name, gpus=gpus, per_hour=None if price is None else price * wanted.count,
        ),)))

    def note_removed(self, node: ScaledNode, policy: str, because: str, now: Instant) -> None:
        self._count(policy, "scale_down", str(node.tier), "true")
        if node.drain is not None:
            self._metrics.observe(f"{_OURS}drain_duration_seconds", max(0.0, now - node.drain.since), (policy,))
            self._metrics.observe(
                f"{_OURS}scaling_duration_seconds", max(0.0, now - node.drain.since), (policy, "scale_down")
            )
        if node.price is not None:
            self._removed.append((now, policy, node.price))
        ref = cluster.node_ref(node.name, node.uid)
        self._put(Chapter((_entry(
            Happened.node_removed, f"{node.name} was removed: {because}", now, ref=ref, policy=policy,
            detail=node.pool, gpus=node.gpus, per_hour=node.price,
        ),)))

    def note_kept(self, node: ScaledNode, policy: str) -> None:
        """It was to go, and its cloud refused, or its drain was undone."""
        self._count(policy, "scale_down", str(node.tier), "false")

    def note_prewarmed(self, policy: str, *, is_used: bool) -> None:
        self._metrics.add(f"{_OURS}prewarm_total", 1, (policy, "hit" if is_used else "miss"))

    def note_failure(self) -> None:
        self._metrics.add(f"{_OURS}reconcile_errors_total")

    def _count(self, policy: str, action: str, tier: str, success: str) -> None:
        self._metrics.add(f"{_OURS}scaling_actions_total", 1, (policy, action, tier, success))

    def saved_hourly(self, policy: str, now: Instant) -> float | None:
        """What the nodes removed in the last day would cost an hour; None: none was, as far as we know."""
        self._removed = [each for each in self._removed if each[0] > now - DAY]
        found = [price for _, name, price in self._removed if name == policy]
        return sum(found) if found else None

    def interruptions(self, policy: ScalingPolicy, before: int) -> int:
        """With what was counted since the status was last written."""
        return before + self._counts.pop(policy.name, 0)

    # ---- what is ----

    def measure(self, sight: ScalingSight, plan: ScalingPlan, now: Instant, took: Seconds) -> list[DemandHour]:
        """The hours of demand that are over."""
        nodes = sure(sight.nodes)
        self._note_interruptions(nodes, plan, now)
        if not plan.unseen:
            self.spot.enter({each.policy.name: each.by_tier.get(CapacityType.spot, 0) for each in plan.policies}, now)
        for name, values in _find_gauges(sight, plan, now).items():
            self._metrics.replace(f"{_OURS}{name}", values)
        costs = _find_costs(nodes, plan)
        self._metrics.replace_money(f"{_OURS}estimated_monthly_cost", self._currency, costs)
        saved = {(each.policy.name,): hourly * _MONTH for each in plan.policies
                 if (hourly := self.saved_hourly(each.policy.name, now)) is not None}
        self._metrics.replace_money(f"{_OURS}estimated_monthly_savings", self._currency, saved)
        for each in plan.policies:
            if not each.acts:
                self._count_advice(each, {node.name: node.tier for node in nodes})
        self._metrics.observe(f"{_OURS}reconcile_duration_seconds", took)
        self._metrics.set(f"{_OURS}last_reconcile_timestamp", now)
        return self.demand.enter(count_demand(sight, plan), now)

    def _count_advice(self, plan: PolicyPlan, tiers: Mapping[str, CapacityType]) -> None:
        for wanted in plan.grows:
            self._count(plan.policy.name, _ACTIONS.get(wanted.reason, "scale_up"), str(wanted.tier), "dry_run")
        for release in plan.releases:
            self._count(plan.policy.name, "scale_down", str(tiers[release.node]), "dry_run")

    def _note_interruptions(self, nodes: Sequence[ScaledNode], plan: ScalingPlan, now: Instant) -> None:
        """Each once: from its record on, until its node is gone."""
        there = {each.uid: each for each in nodes if each.spot is not None and each.spot.ends_at is not None}
        for uid, node in there.items():
            if uid not in self._interrupted and node.spot is not None:
                policy = self._interrupted[uid] = node.spot.policy
                self._counts[policy] += 1
                self._metrics.add(f"{_OURS}spot_interruptions_total", 1, (policy,))
                ref = cluster.node_ref(node.name, uid)
                said = f"the cloud takes {node.name} back"
                self.note(Happened.interrupted, ref, said, node.spot.since, policy=policy)
        self._interrupted = {uid: policy for uid, policy in self._interrupted.items() if uid in there}


def _entry(
    type_: Happened, sentence: str, now: Instant, *, ref: cluster.Ref, policy: str, reason: str = "", detail: str = "",
    gpus: int | None = None, per_hour: float | None = None,
) -> AuditEntry:
    return AuditEntry(
        at=now, type=type_, sentence=sentence[:512], actor=names.FIELD_MANAGER, source=CameBy.cycle, ref=ref,
        policy=policy, reason=reason, detail=detail, gpus=gpus, per_hour=per_hour,
    )


def _find_gauges(sight: ScalingSight, plan: ScalingPlan, now: Instant) -> dict[str, dict[tuple[str, ...], float]]:
    made: dict[str, dict[tuple[str, ...], float]] = {name: {} for name in _GAUGES}
    for each in plan.policies:
        _measure_policy(each, made, now)
    for verdict in plan.pods:
        key = (verdict.policy, str(verdict.fit))
        made["pending_pods_by_verdict"][key] = made["pending_pods_by_verdict"].get(key, 0) + 1
    for judged in plan.nodes:
        for name, kind in (("underutilized_nodes", DrainKind.under_used), ("squatted_nodes", DrainKind.squatted)):
            if judged.policy:
                made[name][(judged.policy,)] = made[name].get((judged.policy,), 0) + (judged.kind is kind)
    owner = {judged.node: judged.policy for judged in plan.nodes}
    for node in sure(sight.nodes):
        if policy := owner.get(node.name, ""):
            is_warned = node.ends_at is not None or node.warned_at is not None
            made["spot_termination_warnings"][(policy,)] = (
                made["spot_termination_warnings"].get((policy,), 0) + is_warned
            )
    made["spot_savings_percentage"] = _find_spot_savings(sight, owner)
    return made


_GAUGES: Final = (
    "node_count", "desired_node_count", "cluster_utilization", "pending_pods", "underutilized_nodes",
    "spot_termination_warnings", "spot_savings_percentage", "predictive_scaling_enabled", "predicted_utilization",
    "prediction_confidence", "scale_up_cooldown_remaining_seconds", "scale_down_cooldown_remaining_seconds",
    "multi_tier_scaling_enabled", "capacity_type_preference", "pending_pods_by_verdict", "scaling_blocked",
    "brake_engaged", "stockout", "forecast_wape", "squatted_nodes",
)


def _measure_policy(plan: PolicyPlan, made: Mapping[str, dict[tuple[str, ...], float]], now: Instant) -> None:
    policy, key = plan.policy, (plan.policy.name,)
    for tier in dict.fromkeys((*policy.tiers, *plan.by_tier)):
        made["node_count"][(policy.name, str(tier))] = plan.by_tier.get(tier, 0)
    for rank, tier in enumerate(policy.tiers, 1):
        made["capacity_type_preference"][(policy.name, str(tier))] = rank
    made["desired_node_count"][key], made["pending_pods"][key] = plan.desired, plan.pending
    made["predictive_scaling_enabled"][key] = float(policy.prewarming is not None)
    made["multi_tier_scaling_enabled"][key] = float(len(policy.tiers) > 1)
    kept = scaling_status.read(policy.status)
    made["scale_up_cooldown_remaining_seconds"][key] = _left(kept.grew_at, policy.grow_rest, now)
    last = max((at for at in (kept.grew_at, kept.shrank_at) if at is not None), default=None)
    made["scale_down_cooldown_remaining_seconds"][key] = _left(last, policy.shrink_rest, now)
    guess = plan.guess
    known = {
        "cluster_utilization": plan.use, "predicted_utilization": guess.utilization if guess else None,
        "prediction_confidence": guess.confidence if guess else None,
    }
    for name, value in known.items():
        if value is not None:
            made[name][key] = value
    if guess is not None and guess.error is not None:
        made["forecast_wape"][(policy.name, guess.model)] = guess.error
    for why in plan.blocked:
        made["scaling_blocked"][(policy.name, str(why))] = 1
    for brake in plan.brakes:
        made["brake_engaged"][(policy.name, str(brake))] = 1
    for each in plan.stockouts:
        made["stockout"][(policy.name, each.pool, str(each.tier))] = float(each.until > now)


def _left(since: Instant | None, rest: Seconds, now: Instant) -> float:
    return 0.0 if since is None else max(0.0, since + rest - now)


def _find_costs(nodes: Sequence[ScaledNode], plan: ScalingPlan) -> dict[tuple[str, ...], float]:
    """Of each tier of a policy all of whose nodes have a price."""
    owner = {judged.node: judged.policy for judged in plan.nodes}
    sums: dict[tuple[str, ...], float | None] = {}
    for node in nodes:
        if policy := owner.get(node.name, ""):
            key = (policy, str(node.tier))
            before = sums.get(key, 0.0)
            sums[key] = None if before is None or node.price is None else before + node.price * _MONTH
    return {key: amount for key, amount in sums.items() if amount is not None}


def _find_spot_savings(sight: ScalingSight, owner: Mapping[str, str]) -> dict[tuple[str, ...], float]:
    """By how much spot nodes cost less than the same on demand, where both prices are known of all."""
    paid, usual, unknown = defaultdict[str, float](float), defaultdict[str, float](float), set[str]()
    for node in sure(sight.nodes):
        policy = owner.get(node.name, "")
        if policy and node.tier is CapacityType.spot:
            listed = sight.prices.get((node.instance_type, CapacityType.on_demand))
            if node.price is None or not listed:
                unknown.add(policy)
                continue
            paid[policy] += node.price
            usual[policy] += listed
    return {(name,): 100.0 * (1 - paid[name] / usual[name]) for name in usual if name not in unknown}


def count_demand(sight: ScalingSight, plan: ScalingPlan) -> dict[str, float]:
    """GPUs held on a policy's nodes, and waited for by pods that need one; none where pods are not seen, or the policy
    does not stand for its nodes. A pod that fits no pool, or a cloud that does not answer, hides nobody's demand."""
    if plan.unseen:
        return {}
    owner = {judged.node: judged.policy for judged in plan.nodes if judged.policy}
    waiting = {verdict.pod.uid: verdict.policy for verdict in plan.pods if verdict.fit is Fit.NeedsNode}
    replicas = {node.name: _replicas(node) for node in sure(sight.nodes)}
    found = {each.policy.name: 0.0 for each in plan.policies if deciding.FATAL.isdisjoint(each.blocked)}
    for pod in sure(sight.pods):
        policy = owner.get(pod.node, "") if pod.node else waiting.get(pod.id.uid, "")
        if policy in found and pod.held is not WaitHold.Placeholder:
            found[policy] += deciding.measure(pod.asks, replicas.get(pod.node, deciding.SHARES)) / 1000
    return found


def _replicas(node: ScaledNode) -> int:
    text = node.labels.get(names.GPU_REPLICAS, "1")
    return max(1, int(text)) if text.isdecimal() and len(text) < 4 else 1
