"""All of it at one instant: the cluster from the mirror, usage from a source, the freeze from the Lease.

In: the rules in force (they say which windows to ask for) and `now`. Out: a Snapshot for the brain; after the brain
chose candidates, the same with exact idle times; just before an act, a fresh small one of the workloads concerned.
Invariant: a part that could not be seen is in `missing` (or the evidence says what is wrong); only a cluster that
cannot be seen at all raises, and clocks that are apart or not told. While no object changed the version stays; a second
look has none.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from fallow.clients import errors
from fallow.model import cluster, cost, long_memory, units, usage
from fallow.model.policies import idle
from fallow.model.seen import ABSENT, Input, Known, Unseen, several, sure
from fallow.model.units import Instant, Seconds
from fallow.observe.cluster import departures, mirror, second_look
from fallow.observe.usage import device_use
from fallow.observe.usage import rows as usage_rows
from fallow.observe.usage import source as sources

MAX_APART: Seconds = 60.0  # of two clocks; those of healthy machines are milliseconds apart


class Eyes:
    """Looks at the cluster. The mirror must have been filled (`list_all` or `follow`) before."""

    def __init__(
        self, seen: mirror.Mirror, source: sources.Source, *, clock: Callable[[], Instant],
        lease_annotations: Callable[[], Mapping[str, str]] = dict, lease_term: Callable[[], int | None] = lambda: None,
        rates: Callable[[Iterable[cluster.Node]], Input[cost.NodeRates]] = lambda nodes: ABSENT,
    ) -> None:
        """`clock`: ours, by which the others' are looked at. `rates`: what these nodes cost, where books are kept."""
        self._mirror = seen
        self._source = source
        self._clock = clock
        self.lease_annotations, self._lease_term = lease_annotations, lease_term
        self._rates = rates
        self._held = usage_rows.Holders((), {})
        self._looked_past: dict[str, frozenset[str]] = {}

    @property
    def policies(self) -> Input[tuple[idle.IdlePolicy, ...]]:
        """The IdlePolicies as last seen: the brain makes the rules in force of them, which take_snapshot then needs."""
        return self._widen(self._mirror.policies)

    def _widen(self, policies: Input[tuple[idle.IdlePolicy, ...]]) -> Input[tuple[idle.IdlePolicy, ...]]:
        """With their windows as they are now: by what stands on the Lease; where that knows nothing of one, by what was
        reported of it last, so that lost memory makes nobody wait less."""
        if not any(each.rule.auto_widen for each in sure(policies)):
            return policies
        remembered, _ = long_memory.read(self.lease_annotations(), self._clock())
        known = {week.rule: week.widened for week in remembered.weeks}
        return several(tuple(_widen(each, known.get(each.rule.name)) for each in sure(policies)))

    def list_now(self) -> tuple[cluster.Workload, ...]:
        """The workloads as they are at this instant; the very same while nothing changes."""
        return self._mirror.workloads(self._looked_past)

    async def take_snapshot(self, rules: Collection[idle.Rule], now: Instant) -> cluster.Snapshot:
        await self._mirror.refresh(now)
        seen, look_past = self._mirror.contents, self._look_past(rules)
        self._looked_past = look_past
        held = self._hold(seen.version_of_hosts)
        facts: dict[str, Any] = {  # before anything is waited for: all of one instant
            "workloads": seen.workloads(look_past), "nodes": seen.nodes, "namespaces": seen.namespaces,
            "policies": self._widen(seen.policies), "missing": seen.missing, "version": seen.version(look_past),
            "queued": seen.queued,
        }
        with_floors = any(rule.power_floor for rule in rules)
        evidence = await self._source.evidence(
            held, _windows(rules), now, with_floors=with_floors, strictest=_find_strictest(rules)
        )
        facts["missing"] += tuple(cluster.Missing(one.who, one.because, one.is_untrusted) for one in evidence.ignored)
        self._compare_clocks(evidence)
        return self._compose(held, evidence, now, **facts)

    def _hold(self, version: int) -> usage_rows.Holders:
        """Whose the GPUs are, made anew only when a pod or node differs."""
        if self._held.version != version:
            exporters = self._mirror.contents.exporters
            self._held = usage_rows.Holders(self._mirror.pods, self._mirror.nodes.known, version, exporters)
        return self._held

    async def look_back(
        self, seen: cluster.Snapshot, rows: Mapping[tuple[Seconds, float], usage.Candidates], now: Instant
    ) -> cluster.Snapshot:
        """The last snapshot with exact idle times in these rows, by window and by what counts as activity."""
        found = dict(seen.evidence.usage)
        for (window, threshold), wanted in rows.items():
            found[window] = await self._source.look_back(found[window], wanted, self._held, now, threshold)
        return msgspec.structs.replace(seen, evidence=msgspec.structs.replace(seen.evidence, usage=found))

    async def look_again(
        self, workloads: Collection[cluster.Workload], rules: Collection[idle.Rule], now: Instant
    ) -> cluster.Snapshot:
        """The second look: these workloads only, each read anew with its companions and pods, and measured anew.

        One that is gone, or could not be read, is not in it; `missing` says why. Who else holds GPUs on their nodes is
        measured anew, too, as nobody's: what a device or a node did must be explained.
        """
        fresh = await second_look.look(self._mirror, workloads, self._look_past(rules), now)
        nodes = self._mirror.nodes
        pods = (*fresh.pods, *_find_neighbours(fresh.pods, self._mirror.pods))
        held = usage_rows.Holders(pods, nodes.known, exporters=self._mirror.contents.exporters)
        evidence = await self._source.again(held, _windows(rules), now)
        facts = {
            "nodes": nodes, "namespaces": fresh.namespaces, "policies": self.policies, "missing": fresh.missing,
        }
        self._compare_clocks(evidence)
        return self._compose(held, evidence, now, workloads=fresh.workloads, **facts)

    async def take_inventory(self, now: Instant, expected: Collection[cluster.PodId] = ()) -> cluster.Inventory:
        """For the books: without measurements, with workloads as the last snapshot found them. `expected`: those who
        held GPUs when somebody last looked. Raises if pods may not be current: then nobody is told to have gone; and
        where our clock is not the server's: a month could be booked in a minute."""
        await self._mirror.refresh(now)
        self._check_clock("the clock of the API server", self._mirror.api.clock)
        seen = self._mirror.contents
        found = cluster.Inventory(
            pods=seen.pods, nodes=seen.nodes, namespaces=seen.namespaces, workloads=seen.workloads(self._looked_past),
            departures=seen.take_departures(), sees_all=seen.sees_all,
        )
        there = {pod.uid for pod in found.pods} if expected else ()
        missed = [each for each in expected if each.uid not in there]
        if not missed and all(each.ended_at is not None for each in found.departures):
            return found
        try:
            gone = await departures.ask_ends(self._mirror.api, self._mirror.reader, found.departures, missed)
        except BaseException:  # cut short: who went is told once, so that the next look must be told
            seen.give_back_departures(found.departures)
            raise
        return msgspec.structs.replace(found, departures=seen.settle_departures(gone))

    async def read_hour(self, hour: Instant, now: Instant) -> tuple[usage.HourReading, ...]:
        """What was measured of a full hour of the clock, for the books. Raises what the source's other side does."""
        return await self._source.read_hour(self._held, hour, now)

    async def read_use(self, now: Instant) -> device_use.DeviceUse:
        """How busy every GPU was in the last minutes, by node and board. Raises what the source's other side does."""
        held = self._hold(self._mirror.contents.version_of_hosts)
        found = await self._source.read_use(held, now)
        self._check_clock("the clock of Prometheus", self._source.clock)  # which only its answers tell
        return found

    async def draw(
        self, pods: Sequence[cluster.Pod], gpus: Collection[str], span: usage.DrawnSpan, now: Instant
    ) -> Mapping[str, usage.Floats]:
        """What these GPUs of these pods did over time, for people. Raises what the source's other side does."""
        return await self._source.draw(self._held, pods, gpus, span, now)

    def _compare_clocks(self, evidence: usage.Evidence) -> None:
        """Raises where ours and another are apart: every age would be wrong, and nobody can tell which clock is."""
        measured = ABSENT if evidence.trouble else self._source.clock  # who gave nothing could not be late with it
        self._check_clock("the clock of the API server", self._mirror.api.clock)
        self._check_clock("the clock of Prometheus", measured)

    def _check_clock(self, whose: str, other: Input[Instant]) -> None:
        """One that is not told may be apart: of samples dated ahead of us we would be given the old ones for the new,
        and they would look as fresh as any."""
        if isinstance(other, Unseen):
            raise errors.BadAnswer(f"{whose} is not told: {other.why}: nothing is decided in this cycle")
        if isinstance(other, Known) and abs(other.value - (ours := self._clock())) > MAX_APART:
            there, here = units.rfc3339(other.value), units.rfc3339(ours)
            raise errors.BadAnswer(f"{whose} says {there}, ours says {here}: nothing is decided in this cycle")

    def _compose(
        self, held: usage_rows.Holders, evidence: usage.Evidence, now: Instant, **facts: Any
    ) -> cluster.Snapshot:
        remembered, lost = long_memory.read(self.lease_annotations(), now)
        if lost:
            facts["missing"] = (*facts["missing"], cluster.Missing("our memory", lost))
        return cluster.Snapshot(
            taken_at=now, pods=held.pods, evidence=evidence, long_memory=remembered,
            freeze=long_memory.read_freeze(self.lease_annotations(), now), lease_term=self._lease_term(),
            rates=self._rates(self._mirror.nodes.known.values()), **facts,
        )

    def _look_past(self, rules: Collection[idle.Rule]) -> dict[str, frozenset[str]]:
        """By namespace, what admins want looked past. A policy reaches only namespaces it selects; flags reach all."""
        in_force = {rule.name: rule.action.look_past for rule in rules if rule.action.look_past}
        if not in_force:
            return {}
        policies = {each.rule.name: each for each in sure(self._mirror.policies)}
        return {
            namespace.name: frozenset().union(
                *(wanted for name, wanted in in_force.items() if _reaches(policies.get(name), namespace))
            )
            for namespace in self._mirror.namespaces.known.values()
        }


