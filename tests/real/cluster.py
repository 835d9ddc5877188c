"""What a test says to a real cluster, in the language of tests: make a GPU node, run this, age it, what happened?

In: a `ControlPlane`. Out: `Cluster`, a handle with a fresh namespace that speaks to the API server with its own small
client, so that what fallow's client does is seen by other eyes.
Invariant: what a test made through its handle is gone when the handle closes (its nodes, what was in its namespaces
with all pods, its cluster-scoped objects); only CRDs stay, because making them anew costs more than a test, and
namespaces of names that nobody will use again, because for each that goes the control plane asks itself a hundred
questions.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import datetime
import functools
import inspect
import ipaddress
import json
import pathlib
import secrets
import time
import zlib
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import aiohttp

from tests.real import lives, world

Object = dict[str, Any]
_PATCH_TYPES = {
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "json": "application/json-patch+json",
    "apply": "application/apply-patch+yaml",
}
_PAUSE = 0.03  # between two looks of wait_until
PATIENCE = 120.0  # with what must come; a machine that tests with all it has is late, and who is right does not wait


class Refused(Exception):
    """The API server did not say 2xx; `code` and `status` are its answer."""

    def __init__(self, code: int, status: Any) -> None:
        message = status.get("message") if isinstance(status, dict) else status
        super().__init__(f"{code}: {message}")
        self.code = code
        self.status = status


class Cluster:
    """A fresh namespace on a real control plane. Use as `async with`, or by the fixture `cluster`."""

    def __init__(self, plane: world.ControlPlane, folder: pathlib.Path) -> None:
        self.plane = plane
        self.namespace = f"t-{secrets.token_hex(3)}"
        self.kubeconfig = plane.kubeconfig
        self._folder = folder
        self._mark = plane.audit_mark()
        self._known: dict[tuple[str, str], tuple[str, bool]] = {}
        self._made: list[Object] = []

    async def __aenter__(self) -> Cluster:
        connector = aiohttp.TCPConnector(ssl=self.plane.admin_tls())
        self._http = aiohttp.ClientSession(
            self.plane.url, connector=connector, timeout=aiohttp.ClientTimeout(30), headers={"User-Agent": "test-admin"}
        )
        try:
            await self.make_namespace(self.namespace)
        except BaseException:  # nobody leaves what was not entered
            await self._http.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self._clean_up()
        finally:
            await self._http.close()

    # --- any object ---

    async def request(
        self, method: str, path: str, body: Any = None, kind: str = "application/json", **query: str
    ) -> Any:
        """One request as the cluster's administrator; the parsed answer, or `Refused`."""
        data = None if body is None else json.dumps(body)
        async with self._http.request(method, path, data=data, params=query, headers={"Content-Type": kind}) as answer:
            text = await answer.text()
            content = json.loads(text) if "json" in answer.content_type else text
            if answer.status >= 300:
                raise Refused(answer.status, content)
            return content

    async def apply(self, manifest: Object, manager: str = "test", force: bool = True) -> Object:
        """Server-side apply. A namespaced object without a namespace goes into the test's own."""
        manifest = await self._placed(manifest)
        path = await self._path_of(manifest)
        query = {"fieldManager": manager, "force": str(force).lower()}
        made: Object = await self.request("PATCH", path, manifest, _PATCH_TYPES["apply"], **query)
        self._made.append(made)
        return made

    async def create(self, manifest: Object) -> Object:
        manifest = await self._placed(manifest)
        collection = (await self._path_of(manifest)).rpartition("/")[0]
        made: Object = await self.request("POST", collection, manifest)
        self._made.append(made)
        return made

    async def get(self, version: str, kind: str, name: str, namespace: str | None = None) -> Object:
        """`await cluster.get("apps/v1", "Deployment", "llm")`"""
        found: Object = await self.request("GET", await self._path(version, kind, name, namespace))
        return found

    async def find(self, version: str, kind: str, name: str, namespace: str | None = None) -> Object | None:
        """As `get`, but None for what is not there."""
        try:
            return await self.get(version, kind, name, namespace)
        except Refused as refused:
            if refused.code != 404:
                raise
            return None

    async def refresh(self, thing: Object) -> Object:
        """The same object as it is now."""
        found: Object = await self.request("GET", await self._path_of(thing))
        return found

    async def objects(self, version: str, kind: str, namespace: str | None = None, **query: str) -> list[Object]:
        path = await self._path(version, kind, "", namespace)
        found = (await self.request("GET", path.rstrip("/"), **query))["items"]
        return [{"apiVersion": version, "kind": kind, **one} for one in found]  # lists leave these out

    async def patch(self, thing: Object, body: Any, how: str = "merge", part: str = "", **query: str) -> Object:
        """`part` names a subresource: status, scale."""
        path = await self._path_of(thing) + (f"/{part}" if part else "")
        changed: Object = await self.request("PATCH", path, body, _PATCH_TYPES[how], **query)
        return changed

    async def delete(self, thing: Object, **query: str) -> None:
        try:
            await self.request("DELETE", await self._path_of(thing), **query)
        except Refused as refused:
            if refused.code != 404:
                raise

    async def make_namespace(self, name: str, labels: dict[str, str] | None = None) -> Object:
        """With its default ServiceAccount, without which no pod may be made. One of the same name of another test
        may still be going, and what is put into that is refused."""
        await self.wait_until(functools.partial(self._is_not_going, name))
        made = await self.apply(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels or {}}}
        )
        await self.wait_until(lambda: self.find("v1", "ServiceAccount", "default", name))
        return made

    async def apply_crds(self, *crds: Object) -> None:
        """Make or change CustomResourceDefinitions, and wait until the API server serves them in this shape."""
        for crd in crds:
            made = await self.apply(crd)
            self._made.pop()
            await self.wait_until(functools.partial(self._is_served, made))
            if made["metadata"]["generation"] > 1:
                await self.wait_until(functools.partial(self._is_published, crd))

    async def wait_until(self, holds: Callable[[], Any], timeout: float = PATIENCE) -> Any:
        """Look again and again until the answer is true; that answer. `holds` may be async. Else TimeoutError."""
        deadline = time.monotonic() + timeout
        while True:
            answer = holds()
            if inspect.isawaitable(answer):
                answer = await answer
            if answer:
                return answer
            if time.monotonic() > deadline:
                raise TimeoutError(f"not within {timeout:g} s; the last answer was {answer!r}")
            await asyncio.sleep(_PAUSE)

    # --- nodes and pods ---

    async def gpu_node(
        self,
        name: str,
        gpus: int = 8,
        product: str = "NVIDIA-H100-80GB-HBM3",
        memory_mib: int = 81559,
        replicas: int = 1,
        sharing: str | None = None,
        mig: dict[str, int] | None = None,
        labels: dict[str, str] | None = None,
    ) -> Object:
        """A Ready node as the device plugin and GPU feature discovery describe it.

        `replicas` > 1 with `sharing` ("time-slicing", "mps") advertises each GPU so many times;
        `mig={"1g.10gb": 7}` advertises such slices besides whole GPUs.
        """
        resources = {f"nvidia.com/mig-{profile}": str(count) for profile, count in (mig or {}).items()}
        resources |= {"cpu": "128", "memory": "1Ti", "pods": "200"}
        if gpus:
            resources["nvidia.com/gpu"] = str(gpus * replicas)
        node = await self.apply(
            _node(name, _gpu_labels(name, gpus, product, memory_mib, replicas, sharing) | (labels or {}))
        )
        addresses = [{"type": "InternalIP", "address": _address(name)}, {"type": "Hostname", "address": name}]
        status = {"capacity": resources, "allocatable": resources, "addresses": addresses}
        await self.patch(node, {"status": status}, part="status")
        made: Object = await self.wait_until(lambda: self._node_if_ready(name))
        return made

    async def break_node(self, name: str) -> None:
        """The node stops being Ready, and its pretend kubelet does not mend it."""
        node = await self.get("v1", "Node", name)
        await self.patch(node, {"metadata": {"annotations": {lives.ANNOTATION: "down"}}})
        condition = {
            "type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "lastTransitionTime": _stamp(0)
        }
        await self.patch(node, {"status": {"conditions": [condition]}}, "strategic", "status")

    async def deployment(self, name: str, replicas: int = 1, gpus: int = 1, **template: Any) -> Object:
        """A Deployment of GPU pods, all Ready. `template` may give labels, annotations, and fields of the pod's
        spec."""
        return await self.run(replicated("apps/v1", "Deployment", name, replicas, gpus, **template), replicas)

    async def run(self, manifest: Object, pods: int) -> Object:
        """Apply a workload whose pods carry the label app=<its name>, and wait until so many are Ready."""
        made = await self.apply(manifest)
        await self.wait_until(lambda: self.ready_pods(f"app={made['metadata']['name']}", pods))
        return await self.refresh(made)

    async def pods(self, selector: str = "", namespace: str | None = None) -> list[Object]:
        return await self.objects("v1", "Pod", namespace, labelSelector=selector)

    async def ready_pods(self, selector: str, count: int, namespace: str | None = None) -> list[Object] | None:
        """The pods when exactly so many are there and all are Ready, else None: meant for `wait_until`."""
        found = await self.pods(selector, namespace)
        return found if len(found) == count and all(_is_ready(pod) for pod in found) else None

    async def age(self, selector: str, minutes: float, namespace: str | None = None) -> list[Object]:
        """Let these pods look as if they had started and become Ready so long ago. (creationTimestamp cannot be
        changed.)"""
        return [await self._age_pod(pod, minutes) for pod in await self.pods(selector, namespace)]

    async def _age_pod(self, pod: Object, minutes: float) -> Object:
        status = copy.deepcopy(pod["status"])
        then = _stamp(minutes)
        status["startTime"] = then
        for condition in status.get("conditions", []):
            condition["lastTransitionTime"] = then
        for container in [*status.get("containerStatuses", []), *status.get("initContainerStatuses", [])]:
            for state in container["state"].values():
                state.update({key: then for key in ("startedAt", "finishedAt") if key in state})
        return await self.patch(pod, {"status": status}, part="status")

    # --- what happened ---

    async def events(self, reason: str | None = None, namespace: str | None = None) -> list[Object]:
        found = await self.objects("events.k8s.io/v1", "Event", namespace)
        return [event for event in found if reason is None or event.get("reason") == reason]

    def requests(
        self, user: str | None = None, verbs: Iterable[str] = (), contains: str = "", agent: str = ""
    ) -> list[world.Request]:
        """What the API server was asked since this handle was made, by the audit log. A ServiceAccount's user is
        `system:serviceaccount:NAMESPACE:NAME`."""
        wanted = set(verbs)
        return [
            asked
            for asked in self.plane.requests(self._mark)
            if (user is None or asked.user == user)
            and (not wanted or asked.verb in wanted)
            and contains in asked.uri
            and agent in asked.agent
        ]

    # --- other users ---

    async def service_account(
        self, name: str, rules: list[Object] | None = None, namespace: str | None = None, through: str | None = None
    ) -> pathlib.Path:
        """A kubeconfig with a ServiceAccount's token; `rules` (a ClusterRole's) are granted in the whole cluster.

        `through` is the address of a proxy to use instead of the API server's own.
        """
        place = namespace or self.namespace
        await self.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": place}})
        subject = {"kind": "ServiceAccount", "name": name, "namespace": place}
        if rules:
            await self.grant(subject, rules)
        token = f"/api/v1/namespaces/{place}/serviceaccounts/{name}/token"
        answer = await self.request("POST", token, {"spec": {"expirationSeconds": 3600}})
        path = self._folder / f"{name}.kubeconfig"
        return self.plane.kubeconfig_with_token(answer["status"]["token"], path, place, through)

    async def user(self, name: str, rules: list[Object] | None = None, groups: tuple[str, ...] = ()) -> pathlib.Path:
        """A kubeconfig with a client certificate for a person."""
        if rules:
            await self.grant({"kind": "User", "name": name, "apiGroup": "rbac.authorization.k8s.io"}, rules)
        return self.plane.kubeconfig_of_user(name, groups, self._folder / f"{name}.kubeconfig", self.namespace)

    async def grant(self, subject: Object, rules: list[Object]) -> None:
        name = f"{self.namespace}-{secrets.token_hex(3)}"
        rbac = "rbac.authorization.k8s.io"
        await self.apply(
            {"apiVersion": f"{rbac}/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules}
        )
        role = {"apiGroup": rbac, "kind": "ClusterRole", "name": name}
        binding = {"apiVersion": f"{rbac}/v1", "kind": "ClusterRoleBinding", "metadata": {"name": name}}
        await self.apply({**binding, "subjects": [subject], "roleRef": role})

    # --- faults ---

    @contextlib.asynccontextmanager
    async def without_api_server(self) -> AsyncIterator[None]:
        """Dead for as long as the block lasts. Only on a control plane of one's own: its controllers need a while to
        find their feet again. No cluster is made meanwhile: it might take the port."""
        with world.no_new_cluster():
            self.plane.kill("kube-apiserver")
            try:
                yield
            finally:
                self.plane.revive()
                await self.wait_until(self._is_serving)

    # --- how it is done ---

    async def _is_not_going(self, namespace: str) -> bool:
        found = await self.find("v1", "Namespace", namespace)
        return found is None or "deletionTimestamp" not in found["metadata"]

    async def _is_serving(self) -> bool:
        try:
            return bool(await self.request("GET", "/readyz") == "ok")
        except (Refused, aiohttp.ClientError):
            return False

    async def _clean_up(self) -> None:
        """Workloads first, so that nothing makes pods again. Pods are waited for, or the next test would see them;
        namespaces that go, empty by then, take some seconds and are not."""
        made = {
            (thing["kind"], thing["metadata"].get("namespace"), thing["metadata"]["name"]): thing
            for thing in self._made
        }
        namespaces = [thing for thing in made.values() if thing["kind"] == "Namespace"]
        inside = [thing for thing in made.values() if thing["metadata"].get("namespace")]
        others = [thing for thing in made.values() if thing not in inside and thing not in namespaces]
        for thing in inside:
            await self.delete(thing, propagationPolicy="Background")
        for namespace in namespaces:
            await self.wait_until(functools.partial(self._has_no_pods, namespace))
        known = [namespace for namespace in namespaces if not namespace["metadata"]["name"].startswith(self.namespace)]
        for thing in [*known, *others]:
            await self.delete(thing)

    async def _has_no_pods(self, namespace: Object) -> bool:
        """And no ReplicaSet, which would make one again before it is collected as garbage itself."""
        place = f"namespaces/{namespace['metadata']['name']}"
        paths = [f"/apis/apps/v1/{place}/replicasets", f"/api/v1/{place}/pods"]
        for path in paths:
            await self.request("DELETE", path, gracePeriodSeconds="0", propagationPolicy="Background")
        return not any([(await self.request("GET", path))["items"] for path in paths])

    async def _node_if_ready(self, name: str) -> Object | None:
        node = await self.get("v1", "Node", name)
        return node if _is_ready(node) and node["status"].get("allocatable") else None

    async def _is_served(self, crd: Object) -> bool:
        """Established is not enough: discovery follows a moment later."""
        conditions = (await self.refresh(crd)).get("status", {}).get("conditions") or []
        if not any(one["type"] == "Established" and one["status"] == "True" for one in conditions):
            return False
        try:
            for version in crd["spec"]["versions"]:
                await self._resource(f"{crd['spec']['group']}/{version['name']}", crd["spec"]["names"]["kind"])
        except (Refused, KeyError):
            return False
        return True

    async def _is_published(self, crd: Object) -> bool:
        """Whether the schema that clients may fetch is the one of this CRD: changes take a moment to arrive."""
        version = crd["spec"]["versions"][0]
        try:
            document = await self.request("GET", f"/openapi/v3/apis/{crd['spec']['group']}/{version['name']}")
        except Refused:
            return False
        for schema in document.get("components", {}).get("schemas", {}).values():
            names = [gvk["kind"] for gvk in schema.get("x-kubernetes-group-version-kind", [])]
            if crd["spec"]["names"]["kind"] in names:
                return bool(_spec_fields(schema) == _spec_fields(version["schema"]["openAPIV3Schema"]))
        return False

    async def _placed(self, manifest: Object) -> Object:
        _, namespaced = await self._resource(manifest["apiVersion"], manifest["kind"])
        if not namespaced or manifest["metadata"].get("namespace"):
            return manifest
        return {**manifest, "metadata": {**manifest["metadata"], "namespace": self.namespace}}

    async def _path_of(self, thing: Object) -> str:
        meta = thing["metadata"]
        return await self._path(thing["apiVersion"], thing["kind"], meta.get("name", ""), meta.get("namespace"))

    async def _path(self, version: str, kind: str, name: str, namespace: str | None) -> str:
        plural, namespaced = await self._resource(version, kind)
        place = f"/namespaces/{namespace or self.namespace}" if namespaced else ""
        return f"{_root(version)}{place}/{plural}/{name}"

    async def _resource(self, version: str, kind: str) -> tuple[str, bool]:
        if (version, kind) not in self._known:
            served = (await self.request("GET", _root(version)))["resources"]
            self._known |= {
                (version, one["kind"]): (one["name"], one["namespaced"]) for one in served if "/" not in one["name"]
            }
        return self._known[version, kind]


def replicated(
    version: str,
    kind: str,
    name: str,
    replicas: int,
    gpus: int,
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    **pod: Any,
) -> Object:
    """A manifest with a replica count and a pod template: Deployment, ReplicaSet, StatefulSet and their likes."""
    template = pod_template(name, gpus, labels, annotations, **pod)
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template}
    if kind == "StatefulSet":
        spec["serviceName"] = name
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec}


