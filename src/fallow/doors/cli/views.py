"""What `status`, `idle` and `explain` do: ask the daemon, or go through one cycle up to the plan; and a page of it.
Nothing is changed.

In: flags, of which -n and -m say what is shown and counted, those of where.py who is to answer, and all others by which
rules it is judged: with one of them it is a look of one's own. Out: a page, or the same as JSON or YAML. Without
measurements it ends with 1, whichever verb was asked, and with 4 where nobody said whom to ask for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import click
import msgspec

from fallow import logs, settings, verbs
from fallow.clients import errors
from fallow.doors.answers import deeds, forecasts, sharing
from fallow.doors.answers import rows as telling
from fallow.doors.answers import status as statuses
from fallow.doors.answers import workloads as answers
from fallow.doors.cli import asking, flags, interrupts, pages, pod_status, show, subjects, watch, where
from fallow.doors.cli import look as looks
from fallow.doors.cli import verbs as acting
from fallow.model import cluster, gpus, kinds, price_book, units
from fallow.model.patterns import Pattern
from fallow.model.policies import idle as policies
from fallow.model.sharing import ShareWhy
from fallow.model.units import Instant, Seconds
from fallow.stories import idle as stories
from fallow.wiring import daemon, share_why

T = TypeVar("T")


class ViewFilter(msgspec.Struct, frozen=True):
    """What is to be shown and counted; all else is as if it were not there."""

    namespace: Pattern | None = None
    model: Pattern | None = None

    def fits(self, row: telling.ApiRow) -> bool:
        if self.namespace is not None and not self.namespace.fullmatch(row.namespace):
            return False
        return self.model is None or (bool(row.models) and all(map(self.model.fullmatch, row.models)))

    def __str__(self) -> str:
        """In words, behind what is counted."""
        where = f" in namespaces that match {self.namespace.pattern}" if self.namespace else ""
        return where + (f" on GPUs that match {self.model.pattern}" if self.model else "")


def read_filter(given: dict[str, Any]) -> ViewFilter:
    scope = flags.read_settings(_without(given), looks.UNUSED_VARIABLES).mandate.scope
    return ViewFilter(scope.namespace, scope.model)


def _text(pattern: Pattern | None) -> str | None:
    return pattern.pattern if pattern else None


def _sight(given: dict[str, Any]) -> daemon.Sighting:
    """One look at everything, judged by the flags."""
    options = flags.read_settings(given, looks.UNUSED_VARIABLES)
    wide = msgspec.structs.replace(options.mandate.scope, namespace=None, model=None)
    logs.set_up("default", "error")
    with show.refusals():
        return interrupts.run_shortly(daemon.look(_within(options, wide), tell=show.tell))


def _within(options: settings.Settings, scope: policies.Scope) -> settings.Settings:
    mandate = msgspec.structs.replace(options.mandate, scope=scope)
    return msgspec.structs.replace(options, mandate=mandate)


def why_none(look: stories.Look) -> click.ClickException | None:
    """Why there is no evidence, and what helps; None where there is. Nobody named a source: that is not a call that
    failed."""
    trouble, is_named = look.snapshot.evidence.trouble, look.options.prometheus is not None
    if trouble is None:
        return None
    because = _no_decision(trouble.because, statuses.help_source(trouble, asks_prometheus=is_named))
    return show.failure(because) if is_named else show.NoSource(because)


def _why_none_there(page: statuses.StatusPage) -> click.ClickException | None:
    """The same of a daemon: without measurements its answer is no decision either."""
    if page.source is None:
        return None
    helps = (each.helps for each in page.problems if each.what == statuses.MEASUREMENTS)
    return show.failure(_no_decision(page.source.because, next(helps)))


def _no_decision(because: str, helps: str) -> str:
    return f"no decision possible: {because}. What helps: {helps}"


def _view(look: stories.Look, asked: ViewFilter) -> answers.Selection:
    try:
        return statuses.find_view(look, asked.namespace, asked.model)
    except LookupError as problem:
        raise show.failure(str(problem)) from None


def read_scope(everywhere: bool, given: dict[str, Any]) -> None:
    if everywhere and given.get("namespace") is not None:
        raise click.UsageError("say either -n or -A")


def read_prices(texts: tuple[str, ...]) -> price_book.ModelPrices:
    """Those that were given."""
    try:
        return price_book.read_prices(texts)
    except ValueError as problem:
        raise click.UsageError(f"--price: {show.plain(problem)}") from None


def _check_prices(given: price_book.ModelPrices, look: stories.Look) -> None:
    """Refuses the price of a model that neither the cluster nor anybody knows: it would change nothing, in silence."""
    strange = [model for model in given if gpus.find(model) is None]
    if not strange:
        return
    products = {node.gpu_product for node in look.snapshot.nodes.known.values() if node.gpu_product}
    measured = {model for one in answers.view(look.plan).workloads for model in one.finding.models}
    there = {gpus.normalise(name) for name in products | measured}
    for model in strange:
        if model not in there:
            has = f"this cluster has {', '.join(sorted(there)) or 'none that is known'}"
            raise click.UsageError(show.plain(f"--price: no GPU model is known as {model}; {has}"))


# ---- who answers -----------------------------------------------------------------------------------------------------

_SHOWING = frozenset({"namespace", "model_name", "kubeconfig", "context", *where.DAEMON_KEYS})


def _ask(given: dict[str, Any], question: Callable[[asking.Daemon], Awaitable[T]]) -> asking.Told[T] | asking.Untold:
    """The daemon, unless a flag says by which rules or measurements it is to be judged: its own are not those."""
    by_hand = [key for key, value in given.items() if value not in (None, False, ()) and key not in _SHOWING]
    if by_hand:
        named = ", ".join(f"--{key.replace('_', '-')}" for key in sorted(by_hand))
        return asking.Untold(f"the daemon would not judge by {named}", is_usual=True)
    return asking.ask(given, question)


def _without(given: dict[str, Any]) -> dict[str, Any]:
    """The flags of a look."""
    return {key: value for key, value in given.items() if key not in where.DAEMON_KEYS}


def _first_lines(source: str, rules: str) -> str:
    return "\n".join(filter(None, (show.fold(source) if source else "", show.fold(rules))))


# ---- the verbs -------------------------------------------------------------------------------------------------------


def status(
    output: str, watch_every: Seconds | None, everywhere: bool, price: tuple[str, ...], by_pod: bool, **given: Any
) -> None:
    read_scope(everywhere, given)
    prices_given, asked = read_prices(price), read_filter(given)
    if by_pod or click.get_current_context().find_root().command.name == "gpu-autoscaler":
        watch.present(lambda: pod_status.present(_without(given), asked.namespace, output), watch_every)
        return

    def make() -> show.Shown:
        seen = see_status(given, asked, output, price, prices_given)
        if output in ("json", "yaml"):
            return show.Shown(show.encode(seen.page, output), seen.failure)
        first = _first_lines(seen.source, seen.page.rules.sentence)
        return show.Shown(pages.draw_status(first, seen.page, str(asked), seen.at), seen.failure)

    watch.present(make, watch_every)


class StatusSeen(msgspec.Struct, frozen=True, kw_only=True):
    """`failure`: why it says less than was asked for."""

    page: statuses.StatusPage
    source: str
    at: Instant
    failure: click.ClickException | None = None


def see_status(
    given: dict[str, Any], asked: ViewFilter, output: str, price: tuple[str, ...] = (),
    prices_given: price_book.ModelPrices = price_book.LIST,
) -> StatusSeen:
    async def read(daemon: asking.Daemon) -> statuses.StatusPage:
        given_filter = {"namespace": _text(asked.namespace), "model": _text(asked.model)}
        page, standing = await asyncio.gather(
            daemon.read("/api/v1/status", statuses.StatusPage, **given_filter),
            _read_freeze(daemon),
        )
        return _freeze_at_once(page, standing)

    heard = _ask({**given, "price": price}, read)
    if isinstance(heard, asking.Told):
        why = _why_none_there(heard.answer)
        return StatusSeen(page=heard.answer, source=heard.whose, at=heard.at, failure=why)
    with asking.looking_instead(heard, output):
        found = _sight(_without(given))
        _check_prices(prices_given, found.look)
        view, why, source = _view(found.look, asked), why_none(found.look), asking.name_source(heard)
    page = statuses.status(found.look, view, found.daemon, {**price_book.LIST, **prices_given})
    return StatusSeen(page=page, source=source, at=units.read_instant(page.as_of) or time.time(), failure=why)


async def _read_freeze(daemon: asking.Daemon) -> deeds.FreezeStanding | None:
    """None: one that only shows pages says nothing of it."""
    try:
        return await daemon.read("/api/v1/freeze", deeds.FreezeStanding)
    except errors.Rejected:
        return None


def _freeze_at_once(page: statuses.StatusPage, standing: deeds.FreezeStanding | None) -> statuses.StatusPage:
    """A freeze holds from when the daemon heard of it; its page is as old as its last look."""
    if standing is None or not standing.frozen or (page.frozen_until or "") >= (standing.until or ""):
        return page
    return msgspec.structs.replace(page, frozen_until=standing.until, frozen_because=standing.reason)


def idle(
    output: str, everything: bool, sort: str, watch_every: Seconds | None, everywhere: bool, **given: Any
) -> None:
    read_scope(everywhere, given)
    asked = read_filter(given)

    def make() -> show.Shown:
        seen = see_rows(given, asked, output)
        if seen.failure:
            return show.Shown("", seen.failure)
        listed = telling.listed(seen.rows, everything=everything, sort=sort)
        if output in ("json", "yaml"):
            return show.Shown(show.encode([telling.line(row) for row in listed], output))
        first = _first_lines(seen.source, seen.rules)
        return show.Shown(pages.draw_idle(first, seen.rows, listed, str(asked), wide=output == "wide"))

    watch.present(make, watch_every)


class RowsSeen(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for, by whose word and rules, as of when. `failure`: why nothing can be told."""

    rows: list[telling.ApiRow]
    source: str
    rules: str
    at: Instant
    failure: click.ClickException | None = None


