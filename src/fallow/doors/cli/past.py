"""`fallow history`: what happened to a workload, or to all of them: told, kept, paused, brought back, refused.

In: a workload or none. Out: the daemon's books, the newest first; where no daemon answers, what Kubernetes still has of
our Events, which is usually an hour, and that is said.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping
from typing import Any, Final

import click

from fallow import names, verbs
from fallow.clients import errors
from fallow.clients.kubernetes import api as kube
from fallow.doors.answers import past
from fallow.doors.answers import workloads as answers
from fallow.doors.cli import asking, completing, flags, interrupts, show, watch, where
from fallow.doors.cli import verbs as acting
from fallow.model import cluster, kinds, units
from fallow.model import history as books
from fallow.model.units import DAY, Instant, Seconds
from fallow.observe.cluster import absence
from fallow.wiring import reach

MOST: Final = 1000
_ONLY_OWN: Final = "\nonly of {}, and of what is about all; -A shows all namespaces\n"


def _history(watch_every: Seconds | None, since: str, **given: Any) -> None:
    try:
        span = units.parse_duration(since)
    except ValueError as problem:
        raise click.UsageError(f"--since: {problem}") from None
    if not 0 < span <= 180 * DAY:
        raise click.UsageError("--since: from a second to 180d, which is how long anything is kept")
    if given["target"] is not None and given["everywhere"]:
        raise click.UsageError("--all-namespaces goes without KIND/NAME")
    watch.present(lambda: draw(given, span), watch_every)


def draw(given: dict[str, Any], span: Seconds) -> show.Shown:
    heard = asking.ask(given, lambda daemon: _ask_daemon(daemon, given, span))
    if isinstance(heard, asking.Told):
        (rows, place), source = heard.answer, heard.whose
    else:
        with asking.looking_instead(heard, given["output"]):
            rows, place = _read_events(given, time.time() - span)
        only = "only what Kubernetes still has of fallow's Events, usually of an hour"
        source = f"{asking.name_source(heard) or 'A look of its own'}: {only}"
    if given["target"] is None and not given["everywhere"] and all(row.workload is None for row in rows):
        _check_namespace(given)
    if given["output"] in ("json", "yaml"):
        return show.Shown(show.encode(rows, given["output"]))
    if not rows:
        return show.Shown(f"{show.fold(source)}\nnothing is written down of {place} in {units.humane(span)}\n")
    columns = ["WHEN", "WHAT", "NAMESPACE", "WORKLOAD", "BY", "WHY"]
    laid = show.grid(columns, [_cells(row) for row in rows], below=("BY", "WHY"))
    only = "" if given["everywhere"] or given["target"] or given["namespace"] else _ONLY_OWN.format(place)
    return show.Shown(f"{show.fold(source)}\n\n{laid}\n{only}")


def _check_namespace(given: dict[str, Any]) -> None:
    """Of which nothing is written down: is it there at all? Where nobody can be asked that, it may be."""
    async def ask() -> str | None:
        async with reach.open_api(given["kubeconfig"], given["context"]) as (api, own):
            return await absence.ask_namespace(api, given["namespace"] or own or "default")

    try:
        because = interrupts.run(ask())
    except errors.ClientError:
        return
    if because is not None:
        raise show.failure(because)


def _cells(row: past.Decided) -> list[str]:
    of = row.workload
    named = ("", "") if of is None else (of.namespace, f"{of.kind}/{of.name}")
    return [row.at, row.type, *named, row.actor, row.sentence]


async def _ask_daemon(
    daemon: asking.Daemon, given: dict[str, Any], span: Seconds
) -> tuple[list[past.Decided], str]:
    own, since = given["namespace"] or daemon.door.own_namespace, units.rfc3339(daemon.now - span)
    if given["target"] is not None:
        path = f"{asking.path_of(given['target'], own)}/history"
        page = await daemon.read(path, past.HistoryPage, limit=str(given["limit"]))
        return [row for row in page.items if row.at >= since], f"{given['target']} in {own}"
    found, cursor = list[past.Decided](), None
    while len(found) < given["limit"]:
        more = await daemon.read(
            "/api/v1/decisions", past.DecisionsPage, since=since, limit=str(MOST), cursor=cursor
        )
        found += [row for row in more.items if _is_of(row.workload, own, given)]
        cursor = more.next
        if cursor is None:
            break
    # The daemon pages by when it wrote an entry down; a resume by annotation is written down later than it happened.
    newest = sorted(found[: given["limit"]], key=lambda row: row.at, reverse=True)
    return newest, "any namespace" if given["everywhere"] else f"namespace {own}"


def _is_of(named: answers.WorkloadName | None, own: str, given: dict[str, Any]) -> bool:
    """What is about all, such as a freeze, is about everybody's."""
    return given["everywhere"] or named is None or named.namespace == own


