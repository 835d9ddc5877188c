"""What a GPU costs an hour: the one rule of the whole product.

In: what a node is (model/node_facts.py) or just the name of a GPU model, and an instant. Out: a Rate in nano units with
the row it is from, or None. Of the places where a price may stand the first that has one counts: on the node itself;
the operator's own table; what was fetched from the cloud; the shipped table, for this machine in this region; the same
of another region; any row of this GPU model. The last two are `estimated`.
Invariant: a model that no row names has no price, and never that of another one; a spot node has no price of another
kind; exact arithmetic, rounded once, half to even.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from enum import StrEnum
from fractions import Fraction
from typing import Final, TypeAlias

import msgspec

from fallow import names
from fallow.model import gpus, price_table
from fallow.model.cost import ESTIMATE, MOST_RATE, UNIT, CapacityType, PriceUnit, Rate
from fallow.model.node_facts import NodeFacts
from fallow.model.price_table import USD, PriceRow
from fallow.model.units import DAY, Instant, Seconds

MAX_AGE: Final[Seconds] = 90 * DAY


class NodeSplit(StrEnum):
    """Which part of a node's price is its GPUs': all of it, 0.95, or by the prices of its components."""

    gpu = "gpu"
    ratio = "ratio"
    opencost = "opencost"


_RATIO: Final = Fraction(95, 100)
# What a core, a GiB and a GPU cost an hour by OpenCost's defaults: CPU, RAM and GPU of configs/default.json in
# github.com/opencost/opencost at commit 0d1f69cc975b293bfc8e4d26e71880c8bddb8895 ("Default prices based on GCP
# us-central1"). Only their ratio counts here: they are scaled to what the node costs.
_CORE, _GIB, _GPU = (Fraction(text) for text in ("0.031611", "0.004237", "0.95"))


class Origin(StrEnum):
    """Where a price was found; in this order one is looked for."""

    annotation = "annotation"
    given = "configmap"
    fetched = "fetched"
    shipped = "shipped"
    other_region = "shipped, other region"
    model = "GPU model"


_ESTIMATES: Final = (Origin.other_region, Origin.model)


Rows: TypeAlias = Sequence[PriceRow]


class Priced(msgspec.Struct, frozen=True):
    rate: Rate
    row: PriceRow
    origin: Origin


class PriceBook:
    """All prices that are known. `given`: the operator's own; `shipped` None: what comes with the product."""

    def __init__(
        self, *, given: Iterable[PriceRow] = (), fetched: Iterable[PriceRow] = (),
        shipped: Iterable[PriceRow] | None = None, currency: str = USD, max_age: Seconds = MAX_AGE,
        split: NodeSplit = NodeSplit.gpu,
    ) -> None:
        self.currency, self.max_age, self.split = currency, max_age, split
        listed = price_table.shipped().rows if shipped is None else shipped
        self.given, self.fetched, self.shipped = (
            tuple(row for row in rows if row.currency == currency) for rows in (given, fetched, listed)
        )
        self._given, self._fetched, self._shipped = map(_index_types, (self.given, self.fetched, self.shipped))
        self._given_models = _index_models(row for row in self.given if not row.instance_type)
        self._models = _index_models((*self.fetched, *self.shipped))

    def find(self, facts: NodeFacts, at: Instant) -> Priced | None:
        """What one whole GPU of this node costs; None: nobody knows."""
        places: tuple[tuple[Origin, Callable[[NodeFacts, Instant], Iterable[PriceRow]]], ...] = (
            (Origin.annotation, self._on_node), (Origin.given, self._in_given), (Origin.fetched, self._in_fetched),
            (Origin.shipped, self._in_region), (Origin.other_region, self._anywhere), (Origin.model, self._by_model),
        )
        for origin, look in places:
            for row in look(facts, at):
                nano = self._to_nano(row, facts)
                if nano is not None and nano <= MOST_RATE:  # the ledger takes no more: better no price than no hours
                    return Priced(self._rate(nano, row, facts, at, origin), row, origin)
        return None

    def find_rate(self, facts: NodeFacts, at: Instant) -> Rate | None:
        found = self.find(facts, at)
        return None if found is None else found.rate

    def find_on_demand(self, facts: NodeFacts, at: Instant) -> Rate | None:
        """What the same machine costs on demand in the same region, as far as that is known and no estimate: only
        against such a price may a spot node be said to save anything."""
        bought = msgspec.structs.replace(facts, capacity_type=CapacityType.on_demand, annotated=None)
        found = self.find_rate(bought, at)
        return None if found is None or found.estimated else found

    # ---- where it may stand ----

    def _on_node(self, facts: NodeFacts, at: Instant) -> Iterable[PriceRow]:
        if facts.annotated is None or why_refused(facts, self.currency):
            return
        yield PriceRow(
            provider=facts.provider, region=facts.region, zone=facts.zone, instance_type=facts.instance_type,
            gpu_model=facts.gpu_model, gpus=facts.gpus, capacity_type=facts.capacity_type, currency=self.currency,
            price=price_table.read_price(facts.annotated.strip(), self.currency),
            source=f"annotation {names.PRICE_PER_HOUR} of node {facts.node}", retrieved_at=at,
        )

    def _in_given(self, facts: NodeFacts, at: Instant) -> Iterable[PriceRow]:
        machines, models = self._given.get(_type_of(facts), ()), self._given_models.get(facts.gpu_model, ())
        return _best([row for row in (*machines, *models) if _is_here(row, facts)], facts, at)

    def _in_fetched(self, facts: NodeFacts, at: Instant) -> Iterable[PriceRow]:
        return _best([row for row in self._fetched.get(_type_of(facts), ()) if _is_here(row, facts)], facts, at)

    def _in_region(self, facts: NodeFacts, at: Instant) -> Iterable[PriceRow]:
        rows = self._shipped.get(_type_of(facts), ())
        return _best([row for row in rows if row.region and _is_here(row, facts)], facts, at)

    def _anywhere(self, facts: NodeFacts, at: Instant) -> Iterable[PriceRow]:
        """Of several the lowest: too little is claimed rather than too much."""
        rows = (row for row in self._shipped.get(_type_of(facts), ()) if _fits(row, facts, at))
        return sorted(rows, key=lambda row: row.price)[:1]

    def _by_model(self, facts: NodeFacts, at: Instant) -> Iterable[PriceRow]:
        """Of its own cloud, if any there has such GPUs; for a spot node of no other, for those prices have nothing to
        do with each other. Of several the lowest."""
        rows = [row for row in self._models.get(facts.gpu_model, ()) if _has_capacity(row, facts) and row.holds_at(at)]
        own = [row for row in rows if facts.provider and row.provider == facts.provider]
        is_spot = facts.capacity_type is CapacityType.spot
        return _cheapest(own if own or is_spot else rows)

    # ---- what it comes to ----

    def _to_nano(self, row: PriceRow, facts: NodeFacts) -> int | None:
        if row.unit is PriceUnit.gpu_hour:
            return round(Fraction(row.price) * UNIT)
        is_own = row.instance_type and price_table.fold_type(row.instance_type) == _type_of(facts)
        count = (facts.gpus or row.gpus) if is_own or not row.instance_type else row.gpus
        part = self._find_part(facts, count)
        return None if not count or part is None else round(Fraction(row.price) * part / count * UNIT)

    def _find_part(self, facts: NodeFacts, count: int | None) -> Fraction | None:
        """None: the machine's cores and memory are not known."""
        match self.split:
            case NodeSplit.gpu:
                return Fraction(1)
            case NodeSplit.ratio:
                return _RATIO
            case NodeSplit.opencost if facts.cpu and facts.memory and count:
                of_gpus = count * _GPU
                return of_gpus / (of_gpus + Fraction(facts.cpu, 1000) * _CORE + Fraction(facts.memory, 1024) * _GIB)
        return None

    def _rate(self, nano: int, row: PriceRow, facts: NodeFacts, at: Instant, origin: Origin) -> Rate:
        is_given = origin in (Origin.annotation, Origin.given)
        is_guess = row.capacity_type is not CapacityType.unknown and facts.capacity_type is CapacityType.unknown
        is_estimate = origin in _ESTIMATES or (is_guess and not is_given)
        price_id = f"{row.id}{ESTIMATE if is_estimate else ''}"
        return Rate(nano, price_id, estimated=is_estimate, stale=self.is_stale(row, at))

    def is_stale(self, row: PriceRow, at: Instant) -> bool:
        return at - row.retrieved_at > self.max_age


