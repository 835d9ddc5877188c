"""`fallow cost budget`, `override` and `lift`: what CostBudgets have come to, their channels tried, a way past them.

In: a kubeconfig; for `test`, the flags about mail. Out: tables, sentences; 1 where a call failed, 2 for what was typed
wrongly. No ledger is asked: the status of a budget says it, and since when.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, TypeVar

import click

from fallow import settings, verbs
from fallow.act.budgets import wires as sending
from fallow.act.budgets import words
from fallow.act.notices.facts import Letterhead
from fallow.clients import errors
from fallow.clients.kubernetes import api as kube
from fallow.doors.answers import budgets as answers
from fallow.doors.cli import flags, interrupts, show
from fallow.doors.cli import where as where_options
from fallow.model import budgets, cost, units
from fallow.model.policies.budget import CostBudget
from fallow.observe import budgets as looking
from fallow.wiring import budgets as wiring
from fallow.wiring import reach

T = TypeVar("T")
_TOLD = (
    "--smtp-url", "--smtp-password", "--email-from", "--cluster-name", "--dashboard-public-url", "--cost-pagerduty-url",
)


def _ask(given: dict[str, Any], ask: Callable[[kube.Api], Coroutine[Any, Any, T]]) -> T:
    async def run() -> T:
        async with reach.open_api(given["kubeconfig"], given["context"]) as (api, _):
            return await ask(api)

    with show.refusals():
        return interrupts.run(run())


def _budget(names: tuple[str, ...], **given: Any) -> None:
    if len(names) == 2 and names[0] == "test":
        _test(names[1], given)
    elif len(names) == 3 and names[0] == "ack":
        _acknowledge(names[1], names[2], given)
    elif len(names) > 1:
        raise click.UsageError("say at most one NAME, or test NAME, or ack NAME ALERT")
    elif names:
        _show_one(names[0], given)
    else:
        _list(given)


def _list(given: dict[str, Any]) -> None:
    now = time.time()
    rows = [_row(each, now) for each in _ask(given, _read_all)]
    if show.data(rows, given["output"]):
        return
    if not rows:
        show.sentence("there are no CostBudgets")
        return
    columns = ["NAME", "AMOUNT", "SPENT", "USED %", "STATUS", "PROJECTED", "ENFORCING", "ENDS"]
    click.echo(show.grid(columns, [_cells(row) for row in rows], spare=("ENDS", "ENFORCING", "PROJECTED", "AMOUNT")))
    for sentence in _tell_ages(rows):
        show.sentence(sentence)
    for row in rows:
        is_old = row.is_stale and row.updated is not None
        for problem in (*row.problems, *(["its status is old: is a daemon running?"] if is_old else [])):
            show.sentence(f"{row.name}: {problem}")


def _tell_ages(rows: Sequence[answers.BudgetRow]) -> list[str]:
    """One line where they are all of the same minute, as they mostly are."""
    known = [(row.name, "never looked at" if row.updated is None else f"as of {show.minute(row.updated)} UTC")
             for row in rows]
    ages = {age for _, age in known}
    return [*ages] if len(ages) == 1 else [f"{name}: {age}" for name, age in known]


async def _read_all(api: kube.Api) -> tuple[CostBudget, ...]:
    try:
        return await looking.list_budgets(api)
    except errors.NotFound:
        raise errors.NotFound(
            404, "the cluster has no CostBudgets: install their definition, fallow crds | kubectl apply -f -"
        ) from None


def _row(of: CostBudget, now: float) -> answers.BudgetRow:
    return answers.row(of, words.scope_words(of.scope), now)


def _cells(row: answers.BudgetRow) -> list[Any]:
    used = "" if row.used_percent is None else f"{row.used_percent:.1f}"
    enforcing = f"yes, {row.mode}" if row.enforcing else "no"
    amounts = (_money(row.amount), _money(row.spent), used, row.level or "", _money(row.projected))
    return [row.name, *amounts, enforcing, (row.period_end or "")[:10]]


def _money(amount: str | None) -> str:
    try:
        return "" if amount is None else f"{Decimal(amount):,.2f}"
    except InvalidOperation:
        return show.plain(amount)


def _find(name: str) -> Callable[[kube.Api], Coroutine[Any, Any, CostBudget]]:
    async def find(api: kube.Api) -> CostBudget:
        try:
            return await looking.read_budget(api, name)
        except errors.NotFound:
            raise verbs.Declined(verbs.Why.unknown, f"there is no CostBudget {name}") from None

    return find


def _show_one(name: str, given: dict[str, Any]) -> None:
    row = _row(_ask(given, _find(name)), time.time())
    if show.data(row, given["output"]):
        return
    click.echo(show.heading(row.name))
    click.echo(show.fields([(label, text) for label, text in _fields(row) if text]))


def _fields(row: answers.BudgetRow) -> list[tuple[str, str]]:
    currency = row.currency or ""
    spent = f"{_money(row.spent) or 'not known yet,'} of {_money(row.amount)} {currency}".rstrip()
    used = "" if row.used_percent is None else f", {row.used_percent:.1f} %: {row.level}"
    override = f"until {row.override_until} by {row.override_by}: {row.override_reason}" if row.override_until else ""
    cost_of = f"; spent under it: {_money(row.override_cost)} {currency}" if row.override_cost else ""
    unpriced = f"{row.unpriced_gpu_hours or 0:,.1f} GPU-hours without a price are not in it"
    return [
        ("Whose", row.scope), ("Spent", f"{spent}{used}"), ("Unpriced", unpriced if row.unpriced_gpu_hours else ""),
        ("Will be", f"{_money(row.projected)} {currency}" if row.projected else "too early to tell"),
        ("Pace", "" if row.pace is None else f"{row.pace:g} times an even spend"),
        ("Period", f"{row.period_start} to {row.period_end}" if row.period_start else ""),
        ("Alerts", ", ".join(row.alerts)),
        ("Enforcing", ": ".join(filter(None, ("yes" if row.enforcing else "no", row.why)))),
        ("Exceeded", f"since {row.exceeded_since}" if row.exceeded_since else ""),
        ("Override", f"{override}{cost_of}" if override else ""), *(("Problem", each) for each in row.problems),
        ("As of", _date(row)),
    ]


def _date(row: answers.BudgetRow) -> str:
    if row.updated is None:
        return "never: no daemon has looked at it yet"
    return f"{row.updated}{', which is too old to rely on' if row.is_stale else ''}"


def _acknowledge(name: str, alert: str, given: dict[str, Any]) -> None:
    is_new = _ask(given, lambda api: verbs.acknowledge_alert(api, name, alert))
    show.sentence(
        f"{alert} of {name} is marked as seen; its status says so within a minute" if is_new else
        f"{alert} of {name} was marked as seen already"
    )


# ---- test ------------------------------------------------------------------------------------------------------------


def _test(name: str, given: dict[str, Any]) -> None:
    options = flags.read_settings({key: value for key, value in given.items() if key not in ("output",)})

    async def run() -> list[tuple[str, str]]:
        async with wiring.open_wires(options) as (api, wires):
            return await _try_channels(wires, await _find(name)(api), options)

    with show.refusals():
        tried = interrupts.run(run())
    if not tried:
        raise click.ClickException(f"CostBudget {name} has no alert with a channel")
    for channel, problem in tried:
        show.sentence(f"{channel}: {problem or 'delivered'}")
    if any(problem for _, problem in tried):
        raise SystemExit(flags.EXIT_NO_DECISION)


async def _try_channels(
    wires: sending.AlertWires, of: CostBudget, options: settings.Settings
) -> list[tuple[str, str]]:
    """What became of each."""
    head = Letterhead(cluster_name=options.telling.cluster_name, public_url=options.telling.public_url)
    tried, now, state = [], time.time(), _state(of)
    for rule in of.alerts:
        for channel in rule.channels:
            facts = words.AlertFacts(
                event=budgets.AlertEvent.test, state=state, rule=rule, head=head, now=now, period_start=int(now)
            )
            try:
                await wires.send(channel, facts)
            except errors.ClientError as problem:
                tried.append((f"{rule.name}, {channel.name}", str(problem)))
            else:
                tried.append((f"{rule.name}, {channel.name}", ""))
    return tried


def _state(of: CostBudget) -> budgets.BudgetState:
    """As its status says."""
    try:
        spent: Decimal | None = Decimal(of.standing.spend)
    except InvalidOperation:
        spent = None
    return budgets.BudgetState(
        budget=of, ready=budgets.WhyReady.Valid, ready_because="", currency=of.standing.currency or of.currency,
        spend=None if spent is None else budgets.SpendSeen(total=int(spent * cost.UNIT), unpriced=0),
        percent=None if spent is None or of.amount is None else spent / of.amount * 100,
    )


# ---- a way past it ---------------------------------------------------------------------------------------------------


def _override(name: str, duration: str | None, reason: str, end: bool, **given: Any) -> None:
    if end:
        _ask(given, lambda api: verbs.end_override(api, name))
        show.sentence(f"the override of {name} is over; the daemon heeds that within a minute")
        return
    if duration is None or not reason:
        raise click.UsageError("say for how long and why: --for 4h --reason TEXT; others read it")
    try:
        seconds = units.parse_duration(duration)
        verbs.check_override(seconds, reason)
    except ValueError as problem:
        raise click.UsageError(f"--for: {problem}") from None
    except verbs.Declined as problem:
        raise click.UsageError(str(problem)) from None
    until = _ask(given, lambda api: verbs.override(api, name, seconds, reason, time.time()))
    show.sentence(
        f"{name} restricts nobody until {until}, whatever is spent, unless the daemon allows less "
        f"(--cost-max-override-hours): fallow cost budget {name} says until when, within a minute",
        "new pods are admitted at once; pods that wait behind its gate go on within a minute, or now by: "
        f"fallow cost lift {name}",
    )


def _lift(name: str, **given: Any) -> None:
    async def act(api: kube.Api) -> tuple[int, int, tuple[str, ...], tuple[str, ...]]:
        gone, pods = None, (0, 0)
        try:
            pods = await verbs.lift(api, name)
        except verbs.Declined as problem:  # of one that is gone, NodePools may still be held
            gone = problem
        pools = await verbs.free_pools(api, name)
        if gone is not None and not any(pools):
            raise gone
        return *pods, *pools

    removed, waiting, freed, held = _ask(given, act)
    show.sentence(
        f"{units.many(removed, 'pod')} of {waiting} that waited for {name} may go on" if waiting else
        f"no pod waits for {name}", *freed,
    )
    for sentence in held:
        show.tell(sentence)
    if removed < waiting or held:
        raise SystemExit(flags.EXIT_NO_DECISION)


def _told_options() -> list[click.Option]:
    return [flags.flag_option(flag) for flag in settings.FLAGS if flag.name in _TOLD]


_NAME = click.Argument(["name"], metavar="BUDGET")
budget = click.Command(
    "budget", callback=_budget, context_settings=flags.CONTEXT,
    help="List CostBudgets, or show one. `test NAME` sends a message that says it is a test to every channel of that "
    "budget; what is secret is read from where the daemon reads it, with your rights. `ack NAME ALERT` marks an alert "
    "as seen, which needs the right to update that budget and changes nothing else.",
    params=[
        click.Argument(["names"], metavar="[NAME | test NAME | ack NAME ALERT]", nargs=-1),
        *where_options.cluster_options(), where_options.prometheus_option(), show.output_option, *_told_options(),
    ],
)
override = click.Command(
    "override", callback=_override, context_settings=flags.CONTEXT,
    help="Let a CostBudget that is exceeded restrict nobody for a while. Needs the right to update that budget; who, "
    "until when and why stands on it, and what is spent meanwhile is shown.",
    params=[
        _NAME,
        click.Option(["--for", "duration"], metavar="DURATION",
                     help="How long, e.g. 4h; the daemon heeds at most --cost-max-override-hours (72)."),
        click.Option(["--reason"], default="", help="Why, for the others who read it."),
        click.Option(["--end"], is_flag=True, help="End an override."), *where_options.cluster_options(),
        where_options.prometheus_option(),
    ],
)
lift = click.Command(
    "lift", callback=_lift, context_settings=flags.CONTEXT,
    help="Take the gate away from every pod that waits for this CostBudget, and give the NodePools of Karpenter "
    "that it holds their limits back. While it restricts, both come again: see override.",
    params=[_NAME, *where_options.cluster_options(), where_options.prometheus_option()],
)
