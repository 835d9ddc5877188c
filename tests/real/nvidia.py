"""NVIDIA's programs on a node of a real API server: the pretend ones of fallow.sim.nvidia, over the wire.

`answers`: how the MIG manager ends, one for each change.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import yaml

from fallow.sim import nvidia
from tests.real import cluster as clusters

GPUS = 8


class Programs:
    def __init__(
        self, cluster: clusters.Cluster, node: str, plugin_map: tuple[str, str], answers: tuple[str, ...] = (),
        mig_map: tuple[str, str] | None = None,
    ) -> None:
        self._cluster, self._node, self._plugin_map, self._mig_map = cluster, node, plugin_map, mig_map
        self.programs = nvidia.NvidiaNode(GPUS, "NVIDIA-A100-SXM4-40GB", answers=answers)

    async def run(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(0.05)

    async def look(self) -> None:
        """Until nothing is left to be done."""
        while True:
            node = await self._cluster.get("v1", "Node", self._node)
            mig = (await self._read(self._mig_map)).get("config.yaml") or {}
            written = self.programs.heed(
                node["metadata"]["labels"], await self._read(self._plugin_map), mig.get("mig-configs") or {}
            )
            if written is None:
                return
            if written.labels:
                await self._cluster.patch(node, {"metadata": {"labels": dict(written.labels)}})
            if written.offers is not None:
                counts = {name: str(count) for name, count in written.offers.items()}
                await self._cluster.patch(node, {"status": {"capacity": counts, "allocatable": counts}}, part="status")

    async def _read(self, place: tuple[str, str] | None) -> dict[str, Any]:
        found = await self._cluster.find("v1", "ConfigMap", place[1], place[0]) if place else None
        return {key: yaml.safe_load(text) for key, text in ((found or {}).get("data") or {}).items()}


@contextlib.asynccontextmanager
async def running(programs: Programs) -> AsyncIterator[Programs]:
    task = asyncio.create_task(programs.run())
    try:
        yield programs
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
