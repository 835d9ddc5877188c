"""How old the prices are that are in use, for metrics.

In: the book, what the nodes are. Out: the oldest age by cloud and capacity type. Nothing here decides a price: that is
the book's.
"""

from collections.abc import Iterable, Mapping

from fallow.model.node_facts import NodeFacts
from fallow.model.price_book import Origin, PriceBook, Priced
from fallow.model.units import Instant, Seconds


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


def _find_age(found: Priced, now: Instant) -> Seconds | None:
    return None if found.origin is Origin.annotation else max(0.0, now - found.row.retrieved_at)