def see_rows(given: dict[str, Any], asked: ViewFilter, output: str) -> RowsSeen:
    heard = _ask(given, lambda daemon: _read_rows(daemon, asked))
    if isinstance(heard, asking.Told):
        page, rows = heard.answer
        why = _why_none_there(page)
        return RowsSeen(rows=rows, source=heard.whose, rules=page.rules.sentence, at=heard.at, failure=why)
    with asking.looking_instead(heard, output):
        found = _sight(_without(given))
        why, look = why_none(found.look), found.look
        view = _view(look, asked) if not why else answers.view(look.plan)
    rows = [telling.make_row(one, look.snapshot, look.plan.at) for one in view.workloads]
    rules, source = statuses.tell_rules(look, found.daemon).sentence, asking.name_source(heard)
    return RowsSeen(rows=rows, source=source, rules=rules, at=look.plan.at, failure=why)


async def _read_rows(
    daemon: asking.Daemon, asked: ViewFilter
) -> tuple[statuses.StatusPage, list[telling.ApiRow]]:
    """The page of the cluster, which refuses what is not there at all, and what was asked for."""
    filters = {"namespace": _text(asked.namespace), "model": _text(asked.model)}
    page, rows = await asyncio.gather(
        daemon.read("/api/v1/status", statuses.StatusPage, **filters), read_all_rows(daemon)
    )
    return page, [row for row in rows if asked.fits(row)]


