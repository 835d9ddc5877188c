"""Commands whose options come from the table of flags in settings, and what all share: exit codes, help, settings."""

from collections.abc import Callable, Container, Mapping
from typing import Any

import click

from fallow import settings
from fallow.doors.cli import main
from fallow.settings import config_file

CONTEXT = main.CONTEXT
EXIT_NO_DECISION = 1
EXIT_USAGE = 2
EXIT_ACTION_FAILED = 3
EXIT_FROZEN = 4
_OWN = "Options"


class FlagCommand(main.Door):
    """A command whose options come from settings.FLAGS; --help shows its own first, and then those flags by group.
    `own`: flags that are as much its own as those that no other command has. `is_brief`: --help shows nothing but
    those, --help-all the rest."""

    own: frozenset[str] = frozenset()
    is_brief = False

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        return [*super().get_params(ctx), *([_help_all] if self.is_brief else [])]

    def group_options(self, ctx: click.Context) -> dict[str, list[tuple[str, str]]]:
        """Each as spelled, and what it is for, by heading."""
        groups: dict[str, list[tuple[str, str]]] = {_OWN: []}
        by_key = {flag.key: flag.group for flag in settings.FLAGS if flag.name not in self.own}
        for option in self.get_params(ctx):
            if isinstance(option, click.Argument):  # the usage line has it
                continue
            record = option.get_help_record(ctx)
            if record is not None:
                groups.setdefault(by_key.get(option.name or "", _OWN), []).append(record)
        return groups

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups = self.group_options(ctx)
        shown = groups if ctx.meta.get(_ALL) or not self.is_brief else {_OWN: groups[_OWN]}
        for title, records in shown.items():  # the version and --help are always there
            with formatter.section(title):
                formatter.write_dl(records)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if ctx.meta.get(_ALL) or not self.is_brief:
            super().format_epilog(ctx, formatter)


_ALL = "fallow.help.all"


def _show_all(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        ctx.meta[_ALL] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


_help_all = click.Option(
    ["--help-all"], is_flag=True, expose_value=False, is_eager=True, callback=_show_all,
    help="Also show the flags by which a look of one's own judges.",
)


_COMPLETED = {"--context": "contexts", "--namespace": "namespaces"}  # by whom in completing.py


def _complete(by: str) -> Callable[[click.Context, click.Parameter, str], list[Any]]:
    """Loaded when a shell asks: --help does without it."""

    def complete(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[Any]:
        offered: list[Any] = getattr(main.load("completing"), by)(ctx, parameter, incomplete)
        return offered

    return complete


def flag_option(flag: settings.Flag) -> click.Option:
    spelled = [*filter(None, (flag.short, flag.name)), flag.key]
    shown = f"{flag.help} [default: {flag.default}]" if flag.default else flag.help
    if flag.variable:
        shown += f" [env: {flag.variable}]"
    if flag.switch:
        return click.Option(spelled, is_flag=True, help=shown)
    by = _COMPLETED.get(flag.name)
    return click.Option(
        spelled, type=str, multiple=flag.repeat, default=None, metavar=flag.metavar, help=shown,
        shell_complete=_complete(by) if by else None,
    )


def flag_options(*without: str) -> list[click.Parameter]:
    """Click options for all flags but these."""
    return [flag_option(flag) for flag in settings.FLAGS if flag.name not in without]


def read_settings(
    given: dict[str, Any], ignoring: Container[str] = (), usual: Mapping[str, Any] | None = None
) -> settings.Settings:
    """`ignoring`: variables of flags that the command does not take. `usual`: what holds where nobody says
    otherwise."""
    environ = {name: value for name, value in settings.environment().items() if name not in ignoring}
    try:
        return settings.read_flags(config_file.complete(given, environ, usual), environ)
    except settings.UsageError as problem:
        raise click.UsageError(str(problem)) from None
