"""Whose a pod is, of those that are mirrored: by the workload above it, and by its namespace."""

from tests.builders import World

from fallow.model import cluster
from fallow.model.policies import budget
from fallow.model.seen import ABSENT, Known, Unseen
from fallow.observe import budgets

ABOVE = cluster.Owner("apps", "v1", "ReplicaSet", "llm-1", "uid-rs")


def find(world: World) -> dict[str, budget.PodTraits]:
    seen = world.snapshot()
    return {pod.name: whose for pod, whose in budgets.find_traits(seen.pods, seen.workloads, seen.namespaces)}


def test_whose_a_pod_is_follows_from_the_workload_above_it_and_from_its_namespace() -> None:
    world = World()
    world.namespace("ml", labels={"team": "red"})
    world.workload("ml/llm", labels={"team": "blue"}, pod={"labels": {"app": "llm"}})
    assert find(world) == {"llm-0": budget.PodTraits(
        namespace="ml", labels={"app": "llm"}, above=Known({"team": "blue"}), around=Known({"team": "red"})
    )}


def test_a_pod_without_a_workload_is_its_own_and_one_whose_owners_are_not_known_may_be_anybodys() -> None:
    world = World()
    world.pod("alone", namespace="gone")
    world.pod("stray", owner=ABOVE)
    found = find(world)
    assert (found["alone"].above, found["alone"].around) == (ABSENT, ABSENT)
    assert isinstance(found["stray"].above, Unseen)
