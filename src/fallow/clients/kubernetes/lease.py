"""Who leads: a Lease that one of several processes holds and renews.

In: a Lease's name and our identity. Out: `is_leader`, to be looked at before every act; and the Lease's annotations, as
they are at every renewal: what others wrote there is read, and may be answered, before we lead on. Only who holds the
Lease can `note` anything there; `annotate` and `hear` are for people. The rules are client-go's: a holder's clock is
never believed; what counts is how long *we* have seen the record unchanged.
Invariants: `is_leader` is False from the renew deadline on, also while a renewal hangs; and the deadline, counted from
before the renewal was sent, is shorter than the time after which others may take over: at most one leads. One request
is under way at a time: an answer that comes late is never taken for newer than what was read or written after it.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any, TypeAlias, TypeVar

import msgspec

from fallow.clients import errors
from fallow.clients.kubernetes import api as kube
from fallow.model import units

T = TypeVar("T")

# How often a write is tried again when somebody else, or our own last renewal, writes at the same moment.
_TRIES = 5
_LISTEN = 0.5  # seconds between two looks of somebody who waits for an answer

Changes: TypeAlias = Mapping[str, str | None]  # of annotations; None = remove
MakeChanges: TypeAlias = Callable[[Mapping[str, str]], Changes]  # of the annotations that stand there


class NotHeld(errors.ClientError):
    """Nothing was written: the Lease is somebody else's, or nobody's."""


class Heard(StrEnum):
    """What came of waiting for the holder's answer."""

    answered = "answered"
    silent = "silent"  # it lives, and does not answer
    nobody = "nobody"  # there is no holder that renews


class _LeaseSpec(msgspec.Struct, frozen=True, rename="camel"):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class _LeaseMeta(msgspec.Struct, frozen=True):
    annotations: dict[str, str] | None = None


class _Lease(msgspec.Struct, frozen=True):
    """The parts we decide by. What we write back is the whole object as it was read, so nobody's field is lost."""

    metadata: _LeaseMeta = _LeaseMeta()
    spec: _LeaseSpec = _LeaseSpec()


