"""Nodes of the pretend world that are cordoned, emptied and cut anew, and what becomes of the pods on them."""

from __future__ import annotations

import numpy as np

from fallow import names
from fallow.sim.servers import partitions
from fallow.sim.servers import store as stores
from fallow.sim.world import lives, shapes
from fallow.sim.world.nouns import Part, SimNode, SimState
from fallow.sim.world.world import World

MINUTE = 60.0


def make_world(*parts: Part, nodes: int = 2) -> World:
    span = lives.LifeSpan(0.0, MINUTE, 600)
    seats = sum(part.seats for part in parts)
    busy = np.full((seats, span.columns), 80, np.uint8)
    return World([SimNode(f"n-{number}", gpus=2) for number in range(nodes)], parts, busy, span)


def test_a_cordoned_node_is_given_nobody_and_one_of_several_pods_moves_alone() -> None:
    world = make_world(Part("ml", "web", replicas=2), Part("ml", "late", arrives_at=120.0), nodes=3)
    [web] = [one for one in world.workloads if one.part.name == "web"]
    (home,) = {pod.node for pod in web.pods}  # both on one node
    world.cordon(home, True)
    world.advance(60.0)
    world.evict(web, 0)
    first, second = web.pods
    assert (first.node != home, second.node, web.state) == (True, home, SimState.running)
    assert world.running[web.seats].tolist() == [False, True]  # the new one starts
    world.advance(world.start_seconds)
    assert world.running[web.seats].all()
    late = world.workloads[1]
    assert late.pods[0].node != home
    assert world.holder_of(first.slots[0]) == (web.part, first)


def test_where_there_is_no_room_it_waits_and_a_single_pod_goes_to_the_gate_again() -> None:
    world = make_world(Part("ml", "one", gpus=2), nodes=1)
    one = world.workloads[0]
    world.is_gated = True
    world.cordon("n-0", True)
    world.evict(one, 0)
    assert (one.state, world.at_gate) == (SimState.waiting, [one])
    world.let_in(one, "whole")
    assert one.state is SimState.waiting
    world.cordon("n-0", False)
    assert one.state is SimState.starting


def test_nobody_is_on_a_gpu_that_is_cut_and_then_its_parts_are_given_out() -> None:
    world = make_world(Part("ml", "small", mode="mig", replicas=3), Part("ml", "large", gpus=2), nodes=1)
    small, large = world.workloads
    assert (small.state, large.state) == (SimState.waiting, SimState.running)
    assert not world.cut_anew("n-0", "mig")
    world.cordon("n-0", True)
    world.evict(large, 0)
    assert world.cut_anew("n-0", "mig")
    world.cordon("n-0", False)
    world.advance(world.start_seconds)
    assert (small.state, large.state) == (SimState.running, SimState.waiting)
    where = [world.device_of(pod.slots[0])[1:] for pod in small.pods]
    assert len(set(where)) == 3
    assert {world.uuids[pod.slots[0]] for pod in small.pods} <= set(world.uuids[:2])  # the GPUs are the same


def test_labels_are_heeded_and_a_layout_that_nobody_here_uses_is_only_shown() -> None:
    world, store = make_world(nodes=1), stores.Store(lambda: 0.0)
    store.create(shapes.make_node(
        "n-0", model="NVIDIA-A100-SXM4-80GB", gpus=2, ip="", mode="whole", slices=1, resource=names.GPU
    ))
    programs, key = partitions.NodePrograms(world, store), stores.Key("", "Node", "", "n-0")
    programs.step()
    assert names.MIG_CONFIG_STATE not in store.get(key).object["metadata"]["labels"]

    def ask(config: str) -> dict[str, str]:
        store.patch(key, {"metadata": {"labels": {names.MIG_CONFIG: config}}})
        for _ in range(8):
            programs.step()
        found: dict[str, str] = store.get(key).object["status"]["allocatable"]
        return {name: count for name, count in found.items() if name.startswith(names.NVIDIA) and count != "0"}

    assert ask("all-1g.10gb") == {"nvidia.com/mig-1g.10gb": "14"}
    assert world.nodes["n-0"].mode == "mig"
    assert ask("all-balanced") == {
        "nvidia.com/mig-1g.5gb": "4", "nvidia.com/mig-2g.10gb": "2", "nvidia.com/mig-3g.20gb": "2",
    }
    assert world.nodes["n-0"].mode == "mig"
    assert ask("all-disabled") == {names.GPU: "2"}
    assert world.nodes["n-0"].mode == "whole"
