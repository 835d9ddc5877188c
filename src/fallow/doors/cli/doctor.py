"""`fallow doctor`: is all there that fallow needs? A checklist, on a terminal or as JSON. It only looks.

In: the flags of a look. Out: a line for each check; exit code 1 where one failed or is not known.
"""

from __future__ import annotations

import textwrap
from typing import Any

import click

from fallow import logs
from fallow.clients import errors
from fallow.doors.answers import checkup
from fallow.doors.answers.checkup import CheckMark
from fallow.doors.cli import flags, interrupts, show, where
from fallow.doors.cli import look as looks
from fallow.wiring import checking, daemon

_COLOURS = {CheckMark.good: "green", CheckMark.doubtful: "yellow", CheckMark.bad: "red", CheckMark.unknown: "yellow"}
_INDENT = max(map(len, CheckMark)) + 2


def _doctor(output: str, **given: Any) -> None:
    options = flags.read_settings(given, looks.UNUSED_VARIABLES)
    logs.set_up("default", "error")

    async def look() -> checkup.Checkup:
        try:
            facts = await checking.gather(given["kubeconfig"], given["context"])
        except errors.ClientError as problem:
            return checkup.check(str(problem), "")
        try:
            sight: daemon.Sighting | str = await daemon.look(options, tell=show.tell)
        except errors.ClientError as problem:
            sight = str(problem)
        return checkup.check(facts, sight)

    with show.refusals():
        found = interrupts.run_shortly(look())
    click.echo(show.encode(found, output).rstrip() if output in ("json", "yaml") else draw(found))
    if not found.is_well:
        raise SystemExit(flags.EXIT_NO_DECISION)


def draw(found: checkup.Checkup) -> str:
    lines = []
    for each in found.checks:
        mark = click.style(each.mark.ljust(_INDENT), fg=_COLOURS[each.mark])
        lines.append(mark + show.fold(f"{each.name}: {each.found}", _INDENT))
        if each.helps:
            lines.append(" " * _INDENT + show.fold(f"What helps: {each.helps}", _INDENT))
    counts = {mark: sum(each.mark is mark for each in found.checks) for mark in CheckMark}
    summary = ", ".join(f"{count} {mark}" for mark, count in counts.items() if count)
    return "\n".join([*lines, "", f"fallow {found.version}: {summary}"])


# It looks itself, at everything.
_UNUSED = frozenset({"namespace", "model_name", *where.DAEMON_KEYS})

doctor = looks.LookCommand(
    "doctor", callback=_doctor, context_settings=flags.CONTEXT,
    params=[show.output_option, *(each for each in looks.look_options() if each.name not in _UNUSED)],
    help=textwrap.dedent("""\
        Is all there that fallow needs? The cluster, your rights, clocks, custom resources, GPU nodes, measurements,
        policies and the daemon, each with what to do next. It only looks; the exit code is 1 where something is
        missing.

        \b
          fallow doctor
          fallow doctor --prometheus-url http://localhost:9090 -o json
    """),
)
