"""What the writer remembers of the database: numbers for what intervals name, and the intervals of the last days.

In: nouns, within the transaction that will use their numbers. Out: numbers; each is written once and stays.
Invariant: what is remembered stands in the database. So all of it is forgotten when a transaction fails, and when
another writer had the ledger in between.
"""

import hashlib
import secrets
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, TypeAlias, TypeVar

import msgspec

from fallow.account.ledger_rows import IntervalRow, RowNumbers
from fallow.account.ledger_stored import read_listed
from fallow.account.schema import questions
from fallow.clients.database.session import SqlRow, SqlSession
from fallow.model import cost
from fallow.model.cost import BookedPrice, CostKey, Dims, Interval, Second, Slice

N = TypeVar("N")

_MOST_REMEMBERED: Final = 500_000
_MOST_PLACES: Final = 50_000
Place: TypeAlias = tuple[int, int]  # a day and a part


class NumberBook:
    """What one writer knows. `writer`: what it is called in the database, so that it knows whether it wrote last."""

    def __init__(self) -> None:
        self.writer = secrets.token_hex(8)
        self.places: dict[Place, dict[Second, IntervalRow]] = {}
        self.parts: dict[tuple[str, str], int] = {}
        self.pods: dict[str, int] = {}
        self.keys: dict[CostKey, int] = {}
        self.dims: dict[Dims, int] = {}
        self.prices: dict[str, int] = {}

    def forget(self) -> None:
        for each in (self.places, self.parts, self.pods, self.keys, self.dims, self.prices):
            each.clear()

    def shrink(self) -> None:
        """Before a transaction: it may grow without a bound. Of places those of the last two days are worth keeping."""
        if max(len(self.parts), len(self.pods), len(self.keys)) > _MOST_REMEMBERED:
            self.forget()
        if len(self.places) > _MOST_PLACES:
            newest = max(day for day, _ in self.places)
            for place in [one for one in self.places if one[0] < newest - 1]:
                del self.places[place]
        if len(self.places) > _MOST_REMEMBERED:
            self.places.clear()


def number(
    on: SqlSession, book: NumberBook, intervals: Sequence[Interval], shared: Collection[str] = ()
) -> list[RowNumbers]:
    """Of each its part, key, pod and price; what has no number yet gets one. `shared`: uids of pods that we made share
    a GPU."""
    found = [_known(book, one.slice) for one in intervals]
    if None in found:
        new = [one.slice for one, known in zip(intervals, found, strict=True) if known is None]
        number_prices(on, book, (what.price_id for what in new), ())
        number_parts(on, book, ((what.gpu, what.slot) for what in new))
        number_pods(on, book, {what.pod_uid: what.pod_name for what in new}, shared)
        number_keys(on, book, (what.key for what in new))
        found = [known or _known(book, one.slice) for one, known in zip(intervals, found, strict=True)]
    return [known for known in found if known is not None]


def _known(book: NumberBook, what: Slice) -> RowNumbers | None:
    part, key, pod = book.parts.get((what.gpu, what.slot)), book.keys.get(what.key), book.pods.get(what.pod_uid)
    price = book.prices.get(what.price_id) if what.price_id else None
    if part is None or key is None or pod is None or (what.price_id and price is None):
        return None
    return part, key, pod, price


def number_parts(on: SqlSession, book: NumberBook, wanted: Iterable[tuple[str, str]]) -> None:
    fresh = [one for one in dict.fromkeys(wanted) if one not in book.parts]
    if not fresh:
        return
    for gpu, slot, number in read_listed(on, questions.FIND_PARTS, list({gpu for gpu, _ in fresh})):
        book.parts[gpu, slot] = number
    rest = [one for one in fresh if one not in book.parts]
    _add(on, "cost_parts", questions.PARTS, book.parts, rest, lambda part: part)


