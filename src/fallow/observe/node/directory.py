"""The names behind the ids that cgroups show: of pods and containers, by the API server, else by log directories.

In: pods as the API gave them (`take_pods`), POD_LOGS_DIR (`read_logs`). Out: `Named`, by ids or by name.
Invariant: every answer is an exact match of an id or of a whole name. What is not found stays empty.
"""

import os
from collections.abc import Iterable

import msgspec

from fallow.model.processes import ProcessOwner


class Named(msgspec.Struct, frozen=True):
    """A pod's name, and its containers' by their ids."""

    uid: str
    namespace: str
    name: str
    containers: dict[str, str] = {}
    static_uid: str = ""  # what the kubelet calls a pod of its own files; the API server knows it by another uid
    is_over: bool = False  # succeeded or failed: it holds nothing any more, whatever the kubelet lists


class Directory:
    """The API server's names win over those of log directories."""

    def __init__(self, logs_dir: str) -> None:
        self._logs_dir = logs_dir
        self._listed_at: int | None = None
        self._by_uid: dict[str, Named] = {}
        self._by_container: dict[str, Named] = {}
        self._by_name: dict[tuple[str, str], Named] = {}
        self._logged: dict[str, Named] = {}

    def take_pods(self, pods: Iterable[Named]) -> None:
        """All pods of the node, as the API server has them now."""
        found = sorted(pods, key=lambda pod: not pod.is_over)  # of two with one name the one that lives comes last
        self._by_uid = {uid: pod for pod in found for uid in (pod.uid, pod.static_uid) if uid}
        self._by_container = {container: pod for pod in found for container in pod.containers}
        self._by_name = {(pod.namespace, pod.name): pod for pod in found}

    def read_logs(self) -> str:
        """Why the directory cannot be read; empty if it can. It is listed again only when it has changed."""
        try:
            changed_at = os.stat(self._logs_dir).st_mtime_ns
            if changed_at != self._listed_at:
                found = map(_read_folder, os.listdir(self._logs_dir))
                self._logged = {named.uid: named for named in found if named}
                self._listed_at = changed_at
        except OSError as problem:
            self._listed_at, self._logged = None, {}
            return f"{self._logs_dir} cannot be read: {problem.strerror}"
        return ""

    def find(self, owner: ProcessOwner) -> Named | None:
        if owner.pod_uid:
            return self._by_uid.get(owner.pod_uid) or self._logged.get(owner.pod_uid)
        return self._by_container.get(owner.container_id) if owner.container_id else None

    def find_by_name(self, namespace: str, name: str) -> Named | None:
        """By the API server only: log directories outlive their pods."""
        return self._by_name.get((namespace, name))


def _read_folder(folder: str) -> Named | None:
    """`<namespace>_<name>_<uid>`; none of the three can hold a `_`."""
    parts = folder.split("_")
    return Named(parts[2], parts[0], parts[1]) if len(parts) == 3 and all(parts) else None
