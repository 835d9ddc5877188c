"""A round of direct scrapes: 100 exporters with 8 GPUs and 25 series each, over sockets, as a small cluster without
Prometheus has them.

The exporters are one server in a process of its own, so that only our side is measured: the requests, the reading and
the keeping. Then the evidence and the look-back over a day are made for 800 pods. Last, a restart: a state directory
with a whole day of it is read back.
A day takes too long to scrape: a few minutes are scraped and written by the product, and their pages stand for all
minutes before.
"""

import asyncio
import contextlib
import json
import pathlib
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from typing import Any

from aiohttp import web

from benchmarks import figures

EXPORTERS, GPUS, ROUNDS = 100, 8, 10
NOW = 1_800_000_000.0
WINDOW = 1800.0
DAY_MINUTES, SCRAPED_MINUTES = 1440, 5
METRICS = (
    "DCGM_FI_DEV_SM_CLOCK", "DCGM_FI_DEV_MEM_CLOCK", "DCGM_FI_DEV_MEMORY_TEMP", "DCGM_FI_DEV_GPU_TEMP",
    "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "DCGM_FI_DEV_PCIE_REPLAY_COUNTER",
    "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_MEM_COPY_UTIL", "DCGM_FI_DEV_ENC_UTIL", "DCGM_FI_DEV_DEC_UTIL",
    "DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_DEV_FB_FREE", "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_RESERVED",
    "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", "DCGM_FI_DEV_VGPU_LICENSE_STATUS", "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",
    "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "DCGM_FI_DEV_ROW_REMAP_FAILURE", "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "DCGM_FI_PROF_DRAM_ACTIVE", "DCGM_FI_PROF_PCIE_TX_BYTES",
    "DCGM_FI_PROF_PCIE_RX_BYTES",
)


def page(node: int) -> str:
    lines = []
    for metric in METRICS:
        lines += [f"# HELP {metric} What it is.", f"# TYPE {metric} gauge"]
        lines += [
            f'{metric}{{gpu="{gpu}",UUID="GPU-{node:08d}-4a1c-9d2e-{gpu:012d}",'
            f'pci_bus_id="00000000:{gpu:02X}:00.0",device="nvidia{gpu}",'
            f'modelName="NVIDIA H100 80GB HBM3",Hostname="gpu-{node}",DCGM_FI_DRIVER_VERSION="570.86.15",'
            f'container="main",namespace="ml",'
            f'pod="job-{node}-{gpu}",pod_uid=""}} {0 if "PROF" in metric else (node * GPUS + gpu) * 37 % 91}'
            for gpu in range(GPUS)
        ]
    return "\n".join(lines) + "\n"