def job(name: str, gpus: int = 1, **template: Any) -> Object:
    template.setdefault("restartPolicy", "Never")
    spec = {"template": pod_template(name, gpus, **template)}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}


def pod_template(
    app: str, gpus: int, labels: dict[str, str] | None = None, annotations: dict[str, str] | None = None, **pod: Any
) -> Object:
    """One container `main` that asks for GPUs; `resource=` names another than nvidia.com/gpu, any other key goes into
    the spec."""
    resource = pod.pop("resource", "nvidia.com/gpu")
    limits = {resource: str(gpus)} if gpus else {}
    container = {"name": "main", "image": "example.invalid/app:1", "resources": {"limits": limits}}
    metadata = {"labels": {"app": app, **(labels or {})}, "annotations": annotations or {}}
    return {"metadata": metadata, "spec": {"terminationGracePeriodSeconds": 1, "containers": [container], **pod}}


def _root(version: str) -> str:
    return f"/apis/{version}" if "/" in version else f"/api/{version}"


def _node(name: str, labels: dict[str, str]) -> Object:
    metadata = {"name": name, "labels": labels, "annotations": {"kwok.x-k8s.io/node": "fake"}}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata}


def _gpu_labels(
    name: str, gpus: int, product: str, memory_mib: int, replicas: int, sharing: str | None
) -> dict[str, str]:
    return {
        "kubernetes.io/hostname": name,
        "nvidia.com/gpu.present": "true",
        "nvidia.com/gpu.product": product + ("-SHARED" if replicas > 1 else ""),
        "nvidia.com/gpu.count": str(gpus),
        "nvidia.com/gpu.memory": str(memory_mib),
        "nvidia.com/gpu.replicas": str(replicas),
        "nvidia.com/gpu.sharing-strategy": sharing or ("time-slicing" if replicas > 1 else "none"),
    }


def _address(node: str) -> str:
    """One that belongs to this name and, in practice, to no other."""
    return f"10.{ipaddress.IPv4Address(zlib.crc32(node.encode())).exploded.partition('.')[2]}"


def _is_ready(thing: Object) -> bool:
    conditions = thing.get("status", {}).get("conditions") or []
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def _spec_fields(schema: Object) -> set[str]:
    return set(schema.get("properties", {}).get("spec", {}).get("properties", {}))


def _stamp(minutes_ago: float) -> str:
    then = datetime.datetime.now(datetime.UTC) - datetime.timedelta(minutes=minutes_ago)
    return then.strftime("%Y-%m-%dT%H:%M:%SZ")
