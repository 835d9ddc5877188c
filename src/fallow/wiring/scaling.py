"""For nodes that come and go: the story with its eyes and hands, the clouds it may ask, and the books it rests on.

In: the Groundwork, what the books know once they are open, who finds a policy's cloud. Out: a Story for the loop, and
what must run beside it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from fallow import loop, names
from fallow.account.scaling import ScalingAccount
from fallow.act import growing, headroom, leaving, scaling_statuses
from fallow.clients import errors
from fallow.clients.clouds import Cloud
from fallow.decide import packing
from fallow.decide import scaling as deciding
from fallow.model import cluster, long_memory, node_facts, price_table
from fallow.model.cost import DEMAND_KEPT, UNIT, CapacityType, DemandHour
from fallow.model.machines import MachineShape
from fallow.model.node_facts import NodeFacts
from fallow.model.policies import idle
from fallow.model.policies.scaling import ScalingPolicy
from fallow.model.price_book import PriceBook, Priced
from fallow.model.scaling import ScaledPod, SpendLimit
from fallow.model.seen import ABSENT, Input
from fallow.model.units import Instant, Seconds
from fallow.observe import budgets as spending
from fallow.observe.cluster import mirror
from fallow.observe.scaling import limits, sight
from fallow.settings.cost import CostSettings
from fallow.settings.scaling import ScalingSettings
from fallow.stories import scaling
from fallow.stories.turn import Clock, Turn
from fallow.wiring.ground import Groundwork, Later

log = logging.getLogger("fallow")

SCALING: Final = "scaling"  # the name of the story
FindCloud = Callable[[ScalingPolicy], Cloud | None]


class ScalingParts(msgspec.Struct, frozen=True):
    story: loop.Story
    background: Callable[[], Coroutine[Any, Any, None]]


def make_parts(ground: Groundwork, later: Later, cloud: Cloud | None) -> ScalingParts:
    """`cloud`: that of the flags; None: nobody's machines are asked for."""
    options = ground.options.scaling
    find_cloud = find_by_provider(cloud, options.provider)
    statuses = scaling_statuses.ScalingStatuses(ground.api)
    account = ScalingAccount(
        ground.metrics, put=ground.kept.put if ground.kept is not None else lambda chapter: None,
        currency=ground.options.cost.currency,
    )
    books = LaterBooks(ground, later)
    eyes = sight.ScalingEyes(ground.api, sight.ScalingSources(
        use=ground.eyes.read_use, find_cloud=find_cloud,
        why_kept=lambda now: find_kept(ground.seen, ground.options.mandate, now), price_of=books.price_of,
        price_of_type=books.price_of_type, shape_of_type=books.shape_of_type, limits=books.find_limits,
        past=account.demand.find, status=statuses.find, namespace=ground.namespace if options.acts else "",
        currency=ground.options.cost.currency,
    ), wake=lambda: later.looping.wake(SCALING), wake_soon=lambda: _wake_in(later, scaling.GATHERING))
    story = scaling.ScalingStory(
        eyes=eyes, find_cloud=find_cloud, account=account, keep_hours=books.keep_hours,
        hands=make_hands(ground, statuses), terms=scaling.ScalingStoryTerms(
            is_on=options.is_on, acts=options.acts, interval=options.interval,
            frozen=lambda now: _why_frozen(ground, now),
            brain=make_terms(options),
            wake_in=lambda seconds: _wake_in(later, seconds),
        ),
    )

    async def tick(turn: Turn) -> loop.Ended:
        await books.recall(account, turn.now)
        return await story.tick(turn)

    return ScalingParts(loop.Story(
        name=SCALING, interval=options.interval, budget=scaling.BUDGET, tick=tick, look=story.look, fail=story.fail,
        is_vital=False,
    ), eyes.run)


def make_terms(options: ScalingSettings) -> deciding.ScalingTerms:
    return deciding.ScalingTerms(score=deciding.InstanceScore(options.score))


def find_by_provider(cloud: Cloud | None, provider: str) -> FindCloud:
    """Of policies of that provider alone; where the flags name none, what was handed in is for custom ones."""
    wanted = "custom" if provider == "none" else provider
    return lambda policy: cloud if policy.provider == wanted else None


def make_hands(ground: Groundwork, statuses: scaling_statuses.ScalingStatuses) -> scaling.ScalingHands:
    return scaling.ScalingHands(
        leaving=leaving.LeavingHands(ground.api, ground.hands.announcer),
        grower=growing.Grower(statuses, deciding.note_shortage),
        headroom=headroom.HeadroomHands(ground.api, ground.namespace), statuses=statuses,
        announcer=ground.hands.announcer,
    )


