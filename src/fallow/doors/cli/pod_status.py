"""`gpu-autoscaler status`, and `fallow status --pods`: what every GPU in a pod's hands does now, and how full it is.

In: options that say which cluster and which Prometheus; -n and -m do not change the summary, which is of the cluster.
Out: a table with a line below it, or the same as JSON or YAML. Exit codes as of `fallow optimize`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from fallow import logs
from fallow.doors import answers
from fallow.doors.cli import flags, interrupts, look, pages, show
from fallow.model.patterns import Pattern

COLUMNS: Final = ("NAMESPACE", "POD", "NODE", "GPU", "GPU_UTIL", "MEM_UTIL", "MEM_USED", "POWER", "TEMP")
_NO_SOURCE: Final = "there is no Prometheus to ask what GPUs do: name one with --prometheus-url, or ask a daemon: " \
                    "fallow status"


class PodGpu(answers.Shape, frozen=True, kw_only=True):
    """Ratios 0 to 1, MiB, watts, degrees Celsius. None: not known; `gpu` None: no series names one."""

    namespace: str
    pod: str
    node: str
    gpu: str | None
    gpu_util: float | None
    mem_util: float | None
    mem_used_mib: float | None
    power_watts: float | None
    temp_celsius: float | None


class ClusterNow(answers.Shape, frozen=True, kw_only=True):
    """Of nodes whose room is known; `notes`: which are not. `busy`: GPUs at work now, of those that are measured; None:
    none is. `jobs_per_gpu`: GPU pods by the GPUs that they hold. `fragmentation_ratio`: 0 to 1 of what is free."""

    gpus: int
    allocated: float
    busy: int | None
    jobs_per_gpu: float | None
    fragmentation_ratio: float | None
    notes: tuple[str, ...] = ()


class PodsPage(answers.Shape, frozen=True, kw_only=True):
    rows: tuple[PodGpu, ...]
    summary: ClusterNow
    as_of: str | None


def present(given: dict[str, Any], namespace: Pattern | None, output: str) -> show.Shown:
    from fallow.wiring import optimizing, pod_status  # a packing engine: others do without

    options = flags.read_settings(given, look.UNUSED_VARIABLES)
    logs.set_up("default", "error")
    with show.refusals():
        optimizing.check_cluster(options)
        if options.prometheus is None:
            raise show.NoSource(_NO_SOURCE)
        found = interrupts.run_shortly(pod_status.look(options, options.prometheus))
    page = make_page(found, namespace, options.mandate.rule.activity)
    return show.Shown(show.encode(page, output) if output in ("json", "yaml") else draw(page))


def make_page(found: Any, namespace: Pattern | None, threshold: float) -> PodsPage:
    """`found`: PodsNow. A pod that nobody measures has a line all the same."""
    nodes = {(pod.namespace, pod.name): pod.node for pod in found.pods}
    known = [each for each in found.uses if (each.namespace, each.pod) in nodes]
    measured = {(each.namespace, each.pod) for each in known}
    rows = [_tell(each, nodes[each.namespace, each.pod]) for each in known] + [
        PodGpu(namespace=space, pod=pod, node=node, gpu=None, gpu_util=None, mem_util=None, mem_used_mib=None,
               power_watts=None, temp_celsius=None)
        for (space, pod), node in nodes.items() if (space, pod) not in measured
    ]
    shown = [row for row in rows if namespace is None or namespace.fullmatch(row.namespace)]
    room = found.room
    here = [each for each in known if each.util is not None and nodes[each.namespace, each.pod] in room.nodes]
    busy = {each.uuid for each in here if each.util >= threshold}
    jobs = sum(node in room.nodes for node in nodes.values())
    return PodsPage(
        rows=tuple(sorted(shown, key=lambda row: (row.namespace, row.pod, row.gpu or ""))),
        as_of=answers.instant(found.at),
        summary=ClusterNow(
            gpus=room.gpus, allocated=round(room.allocated_gpus, 3), busy=len(busy) if here else None,
            jobs_per_gpu=round(jobs / room.allocated_gpus, 3) if room.allocated_gpus else None,
            fragmentation_ratio=None if room.fragmented is None else round(room.fragmented, 4), notes=room.notes,
        ),
    )


def _tell(each: Any, node: str) -> PodGpu:
    part = each.used / each.total if each.total else None
    return PodGpu(
        namespace=each.namespace, pod=each.pod, node=node, gpu=each.gpu or None, gpu_util=_round(each.util),
        mem_util=_round(part), mem_used_mib=each.used, power_watts=each.watts, temp_celsius=each.celsius,
    )


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def draw(page: PodsPage) -> str:
    rows = [
        (row.namespace, row.pod, row.node, row.gpu or "-", _say(row.gpu_util, 100, "%"), _say(row.mem_util, 100, "%"),
         _say(row.mem_used_mib, 1, "Mi"), _say(row.power_watts, 1, "W"), _say(row.temp_celsius, 1, "C"))
        for row in page.rows
    ]
    table = show.grid(COLUMNS, rows, spare=("NODE",)) if rows else "No pod holds a GPU there."
    return pages.join(table, "\n".join(map(show.fold, (_sum_up(page.summary), *page.summary.notes))))


def _say(value: float | None, scale: float, unit: str) -> str:
    return "-" if value is None else f"{value * scale:.0f}{unit}"


def _sum_up(summary: ClusterNow) -> str:
    words: Sequence[tuple[str, str]] = (
        ("GPUs", str(summary.gpus)), ("allocated", f"{summary.allocated:g}"),
        ("busy", "-" if summary.busy is None else str(summary.busy)),
        ("jobs per GPU", "-" if summary.jobs_per_gpu is None else f"{summary.jobs_per_gpu:.2f}"),
        ("fragmentation ratio", "-" if summary.fragmentation_ratio is None else f"{summary.fragmentation_ratio:.2f}"),
    )
    return ", ".join(f"{name} {value}" for name, value in words)
