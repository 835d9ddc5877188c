"""By whom what pods used is filed: by whom the webhook asks for it."""

from __future__ import annotations

import msgspec
import pytest
from tests import builders

from fallow import names
from fallow.model import cluster
from fallow.wiring import sharing

CRON = cluster.Owner("batch", "v1", "CronJob", "night", "uid-cron")


@pytest.mark.parametrize(("kind", "above", "top"), [
    ("Job", CRON, ("batch", "CronJob", "night", "uid-cron")),
    ("Job", None, ("batch", "Job", "llm", "uid-ml/llm")),
    ("Deployment", None, ("apps", "Deployment", "llm", "uid-ml/llm")),
])
def test_what_a_job_used_is_its_schedules(
    kind: str, above: cluster.Owner | None, top: tuple[str, str, str, str]
) -> None:
    world = builders.World()
    world.workload(kind=kind, annotations={names.BACKOFF_UNTIL: "2099-01-01T00:00:00Z"}, labels={"a": "b"})
    made = world.workloads[0]
    ref = made.ref
    own = cluster.Owner(ref.group, ref.version, ref.kind, ref.name, ref.uid)
    found = sharing.see_top(msgspec.structs.replace(made, chain=(own, above) if above else (own,)))
    assert (found.group, found.kind, found.name, found.uid) == top
    assert (found.labels, names.BACKOFF_UNTIL in found.annotations) == ({"a": "b"}, True)
