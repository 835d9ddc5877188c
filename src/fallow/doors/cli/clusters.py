"""`fallow clusters`: this cluster and those beside it (--peer of the daemon), with their sums.

In: where the daemon answers. Out: a table, JSON or YAML. A cluster that is not seen has dashes and a sentence why; it
is in no sum.
"""

from __future__ import annotations

from typing import Any

from fallow.doors import answers
from fallow.doors.answers import clusters as telling
from fallow.doors.cli import asking, flags, show, watch, where
from fallow.model import units
from fallow.model.units import Seconds

_PATIENCE: Seconds = 20.0  # the daemon waits for those that do not answer
_COLUMNS = ("CLUSTER", "MODE", "GPUS", "BUSY", "IDLE", "CANNOT TELL", "FREE", "BACK 30D", "MONTH", "SAVED", "SEEN")


def _clusters(watch_every: Seconds | None, output: str, **given: Any) -> None:
    watch.present(lambda: _draw(output, given), watch_every)


def _draw(output: str, given: dict[str, Any]) -> show.Shown:
    async def read(daemon: asking.Daemon) -> telling.ClustersPage:
        return await daemon.read("/api/v1/all-clusters", telling.ClustersPage)

    heard = asking.ask(given, read, patience=_PATIENCE)
    if isinstance(heard, asking.Untold):
        raise show.NoSource(heard.because) if heard.is_usual else show.failure(heard.because)
    page = heard.answer
    if output in ("json", "yaml"):
        return show.Shown(show.encode(page, output))
    laid = show.grid(_COLUMNS, [*map(_cells, page.clusters), *_sums(page.sums)], below=("SEEN",))
    return show.Shown(f"{show.fold(heard.whose)}\n\n{laid}\n\n" + "\n".join(map(show.fold, _notes(page))) + "\n")


def _cells(row: telling.ClusterRow) -> list[str]:
    return [
        row.name, row.mode or "-", *map(_gpus, (row.total, row.busy, row.idle, row.unknown, row.free)),
        _hours(row.given_back_gpu_hours), *_paid(row.costs), _seen(row),
    ]


def _paid(of: telling.PeerCosts | telling.MoneySums | None) -> list[str]:
    """This month, and saved in it."""
    if of is None:
        return ["-", "-"]
    return [f"{amount:,.2f} {of.currency}" for amount in (of.month_to_date, of.saved_this_month)]


def _seen(row: telling.ClusterRow) -> str:
    if row.sight == "seen":
        return f"measured {units.humane(max(0.0, row.measured_seconds or 0.0))} ago"
    last = f"; last seen {show.minute(row.seen_at)}" if row.sight == "away" and row.seen_at else ""
    return f"not seen: {row.because}{last}"


def _sums(sums: telling.ClusterSums) -> list[list[str]]:
    """One line, or one for each currency."""
    gpus = [*map(_gpus, (sums.total, sums.busy, sums.idle, sums.unknown, sums.free)), _hours(sums.given_back_gpu_hours)]
    whole = ["all that are seen", "", *gpus, *_paid(sums.money[0] if sums.money else None), ""]
    return [whole, *([f"in {each.currency}", *[""] * 7, *_paid(each), ""] for each in sums.money[1:])]


def _notes(page: telling.ClustersPage) -> list[str]:
    sums = page.sums
    which = "is" if sums.clusters == 1 else "are"
    notes = [f"{sums.clusters} of {answers.many(len(page.clusters), 'cluster')} {which} in the sums."]
    if sums.unseen:
        notes.append(f"Not seen, and in no sum: {', '.join(sums.unseen)}.")
    if sums.without_books:
        notes.append(f"{answers.many(sums.without_books, 'cluster')} of them did not say what they cost: in no sum.")
    if sums.would_give_back_gpu_hours is not None:
        hours = answers.amount(sums.would_give_back_gpu_hours)
        notes.append(f"In dry-run {hours} GPU-hours would have been given back in 30 days; the sum leaves them out.")
    if len(page.clusters) == 1:
        notes.append("Further clusters are named by --peer NAME=URL of the daemon.")
    return notes


def _gpus(value: float | None) -> str:
    return "-" if value is None else answers.amount(value)


def _hours(value: float | None) -> str:
    return "-" if value is None else f"{answers.amount(value)} h"


clusters = watch.WatchCommand(
    "clusters", callback=_clusters, context_settings=flags.CONTEXT,
    params=[watch.option, show.output_option, *where.daemon_options()[1:], *where.cluster_options()],
    help="This cluster and those beside it, with what their GPUs do, what they cost and what was saved, and the sums. "
    "The daemon is asked, which asks the others (its --peer); a cluster that is not seen is in no sum.",
)
