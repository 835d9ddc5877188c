"""Pods and the nodes they run on: one watch of each, for idle and packing alike.

In: an Area. Out: GPU pods and nodes; where capacity is counted (`counts`) all pods, each with what it needs, and each
node with what it has, from the same watches. `look` is that by one list of each, for who asks once.
Invariant: pods that cannot be trusted to be current and complete raise: nobody could say whose GPU is idle, or which
node has room.
"""

import asyncio
import contextlib
import functools
from collections.abc import Callable
from typing import Any

from fallow.clients import errors
from fallow.clients.kubernetes import api as kube
from fallow.model import cluster
from fallow.model.units import Instant, Seconds
from fallow.observe.cluster import capacity, departures, following, objects, pods


class Hosts:
    def __init__(
        self, area: following.Area, reader: pods.PodReader, *, counts: bool = False, sees_nodes: bool = True,
        clock: Callable[[], Instant] | None = None,
    ) -> None:
        """`clock`: pods that go are remembered, with the time."""
        self.departures = departures.Departures(reader, clock)
        parted = self.departures.note if clock is not None else None
        self.pods: following.Following[cluster.Pod]
        self.nodes: following.Following[cluster.Node]
        self._api, self._counts, self._cluster = area.api, counts, ""
        self._sees_nodes = sees_nodes
        if counts:
            keep = capacity.keeper(reader)
            self.pods = area.follow(kube.PODS, capacity.CountedPodItem, keep, field_selector=pods.ALIVE, parted=parted)
            self.nodes = area.follow(kube.NODES, capacity.CountedNodeItem, capacity.see_node)
        else:
            self.pods = area.follow(kube.PODS, pods.PodItem, reader.read, field_selector=pods.ALIVE, parted=parted)
            see_node = functools.partial(objects.see_node, is_gpu=reader.is_gpu)
            self.nodes = area.follow(kube.NODES, objects.NodeItem, see_node)

    @property
    def followings(self) -> list[following.Following[Any]]:
        return [self.pods, *([self.nodes] if self._sees_nodes else [])]

    async def identify(self) -> None:
        """Which cluster it is, by the uid of kube-system: packing decides ties by it."""
        if self._counts and not self._cluster:
            with contextlib.suppress(errors.ClientError):
                found = await self._api.get(kube.NAMESPACES, None, "kube-system", kind=objects.Bare)
                self._cluster = found.metadata.uid

    async def wait_for_pods(self, patience: Seconds) -> None:
        """A watch that breaks is mended in a second or so."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                for follower in self.pods.followers.values():
                    while follower.problem is not None:
                        follower.changed.clear()
                        await follower.changed.wait()

    def require_pods(self) -> None:
        for problem in _find_problems(self.pods):
            raise problem
        if unread := self.pods.unreadable:  # one of them may be the busy pod of a workload that looks idle
            raise errors.BadAnswer(f"{unread} pods could not be read, so nothing can be said about any workload")

    @property
    def capacity(self) -> cluster.Capacity:
        """Raises where nodes or pods may not be read: half of them would make full nodes look free."""
        if not self._counts:
            raise ValueError("what pods need and nodes have was not counted")
        for problem in (*_find_problems(self.nodes), *_find_problems(self.pods)):
            raise problem
        if unread := self.pods.unreadable:
            raise errors.BadAnswer(f"{unread} pods cannot be read, so what is free on their nodes cannot be told")
        came = sorted(self.pods.store.values(), key=lambda pod: (pod.created_at, pod.namespace, pod.name))
        found = (node.machine for node in self.nodes.store.values() if node.machine)
        machines = sorted(found, key=lambda machine: machine.name)
        return cluster.Capacity(tuple(machines), tuple(came), self._cluster, self.nodes.unreadable)


def _find_problems(followed: following.Following[Any]) -> list[errors.ClientError]:
    """Also while it is listed anew: until then its store is empty, and says nothing."""
    return [*followed.problems, *filter(None, (followed.why_blind(),))]


async def look(api: kube.Api) -> cluster.Capacity:
    """The capacity of a whole cluster, by one list of nodes and one of pods; nothing else is asked for but its id."""
    hosts = Hosts(following.Area(api), pods.PodReader(), counts=True)
    async with following.Starter() as starter:
        await starter.begin([hosts.nodes, hosts.pods])
    await hosts.identify()
    return hosts.capacity
