"""CPU seconds of one plan over 50,000 GPUs in 20,000 workloads, 30 % of them idle; and of the next, with no change."""

import statistics
import time

import msgspec
import numpy as np
from tests import builders

from benchmarks import figures
from fallow.decide.idle import plan
from fallow.doors.cli import processes
from fallow.model import cluster, decision, usage
from fallow.model.policies import idle
from fallow.model.units import HOUR
from fallow.model.usage import Signal

WORKLOADS = 20_000


def build() -> cluster.Snapshot:
    world = builders.World()
    for index in range(WORKLOADS):  # one of eight holds six GPUs, the others two: 50,000 in all
        gpus = [builders.idle(HOUR + index) if index % 10 < 3 else builders.busy()] * (2 if index % 8 else 6)
        world.workload(f"team-{index % 200}/job-{index}", gpus=gpus, pod={"node": f"node-{index % 6000}"})
    return world.snapshot(version=1)


def advance(snapshot: cluster.Snapshot, seconds: float) -> cluster.Snapshot:
    """The same pods and workloads a cycle later, with new numbers."""
    moved = {window: _advance(use, seconds) for window, use in snapshot.evidence.usage.items()}
    evidence = msgspec.structs.replace(snapshot.evidence, at=snapshot.evidence.at + seconds, usage=moved)
    return msgspec.structs.replace(snapshot, taken_at=snapshot.taken_at + seconds, evidence=evidence)


def _advance(use: usage.Usage, seconds: float) -> usage.Usage:
    rows = use.rows
    return msgspec.structs.replace(
        use, pod=use.pod.copy(),
        peak={**use.peak, **{signal: np.zeros(rows) for signal in (Signal.tensor, Signal.dram)}},
        newest={signal: column + seconds for signal, column in use.newest.items()},
    )


def follow(snapshot: cluster.Snapshot, mandate: idle.Mandate, what: str, later: str) -> None:
    """Nine cycles, three minutes apart, in which all works: the first arranges, in the later ones nothing changed."""
    memory, cache = decision.Memory(), plan.Cache()
    status = decision.Status.done if mandate.acting else decision.Status.dry_run
    planning, thinking = [], []
    for cycle in range(9):
        seen = advance(snapshot, cycle * 180.0)
        began = time.process_time()
        plan.candidate_rows(seen, mandate, seen.taken_at, cache)
        looked = time.process_time()
        made = plan.make_plan(seen, mandate, memory, seen.taken_at, cache)
        arranging = looked - began if cycle == 0 else 0  # the first one arranges while it looks
        planning.append(time.process_time() - looked + arranging)
        memory = plan.remember(made, [decision.Outcome(each, status, made.at, "") for each in made.decisions])
        thinking.append(time.process_time() - began)
    unchanged, together = statistics.median(planning[2:]), statistics.median(thinking[2:])
    figures.show(f"first plan, {what}", f"{planning[0]:.3f} CPU s", "0.5 CPU s", planning[0] <= 0.5)
    figures.show(f"{later}, {what}", f"{unchanged:.3f} CPU s", "0.05 CPU s", unchanged <= 0.05)
    print(f"         with choosing what to look back at, and remembering: {thinking[0]:.3f} and {together:.3f} CPU s")


def main() -> None:
    processes.calm_collector()  # as the daemon does
    snapshot = build()
    rows = snapshot.evidence.usage[builders.WINDOW].rows
    print(f"  {rows} GPUs of {len(snapshot.pods)} pods in {len(snapshot.workloads)} workloads, 30 % of them idle")
    acting = builders.mandate(builders.rule(), brakes=idle.Brakes())
    follow(snapshot, acting, "acting", "plan in which nothing changed")
    polite = builders.mandate(builders.rule(notice=builders.notice()), acting=False, brakes=idle.Brakes())
    follow(snapshot, polite, "dry run", "plan with 100 new notices")


if __name__ == "__main__":
    main()
