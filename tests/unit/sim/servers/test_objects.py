"""The world's objects in a Store: what operators make, what stops them, and what people write."""

from __future__ import annotations

import numpy as np
import pytest

from fallow import names
from fallow.model.units import HOUR, MINUTE, parse_instant
from fallow.sim.servers import objects, store
from fallow.sim.world import nouns, shapes, world
from fallow.sim.world.lives import LifeSpan

SPAN = LifeSpan(parse_instant("2026-11-16T00:00:00Z"), MINUTE, 600)
PRODUCT = store.Writer(manager=names.FIELD_MANAGER)


class Scene:
    def __init__(self, *parts: nouns.Part) -> None:
        seats = sum(part.seats for part in parts)
        nodes = [nouns.SimNode(f"gpu-{number}") for number in range(8)]
        self.world = world.World(nodes, parts, np.zeros((seats, SPAN.columns), np.uint8), SPAN)
        self.store = store.Store(lambda: self.world.now)
        self.objects = objects.Objects(self.world, self.store)

    def go_on(self, seconds: float) -> None:
        self.world.advance(seconds)
        self.objects.step()

    def pods(self, namespace: str = "ml") -> list[str]:
        return [entry.key.name for entry in self.store.entries("", "Pod", namespace)]

    def owners(self, pod: str) -> list[str]:
        """From the pod up."""
        found, chain = self.store.get(store.Key("", "Pod", "ml", pod)).object, []
        while references := found["metadata"].get("ownerReferences"):
            owner = references[0]
            chain.append(owner["kind"])
            found = self.store.get(
                store.Key(owner["apiVersion"].rpartition("/")[0], owner["kind"], "ml", owner["name"])
            ).object
        return chain


@pytest.mark.parametrize("kind", shapes.SHAPES)
def test_pods_hang_below_their_workload_by_the_chain_its_operator_makes(kind: str) -> None:
    scene = Scene(nouns.Part("ml", "thing", kind))
    chain = [link[1] for link in shapes.SHAPES[kind].links]
    assert scene.owners("thing-0") == [*reversed(chain), kind]


def test_the_workers_of_a_group_belong_to_its_leader() -> None:
    scene = Scene(nouns.Part("ml", "lws", "LeaderWorkerSet", group_size=2))
    assert scene.owners("lws-0") == ["StatefulSet", "LeaderWorkerSet"]
    assert scene.owners("lws-1") == ["StatefulSet", "Pod", "StatefulSet", "LeaderWorkerSet"]


def test_a_write_that_stops_takes_the_pods_and_one_that_starts_brings_them_back() -> None:
    scene = Scene(nouns.Part("ml", "llm", replicas=2))
    key = store.Key("apps", "Deployment", "ml", "llm")
    scene.store.patch(key, {"spec": {"replicas": 0}, "metadata": {"annotations": {"keep": "me"}}}, PRODUCT)
    scene.objects.step()
    assert scene.pods() == []
    assert scene.store.get(key).object["metadata"]["annotations"]["keep"] == "me"
    assert scene.store.get(key).object["status"]["replicas"] == 0
    scene.store.patch(key, {"spec": {"replicas": 2}}, PRODUCT)
    scene.go_on(30.0)
    pending = [entry.object["status"]["phase"] for entry in scene.store.entries("", "Pod", "ml")]
    assert pending == ["Pending", "Pending"]
    scene.go_on(600.0)
    assert [entry.object["status"]["phase"] for entry in scene.store.entries("", "Pod", "ml")] == ["Running", "Running"]


def test_a_stopped_service_loses_what_kserve_made_for_it() -> None:
    scene = Scene(nouns.Part("ml", "svc", "InferenceService"))
    key = store.Key("serving.kserve.io", "InferenceService", "ml", "svc")
    assert [entry.key.name for entry in scene.store.entries("apps", "Deployment", "ml")] == ["svc-predictor"]
    scene.store.patch(key, {"metadata": {"annotations": {names.KSERVE_STOP: "true"}}}, PRODUCT)
    scene.objects.step()
    assert scene.store.entries("apps", "Deployment", "ml") == []
    assert scene.pods() == []
    conditions = scene.store.get(key).object["status"]["conditions"]
    assert {one["type"]: one["status"] for one in conditions} == {"Ready": "False", "Stopped": "True"}


def test_an_owner_reads_the_notice_and_the_answer_is_written_on_the_object() -> None:
    scene = Scene(*(nouns.Part("ml", f"n-{number}", owner="attentive") for number in range(8)))
    marks = {names.IDLE_EPISODE: "abc", names.PENDING_SINCE: "2026-11-16T00:01:00Z"}
    for number in range(8):
        scene.store.patch(
            store.Key("apps", "Deployment", "ml", f"n-{number}"), {"metadata": {"annotations": marks}}, PRODUCT
        )
    scene.go_on(HOUR)
    said = [entry.object["metadata"]["annotations"] for entry in scene.store.entries("apps", "Deployment", "ml")]
    acked = [marks for marks in said if names.ACK_UNTIL in marks]
    assert 0 < len(acked) < 8
    assert len(acked) == sum(one.acks for one in scene.world.workloads)


def test_a_lost_node_is_not_ready_and_comes_back() -> None:
    scene = Scene(nouns.Part("ml", "llm"))
    node = store.Key("", "Node", "", "gpu-0")

    def is_ready() -> str:
        scene.go_on(60.0)
        return str(scene.store.get(node).object["status"]["conditions"][0]["status"])

    assert is_ready() == "True"
    scene.world.switch_on(nouns.Fault.node_lost, ["gpu-0"])
    assert is_ready() == "Unknown"
    scene.world.switch_off(nouns.Fault.node_lost)
    assert is_ready() == "True"


def test_a_job_that_ends_says_so() -> None:
    scene = Scene(nouns.Part("ml", "job", "Job", ends_at=SPAN.start + HOUR))
    scene.go_on(2 * HOUR)
    assert scene.pods() == []
    assert scene.store.get(
        store.Key("batch", "Job", "ml", "job")
    ).object["status"]["conditions"][0]["type"] == "Complete"
