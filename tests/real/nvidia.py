"""NVIDIA's MIG manager and device plugin, as far as a Node object shows them: small programs that watch its labels and
change labels and what it advertises, as our specification has it. They were not checked against
recordings of the real ones.

The MIG manager heeds nvidia.com/mig.config: it says `pending` in nvidia.com/mig.config.state, cuts, and says `success`
or `failed`. The device plugin heeds nvidia.com/device-plugin.config and ignores names that its ConfigMap does not have;
with renameByDefault what it shares is advertised as `.shared`. `answers`: how the manager ends, one for each change.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import yaml

from fallow import names
from tests.real import cluster as clusters

GPUS = 8
STOCK = {"all-disabled": {}, "all-1g.5gb": {"1g.5gb": 7}, "all-balanced": {"1g.5gb": 2, "2g.10gb": 1, "3g.20gb": 1}}


class Programs:
    def __init__(
        self, cluster: clusters.Cluster, node: str, plugin_map: tuple[str, str], answers: tuple[str, ...] = ()
    ) -> None:
        self._cluster, self._node, self._map = cluster, node, plugin_map
        self.answers = list(answers)
        self._heeded: str | None = None
        self._cut = "all-disabled"
        self._advertised: dict[str, int] | None = None

    async def run(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(0.05)

    async def look(self) -> None:
        """Once."""
        node = await self._cluster.get("v1", "Node", self._node)
        labels = node["metadata"]["labels"]
        asked = labels.get(names.MIG_CONFIG)
        if asked is not None and asked != self._heeded:
            self._heeded = asked
            answer = self.answers.pop(0) if self.answers else "success"
            await self._say(node, "pending")
            if answer == "success":
                self._cut = asked
            await self._advertise(node, labels)
            await self._say(node, answer)
        else:
            await self._advertise(node, labels)

    async def _say(self, node: dict[str, Any], state: str) -> None:
        await self._cluster.patch(node, {"metadata": {"labels": {names.MIG_CONFIG_STATE: state}}})

    async def _advertise(self, node: dict[str, Any], labels: dict[str, str]) -> None:
        cut = STOCK[self._cut]
        plain = {f"nvidia.com/mig-{name}": GPUS * count for name, count in cut.items()} or {names.GPU: GPUS}
        offers = await self._share(plain, labels.get(names.PLUGIN_CONFIG))
        if offers is None or offers == self._advertised:
            return
        gone = dict.fromkeys(self._advertised or {names.GPU: GPUS}, "0")
        counts = {**gone, **{name: str(count) for name, count in offers.items()}}
        await self._cluster.patch(node, {"status": {"capacity": counts, "allocatable": counts}}, part="status")
        self._advertised = offers

    async def _share(self, plain: dict[str, int], key: str | None) -> dict[str, int] | None:
        """None: a configuration that it does not know is ignored."""
        if key is None:
            return plain
        found = await self._cluster.find("v1", "ConfigMap", self._map[1], self._map[0])
        text = (found or {}).get("data", {}).get(key)
        if text is None:
            return None
        shared = next(iter((yaml.safe_load(text).get("sharing") or {}).values()), None)
        if shared is None:
            return plain
        replicas = {one["name"]: one["replicas"] for one in shared["resources"]}
        return {f"{name}.shared" if name in replicas else name: count * replicas.get(name, 1)
                for name, count in plain.items()}


@contextlib.asynccontextmanager
async def running(programs: Programs) -> AsyncIterator[Programs]:
    task = asyncio.create_task(programs.run())
    try:
        yield programs
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
