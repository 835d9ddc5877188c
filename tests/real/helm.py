"""helm, as people run it, on charts of ours and on a real cluster.

In: arguments, a folder of its own for what helm remembers, a kubeconfig where it needs a cluster. Out: what it printed,
`Refused` with its last words where it failed; `render` gives the objects of a chart, hooks too.
"""

from __future__ import annotations

import asyncio
import functools
import os
import pathlib
import subprocess
from typing import Any

from tests import ROOT, objects
from tests.real import build
from tests.real.conftest import need

CHART = ROOT / "charts" / "fallow"
Object = dict[str, Any]


class HelmRefused(Exception):
    """helm's own last words."""


@functools.cache
def template(
    *sets: str, namespace: str = "gpu-pruner-system", chart: pathlib.Path = CHART, more: tuple[str, ...] = ()
) -> str:
    """`more`: what else is typed, such as what kind of cluster it is for."""
    need("helm")
    words = [*more, *(word for each in sets for word in ("--set", each))]
    command = [str(build.need("helm")), "template", "fallow", str(chart), "-n", namespace, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode:
        raise HelmRefused(done.stderr)
    return done.stdout


def render(*sets: str, namespace: str = "gpu-pruner-system") -> list[Object]:
    return objects.read(template(*sets, namespace=namespace))


def name(thing: Object) -> tuple[str, str, str]:
    meta = thing["metadata"]
    return thing["kind"], meta.get("namespace", ""), meta["name"]


class Helm:
    """`kubeconfig`: of whoever installs."""

    def __init__(self, kubeconfig: pathlib.Path, folder: pathlib.Path) -> None:
        need("helm")
        homes = {f"HELM_{what}_HOME": str(folder / "helm") for what in ("CACHE", "CONFIG", "DATA")}
        self._environment = {**os.environ, **homes, "KUBECONFIG": str(kubeconfig)}

    async def run(self, *words: str, timeout: float = 120.0) -> str:
        process = await asyncio.create_subprocess_exec(
            str(build.need("helm")), *words, env=self._environment, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            said, complaints = await asyncio.wait_for(process.communicate(), timeout)
        except TimeoutError:
            process.kill()
            raise HelmRefused(f"helm {words[0]} did not end in {timeout:g} s") from None
        if process.returncode:
            raise HelmRefused(complaints.decode())
        return said.decode()
