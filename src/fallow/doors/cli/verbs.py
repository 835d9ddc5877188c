"""The verbs with which people act, typed and shown: `pause`, `resume`, `paused`, `ack`, `unack`, `acks`, `freeze`,
`unfreeze`.

They need only a kubeconfig: nothing here needs Prometheus or the daemon; where one runs, `paused` and `acks` are its
answer. Who acts is the user of the kubeconfig; the
API server decides what they may do. What a verb checks and does is in fallow/verbs.py.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeAlias, TypeVar

import click
import msgspec

from fallow import logs, verbs
from fallow.clients.kubernetes import lease
from fallow.doors.answers import standing
from fallow.doors.answers import workloads as answers
from fallow.doors.cli import asking, completing, flags, interrupts, show, watch
from fallow.doors.cli import where as where_options
from fallow.model import cluster, decision, record, units
from fallow.model.units import Seconds
from fallow.wiring import reach

Given: TypeAlias = dict[str, Any]
T = TypeVar("T")
R = TypeVar("R")


class StandingSeen(msgspec.Struct, frozen=True):
    """What stands, where, and by whose word."""

    page: standing.StandingPage
    place: str
    source: str


_ALL = "fallow idle --all -A"
_KEPT = "fallow acks -A"


def _ask(
    act: Callable[[verbs.Reach], Awaitable[T]], given: Given, target: str | None = None, lists: str = _ALL
) -> T:
    """`target`: for whom only that is to be seen. `lists`: the command that shows what might have been meant."""
    where, kind = (given["kubeconfig"], given["context"], given["namespace"]), (target or "").partition("/")[0]
    how = {name: given.get(name, False) for name in ("dry_run", "everywhere")}
    return _with(reach.open_reach(*where, **how, kind=kind), act, lists if target else "")


def _with(reach: AbstractAsyncContextManager[R], act: Callable[[R], Awaitable[T]], lists: str = "") -> T:
    async def run() -> T:
        async with reach as reached:
            return await act(reached)

    logs.set_up("default", "warning")
    with show.refusals(lists=lists):
        return interrupts.run(run())


def _name_place(reach: verbs.Reach) -> str:
    return f"namespace {reach.namespace}" if reach.namespace else "any namespace"


def find(target: str, given: Given) -> cluster.Workload:
    """The workload that is meant, by whatever name, or one sentence why there is none."""
    return _ask(lambda reach: verbs.find(reach, target, time.time()), given, target)


def tell_meant(target: str, ref: cluster.Ref) -> None:
    """Of who named a pod: the workload above it."""
    if verbs.read_target(target)[1] != ref.name:
        click.echo(show.plain(f"{target} belongs to {ref.short}, which is meant"), err=True)


def _do(
    act: Callable[[verbs.Reach], Awaitable[list[decision.Outcome]]], given: Given, target: str | None = None,
    lists: str = _ALL,
) -> None:
    """Runs `act`, shows its outcomes, and ends with 1 if what was asked for is not so."""
    outcomes = _ask(act, given, target, lists)
    if target and (meant := decision.workload_of(outcomes[0].decision)):
        tell_meant(target, meant.ref)
    if not show.data([answers.outcome(outcome) for outcome in outcomes], given["output"]):
        for outcome in outcomes:
            show.sentence(outcome.detail)
    if not all(map(verbs.is_so, outcomes)):
        raise SystemExit(flags.EXIT_NO_DECISION)


def carry_out(verb: str, target: str, given: Given, now: float) -> str:
    """One act of somebody who was asked whether they mean it, by the name of its command: what became of it. `keep` is
    for so many hours as are in `given`."""
    reason = "by hand"

    async def act(reach: verbs.Reach) -> list[decision.Outcome]:
        match verb:
            case "pause":
                return await verbs.pause(reach, target, reason, now)
            case "resume":
                return await verbs.resume(reach, target, now, replicas=None)
            case _:
                return await verbs.keep(reach, target, now + given["hours"] * units.HOUR, reason, now)

    return "; ".join(outcome.detail for outcome in _ask(act, given, target))


def _pause(target: str, reason: str, force: bool, **given: Any) -> None:
    _do(lambda reach: verbs.pause(reach, target, reason, time.time(), force=force), given, target)


def _resume(
    target: str | None, replicas: int | None, force: bool, everything: bool, everywhere: bool, **given: Any
) -> None:
    if (target is None) is not everything:
        raise click.UsageError("say either KIND/NAME or --all")
    if (everywhere and not everything) or (replicas is not None and everything):
        raise click.UsageError("--all-namespaces goes with --all, --replicas with KIND/NAME")
    if force and replicas is None:
        raise click.UsageError("--force goes with --replicas")
    if target is None:
        _resume_all({**given, "everywhere": everywhere})
    else:
        _do(lambda reach: verbs.resume(reach, target, time.time(), replicas=replicas, force=force), given, target)


def _resume_all(given: Given) -> None:
    """Ends with 1 also where something may stand paused that could not be seen."""
    unseen: list[cluster.Missing] = []

    async def act(reach: verbs.Reach) -> list[decision.Outcome]:
        outcomes = await verbs.resume_all(reach, time.time())
        unseen.extend(verbs.find_hidden(reach))
        if not outcomes and given["output"] not in ("json", "yaml"):
            which = "nothing that can be seen" if unseen else "nothing"
            show.sentence(f"{which} is paused by fallow in {_name_place(reach)}")
        _tell_unseen(unseen)
        return outcomes

    _do(act, given)
    if unseen:
        raise SystemExit(flags.EXIT_NO_DECISION)


def _paused(watch_every: Seconds | None, **given: Any) -> None:
    watch.present(lambda: _draw_paused(given), watch_every)


def _read_standing(given: Given) -> StandingSeen:
    """What stands now: by the daemon, whose copy of the cluster is always fresh, or by a look of one's own."""
    heard = asking.ask(given, lambda daemon: _ask_daemon(daemon, given))
    if isinstance(heard, asking.Told):
        return heard.answer

    async def read(reach: verbs.Reach) -> StandingSeen:
        now = time.time()
        paused, hidden = await verbs.paused(reach, now), verbs.find_hidden(reach, or_kept=True)
        page = standing.tell(paused, verbs.acks(reach, now), hidden)
        return StandingSeen(page, _name_place(reach), asking.name_source(heard))

    with asking.looking_instead(heard, given["output"]):
        return _ask(read, given)


