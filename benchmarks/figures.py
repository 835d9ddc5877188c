"""How a figure is printed, and how CPU and memory of a child process are taken."""

import json
import pathlib
import re
import resource
import subprocess
import sys
from typing import Any


def show(what: str, value: str, bar: str, held: bool) -> None:
    print(f"  {'ok    ' if held else 'MISSED'} {what}: {value} (bar: {bar})", flush=True)


def measured(module: str, *arguments: str) -> dict[str, Any]:
    """Runs `python -m module arguments` and reads the JSON object it prints as its last line."""
    done = subprocess.run([sys.executable, "-m", module, *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{module} {' '.join(arguments)} failed:\n{done.stderr[-3000:]}")
    answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer


def usage_now() -> dict[str, float]:
    """CPU seconds and peak resident MB of this process so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    # Not its ru_maxrss: that begins with what the parent held when it started us.
    (peak,) = re.findall(r"VmHWM:\s+(\d+) kB", pathlib.Path("/proc/self/status").read_text())
    return {"cpu": used.ru_utime + used.ru_stime, "peak_mb": int(peak) / 1024}


def children_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
