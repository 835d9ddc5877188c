"""What GPUs cost an hour, as an answer; None where nobody knows.

In: GPUs by their model, whether they are whole, a book of prices. Out: a Bill, and a Cost of it.
Invariant: a price is that of a whole GPU of one known model. What is cut by MIG, shared, claimed by name, or of a model
that is not in the book has none; it is never guessed.
"""

from collections.abc import Iterable, Mapping
from decimal import Decimal

import msgspec

from fallow import names
from fallow.doors import answers
from fallow.model import cluster, gpus, prices


class Cost(answers.Shape, frozen=True, kw_only=True):
    per_hour: float
    currency: str


class Unpriced(answers.Shape, frozen=True, kw_only=True):
    """GPUs without a price, and why. `model`: as --price takes it; None where a price would not help."""

    model: str | None
    because: str
    gpus: int


class Bill(msgspec.Struct, frozen=True):
    """What an hour of some GPUs costs, as far as that is known, and of which it is not. `priced`: how many it counts"""

    amount: Decimal = Decimal(0)
    priced: int = 0
    unpriced: tuple[Unpriced, ...] = ()


def cost(amount: Decimal) -> Cost:
    return Cost(per_hour=float(round(amount, 2)), currency=prices.CURRENCY)


def find_cost(bill: Bill) -> Cost | None:
    """None: it is not known of all of them, or there are none."""
    return None if bill.unpriced or not bill.priced else cost(bill.amount)


def make_bill(counts: Mapping[str, int], book: prices.Book, *, whole: bool) -> Bill:
    """`counts`: GPUs by model, those of no known one under ""."""
    found = {model: prices.find(model, book) if whole and model else None for model in counts}
    known = {model: price for model, price in found.items() if price is not None}
    return Bill(
        sum((price * counts[model] for model, price in known.items()), Decimal(0)),
        sum(counts[model] for model in known),
        tuple(_miss(model, count, whole) for model, count in counts.items() if count and model not in known),
    )


def _miss(model: str, count: int, whole: bool) -> Unpriced:
    if not whole:
        return Unpriced(model=None, because="parts of GPUs (MIG, shared, claimed)", gpus=count)
    if not model:
        return Unpriced(model=None, because="of a model that is not known", gpus=count)
    named = gpus.normalise(model)
    return Unpriced(model=named, because=f"of {named}", gpus=count)


def add_up(bills: Iterable[Bill]) -> Bill:
    every = list(bills)
    counts = dict[tuple[str | None, str], int]()
    for one in (one for bill in every for one in bill.unpriced):
        counts[one.model, one.because] = counts.get((one.model, one.because), 0) + one.gpus
    most_first = sorted(counts.items(), key=lambda each: (-each[1], each[0][1]))
    return Bill(
        sum((bill.amount for bill in every), Decimal(0)), sum(bill.priced for bill in every),
        tuple(Unpriced(model=model, because=because, gpus=count) for (model, because), count in most_first),
    )


def holds_whole(workload: cluster.Workload, seen: cluster.Snapshot) -> bool:
    return all(_is_whole(seen.pods[index], seen) for index in workload.pods)


def _is_whole(pod: cluster.Pod, seen: cluster.Snapshot) -> bool:
    node = seen.nodes.known.get(pod.node)
    is_cut = node is None or node.shared or "-MIG-" in (node.gpu_product or "")
    return not is_cut and pod.resources.keys() <= {names.GPU} and pod.claimed == 0
