"""What the writer remembers of the database: numbers for what intervals name, and the intervals of the last days.

In: nouns, within the transaction that will use their numbers. Out: numbers; each is written once and stays.
Invariant: what is remembered stands in the database. So all of it is forgotten when a transaction fails, when another
writer had the ledger in between, and when the database is not as we left it: a replica that lagged, a backup. Each
transaction leaves a stamp of its own, by which that is known.
"""

import hashlib
import itertools
import operator
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias, TypeVar

import msgspec

from fallow.account.ledger_rows import IntervalRow, NumberColumns
from fallow.account.ledger_stored import StoredMeta, read_listed
from fallow.account.schema import questions
from fallow.clients import errors
from fallow.clients.database.session import SqlRow, SqlSession
from fallow.model import cost
from fallow.model.cost import BookedPrice, CostKey, Dims, Interval, Second, Slice

N = TypeVar("N")

_MOST_REMEMBERED: Final = 500_000
_MOST_PLACES: Final = 50_000
Place: TypeAlias = tuple[int, int]  # a day and a part
_part_of, _key_of = operator.attrgetter("gpu", "slot"), operator.attrgetter("key")
_pod_of, _price_of = operator.attrgetter("pod_uid"), operator.attrgetter("price_id")
_SPELT: Final = {one: str(one.value) for one in (*cost.CapacityType, *cost.Sharing)}


class LedgerWentBack(errors.BadAnswer):
    """The database is older than we left it, or lacks what waited for it: whoever keeps the books reads them anew."""


class NumberBook:
    """What one writer knows. `waiting`: the name of the spool that waits with us, and the least epoch in it. `since`:
    another has kept the ledger in this epoch, and what we made in an earlier one is no longer true."""

    def __init__(self) -> None:
        self._begin()
        self.waiting: tuple[str, int | None] = ("", None)
        self.since = 0
        self.places: dict[Place, dict[Second, IntervalRow]] = {}
        self.parts: dict[tuple[str, str], int] = {}
        self.pods: dict[str, int] = {}
        self.keys: dict[CostKey, int] = {}
        self.dims: dict[Dims, int] = {}
        self.prices: dict[str, int] = {}

    def _begin(self) -> None:
        self._name, self._count = secrets.token_hex(8), 0
        self._stamps = list[str]()  # one of them stands in the database, if nobody wrote since
        self._epoch = self._signed = 0  # of what was written, and of what is tried

    def heed(self, before: StoredMeta) -> None:
        """What stands in the database as a transaction begins. Raises LedgerWentBack, once."""
        if before.writer in self._stamps:
            return
        self.forget()
        stamp, _, spool = before.writer.partition("/")
        if not spool or spool != self.waiting[0]:
            self.since = before.meta.epoch
        if before.meta.epoch < self._epoch or stamp.startswith(f"{self._name}:"):
            self._begin()
            raise LedgerWentBack("the ledger is older than we left it: what was written last is gone from it")

    def sign(self, epoch: int) -> str:
        """A stamp that no other transaction has. It names the spool that waits with us, so that who takes the ledger
        after us knows that nobody else had it since that began to wait."""
        spool, oldest = self.waiting
        is_true = oldest is None or oldest >= self.since
        self._count += 1
        self._signed = epoch
        self._stamps.append(f"{self._name}:{self._count}/{spool if is_true else ''}")
        return self._stamps[-1]

    def confirm(self) -> None:
        """It is written."""
        self._epoch, self._stamps = self._signed, self._stamps[-1:]

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


def find_writer(on: SqlSession) -> str:
    """Who wrote last, without which transaction it was."""
    ((stamp,),) = on.rows(questions.WRITER)
    return str(stamp).partition(":")[0]


def number(
    on: SqlSession, book: NumberBook, intervals: Sequence[Interval], shared: Collection[str] = ()
) -> NumberColumns:
    """Of each its part, key, pod and price; what has no number yet gets one. `shared`: uids of pods that we made share
    a GPU."""
    whats = [one.slice for one in intervals]
    parts, keys = list(map(_part_of, whats)), list(map(_key_of, whats))
    pods, prices = list(map(_pod_of, whats)), list(map(_price_of, whats))
    number_prices(on, book, prices, ())
    return NumberColumns(
        _look_up(book.parts, parts, lambda: number_parts(on, book, parts)),
        _look_up(book.keys, keys, lambda: number_keys(on, book, keys)),
        _look_up(book.pods, pods, lambda: number_pods(on, book, whats, shared)),
        map(book.prices.get, prices),
    )


def _look_up(numbers: Mapping[N, int], wanted: Sequence[N], number_new: Callable[[], None]) -> Iterable[int]:
    """Once for each, unless some have none yet: to find thousands of keys takes as long as to write them."""
    found: list[Any] = list(map(numbers.get, wanted))
    if None in found:
        number_new()
        found = list(map(numbers.__getitem__, wanted))
    return found


