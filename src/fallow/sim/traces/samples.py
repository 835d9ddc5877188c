"""The traces that fallow ships: made up by this file, small, and of the same formats as the published ones.

In: a seed. Out: the lines of three CSV files. `sample` (duty): what the GPUs of thirty pods did in a day, with whose
they are. `sample-pods` and its list of nodes: what pods ask for on a cluster of two models, some of them a share of a
GPU. Nothing in them was measured anywhere; they are there so that every command has something to look at.
`python -m fallow.sim.traces.samples` writes them anew; a test compares what is shipped with what is made.
Invariant: the same seed gives the same bytes.
"""

import gzip
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import numpy as np

from fallow.model.units import DAY, MINUTE, parse_instant
from fallow.sim.traces import openb
from fallow.sim.world import lives

SEED: Final = 7
FOLDER: Final = Path(__file__).parent / "shipped"
SAMPLE, SAMPLE_PODS = "sample", "sample-pods"  # their names
DUTY, PODS, NODES = f"{SAMPLE}.csv.gz", f"{SAMPLE_PODS}.csv.gz", openb.NODES_FILE
_STEP: Final = 2 * MINUTE
_SPAN: Final = lives.LifeSpan(parse_instant("2026-11-16T00:00:00Z"), _STEP, round(DAY / _STEP))
# Life, its class, how many pods of it, whose, on which model.
_CAST: Final = (
    ("inference", "inference", 10, "search", "NVIDIA-A100-SXM4-80GB"),
    ("notebook", "notebook", 8, "vision", "Tesla-T4"),
    ("training", "training", 5, "speech", "NVIDIA-A100-SXM4-80GB"), ("flapping", "batch", 3, "ads", "NVIDIA-A10G"),
    ("held", "notebook", 4, "maps", "Tesla-T4"),
)
# Cores, GPUs, thousandths of each GPU, model it insists on, quality of service; and how many of a hundred.
_ASKS: Final = (
    (8, 1, 1000, "", "LS", 34), (16, 2, 1000, "", "BE", 8), (48, 8, 1000, "A100", "BE", 5), (4, 1, 500, "", "LS", 18),
    (2, 1, 250, "", "LS", 15), (4, 1, 1000, "T4", "BE", 10), (8, 0, 0, "", "BE", 10),
)
_NODES: Final = ((24, 96, 8, "A100"), (24, 64, 4, "T4"))  # how many, cores, GPUs, model
_PODS: Final = 300


def make(seed: int = SEED) -> Mapping[str, bytes]:
    """The files by their names."""
    texts = {DUTY: make_duty(seed), PODS: make_pods(seed), NODES: make_nodes()}
    made = {name: ("\n".join(lines) + "\n").encode() for name, lines in texts.items()}
    return {name: gzip.compress(text, 9, mtime=0) if name.endswith(".gz") else text for name, text in made.items()}


def make_duty(seed: int) -> Iterator[str]:
    """A row every other minute and pod, in quarters of a GPU; each misses a few. Whose it is, its first row says."""
    rng = np.random.default_rng([seed, 7])
    yield "pod,timestamp,duty_percent,namespace,class,model"
    for life, class_, count, team, model in _CAST:
        for number in range(count):
            (row,), about = lives.draw(life, _SPAN, 1, 1, rng), f"team-{team},{class_},{model}"
            missing = set(rng.choice(np.arange(1, _SPAN.columns), 3, replace=False).tolist())
            for column in (each for each in range(_SPAN.columns) if each not in missing):
                at, percent = round(_SPAN.start + column * _SPAN.step), -(-int(row[column]) // 25) * 25
                yield f"{life}-{number},{at},{percent},{about if column == 0 else ',,'}"


def make_pods(seed: int) -> Iterator[str]:
    rng = np.random.default_rng([seed, 8])
    shares = np.array([ask[-1] for ask in _ASKS], float)
    yield "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos"
    for number, which in enumerate(rng.choice(len(_ASKS), _PODS, p=shares / shares.sum()).tolist()):
        cores, gpus, milli, model, qos, _ = _ASKS[which]
        yield f"pod-{number:03},{1000 * cores},{4096 * cores},{gpus},{milli},{model},{qos}"


def make_nodes() -> Iterator[str]:
    yield "sn,cpu_milli,memory_mib,gpu,model"
    for count, cores, gpus, model in _NODES:
        for number in range(count):
            yield f"{model.lower()}-{number:02},{1000 * cores},{8192 * cores},{gpus},{model}"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in make().items():
        (FOLDER / name).write_bytes(text)
