"""CPU seconds of one plan over 50,000 GPUs in 20,000 workloads, 30 % of them idle; and of the next one, in which nothing changed.

    python -m benchmarks.plan

Aims: 0.5 s for the first, 0.05 s for the next. Prints; asserts nothing.
"""

import time
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
from tests import builders

from fallow.decide import plan
from fallow.model import cluster, decision, policy, usage
from fallow.model.units import HOUR
from fallow.model.usage import Signal

WORKLOADS = 20_000


def build() -> cluster.Snapshot:
    world = builders.World()
    for index in range(WORKLOADS):  # one of eight holds six GPUs, the others two: 50,000 in all
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


def measure(label: str, act: Callable[..., Any], *given: Any) -> Any:
    began = time.process_time()
    result = act(*given)
    print(f"{label:<40} {time.process_time() - began:.3f} CPU s")
    return result


def follow(snapshot: cluster.Snapshot, told: policy.Mandate) -> None:
    """Five cycles, three minutes apart, in which everything works."""
    memory, status = decision.Memory(), decision.Status.done if told.acting else decision.Status.dry_run
    for cycle in range(5):
        seen = advance(snapshot, cycle * 180.0)
        made = measure(f"  plan {cycle + 1}", plan.make_plan, seen, told, memory, seen.taken_at)
        outcomes = [decision.Outcome(each, status, made.at, "") for each in made.decisions]
        memory = measure("    and what became of it", plan.remember, made, outcomes, told, made.at)
        print(f"    {len(made.decisions)} decisions")
    measure("  candidate rows", plan.candidate_rows, snapshot, told, snapshot.taken_at, memory)


def main() -> None:
    snapshot = build()
    print(f"{len(snapshot.workloads)} workloads, {len(snapshot.pods)} pods, {snapshot.evidence.usage[builders.WINDOW].rows} GPUs")
    print("acting, without notice")
    follow(snapshot, builders.mandate(builders.rule(), brakes=builders.Brakes()))
    print("dry run, with notice")
    follow(snapshot, builders.mandate(builders.rule(notice=builders.notice()), acting=False, brakes=builders.Brakes()))


if __name__ == "__main__":
    main()
