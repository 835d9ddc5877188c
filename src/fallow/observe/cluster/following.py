"""One kind, followed in the whole cluster or in each of a few namespaces; and how following begins.

In: Followers of one resource. Out: their stores as one, a `stamp` that differs whenever anything about them changed, and what is wrong.
Invariant: what could not be listed, or may no longer be read, is not there; old contents are never shown for it.
"""

import asyncio
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Generic, Self, TypeAlias, TypeVar

from fallow.clients import errors
from fallow.clients.kubernetes import api as kube
from fallow.clients.kubernetes import follow

K = TypeVar("K")

Stamp: TypeAlias = tuple[tuple[int, bool], ...]


class Following(Generic[K]):
    """The same resource in all the places we look at."""

    def __init__(self, resource: kube.Resource, followers: Mapping[str, follow.Follower[Any, K]]) -> None:
        """`followers` are by namespace; "" is the whole cluster."""
        self.resource = resource
        self.followers = followers
        self._merged: tuple[Stamp, dict[str, K]] | None = None

    @property
    def stamp(self) -> Stamp:
        return tuple((each.generation, _is_blind(each)) for each in self.followers.values())

    @property
    def store(self) -> Mapping[str, K]:
        """By uid."""
        if len(self.followers) == 1:
            only = next(iter(self.followers.values()))
            return {} if _is_blind(only) else only.store
        if self._merged is None or self._merged[0] != self.stamp:
            seeing = [each.store for each in self.followers.values() if not _is_blind(each)]
            self._merged = self.stamp, {uid: kept for store in seeing for uid, kept in store.items()}
        return self._merged[1]

    @property
    def problems(self) -> list[errors.ClientError]:
        return [each.problem for each in self.followers.values() if each.problem is not None]

    @property
    def unreadable(self) -> int:
        return sum(each.unreadable for each in self.followers.values())

    def blind_places(self) -> list[str]:
        return [place for place, each in self.followers.items() if _is_blind(each)]

    def why_blind(self, namespace: str = "") -> errors.ClientError | None:
        """Why nothing is seen of it there (with "": somewhere), or None if it is seen."""
        found = self._of(namespace)
        places = [found] if found is not None else list(self.followers.values())
        return next((each.problem for each in places if _is_blind(each)), None)

    def learn(self, namespace: str, uid: str, kept: K) -> None:
        """Take in an object that was read by itself: from now on its events find it wanted and keep it true."""
        place = self._of(namespace)
        if place is not None:
            place.store[uid] = kept
            place.generation += 1

    def _of(self, namespace: str) -> follow.Follower[Any, K] | None:
        return self.followers.get("") or self.followers.get(namespace)


def _is_blind(follower: follow.Follower[Any, Any]) -> bool:
    return follower.problem is not None and not follower.synced


class Starter:
    """Begins to follow: for ever (`stays`), or by one list each. As a context manager it ends what runs."""

    def __init__(self) -> None:
        self.stays = False
        self._tasks: dict[follow.Follower[Any, Any], asyncio.Task[None]] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self._tasks.clear()

    async def begin(self, followings: Iterable[Following[Any]]) -> None:
        """Returns when each was listed, or has a problem. May be called again: what is followed already is only waited for."""
        followers = [follower for following in followings for follower in following.followers.values()]
        if self.stays:  # before anything is waited for: a wait may be cut short, and what was to be followed must be
            self._tasks |= {each: asyncio.create_task(each.run()) for each in followers if each not in self._tasks}
        await asyncio.gather(*(_wait(each) if self.stays else _list(each) for each in followers))

    def check(self) -> None:
        """A follower never ends by itself; if one did, that is a defect that must not go unnoticed."""
        for task in self._tasks.values():
            if task.done():
                task.result()


async def _wait(follower: follow.Follower[Any, Any]) -> None:
    while not follower.synced and follower.problem is None:
        follower.changed.clear()
        await follower.changed.wait()


async def _list(follower: follow.Follower[Any, Any]) -> None:
    try:
        await follower.list_once()
    except errors.ClientError as problem:
        follower.problem, follower.synced = problem, False
