"""`fallow cost export`: the books, hour by hour, into a file: CSV, JSON, Parquet, or FOCUS.

In: a window, a format, a file. Out: the file, whole or not at all: it is written beside and moved into place. A day at
a time is asked for, so that memory holds one day.
"""

from __future__ import annotations

import contextlib
import csv
import itertools
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Final

import click
import msgspec

from fallow.doors.answers import cost_hours
from fallow.doors.answers.cost_hours import HourRow
from fallow.doors.cli import cost_pages, cost_source, flags, show
from fallow.doors.cli.cost_source import CostQuestion
from fallow.model import calendar, cost, units, windows
from fallow.model.windows import TimeSpan

_NO_DUCKDB: Final = (
    "Parquet needs DuckDB, which is not installed: pip install 'fallow[export]'; --format csv needs nothing"
)


def _export(form: str, last: str | None, begin: str | None, end: str | None, out: str, **given: Any) -> None:
    if form == "parquet" and out == "-":
        raise click.UsageError("--out: a Parquet file cannot go to standard output; name a file")
    if form == "parquet":
        _load_duckdb()
    span = windows.read_window(cost_source.read_window(last, begin, end, "30d"), time.time())
    days = _cut(span)
    with _writing(out) as file:
        count = _write(file, form, given, days)
    if out != "-":
        show.tell(f"{count:,} rows of {units.humane(span.seconds)} are in {out}")


def _cut(span: TimeSpan) -> list[TimeSpan]:
    """By day of the clock, so that an hour is never divided between two."""
    return [TimeSpan(*piece) for piece in calendar.cut(span.begin, span.end, cost.CostStep.day, "UTC")]


def _write(file: IO[str], form: str, given: dict[str, Any], days: Sequence[TimeSpan]) -> int:
    count, rows = 0, _begin(_read(given, days))
    if form == "json":
        file.write("[")
        for count, row in enumerate(rows, 1):
            file.write((",\n" if count > 1 else "\n") + msgspec.json.encode(row).decode())
        file.write("\n]\n")
        return count
    if form == "parquet":
        return _write_parquet(file, rows)
    is_focus = form == "focus"
    columns = cost_hours.FOCUS if is_focus else HourRow.__struct_fields__
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    for day in _by_day(rows):
        fields = cost_hours.make_focus(day) if is_focus else (msgspec.structs.asdict(row) for row in day)
        for each in fields:
            writer.writerow([_cell(each[name]) for name in columns])
            count += 1
    return count


def _begin(rows: Iterator[HourRow]) -> Iterator[HourRow]:
    """The first is read before anything is written: where nobody answers, nothing is."""
    first = list(itertools.islice(rows, 1))
    return itertools.chain(first, rows)


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    return cost_pages.plain_cell(msgspec.json.encode(value).decode() if isinstance(value, dict) else value)


def _by_day(rows: Iterator[HourRow]) -> Iterator[list[HourRow]]:
    held, day = list[HourRow](), ""
    for row in rows:
        if row.bucket[:10] != day and held:
            yield held
            held = []
        day = row.bucket[:10]
        held.append(row)
    if held:
        yield held


def _read(given: dict[str, Any], days: Sequence[TimeSpan]) -> Iterator[HourRow]:
    for day in days:
        window = f"{units.rfc3339(day.begin)},{units.rfc3339(day.end)}"
        page = cost_source.ask(given, CostQuestion(
            "/api/v1/cost/hours", {"window": window}, cost_hours.HoursPage,
            lambda books, now, day=day: cost_hours.read_hours(books, day),  # type: ignore[misc]
        )).answer
        yield from page.items


# ---- the file --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _writing(out: str) -> Iterator[IO[str]]:
    """A file that is there is replaced when all is written, and stays as it was where something fails. A pipe or a
    device is written to: replaced, it would be one no longer, for anybody."""
    if out == "-":
        yield sys.stdout
        return
    is_file, target = not Path(out).exists() or Path(out).is_file(), Path(out).resolve()  # what a link leads to
    with contextlib.ExitStack() as opened:
        try:
            name = _make_beside(target) if is_file else out
            file = opened.enter_context(Path(name).open("w", newline="", encoding="utf-8"))
        except OSError as problem:
            raise click.UsageError(show.plain(f"--out: {out} cannot be written: {problem.strerror}")) from None
        try:
            yield file
            opened.close()
            if is_file:
                Path(name).replace(target)
        except BaseException:
            if is_file:
                Path(name).unlink(missing_ok=True)
            raise


def _make_beside(target: Path) -> str:
    number, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    os.close(number)
    return name


def _write_parquet(file: IO[str], rows: Iterator[HourRow]) -> int:
    """By way of CSV: DuckDB reads it in pieces, and says of which type each column is."""
    duckdb, count = _load_duckdb(), 0
    numbers = (
        "cost", "use_cost", "list_cost", "gpu_hours", "unpriced_gpu_hours", "energy_kwh", "energy_cost",
        "energy_co2_kg",
    )
    columns = HourRow.__struct_fields__
    with tempfile.NamedTemporaryFile("w", suffix=".csv", newline="", encoding="utf-8") as plain:
        writer = csv.writer(plain, lineterminator="\n")
        writer.writerow(columns)
        for row in rows:
            values = (getattr(row, name) for name in columns)
            writer.writerow([msgspec.json.encode(one).decode() if isinstance(one, dict) else one for one in values])
            count += 1
        plain.flush()
        types = {name: "DECIMAL(28, 9)" if name in numbers else "VARCHAR" for name in columns}
        types |= {"bucket": "TIMESTAMP", "bucket_end": "TIMESTAMP"}
        on = duckdb.connect()
        read = f"read_csv({_quote(plain.name)}, header = true, columns = {types!r}, nullstr = '')"
        on.execute(f"COPY (SELECT * FROM {read}) TO {_quote(file.name)} (FORMAT parquet)")
        on.close()
    return count


def _quote(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _load_duckdb() -> Any:
    import importlib

    try:
        return importlib.import_module("duckdb")
    except ImportError:
        raise click.ClickException(_NO_DUCKDB) from None


export = click.Command(
    "export", callback=_export, context_settings=flags.CONTEXT,
    params=[
        click.Option(["-o", "--format", "form"], type=click.Choice(["csv", "json", "parquet", "focus"]), default="csv",
                     show_default=True, help="csv, json, parquet: every hour as the books have it; focus: FOCUS 1.2."),
        click.Option(["--last"], default=None, metavar="DURATION", help="How far back.  [default: 30d]"),
        click.Option(["--from", "begin"], metavar="TIME", help="Instead: since when, a day or an instant."),
        click.Option(["--to", "end"], metavar="TIME", help="Until before; default: now."),
        click.Option(["--out"], default="-", show_default=True, metavar="FILE", help="Where to; -: standard output."),
        *cost_source.options(),
    ],
    help="Write the books, hour by hour, into a file: each row what one workload (or nobody) cost on one node in one "
    "hour, with team, project and labels. Money is not rounded here.\n\n\b\n"
    "  fallow cost export --last 30d --out costs.csv\n"
    "  fallow cost export --format focus --from 2026-10-01 --to 2026-11-01 --out focus.csv",
)
