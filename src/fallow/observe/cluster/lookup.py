"""Owners that were named and not seen: each is looked up, and what cannot be had is lost, with the reason.

In: references from chains that stop early (owners.find_gaps). Out: `lost` and `link_pods`; whatever was found is in its
kind's store.
A kind that nobody followed yet is followed, which is one list for all its objects; an object that turns out to be
wanted after it was forgotten is read by itself.
Invariant: after `look_up` each reference is seen or lost; what is lost is asked for again only when that may say
something new.
"""

import asyncio
import itertools
from collections.abc import Collection

from fallow.clients import errors
from fallow.clients.kubernetes import api as kube
from fallow.model import cluster
from fallow.model.cluster import Trouble
from fallow.model.units import Instant, Seconds
from fallow.observe.cluster import objects, owners, served, watched

_RETRY_FORBIDDEN_SECONDS: Seconds = 600.0


class Lookup:
    """`version` grows whenever what is lost, or who leads pods without GPUs, may have changed."""

    def __init__(self, api: kube.Api, kinds: watched.OwnerKinds, found: served.Served) -> None:
        self.lost: dict[cluster.Ref, owners.Lost] = {}
        self.link_pods: dict[str, objects.Seen] = {}  # pods that own others and hold no GPU, by uid
        self.version = 0
        self._api, self._kinds, self._served = api, kinds, found

    async def look_up(self, missing: Collection[cluster.Ref], now: Instant) -> None:
        by_kind = itertools.groupby(sorted(missing, key=owners.key_of), key=owners.key_of)
        await asyncio.gather(*(self._look_up_kind(key, list(refs), now) for key, refs in by_kind))
        self.version += 1

    def keep(self, gaps: owners.Gaps) -> None:
        """Only what the chains still name."""
        self.lost = {ref: lost for ref, lost in self.lost.items() if ref in gaps.lost}
        self.link_pods = {uid: link for uid, link in self.link_pods.items() if uid in gaps.uids}

    def retry(self, now: Instant) -> None:
        """What is lost and worth asking for again is a gap from now on."""
        kept = {ref: lost for ref, lost in self.lost.items() if lost.retry_at > now or self._is_hopeless(ref)}
        self.version += len(kept) < len(self.lost)
        self.lost = kept

    def _is_hopeless(self, ref: cluster.Ref) -> bool:
        """Is its kind still unseen, or still not there? Then asking for it again says nothing new."""
        kind = self._kinds.watched.get(owners.key_of(ref))
        if kind is not None:
            return kind.following.why_blind(ref.namespace) is not None
        return owners.key_of(ref) != owners.POD and self._served.found.find(*owners.key_of(ref)) is None

    async def _look_up_kind(self, key: owners.Key, refs: list[cluster.Ref], now: Instant) -> None:
        if key == owners.POD:
            await asyncio.gather(*(self._fetch(watched.POD, ref, now) for ref in refs))
            return
        is_new = key not in self._kinds.watched
        found = await self._kinds.follow(key) if is_new else self._kinds.watched[key]
        if found is None:
            self.lost |= dict.fromkeys(refs, self._why_absent(key, now))
            return
        for ref in [ref for ref in refs if not found.has(ref)]:
            if problem := found.following.why_blind(ref.namespace):
                self.lost[ref] = _lost_by(problem, ref, retry_at=now)
            elif is_new and not found.following.unreadable:  # the list just made knew it was wanted, and had none
                self.lost[ref] = _gone(ref)
        unsettled = [ref for ref in refs if ref not in self.lost and not found.has(ref)]
        await asyncio.gather(*(self._fetch(found, ref, now) for ref in unsettled))

    async def _fetch(self, kind: watched.WatchedKind, ref: cluster.Ref, now: Instant) -> None:
        try:
            seen = await kind.read(self._api, ref.namespace, ref.name)
        except errors.ClientError as problem:
            retry_at = now + _RETRY_FORBIDDEN_SECONDS if isinstance(problem, errors.Forbidden) else now
            self.lost[ref] = _lost_by(problem, ref, retry_at)
            return
        if ref.uid not in ("", seen.ref.uid):
            self.lost[ref] = _gone(ref)
        elif kind is watched.POD:
            self.link_pods[seen.ref.uid] = seen
        else:
            kind.following.learn(ref.namespace, seen.ref.uid, seen)

    def _why_absent(self, key: owners.Key, now: Instant) -> owners.Lost:
        kind = f"kind {key[1]} ({key[0] or 'core'})"
        if self._served.found.is_unavailable(key[0]):
            return owners.Lost(Trouble.OwnerLookupFailed, f"the server does not say whether it has the {kind}", now)
        return owners.Lost(Trouble.OwnerMissing, f"the server has no {kind}", now)


def _gone(ref: cluster.Ref) -> owners.Lost:
    return owners.Lost(Trouble.OwnerMissing, f"{ref.short} is named as an owner, and there is no such object any more")


def _lost_by(problem: errors.ClientError, ref: cluster.Ref, retry_at: Instant) -> owners.Lost:
    match problem:
        case errors.NotFound():
            return _gone(ref)
        case errors.Forbidden():
            return owners.Lost(Trouble.OwnerForbidden, f"{ref.short} may not be read: {problem}", retry_at)
        case _:
            return owners.Lost(Trouble.OwnerLookupFailed, f"{ref.short} could not be read: {problem}", retry_at)
