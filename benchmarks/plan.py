"""CPU seconds of one plan over 50,000 GPUs in 20,000 workloads, 30 % of them idle; and of the next one, in which nothing changed.

    python -m benchmarks.plan

Aims: 0.5 s for the first, 0.05 s for the next. Prints; asserts nothing.
"""

import time
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from fallow.decide import plan
from fallow.model import cluster, decision, usage
from fallow.model.units import HOUR
from fallow.model.usage import Signal
from tests import builders

WORKLOADS = 20_000
GPUS = 2.5  # per workload, on average: four of five hold two, the rest four and more


def build() -> cluster.Snapshot:
    world = builders.World()
    for index in range(WORKLOADS):
        gpus = [builders.idle(HOUR + index) if index % 10 < 3 else builders.busy()] * (2 if index % 8 else 6)
        world.workload(f"team-{index % 200}/job-{index}", gpus=gpus, pod={"node": f"node-{index % 6000}"})
    return world.snapshot()


def advance(snapshot: cluster.Snapshot, seconds: float) -> cluster.Snapshot:
    """The same pods and workloads a cycle later, with new numbers."""
    moved = {window: _advance(use, seconds) for window, use in snapshot.evidence.usage.items()}
    evidence = msgspec.structs.replace(snapshot.evidence, at=snapshot.evidence.at + seconds, usage=moved)
    return msgspec.structs.replace(snapshot, taken_at=snapshot.taken_at + seconds, evidence=evidence)


def _advance(use: usage.Usage, seconds: float) -> usage.Usage:
    rows = use.rows
    return msgspec.structs.replace(
        use, pod=use.pod.copy(), peak={**use.peak, **{signal: np.zeros(rows) for signal in (Signal.tensor, Signal.dram)}},
        newest={signal: column + seconds for signal, column in use.newest.items()},
    )


def measure(label: str, act: Callable[[], Any]) -> Any:
    began = time.process_time()
    result = act()
    print(f"{label:<40} {time.process_time() - began:.3f} CPU s")
    return result


def main() -> None:
    snapshot = build()
    print(f"{len(snapshot.workloads)} workloads, {len(snapshot.pods)} pods, {snapshot.evidence.usage[builders.WINDOW].rows} GPUs")
    for acting, rule in ((True, builders.rule()), (False, builders.rule(notice=builders.notice()))):
        print("acting, no notice" if acting else "dry run, with notice")
        told = builders.mandate(rule, acting=acting, brakes=builders.Brakes())
        memory, now = decision.Memory(), builders.NOW
        for cycle in range(5):
            seen = advance(snapshot, cycle * 180.0)
            made = measure(f"  plan {cycle + 1}", lambda seen=seen, at=now + cycle * 180.0, memory=memory: plan.make_plan(seen, told, memory, at))
            status = decision.Status.done if acting else decision.Status.dry_run
            outcomes = [decision.Outcome(each, status, made.at, "") for each in made.decisions]
            memory = measure("    remember", lambda made=made, outcomes=outcomes: plan.remember(made, outcomes, told, made.at))
            print(f"    {len(made.decisions)} decisions")
        measure("  candidate rows", lambda: plan.candidate_rows(snapshot, told, now, memory))


if __name__ == "__main__":
    main()