_PAGE = 1000  # rows of one answer, at most


async def read_all_rows(daemon: asking.Daemon) -> list[telling.ApiRow]:
    """Page by page, in an order in which little moves; what comes twice, because something did, is one."""
    found: dict[str, telling.ApiRow] = {}
    cursor: str | None = None
    while True:
        page = await daemon.read(
            "/api/v1/workloads", telling.WorkloadsPage, sort="name", limit=str(_PAGE), cursor=cursor
        )
        before = len(found)
        found |= {row.uid: row for row in page.items}
        cursor = page.next
        if cursor is None or len(found) == before:
            return list(found.values())


def explain(
    target: str, namespace: str | None, output: str, watch_every: Seconds | None, **given: Any
) -> None:
    subject = subjects.find(target)
    if subject is not None:
        watch.present(lambda: subjects.tell(subject, target, output, given), watch_every)
    else:
        watch.present(lambda: tell_why(target, namespace, output, given), watch_every)


def tell_why(target: str, namespace: str | None, output: str, given: dict[str, Any]) -> show.Shown:
    with_patch = output in ("json", "yaml")
    heard = _ask_why(target, namespace, given)
    if isinstance(heard, asking.Told):
        (page, answer), source, now = heard.answer, heard.whose, heard.at
        rules, why = page.rules.sentence, _why_none_there(page)
        pods: Sequence[cluster.Pod] = ()
    else:
        with asking.looking_instead(heard, output):
            found = _sight(_without(given))
            look = found.look
            index = _find(look, target, {**given, "namespace": namespace or found.namespace})
        answer, why, now = _explain_one(look, index, with_patch=with_patch), why_none(look), look.plan.at
        rules, source = statuses.tell_rules(look, found.daemon).sentence, asking.name_source(heard)
        pods = [look.snapshot.pods[place] for place in look.snapshot.workloads[index].pods]
    if answer.sharing is None:
        answer = msgspec.structs.replace(answer, sharing=_look_at_sharing(answer, pods, given, now))
    chosen = sharing.choose_pod(pods)
    if answer.forecast is None and chosen is not None:
        answer = msgspec.structs.replace(answer, forecast=forecasts.know_nothing(chosen.name))
    if with_patch:
        return show.Shown(show.encode(answer, output), why)
    return show.Shown(pages.draw_why(_first_lines(source, rules), answer, now, wide=output == "wide"), why)


