"""Whose is it? Process to pod by cgroup, GPU to pods by the kubelet, names by the API server or the log directories.

In: the options, the environment (for the pod's service account), cgroup texts, the devices of a poll. Out: a
ProcessOwner for a process, Grants for devices, and `up`: which sources answer. `refresh` does all the waiting; the rest
are look-ups and may be called at any time.
Each source may be missing: that is said once in the log, and the seed's series do not change by it.
Invariant: what is not known stays unknown. Without the kubelet's word there are no grants: None, not an empty list.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from fallow import names
from fallow.clients import errors, kubelet
from fallow.model.processes import Grant, Judged, ProcessOwner
from fallow.model.units import Instant, Seconds
from fallow.observe.node import cgroups, directory, grants
from fallow.settings.exporter import Options

if TYPE_CHECKING:  # it is heavy, and many nodes do not use it
    from fallow.observe.node.cluster import NodeFollower

log = logging.getLogger(__name__)

ASK_EVERY_SECONDS: Seconds = 10.0
TIMEOUT_SECONDS: Seconds = 5.0
KEEP_SECONDS: Seconds = 60.0  # how long the kubelet's last word holds when it falls silent
_API_AGAIN_SECONDS: Seconds = 60.0
UNKNOWN = ProcessOwner(is_known=False)
_SOURCES = {
    "pod_resources": "GPUs of pods, from the kubelet", "cgroup": "pods of processes, by their cgroups",
    "api": "names of pods, from the API server", "logs": "names of pods, from log directories",
}
_IN_POD = "KUBERNETES_SERVICE_HOST"  # every container of a cluster has it
_KUBECONFIG = "KUBECONFIG"


class Attribution:
    """All sources together. `close` ends what `refresh` began."""

    def __init__(self, options: Options, environment: Mapping[str, str], *, own_proc: str = "/proc") -> None:
        """`own_proc`: where our own PID namespace is seen, which HOST_PROC may not show."""
        self.up: dict[str, bool] = {} if options.attribution == "off" else dict.fromkeys(_SOURCES, False)
        self._options = options
        self._directory = directory.Directory(options.pod_logs_dir)
        self._api = _ApiServer(options.node_name, environment)
        # PID 1 is of our own container: then we see no other's processes, nor does the driver list them to us.
        is_alone = _read_cgroup(own_proc, "1") == _read_cgroup(own_proc, "self")
        self._is_blind = _IN_POD in environment and is_alone
        self._why_down: dict[str, str] = {}
        self._pods: tuple[kubelet.PodDevices, ...] | None = None
        self._asked_at: Instant | None = None
        self._answered_at: Instant | None = None
        self._sole_containers: dict[tuple[str, str], str] = {}
        self._cgroups_read = self._cgroups_missed = 0  # since the last refresh

    def owner_of(self, pid: int, start: int, cgroup_text: str) -> ProcessOwner:
        """Of a process whose cgroup reads so; empty: it cannot be read."""
        if not self.up:
            return ProcessOwner()
        owner = None if self._is_blind else cgroups.read_owner(cgroup_text)
        if owner is None:
            self._cgroups_missed += 1
            return UNKNOWN
        self._cgroups_read += 1
        named = self._directory.find(owner)
        if named is None:
            return owner if owner.is_known else UNKNOWN
        sole = self._sole_containers.get((named.namespace, named.name), "")
        container = named.containers.get(owner.container_id) or sole
        return ProcessOwner(named.namespace, named.name, container, owner.pod_uid or named.uid, owner.container_id)

    def grants(self, devices: Sequence[Judged]) -> list[Grant] | None:
        """Who holds the devices of this poll; None: nobody could tell us."""
        if self._pods is None:
            return None
        alive = [pod for pod in self._pods if not self._is_over(pod)]
        found = grants.read_grants(alive, devices, self._api.claimed, self._options.gpu_resource_names)
        own = self._options.pod_namespace, self._options.pod_name  # a sidecar sees the processes of its own pod only
        is_sidecar = self._options.scope == "pod"
        return [self._complete(each) for each in found if not is_sidecar or (each.namespace, each.pod) == own]

    def _is_over(self, pod: kubelet.PodDevices) -> bool:
        """Some kubelets list pods that have ended, whose GPUs others hold by now."""
        named = self._directory.find_by_name(pod.namespace, pod.name)
        return named is not None and named.is_over

    def _complete(self, grant: Grant) -> Grant:
        named = self._directory.find_by_name(grant.namespace, grant.pod)
        return msgspec.structs.replace(grant, pod_uid=named.uid if named else "", may_hide=self._is_blind)

    async def refresh(self, now: Instant) -> None:
        """Ask what is due; call it at every poll. Never raises for what a source does; ends within TIMEOUT_SECONDS."""
        if not self.up:
            return
        self._note("logs", self._directory.read_logs())
        self._note("cgroup", self._judge_cgroups())
        self._note("api", self._api.refresh(now, self._directory))
        if not _is_within(self._asked_at, now, ASK_EVERY_SECONDS):
            self._asked_at = now
            await self._ask_kubelet(now)

    async def close(self) -> None:
        await self._api.close()

    async def _ask_kubelet(self, now: Instant) -> None:
        try:
            self._pods = await kubelet.list_grants(self._options.pod_resources_socket, TIMEOUT_SECONDS)
        except errors.ClientError as problem:
            if not _is_within(self._answered_at, now, KEEP_SECONDS):
                self._pods, self._sole_containers = None, {}
                self._note("pod_resources", str(problem))
            return
        self._answered_at = now
        self._note("pod_resources", "")
        sole = (pod for pod in self._pods if len(pod.containers) == 1)
        self._sole_containers = {(pod.namespace, pod.name): pod.containers[0].name for pod in sole}
        claims = (claim for pod in self._pods for container in pod.containers for claim in container.claims)
        self._api.wants_slices = any(claim.driver == names.DRA_DRIVER for claim in claims)

    def _judge_cgroups(self) -> str:
        read, missed = self._cgroups_read, self._cgroups_missed
        self._cgroups_read = self._cgroups_missed = 0
        if self._is_blind:
            return "the exporter has a PID namespace of its own; run it with hostPID"
        if not read and missed:
            return f"GPU processes are not under {self._options.host_proc}"
        if not read and "cgroup" not in self._why_down and not _read_cgroup(self._options.host_proc, "1"):
            return f"{self._options.host_proc}/1/cgroup cannot be read"
        return "" if read else self._why_down.get("cgroup", "")

    def _note(self, source: str, why_down: str | None) -> None:
        """Say it when a source goes, comes back, or fails for another reason. None: no answer yet."""
        was_up, before = self.up[source], self._why_down.get(source, "")
        self.up[source] = why_down == ""
        if why_down is None:
            return
        self._why_down[source] = why_down
        if why_down != before:
            level = logging.WARNING if was_up else logging.INFO
            log.log(level, "%s: %s", _SOURCES[source], why_down or "available again")


class _ApiServer:
    """The API server as a source: begun where there is one, and begun again if that ended."""

    def __init__(self, node: str, environment: Mapping[str, str]) -> None:
        self.wants_slices = False
        self.claimed: grants.Claimed = {}
        self._node = node
        # Without HOME: the kubeconfig that a person keeps there may be of any cluster.
        self._environment = {name: value for name, value in environment.items() if name != "HOME"}
        self._why_not = ""
        self._follower: NodeFollower | None = None
        self._following: asyncio.Task[None] | None = None
        self._begun_at: Instant | None = None
        self._taken: object = None

    def refresh(self, now: Instant, known: directory.Directory) -> str | None:
        """Hand what it says to `known`. Why it says nothing; empty if it does, None until its first answer."""
        if not self._node:
            return "NODE_NAME is not set"
        if not self._environment.keys() & {_IN_POD, _KUBECONFIG}:
            return "this is not a pod of a cluster"
        is_over = self._following is None or self._following.done()
        if is_over and not _is_within(self._begun_at, now, _API_AGAIN_SECONDS):
            self._begin(now)
        return self._why_not or self._take(known)

    def _begin(self, now: Instant) -> None:
        from fallow.clients.kubernetes import config  # both here, because of what they load

        self._begun_at, self._why_not = now, ""
        try:
            access = config.load_access(kubeconfig=None, context=None, environment=self._environment)
        except errors.Misconfigured as problem:
            self._why_not = str(problem)
            return
        from fallow.observe.node import cluster

        self._follower = cluster.NodeFollower(access, self._node)
        self._following = asyncio.create_task(self._follower.run())

    def _take(self, known: directory.Directory) -> str | None:
        if self._follower is None or self._following is None:
            return None
        if self._following.done():
            return f"not followed any more: {self._following.exception()}"
        if self.wants_slices:
            self._follower.follow_slices()
        if self._taken != (taken := self._follower.generation):
            self._taken, self.claimed = taken, self._follower.uuids
            known.take_pods(self._follower.pods)
        return self._follower.why_down

    async def close(self) -> None:
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)


def _is_within(since: Instant | None, now: Instant, seconds: Seconds) -> bool:
    """A clock that was set back proves nothing."""
    return since is not None and 0 <= now - since < seconds


def _read_cgroup(proc: str, process: str) -> str:
    try:
        return Path(proc, process, "cgroup").read_text(errors="replace")
    except OSError:
        return ""
