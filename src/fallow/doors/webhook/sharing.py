"""One review about sharing: the ladder, with what it rests on, in a second at most; a patch, a warning or nothing.

In: a review. Out: the bytes of the answer, and the words by which it is counted: patched, audited, unchanged, error.
Invariant: every pod is admitted. Whatever is not known, too old, not in time or unforeseen leaves it as it is.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

import msgspec

from fallow.decide import sharing
from fallow.doors.webhook import reviews, share_reviews
from fallow.model import cluster
from fallow.model.claims import ClaimGround
from fallow.model.policies.sharing import SharingPolicy
from fallow.model.seen import ABSENT, Input, Known, Register
from fallow.model.sharing import KeptWhole, OwnerUse, PartGiven, SharePod, ShareReason, TopOwner
from fallow.model.units import Instant, Seconds
from fallow.observe.budgets import OwnerRef

log = logging.getLogger("fallow")

DEADLINE: Final[Seconds] = 1.0  # the API server waits for three
_DOUBTS: Final = frozenset({
    ShareReason.NotLoaded, ShareReason.MirrorStale, ShareReason.Unreadable, ShareReason.Deadline, ShareReason.Defect,
    ShareReason.OwnerUnseen, ShareReason.NamespaceUnseen,
})
FindTop: TypeAlias = Callable[[str, list[OwnerRef] | None], Awaitable[Input[TopOwner]]]


class ShareAnswer(msgspec.Struct, frozen=True):
    body: bytes
    outcome: str
    reason: ShareReason


class ShareEyes(msgspec.Struct, frozen=True, kw_only=True):
    """What the ladder rests on, as functions: each is asked anew. `policies` by rank; `stale`: why all of it is too
    old, "" where it is not; `use`: of an owner, by its uid; `claims`: where parts are given by claims."""

    policies: Callable[[], Input[tuple[SharingPolicy, ...]]]
    nodes: Callable[[], Input[sharing.PartIndex]]
    namespaces: Callable[[], Register[cluster.Namespace]]
    top: FindTop
    use: Callable[[str], Input[OwnerUse]]
    stale: Callable[[], str]
    claims: Callable[[], Input[ClaimGround]] = lambda: ABSENT


class ShareJudge:
    def __init__(self, eyes: ShareEyes, terms: sharing.ShareTerms, clock: Callable[[], Instant]) -> None:
        self._eyes, self._terms, self._clock = eyes, terms, clock

    async def judge(self, body: bytes) -> ShareAnswer:
        """Raises one of reviews.UNREADABLE where no uid can be read."""
        request = share_reviews.read(body)
        if isinstance(request, str):
            return _leave(request, ShareReason.Unreadable)
        try:
            async with asyncio.timeout(DEADLINE):
                return await self._judge(request)
        except TimeoutError:
            return _leave(request.uid, ShareReason.Deadline)
        except Exception:  # a defect of ours must not keep anybody's pod away
            log.exception("a review about sharing was not judged; the pod was admitted as it is")
            return _leave(request.uid, ShareReason.Defect)

    async def _judge(self, request: share_reviews.ShareRequest) -> ShareAnswer:
        if request.operation != "CREATE":
            return _leave(request.uid, ShareReason.NotCreate)
        pod = share_reviews.see(request)
        if left := sharing.leave_alone(pod, self._terms):
            return _leave(request.uid, left.reason)
        if why := self._eyes.stale():
            log.debug("%s", why)
            return _leave(request.uid, ShareReason.MirrorStale)
        verdict = sharing.judge(pod, await self._look(request, pod), self._terms, self._clock())
        return self._answer(request.uid, pod, verdict)

    async def _look(self, request: share_reviews.ShareRequest, pod: SharePod) -> sharing.ShareAround:
        around = sharing.ShareAround(
            namespace=self._eyes.namespaces().find(pod.namespace), policies=self._eyes.policies(),
            nodes=self._eyes.nodes(), claims=self._eyes.claims(),
        )
        if not sharing.needs_owner(pod, around):
            return around
        top = await self._eyes.top(pod.namespace, request.owners)
        use = self._eyes.use(top.value.uid) if isinstance(top, Known) else ABSENT
        return msgspec.structs.replace(around, owner=top, use=use)

    def _answer(self, uid: str, pod: SharePod, verdict: PartGiven | KeptWhole) -> ShareAnswer:
        said = tuple(f"fallow: {each.message}" for each in verdict.events)
        if isinstance(verdict, KeptWhole):
            return _leave(uid, verdict.reason, said)
        if verdict.is_audited:
            instead = f"fallow would have this pod ask for {verdict.part.called} instead of a whole GPU"
            body = reviews.admit(uid, warnings=(*said, f"{instead}: {verdict.because}"))
            return ShareAnswer(body, "audited", verdict.reason)
        patch = sharing.change(pod, verdict, self._clock())
        notes = {"sharing": verdict.because}
        return ShareAnswer(reviews.admit(uid, patch=patch, notes=notes, warnings=said), "patched", verdict.reason)


def _leave(uid: str, reason: ShareReason, warnings: tuple[str, ...] = ()) -> ShareAnswer:
    return ShareAnswer(reviews.admit(uid, warnings=warnings), "error" if reason in _DOUBTS else "unchanged", reason)