async def serve() -> None:
    pages = [page(node).encode() for node in range(EXPORTERS)]

    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=pages[int(request.match_info["node"])], content_type="text/plain")

    app = web.Application()
    app.router.add_get("/{node}", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(json.dumps({"port": runner.addresses[0][1]}), flush=True)
    await asyncio.Event().wait()


@contextlib.asynccontextmanager
async def _source(port: int, keeper: Any = None) -> AsyncIterator[Any]:
    from tests.unit.observe.cluster import pretend
    from tests.unit.observe.usage import gpu_pods

    from fallow.clients import exporters
    from fallow.observe.scrape import source as scrape
    from fallow.observe.scrape import targets

    addresses = [f"http://127.0.0.1:{port}/{node}" for node in range(EXPORTERS)]
    async with pretend.Server() as server, server.api() as api:
        finder = targets.Finder(api, gpu_pods.BELIEF, addresses=addresses)
        async with scrape.ScrapeSource(finder, exporters.Exporters(timeout=5.0), keeper=keeper) as source:
            yield source


def _cluster() -> Any:
    from tests.unit.observe.usage import gpu_pods

    pods = tuple(gpu_pods.pod(f"job-{node}-{gpu}", f"gpu-{node}") for node in range(EXPORTERS) for gpu in range(GPUS))
    return gpu_pods.held(pods, gpu_pods.nodes(*(gpu_pods.node(f"gpu-{node}") for node in range(EXPORTERS))), version=1)


async def _scrape(port: int) -> dict[str, float]:
    held = _cluster()
    async with _source(port) as source:
        await source.scrape(NOW)
        began, wall = figures.usage_now()["cpu"], time.perf_counter()
        for number in range(1, ROUNDS + 1):
            await source.scrape(NOW + 15 * number)
        used, took = (figures.usage_now()["cpu"] - began) / ROUNDS, (time.perf_counter() - wall) / ROUNDS
        for minute in range(1, 40):
            await source.scrape(NOW + 60 * minute)
        now = NOW + 39 * 60
        await source.evidence(held, frozenset({WINDOW}), now)
        before = figures.usage_now()["cpu"]
        found = await source.evidence(held, frozenset({WINDOW}), now)
        evidence = figures.usage_now()["cpu"] - before
        assert found.trouble is None, found.trouble
        before = figures.usage_now()["cpu"]
        await source.look_back(found.usage[WINDOW], range(len(held.pods)), held, now, 0.01)
        back = figures.usage_now()["cpu"] - before
        return {
            "round": used, "wall": took, "evidence": evidence, "back": back, "rows": found.usage[WINDOW].rows,
            "peak_mb": figures.usage_now()["peak_mb"],
        }


async def _write_day(port: int, folder: str) -> tuple[float, float]:
    """A state directory with a day in it; the instant after its last minute, and its size in MB."""
    from fallow.observe.scrape import kept

    async with _source(port, kept.Keeper(folder, interval=15.0, writes=True)) as source:
        for minute in range(SCRAPED_MINUTES + 1):
            await source.scrape(NOW + 60 * minute)
    copy = "INSERT OR IGNORE INTO pages SELECT at - ?, content FROM pages ORDER BY at DESC LIMIT ?"
    with contextlib.closing(sqlite3.connect(pathlib.Path(folder) / kept.FILE)) as database, database:
        for back in range(SCRAPED_MINUTES, DAY_MINUTES, SCRAPED_MINUTES):
            database.execute(copy, (back, SCRAPED_MINUTES))
        (size,) = database.execute("SELECT sum(length(content)) FROM pages").fetchone()
    return NOW + 60 * (SCRAPED_MINUTES + 1), size / 1e6


async def _restart(port: int) -> dict[str, float]:
    from fallow.model.units import DAY, HOUR
    from fallow.model.usage import Signal
    from fallow.observe.scrape import kept, samples

    held = _cluster()
    with tempfile.TemporaryDirectory() as folder:
        now, megabytes = await _write_day(port, folder)
        keeper = kept.Keeper(folder, interval=15.0, writes=True)
        began, wall = figures.usage_now()["cpu"], time.perf_counter()
        await keeper.open()
        await keeper.restore(samples.Scraped(honor_labels=False, interval=15.0, horizon=DAY + HOUR), now)
        used, took, peak = (
            figures.usage_now()["cpu"] - began, time.perf_counter() - wall, figures.usage_now()["peak_mb"]
        )
        await keeper.close()
        async with _source(port, kept.Keeper(folder, interval=15.0, writes=True)) as source:
            await source.scrape(now)
            found = await source.evidence(held, frozenset({DAY}), now)
        assert found.trouble is None, found.trouble
        counts = found.usage[DAY].count[Signal.gr_engine]
        covered = int((counts >= DAY_MINUTES - 2).sum())  # but for the minute of the restart
        return {"cpu": used, "wall": took, "mb": megabytes, "covered": covered, "peak_mb": peak}


def main() -> None:
    server = subprocess.Popen([sys.executable, "-m", "benchmarks.scrape", "serve"], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        port = json.loads(server.stdout.readline())["port"]
        used, back = (figures.measured("benchmarks.scrape", what, str(port)) for what in ("scrape", "restart"))
    finally:
        server.kill()
        server.wait()
    series = EXPORTERS * GPUS * len(METRICS)
    print(
        f"  {EXPORTERS} exporters, {series} series a round, {used['rows']} GPUs held; "
        f"a round takes {used['wall']:.2f} s"
    )
    looks = f"evidence {used['evidence'] * 1000:.0f} ms, look-back of all {used['back'] * 1000:.0f} ms of CPU"
    print(f"  {looks}; {used['peak_mb']:.0f} MB peak")
    figures.show("a round of scrapes", f"{used['round']:.2f} CPU s", "0.5 CPU s", used["round"] < 0.5)
    print(
        f"  restart from --state-dir after a day: {back['wall']:.1f} s ({back['cpu']:.1f} CPU s) to read "
        f"{back['mb']:.0f} MB back, "
        f"{back['covered']} GPUs covered for the whole day again, {back['peak_mb']:.0f} MB peak"
    )


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        asyncio.run(serve())
    else:
        run = {"scrape": _scrape, "restart": _restart}[sys.argv[1]]
        print(json.dumps(asyncio.run(run(int(sys.argv[2])))))
