"""All of it at one instant: the cluster from the mirror, usage from a source, the freeze from the Lease.

In: the rules in force (they say which windows to ask for) and `now`. Out: a Snapshot for the brain; after the brain
chose candidates, the same with exact idle times; just before an act, a fresh small one of the workloads concerned.
Invariant: a part that could not be seen is in `missing` (or the evidence says what is wrong); only a cluster that
cannot be seen at all raises, and clocks that are apart. While no object changed the version stays; a second look has
none.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from fallow.clients import errors
from fallow.model import cluster, long_memory, units, usage
from fallow.model.policies import idle
from fallow.model.seen import ABSENT, Input, Known, Unseen, sure
from fallow.model.units import Instant, Seconds
from fallow.observe.cluster import mirror, second_look
from fallow.observe.usage import rows as usage_rows
from fallow.observe.usage import source as sources

MAX_APART: Seconds = 60.0  # of two clocks; those of healthy machines are milliseconds apart


class Eyes:
    """Looks at the cluster. The mirror must have been filled (`list_all` or `follow`) before."""

    def __init__(
        self, seen: mirror.Mirror, source: sources.Source, *, clock: Callable[[], Instant],
        lease_annotations: Callable[[], Mapping[str, str]] = dict, lease_term: Callable[[], int | None] = lambda: None,
    ) -> None:
        """`clock`: ours, by which the others' are looked at."""
        self._mirror = seen
        self._source = source
        self._clock = clock
        self.lease_annotations, self._lease_term = lease_annotations, lease_term
        self._held = usage_rows.Holders((), {})

    @property
    def policies(self) -> Input[tuple[idle.IdlePolicy, ...]]:
        """The IdlePolicies as last seen: the brain makes the rules in force of them, which take_snapshot then needs."""
        return self._mirror.policies

    async def take_snapshot(self, rules: Collection[idle.Rule], now: Instant) -> cluster.Snapshot:
        await self._mirror.refresh(now)
        seen, look_past = self._mirror.contents, self._look_past(rules)
        held = self._hold(seen.version_of_hosts)
        facts: dict[str, Any] = {  # before anything is waited for: all of one instant
            "workloads": seen.workloads(look_past), "nodes": seen.nodes, "namespaces": seen.namespaces,
            "policies": seen.policies, "missing": seen.missing, "version": seen.version(look_past),
        }
        with_floors = any(rule.power_floor for rule in rules)
        evidence = await self._source.evidence(held, _windows(rules), now, with_floors=with_floors)
        facts["missing"] += tuple(cluster.Missing(one.who, one.because) for one in evidence.ignored)
        facts["missing"] += self._compare_clocks(evidence)
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
            "nodes": nodes, "namespaces": fresh.namespaces, "policies": self._mirror.policies,
            "missing": (*fresh.missing, *self._compare_clocks(evidence)),
        }
        return self._compose(held, evidence, now, workloads=fresh.workloads, **facts)

    async def draw(
        self, pods: Sequence[cluster.Pod], gpus: Collection[str], span: usage.DrawnSpan, now: Instant
    ) -> Mapping[str, usage.Floats]:
        """What these GPUs of these pods did over time, for people. Raises what the source's other side does."""
        return await self._source.draw(self._held, pods, gpus, span, now)

    def _compare_clocks(self, evidence: usage.Evidence) -> tuple[cluster.Missing, ...]:
        """Raises where ours and another are apart: every age would be wrong, and nobody can tell which clock is.

        One that no answer tells is not seen; samples that do not fit our clock are found out by their own dates.
        """
        measured = ABSENT if evidence.trouble else self._source.clock  # who gave nothing could not be late with it
        clocks = {"the clock of the API server": self._mirror.api.clock, "the clock of Prometheus": measured}
        for whose, other in clocks.items():
            if isinstance(other, Known) and abs(other.value - (ours := self._clock())) > MAX_APART:
                there, here = units.rfc3339(other.value), units.rfc3339(ours)
                raise errors.BadAnswer(f"{whose} says {there}, ours says {here}: nothing is decided in this cycle")
        return tuple(cluster.Missing(whose, other.why) for whose, other in clocks.items() if isinstance(other, Unseen))

    def _compose(
        self, held: usage_rows.Holders, evidence: usage.Evidence, now: Instant, **facts: Any
    ) -> cluster.Snapshot:
        remembered, lost = long_memory.read(self.lease_annotations(), now)
        if lost:
            facts["missing"] = (*facts["missing"], cluster.Missing("our memory", lost))
        return cluster.Snapshot(
            taken_at=now, pods=held.pods, evidence=evidence, long_memory=remembered,
            freeze=long_memory.read_freeze(self.lease_annotations(), now), lease_term=self._lease_term(), **facts,
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


def _find_neighbours(some: tuple[cluster.Pod, ...], every: tuple[cluster.Pod, ...]) -> Iterator[cluster.Pod]:
    nodes, known = {pod.node for pod in some if pod.node}, {(pod.namespace, pod.name) for pod in some}
    return (pod for pod in every if pod.node in nodes and (pod.namespace, pod.name) not in known)


def _reaches(by: idle.IdlePolicy | None, namespace: cluster.Namespace) -> bool:
    return by is None or (not by.invalid and by.reaches(namespace.name, namespace.labels) is True)


def _windows(rules: Collection[idle.Rule]) -> frozenset[Seconds]:
    return frozenset(window for rule in rules for window in rule.windows)