def _widen(policy: idle.IdlePolicy, known: float | None) -> idle.IdlePolicy:
    if not policy.rule.auto_widen:
        return policy
    reported = (policy.effective_gone_idle or 0.0) / policy.rule.gone_idle
    by = min(idle.MOST_WIDENED, max(1.0, reported)) if known is None else known
    return msgspec.structs.replace(policy, rule=idle.widen(policy.rule, by))


def _find_neighbours(some: tuple[cluster.Pod, ...], every: tuple[cluster.Pod, ...]) -> Iterator[cluster.Pod]:
    nodes, known = {pod.node for pod in some if pod.node}, {(pod.namespace, pod.name) for pod in some}
    return (pod for pod in every if pod.node in nodes and (pod.namespace, pod.name) not in known)


def _reaches(by: idle.IdlePolicy | None, namespace: cluster.Namespace) -> bool:
    return by is None or (not by.invalid and by.reaches(namespace.name, namespace.labels) is True)


def _windows(rules: Collection[idle.Rule]) -> frozenset[Seconds]:
    return frozenset(window for rule in rules for window in rule.windows)


def _find_strictest(rules: Collection[idle.Rule]) -> usage.Strictest | None:
    """None where there is no rule."""
    if not rules:
        return None
    activity = [rule.activity for rule in rules]
    return usage.Strictest(
        quiet=min(activity), busy=max(activity), coverage=max(rule.coverage for rule in rules),
        max_sample_age=min(rule.max_sample_age for rule in rules),
    )
