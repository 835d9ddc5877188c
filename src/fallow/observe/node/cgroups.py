"""Where a process runs, by its cgroup: which pod, which container. Pure.

In: the text of /proc/PID/cgroup, of version 1 or 2, with either cgroup driver and any container runtime. Out: a Place.
Kubelet and runtimes name their cgroups so:

    kubepods/burstable/pod<uid>/<id>                                                          cgroupfs
    kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<uid>.slice/<runtime>-<id>.scope    systemd, `_` for `-` in the uid
    ../../kubepods-pod<uid>.slice/cri-containerd-<id>.scope                                   the same, seen from another container

Invariant: a container can make cgroups only below its own, so the first pod on a path is the true one, whatever follows it.
"""

import functools
import re

import msgspec

# A uid, or 32 digits: the kubelet gives a pod of its own files the hash of the file.
_POD = re.compile(r"(?:^|[/-])pod([0-9a-f]{8}([-_])[0-9a-f]{4}\2[0-9a-f]{4}\2[0-9a-f]{4}\2[0-9a-f]{12}|[0-9a-f]{32})(?=[./ ]|$)")
_CONTAINER = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
_KEPT = 1024  # texts; all processes of a container have the same


class Place(msgspec.Struct, frozen=True, gc=False):
    """Both empty: outside pods. `is_certain` False: in a container, and the path does not begin high enough to show whose."""

    pod_uid: str = ""
    container_id: str = ""
    is_certain: bool = True


@functools.lru_cache(maxsize=_KEPT)
def read_place(text: str) -> Place | None:
    """None: there is nothing to read, so nothing is known."""
    paths = [parts[2] for line in text.splitlines() if len(parts := line.split(":", 2)) == 3]
    if not paths:
        return None
    for path in paths:
        if pod := _POD.search(path):
            return Place(pod[1].replace("_", "-"), _last_container(path, pod.end()))
    # Without a pod on it a container is somebody else's (docker on the host), unless the path is relative: then the pod may be ours.
    siblings = [container for path in paths if path.startswith("/..") and (container := _last_container(path, 0))]
    return Place("", siblings[0], is_certain=False) if siblings else Place()


def _last_container(path: str, begin: int) -> str:
    found = _CONTAINER.findall(path, begin)
    return found[-1] if found else ""
