"""Several clusters on one page: what each says of itself, and the sums.

In: of each cluster what its own pages say (the first page, the savings, the summary of costs), or why it is not seen.
Out: ClustersPage. Money of two currencies is never added; what a dry run would have given back is told apart.
Invariant: a cluster that is not seen, or whose measurements are old, has no figure and is in no sum: the page names it.
A figure that one of those that are seen does not know is not known of all.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Final, Literal

import msgspec

from fallow.doors import answers
from fallow.model import units
from fallow.model.units import DAY, Instant

SAVED_DAYS: Final = 30
_STALE_AFTER: Final = 3  # intervals
Sight = Literal["seen", "old", "away"]
# Of a stranger: a word no longer than one line has room for, a figure that can be added to others.
Word = Annotated[str, msgspec.Meta(max_length=64)]
Figure = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
Balance = Annotated[float, msgspec.Meta(ge=-1e12, le=1e12)]


class PeerGpus(answers.Shape, frozen=True, kw_only=True):
    """GPUs by state, as GpuSums tell them."""

    total: Figure | None
    busy: Figure | None
    idle: Figure | None
    warned: Figure | None = msgspec.field(name="told")
    kept: Figure | None
    left: Figure | None
    unknown: Figure | None
    free: Figure | None
    freed: Figure


class PeerOverview(answers.Shape, frozen=True, kw_only=True):
    """What is read of a first page; another version may say more."""

    now: str
    as_of: str | None
    interval_seconds: Annotated[float, msgspec.Meta(gt=0, le=31 * DAY)]  # by a longer one nothing would be old
    mode: Literal["acting", "dry-run"]
    version: Word
    gpus: PeerGpus


class PeerSavings(answers.Shape, frozen=True, kw_only=True):
    """The same, of a page of savings."""

    gpu_hours: Figure


class PeerCosts(answers.Shape, frozen=True, kw_only=True):
    """The same, of a summary of costs. What was saved is less than nothing where an act cost more than it gave back."""

    currency: Word
    per_hour: Figure
    month_to_date: Figure
    projected: Figure | None
    saved_this_month: Balance


class ClusterSaid(msgspec.Struct, frozen=True, kw_only=True):
    """All that one cluster said. `costs`, `savings` None: it did not say; it may keep no books, or not show them."""

    overview: PeerOverview
    savings: PeerSavings | None = None
    costs: PeerCosts | None = None


class ClusterRow(answers.Shape, frozen=True, kw_only=True):
    """`url`: of its own dashboard; None: this one. `because`: why it has no figures. `seen_at`: when it last answered,
    by our clock; `measured_seconds`: how old its measurements were then, by its own. `given_back_gpu_hours`: in 30
    days; in a dry run, what would have been."""

    name: str
    url: str | None
    sight: Sight
    because: str | None
    seen_at: str | None
    measured_seconds: float | None
    mode: Literal["acting", "dry-run"] | None
    version: str | None
    total: float | None
    busy: float | None
    idle: float | None
    unknown: float | None
    free: float | None
    given_back_gpu_hours: float | None
    costs: PeerCosts | None


class MoneySums(answers.Shape, frozen=True, kw_only=True):
    """Of the clusters that say what they cost, in that currency."""

    currency: str
    clusters: int
    per_hour: float
    month_to_date: float
    projected: float | None
    saved_this_month: float


class ClusterSums(answers.Shape, frozen=True, kw_only=True):
    """Of the clusters that are seen. `unseen`: the names of the others. `without_books`: of those that are seen, how
    many are in no sum of money."""

    clusters: int
    unseen: tuple[str, ...]
    total: float | None
    busy: float | None
    idle: float | None
    unknown: float | None
    free: float | None
    given_back_gpu_hours: float | None
    would_give_back_gpu_hours: float | None
    money: tuple[MoneySums, ...]
    without_books: int


class ClustersPage(answers.Shape, frozen=True, kw_only=True):
    as_of: str
    clusters: tuple[ClusterRow, ...]
    sums: ClusterSums


def show_cluster(name: str, url: str | None, said: ClusterSaid, seen_at: Instant) -> ClusterRow:
    about, age = said.overview, _find_age(said.overview)
    because = _why_old(about, age)
    if because is not None:
        return miss_cluster(name, url, because, seen_at, sight="old", about=about)
    gpus, saved = about.gpus, said.savings
    idle = _add([gpus.idle, gpus.warned, gpus.kept, gpus.left])
    return ClusterRow(
        name=name, url=url, sight="seen", because=None, seen_at=units.rfc3339(seen_at), measured_seconds=age,
        mode=about.mode, version=about.version, total=gpus.total, busy=gpus.busy, idle=idle,
        unknown=gpus.unknown, free=None if gpus.free is None else round(gpus.free + gpus.freed, 3),
        given_back_gpu_hours=saved.gpu_hours if saved else None, costs=said.costs,
    )


def miss_cluster(
    name: str, url: str | None, because: str, seen_at: Instant | None, *, sight: Sight = "away",
    about: PeerOverview | None = None,
) -> ClusterRow:
    """Without figures: what is not seen is not 0."""
    return ClusterRow(
        name=name, url=url, sight=sight, because=because, seen_at=answers.instant(seen_at),
        measured_seconds=_find_age(about) if about else None, mode=about.mode if about else None,
        version=about.version if about else None, total=None, busy=None, idle=None, unknown=None, free=None,
        given_back_gpu_hours=None, costs=None,
    )


def _find_age(about: PeerOverview) -> float | None:
    at, now = units.read_instant(about.as_of), units.read_instant(about.now)
    return None if at is None or now is None else round(now - at, 3)


def _why_old(about: PeerOverview, age: float | None) -> str | None:
    if age is None:
        return "it has not looked yet" if about.as_of is None else "it does not say when it looked"
    if age < -units.MINUTE:
        return "it says that it looked at a time that is yet to come"
    if age > _STALE_AFTER * about.interval_seconds:
        often = units.humane(about.interval_seconds)
        return f"it last looked {units.humane(age)} ago, and should every {often}"
    return None


def add_up(rows: Sequence[ClusterRow], now: Instant) -> ClustersPage:
    seen = [row for row in rows if row.sight == "seen"]
    acting, dry = ([row for row in seen if row.mode == mode] for mode in ("acting", "dry-run"))

    def known(of: Callable[[ClusterRow], float | None], some: Sequence[ClusterRow] = seen) -> float | None:
        return _add(map(of, some)) if some else None

    sums = ClusterSums(
        clusters=len(seen), unseen=tuple(row.name for row in rows if row.sight != "seen"),
        total=known(lambda row: row.total), busy=known(lambda row: row.busy), idle=known(lambda row: row.idle),
        unknown=known(lambda row: row.unknown), free=known(lambda row: row.free),
        given_back_gpu_hours=known(lambda row: row.given_back_gpu_hours, acting),
        would_give_back_gpu_hours=known(lambda row: row.given_back_gpu_hours, dry),
        money=tuple(_add_money(seen)), without_books=sum(row.costs is None for row in seen),
    )
    return ClustersPage(as_of=units.rfc3339(now), clusters=tuple(rows), sums=sums)


def _add(values: Iterable[float | None]) -> float | None:
    """None where one is: a sum without it would be too small, and nobody could tell."""
    total = 0.0
    for value in values:
        if value is None:
            return None
        total += value
    return round(total, 3)


def _add_money(seen: Iterable[ClusterRow]) -> Iterable[MoneySums]:
    by: dict[str, list[PeerCosts]] = {}
    for row in seen:
        if row.costs is not None:
            by.setdefault(row.costs.currency, []).append(row.costs)
    for currency, some in sorted(by.items()):
        yield MoneySums(
            currency=currency, clusters=len(some), per_hour=round(sum(each.per_hour for each in some), 2),
            month_to_date=round(sum(each.month_to_date for each in some), 2),
            projected=_add(each.projected for each in some),
            saved_this_month=round(sum(each.saved_this_month for each in some), 2),
        )
