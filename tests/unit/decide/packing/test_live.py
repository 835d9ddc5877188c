"""A live cluster in the engine's nouns: who stands where, who waits, and which nodes are left out because nobody knows
what is free.
"""

from typing import Any

import pytest
from tests import builders

from fallow.decide import packing
from fallow.model.capacity import Machine, Needs
from fallow.model.cluster import Capacity, Pod

NOW = 1_800_000_000.0
GB = 1024


def machine(name: str, gpus: int = 2, **more: Any) -> Machine:
    return Machine(
        **{"name": name, "product": "NVIDIA-L4", "cpu": 32_000, "memory": 64 * GB, "gpus": gpus, "pods": 110, **more}
    )


def tenant(name: str, node: str = "", gpus: int = 1, created_at: float = NOW - 86_400, **more: Any) -> Pod:
    world = builders.World()
    needs = Needs(**{"cpu": 4000, "memory": 4 * GB, "gpus": gpus, **more})
    world.pod(name, node=node, created_at=created_at, needs=needs)
    return world.pods[0]


def settle(machines: list[Machine], *tenants: Pod, cluster: str = "c", unread: int = 0) -> packing.LiveCluster:
    return packing.settle(Capacity(tuple(machines), tenants, cluster, unread), NOW)


def test_everybody_stands_where_they_run_and_the_others_wait() -> None:
    found = settle([machine("a"), machine("b")], tenant("p", "a"), tenant("q", "a"), tenant("r"), tenant("s", gpus=2))
    assert found.room.gpu.tolist() == [[0, 0], [1000, 1000]]
    assert [each.pod.name for each in found.running] == ["ml/p", "ml/q"]
    assert [pod.name for pod in found.waiting] == ["ml/r", "ml/s"]
    assert found.notes == ()


def test_of_thousands_of_sizes_the_most_frequent_count_as_what_usually_comes() -> None:
    odd = [tenant(f"o{number}", cpu=5000 + number) for number in range(600)]
    found = settle([machine("a")], tenant("p"), *odd, tenant("q"))
    assert (len(found.waiting), len({pod.cpu for pod in found.sample})) == (602, 500)
    assert sum(pod.cpu == 4000 for pod in found.sample) == 2


def test_what_is_left_out_is_counted_by_reason() -> None:
    machines = [
        machine("a", 1), machine("b", left_out="is cordoned"), machine("c", left_out="is cordoned"),
        machine("d", cpu=-1),
    ]
    found = settle(machines, tenant("p", "a"), tenant("elsewhere", "b"), cluster="", unread=3)
    assert found.notes == (
        "2 nodes left out: each is cordoned", "1 node left out: it has what no machine has",
        "3 nodes left out: each could not be read",
        "the cluster's own id could not be read: ties are decided by the names of nodes alone",
    )
    assert found.room.nodes.names == ("a",)


@pytest.mark.parametrize(
    ("odd", "why"),
    [
        ({"gpus": 2}, "runs pods that ask for more than it has"),
        ({"gpus": 0, "cpu": 40_000}, "runs pods that ask for more than it has"),
        ({"gpus": 0, "memory": 1 << 50}, "runs pods that ask for more than it has"),
        ({"gpus": 0, "unknown": "asks for devices by claims"}, "runs a pod of which it cannot be said what it takes"),
        ({"gpus": 0, "shared": 1}, "runs a pod that asks for other shares than its GPUs have"),
    ],
)
def test_a_node_whose_free_room_is_not_known_is_not_packed(odd: dict[str, Any], why: str) -> None:
    found = settle([machine("a"), machine("b")], tenant("p", "a"), tenant("odd", "a", **odd), tenant("waits"))
    assert found.notes == (f"1 node left out: it {why}",)
    assert found.room.nodes.names == ("b",)
    assert not found.running
    assert [pod.name for pod in found.waiting] == ["ml/waits"]


def test_several_shares_of_one_pod_may_be_on_any_gpus() -> None:
    shared = machine("a", 2, replicas=4)
    found = settle([shared], tenant("p", "a", 0, shared=1), tenant("q", "a", 0, shared=2))
    assert found.notes == ("1 node left out: it runs a pod that asks for other shares than its GPUs have",)
    assert settle([shared], *(tenant(f"p-{n}", "a", 0, shared=1) for n in range(9))).notes == (
        "1 node left out: it runs pods that ask for more than it has",
    )
    full = settle([shared], *(tenant(f"p-{n}", "a", 0, shared=1) for n in range(8)))
    assert full.room.gpu.tolist() == [[0, 0]]


def test_shares_go_to_shared_gpus_and_whole_ones_to_whole() -> None:
    machines = [machine("a", 1), machine("b", 1, replicas=4, is_renamed=True)]  # one product
    found = settle(machines, tenant("p", "b", 0, shared=1), tenant("q", gpus=0, shared=1), tenant("r"))
    assert found.room.gpu.tolist() == [[1000], [750]]
    share, whole = found.waiting
    assert (share.gpus, share.milli, share.models) == (1, 250, ("NVIDIA-L4 in 4 parts",))
    assert (whole.gpus, whole.milli, whole.models) == (1, 1000, ("NVIDIA-L4",))


