"""What an hour of some GPUs costs: the price of the whole GPU, times the share of it that is held. The one rule.

In: what a workload holds (Holdings, by model), list prices. Out: a Bill: an amount, and what has no price. Where books
are kept a GPU costs what its node costs by the price book, and list prices are not asked.
Invariant: a part of a GPU costs its share (shares.py), neither nothing nor all of it. What is on a node that is not
seen, claimed by name, shared by nobody says how many, or of a model that is not in the book has no price; it is never
guessed.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal

import msgspec

from fallow import names
from fallow.model import cluster, gpus, price_book, shares
from fallow.model.cost import NodeRates
from fallow.model.seen import ABSENT, Input, Known, Unseen


class ModelHolding(msgspec.Struct, frozen=True):
    """GPUs of one model. `model`: "" = not known. `gpus`: physical ones; `pieces`: as how many they are held. `price`:
    of a whole one by the nodes they are on, in `currency`; unseen: one of them has none; absent: nobody keeps books."""

    model: str
    gpus: float
    pieces: int
    price: Input[Decimal] = ABSENT
    currency: str = ""


class Bill(msgspec.Struct, frozen=True):
    """What an hour costs, as far as that is known; `priced`: of how many pieces it is, and of which it is not."""

    amount: Decimal = Decimal(0)
    priced: int = 0
    unpriced: tuple[ModelHolding, ...] = ()
    currency: str = price_book.LIST_CURRENCY
    is_list: bool = True  # by list prices, because nobody keeps books

    @property
    def per_hour(self) -> float | None:
        """None: it is not known of all of them, or there are none."""
        return None if self.unpriced or not self.priced else round(float(self.amount), 4)


def hold(
    workload: cluster.Workload, seen: cluster.Snapshot, measured: Mapping[int, Sequence[str]]
) -> tuple[ModelHolding, ...]:
    """All that it holds. `measured`: by pod, the models that its series name; where they do not, its node's label."""
    found: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for index in workload.pods:
        pod, models = seen.pods[index], measured.get(index, ())
        node = seen.nodes.known.get(pod.node)
        for number, unit in enumerate(shares.held_by(pod, node)):
            named = models[number] if number < len(models) else ""
            is_known = node is not None and _is_share_known(unit, node)
            model = gpus.normalise(named or node.gpu_product or "") if node is not None and is_known else ""
            found[model].append((unit.share, pod.node if is_known else ""))
    return tuple(_add_up(model, some, seen.rates) for model, some in sorted(found.items()))


def _is_share_known(unit: shares.PhysicalUnit, node: cluster.Node) -> bool:
    """Of a claim nobody sees whether it is a part, or which one; of a GPU that is shared, by how many."""
    return unit.resource != names.DRA_DRIVER and not (
        unit.share == 1.0 and (node.shared or unit.resource == names.GPU_SHARED)
    )


def _add_up(model: str, held: Sequence[tuple[float, str]], rates: Input[NodeRates]) -> ModelHolding:
    """`held`: shares, and on which node each is; "" = that does not help."""
    made = ModelHolding(model, sum(share for share, _ in held), len(held))
    match rates:
        case Known(known):
            prices = [known.by_node.get(node) for _, node in held]
            return msgspec.structs.replace(made, price=_find_mean(held, prices), currency=known.currency)
        case Unseen():
            return msgspec.structs.replace(made, price=rates)
    return made


def _find_mean(held: Sequence[tuple[float, str]], prices: Sequence[Decimal | None]) -> Input[Decimal]:
    shares_of = [Decimal(str(round(share, 6))) for share, _ in held]
    known = [price * share for price, share in zip(prices, shares_of, strict=True) if price is not None]
    if len(known) < len(held) or not sum(shares_of):
        return Unseen("a node has no price")
    return Known(sum(known, Decimal(0)) / sum(shares_of, Decimal(0)))


def take_part(held: Sequence[ModelHolding], counts: Mapping[str, int]) -> tuple[ModelHolding, ...]:
    """So many pieces of it. `counts`: by model, as anybody spells it; of one model it is enough to know how many."""
    if len(held) == 1:
        return (_take(held[0], sum(counts.values())),)
    wanted: dict[str, int] = defaultdict(int)
    for model, count in counts.items():
        wanted[gpus.normalise(model)] += count
    found = [_take(each, wanted.pop(each.model)) for each in held if each.model in wanted]
    return (*found, *(ModelHolding("", 0.0, count) for count in wanted.values() if count))


def _take(held: ModelHolding, count: int) -> ModelHolding:
    part = min(1.0, count / held.pieces) if held.pieces else 0.0
    return msgspec.structs.replace(held, gpus=held.gpus * part, pieces=count)


def make(held: Iterable[ModelHolding], book: price_book.ModelPrices) -> Bill:
    amount, priced, unpriced, currency = Decimal(0), 0, list[ModelHolding](), ""
    for each in (each for each in held if each.pieces):
        price, currency = _find_price(each, book), currency or each.currency
        if price is None:
            unpriced.append(each)
        else:
            amount, priced = amount + price * Decimal(str(round(each.gpus, 6))), priced + each.pieces
    return Bill(amount, priced, tuple(unpriced), currency or price_book.LIST_CURRENCY, is_list=not currency)


def _find_price(held: ModelHolding, book: price_book.ModelPrices) -> Decimal | None:
    match held.price:
        case Known(price):
            return price
        case Unseen():
            return None
    return price_book.find_by_model(held.model, book) if held.model else None


def split(held: Sequence[ModelHolding]) -> tuple[tuple[str, float], ...]:
    """Of which models all of it is, and which part each; one part of "" where that is not known."""
    physical = sum(each.gpus for each in held)
    return tuple((each.model, each.gpus / physical) for each in held) if physical else (("", 1.0),)