def _why_frozen(ground: Groundwork, now: Instant) -> str:
    freeze = long_memory.read_freeze(ground.leadership.annotations, now)
    return str(freeze) if freeze is not None and freeze.holds(now) else ""


def _wake_in(later: Later, seconds: Seconds) -> None:
    asyncio.get_running_loop().call_later(seconds, later.looping.wake, SCALING)


async def find_kept(seen: mirror.Mirror, mandate: idle.Mandate, now: Instant) -> sight.WhyKept:
    """Who is kept by an acknowledgement, is out of reach, or may be. Raises where that is not seen."""
    await seen.refresh(now)
    why = packing.find_kept(seen.pods, seen.workloads({}), seen.namespaces, mandate, now)

    def why_kept(pod: ScaledPod) -> str:
        held = {name: count for name, count in pod.asks.items() if name.startswith(names.NVIDIA)}
        return why(_KeptPod(pod.id.namespace, pod.id.uid, held))

    return why_kept


class _KeptPod(NamedTuple):
    """As packing asks who keeps it."""

    namespace: str
    uid: str
    resources: Mapping[str, int]
    claims: tuple[str, ...] = ()


class ShippedPrices:
    """Of an hour of the whole machine, by the price book that we ship."""

    def __init__(self, options: CostSettings, clock: Clock) -> None:
        self._book, self._region, self._clock = PriceBook(currency=options.currency), options.region, clock

    def of_node(self, node: cluster.Node) -> float | None:
        facts = node_facts.read(node, region=self._region)
        found = self._book.find_rate(facts, self._clock())
        return None if found is None or not facts.gpus else found.nano * facts.gpus / UNIT

    def find(self, kind: str, tier: CapacityType) -> Priced | None:
        return self._book.find(_facts_of(kind, tier, self._region), self._clock())

    def of_type(self, kind: str, tier: CapacityType) -> float | None:
        return _price_row(self.find(kind, tier))

    def shape_of(self, kind: str) -> MachineShape | None:
        return _shape_row(kind, self.find(kind, CapacityType.on_demand))


def _facts_of(kind: str, tier: CapacityType, region: str) -> NodeFacts:
    return NodeFacts(node="", instance_type=kind, capacity_type=tier, region=region)


def _price_row(found: Priced | None) -> float | None:
    return None if found is None or not found.row.gpus else found.rate.nano * found.row.gpus / UNIT


def _shape_row(kind: str, found: Priced | None) -> MachineShape | None:
    """As far as a price tells what it is the price of."""
    fold = price_table.fold_type
    if found is None or not found.row.gpus or fold(found.row.instance_type) != fold(kind):
        return None
    return MachineShape(instance_type=kind, gpus=found.row.gpus, gpu_model=found.row.gpu_model)


class LaterBooks:
    """What is asked of the books where they are kept: prices, budgets, the demand of weeks. Where they are not, the
    shipped prices."""

    def __init__(self, ground: Groundwork, later: Later) -> None:
        self._ground, self._later = ground, later
        self._shipped = ShippedPrices(ground.options.cost, ground.clock)
        self._is_recalled = False

    def price_of(self, node: cluster.Node) -> float | None:
        """Of an hour of the whole machine."""
        if self._later.books is not None:
            bill = self._later.books.billing.bill(node)
            return None if bill.rate is None or not bill.gpus else bill.rate.nano * bill.gpus / UNIT
        return self._shipped.of_node(node)

    def price_of_type(self, kind: str, tier: CapacityType) -> float | None:
        return _price_row(self._find(kind, tier))

    def shape_of_type(self, kind: str) -> MachineShape | None:
        return _shape_row(kind, self._find(kind, CapacityType.on_demand))

    def _find(self, kind: str, tier: CapacityType) -> Priced | None:
        if self._later.books is None:
            return self._shipped.find(kind, tier)
        return self._later.books.billing.find(_facts_of(kind, tier, self._ground.options.cost.region))

    def find_limits(self, now: Instant) -> Input[tuple[SpendLimit, ...]]:
        if self._later.books is None:
            return ABSENT
        seen = self._ground.seen
        traits = spending.find_traits(seen.pods, seen.workloads({}), seen.namespaces)
        return limits.find(self._later.books.budgets(), traits, now)

    async def keep_hours(self, hours: Sequence[DemandHour]) -> None:
        if self._later.books is not None:
            await self._later.books.keep_demand(hours)

    async def recall(self, account: ScalingAccount, now: Instant) -> None:
        """Once: what foresight learned from before we were started."""
        if self._later.books is None or self._is_recalled:
            return
        try:
            account.demand.recall(await self._later.books.ledger.read_demand(int(now) - DEMAND_KEPT))
        except errors.ClientError as problem:
            log.info("the demand of the last weeks is not known yet: %s", problem)
            return
        self._is_recalled = True