def number_parts(on: SqlSession, book: NumberBook, wanted: Iterable[tuple[str, str]]) -> None:
    """An exporter may say anything of a GPU: a name that a database does not take is booked as one that it does."""
    fresh = {
        part: (cost.as_booked(part[0]), cost.as_booked(part[1]))
        for part in itertools.filterfalse(book.parts.__contains__, wanted)
    }
    if not fresh:
        return
    booked = dict.fromkeys(fresh.values())
    for gpu, slot, number in read_listed(on, questions.FIND_PARTS, list({gpu for gpu, _ in booked})):
        book.parts[gpu, slot] = number
    rest = [one for one in booked if one not in book.parts]
    _add(on, "cost_parts", questions.PARTS, book.parts, rest, lambda part: part)
    book.parts.update((part, book.parts[as_booked]) for part, as_booked in fresh.items())


def number_pods(on: SqlSession, book: NumberBook, whats: Iterable[Slice], shared: Collection[str]) -> None:
    names = {what.pod_uid: what.pod_name for what in whats}
    fresh = [uid for uid in names if uid not in book.pods]
    book.pods.update(read_listed(on, questions.FIND_PODS, fresh))
    rest = [uid for uid in fresh if uid not in book.pods]
    _add(on, "cost_pods", questions.PODS, book.pods, rest, lambda uid: (uid, names[uid], int(uid in shared)))


def number_keys(on: SqlSession, book: NumberBook, wanted: Iterable[CostKey]) -> None:
    fresh = {_digest(key): key for key in set(itertools.filterfalse(book.keys.__contains__, wanted))}
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
        key: msgspec.structs.replace(key, dims=_make_coarser(key.dims)) for key in rest if key.dims not in book.dims
    }
    if booked:
        number_keys(on, book, booked.values())
        book.keys.update((key, book.keys[as_other]) for key, as_other in booked.items())
    _add(
        on, "cost_keys", questions.KEYS, book.keys, [key for key in rest if key not in book.keys],
        lambda key: (rest[key], *_fields(key), book.dims[key.dims]),
    )


def number_prices(on: SqlSession, book: NumberBook, wanted: Iterable[str], rows: Sequence[BookedPrice]) -> None:
    """A price that was booked stays as it was; when it was last looked up, and when it ended, is told anew."""
    known = {row.price_id: row for row in rows}
    fresh = [one for one in dict.fromkeys((*known, *wanted)) if one and one not in book.prices]
    book.prices.update(read_listed(on, questions.FIND_PRICES, fresh))
    for row in rows:
        if row.retrieved_at is not None and row.price_id in book.prices:
            number = book.prices[row.price_id]
            on.run(questions.RENEW_PRICE, (row.retrieved_at, row.valid_to, number, row.retrieved_at))
    rest = [one for one in fresh if one not in book.prices]
    _add(
        on, "cost_prices", questions.PRICES, book.prices, rest,
        lambda one: msgspec.structs.astuple(known.get(one) or BookedPrice(price_id=one)),
    )


def _number_dims(on: SqlSession, book: NumberBook, wanted: Sequence[Dims]) -> None:
    """Those beyond the most there may be get none, but for what they are folded to: as many softened ones again."""
    fresh = {_digest(dims): dims for dims in wanted if dims not in book.dims}
    if not fresh:
        return
    for digest, number in read_listed(on, questions.FIND_DIMS, list(fresh)):
        book.dims[fresh[digest]] = number
    rest = {dims: digest for digest, dims in fresh.items() if dims not in book.dims}
    ((there,),) = on.rows(questions.COUNT_DIMS)
    allowed = list[Dims]()
    for dims in rest:
        room = cost.MOST_LABEL_SETS * (2 if dims == cost.soften(dims) else 1) - there - len(allowed)
        if room > 0 or dims == cost.fold(dims):
            allowed.append(dims)
    _add(
        on, "cost_dims", questions.DIMS, book.dims, allowed,
        lambda dims: (
            rest[dims], dims.team, dims.project, dims.experiment_id, dims.cost_center, dims.user,
            msgspec.json.encode(dict(dims.labels)).decode(),
        ),
    )


def _make_coarser(dims: Dims) -> Dims:
    softened = cost.soften(dims)
    return cost.fold(dims) if softened == dims else softened


def _fields(key: CostKey) -> SqlRow:
    return tuple(map(cost.as_booked, (
        key.cluster, key.node, key.instance_type, key.region, _SPELT[key.capacity_type], key.gpu_model,
        _SPELT[key.sharing], key.namespace, key.owner_kind, key.owner_name, key.workload_type,
    )))


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
