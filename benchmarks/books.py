"""One minute of the books of a large cluster: 10,000 pods on GPUs, 100 of which came, went or turned idle since.

    python -m benchmarks books

As in life every tick sees new tuples of pods and workloads, with the same objects in them but for what changed; every
third tick has a new idle cycle, with a row for every pod: it also tells of those that came in the two minutes before.
The ledger is a SQLite file; what it takes to write, in its thread, is in the figure. As in the daemon the collector of
garbage is told that what is there stays. Seconds of CPU: what else the machine does counts little.
"""

import asyncio
import functools
import gc
import pathlib
import statistics
import tempfile
import time

import msgspec
import numpy as np

from benchmarks import figures
from fallow.account import ledger
from fallow.account.attribution import BookLook, GpuAttribution
from fallow.account.intervals import Book
from fallow.model import cluster, decision
from fallow.model.cost import CostBatch, NodeBill, Rate
from fallow.model.seen import ABSENT, Register

PODS, PER_NODE, CHANGED, TICKS = 10_000, 8, 100, 30
BEGIN = 1_763_164_800
BAR = 20.0  # ms


def make_pod(number: int, node: int, bound: float) -> cluster.Pod:
    return cluster.Pod(
        namespace=f"team-{number % 50}", name=f"worker-{number}", uid=f"uid-{number}", node=f"node-{node}",
        phase="Running", terminating=False, owner=None, labels={"team": f"team-{number % 50}"}, annotations={},
        resources={"nvidia.com/gpu": 1}, claims=(), claimed=0, created_at=bound, started_at=bound, ready=True,
        ready_since=bound, ip="10.0.0.1", static=False, node_selector={}, affinity=None, unschedulable_since=None,
        bound_at=bound,
    )


def make_node(number: int) -> cluster.Node:
    return cluster.Node(
        name=f"node-{number}", hostname=f"node-{number}", addresses=(), ready=True,
        gpu_product="NVIDIA-A100-SXM4-40GB", shared=False, labels={}, gpus=PER_NODE,
        offers={"nvidia.com/gpu": PER_NODE},
    )


@functools.cache
def name_owner(pod_uid: str) -> str:
    """Workloads are made anew for every look; their names and uids are those of the objects that were seen."""
    return f"owner-{pod_uid}"


def make_workload(pod: cluster.Pod, index: int) -> cluster.Workload:
    ref = cluster.Ref("apps", "v1", "Deployment", pod.namespace, pod.name, name_owner(pod.uid))
    return cluster.Workload(
        ref=ref, resource_version="1", labels=pod.labels, annotations={}, body={}, pods=(index,), chain=(),
        chain_bodies=(), trouble=None, trouble_because="", marks_ref=ref, marks={}, hpas=ABSENT,
        scaled_objects=ABSENT, kueue=ABSENT, budgets=ABSENT,
    )


def make_rows(boards: tuple[str, ...], use: np.ndarray) -> decision.HeldRows:
    count = len(boards)
    return decision.HeldRows(
        pod=np.arange(count, dtype=np.int32), gpu=boards,
        mig=np.zeros(count, np.bool_), shared=np.zeros(count, np.bool_), idle_since=np.full(count, np.nan), use=use,
    )


async def measure(file: pathlib.Path) -> None:
    rng, bill = np.random.default_rng(42), NodeBill(rate=Rate(4_096_250_000, "p"))
    nodes = Register({f"node-{at}": make_node(at) for at in range(PODS // PER_NODE + 20)})
    namespaces = Register({f"team-{at}": cluster.Namespace(f"team-{at}", {}, {}) for at in range(50)})
    book, kept = Book(BEGIN), ledger.on_file(file)
    await kept.open()
    books = GpuAttribution(book, lambda _: bill)
    pods = {at: make_pod(at, at // PER_NODE, float(BEGIN)) for at in range(PODS)}
    use = {at: float(rng.random()) for at in pods}
    boards = {at: f"GPU-{at}" for at in pods}  # who comes has the GPU of who went
    rows, serial, times, written = None, PODS, dict[str, list[tuple[float, float]]](), []
    seen: tuple[cluster.Pod, ...] = ()
    look: BookLook | None = None
    for tick in range(TICKS + 4):
        now, gone = BEGIN + 60 * tick, list[cluster.Departure]()
        for at in rng.choice(sorted(pods), CHANGED // 4, replace=False).tolist() if tick else ():  # one goes, one comes
            node = int(pods[at].node.removeprefix("node-"))
            gone.append(cluster.Departure(pods.pop(at), float(now - 30), float(now - 29)))
            pods[serial], use[serial] = make_pod(serial, node, float(now - 20)), 0.5
            boards[serial] = boards.pop(at)
            serial += 1
        for at in rng.choice(sorted(pods), CHANGED // 2, replace=False).tolist():
            pods[at] = msgspec.structs.replace(pods[at], labels={"team": f"moved-{tick % 3}"})
        listed = tuple(pods.values())
        workloads = tuple(make_workload(pod, index) for index, pod in enumerate(listed))
        is_new = tick % 3 == 0
        if is_new:
            seen, rows = listed, make_rows(tuple(boards[at] for at in pods), np.array([use[at] for at in pods]))
        before, look = look, BookLook(
            at=float(now), pods=listed, nodes=nodes, namespaces=namespaces, workloads=workloads, departures=gone,
            rows=rows, row_pods=seen,
        )
        gc.collect()
        gc.freeze()
        began = time.process_time()
        books.take(look)
        batch = book.flush()
        made = 1000 * (time.process_time() - began)
        done = await kept.write(CostBatch(at=batch.at, intervals=batch.intervals, removed=batch.removed), 1)
        took = 1000 * (time.process_time() - began)
        assert not done.refused
        del before  # whose the objects of the last look are, the mirror frees them
        if tick >= 4:
            times.setdefault("with a new idle cycle" if is_new else "between two cycles", []).append((took, made))
            written.append(len(batch.intervals))
        elif tick == 0:
            print(f"  the first look: {took:.0f} ms, {len(batch.intervals)} intervals")
    await kept.close()
    for name, some in times.items():
        (middle, least), alone = ((statistics.median(each), min(each)) for each in zip(*some, strict=True))
        said = f"{middle:.1f} ms ({alone[0]:.1f} without the ledger's write), lowest {least:.1f} ({alone[1]:.1f})"
        figures.show(f"{PODS} pods, {CHANGED} changed, {name}: CPU of a tick", said, f"{BAR:.0f} ms", middle <= BAR)
    print(f"  {statistics.mean(written):.0f} intervals a tick; peak {figures.usage_now()['peak_mb']:.0f} MB")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(pathlib.Path(folder) / "books.sqlite"))
