"""Commands whose options come from the table of flags in settings, and what all share: exit codes, help, settings."""

import sys
from collections.abc import Callable, Container
from typing import Any

import click

from fallow import __version__, settings
from fallow.doors.cli import main

CONTEXT = main.CONTEXT
EXIT_NO_DECISION = 1
EXIT_USAGE = 2
EXIT_ACTION_FAILED = 3
EXIT_FROZEN = 4
_OWN = "Options"


class FlagCommand(main.Door):
    """A command whose options come from settings.FLAGS; --help shows its own first, and then those flags by group.
    `own`: flags that are as much its own as those that no other command has."""

    own: frozenset[str] = frozenset()

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {_OWN: []}
        by_key = {flag.key: flag.group for flag in settings.FLAGS if flag.name not in self.own}
        for option in self.get_params(ctx):
            record = option.get_help_record(ctx)
            if record is not None:
                groups.setdefault(by_key.get(option.name or "", _OWN), []).append(record)
        for title, records in groups.items():  # the version and --help are always there
            with formatter.section(title):
                formatter.write_dl(records)


def _refuse(what: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def refuse(ctx: click.Context, parameter: click.Parameter, value: Any) -> None:
        if value is not None:
            raise click.UsageError(f"{parameter.opts[0]} belongs to {what}, which this version does not have yet")

    return refuse


def flag_option(flag: settings.Flag) -> click.Option:
    spelled = [*filter(None, (flag.short, flag.name)), flag.key]
    shown = f"{flag.help} [default: {flag.default}]" if flag.default else flag.help
    if flag.variable:
        shown += f" [env: {flag.variable}]"
    if flag.switch:
        return click.Option(spelled, is_flag=True, help=shown)
    return click.Option(spelled, type=str, multiple=flag.repeat, default=None, metavar=flag.metavar, help=shown)


def flag_options(*without: str) -> list[click.Parameter]:
    """Click options for all flags but these."""
    return [flag_option(flag) for flag in settings.FLAGS if flag.name not in without]


def later_options() -> list[click.Parameter]:
    """Flags of capabilities that are not in this version: a clear usage error rather than a promise not kept."""
    return [
        click.Option([name], hidden=True, default=None, expose_value=False, callback=_refuse(what))
        for name, what in settings.NOT_YET.items()
    ]


def read_settings(given: dict[str, Any], ignoring: Container[str] = ()) -> settings.Settings:
    """`ignoring`: variables of flags that the command does not take."""
    environ = {name: value for name, value in settings.environment().items() if name not in ignoring}
    try:
        return settings.read_flags(given, environ)
    except settings.UsageError as problem:
        raise click.UsageError(str(problem)) from None


def _start(**given: Any) -> None:
    options = read_settings(given)  # before anything heavy is imported: a usage error answers at once
    sys.exit(main.load("prune").start(options))


gpu_pruner = FlagCommand(
    "gpu-pruner", callback=_start, params=[*flag_options(), *later_options()], context_settings=CONTEXT,
    help="Pauses workloads that hold GPUs and do not use them; they come back at a click.\n\n"
    "By default it looks once, says what it would do (dry-run), and exits: 0 done, 1 no decision possible, 2 usage "
    "error, 3 something failed, 4 frozen.",
)
click.version_option(__version__, "-V", "--version", prog_name="gpu-pruner", message="%(prog)s %(version)s")(gpu_pruner)
