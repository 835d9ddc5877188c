"""How well each node is measured, and each source: what the page of nodes shows.

In: the field of one edition with its snapshot and usage, and how each node was measured in the last day. Out: a
NodesPage. Invariant: what is not known of a node is None or said in words, never 0.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal, TypeAlias

import msgspec
import numpy as np

from fallow.doors import answers
from fallow.doors.answers import boards, field
from fallow.model import cluster, price_book, shares, units, usage
from fallow.model.history import Condition
from fallow.model.units import DAY, Instant

_SILENT_AFTER: Final = 3 * units.MINUTE
_LAYOUTS: Final = {"whole": "whole", "mig": "MIG", "slices": "time-slicing", "mps": "MPS"}


class ExporterTold(answers.Shape, frozen=True, kw_only=True):
    state: Literal["up", "silent", "suspect", "utilisationOnly", "none", "unseen"]
    words: str


class CoverageTold(answers.Shape, frozen=True, kw_only=True):
    """Of the last day: `ratio` of as much of it as is known, `gaps` in all of it, also the time before anybody was
    here. Where nothing of it is known: of the window of the rules."""

    ratio: float | None
    gaps: tuple[tuple[str, str], ...]


class NodeRow(answers.Shape, frozen=True, kw_only=True):
    name: str
    pool: str
    model: str | None
    layout: str
    gpus: float
    held: float
    activity: float | None
    ready: bool | None
    exporter: ExporterTold
    newest_seconds: float | None
    coverage: CoverageTold
    per_hour: float | None


class SourceTold(answers.Shape, frozen=True, kw_only=True):
    name: str
    state: Literal["ok", "trouble", "partial", "unseen"]
    headline: str
    detail: str
    effect: str


class NodesPage(answers.Shape, frozen=True, kw_only=True):
    revision: int
    sources: tuple[SourceTold, ...]
    nodes: tuple[NodeRow, ...]


class NodeColumns(msgspec.Struct, frozen=True):
    """What the rows of a node's pods say: how old the newest sample is, how well the worst one is covered."""

    newest: float | None
    coverage: float | None
    is_down: bool
    is_frozen: bool
    is_coarse: bool  # nothing but utilisation


def measure_nodes(seen: cluster.Snapshot, measured: boards.UsageRows, now: Instant) -> Mapping[str, NodeColumns]:
    use = measured.use
    if use is None or not use.rows:
        return {}
    newest, best = np.full(use.rows, np.nan), np.zeros(use.rows)
    for column in use.newest.values():
        newest = np.fmax(newest, column)
    for samples in use.count.values():
        best = np.fmax(best, samples * use.interval / use.window)
    fine = np.zeros(use.rows, np.bool_)
    for signal in usage.PRIMARIES:
        if signal in use.peak and signal is not usage.Signal.gpu_util:
            fine |= ~np.isnan(use.peak[signal])
    by_node: dict[str, list[int]] = defaultdict(list)
    for row, pod in enumerate(use.pod.tolist()):
        by_node[seen.pods[pod].node].append(row)
    return {
        node: NodeColumns(
            _known(now - float(np.nanmax(newest[some]))) if not np.isnan(newest[some]).all() else None,
            _known(float(min(1.0, best[some].min()))), bool((~use.exporter_up[some]).any()),
            bool(use.exporter_frozen[some].any()), bool((~fine[some]).all()),
        )
        for node, some in by_node.items()
    }


def _known(value: float) -> float | None:
    return round(max(0.0, value), 3) if math.isfinite(value) else None


Stretch: TypeAlias = tuple[Instant, Instant]  # from, until


def cover_day(past: Sequence[tuple[Instant, Condition | None]], away: Iterable[Stretch], now: Instant) -> CoverageTold:
    """`past`: since when a node is measured, or not, the oldest first; `away`: when nobody was here to see."""
    began, ends = now - DAY, [at for at, _ in past[1:]] + [now]
    known = max(began, past[0][0])
    silent = [(at, end) for (at, condition), end in zip(past, ends, strict=True) if condition is not Condition.busy]
    gaps = _unite([(began, known), *((max(begin, known), end) for begin, end in (*silent, *away))])
    missed = sum(end - max(begin, known) for begin, end in gaps if end > known)
    return CoverageTold(
        ratio=round(1 - missed / (now - known), 4) if now > known else None,
        gaps=tuple((units.rfc3339(begin), units.rfc3339(end)) for begin, end in gaps),
    )


def _unite(stretches: Iterable[Stretch]) -> list[Stretch]:
    """In their order, those that touch as one, and none that has no length."""
    found: list[Stretch] = []
    for begin, end in sorted(each for each in stretches if each[1] > each[0]):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((begin, end))
    return found


