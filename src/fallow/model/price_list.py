"""Which price holds for which machines, from where, how old, and what is wrong with it: for people and for metrics.

In: the book, what the nodes are, what is in quarantine. Out: a PriceLine for each kind of machine, the unpriced first;
ages by cloud and capacity type. Nothing here decides a price: that is the book's.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal

import msgspec

from fallow.model import price_book
from fallow.model.cost import UNIT, CapacityType
from fallow.model.node_facts import NodeFacts
from fallow.model.price_book import Origin, PriceBook, Priced
from fallow.model.price_changes import SuspiciousPrice
from fallow.model.price_table import fold_type
from fallow.model.units import Instant, Seconds


class PriceLine(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes that are alike. `price`: of one GPU an hour; None = unpriced, and `because` says why. `notes`: what else is
    to be said, such as a price on a node that was refused. `age` None: it stands on the node."""

    instance_type: str
    gpu_model: str
    is_model_known: bool
    provider: str
    region: str
    zone: str
    capacity_type: CapacityType
    nodes: int
    gpus: int | None  # of all of them; None = not known of all
    price: Decimal | None = None
    currency: str = ""
    origin: Origin | None = None
    source: str = ""
    age: Seconds | None = None
    is_estimated: bool = False
    is_stale: bool = False
    quarantined: tuple[str, ...] = ()
    because: str = ""
    notes: tuple[str, ...] = ()


def list_prices(
    book: PriceBook, nodes: Iterable[NodeFacts], now: Instant, suspicious: Sequence[SuspiciousPrice] = ()
) -> tuple[PriceLine, ...]:
    alike = defaultdict[tuple[NodeFacts, str], list[NodeFacts]](list)
    for facts in nodes:
        found = book.find(facts, now)
        kind = msgspec.structs.replace(facts, node="", gpus=None, cpu=None, memory=None, annotated=None)
        alike[kind, "" if found is None else f"{found.rate.nano} {found.origin}"].append(facts)
    lines = [_make_line(book, each, now, suspicious) for each in alike.values()]
    return tuple(sorted(lines, key=lambda line: (
        line.price is not None, line.instance_type, line.gpu_model, line.region, line.zone, line.capacity_type
    )))


def _make_line(
    book: PriceBook, alike: Sequence[NodeFacts], now: Instant, suspicious: Sequence[SuspiciousPrice]
) -> PriceLine:
    one = alike[0]
    counts = [facts.gpus for facts in alike]
    refused = {price_book.why_refused(facts, book.currency): facts.node for facts in alike}
    line = PriceLine(
        instance_type=one.instance_type, gpu_model=one.gpu_model, is_model_known=one.is_model_known,
        provider=one.provider, region=one.region, zone=one.zone, capacity_type=one.capacity_type, nodes=len(alike),
        gpus=None if None in counts else sum(filter(None, counts)), currency=book.currency,
        quarantined=tuple(each.because for each in suspicious if _is_about(each, one)),
        notes=tuple(f"{because} (node {node})" for because, node in refused.items() if because),
    )
    found = book.find(one, now)
    if found is None:
        return msgspec.structs.replace(line, because=_why_unpriced(one))
    return msgspec.structs.replace(
        line, price=Decimal(found.rate.nano) / UNIT, origin=found.origin, source=found.row.source,
        age=_find_age(found, now), is_estimated=found.rate.estimated, is_stale=found.rate.stale,
    )


def _why_unpriced(facts: NodeFacts) -> str:
    if facts.gpus is None and facts.instance_type:
        return "how many GPUs it has is not known, or no row has its machine or its GPU model"
    if not facts.gpu_model:
        return "its GPU model is not known, and no row has its machine"
    if not facts.is_model_known:
        return f"{facts.gpu_model} is a GPU model that nobody here knows, and no row has its machine"
    return f"no row has {facts.instance_type or 'its machine'} ({facts.capacity_type}), and none {facts.gpu_model}"


def _is_about(each: SuspiciousPrice, facts: NodeFacts) -> bool:
    row = each.row
    is_same = fold_type(row.instance_type) == fold_type(facts.instance_type)
    return is_same and row.capacity_type is facts.capacity_type and row.region == facts.region and row.zone in (
        "", facts.zone
    )


def _find_age(found: Priced, now: Instant) -> Seconds | None:
    return None if found.origin is Origin.annotation else max(0.0, now - found.row.retrieved_at)


def list_ages(book: PriceBook, nodes: Iterable[NodeFacts], now: Instant) -> Mapping[tuple[str, str], Seconds]:
    """The oldest price that is in use, by cloud ("any" where the row names none) and capacity type."""
    ages = dict[tuple[str, str], Seconds]()
    for facts in nodes:
        found = book.find(facts, now)
        age = None if found is None else _find_age(found, now)
        if found is not None and age is not None:
            key = found.row.provider or "any", str(found.row.capacity_type)
            ages[key] = max(age, ages.get(key, 0.0))
    return ages