class Leadership:
    """One candidate. Give it an Api of its own where another may be busy for seconds: who renews late has lost."""

    def __init__(
        self, api: kube.Api, *, namespace: str, name: str, identity: str,
        utcnow: Callable[[], datetime], monotonic: Callable[[], float] = time.monotonic,
        duration_seconds: int = 15, renew_deadline_seconds: float = 10.0, retry_seconds: float = 2.0,
        answer: MakeChanges = lambda said: {},
    ) -> None:
        """`answer`: what a renewal writes down in answer to the annotations that stand there."""
        if not (0 < retry_seconds < renew_deadline_seconds < duration_seconds):
            raise ValueError("a lease needs retry < renew deadline < duration")
        if not identity:
            raise ValueError("a candidate needs an identity")
        self.annotations: dict[str, str] = {}
        self.problem: errors.ClientError | None = None  # why the last try failed, if not because somebody else leads
        self.holder: str | None = None  # as last seen
        self._api = api
        self._namespace, self._name, self._identity = namespace, name, identity
        self._utcnow, self._monotonic, self._answer = utcnow, monotonic, answer
        self._duration, self._deadline, self._retry = duration_seconds, renew_deadline_seconds, retry_seconds
        self._seen: dict[str, Any] | None = None  # the Lease as last read or written
        self._record: _LeaseSpec | None = None
        self._record_since = 0.0
        self._led_until: float | None = None
        self._turn = asyncio.Lock()  # whoever has it is bounded, so that a renewal is sent in time after it

    @property
    def is_leader(self) -> bool:
        return self._led_until is not None and self._monotonic() < self._led_until

    async def acquire(self, timeout: float | None) -> bool:
        """Try until we lead, or until `timeout` seconds are over (None: for ever)."""
        end = None if timeout is None else self._monotonic() + timeout
        while True:
            await self._try(end)
            if self.is_leader:
                return True
            pause = self._pause()
            if end is not None and self._monotonic() + pause >= end:
                return False
            await asyncio.sleep(pause)

    async def run(self) -> None:
        """Acquire, renew, acquire again when lost, until cancelled. Look at `is_leader`."""
        while True:
            await self._try(None)
            await asyncio.sleep(self._pause())

    async def release(self) -> None:
        """Let the next one in without waiting; stop `run` first. If it cannot be told, the lease simply runs out."""
        if not self.is_leader or self._seen is None:
            return
        self._led_until = None
        async with self._turn:
            try:
                await self._bounded(self._let_go())
            except errors.ClientError as problem:
                self.problem = problem

    async def _let_go(self) -> None:
        """A renewal that was cut off may have arrived, or may yet: then the Lease is other than we saw, and ours."""
        for _ in range(_TRIES):
            transitions = (self._record.lease_transitions if self._record else 0) or 0
            try:
                await self._replace({**self._claim("", transitions), "leaseDurationSeconds": 1})
            except errors.Conflict:
                await self._read()
            if self.holder != self._identity:
                return

    async def read(self) -> None:
        """Only look: who holds it, and what is written on it. A Lease that is not there says nothing."""
        async with self._turn:
            await self._read()

    async def _read(self) -> None:
        with contextlib.suppress(errors.NotFound):
            self._look(await self._api.get(kube.LEASES, self._namespace, self._name))

    @property
    def term(self) -> int | None:
        """How often it has changed hands."""
        return self._record.lease_transitions if self._record else None

    @property
    def renewed(self) -> str | None:
        """When, by the holder's own clock."""
        return self._record.renew_time if self._record else None

    async def annotate(self, make: MakeChanges) -> None:
        """Set annotations on the Lease, or remove them; who holds it does not change. It is never created for this.
        `make`: of what stands there now."""
        async with self._turn:
            await self._annotate(make)

    async def note(self, make: MakeChanges) -> None:
        """The same, as its holder and in time: a memory that two write is none."""
        async with self._turn:
            await self._bounded(self._annotate(make, as_holder=True))

    async def hear(self, key: str, value: str | None, patience: float) -> Heard:
        """Wait until the holder has written this annotation (None: has removed it)."""
        end, record, is_blind = self._monotonic() + patience, self._record, False
        while self.annotations.get(key) != value:
            if not self.holder:
                return Heard.nobody
            if self._monotonic() >= end:
                return Heard.nobody if record == self._record and not is_blind else Heard.silent
            await asyncio.sleep(_LISTEN)
            is_blind = True
            with contextlib.suppress(errors.ClientError):  # it is written already: all that is missing is the answer
                await self.read()
                is_blind = False
        return Heard.answered

    def _pause(self) -> float:
        return self._retry * random.uniform(1.0, 1.2)

    async def _try(self, end: float | None) -> None:
        """Acquire or renew once; never raises what the wire does wrong."""
        async with self._turn:
            try:
                await self._bounded(self._acquire_or_renew(), None if end is None else end - self._monotonic())
                self.problem = None
            except errors.Conflict:
                self.problem = None  # somebody was quicker: the next look shows who
                self._seen = None
            except errors.ClientError as problem:
                self.problem = problem

    async def _bounded(self, work: Awaitable[T], most: float | None = None) -> T:
        """Half the renew deadline for a try, so that a hung one leaves time for another."""
        seconds = self._deadline / 2 if most is None else max(0.0, min(self._deadline / 2, most))
        try:
            async with asyncio.timeout(seconds):
                return await work
        except TimeoutError:
            raise errors.Unreachable(f"lease {self._namespace}/{self._name}: no answer in {seconds:.1f} s") from None

    async def _acquire_or_renew(self) -> None:
        began = self._monotonic()
        if self.is_leader and self._seen is not None:
            try:
                await self._take(began)  # nobody touched it since: one request instead of two
                return
            except errors.Conflict:
                pass
        try:
            self._look(await self._api.get(kube.LEASES, self._namespace, self._name))
        except errors.NotFound:
            await self._create(began)
            return
        if self._may_take():
            await self._take(began)

    def _look(self, lease: dict[str, Any]) -> None:
        """Take in a Lease from the server; note since when, by our clock, its record is what it is."""
        try:
            read = msgspec.convert(lease, _Lease)
        except msgspec.ValidationError as problem:
            raise errors.BadAnswer(f"lease {self._namespace}/{self._name} cannot be read: {problem}") from None
        self._seen = lease
        self.annotations = read.metadata.annotations or {}
        self.holder = read.spec.holder_identity or None
        if read.spec != self._record:
            self._record, self._record_since = read.spec, self._monotonic()
        if self.holder != self._identity:
            self._led_until = None

    def _may_take(self) -> bool:
        if self.holder is None or self.holder == self._identity or self._record is None:
            return True
        lasts = self._record.lease_duration_seconds or self._duration
        return self._monotonic() >= self._record_since + lasts

    async def _take(self, began: float) -> None:
        is_ours, record = self.holder == self._identity, self._record or _LeaseSpec()
        claim = self._claim(self._identity, (record.lease_transitions or 0) + (0 if is_ours else 1))
        kept = {"acquireTime": record.acquire_time} if is_ours and record.acquire_time else {}
        await self._replace({**claim, **kept}, self._answer(self.annotations))
        self._led_until = began + self._deadline

    def _claim(self, holder: str, transitions: int) -> dict[str, Any]:
        now = units.rfc3339_micros(self._utcnow().timestamp())
        return {
            "holderIdentity": holder, "leaseDurationSeconds": self._duration, "acquireTime": now, "renewTime": now,
            "leaseTransitions": transitions,
        }

    async def _replace(self, spec: Mapping[str, Any], changes: Changes | None = None) -> None:
        seen = self._seen or {}
        body = {**_with_annotations(seen, changes or {}), "spec": {**(seen.get("spec") or {}), **spec}}
        self._look(await self._api.replace(kube.LEASES, self._namespace, self._name, body))

    async def _create(self, began: float) -> None:
        """With what stood on the one that was deleted, if we saw it: a freeze does not end because a Lease does."""
        body = _with_annotations({
            "apiVersion": kube.LEASES.api_version, "kind": kube.LEASES.kind,
            "metadata": {"name": self._name, "namespace": self._namespace}, "spec": self._claim(self._identity, 0),
        }, self.annotations)
        self._look(await self._api.create(kube.LEASES, self._namespace, body))
        self._led_until = began + self._deadline

    async def _annotate(self, make: MakeChanges, *, as_holder: bool = False) -> None:
        for turn in range(1, _TRIES):
            with contextlib.suppress(errors.Conflict):
                return await self._annotate_once(make, as_holder)
            await asyncio.sleep(random.uniform(0.05, 0.2) * turn)
            self._seen = None
        return await self._annotate_once(make, as_holder)

    async def _annotate_once(self, make: MakeChanges, as_holder: bool) -> None:
        # Replaced, guarded by the resource version, because our role has update but not patch on leases.
        if self._seen is None or not as_holder:  # a holder has just read it: one request instead of two
            self._look(await self._api.get(kube.LEASES, self._namespace, self._name))
        if as_holder and self.holder != self._identity:
            raise NotHeld(f"lease {self._namespace}/{self._name} is held by {self.holder or 'nobody'}, not by us")
        if changes := make(self.annotations):
            await self._replace({}, changes)


def _with_annotations(lease: Mapping[str, Any], changes: Changes) -> dict[str, Any]:
    if not changes:
        return dict(lease)
    metadata = lease.get("metadata") or {}
    merged = {**(metadata.get("annotations") or {}), **changes}
    annotations = {key: value for key, value in merged.items() if value is not None}
    return {**lease, "metadata": {**metadata, "annotations": annotations}}
