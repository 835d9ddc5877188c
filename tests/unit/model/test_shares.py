"""GPUs as shares of physical ones: whole, cut, shared, claimed, in parts; capacities that add up or are not known."""

import msgspec
import pytest
from tests.builders import World

from fallow.model import shares


def node(offers, *, product="NVIDIA-A100-SXM4-80GB", shared=False, **labels):
    world = World()
    named = {f"nvidia.com/{key.replace('_', '.')}": value for key, value in labels.items()}
    world.node("n", product=product, shared=shared, labels=named)
    total = None if offers is None else sum(offers.values())
    return msgspec.structs.replace(world.nodes["n"], gpus=total, offers=offers or {})


def held(resources, on, **said):
    world = World()
    world.pod(resources=resources, **said)
    return sum(unit.share for unit in shares.held_by(world.pods[0], on))


BALANCED = {"nvidia.com/mig-1g.10gb": 16, "nvidia.com/mig-2g.20gb": 8, "nvidia.com/mig-3g.40gb": 8}  # of 8 GPUs


@pytest.mark.parametrize(("resources", "on", "share"), [
    ({"nvidia.com/gpu": 3}, node({"nvidia.com/gpu": 8}), 3.0),
    ({"nvidia.com/mig-3g.40gb": 1}, node({"nvidia.com/mig-3g.40gb": 2}), 0.5),  # half of the memory
    ({"nvidia.com/mig-1g.20gb": 1}, node({"nvidia.com/mig-1g.20gb": 4}), 0.25),
    ({"nvidia.com/mig-4g.40gb": 1}, node({"nvidia.com/mig-4g.40gb": 1}), 4 / 7),
    ({"nvidia.com/mig-4g.40gb": 1}, node({"nvidia.com/mig-4g.40gb": 1, "nvidia.com/mig-3g.40gb": 1}), 8 / 15),
    ({"nvidia.com/mig-3g.40gb": 1}, node({"nvidia.com/mig-4g.40gb": 1, "nvidia.com/mig-3g.40gb": 1}), 7 / 15),
    ({"nvidia.com/mig-3g.40gb": 1}, node(BALANCED, gpu_count="8"), 7 / 15),
    ({"nvidia.com/mig-3g.40gb": 1}, node({"nvidia.com/mig-3g.40gb": 1, "nvidia.com/gpu": 1}), 0.5),
    ({"nvidia.com/mig-1g.10gb.me": 2}, node({"nvidia.com/mig-1g.10gb.me": 2}), 2 / 7),
    ({"nvidia.com/mig-2g.12gb": 1}, node({"nvidia.com/mig-2g.12gb": 2}, product="NVIDIA-A30"), 0.5),
    ({"nvidia.com/gpu": 1}, node({"nvidia.com/gpu": 7}, product="NVIDIA-A100-SXM4-80GB-MIG-1g.10gb"), 1 / 7),
    ({"nvidia.com/gpu": 1}, node({"nvidia.com/gpu": 4}, shared=True, gpu_replicas="4"), 0.25),
    ({"nvidia.com/gpu.shared": 2}, node({"nvidia.com/gpu.shared": 4}, shared=True, gpu_replicas="4"), 0.5),
    ({"nvidia.com/gpu": 1}, None, 1.0),
])
def test_what_a_pod_holds(resources, on, share):
    assert held(resources, on) == pytest.approx(share)


def test_parts_that_another_scheduler_hands_out_claims_and_what_holds_nothing():
    on = node({"nvidia.com/gpu": 8})
    half = {"gpu-fraction": "0.5"}
    assert held({"nvidia.com/gpu.shared": 1}, on, annotations=half) == 0.5
    assert held({"nvidia.com/gpu.shared": 1}, on, annotations={"gpu-fraction": "NaN"}) == 1.0
    assert held({"nvidia.com/gpu.shared": 1}, on, annotations={"gpu-fraction": "5e-1"}) == 0.5
    assert held({}, on, claimed=2) == 2.0
    assert held({"nvidia.com/gpu": 1}, on, phase="Succeeded") == 0
    assert held({"nvidia.com/gpu": 1}, on, node="") == 0
    assert held({"nvidia.com/gpu": 1}, on, namespace="kai-resource-reservation") == 0


@pytest.mark.parametrize("annotation", ["gpu-fraction", "gpu-memory"])
@pytest.mark.parametrize("said", ["1e-999999999999", "1e999999999999", "1e-100", "1/3", "-1", "٠.٥"])
def test_a_part_that_nobody_can_mean_is_the_whole_and_takes_no_time_to_read(annotation, said):
    assert held({"nvidia.com/gpu.shared": 1}, node({"nvidia.com/gpu": 8}), annotations={annotation: said}) == 1.0


@pytest.mark.parametrize(("on", "count"), [
    (node({"nvidia.com/gpu": 8}), 8), (node({}), 0), (node(None), None),
    (node({"nvidia.com/gpu": 32}, shared=True, gpu_replicas="4"), 8),
    (node({"nvidia.com/mig-3g.40gb": 4}), 2),  # of the seventh slices that are left over nobody hears
    (node({"nvidia.com/mig-1g.20gb": 5}), 2), (node(BALANCED), 8), (node(BALANCED, gpu_count="9"), 9),
    (node({"nvidia.com/mig-3g.40gb": 1, "nvidia.com/gpu": 3}), 4),
    (node({"nvidia.com/mig-1g.20gb": 4}, gpu_count="2"), 2),
])
def test_how_many_are_in_a_node(on, count):
    assert shares.count_physical(on) == count


@pytest.mark.parametrize("offers", [
    BALANCED, {"nvidia.com/mig-4g.40gb": 1, "nvidia.com/mig-3g.40gb": 1}, {"nvidia.com/mig-1g.10gb": 7},
    {"nvidia.com/mig-3g.40gb": 1, "nvidia.com/mig-1g.10gb": 4, "nvidia.com/gpu": 2},
])
def test_all_that_a_full_node_offers_is_as_much_as_it_has(offers):
    assert held(offers, node(offers)) == pytest.approx(shares.count_physical(node(offers)))


def test_a_cluster_with_a_node_that_is_not_seen_has_no_number():
    world = World()
    world.workload("ml/a")
    seen = world.snapshot()
    assert shares.count_cluster(seen) is None
    world.nodes["node-1"] = msgspec.structs.replace(world.nodes["node-1"], gpus=4)
    assert shares.count_cluster(world.snapshot()) == 4.0