async def _ask_daemon(daemon: asking.Daemon, given: Given) -> StandingSeen:
    own = "" if given["everywhere"] else given["namespace"] or daemon.door.own_namespace
    daemon.check_sees(own)
    page = await daemon.read("/api/v1/standing", standing.StandingPage)
    source = f"As {daemon.door.where} sees it now (--look looks for itself)"
    if not own:
        return StandingSeen(page, "any namespace", source)
    kept = {
        name: tuple(row for row in getattr(page, name) if row.namespace == own) for name in ("paused", "acks")
    }
    if not any(kept.values()):  # nothing there, or no such namespace: the daemon does not say which
        raise asking.NotWatched(f"it has nothing of namespace {own}, or there is no such namespace")
    return StandingSeen(msgspec.structs.replace(page, **kept), f"namespace {own}", source)


def _draw_paused(given: Given) -> show.Shown:
    found = _read_standing(given)
    wide = given["output"] == "wide"
    columns = ["NAMESPACE", "WORKLOAD", "SINCE", "BY", "GPUS", *(["POLICY", "REPLICAS"] if wide else []), "WHY"]
    shown = [_paused_cells(row, wide=wide) for row in found.page.paused]
    return _draw_standing(found, given, found.page.paused, (columns, shown, ("BY", "WHY")), "paused by fallow")


def _draw_standing(
    found: StandingSeen, given: Given, rows: Sequence[Any], table: tuple[list[str], list[list[Any]], tuple[str, ...]],
    what: str,
) -> show.Shown:
    """`table`: its columns, its rows, and which of the columns a narrow terminal has below a row."""
    unseen, (columns, cells, below) = found.page.not_seen, table
    if given["output"] in ("json", "yaml"):
        _tell_unseen(unseen)
        return show.Shown(show.encode(rows, given["output"]))
    first = f"{show.fold(found.source)}\n" if found.source else ""
    if not rows:
        return show.Shown(f"{first}nothing is {what} in {found.place}{_hint(given)}\n{_name_unseen(unseen)}")
    return show.Shown(f"{first}{show.grid(columns, cells, below=below)}\n{_name_unseen(unseen)}")


def _hint(given: Given) -> str:
    return "" if given["everywhere"] else "; -A shows all namespaces"


def _name_unseen(missing: Iterable[standing.NotSeen]) -> str:
    """Below a list: something of what is asked for may be there too."""
    return "".join(f"{show.plain(f'not seen: {each.what}: {each.because}')}\n" for each in missing)


def _tell_unseen(missing: Iterable[standing.NotSeen | cluster.Missing]) -> None:
    """Beside an answer for machines."""
    for each in missing:
        show.tell(f"not seen: {each.what}: {each.because}")


def _paused_cells(row: answers.PausedRow, *, wide: bool) -> list[Any]:
    more = (row.policy, row.replicas) if wide else ()
    return _blank((row.namespace, row.workload, row.since, row.by, row.gpus, *more, row.reason))


