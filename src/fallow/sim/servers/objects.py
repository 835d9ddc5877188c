"""A pretend cluster's nodes, pods and workloads as Kubernetes objects in a Store, with the operators that act on them.

In: a World and a Store. Out: after every `step` the Store shows what the world has become. What others write on a
workload (the product, or somebody with kubectl) reaches the world at once: it stops, and its people read the marks. A
service of KServe has its marks on the Deployment below it, where the product wants them; the world sees them as its.
Invariant: the record that the product writes stays as written; the world changes only status, pods, and what its people
write.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import msgspec

from fallow import names
from fallow.model import moving
from fallow.model.policies import attribution_crd, budget_crd, idle_crd, nodeconfig_crd, scaling_crd, sharing_crd
from fallow.model.units import Instant
from fallow.sim import paying
from fallow.sim.servers import store as stores
from fallow.sim.servers.kubernetes import patches
from fallow.sim.world import nouns, shapes
from fallow.sim.world import world as worlds

Object: TypeAlias = dict[str, Any]
Watch: TypeAlias = Callable[[nouns.SimWorkload, Object], None]

OWNER = "kubectl-create"  # who made the workloads
BY_HAND, BY_COMMAND = "kubectl-edit", names.RESUME_FIELD_MANAGER
SERVICES = ("InferenceService", "LLMInferenceService")


# Of pods that have whole GPUs, once they are admitted: not on a node that offers parts of GPUs by the same name. The
# world's scheduler does so, too.
_UNSHARED = {"nodeAffinity": {names.REQUIRED: {
    "nodeSelectorTerms": [{"matchExpressions": [{"key": names.GPU_REPLICAS, "operator": "DoesNotExist"}]}],
}}}


class _Shown(msgspec.Struct):
    """How a workload stands in the Store."""

    key: stores.Key
    heard: Object  # as the world knows it: with its uid there, and the marks wherever they stand
    links: list[stores.Key] = []
    pods: dict[str, tuple[str, str]] = {}  # name -> (uid in the world, stage)
    status: tuple[int, bool, bool] | None = None  # running, stopped, finished


class Objects:
    def __init__(self, world: worlds.World, store: stores.Store, watch: Watch = lambda workload, thing: None) -> None:
        """`watch` hears what the product wrote on a workload, before the world does."""
        self._world, self._store, self._watch = world, store, watch
        self._seen = 0  # changes of the world that are shown
        self._shown: dict[str, _Shown] = {}  # by the uid in the world
        self._by_key: dict[stores.Key, str] = {}
        self._ready: dict[str, bool] = {}
        self._is_stepping = False  # what is written meanwhile is the world's own
        self._lay_ground()
        store.subscribe(self._hear)
        self.step()

    def _lay_ground(self) -> None:
        ours = (idle_crd, budget_crd, attribution_crd, sharing_crd, nodeconfig_crd, scaling_crd)
        for definition in [*shapes.make_definitions(), *(each.define() for each in ours)]:
            self._store.create(definition)
        for name in sorted({"default", shapes.EXPORTERS, *(one.part.namespace for one in self._world.workloads)}):
            if self._store.find(stores.Key("", "Namespace", "", name)) is None:  # a server brings the usual ones
                labels = {"team": team} if (team := name.removeprefix("team-")) != name else {}
                made = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
                self._store.create({**made, "status": {"phase": "Active"}})

    def show_exporters(self, ports: Mapping[str, int]) -> None:
        """The exporters' pods, by which they are found. They share the machine's own address."""
        for node, port in ports.items():
            self._store.create(shapes.make_exporter(node, port))

    def step(self) -> None:
        """Shows whatever happened since the last step."""
        changes = self._world.changes_since(self._seen)
        self._seen += len(changes)
        self._is_stepping = True
        try:
            self._show_nodes()
            for uid in dict.fromkeys(change.uid for change in changes):
                workload = self._world.find(uid)
                if workload is not None and workload.state is not nouns.SimState.absent:
                    self._show(workload)
            for node in self._world.nodes.values():
                if not node.there:
                    self._remove_node(node)
        finally:
            self._is_stepping = False

    def _show_nodes(self) -> None:
        for index, node in enumerate(self._world.nodes.values()):
            if node.there and node.name not in self._ready:
                self._create_node(node, index)
            elif node.there and self._ready[node.name] != node.ready:
                self._ready[node.name] = node.ready
                status = shapes.node_status(_node_ip(index), ready=node.ready, since=self._world.now)
                self._store.patch(stores.Key("", "Node", "", node.name), {"status": status})

    def _create_node(self, node: nouns.SimNode, index: int) -> None:
        labels, annotations = paying.mark_node(node)
        self._store.create(shapes.make_node(
            node.name, model=node.model, gpus=node.gpus, ip=_node_ip(index), mode=node.mode,
            slices=nouns.PARTS[node.mode], resource=nouns.RESOURCES[node.mode],
            pool=node.pool, machine=node.machine, labels=labels, annotations=annotations,
        ))
        self._ready[node.name] = True

    def _remove_node(self, node: nouns.SimNode) -> None:
        """As a cloud's controller does it once the machine is gone: the Node, and what still was on it."""
        if self._ready.pop(node.name, None) is not None:
            for key in (
                stores.Key("", "Pod", shapes.EXPORTERS, shapes.name_exporter(node.name)),
                stores.Key("", "Node", "", node.name),
            ):
                if self._store.find(key) is not None:
                    self._store.delete(key)

    def _show(self, workload: nouns.SimWorkload) -> None:
        shown = self._shown.get(workload.uid) or self._create(workload)
        if shown.heard is not workload.object:
            self._write_as_person(workload, shown)
        is_over = workload.state is nouns.SimState.finished
        is_stopped = shapes.wanted(workload.object) == 0
        running = len(workload.pods) if workload.state is nouns.SimState.running else 0
        if shown.status != (running, is_stopped, is_over):
            shown.status = running, is_stopped, is_over
            status = shapes.make_status(workload.object, running, self._world.now, finished=is_over)
            self._store.patch(shown.key, {"status": status})
            self._keep_links(workload, shown, 0 if is_stopped or is_over else workload.part.replicas)
        self._keep_pods(workload, shown)

    def _create(self, workload: nouns.SimWorkload) -> _Shown:
        made = self._store.create(workload.object, stores.Writer(manager=OWNER))
        shown = self._shown[workload.uid] = _Shown(made.key, workload.object)
        self._by_key[made.key] = workload.uid
        return shown

    def _keep_links(self, workload: nouns.SimWorkload, shown: _Shown, replicas: int) -> None:
        """What its operator makes between it and its pods. KServe takes all of it away when a service is stopped."""
        if workload.part.kind in SERVICES and replicas == 0:
            for key in shown.links[:1]:
                self._store.delete(key)
                self._by_key.pop(key, None)
            shown.links, shown.pods = [], {}
        elif not shown.links:
            self._make_links(workload, shown, replicas)
        else:
            patch = {"spec": {"replicas": replicas}, "status": {"replicas": replicas, "readyReplicas": replicas}}
            for key in shown.links:
                if "replicas" in self._store.get(key).object["spec"]:
                    self._store.patch(key, patch)

    def _make_links(self, workload: nouns.SimWorkload, shown: _Shown, replicas: int) -> None:
        above = self._store.get(shown.key).object
        for link in shapes.SHAPES[workload.part.kind].links:
            above = self._store.create(shapes.make_link(link, above, replicas)).object
            shown.links.append(stores.key_of(above))
        if workload.part.kind in SERVICES:
            self._by_key[shown.links[0]] = workload.uid

    def _keep_pods(self, workload: nouns.SimWorkload, shown: _Shown) -> None:
        if workload in self._world.at_gate:  # they are made once they are admitted
            return
        wanted = {pod.name: (pod.uid, _stage(pod, self._world.now)) for pod in workload.pods}
        for name, (uid, _) in list(shown.pods.items()):
            if wanted.get(name, ("",))[0] != uid:
                self._remove_pod(workload, name)
                del shown.pods[name]
        for number, pod in enumerate(workload.pods):
            if shown.pods.get(pod.name) != wanted[pod.name]:
                made = self._make_pod(workload, shown, number, wanted[pod.name][1])
                if pod.name in shown.pods:
                    self._store.write(stores.key_of(made), made)
                else:
                    self._store.create(made)
        shown.pods = wanted

    def _remove_pod(self, workload: nouns.SimWorkload, name: str) -> None:
        key = stores.Key("", "Pod", workload.part.namespace, name)
        found = self._store.find(key)
        if found is not None:  # not gone with what owned it
            ended = shapes.ended_status(found.object["status"], workload.left_at)
            self._store.write(key, {**found.object, "status": ended})
            self._store.delete(key)

    def _make_pod(self, workload: nouns.SimWorkload, shown: _Shown, number: int, stage: str) -> Object:
        pod, part, ip = workload.pods[number], workload.part, _pod_ip(workload.number, number)
        if pod.bound_at is None:
            status = shapes.waiting_status(pod.created_at)
        elif stage == "starting":
            status = shapes.starting_status(pod.bound_at)
        else:
            status = shapes.running_status(pod.ready_at, ip, bound_at=pod.bound_at)
        made = shapes.make_pod(
            self._owner_of(workload, shown, number), pod.name, node=pod.node, gpus=part.gpus,
            resource=nouns.RESOURCES[part.mode], status=status,
            labels={
                **({names.LWS_NAME_LABEL: part.name} if part.kind == "LeaderWorkerSet" else {}),
                **({names.SPOT_OK: "true"} if part.errand else {}),
            },
        )
        if part.model:
            made["spec"]["nodeSelector"] = {names.GPU_PRODUCT: part.model}
        elif workload.mode == "whole" and not part.roams and workload not in self._world.at_gate:
            made["spec"]["affinity"] = _UNSHARED
        return patches.json_patch(made, list(workload.patch)) if workload.patch else made

    def ask(self, workload: nouns.SimWorkload) -> Object:
        """A pod of those at the gate, as it asks to be let in."""
        made = self._make_pod(workload, self._shown[workload.uid], 0, "waiting")
        spec = {name: part for name, part in made["spec"].items() if name != "nodeName"}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": made["metadata"], "spec": spec}

    def find_meant(self, held: moving.HeldPlace) -> nouns.SimWorkload | None:
        """For whose pod this place is kept."""
        for uid, shown in self._shown.items():
            pods = [stores.Key("", "Pod", held.namespace, name) for name in shown.pods]
            keys = [] if shown.key.namespace != held.namespace else pods if held.pod else [shown.key, *shown.links]
            found = (self._store.find(key) for key in keys)
            if any(each.object["metadata"]["uid"] == (held.pod or held.owner) for each in found if each is not None):
                return self._world.find(uid)
        return None

    def _owner_of(self, workload: nouns.SimWorkload, shown: _Shown, number: int) -> Object:
        """The lowest link; of a leader's workers, a StatefulSet that the leader itself owns."""
        lowest = shown.links[-1] if shown.links else shown.key
        part = workload.part
        if part.kind == "LeaderWorkerSet" and number % part.group_size:
            leader = stores.Key("", "Pod", part.namespace, workload.pods[number - number % part.group_size].name)
            return self._workers_of(self._store.get(leader).object, part)
        return self._store.get(lowest).object

    def _workers_of(self, leader: Object, part: nouns.Part) -> Object:
        made = shapes.make_link(("apps/v1", "StatefulSet"), leader, part.group_size - 1)
        found = self._store.find(stores.key_of(made))
        return found.object if found else self._store.create(made).object

    def _write_as_person(self, workload: nouns.SimWorkload, shown: _Shown) -> None:
        """What the world's people did to their workload since it was last heard of."""
        before, after = shown.heard, workload.object
        shown.heard = after
        changes = _differ(_marks(before), _marks(after))
        on_marks = {key: value for key, value in changes.items() if key in names.ACK_KEYS}
        on_itself = {key: value for key, value in changes.items() if key not in names.ACK_KEYS}
        writer = stores.Writer(manager=BY_COMMAND if names.RESUMED_AT in changes else BY_HAND)
        if on_marks:
            self._store.patch(self._marks_key(workload, shown), {"metadata": {"annotations": on_marks}}, writer)
        if on_itself or before["spec"] != after["spec"]:
            thing = self._store.get(shown.key).object
            said = {key: value for key, value in {**_marks(thing), **on_itself}.items() if value is not None}
            written = {**thing, "metadata": {**thing["metadata"], "annotations": said}, "spec": after["spec"]}
            self._store.write(shown.key, written, writer)

    def _marks_key(self, workload: nouns.SimWorkload, shown: _Shown) -> stores.Key:
        return shown.links[0] if workload.part.kind in SERVICES and shown.links else shown.key

    def _hear(self, change: stores.Change) -> None:
        """Somebody else wrote on a workload or a node, or took a pod away."""
        key = change.entry.key
        if not self._is_stepping and (key.group, key.kind) in (("", "Node"), ("", "Pod")):
            self._hear_of_machine(change)
            return
        uid = self._by_key.get(key)
        workload, shown = self._world.find(uid or ""), self._shown.get(uid or "")
        if self._is_stepping or workload is None or shown is None or change.type == "DELETED":
            return
        shown.heard, is_product = self._as_heard(workload, shown), change.by.startswith(names.FIELD_MANAGER)
        if is_product:
            self._watch(workload, shown.heard)
        self._world.notice(shown.heard, "product" if is_product else "person")

    def _hear_of_machine(self, change: stores.Change) -> None:
        """Its scheduler heeds a cordon; whoever makes pods makes one that was evicted anew."""
        key, is_gone = change.entry.key, change.type == "DELETED"
        if key.kind == "Node" and key.name in self._world.nodes and not is_gone:
            cordoned = bool(change.entry.object["spec"].get("unschedulable"))
            if cordoned != self._world.nodes[key.name].cordoned:
                self._world.cordon(key.name, cordoned)
        elif key.kind == "Pod" and is_gone:
            for uid, shown in self._shown.items():
                workload = self._world.find(uid)
                if workload is not None and workload.part.namespace == key.namespace and key.name in shown.pods:
                    number = [pod.name for pod in workload.pods].index(key.name) if workload.pods else -1
                    if number >= 0:
                        self._world.evict(workload, number)

    def _as_heard(self, workload: nouns.SimWorkload, shown: _Shown) -> Object:
        """The object as the world knows it."""
        thing = self._store.get(shown.key).object
        marks = self._store.get(self._marks_key(workload, shown)).object
        said = {**_marks(marks), **_marks(thing)}
        return {**thing, "metadata": {**thing["metadata"], "uid": workload.uid, "annotations": said}}


def _stage(pod: nouns.SimPod, now: Instant) -> str:
    if not pod.node:
        return "waiting"
    return "running" if pod.ready_at <= now else "starting"


def _marks(thing: Mapping[str, Any]) -> dict[str, str]:
    return thing["metadata"].get("annotations") or {}


def _differ(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str | None]:
    found: dict[str, str | None] = {key: value for key, value in after.items() if before.get(key) != value}
    return found | {key: None for key in before if key not in after}


def _node_ip(index: int) -> str:
    return f"10.0.{index // 250}.{index % 250 + 1}"


def _pod_ip(number: int, pod: int) -> str:
    return f"10.{128 + number // 250 % 64}.{number % 250}.{pod % 250 + 1}"

