"""`fallow backtest --with sharing,scaling`: what all of it would have done, with what each part freed apart.

In: a past, the one rule by which is paused, which parts are played besides. Out: a table of the parts, or for machines:
GPU-hours freed, how many of these left the bill because nodes went, and the money; below it what is not known.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click
import msgspec

from fallow.doors.cli import show
from fallow.model import price_book, units
from fallow.model.units import Seconds
from fallow.sim import backtest as running
from fallow.sim import shelf, together

_COLUMNS = ("PART", "FREED", "LEFT THE BILL", "MONEY")
_WORDS = {
    together.IDLE: "idle pausing", together.SHARING: "sharing", together.SCALING: "scaling (nobody held these)",
}


def read_parts(text: str) -> frozenset[str]:
    """Besides idle pausing, which is always played."""
    asked = [word.strip() for word in text.split(",") if word.strip()]
    known = (together.SHARING, together.SCALING)
    if (text and not asked) or (unknown := [word for word in asked if word not in known]):
        said = show.plain(unknown[0] if asked else text)
        raise click.UsageError(f"--with: {said!r} is no part; known are {', '.join(known)}")
    return frozenset(asked)


def tell(
    past: shelf.PastWorld, notes: Sequence[str], trial: running.Trial, others: frozenset[str], *, interval: Seconds,
    book: price_book.ModelPrices, output: str,
) -> None:
    done = together.play(past.make_world, trial, others, interval=interval, book=book)
    said = [*notes, *_tell_unknown(done, others)]
    data = {"past": past.summary, "notes": said, "tried": trial.name, "together": msgspec.to_builtins(done)}
    if show.data(data, output):
        return
    show.prose(f"{past.summary}; looked at every {units.humane(interval)}", *said)
    click.echo()
    gone, money = sum(each.gone_gpu_hours for each in done.parts), sum(each.money for each in done.parts)
    rows = [_row(_WORDS[each.part], each.freed_gpu_hours, each.gone_gpu_hours, each.money) for each in done.parts]
    sums = [_row("in all", None, gone, money), _row("paid before", None, done.gpu_hours, done.money)]
    show.table(_COLUMNS, [*rows, *sums])
    click.echo()
    show.prose(
        "FREED: GPU-hours that nobody held any more, or anyway. LEFT THE BILL: of these, on nodes that were gone; each "
        "counts once: for a pause first, then for sharing, and only what nobody held for scaling.",
        f"{done.pauses} pauses, {done.regrets} regretted; {done.workloads_sharing} workloads shared a GPU; "
        f"{done.nodes_released} nodes released, {done.nodes_added} brought back; people waited "
        f"{units.humane(done.waited)} for what was paused, nodes included.",
    )


def _row(name: str, freed: float | None, gone: float, money: float) -> list[str]:
    return [name, "" if freed is None else f"{freed:,.1f} h", f"{gone:,.1f} h", f"${money:,.0f}"]


def _tell_unknown(done: together.Together, others: frozenset[str]) -> Iterator[str]:
    if done.unknown_gpu_hours >= 0.05:
        yield f"{done.unknown_gpu_hours:,.1f} GPU-hours might be shared, but nobody measured how much memory they need"
    if together.SHARING in others:
        yield "who shares is known from what it did in all its life: a controller finds that out only as it goes"
    if together.SCALING in others:
        yield "no pod is moved, for a past does not tell whether it may be: only nodes that nobody is on go"
    else:
        yield "without scaling no node goes: what is freed is room for others, and no money"
    if done.unpriced_gpu_hours >= 0.05:
        yield f"MONEY leaves out {done.unpriced_gpu_hours:,.1f} GPU-hours of models without a price"
