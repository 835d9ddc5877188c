"""What is made up has names that people can tell apart, and no two have the same."""

from fallow.sim import calling, cast


def test_names_of_workloads_and_nodes_are_distinct_and_those_of_a_cluster() -> None:
    world = cast.make_world(seed=1, nodes=60, hours=1)
    names = [one.part.name for one in world.workloads]
    assert len(set(names)) == len(names) == 181  # one more where GPUs are shared by MPS
    assert len(world.nodes) == 60
    assert {"mig-01", "mps-01", "shared-01", "a100-01"} <= set(world.nodes)
    assert {node.pool for node in world.nodes.values()} >= {"mig-a100", "serve-a100", "dev-t4"}
    assert calling.workload("inference", 0) == "llm-chat"
    assert calling.workload("inference", 18) == "llm-chat-2"


def test_notebooks_are_told_by_mail_and_services_in_their_room() -> None:
    world = cast.make_world(seed=1, nodes=20, hours=1)
    for one in world.workloads:
        assert one.part.person.endswith("@example.com")
        assert bool(one.part.room) is (one.part.class_ != "notebook")
        assert one.who == one.part.person