def why_refused(facts: NodeFacts, currency: str) -> str:
    """Why the price that stands on the node is not heeded; "" where it is, or there is none."""
    try:
        if facts.annotated is not None:
            price_table.read_price(facts.annotated.strip(), currency)
    except ValueError as problem:
        return f"annotation {names.PRICE_PER_HOUR}: {problem}"
    return ""


def _index_types(rows: Iterable[PriceRow]) -> Mapping[str, Sequence[PriceRow]]:
    found = defaultdict[str, list[PriceRow]](list)
    for row in rows:
        if row.instance_type:
            found[price_table.fold_type(row.instance_type)].append(row)
    return dict(found)


def _index_models(rows: Iterable[PriceRow]) -> Mapping[str, Sequence[PriceRow]]:
    found = defaultdict[str, list[PriceRow]](list)
    for row in rows:
        if row.gpu_model:
            found[row.gpu_model].append(row)
    return dict(found)


def _type_of(facts: NodeFacts) -> str:
    return price_table.fold_type(facts.instance_type)


def _has_capacity(row: PriceRow, facts: NodeFacts) -> bool:
    """Of whom nobody knows how it was bought, the list price is assumed, and said to be an estimate."""
    wanted = (CapacityType.unknown, facts.capacity_type)
    is_list = facts.capacity_type is CapacityType.unknown and row.capacity_type is CapacityType.on_demand
    return row.capacity_type in wanted or is_list


