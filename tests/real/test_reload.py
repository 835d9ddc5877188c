"""A daemon on a real API server whose file of settings changes: it goes on by the new ones in the same process; by a
bad file, or settings that do not work, it stays as it was and says so."""

from __future__ import annotations

import asyncio
import os
import pathlib
import signal
import socket

from tests.real import cluster as clusters
from tests.real import product

LINE = "watching, in dry-run, every"


class Watched:
    """A process, and what it has said so far."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process, self.said = process, ""

    async def until(self, words: str, since: int = 0) -> None:
        """`since`: characters that do not count any more."""
        assert self.process.stderr is not None
        async with asyncio.timeout(120):
            while words not in self.said[since:]:
                read = await self.process.stderr.read(65536)
                assert read, f"it ended before it said {words!r}:\n{self.said}"
                self.said += read.decode()


async def test_a_daemon_heeds_its_file_and_no_bad_one(cluster: clusters.Cluster, tmp_path: pathlib.Path) -> None:
    file = tmp_path / "settings.yaml"
    usual = f"metrics-addr: 127.0.0.1:{product.free_port()}\nsource: scrape\nwatch-namespaces: {cluster.namespace}\n"
    file.write_text(f"{usual}check-interval: 120\n")
    env = {"PATH": os.environ["PATH"], "KUBECONFIG": str(cluster.kubeconfig), "POD_NAMESPACE": cluster.namespace}
    process = await asyncio.create_subprocess_exec(
        str(product.BIN / "fallow"), "run", "--config", str(file), env=env, stderr=asyncio.subprocess.PIPE,
    )
    daemon = Watched(process)
    try:
        await daemon.until(f"{LINE} 2m")
        file.write_text(f"{usual}check-interval: 60\n")
        process.send_signal(signal.SIGHUP)
        await daemon.until(f"{LINE} 1m")
        assert "its settings hold from now on" in daemon.said

        mark = len(daemon.said)
        file.write_text(f"{usual}check-intervall: 30\n")
        process.send_signal(signal.SIGHUP)
        await daemon.until("the former settings hold on: --config", mark)
        assert LINE not in daemon.said[mark:], "it was not even put together anew"

        mark = len(daemon.said)
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            file.write_text(f"{usual}check-interval: 30\ndashboard-addr: 127.0.0.1:{taken.getsockname()[1]}\n")
            process.send_signal(signal.SIGHUP)
            await daemon.until(f"{LINE} 1m", mark)
        assert "the new settings do not work; the former hold on" in daemon.said[mark:]
        process.terminate()
        assert await asyncio.wait_for(process.wait(), 60) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
