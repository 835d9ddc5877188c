"""What is advised about waste: nothing against what somebody wants, and nothing that fallow does not do."""

import msgspec
import pytest
from tests import builders
from tests.builders import World
from tests.unit.doors.api.serving import serving
from tests.unit.doors.api.test_reads import MANDATE

from fallow.doors.answers import rows as listing
from fallow.doors.answers import waste
from fallow.doors.cli import reports

ACK = {
    "gpuautoscaler.io/ack-until": "2026-11-15T16:00:00Z", "gpuautoscaler.io/ack-by": "user:ana",
    "gpuautoscaler.io/ack-at": "2026-11-15T11:00:00Z",
}


async def advise(**workload):
    world = World()
    world.workload("ml/llm", **workload)
    async with serving(world, MANDATE) as client:
        rows = msgspec.convert((await client.get("/api/v1/workloads"))["items"], list[listing.ApiRow])
    [line] = waste.find_waste(rows, None, "USD").lines
    return line.helps


@pytest.mark.parametrize(("workload", "says"), [
    ({"gpus": [builders.idle()]}, "let fallow pause it, or stop it"),
    ({"gpus": [builders.idle()], "annotations": ACK},
     "user:ana keeps it until 2026-11-15T16:00:00Z: ask them, or end that with fallow unack Deployment/llm -n ml"),
    ({"gpus": [builders.idle(), builders.busy()]},
     "give it fewer GPUs: 1 of 2 are idle; fallow pauses no part of a workload"),
    ({"gpus": [builders.idle()], "annotations": {"gpuautoscaler.io/idle": "ignore"}},
     "fallow leaves it alone (OptedOut): "),
], ids=["idle", "kept", "in-part", "opted-out"])
async def test_advice_heeds_what_is_so(workload, says):
    assert (await advise(**workload)).startswith(says)


def test_who_is_idle_since_its_pods_began_is_not_called_never_used_beside_the_use_of_a_week():
    line = waste.WasteLine(
        kind_of_waste="neverUsed", namespace="ml", kind="Deployment", name="llm-chat", gpus=2.0, idle_seconds=3600.0,
        use=0.07, per_hour=1.0, wasted=20.0, helps="ask", more="fallow why",
    )
    page = waste.WastePage(currency="USD", is_list=False, lines=(line,), per_hour=1.0, wasted=20.0, unknown=0)
    drawn = " ".join(reports._draw_waste("", page, "").split())
    assert "never used" not in drawn
    assert "idle since start ml Deployment/llm-chat 2 7%" in drawn
    assert "Idle since start: from when the pods that run now began. USE% and UNUSED are of the last 7d" in drawn
