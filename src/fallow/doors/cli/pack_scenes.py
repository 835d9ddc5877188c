"""What `fallow pack` looks at: a trace by its name, or the live cluster, turned into the packing engine's nouns.

In: `--trace`, or `--cluster` with the usual kubeconfig. Out: a trace (sim/traces/openb.py), or who runs where and who
waits.
The cluster is only read, by one list of nodes and one of pods, and for a plan also who could share what he holds; no
Prometheus is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import click

from fallow import logs
from fallow.clients.kubernetes import api as kube
from fallow.decide import packing, sharing
from fallow.doors.cli import interrupts, pasts, show, where
from fallow.model import cluster
from fallow.model.seen import Input
from fallow.model.units import Instant
from fallow.observe.cluster import hosts
from fallow.sim import shelf
from fallow.sim.traces import openb, samples
from fallow.wiring import reach, sharers

Found = TypeVar("Found")


def options() -> list[click.Parameter]:
    return [
        pasts.trace_option(),
        click.Option(["--cluster"], is_flag=True, help="The live cluster instead of a trace. It is only read."),
        *where.cluster_options(),
        click.Option(["--seed"], type=click.IntRange(0), default=42, show_default=True,
                     help="Which arrival and tie order."),
    ]


def check(asked: dict[str, Any]) -> None:
    """One of the two, not both; what belongs to the other is not silently passed over."""
    if asked["cluster"] and asked["trace"]:
        raise click.UsageError("--trace and --cluster exclude each other")
    if not asked["cluster"] and (asked["kubeconfig"] or asked["context"]):
        raise click.UsageError("--kubeconfig and --context are for --cluster")


def find_trace(name: str | None) -> openb.OpenbFiles:
    """Without a name: openb, where it is at hand, else what is shipped."""
    folder = pasts.traces_folder()
    with pasts.refusals():
        usual = shelf.OPENB if shelf.find_kind(shelf.OPENB, folder) else samples.SAMPLE_PODS
        return shelf.find_pods(name or usual, folder)


def read_trace(name: str | None) -> openb.OpenbTrace:
    files = find_trace(name)
    with pasts.refusals():
        return openb.read_files(files)


def look(asked: dict[str, Any], now: Instant) -> packing.LiveCluster:
    return packing.settle(read_capacity(asked), now)


def read_capacity(asked: dict[str, Any]) -> cluster.Capacity:
    return _read(asked, hosts.look)


def read_sharers(asked: dict[str, Any], now: Instant) -> Input[tuple[sharing.Sharer, ...]]:
    return _read(asked, lambda api: sharers.find(api, now))


def _read(asked: dict[str, Any], look: Callable[[kube.Api], Coroutine[Any, Any, Found]]) -> Found:
    async def read() -> Found:
        async with reach.open_api(asked["kubeconfig"], asked["context"]) as (api, _):
            return await look(api)

    logs.set_up("default", "error")
    with show.refusals():
        return interrupts.run(read())
