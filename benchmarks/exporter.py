"""The node exporter on 16 GPUs with 20 processes each, over the pretend driver library: what it costs.

A poll is measured in a process that does nothing else, beside a plain loop of the same calls by pynvml; then the
command itself is started and asked as Prometheus would ask it, over a long life. The processes are real ones that
sleep, for /proc is part of the price; for the churn of 10,000 processes a made-up /proc is enough.
"""

import contextlib
import functools
import http.client
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

from benchmarks import figures

GPUS, PROCESSES, ROUNDS, SCRAPES = 16, 20, 200, 200
GENERATIONS = 32  # of 320 processes each: 10,240 seen
INTERVAL = 0.1
# As the installed gpu-idle-exporter does it.
COMMAND = "from fallow.doors.cli.exporter import gpu_idle_exporter; gpu_idle_exporter()"
POD = "0::/kubepods.slice/kubepods-pod{pid:08d}_1111_2222_3333_444444444444.slice/cri-containerd-{pid:064x}.scope"


# ---- one poll, in a process of its own -----------------------------------------------------------------------------


def _cpu_ms(work: Callable[[], object]) -> float:
    for _ in range(ROUNDS // 4):
        work()
    before = figures.usage_now()["cpu"]
    for _ in range(ROUNDS):
        work()
    return (figures.usage_now()["cpu"] - before) / ROUNDS * 1000


def measure_polls() -> dict[str, float]:
    import pynvml

    from fallow.clients import proc
    from fallow.clients.nvml import driver as nvml
    from fallow.settings import exporter as options
    from fallow.stories import node

    driver, nobody = nvml.Nvml(), cast(Any, None)  # neither pods nor a thread are needed to look
    story = node.NodeStory(options.Options(), driver, proc.ProcessTable(), nobody, nobody, time.time, time.monotonic)
    poll = story.look(time.time(), time.monotonic())
    seen = sum(len(judged.processes or ()) for judged in poll.devices)
    assert (poll.result, seen) == ("ok", GPUS * PROCESSES), poll
    # In turns, so that both have the same share of a busy machine; the best of each.
    turns = [
        (
            _cpu_ms(lambda: story.look(time.time(), time.monotonic())), _cpu_ms(lambda: _read_plainly(pynvml)),
            _cpu_ms(driver.read),
        )
        for _ in range(3)
    ]
    ours, plain, reading = (min(column) for column in zip(*turns, strict=True))
    return {"ours": ours, "plain": plain, "reading": reading}


def _read_plainly(nvml: Any) -> None:
    since = int((time.time() - INTERVAL) * 1e6)
    for index in range(nvml.nvmlDeviceGetCount()):
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        nvml.nvmlDeviceGetUUID(handle)
        nvml.nvmlDeviceGetUtilizationRates(handle)
        nvml.nvmlDeviceGetMemoryInfo(handle)
        nvml.nvmlDeviceGetPowerUsage(handle)
        nvml.nvmlDeviceGetTemperature(handle, 0)
        nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
        nvml.nvmlDeviceGetMigMode(handle)
        nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        nvml.nvmlDeviceGetGraphicsRunningProcesses(handle)
        nvml.nvmlDeviceGetMPSComputeRunningProcesses(handle)
        with contextlib.suppress(nvml.NVMLError):
            nvml.nvmlDeviceGetProcessUtilization(handle, since)


# ---- the command, from outside -------------------------------------------------------------------------------------


class Exporter:
    """The running command. All that is known of it came over HTTP, or from the kernel."""

    def __init__(self, **environment: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        own = {
            "HTTP_PORT": str(self.port), "BIND_ADDRESS": "127.0.0.1", "POLL_INTERVAL": f"{INTERVAL}s",
            "LOG_LEVEL": "error",
        }
        self.began = time.perf_counter()
        self.process = subprocess.Popen([sys.executable, "-c", COMMAND], env={**os.environ, **own, **environment})

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(10)

    def wait(self, is_wanted: Callable[[str], bool], pause: float = 0.005, timeout: float = 30.0) -> float:
        """Until the page is as wanted; seconds since the start."""
        deadline = time.perf_counter() + timeout
        while time.perf_counter() < deadline:
            with contextlib.suppress(OSError):
                if is_wanted(self.scrape()):
                    return time.perf_counter() - self.began
            if self.process.poll() is not None:
                raise SystemExit(f"gpu-idle-exporter ended with {self.process.returncode}")
            time.sleep(pause)
        raise SystemExit("gpu-idle-exporter did not show what was waited for")

    def scrape(self) -> str:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", "/metrics")
            return connection.getresponse().read().decode()
        finally:
            connection.close()

    def polls(self) -> int:
        line = next(
            line for line in self.scrape().splitlines() if line.startswith('gpu_idle_exporter_polls_total{result="ok"}')
        )
        return int(float(line.split()[-1]))

    def cpu(self) -> float:
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory(self, what: str) -> float:
        """MB of VmRSS (now) or VmHWM (the most it ever had)."""
        lines = pathlib.Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith(what)).split()[1]) / 1024