def _is_here(row: PriceRow, facts: NodeFacts) -> bool:
    return row.region in ("", facts.region) and row.zone in ("", facts.zone)


def _fits(row: PriceRow, facts: NodeFacts, at: Instant) -> bool:
    """A machine of some clouds has whatever GPUs were put into it: of another model, or of fewer, it is another one."""
    is_model = not (row.gpu_model and facts.gpu_model) or row.gpu_model == facts.gpu_model
    has_room = not (row.instance_type and row.gpus and facts.gpus) or row.gpus >= facts.gpus
    is_cloud = not (row.provider and facts.provider) or row.provider == facts.provider
    return is_model and has_room and is_cloud and _has_capacity(row, facts) and row.holds_at(at)


def _best(rows: Iterable[PriceRow], facts: NodeFacts, at: Instant) -> Sequence[PriceRow]:
    """The one that says most exactly what it is about; of two alike the newer."""
    def rank(row: PriceRow) -> tuple[object, ...]:
        is_same = row.gpus is not None and row.gpus == facts.gpus
        is_bought = row.capacity_type is not CapacityType.unknown
        place, what = (row.zone != "", row.region != ""), (row.provider != "", row.gpu_model != "")
        return (row.instance_type != "", *place, is_bought, is_same, *what, row.valid_from or 0.0, row.retrieved_at)

    return sorted((row for row in rows if _fits(row, facts, at)), key=rank, reverse=True)[:1]


def _cheapest(rows: Iterable[PriceRow]) -> Sequence[PriceRow]:
    known = [(each, row) for row in rows if (each := row.per_gpu) is not None]
    return [min(known, key=lambda pair: pair[0])[1]] if known else []


# ---- by the model alone ---------------------------------------------------------------------------------------------


ModelPrices: TypeAlias = Mapping[str, Decimal]  # of a GPU-hour, by the name that gpus.normalise gives


def list_models(rows: Iterable[PriceRow]) -> ModelPrices:
    """What a GPU of each model costs on demand by the book, where nothing else is known of its node: an estimate."""
    bought = (row for row in rows if row.capacity_type is CapacityType.on_demand)
    found = {model: _cheapest(each) for model, each in _index_models(bought).items()}
    return {model: price for model, [*row] in found.items() if row and (price := row[0].per_gpu) is not None}


LIST: Final = list_models(price_table.shipped().rows)
LIST_CURRENCY: Final = USD


def find_by_model(model: str, book: ModelPrices = LIST) -> Decimal | None:
    return book.get(gpus.normalise(model))


def read_prices(texts: Iterable[str]) -> ModelPrices:
    """Those that were given as MODEL=DOLLARS; ValueError names the first that is none."""
    return dict(map(_read_price, texts))


def _read_price(text: str) -> tuple[str, Decimal]:
    model, _, amount = text.partition("=")
    try:
        if not model.strip():
            raise ValueError
        return gpus.normalise(model), price_table.read_price(amount.strip(), USD)
    except ValueError:
        raise ValueError(f"{text!r} is not MODEL=DOLLARS such as H100-80GB-HBM3=2.99") from None