def _blank(cells: Iterable[Any]) -> list[Any]:
    """What is not known is left empty."""
    return ["" if cell is None else cell for cell in cells]


def _ack(target: str, hours: float | None, until: str | None, reason: str, **given: Any) -> None:
    now = time.time()
    end = _read_end(hours, until, now)
    _do(lambda reach: verbs.keep(reach, target, end, reason, now), given, target)


def _read_end(hours: float | None, until: str | None, now: float) -> float | None:
    """What is no end of one is refused before anything is asked of the cluster; None: nobody said."""
    if hours is None and until is None:
        return None
    if hours is not None and until is not None:
        raise click.UsageError("say either --hours or --until")
    try:
        end = now + hours * units.HOUR if hours is not None else units.parse_instant(until or "")
    except ValueError as problem:
        raise click.UsageError(f"--until: {problem}") from None
    with show.refusals():
        verbs.check_ack(end, now)
    return end


def _unack(target: str, **given: Any) -> None:
    _do(lambda reach: verbs.release(reach, target, time.time()), given, target, _KEPT)


def _acks(watch_every: Seconds | None, **given: Any) -> None:
    watch.present(lambda: _draw_acks(given), watch_every)


def _draw_acks(given: Given) -> show.Shown:
    found = _read_standing(given)
    columns = ["NAMESPACE", "WORKLOAD", "UNTIL", "HOLDS", "BY", "REASON GIVEN"]
    shown = [_ack_cells(row) for row in found.page.acks]
    return _draw_standing(found, given, found.page.acks, (columns, shown, ("BY", "REASON GIVEN")), "acknowledged")


def _ack_cells(row: answers.AckRow) -> list[Any]:
    holds = f"no: {row.void}" if row.void else "yes"
    return _blank((row.namespace, row.workload, row.until, holds, row.by, row.reason))


def _freeze(duration: str, reason: str, **given: Any) -> None:
    now = time.time()
    try:
        seconds = units.parse_duration(duration)
        verbs.check_freeze(seconds)
    except (ValueError, verbs.Declined) as problem:
        raise click.UsageError(f"--for: {problem}") from None
    _show_answer(lambda on: verbs.freeze(on, seconds, reason, now), given)


def _unfreeze(**given: Any) -> None:
    _show_answer(verbs.unfreeze, given)


def _show_answer(act: Callable[[verbs.OnLease], Awaitable[verbs.FreezeAnswer]], given: Given) -> None:
    """What stands on the Lease, who read it, and 1 if a daemon that lives did not say that it has."""

    async def ask(on: verbs.OnLease) -> tuple[verbs.OnLease, verbs.FreezeAnswer]:
        return on, await act(on)

    on, answer = _with(reach.open_lease(given["kubeconfig"], given["context"], given["namespace"]), ask)
    frozen = f"frozen until {answer.until}: nothing is paused until then; resuming works"
    which = frozen if answer.until else "no longer frozen"
    kept = "that is longer than asked for: it was frozen already, and only `fallow unfreeze` ends a freeze early"
    if not show.data(answers.freeze(answer, on.namespace), given["output"]):
        notes = (kept if answer.is_longer else "", _explain(answer, on.namespace), on.unseen)
        show.sentence(which, *filter(None, notes))
    if answer.heard is lease.Heard.silent:
        raise SystemExit(flags.EXIT_NO_DECISION)


def _explain(answer: verbs.FreezeAnswer, namespace: str) -> str:
    match answer.heard:
        case lease.Heard.answered:
            return f"the daemon {answer.holder} in namespace {namespace} has confirmed it"
        case lease.Heard.nobody if not answer.holder:
            return f"no daemon runs in namespace {namespace} now; the next one reads it before it does anything"
        case lease.Heard.nobody:
            dead = f"{answer.holder} last renewed its Lease in namespace {namespace} at {answer.renewed}"
            return f"no daemon answers and none leads: {dead}; the next one reads it before it does anything"
        case lease.Heard.silent:
            wait = f"no answer within {verbs.ANSWER_PATIENCE:.0f} s: the Lease in namespace {namespace} says it"
            return f"NOT CONFIRMED: {wait}, its holder {answer.holder} last renewed at {answer.renewed}"


def _namespace_option(help_text: str) -> click.Option:
    return click.Option(
        ["-n", "--namespace"], default=None, help=help_text, shell_complete=completing.namespaces,
        callback=show.checked(lambda text: verbs.check_namespace(text)),
    )


