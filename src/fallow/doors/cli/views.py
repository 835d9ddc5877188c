"""What `status`, `idle` and `explain` do: one cycle up to the plan, and a page of it. Nothing is changed.

In: flags, of which -n and -m say what is shown and counted, and all others by which rules it is judged. Out: a page, or
the same as JSON or YAML. Without measurements it ends with 1, whichever verb was asked.
"""

from typing import Any

import click
import msgspec

from fallow import logs, settings, verbs
from fallow.doors.answers import status as statuses
from fallow.doors.answers import workloads as answers
from fallow.doors.cli import flags, interrupts, pages, show, watch
from fallow.doors.cli import look as looks
from fallow.doors.cli import verbs as acting
from fallow.model import gpus, prices
from fallow.model.patterns import Pattern
from fallow.model.policies import idle as policies
from fallow.model.seen import Unseen
from fallow.model.units import Seconds
from fallow.stories import idle as stories
from fallow.wiring import daemon


class ViewFilter(msgspec.Struct, frozen=True):
    """What is to be shown and counted; all else is as if it were not there."""

    namespace: Pattern | None = None
    model: Pattern | None = None

    def __str__(self) -> str:
        """In words, behind what is counted."""
        where = f" in namespaces that match {self.namespace.pattern}" if self.namespace else ""
        return where + (f" on GPUs that match {self.model.pattern}" if self.model else "")


def _sight(given: dict[str, Any]) -> tuple[daemon.Sighting, ViewFilter]:
    """One look at everything, judged by the flags; and what of it is asked for."""
    options = flags.read_settings(given, looks.UNUSED_VARIABLES)
    scope = options.mandate.scope
    wide = msgspec.structs.replace(scope, namespace=None, model=None)
    logs.set_up("default", "error")
    with show.refusals():
        found = interrupts.run(daemon.look(_within(options, wide), tell=show.tell))
    return found, ViewFilter(scope.namespace, scope.model)


def _within(options: settings.Settings, scope: policies.Scope) -> settings.Settings:
    mandate = msgspec.structs.replace(options.mandate, scope=scope)
    return msgspec.structs.replace(options, mandate=mandate)


def _failure(message: str) -> click.ClickException:
    return click.ClickException(show.plain(message))  # exit code 1


def _why_none(look: stories.Look) -> str:
    """Why there is no evidence, and what helps; "" where there is."""
    trouble = look.snapshot.evidence.trouble
    if trouble is None:
        return ""
    helps = statuses.help_source(trouble, asks_prometheus=look.options.prometheus is not None)
    return f"no decision possible: {trouble.because}. What helps: {helps}"


def _view(look: stories.Look, asked: ViewFilter) -> answers.Selection:
    """Refuses a namespace that is not there: an answer of nothing would be taken for one of no idleness."""
    view, places = answers.view(look.plan, asked.namespace, asked.model), look.snapshot.namespaces
    if view.workloads:
        return view
    known = places.known if not isinstance(places.rest, Unseen) else None
    if asked.namespace is not None and known is not None and not any(map(asked.namespace.fullmatch, known)):
        raise _failure(f"there is no namespace {asked.namespace.pattern}, and none that it matches as an expression")
    if asked.model is not None and look.snapshot.evidence.trouble is None:
        every = {model for one in answers.view(look.plan).workloads for model in one.finding.models}
        there = f"there are: {', '.join(sorted(every)) or 'none that is known'}"
        where = ViewFilter(asked.namespace)
        raise _failure(f"no workload{where} has only GPUs that match {asked.model.pattern}; {there}")
    return view


def _read_scope(everywhere: bool, given: dict[str, Any]) -> None:
    if everywhere and given.get("namespace") is not None:
        raise click.UsageError("say either -n or -A")


def _read_prices(texts: tuple[str, ...]) -> prices.Book:
    """Those that were given."""
    try:
        return prices.read_prices(texts)
    except ValueError as problem:
        raise click.UsageError(f"--price: {show.plain(problem)}") from None


def _check_prices(given: prices.Book, look: stories.Look) -> None:
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


def status(output: str, watch_every: Seconds | None, everywhere: bool, price: tuple[str, ...], **given: Any) -> None:
    _read_scope(everywhere, given)
    prices_given = _read_prices(price)

    def make() -> show.Shown:
        found, asked = _sight(given)
        _check_prices(prices_given, found.look)
        view, why = _view(found.look, asked), _why_none(found.look)
        page = statuses.status(found.look, view, found.daemon, {**prices.DEFAULT, **prices_given})
        if output in ("json", "yaml"):
            return show.Shown(show.encode(page, output), why)
        return show.Shown(pages.draw_status(page, str(asked), view.at), why)

    watch.present(make, watch_every)


def idle(output: str, everything: bool, watch_every: Seconds | None, everywhere: bool, **given: Any) -> None:
    _read_scope(everywhere, given)

    def make() -> show.Shown:
        found, asked = _sight(given)
        if why := _why_none(found.look):
            return show.Shown("", why)
        view, seen = _view(found.look, asked), found.look.snapshot
        listed = answers.listed(view, everything=everything)
        rows = [answers.row(one, view.at, statuses.find_cost(one, seen, prices.DEFAULT)) for one in listed]
        if output in ("json", "yaml"):
            return show.Shown(show.encode(rows, output))
        rules, shown = statuses.tell_rules(found.look, found.daemon), list(zip(listed, rows, strict=True))
        return show.Shown(pages.draw_idle(rules.sentence, view, shown, str(asked), wide=output == "wide"))

    watch.present(make, watch_every)


def explain(
    target: str, namespace: str | None, output: str, watch_every: Seconds | None, **given: Any
) -> None:
    def make() -> show.Shown:
        found, _ = _sight({**given, "namespace": None})
        look = found.look
        index = _find(look, target, {**given, "namespace": namespace or found.namespace})
        answer = _explain_one(look, index, with_patch=output in ("json", "yaml"))
        why = _why_none(look)
        if output in ("json", "yaml"):
            return show.Shown(show.encode(answer, output), why)
        rules, lost = statuses.tell_rules(look, found.daemon).sentence, look.snapshot.evidence.lost_signals
        unseen = [
            *((f"signal {one.signal}", one.because) for one in lost),
            *((one.who, one.because) for one in look.snapshot.evidence.ignored),
        ]
        finding, wide = look.plan.findings[index], output == "wide"
        return show.Shown(pages.draw_why(rules, finding, answer, unseen, look.plan.at, wide=wide), why)

    watch.present(make, watch_every)


def _find(look: stories.Look, target: str, given: dict[str, Any]) -> int:
    with show.refusals():
        index = verbs.pick(look.snapshot.workloads, target, given["namespace"])
    if index is None:  # the name of a pod, or a kind that only the server knows by that name; or one sentence why not
        meant = acting.find(target, given).ref
        acting.tell_meant(target, meant)
        index = next((index for index, each in enumerate(look.snapshot.workloads) if each.ref == meant), None)
    if index is None:
        raise _failure("it changed at this very moment; repeat the command")
    return index


def _explain_one(look: stories.Look, index: int, *, with_patch: bool) -> answers.Explanation:
    """`with_patch`: what a pause would send is of interest for machines."""
    (finding, evidence), seen = look.explain(index), look.snapshot
    patch = look.patch_of(finding) if with_patch else None
    one = answers.count(look.plan, index)
    cost = statuses.find_cost(one, seen, prices.DEFAULT, of_all=True)
    return answers.explanation(finding, evidence, patch, look.plan.at, seen.evidence.lost_signals, cost)