def _look_at_sharing(
    answer: answers.Explanation, pods: Sequence[cluster.Pod], given: dict[str, Any], now: Instant
) -> sharing.ShareTold | None:
    """By a look of one's own; None: it has no pod, or nobody may tell."""
    ref, chosen = answers.read_ref(answer.workload), sharing.choose_pod(pods)
    name = chosen.name if chosen is not None else next((gpu.pod for gpu in answer.gpus), None)
    if name is None:
        return None

    async def look(named: str) -> ShareWhy | None:
        async with share_why.open_explainer(given.get("kubeconfig"), given.get("context")) as explainer:
            return await explainer.explain(ref.namespace, named, now)

    try:
        why = interrupts.run(look(name))
    except errors.ClientError:
        return None
    return None if why is None else sharing.tell(why, ref, pods)


def _ask_why(
    target: str, namespace: str | None, given: dict[str, Any]
) -> asking.Told[tuple[statuses.StatusPage, answers.Explanation]] | asking.Untold:
    """Of what the daemon does not know by that name: of the workload that is meant; of what it does not know at all, a
    look of one's own tells more."""
    with contextlib.suppress(asking.UnknownThere):
        return _ask(given, lambda daemon: read_why(daemon, target, namespace))
    meant = acting.find(target, {**given, "namespace": namespace}).ref
    try:
        found = _ask(given, lambda daemon: read_why(daemon, kinds.typed(meant), meant.namespace))
    except asking.UnknownThere as unknown:
        return asking.Untold(unknown.format_message())
    acting.tell_meant(target, meant)
    return found


async def read_why(
    daemon: asking.Daemon, target: str, namespace: str | None
) -> tuple[statuses.StatusPage, answers.Explanation]:
    path = asking.path_of(target, namespace or daemon.door.own_namespace)
    page, answer = await asyncio.gather(
        daemon.read("/api/v1/status", statuses.StatusPage),
        daemon.read(f"{path}/explain", answers.Explanation),
    )
    return page, answer


def _find(look: stories.Look, target: str, given: dict[str, Any]) -> int:
    with show.refusals():
        index = verbs.pick(look.snapshot.workloads, target, given["namespace"])
    if index is None:  # the name of a pod, or a kind that only the server knows by that name; or one sentence why not
        meant = acting.find(target, given).ref
        acting.tell_meant(target, meant)
        index = next((index for index, each in enumerate(look.snapshot.workloads) if each.ref == meant), None)
    if index is None:
        raise show.failure("it changed at this very moment; repeat the command")
    return index


def _explain_one(look: stories.Look, index: int, *, with_patch: bool) -> answers.Explanation:
    """`with_patch`: what a pause would send is of interest for machines."""
    finding, evidence = look.explain(index)
    patch = look.patch_of(finding) if with_patch else None
    return answers.explanation(finding, evidence, patch, look.plan.at, look.snapshot.evidence)
