"""The pods that hold GPUs, as they were met last; and which of a new look are not as they were.

In: all pods of a look, every minute, mostly the very same objects. Out: those that are others than before, and who is
missing. Of ten thousand that did not change nothing is touched but their place in memory: what looks through each of
them costs more than all the rest of a look.
"""

from fallow.model import cluster


class MetPods:
    def __init__(self) -> None:
        self.by_uid: dict[str, cluster.Pod] = {}
        self._objects: dict[int, cluster.Pod] = {}  # the same, by their place in memory, which is theirs while kept

    def put(self, pod: cluster.Pod) -> None:
        self.drop(pod.uid)
        self.by_uid[pod.uid] = self._objects[id(pod)] = pod

    def drop(self, uid: str) -> cluster.Pod | None:
        known = self.by_uid.pop(uid, None)
        if known is not None:
            del self._objects[id(known)]
        return known

    def compare(self, pods: tuple[cluster.Pod, ...]) -> tuple[list[cluster.Pod], list[cluster.Pod]]:
        """Of these: who is new or not as he was; and of those who were met: who is not among them."""
        strangers = [pod for pod in pods if id(pod) not in self._objects]
        others = {pod.uid: pod for pod in strangers}
        met = len(pods) - len(strangers) + len(others.keys() & self.by_uid.keys())
        gone = self._find_gone(pods) if met < len(self.by_uid) else []
        for pod in list(others.values()):
            if self.by_uid.get(pod.uid) == pod:  # read anew, and the same
                self.put(others.pop(pod.uid))
        return list(others.values()), gone

    def _find_gone(self, pods: tuple[cluster.Pod, ...]) -> list[cluster.Pod]:
        there = {pod.uid for pod in pods}
        return [pod for uid, pod in self.by_uid.items() if uid not in there]
