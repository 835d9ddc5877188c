"""One kind, followed in the whole cluster or in each of a few namespaces; how following begins; and what is made of it.

In: an Area, which makes Followers of one resource. Out: their stores as one, a `stamp` that differs whenever anything
about them changed, and what is wrong. A Memo keeps what is made of them, with a version that grows when it differs.
Invariant: what could not be listed, or may no longer be read, is not in the store, and `rest` says so: unseen, never
absent. Old contents are never shown for it.
"""

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, NamedTuple, Self, TypeAlias, TypeVar

from fallow.clients import errors
from fallow.clients.kubernetes import api as kube
from fallow.clients.kubernetes import follow
from fallow.model.seen import ABSENT, Rest, Unseen
from fallow.model.units import Seconds

K = TypeVar("K")
T = TypeVar("T", bound=follow.FollowedItem)
V = TypeVar("V")

Stamp: TypeAlias = tuple[tuple[int, bool], ...]

_serials = itertools.count(1)


class Following(Generic[K]):
    """The same resource in all the namespaces we look at."""

    def __init__(self, resource: kube.Resource, followers: Mapping[str, follow.Follower[Any, K]]) -> None:
        """`followers` are by namespace; "" is the whole cluster."""
        self.resource = resource
        self.followers = followers
        self._serial = next(_serials)  # a kind that goes and comes again is another one
        self._merged: tuple[Stamp, dict[str, K]] | None = None

    @property
    def stamp(self) -> Stamp:
        return (self._serial, False), *((each.generation, _is_blind(each)) for each in self.followers.values())

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
    def heard_at(self) -> float | None:
        """When the server last said something, by the monotonic clock; of several namespaces, of the quietest."""
        heard = [each.synced_at for each in self.followers.values() if each.synced_at is not None]
        return min(heard) if heard else None

    @property
    def unreadable(self) -> int:
        return sum(each.unreadable for each in self.followers.values())

    @property
    def unreadable_names(self) -> list[str]:
        """Of those that could not be read, where that could."""
        return [name for each in self.followers.values() for name in each.unreadable_names]

    def blind_namespaces(self) -> list[str]:
        return [namespace for namespace, each in self.followers.items() if _is_blind(each)]

    def why_blind(self, namespace: str = "") -> errors.ClientError | None:
        """Why nothing is seen of it there (with "": somewhere), or None if it is seen."""
        found = self._of(namespace)
        several = [found] if found is not None else list(self.followers.values())
        blind = next((each for each in several if _is_blind(each)), None)
        if blind is None:
            return None
        return blind.problem or errors.Unreachable(f"{self.resource.plural} are being listed anew", is_undone=True)

    @property
    def rest(self) -> Rest:
        """What all that is not in the store is: surely not there, or not seen."""
        if problem := self.why_blind():
            return Unseen(str(problem))
        count = self.unreadable
        return Unseen(f"{count} of the {self.resource.plural} could not be read") if count else ABSENT

    def learn(self, namespace: str, uid: str, kept: K) -> None:
        """Take in an object that was read by itself: from now on its events find it wanted and keep it true."""
        follower = self._of(namespace)
        if follower is not None:
            follower.store[uid] = kept
            follower.generation += 1

    def _of(self, namespace: str) -> follow.Follower[Any, K] | None:
        return self.followers.get("") or self.followers.get(namespace)


def _is_blind(follower: follow.Follower[Any, Any]) -> bool:
    """It was never listed, or lost its place and was not listed since: what it holds may be long untrue."""
    return not follower.synced


class Area(NamedTuple):
    """Where we look: in the whole cluster (""), or in each of a few namespaces."""

    api: kube.Api
    namespaces: tuple[str, ...] = ("",)

    def follow(
        self, resource: kube.Resource, item: type[T], keep: Callable[[T], K | None], **options: Any
    ) -> Following[K]:
        """Not begun yet. A resource without namespaces is followed in the whole cluster, whatever we were given."""
        followers = {
            each: follow.Follower(self.api, resource, item=item, keep=keep, namespace=each or None, **options)
            for each in (self.namespaces if resource.namespaced else ("",))
        }
        return Following(resource, followers)


class Starter:
    """Begins to follow: for ever (`stays`), or by one list each. As a context manager it ends what runs."""

    def __init__(self) -> None:
        self.stays = False
        self._tasks: dict[follow.Follower[Any, Any], asyncio.Task[None]] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *why: Any) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self._tasks.clear()

    async def begin(self, followings: Iterable[Following[Any]]) -> None:
        """Returns when each was listed, or has a problem. What is followed already is only waited for."""
        followers = [follower for following in followings for follower in following.followers.values()]
        if self.stays:  # before anything is waited for: a wait may be cut short, and what was to be followed must be
            self._tasks |= {each: asyncio.create_task(each.run()) for each in followers if each not in self._tasks}
        await asyncio.gather(*(_wait(each) if self.stays else _list(each) for each in followers))

    async def settle(self, patience: Seconds) -> None:
        """Whoever lost his place lists anew within a moment; after that he is blind."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                await asyncio.gather(*map(_wait, self._tasks))

    async def end(self, following: Following[Any]) -> None:
        """Follow it no longer."""
        tasks = [task for each in following.followers.values() if (task := self._tasks.pop(each, None)) is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

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


class Memo:
    """What was made of other things, made again only when those changed (`made_of` differs)."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Any, Any, int]] = {}  # what it was made of, the result, and its version

    def recall(self, name: str, made_of: Any, make: Callable[[], V]) -> V:
        """The same object again, also where it was made anew and nothing in it differs."""
        before, result, version = self._known.get(name, (None, None, 0))
        if not version or before != made_of:
            fresh = make()
            if not version or fresh != result:
                result, version = fresh, version + 1
            self._known[name] = made_of, result, version
        return result  # type: ignore[no-any-return]

    def version(self, *names: str) -> int:
        """Of what was recalled last under these names: equal numbers, equal results."""
        return sum(self._known[name][2] for name in names)
