"""`fallow scale plan`: which nodes would be added and let go, who waits for one, and why every other node stays.

In: options that say which cluster and which daemon. Out: the plan of a running daemon, or of a look of one's own; as
tables or for machines. Nothing is changed: a policy's `mode` and the daemon's --scaling say who acts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import click

from fallow import logs
from fallow.doors import answers
from fallow.doors.answers import scaling
from fallow.doors.cli import asking, flags, interrupts, look, pages, show, where

_PATH: Final = "/api/v1/scaling"


def _plan(output: str, everything: bool, **given: Any) -> None:
    page, whose = see(given, output)
    if not show.data(page, output):
        click.echo(draw(page, whose, everything=everything), nl=False)


def see(given: dict[str, Any], output: str) -> tuple[scaling.ScalingPage, str]:
    """What a daemon plans, or a look of one's own; and whose it is."""
    found = asking.ask(given, lambda daemon: daemon.read(_PATH, scaling.ScalingPage))
    if isinstance(found, asking.Told):
        return found.answer, found.whose
    with asking.looking_instead(found, output):
        return _look(given), asking.name_source(found)


def _look(given: dict[str, Any]) -> scaling.ScalingPage:
    from fallow.wiring import scale_look  # a packing engine: --help does without

    own = {name: value for name, value in given.items() if name not in where.DAEMON_KEYS}
    options = flags.read_settings(own, look.UNUSED_VARIABLES)
    logs.set_up("default", "error")
    with show.refusals():
        made = interrupts.run_shortly(scale_look.look(options, tell=show.tell))
    return scaling.show(made.plan, made.sight, made.failure)


def draw(page: scaling.ScalingPage, whose: str, *, everything: bool = False) -> str:
    return pages.join(*filter(None, (show.fold(whose), *_draw(page, everything=everything))))


def _draw(page: scaling.ScalingPage, *, everything: bool) -> Iterator[str]:
    if page.unseen is not None:
        yield show.fold(f"Nothing is planned: {page.unseen}.")
    if not page.policies and page.unseen is None:
        yield show.fold("There is no AutoscalingPolicy: no node is added or let go. docs/operators/scaling.md begins "
                        "with one.")
        return
    for policy in page.policies:
        yield _draw_policy(policy, page.currency)
    if any(policy.grows or policy.releases for policy in page.policies):
        yield _tell_cost(page.per_hour, page.currency)
    if page.pods:
        rows = [(f"{one.namespace}/{one.pod}", one.held or one.fit, one.where or "-", one.because) for one in page.pods]
        yield show.grid(("WAITING POD", "MEANS", "WHERE", "WHY"), rows, below=("WHY",))
    fates = [one for one in page.nodes if everything or scaling.is_told(one)]
    if fates:
        rows = [(one.node, one.verdict, one.policy or "-", one.because) for one in fates]
        yield show.grid(("NODE", "VERDICT", "POLICY", "WHY"), rows, below=("WHY",), spare=("POLICY",))
    if len(fates) < len(page.nodes):
        hidden = answers.many(len(page.nodes) - len(fates), "node")
        yield show.fold(f"{hidden} in use or nobody's to let go are not shown; --all shows them.")


def _tell_cost(per_hour: float | None, currency: str) -> str:
    if per_hour is None:
        return show.fold("What this costs or saves together is not known: a price is missing.")
    return f"Together this {'costs' if per_hour > 0 else 'saves'} {abs(per_hour):,.2f} {currency} an hour."


def _draw_policy(policy: scaling.PolicyScaling, currency: str) -> str:
    found = list(scaling.tell_of_policy(scaling.ScalingPage(
        as_of=None, policies=(policy,), pods=(), nodes=(), per_hour=None, currency=currency, unseen=None
    ), policy.name))
    width = max(len(about) for about, _ in found)
    lines = [f"  {about:<{width}}  {show.fold(sentence, width + 4)}" for about, sentence in found]
    return "\n".join([f"AutoscalingPolicy {policy.name}", *lines])


_UNUSED: Final = frozenset({"namespace", "model_name"})

plan = look.LookCommand(
    "plan", callback=_plan, context_settings=flags.CONTEXT,
    params=[
        click.Option(["--all", "everything"], is_flag=True, help="Also nodes that are in use."),
        click.Option(["-o", "--output"], type=click.Choice(["table", "json", "yaml"]), default="table",
                     show_default=True, help="How to show it."),
        *(each for each in look.look_options() if each.name not in _UNUSED),
    ],
    help="Which nodes would be added and let go, at what cost, who waits for one, and why every other node stays. A "
    "running daemon is asked first; without one it is looked at anew, and then nobody knows since when a node is "
    "unneeded, nor what budgets forbid. Nothing is changed.\n\n\b\n"
    "  fallow scale plan\n  fallow scale plan --all -o json",
    short_help="Which nodes would be added and let go, and why.",
)