def target_argument(*, or_all: bool = False) -> click.Argument:
    """A workload, in one word (KIND/NAME) or, as kubectl takes it, in two."""
    return click.Argument(
        ["target"], metavar="[KIND/NAME]" if or_all else "KIND/NAME", required=not or_all, nargs=-1,
        callback=_read_words, shell_complete=completing.targets,
    )


def _read_words(
    ctx: click.Context, parameter: click.Parameter, words: tuple[str, ...]
) -> str | tuple[str, ...] | None:
    if ctx.resilient_parsing:  # half typed
        return words
    if len(words) > 2 or (len(words) == 2 and "/" in "".join(words)):
        raise click.UsageError(f"one workload at a time: {' '.join(words)!r} is more than a KIND/NAME", ctx)
    check = show.checked(lambda text: verbs.read_target(text))
    return check(ctx, parameter, "/".join(words)) if words else None


def _command(
    name: str, callback: Callable[..., None], help_text: str, *more: click.Parameter, target: bool = True,
    dry_run: bool = False, or_all: bool = False, where: str = "Namespace, by its name; default: the context's.",
    watched: bool = False,
) -> click.Command:
    params: list[click.Parameter] = [target_argument(or_all=or_all)] if target else []
    params += [
        *more, _namespace_option(where),
        *where_options.cluster_options(),
        show.output_option,
    ]
    if watched:
        params += [watch.option, *where_options.daemon_options()]
    if dry_run:
        params.append(click.Option(["--dry-run"], is_flag=True, help="Let the API server check it; change nothing."))
    kind = watch.WatchCommand if watched else click.Command
    return kind(name, callback=callback, params=params, help=help_text, context_settings=flags.CONTEXT)


everywhere_option = click.Option(["-A", "--all-namespaces", "everywhere"], is_flag=True, help="In all namespaces.")
reason_option = click.Option(
    ["--reason"], default="by hand", show_default=True, help="Why, for the others who read it."
)
pause = _command(
    "pause", _pause,
    "Pause a workload now, whether idle or not. The way back is written in the same request: fallow resume KIND/NAME."
    "\n\n\b\n  fallow pause deploy/llm -n ml --dry-run\n  fallow pause deploy/llm -n ml --reason 'over the weekend'",
    reason_option, click.Option(["--force"], is_flag=True, help="Although it is acknowledged or opted out."),
    dry_run=True,
)
resume = _command(
    "resume", _resume, "Bring a paused workload back as it was. Needs a kubeconfig and nothing else.\n\n\b\n"
    "  fallow resume deploy/llm -n ml\n  fallow resume --all -A --dry-run",
    click.Option(
        ["--replicas"], type=click.IntRange(1, record.MOST_REPLICAS), default=None,
        help="Bring back so many, where the record of the size is lost.",
    ),
    click.Option(["--force"], is_flag=True, help="With --replicas: although the record is intact and says otherwise."),
    click.Option(["--all", "everything"], is_flag=True, help="Everything that stands paused by fallow, of every kind."),
    everywhere_option, dry_run=True, or_all=True,
)
paused = _command(
    "paused", _paused, "List what stands paused by fallow, of every kind. Needs a kubeconfig and nothing else.",
    everywhere_option, target=False, watched=True,
)
ack = _command(
    "ack", _ack, "Keep a workload although it is idle: it is not paused until the acknowledgement ends.\n\n\b\n"
    "  fallow ack deploy/llm -n ml\n  fallow ack deploy/llm -n ml --hours 72 --reason 'a demo on Friday'",
    click.Option(
        ["--hours"], type=float, default=None,
        help="Keep it for so many hours: 168 at most, or what its policy heeds. [default: 8, or that]",
    ),
    click.Option(["--until"], default=None, metavar="TIME", help="Keep it until then, e.g. 2026-11-20T18:00:00Z."),
    reason_option,
)
unack = _command("unack", _unack, "End an acknowledgement. If the workload is idle, its owner is told again first.")
acks = _command("acks", _acks, "List acknowledgements.", everywhere_option, target=False, watched=True)
_WHERE = "Namespace of the daemon's Lease; default: wherever it is."
freeze = _command(
    "freeze", _freeze,
    "Pause nothing for a while, anywhere, and wait until the daemon has confirmed that. Its Lease is found in every "
    "namespace; where there are several, say which with -n. Resuming always works.\n\n\b\n"
    "  fallow freeze --for 30m --reason 'an upgrade of the drivers'\n  fallow unfreeze",
    click.Option(
        ["--for", "duration"], default="2h", show_default=True, metavar="DURATION", help="How long, e.g. 30m, 2h, 1d."
    ),
    reason_option, target=False, where=_WHERE,
)
unfreeze = _command(
    "unfreeze", _unfreeze, "End a freeze. The daemon's Lease is found as by freeze.", target=False, where=_WHERE
)
