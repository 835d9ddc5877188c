"""What is advised about waste: nothing against what somebody wants, and nothing that fallow does not do."""

import msgspec
import pytest
from tests import builders
from tests.builders import World
from tests.unit.doors.api.serving import serving
from tests.unit.doors.api.test_reads import MANDATE

from fallow.doors.answers import rows as listing
from fallow.doors.answers import waste

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
