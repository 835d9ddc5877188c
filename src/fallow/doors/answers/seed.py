"""The answers of gpu-pruner's own paths, in its own words and snake_case: for what reads them already."""

import msgspec

from fallow.doors import answers
from fallow.doors.answers import rows as telling
from fallow.model import decision
from fallow.model.units import Instant


class SeedIdle(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    namespace: str
    kind: str
    gpu_model: str | None
    idle_duration: int | None  # seconds


class SeedStatus(msgspec.Struct, frozen=True, kw_only=True):
    idle_workloads: list[SeedIdle]
    total_idle_gpus: float
    total_pods_checked: int
    last_update: str | None


class SeedPauses(msgspec.Struct, frozen=True, kw_only=True):
    lifetime: int


class SeedPausesIn(SeedPauses, frozen=True, kw_only=True):
    in_window: int
    window: str


class SeedCurrent(msgspec.Struct, frozen=True, kw_only=True):
    current: int


class SeedSummary(msgspec.Struct, frozen=True, kw_only=True):
    scale_downs: SeedPauses
    idle_workloads: SeedCurrent
    pods_checked: int
    updated_at: str | None


class SeedStats(msgspec.Struct, frozen=True, kw_only=True):
    scale_downs: SeedPausesIn
    idle_workloads: SeedCurrent
    prometheus_available: bool
    pods_checked: int
    updated_at: str | None


class SeedCluster(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    honor_labels: bool


class SeedRefusal(msgspec.Struct, frozen=True, kw_only=True):
    error: str
    allowed: list[str]


def show_status(rows: list[telling.ApiRow], plan: decision.Plan) -> SeedStatus:
    quiet = [row for row in rows if row.verdict == "idle" and row.rest is None]
    return SeedStatus(
        idle_workloads=[
            SeedIdle(
                name=row.name, namespace=row.namespace, kind=row.kind, gpu_model=", ".join(row.models) or None,
                idle_duration=row.idle_seconds,
            )
            for row in quiet
        ],
        total_idle_gpus=plan.totals.idle_gpus, total_pods_checked=plan.totals.pods, last_update=updated(plan.at),
    )


def updated(at: Instant) -> str | None:
    return answers.instant(at)


def count_idle(rows: list[telling.ApiRow]) -> int:
    return sum(row.verdict == "idle" and row.rest is None for row in rows)
