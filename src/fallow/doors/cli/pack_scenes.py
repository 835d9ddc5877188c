"""What `fallow pack` looks at: a trace by its name, or the live cluster, turned into the packing engine's nouns.

In: `--trace`, or `--cluster` with the usual kubeconfig. Out: a Scene (sim/packs.py); for a live cluster also who runs where and who waits.
The cluster is only read, by one list of nodes and one of pods; no Prometheus is asked.
Invariant: nodes and pods that are left out are named by reason and counted. Which GPU a pod that shares one holds is not told by the API
server; it is taken to be the tightest that fits.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

import click
import msgspec

from fallow import logs, settings
from fallow.clients import errors
from fallow.clients.kubernetes import api as kube
from fallow.clients.kubernetes import config
from fallow.decide.packing import defrag, place, state
from fallow.doors.cli import pasts, show
from fallow.model.units import DAY, MINUTE, Instant
from fallow.observe import capacity
from fallow.sim import openb, packs, traces

UNKNOWN_MODEL: Final = "unknown"
RECENT: Final = 7 * DAY  # what usually comes: pods of so long, if they are enough
ENOUGH: Final = 200
SETTLED: Final = 10 * MINUTE  # a younger pod is not moved: it has hardly begun


class Live(msgspec.Struct, frozen=True, eq=False):
    """The cluster as it stands."""

    scene: packs.Scene
    at: state.State
    running: tuple[defrag.Running, ...]
    waiting: tuple[state.Pod, ...]
    unclear: tuple[tuple[str, str], ...]  # pods that wait and cannot be judged, and why


def options() -> list[click.Parameter]:
    return [
        click.Option(["--trace"], metavar="NAME", help=f"A trace of openb in FALLOW_TRACES (default {pasts.TRACES}).  [default: default]"),
        click.Option(["--cluster"], is_flag=True, help="The live cluster instead of a trace. It is only read."),
        click.Option(["--kubeconfig"], default=None, metavar="FILE", help="Kubeconfig file, for --cluster."),
        click.Option(["--context"], default=None, metavar="NAME", help="Context of the kubeconfig, for --cluster."),
        click.Option(["--seed"], type=click.IntRange(0), default=42, show_default=True, help="Which arrival and tie order."),
    ]


def check(asked: dict[str, Any]) -> None:
    """One of the two, not both; what belongs to the other is not silently passed over."""
    if asked["cluster"] and asked["trace"]:
        raise click.UsageError("--trace and --cluster exclude each other")
    if not asked["cluster"] and (asked["kubeconfig"] or asked["context"]):
        raise click.UsageError("--kubeconfig and --context are for --cluster")


def read_trace(name: str | None) -> openb.Trace:
    """What is not there ends with exit code 3, what is no trace with 2."""
    try:
        return openb.read(pasts.traces_folder(), name or "default")
    except openb.NoTrace as problem:
        raise pasts.NotThere(show.plain(problem)) from None
    except traces.TraceError as problem:
        raise click.UsageError(f"--trace: {show.plain(problem)}") from None


def look(asked: dict[str, Any], now: Instant) -> Live:
    """The live cluster."""
    logs.set_up("default", "error")
    try:
        return settle(asyncio.run(_look(asked)), asked["seed"], now)
    except errors.Misconfigured as problem:
        raise click.UsageError(show.plain(problem)) from None
    except errors.ClientError as problem:
        raise click.ClickException(show.plain(problem)) from None


async def _look(asked: dict[str, Any]) -> capacity.Capacity:
    access = config.load_access(kubeconfig=asked["kubeconfig"], context=asked["context"], environment=settings.environment())
    async with kube.Api(access) as api:
        return await capacity.look(api)


# ---- the cluster in the engine's nouns ----------------------------------------------------------------------------------------


def settle(seen: capacity.Capacity, seed: int, now: Instant) -> Live:
    """Everybody in their place. `now` says what is recent."""
    notes: Counter[str] = Counter()
    machines = list(_usable(seen.machines, notes))
    nodes = state.Nodes([_node(machine) for machine in machines])
    order = place.order_nodes(nodes.names, seen.cluster)
    reader = _Reader(machines)
    at, running, waiting, unclear = state.State(nodes), list[defrag.Running](), list[state.Pod](), list[tuple[str, str]]()
    for tenant in seen.tenants:
        pod = reader.read(tenant)
        name = f"{tenant.namespace}/{tenant.name}"
        if tenant.node in reader.rows:
            placement = _find_seat(at, pod, reader.rows[tenant.node])
            if placement is None:
                notes["pods that ask for more than is free where they run: left out"] += 1
                continue
            at.add(pod, placement)
            running.append(defrag.Running(pod, placement, not tenant.fixed and tenant.created_at <= now - SETTLED))
        elif not tenant.node and (why := tenant.unclear or reader.why_unclear(tenant)):
            unclear.append((name, why))
        elif not tenant.node:
            waiting.append(pod)
    sample = _sample(reader, seen.tenants, now)
    notes["nodes and pods that could not be read"] += seen.unread
    told = [f"{count} {why}" for why, count in notes.items() if count]
    if not seen.cluster:
        told.append("the cluster's own id could not be read: ties are decided by the names of nodes alone")
    return Live(packs.of_pods("the cluster", nodes, sample, seed, order, told), at, tuple(running), tuple(waiting), tuple(unclear))


def _usable(machines: Iterable[capacity.Machine], notes: Counter[str]) -> Iterable[capacity.Machine]:
    for machine in machines:
        fault = state.find_node_fault(_node(machine))
        if machine.left_out or fault:
            why = "has what no machine has" if fault else machine.left_out.partition(":")[0]
            notes[f"nodes left out: {why}"] += 1
        else:
            yield machine


def _node(machine: capacity.Machine) -> state.Node:
    model = (machine.product or UNKNOWN_MODEL) if machine.gpus else ""
    return state.Node(machine.name, model, machine.cpu, machine.memory, machine.gpus, machine.pods)


class _Reader:
    """Requests as the engine knows them. GPUs that are shared and GPUs that are not never serve for each other."""

    def __init__(self, machines: Sequence[capacity.Machine]) -> None:
        self.rows = {machine.name: row for row, machine in enumerate(machines)}
        self._replicas = {machine.name: machine.replicas for machine in machines}
        with_gpus = [machine for machine in machines if machine.gpus]
        self._shares = {machine.replicas for machine in with_gpus if machine.replicas > 1}
        self._shared = {_node(machine).model for machine in with_gpus if machine.replicas > 1}
        self._whole = {_node(machine).model for machine in with_gpus if machine.replicas == 1}

    def read(self, tenant: capacity.Tenant) -> state.Pod:
        shares = self._count_shares(tenant)
        asked = tenant.shared or tenant.gpus
        name = f"{tenant.namespace}/{tenant.name}"
        if not asked:
            return state.Pod(name, tenant.cpu, tenant.memory)
        if shares == 1:
            return state.Pod(name, tenant.cpu, tenant.memory, tenant.gpus, state.GPU, self._accept(tenant, self._whole, self._shared))
        return state.Pod(name, tenant.cpu, tenant.memory, 1, state.GPU // shares, self._accept(tenant, self._shared, self._whole))

    def _count_shares(self, tenant: capacity.Tenant) -> int:
        """Of how many one is asked for; where it runs its node tells."""
        if tenant.node:
            return self._replicas.get(tenant.node, 1)
        return max(self._shares, default=1) if tenant.shared else 1

    def _accept(self, tenant: capacity.Tenant, kind: set[str], others: set[str]) -> tuple[str, ...]:
        return tenant.products or (tuple(sorted(kind - others)) if kind and others else ())

    def why_unclear(self, tenant: capacity.Tenant) -> str:
        if tenant.shared and len(self._shares) != 1:
            return "asks for a share, and nodes do not all share alike" if self._shares else "asks for a share, and no node shares its GPUs"
        if tenant.shared > 1 or (tenant.shared and tenant.gpus):
            return "asks for several shares"
        return state.find_fault(self.read(tenant))


def _find_seat(at: state.State, pod: state.Pod, node: int) -> state.Placement | None:
    """The tightest GPU for a share, the first untouched ones for whole GPUs."""
    free = at.gpu[node].tolist()
    fitting = [gpu for gpu, milli in enumerate(free) if milli >= pod.milli]
    chosen = sorted(fitting, key=lambda gpu: (free[gpu], gpu))[: pod.gpus]
    placement = state.Placement(node, tuple(sorted(chosen)), pod.milli)
    return placement if not state.find_fault(pod) and at.has_room(pod, placement) else None


def _sample(reader: _Reader, tenants: Sequence[capacity.Tenant], now: Instant) -> list[state.Pod]:
    """What usually comes: the pods of a week, or all where they are few."""
    clear = [tenant for tenant in tenants if not tenant.unclear and not (not tenant.node and reader.why_unclear(tenant))]
    recent = [tenant for tenant in clear if tenant.created_at >= now - RECENT]
    pods = [reader.read(tenant) for tenant in (recent if len(recent) >= ENOUGH else clear)]
    return [pod for pod in pods if not state.find_fault(pod)]