def _measure_first_answer() -> float:
    """The best of five: the rest is the machine's other work."""
    taken = []
    for _ in range(5):
        exporter = Exporter()
        taken.append(exporter.wait(lambda page: "gpu_idle_device_utilization_percent{" in page))
        exporter.close()
    return min(taken)


def _measure_life(exporter: Exporter) -> dict[str, float]:
    exporter.wait(lambda page: "gpu_idle_process_idle_seconds{" in page)
    polls, cpu = exporter.polls(), exporter.cpu()
    time.sleep(60 * INTERVAL)
    used = exporter.cpu() - cpu
    whole = used / (exporter.polls() - polls)
    taken = []
    for _ in range(SCRAPES):
        began = time.perf_counter()
        size = len(exporter.scrape())
        taken.append(time.perf_counter() - began)
    return {
        "whole": whole * 1000, "scrape": statistics.median(taken) * 1000, "worst": max(taken) * 1000, "kb": size / 1024
    }


def _shows(pid: int, page: str) -> bool:
    return f'pid="{pid}"' in page


def _measure_churn(exporter: Exporter, put: Callable[[Sequence[int]], None], proc: pathlib.Path) -> dict[str, float]:
    for generation in range(GENERATIONS):
        first = 1000 + generation * GPUS * PROCESSES
        pids = range(first, first + GPUS * PROCESSES)
        for pid in pids:
            _write_process(proc, pid)
        put(pids)
        exporter.wait(functools.partial(_shows, pids[-1]), pause=INTERVAL)
    return {"rss": exporter.memory("VmRSS"), "most": exporter.memory("VmHWM")}


# ---- the stage -----------------------------------------------------------------------------------------------------


def _write_process(proc: pathlib.Path, pid: int) -> None:
    folder = proc / str(pid)
    folder.mkdir(parents=True)
    (folder / "stat").write_text(f"{pid} (train) S 1 {'0 ' * 17} {pid} 0 0\n")
    (folder / "comm").write_text(f"train-{pid}\n")
    (folder / "cgroup").write_text(POD.format(pid=pid) + "\n")


def _put(fake: Any, path: pathlib.Path, pids: Sequence[int]) -> None:
    """Every third process works."""
    devices = []
    for index in range(GPUS):
        held = pids[index * PROCESSES : (index + 1) * PROCESSES]
        devices.append(
            fake.Device(utilization=60, processes=[fake.Process(pid, sm=None if pid % 3 else 20) for pid in held])
        )
    fake.State(devices).write(path)


@contextlib.contextmanager
def _sleepers() -> Iterator[list[int]]:
    """Processes that are there and do nothing."""
    children = [subprocess.Popen(["sleep", "900"]) for _ in range(GPUS * PROCESSES)]
    try:
        yield [child.pid for child in children]
    finally:
        for child in children:
            child.kill()
        for child in children:
            child.wait()


def main() -> None:
    from tests.fakes.nvml import fake

    with tempfile.TemporaryDirectory() as scratch, _sleepers() as pids:
        folder = pathlib.Path(scratch)
        state, proc = folder / "nvml.state", folder / "proc"
        proc.mkdir()
        os.environ.update({"LD_LIBRARY_PATH": str(fake.library().parent), "FAKE_NVML_STATE": str(state)})
        _put(fake, state, pids)
        polls = figures.measured("benchmarks.exporter", "polls")
        answer = _measure_first_answer()
        exporter = Exporter()
        life = _measure_life(exporter)
        exporter.close()
        exporter = Exporter(HOST_PROC=str(proc))
        churn = _measure_churn(exporter, lambda seen: _put(fake, state, seen), proc)
        exporter.close()
    _show(polls, answer, life, churn)


def _show(polls: dict[str, float], answer: float, life: dict[str, float], churn: dict[str, float]) -> None:
    print(
        f"  {GPUS} GPUs x {PROCESSES} processes; the same NVML calls in a plain loop of pynvml: "
        f"{polls['plain']:.1f} ms of CPU\n"
        f"  of a poll, reading the devices takes {polls['reading']:.1f} ms; "
        f"the whole process, page too: {life['whole']:.1f} ms a poll"
    )
    figures.show("a poll", f"{polls['ours']:.1f} ms of CPU", "8 ms", polls["ours"] <= 8)
    seen = f"after {GENERATIONS * GPUS * PROCESSES} processes"
    figures.show(
        f"memory {seen}", f"{churn['rss']:.1f} MB, {churn['most']:.1f} MB at most", "40 MB", churn["rss"] <= 40
    )
    scrape = f"{life['scrape']:.1f} ms for {life['kb']:.0f} kB (worst of {SCRAPES}: {life['worst']:.1f} ms)"
    figures.show("a scrape", scrape, "5 ms", life["scrape"] <= 5)
    figures.show("start to first answer", f"{answer:.2f} s", "0.5 s", answer <= 0.5)


if __name__ == "__main__":
    print(json.dumps(measure_polls()))
