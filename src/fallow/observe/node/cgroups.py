"""Whose a process is, by its cgroup: which pod, which container, by their ids. Pure.

In: the text of /proc/PID/cgroup, of version 1 or 2, with either cgroup driver and any container runtime.
Out: a ProcessOwner without names. Kubelet and runtimes name their cgroups so:

    kubepods/burstable/pod<uid>/<id>                                                                cgroupfs
    kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<uid>.slice/<runtime>-<id>.scope  systemd, `_` for `-`
    ../../kubepods-pod<uid>.slice/cri-containerd-<id>.scope                            the same, from another container

Invariant: a container can make cgroups only below its own, so the first pod on a path is the true one.
"""

import functools
import re

from fallow.model.processes import ProcessOwner

# A uid, or 32 digits: the kubelet gives a pod of its own files the hash of the file.
_POD = re.compile(
    r"(?:^|[/-])pod([0-9a-f]{8}([-_])[0-9a-f]{4}\2[0-9a-f]{4}\2[0-9a-f]{4}\2[0-9a-f]{12}|[0-9a-f]{32})(?=[./ ]|$)"
)
_CONTAINER = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
_MOST_TEXTS = 1024  # all processes of a container have the same


@functools.lru_cache(maxsize=_MOST_TEXTS)
def read_owner(text: str) -> ProcessOwner | None:
    """None: there is nothing to read, so nothing is known. A container without a pod is known by its id only."""
    paths = [parts[2] for line in text.splitlines() if len(parts := line.split(":", 2)) == 3]
    if not paths:
        return None
    for path in paths:
        if pod := _POD.search(path):
            return ProcessOwner(pod_uid=pod[1].replace("_", "-"), container_id=_last_container(path, pod.end()))
    # Without a pod on it a container is somebody else's (docker on the host), unless the path is relative: then it does
    # not begin high enough to show whose it is, and the pod may be ours.
    siblings = [container for path in paths if path.startswith("/..") and (container := _last_container(path, 0))]
    return ProcessOwner(container_id=siblings[0], is_known=False) if siblings else ProcessOwner()


def _last_container(path: str, begin: int) -> str:
    found = _CONTAINER.findall(path, begin)
    return found[-1] if found else ""
