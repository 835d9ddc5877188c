"""What each node costs, for all who ask: the books that write it down, and those who show a workload with its price.

In: what the story of prices found last. Out: a NodeBill of a node, and the rows of the price book that were named.
Invariant: one rule, the price book's. What it does not know has no price; while no book was seen nothing has one.
"""

import asyncio
from collections.abc import Collection, Iterable
from decimal import Decimal

import msgspec

from fallow.account.commitments import ReservedPrice
from fallow.model import cluster, node_facts, price_table
from fallow.model.commitments import Commitment
from fallow.model.cost import UNIT, BookedPrice, CapacityType, CostKey, Nano, NodeBill, NodeRates, Second
from fallow.model.node_facts import NodeFacts
from fallow.model.price_book import PriceBook, Priced
from fallow.model.price_table import PriceRow
from fallow.model.seen import Input, Known, Unseen
from fallow.stories.prices import PricesTurn
from fallow.stories.turn import Clock


class NodeBilling:
    """`region`: of nodes that do not name theirs."""

    def __init__(self, *, region: str, clock: Clock) -> None:
        self._region, self._clock = region, clock
        self._book: PriceBook | None = None
        self._looked = asyncio.Event()
        self._named: dict[str, PriceRow] = {}  # rows by id that a bill has named
        self._facts: dict[str, tuple[cluster.Node, NodeFacts]] = {}
        self._alike: dict[NodeFacts, Priced | None] = {}  # of one kind, until prices are looked up anew
        self._bills: dict[str, tuple[cluster.Node, NodeBill]] = {}  # by node, as long
        self.missing: tuple[str, ...] = ("prices have not been looked up yet",)
        self.committed: Input[tuple[Commitment, ...]] = Unseen(*self.missing)
        self.rates: Input[NodeRates] = Unseen(*self.missing)  # of all nodes, when prices were looked up last

    def take(self, turn: PricesTurn) -> None:
        if turn.seen is None:
            return
        self._alike.clear()
        self._bills.clear()
        self.committed = turn.seen.committed
        match turn.seen.book:
            case Known(book):
                self._book, self.missing = book, ()
            case Unseen(why):
                self.missing = (f"prices are not known: {why}",)
        known = {facts.node for facts in turn.seen.nodes}
        self._facts = {name: each for name, each in self._facts.items() if name in known}
        self.rates = self._find_rates(turn) if self._book else Unseen(*self.missing)
        self._looked.set()

    def _find_rates(self, turn: PricesTurn) -> Input[NodeRates]:
        assert turn.seen is not None
        assert self._book is not None
        found = ((facts.node, self.find(facts)) for facts in turn.seen.nodes)
        by_node = {node: Decimal(priced.rate.nano) / UNIT for node, priced in found if priced is not None}
        return Known(NodeRates(self._book.currency, by_node))

    def find_rates(self, nodes: Iterable[cluster.Node]) -> Input[NodeRates]:
        """Of these, too, which may have joined since prices were looked up."""
        if not isinstance(self.rates, Known):
            return self.rates
        known = self.rates.value
        found = {node.name: self.find(self._read(node)) for node in nodes if node.name not in known.by_node}
        fresh = {name: Decimal(priced.rate.nano) / UNIT for name, priced in found.items() if priced is not None}
        return Known(NodeRates(known.currency, {**known.by_node, **fresh})) if fresh else self.rates

    async def ready(self) -> None:
        """Prices were looked up, whether there are any or not."""
        await self._looked.wait()

    def bill(self, node: cluster.Node) -> NodeBill:
        """Every node is asked about every minute."""
        known = self._bills.get(node.name)
        if known is None or known[0] is not node:
            known = self._bills[node.name] = node, self._make_bill(node)
        return known[1]

    def _make_bill(self, node: cluster.Node) -> NodeBill:
        facts = self._read(node)
        found = self.find(facts)
        row = found.row if found else None
        if found is not None:
            self._named[found.rate.price_id] = found.row
        return NodeBill(
            rate=found.rate if found else None, gpus=facts.gpus or (row.gpus if row else None),
            since=None if row is None or row.valid_from is None else int(row.valid_from),
            instance_type=facts.instance_type, region=facts.region, capacity_type=facts.capacity_type,
            gpu_model=facts.gpu_model,
        )

    def find(self, facts: NodeFacts) -> Priced | None:
        """What one GPU of such a machine costs now. Machines that are alike are looked up once."""
        if self._book is None:
            return None
        kind = facts if facts.annotated is not None else msgspec.structs.replace(facts, node="")
        if kind not in self._alike:
            self._alike[kind] = self._book.find(facts, self._clock())
        return self._alike[kind]

    def list_booked(self, ids: Collection[str]) -> tuple[BookedPrice, ...]:
        rows = ((each, self._named[each]) for each in sorted(ids) if each in self._named)
        return tuple(msgspec.structs.replace(price_table.book(row), price_id=each) for each, row in rows)

    def find_on_demand(self, key: CostKey, at: Second) -> Nano | None:
        """What the same GPU costs on demand, as far as that is known and no estimate."""
        if self._book is None:
            return None
        _, seen = self._facts.get(key.node, (None, None))
        facts = seen or NodeFacts(
            node=key.node, region=key.region, instance_type=key.instance_type, gpu_model=key.gpu_model,
            capacity_type=CapacityType.spot,
        )
        found = self._book.find_on_demand(facts, float(at))
        return None if found is None else found.nano

    def find_reserved(self, of: Commitment, at: Second) -> ReservedPrice | None:
        """What a GPU of a reserved machine cost then; None: how many it has is not known."""
        if self._book is None:
            return None
        alike = (facts for _, facts in self._facts.values() if _is_alike(facts, of))
        seen = next(alike, None)
        facts = NodeFacts(
            node="", provider=of.provider, region=of.region, instance_type=of.instance_type,
            capacity_type=CapacityType.reserved, gpus=seen.gpus if seen else None,
            gpu_model=seen.gpu_model if seen else "", cpu=seen.cpu if seen else None,
            memory=seen.memory if seen else None,
        )
        found = self._book.find(facts, float(at))
        gpus = facts.gpus or (found.row.gpus if found else None)
        if gpus is None:
            return None
        if found is not None:
            self._named[found.rate.price_id] = found.row
        return ReservedPrice(
            gpus=gpus, gpu_model=facts.gpu_model or (found.row.gpu_model if found else ""),
            rate=found.rate if found else None,
        )

    def _read(self, node: cluster.Node) -> NodeFacts:
        known = self._facts.get(node.name)
        if known is None or known[0] is not node:
            known = self._facts[node.name] = node, node_facts.read(node, region=self._region)
        return known[1]


def _is_alike(facts: NodeFacts, of: Commitment) -> bool:
    return facts.gpus is not None and price_table.fold_type(facts.instance_type) == price_table.fold_type(
        of.instance_type
    )