# ---- by what Kubernetes still has ------------------------------------------------------------------------------------


def _read_events(given: dict[str, Any], since: Instant) -> tuple[list[past.Decided], str]:
    meant = None if given["target"] is None else acting.find(given["target"], given).ref

    async def read() -> tuple[list[past.Decided], str]:
        async with reach.open_api(given["kubeconfig"], given["context"]) as (api, context):
            own = None if given["everywhere"] else meant.namespace if meant else given["namespace"] or context
            space = None if given["everywhere"] else own or "default"
            pages = api.list_pages(kube.EVENTS, item=dict, namespace=space)
            found = [entry async for page in pages for each in page.items if (entry := _read_event(each)) is not None]
            place = kinds.typed(meant) if meant else f"namespace {space}" if space else "any namespace"
            return _choose(found, meant, since, given["limit"]), place

    with show.refusals():
        return interrupts.run(read())


def _choose(
    found: list[books.AuditEntry], meant: cluster.Ref | None, since: Instant, limit: int
) -> list[past.Decided]:
    fits = [
        each for each in found
        if each.at >= since and (meant is None or (each.ref is not None and each.ref.uid == meant.uid))
    ]
    newest = sorted(fits, key=lambda each: -each.at)
    return [past.tell(each) for each in newest[:limit]]


@functools.cache
def _happened() -> Mapping[str, books.Happened]:
    """What each Event of ours tells; made when it is needed, for --help does without."""
    event, happened = names.Event, books.Happened
    return {
        event.NOTICE_SENT: happened.notified, event.SCALED_TO_ZERO: happened.paused,
        event.SUSPENDED: happened.paused, event.RESUMED: happened.resumed, event.ACKNOWLEDGED: happened.kept,
        event.UNACKNOWLEDGED: happened.released, event.ACK_EXPIRED: happened.keep_ended,
        event.NOTICE_FAILED: happened.failed, event.RESUME_FAILED: happened.failed,
        event.PAUSE_FAILED: happened.failed, event.PAUSE_INEFFECTIVE: happened.failed,
        event.PAUSE_REVERTED: happened.brought_back, event.IDLE_SHARE_JUMP: happened.frozen,
    }


def _read_event(event: dict[str, Any]) -> books.AuditEntry | None:
    """None: not ours, of no interest here, or not as we write them. (Not every server selects by who reported it.)"""
    if event.get("reportingController") != names.REPORTING_CONTROLLER:
        return None
    happened, regarding = _happened().get(str(event.get("reason"))), event.get("regarding")
    series = event.get("series")
    last = series.get("lastObservedTime") if isinstance(series, dict) else None
    at = units.read_instant(str(last or event.get("eventTime") or ""))
    if happened is None or at is None or not isinstance(regarding, dict):
        return None
    group, _, version = str(regarding.get("apiVersion", "")).rpartition("/")
    kind, namespace, name, uid = (str(regarding.get(key, "")) for key in ("kind", "namespace", "name", "uid"))
    return books.AuditEntry(
        number=0, at=at, type=happened, ref=cluster.Ref(group, version, kind, namespace, name, uid),
        sentence=str(event.get("note", "")), actor=names.FIELD_MANAGER, source=books.CameBy.cycle,
    )


history = watch.WatchCommand(
    "history", callback=_history, context_settings=flags.CONTEXT,
    params=[
        acting.target_argument(or_all=True),
        click.Option(
            ["-n", "--namespace"], default=None, help="Namespace, by its name; default: the context's.",
            callback=show.checked(lambda text: verbs.check_namespace(text)), shell_complete=completing.namespaces,
        ),
        acting.everywhere_option,
        click.Option(["--since"], default="7d", show_default=True, metavar="DURATION", help="How far back."),
        click.Option(["--limit"], type=click.IntRange(1, MOST), default=100, show_default=True,
                     help="Most entries, the newest first."),
        watch.option, show.output_option, *where.daemon_options(), *where.cluster_options(),
    ],
    help="What happened to a workload, or to all of a namespace: told, kept, paused, brought back, refused. It is the "
    "daemon's to know; without one, what Kubernetes still has of fallow's Events.",
)