def test_who_shares_a_gpu_under_its_own_name_or_not_fits_only_where_it_is_so() -> None:
    """One product, in four ways: none of them is a home for another's pods."""
    machines = [
        machine("whole", 1), machine("renamed", 1, replicas=4, is_renamed=True), machine("plain", 1, replicas=4),
        machine("eight", 1, replicas=8, is_renamed=True),
    ]
    found = settle(machines, tenant("p", "renamed", 0, shared=1), tenant("q", "plain"), tenant("r", "whole"))
    assert [each.pod.models for each in found.running] == [
        ("NVIDIA-L4 in 4 parts",), ("NVIDIA-L4 in 4 replicas",), ("NVIDIA-L4",),
    ]


@pytest.mark.parametrize(
    ("asks", "why"),
    [
        ({"gpus": 0, "shared": 1}, "asks for a share, and no node shares its GPUs"),
        ({"cpu": 1 << 50}, "which no machine has"),
        ({"unclear": "requires nodes by affinity"}, "requires nodes by affinity"),
    ],
)
def test_who_cannot_be_judged_is_told_and_not_planned(asks: dict[str, Any], why: str) -> None:
    found = settle([machine("a")], tenant("p", **asks))
    assert not found.waiting
    ((name, because),) = found.unclear
    assert name == "ml/p"
    assert because.endswith(why)


def test_the_young_and_the_fixed_are_not_moved() -> None:
    bound = [tenant("r", "a", fixed="belongs to its node"), tenant("s", "a", unclear="minds which pods are beside it")]
    found = settle([machine("a", 4)], tenant("p", "a"), tenant("q", "a", created_at=NOW - 60), *bound)
    assert [each.is_movable for each in found.running] == [True, False, False, False]


def test_what_usually_comes_is_the_last_week_if_that_is_enough() -> None:
    old = [tenant(f"old-{number}", "x", created_at=NOW - 30 * 86_400) for number in range(5)]
    few, many = ([tenant(f"new-{number}", "x") for number in range(count)] for count in (5, 200))
    assert len(settle([machine("a")], *old, *few).sample) == 10
    assert len(settle([machine("a")], *old, *many).sample) == 200


def test_who_chose_its_node_in_a_way_that_is_not_read_usually_comes_for_what_it_runs_on() -> None:
    machines = [machine("a"), machine("b", product="Tesla-T4")]
    pods = [tenant("p", "b", unclear="requires nodes by affinity"), tenant("q", "a")]
    found = settle(machines, *pods, tenant("r", unclear="requires nodes by affinity"))
    assert [(pod.name, pod.models) for pod in found.sample] == [("ml/p", ("Tesla-T4",)), ("ml/q", ())]
    assert found.notes == (
        "1 pod chose nodes in a way that packing does not read: it is taken to accept the GPU model on which it runs",
    )


def test_who_belongs_to_its_node_is_nobody_who_usually_comes() -> None:
    found = settle([machine("a")], tenant("exporter", "a", gpus=0, fixed="belongs to its node"), tenant("p", "a"))
    assert [pod.name for pod in found.sample] == ["ml/p"]


def test_where_nothing_ever_came_nothing_is_fragmented_and_nothing_is_0() -> None:
    found = settle([machine("a")])
    assert packing.make_tables(found.room.nodes, found.sample) is None
    assert packing.stand(found, packing.prepare("FGD", found.room.nodes, found.sample)).fragmented is None


def test_ties_depend_on_the_cluster_and_on_nothing_that_names_tell() -> None:
    machines = [machine(f"node-{number:03}") for number in range(50)]
    orders = [settle(machines, cluster=uid).order.tolist() for uid in ("one", "one", "two")]
    assert orders[0] == orders[1] != orders[2]
    assert orders[0] != sorted(orders[0])


def test_what_is_left_out_is_not_in_the_figures_of_the_cluster_and_is_said() -> None:
    machines = machine("a"), machine("m", left_out="is cut by MIG")
    room = packing.measure_room(Capacity(machines, (tenant("p", "a"), tenant("q", "m")), "c", 0), NOW)
    assert (room.gpus, room.allocated_gpus, room.nodes) == (2, 1.0, {"a"})
    assert room.notes == ("1 node left out: it is cut by MIG",)


def test_of_who_waits_and_cannot_be_judged_it_is_said_that_nobody_can_tell() -> None:
    found = settle([machine("a")], tenant("p", unclear="requires nodes by affinity"))
    standing = packing.stand(found, packing.prepare("FGD", found.room.nodes, found.sample))
    assert [(each.node, each.why) for each in standing.waiting] == [(None, "cannot tell: requires nodes by affinity")]