def show_nodes(
    page: field.FieldPage, seen: cluster.Snapshot, measured: boards.UsageRows, now: Instant,
    day: Mapping[str, CoverageTold], *, book: price_book.ModelPrices,
) -> tuple[NodeRow, ...]:
    """`day`: how well each was measured in the last day, where that is known."""
    columns = measure_nodes(seen, measured, now)
    return tuple(
        _show_row(
            pool, node, seen, columns.get(node.name), day.get(node.name), field.find_price(seen, node.name, book)
        )
        for pool in page.pools for node in pool.nodes
    )


def _show_row(
    pool: field.PoolShown, node: field.NodeShown, seen: cluster.Snapshot, said: NodeColumns | None,
    day: CoverageTold | None, price: float | None,
) -> NodeRow:
    held = sum(slot.share for gpu in node.gpus for slot in gpu.slots if slot.holder is not None)
    known = seen.nodes.known.get(node.name)
    times = f" × {shares.replicas_of(known)}" if known is not None and node.layout in ("slices", "mps") else ""
    return NodeRow(
        name=node.name, pool=pool.name, model=pool.model, layout=f"{_LAYOUTS[node.layout]}{times}",
        gpus=float(len(node.gpus)), held=round(held, 3), activity=node.activity, ready=node.ready,
        exporter=_tell_exporter(node, seen, said, is_held=held > 0), newest_seconds=said.newest if said else None,
        coverage=day or CoverageTold(ratio=said.coverage if said else None, gaps=()),
        per_hour=None if price is None else round(price * len(node.gpus), 2),
    )


def _tell_exporter(
    node: field.NodeShown, seen: cluster.Snapshot, said: NodeColumns | None, *, is_held: bool
) -> ExporterTold:
    if seen.evidence.trouble is not None:
        return ExporterTold(state="unseen", words="Not asked: the source gave nothing")
    if said is None and seen.evidence.gpus_per_node.get(node.name):
        return ExporterTold(state="up", words="Up" if not is_held else "Up; names no pod of ours")
    if said is None:
        return ExporterTold(state="none", words="No series")
    if said.is_down or (said.newest is not None and said.newest > _SILENT_AFTER):
        quiet = "" if said.newest is None else f" for {units.spoken(said.newest)}"
        return ExporterTold(state="silent", words=f"Silent{quiet}")
    if said.is_frozen:
        return ExporterTold(state="suspect", words="Repeats itself")
    return ExporterTold(state="utilisationOnly", words="Utilisation only") if said.is_coarse else ExporterTold(
        state="up", words="Up"
    )


def show_sources(
    seen: cluster.Snapshot, nodes: Sequence[NodeRow], *, source: str, now: Instant
) -> tuple[SourceTold, ...]:
    return (_tell_source(seen, source, now), _tell_exporters(nodes), _tell_watch(seen), *_tell_lost(seen))


def _tell_source(seen: cluster.Snapshot, source: str, now: Instant) -> SourceTold:
    trouble = seen.evidence.trouble
    if trouble is not None:
        return SourceTold(
            name=source, state="trouble", headline=trouble.reason, detail=trouble.because, effect="no verdicts"
        )
    age = units.spoken(now - seen.evidence.at)
    return SourceTold(name=source, state="ok", headline="answers", detail=f"asked {age} ago", effect="verdicts")


def _tell_exporters(nodes: Sequence[NodeRow]) -> SourceTold:
    bad = [node for node in nodes if node.exporter.state in ("silent", "suspect", "none") and node.held]
    held = sum(node.held for node in bad)
    well = f"{len(nodes) - len(bad)} of {answers.many(len(nodes), 'node')}"
    if not bad:
        return SourceTold(name="Exporters", state="ok", headline=well, detail="all of them measured", effect="verdicts")
    named = ", ".join(f"{node.name}: {node.exporter.words.lower()}" for node in bad[:3])
    more = f" and {len(bad) - 3} more" if len(bad) > 3 else ""
    return SourceTold(
        name="Exporters", state="trouble", headline=well, detail=f"{named}{more}",
        effect=f"{held:g} GPUs cannot be told",
    )


def _tell_watch(seen: cluster.Snapshot) -> SourceTold:
    count = f"{answers.many(len(seen.pods), 'GPU pod')}, {answers.many(len(seen.nodes.known), 'node')}"
    if not seen.missing:
        return SourceTold(
            name="Kubernetes watch", state="ok", headline="in sync", detail=count, effect="owners, pods, capacity"
        )
    first = seen.missing[0]
    return SourceTold(
        name="Kubernetes watch", state="partial", headline=f"{len(seen.missing)} not seen",
        detail=f"{first.what}: {first.because}", effect="what rests on it cannot be told",
    )


def _tell_lost(seen: cluster.Snapshot) -> Iterator[SourceTold]:
    for lost in seen.evidence.lost_signals:
        yield SourceTold(
            name=f"Signal {lost.signal}", state="partial", headline="not read", detail=lost.because,
            effect="GPUs are judged by the other signals",
        )