def number_pods(on: SqlSession, book: NumberBook, names: dict[str, str], shared: Collection[str]) -> None:
    """By uid."""
    fresh = [uid for uid in names if uid not in book.pods]
    book.pods.update(read_listed(on, questions.FIND_PODS, fresh))
    rest = [uid for uid in fresh if uid not in book.pods]
    _add(on, "cost_pods", questions.PODS, book.pods, rest, lambda uid: (uid, names[uid], int(uid in shared)))


def number_keys(on: SqlSession, book: NumberBook, wanted: Iterable[CostKey]) -> None:
    fresh = {_digest(key): key for key in set(wanted) if key not in book.keys}
    if not fresh:
        return
    for digest, number in read_listed(on, questions.FIND_KEYS, list(fresh)):
        book.keys[fresh[digest]] = number
    rest = {key: digest for digest, key in sorted(fresh.items()) if key not in book.keys}
    if not rest:
        return
    _number_dims(on, book, [key.dims for key in rest])
    # Two keys that differ in label sets beyond the most there may be are one.
    booked = {
        key: msgspec.structs.replace(key, dims=cost.fold(key.dims)) for key in rest if key.dims not in book.dims
    }
    if booked:
        number_keys(on, book, booked.values())
        book.keys.update((key, book.keys[as_other]) for key, as_other in booked.items())
    _add(
        on, "cost_keys", questions.KEYS, book.keys, [key for key in rest if key not in book.keys],
        lambda key: (rest[key], *_fields(key), book.dims[key.dims]),
    )


def number_prices(on: SqlSession, book: NumberBook, wanted: Iterable[str], rows: Sequence[BookedPrice]) -> None:
    """A price that was booked stays as it was."""
    known = {row.price_id: row for row in rows}
    fresh = [one for one in dict.fromkeys((*known, *wanted)) if one and one not in book.prices]
    book.prices.update(read_listed(on, questions.FIND_PRICES, fresh))
    rest = [one for one in fresh if one not in book.prices]
    _add(
        on, "cost_prices", questions.PRICES, book.prices, rest,
        lambda one: msgspec.structs.astuple(known.get(one) or BookedPrice(price_id=one)),
    )


def _number_dims(on: SqlSession, book: NumberBook, wanted: Sequence[Dims]) -> None:
    """Those beyond the most there may be get none, but for what they are folded to."""
    fresh = {_digest(dims): dims for dims in wanted if dims not in book.dims}
    if not fresh:
        return
    for digest, number in read_listed(on, questions.FIND_DIMS, list(fresh)):
        book.dims[fresh[digest]] = number
    rest = {dims: digest for digest, dims in fresh.items() if dims not in book.dims}
    ((there,),) = on.rows(questions.COUNT_DIMS)
    folded = [dims for dims in rest if dims == cost.fold(dims)]
    allowed = [dims for dims in rest if dims not in folded][: max(0, cost.MOST_LABEL_SETS - there)]
    _add(
        on, "cost_dims", questions.DIMS, book.dims, [*allowed, *folded],
        lambda dims: (
            rest[dims], dims.team, dims.project, dims.experiment_id, dims.cost_center, dims.user,
            msgspec.json.encode(dict(dims.labels)).decode(),
        ),
    )


def _fields(key: CostKey) -> SqlRow:
    return (
        key.cluster, key.node, key.instance_type, key.region, key.capacity_type.value, key.gpu_model, key.sharing.value,
        key.namespace, key.owner_kind, key.owner_name, key.workload_type,
    )


def _digest(noun: CostKey | Dims) -> str:
    return hashlib.blake2b(msgspec.msgpack.encode(noun), digest_size=16).hexdigest()


def _add(
    on: SqlSession, table: str, columns: Sequence[str], numbers: dict[N, int], new: Sequence[N],
    describe: Callable[[N], SqlRow],
) -> None:
    """One writer at a time, so that the next number is ours."""
    if not new:
        return
    ((first,),) = on.rows(questions.NEXT.replace("{table}", table).replace("{column}", columns[0]))
    numbers.update(zip(new, range(first, first + len(new)), strict=True))
    on.add(table, columns, [(numbers[one], *describe(one)) for one in new])
