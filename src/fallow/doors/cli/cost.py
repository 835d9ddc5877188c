"""`fallow cost`: by itself, what GPUs cost; with a command, more. Commands are imported when they are called, as those
of `fallow` are.

Invariant: an option that stands before a command would be lost without a word, and is refused.
"""

from __future__ import annotations

from typing import Any

import click
from click.core import ParameterSource

from fallow.doors.cli import cost_reports, cost_source, flags, main

# command -> (module, attribute, one line of help)
COMMANDS: dict[str, tuple[str, str, str]] = {
    "report": ("cost_reports", "report", "Who caused which costs, by whatever you like, to the cent."),
    "roi": ("cost_reports", "roi", "What was saved, and whether it is worth what we cost."),
    "prices": ("cost_reports", "prices", "Prices that were used, their source and age; and what has none."),
    "export": ("cost_export", "export", "The books, hour by hour, as CSV, JSON, Parquet or FOCUS."),
    "budget": ("budgets", "budget", "List CostBudgets, show one, or with `test NAME` try its channels."),
    "override": ("budgets", "override", "Let an exceeded CostBudget restrict nobody for a while."),
    "lift": ("budgets", "lift", "Let the pods go on that wait behind a CostBudget's gate."),
}


class CostGroup(main.SpellingGroup):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[cmd_name]
        command: click.Command = getattr(main.load(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, _, text) in COMMANDS.items()])


def _cost(**given: Any) -> None:
    ctx = click.get_current_context()
    if ctx.invoked_subcommand is None:
        cost_reports.show_cost(**given)
        return
    typed = [name for name in given if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    if typed:
        command = ctx.invoked_subcommand
        raise click.UsageError(f"options of `cost {command}` stand behind it: {ctx.command_path} {command} ...")


cost = CostGroup(
    "cost", callback=_cost, invoke_without_command=True, context_settings=flags.CONTEXT,
    params=[
        *cost_reports.whose_options(), cost_reports.last_option("7d"),
        cost_source.format_option("summary", "detailed", "table", "json", "csv"),
        click.Option(["--roi"], is_flag=True, help="And what was saved."), cost_reports.invested_option(),
        *cost_source.options(),
    ],
    help="What GPUs cost: where the money went, by whom, and day by day. A running daemon is asked, or the ledger that "
    "--cost-store names.\n\nUsed; held, not used; held idle; cannot tell (nobody measured it, and it is never called "
    "idle): the team's. Nobody held it: the platform's. What has no price is hours, never money.\n\n\b\n"
    "  fallow cost --last 7d\n  fallow cost -n ml-team --last 30d --roi\n  fallow cost report --by team",
)
