"""Laying out answers: tables for people, JSON and YAML for machines. rich and yaml are imported only when they are needed.

Text from the cluster (names, reasons) is never read as markup, and control characters in it are shown, not obeyed.
"""

from collections.abc import Sequence
from typing import Any

import click
import msgspec

STYLES = {"idle": "yellow", "active": "green", "unknown": "cyan", "paused": "magenta"}

output_option = click.Option(
    ["-o", "--output"], type=click.Choice(["table", "wide", "json", "yaml"]), default="table", show_default=True, help="How to show it."
)


def data(value: Any, output: str) -> None:
    """JSON or YAML to standard output."""
    if output == "yaml":
        import yaml

        click.echo(yaml.safe_dump(value, sort_keys=False, allow_unicode=True), nl=False)
    else:
        click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2))


def plain(text: Any) -> str:
    """Text safe to print: no escape sequence from a label reaches the terminal."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in str(text))


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]], *, styled: str | None = None) -> None:
    """A table; the column named `styled` is coloured by its word."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=max(160, console.width))
    grid = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        grid.add_column(column, overflow="fold", justify="right" if column in ("GPUS", "WORKLOADS", "SAMPLES") else "left")
    for row in rows:
        grid.add_row(*(
            Text(plain(cell), style=STYLES.get(str(cell), "") if column == styled else "")
            for column, cell in zip(columns, row, strict=True)
        ))
    console.print(grid)


def sentence(text: str) -> None:
    click.echo(plain(text))
