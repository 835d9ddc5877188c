"""The demo in words, where nobody watches: a line for each hour, and the report at the end.

In: a Moment, and the sums of the day. Out: lines on standard output.
Invariant: money is only given for models that have a price, and what has none is said beside it.
"""

from collections.abc import Sequence
from typing import Any

import click

from fallow.doors.cli import demo_view as view
from fallow.doors.cli import show
from fallow.model import units
from fallow.sim import backtest


def hour_line(moment: view.Moment) -> str:
    """Where nobody watches: one line per simulated hour."""
    counted, total = moment.count(), moment.sums.total
    idle, free = counted[view.IDLE] + counted[view.NOTICE], counted[view.FREE] + counted[view.FREED]
    states = f"{counted[view.BUSY]} busy, {idle} idle, {counted[view.UNKNOWN]} cannot tell"
    parts = [
        f"{units.clock_time(moment.now)}  {states}, {free} free",
        f"{moment.sums.notices} notices, {total.pauses} pauses ({moment.paused} stand), {total.resumes} resumes, "
        f"{total.regrets} regretted",
        f"{total.reclaimed_gpu_hours:,.1f} GPU-hours reclaimed",
        *(["frozen"] if moment.frozen else []), *(f"fault {fault}" for fault in moment.faults),
    ]
    return "; ".join(parts)


def tell(title: str, sums: backtest.BacktestResult, measured: Sequence[str]) -> None:
    """The closing report, to standard output. `measured`: sentences on what it cost to find out."""
    total = sums.total
    asked = total.gpu_hours + total.reclaimed_gpu_hours
    share = total.reclaimed_gpu_hours / max(asked, 1e-9)
    click.echo()
    show.sentence(title)
    show.sentence(
        f"  {asked:,.0f} GPU-hours asked for; {total.reclaimed_gpu_hours:,.0f} reclaimed ({share:.0%}), "
        f"{view.say_money(total)}; {total.idle_gpu_hours:,.0f} more were idle: in their window or notice, kept by "
        "their owners, or too short"
    )
    show.sentence(
        f"  {sums.notices} notices, {total.acks} answered with \"keep it\"; {total.pauses} pauses, {total.resumes} "
        f"resumes, of which {total.complaints} by hand; {total.regrets} pauses regretted within 15m; "
        f"{units.humane(total.waited)} waited in all"
    )
    if sums.frozen_ticks or sums.lost_ticks:
        cycles = f"{sums.frozen_ticks} cycles frozen, {sums.lost_ticks} without a decision"
        show.sentence(f"  {cycles}: nothing was paused in these")
    for name, lines in (("CLASS", sums.by_class), ("NAMESPACE", sums.by_namespace)):
        click.echo()
        rows = [_cells(*item) for item in sorted(lines.items(), key=lambda item: -item[1].reclaimed_gpu_hours)]
        show.table([name, "WORKLOADS", "HELD", "IDLE", "RECLAIMED", "PAUSES", "REGRETS", "WAITED"], rows)
    click.echo()
    for sentence in measured:
        show.sentence(f"  {sentence}")


def _cells(name: str, line: backtest.BacktestSums) -> Sequence[Any]:
    hours = (f"{hours:,.0f} h" for hours in (line.gpu_hours, line.idle_gpu_hours, line.reclaimed_gpu_hours))
    return name, line.workloads, *hours, line.pauses, line.regrets, units.humane(line.waited)
