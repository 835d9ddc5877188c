"""Who leads: never two at once, whatever the clocks say and whatever hangs."""

import asyncio
import contextlib
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.clients.kubernetes import wire

from fallow.clients import errors
from fallow.clients.kubernetes import api, config, lease

LEASES = "/apis/coordination.k8s.io/v1/namespaces/gpu/leases"
LEASE = f"{LEASES}/gpu-pruner"
NOON = datetime(2026, 5, 4, 12, 0, 0, 123456, tzinfo=UTC)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def read(self) -> float:
        return self.now

    def wall(self, skew: timedelta = timedelta()) -> datetime:
        return NOON + timedelta(seconds=self.now - 1000) + skew


class LeaseServer:
    """One Lease, with the server's optimistic locking."""

    def __init__(self, server: wire.Server) -> None:
        self.lease: dict[str, Any] | None = None
        self._version = 0
        server.on("GET", LEASE, self.get)
        server.on("PUT", LEASE, self.put)
        server.on("POST", LEASES, self.post)

    @property
    def spec(self) -> dict[str, Any]:
        assert self.lease is not None
        spec: dict[str, Any] = self.lease["spec"]
        return spec

    async def get(self, request: web.Request) -> web.StreamResponse:
        return await (wire.give(self.lease) if self.lease else wire.status(404, "NotFound"))(request)

    async def post(self, request: web.Request) -> web.StreamResponse:
        if self.lease is not None:
            return await wire.status(409, "AlreadyExists")(request)
        return await self._store(request)

    async def put(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if self.lease is None or body["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"]:
            return await wire.status(409, "Conflict")(request)
        return await self._store(request)

    async def _store(self, request: web.Request) -> web.StreamResponse:
        self._version += 1
        self.lease = await request.json()
        self.lease["metadata"]["resourceVersion"] = str(self._version)
        return await wire.give(self.lease)(request)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def held(server: wire.Server) -> LeaseServer:
    return LeaseServer(server)


def candidate(
    client: api.Api, clock: Clock, identity: str, skew: timedelta = timedelta(), **more: Any
) -> lease.Leadership:
    return lease.Leadership(
        client,
        namespace="gpu",
        name="gpu-pruner",
        identity=identity,
        monotonic=clock.read,
        utcnow=lambda: clock.wall(skew),
        **more,
    )


async def once(*candidates: lease.Leadership) -> list[bool]:
    """One look each: the pause before a second is longer than this."""
    for each in candidates:
        await each.acquire(1.9)
    return [each.is_leader for each in candidates]


async def test_the_first_creates_the_lease(client: api.Api, held: LeaseServer, clock: Clock) -> None:
    first = candidate(client, clock, "a")
    assert not first.is_leader
    assert await first.acquire(1.0)
    assert first.is_leader
    assert held.lease is not None
    assert (held.lease["apiVersion"], held.lease["kind"]) == ("coordination.k8s.io/v1", "Lease")
    assert held.spec == {
        "holderIdentity": "a",
        "leaseDurationSeconds": 15,
        "acquireTime": "2026-05-04T12:00:00.123456Z",
        "renewTime": "2026-05-04T12:00:00.123456Z",
        "leaseTransitions": 0,
    }


async def test_a_renewal_is_one_request_and_keeps_the_rest(
    client: api.Api, held: LeaseServer, clock: Clock, server: wire.Server
) -> None:
    first = candidate(client, clock, "a")
    await once(first)
    before = len(server.seen)
    clock.now += 2
    assert await once(first) == [True]
    assert [each.method for each in server.seen[before:]] == ["PUT"]
    assert held.spec["renewTime"] == "2026-05-04T12:00:02.123456Z"
    assert (held.spec["acquireTime"], held.spec["leaseTransitions"]) == ("2026-05-04T12:00:00.123456Z", 0)


async def test_a_second_waits_until_it_has_seen_the_record_unchanged_for_its_duration(
    client: api.Api, held: LeaseServer, clock: Clock
) -> None:
    first, second = candidate(client, clock, "a"), candidate(client, clock, "b")
    assert await once(first, second) == [True, False]
    assert second.holder == "a"
    clock.now += 14.9  # the first has died; the second cannot know yet
    assert await once(second) == [False]
    assert not first.is_leader  # and the first would know before
    clock.now += 0.2
    assert await once(second) == [True]
    assert (held.spec["holderIdentity"], held.spec["leaseTransitions"]) == ("b", 1)
    assert held.spec["acquireTime"] == held.spec["renewTime"] == "2026-05-04T12:00:15.223456Z"
    assert await once(first) == [False]


async def test_a_holder_that_renews_is_never_overtaken(client: api.Api, held: LeaseServer, clock: Clock) -> None:
    first, second = candidate(client, clock, "a"), candidate(client, clock, "b")
    for _ in range(20):
        assert await once(first, second) == [True, False]
        clock.now += 5


@pytest.mark.parametrize("hours", [-48, 48], ids=["behind", "ahead"])
async def test_the_holders_clock_is_not_believed(client: api.Api, held: LeaseServer, clock: Clock, hours: int) -> None:
    first, second = candidate(client, clock, "a", timedelta(hours=hours)), candidate(client, clock, "b")
    assert await once(first, second) == [True, False]
    clock.now += 9
    assert await once(second, first) == [False, True]
    clock.now += 15.1
    await once(second)  # sees the renewal only now
    assert not second.is_leader
    clock.now += 15.1
    assert await once(second) == [True]


async def test_a_hanging_renewal_does_not_keep_the_lead(
    server: wire.Server, held: LeaseServer, client: api.Api, clock: Clock
) -> None:
    first = candidate(client, clock, "a")
    await once(first)
    server.on("PUT", LEASE, wire.hang)
    task = asyncio.create_task(first.run())
    await wire.eventually(lambda: server.count("PUT") == 1, "the renewal")
    clock.now += 9.9
    assert first.is_leader
    clock.now += 0.2
    assert not first.is_leader
    assert not task.done()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def test_a_hung_try_is_given_up_in_time_for_another(
    server: wire.Server, held: LeaseServer, client: api.Api, clock: Clock
) -> None:
    first = candidate(client, clock, "a", duration_seconds=2, renew_deadline_seconds=0.4, retry_seconds=0.05)
    await once(first)
    server.on("PUT", LEASE, wire.hang, held.put)
    task = asyncio.create_task(first.run())
    await wire.eventually(lambda: server.count("PUT") >= 2, "a second try", seconds=2)
    await wire.eventually(lambda: first.problem is None)
    assert first.is_leader
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def test_the_lead_counts_from_before_the_renewal_was_sent(
    server: wire.Server, held: LeaseServer, client: api.Api, clock: Clock
) -> None:
    first = candidate(client, clock, "a")

    async def slow(request: web.Request) -> web.StreamResponse:
        clock.now += 4
        return await held.put(request)

    await once(first)
    server.on("PUT", LEASE, slow)
    await once(first)
    clock.now += 5.9
    assert first.is_leader
    clock.now += 0.2
    assert not first.is_leader


async def test_a_lease_taken_by_another_is_lost_at_the_next_look(
    client: api.Api, held: LeaseServer, clock: Clock
) -> None:
    first = candidate(client, clock, "a")
    await once(first)
    held.spec["holderIdentity"] = "thief"
    assert held.lease is not None
    held.lease["metadata"]["resourceVersion"] = "99"
    assert await once(first) == [False]
    assert first.holder == "thief"


async def test_losing_a_race_is_not_a_problem(
    server: wire.Server, held: LeaseServer, client: api.Api, clock: Clock
) -> None:
    second = candidate(client, clock, "b")
    server.on("GET", LEASE, wire.status(404, "NotFound"))
    server.on("POST", LEASES, wire.status(409, "AlreadyExists"))
    assert await once(second) == [False]
    assert second.problem is None


async def test_running_renews_and_takes_over_when_it_can(client: api.Api, held: LeaseServer) -> None:
    def real(identity: str) -> lease.Leadership:
        return lease.Leadership(
            client, namespace="gpu", name="gpu-pruner", identity=identity, utcnow=lambda: datetime.now(UTC),
            duration_seconds=1, renew_deadline_seconds=0.6, retry_seconds=0.05,
        )

    first, second = real("a"), real("b")
    tasks = [asyncio.create_task(each.run()) for each in (first, second)]
    await wire.eventually(lambda: first.is_leader or second.is_leader)
    leader, other = (first, second) if first.is_leader else (second, first)
    tasks[0 if leader is first else 1].cancel()  # dies without a word
    await wire.eventually(lambda: not leader.is_leader, "the loss")
    assert not other.is_leader  # there was a time without a leader
    await wire.eventually(lambda: other.is_leader, "the take-over", seconds=5)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_released_lease_is_taken_at_once(client: api.Api, held: LeaseServer, clock: Clock) -> None:
    first, second = candidate(client, clock, "a"), candidate(client, clock, "b")
    await once(first, second)
    await first.release()
    assert not first.is_leader
    assert (held.spec["holderIdentity"], held.spec["leaseDurationSeconds"]) == ("", 1)
    assert await once(second) == [True]
    await first.release()  # nothing of its own to release
    assert held.spec["holderIdentity"] == "b"


@pytest.mark.parametrize(("writer", "left"), [("a", ""), ("b", "b")], ids=["our-own-renewal", "another"])
async def test_a_release_heeds_what_was_written_meanwhile(
    client: api.Api, held: LeaseServer, clock: Clock, writer: str, left: str
) -> None:
    """A renewal that was cut off on our side may have arrived all the same."""
    first = candidate(client, clock, "a")
    await once(first)
    assert held.lease is not None
    held.lease["metadata"]["resourceVersion"] = "77"
    held.spec["holderIdentity"] = writer
    await first.release()
    assert not first.is_leader
    assert held.spec["holderIdentity"] == left


async def test_a_release_that_fails_is_harmless(
    server: wire.Server, client: api.Api, held: LeaseServer, clock: Clock
) -> None:
    first = candidate(client, clock, "a")
    await once(first)
    server.on("PUT", LEASE, wire.status(500, "InternalError"))
    await first.release()
    assert not first.is_leader
    assert isinstance(first.problem, errors.ServerFault)


@pytest.mark.parametrize("code", [403, 500])
async def test_trouble_is_noted_and_never_makes_a_leader(
    server: wire.Server, client: api.Api, clock: Clock, code: int
) -> None:
    server.on("GET", LEASE, wire.status(code, "No", "no leases for you", headers={"Retry-After": "100"}))
    first = candidate(client, clock, "a")
    assert await once(first) == [False]
    assert str(first.problem) == "no leases for you"


async def test_a_lease_that_cannot_be_read_makes_no_leader(client: api.Api, held: LeaseServer, clock: Clock) -> None:
    held.lease = {"metadata": {"resourceVersion": "1"}, "spec": {"holderIdentity": ["b"]}}
    first = candidate(client, clock, "a")
    assert await once(first) == [False]
    assert isinstance(first.problem, errors.BadAnswer)


async def test_acquire_gives_up_in_time(client: api.Api, held: LeaseServer) -> None:
    first = candidate(client, Clock(), "a")
    await first.acquire(1)
    loop = asyncio.get_running_loop()
    second = lease.Leadership(
        client,
        namespace="gpu",
        name="gpu-pruner",
        identity="b",
        utcnow=lambda: NOON,
        monotonic=loop.time,
        retry_seconds=0.1,
    )
    began = loop.time()
    assert not await second.acquire(0.5)
    assert loop.time() - began <= 0.6


# Annotations


async def test_annotations_are_seen_and_written_without_touching_the_record(
    client: api.Api, held: LeaseServer, clock: Clock
) -> None:
    first, second = candidate(client, clock, "a"), candidate(client, clock, "b")
    await once(first, second)
    before = dict(held.spec)
    clock.now += 1
    await second.annotate(lambda said: {"gpuautoscaler.io/frozen-until": "2026-05-04T14:00:00Z", "x": "1"})
    await second.annotate(lambda said: {"x": None, "never-there": None})
    assert held.spec == before
    assert await once(first) == [True]  # its renewal meets the change, looks, and keeps it
    expected = {"gpuautoscaler.io/frozen-until": "2026-05-04T14:00:00Z"}
    assert held.lease is not None
    assert first.annotations == second.annotations == held.lease["metadata"]["annotations"] == expected


async def test_annotating_does_not_prolong_a_dead_holders_lease(
    client: api.Api, held: LeaseServer, clock: Clock
) -> None:
    first, second = candidate(client, clock, "a"), candidate(client, clock, "b")
    await once(first, second)
    clock.now += 10
    await second.annotate(lambda said: {"x": "1"})
    assert await once(second) == [False]
    clock.now += 5.1
    assert await once(second) == [True]
    assert second.annotations == {"x": "1"}


async def test_annotating_never_creates_a_lease(client: api.Api, held: LeaseServer, clock: Clock) -> None:
    with pytest.raises(errors.NotFound):
        await candidate(client, clock, "a").annotate(lambda said: {"x": "1"})
    assert held.lease is None


async def test_what_stood_on_a_deleted_lease_stands_on_the_next(
    client: api.Api, held: LeaseServer, clock: Clock
) -> None:
    first, second = candidate(client, clock, "a"), candidate(client, clock, "b")
    await once(first)
    await second.annotate(lambda said: {"gpuautoscaler.io/frozen-until": "2026-05-04T14:00:00Z"})
    await once(first)
    held.lease = None
    assert await once(first) == [True]
    assert held.lease is not None
    assert held.lease["metadata"]["annotations"] == {"gpuautoscaler.io/frozen-until": "2026-05-04T14:00:00Z"}


async def test_only_the_holder_notes_anything_by_one_request(
    client: api.Api, held: LeaseServer, clock: Clock, server: wire.Server
) -> None:
    first, second = candidate(client, clock, "a"), candidate(client, clock, "b")
    await once(first, second)
    before = len(server.seen)
    await first.note(lambda said: {"x": "1"})
    assert [each.method for each in server.seen[before:]] == ["PUT"]
    with pytest.raises(lease.NotHeld, match="held by a, not by us"):
        await second.note(lambda said: {"x": "2"})
    assert held.lease is not None
    assert held.lease["metadata"]["annotations"] == first.annotations == {"x": "1"}


async def test_who_lost_the_lease_unnoticed_notes_nothing(client: api.Api, held: LeaseServer, clock: Clock) -> None:
    first, second = candidate(client, clock, "a"), candidate(client, clock, "b")
    await once(first, second)
    clock.now += 15.1
    assert await once(second) == [True]
    with pytest.raises(lease.NotHeld):
        await first.note(lambda said: {"x": "1"})


async def test_a_note_is_made_of_what_stands_there_now(client: api.Api, held: LeaseServer, clock: Clock) -> None:
    first, second = candidate(client, clock, "a"), candidate(client, clock, "b")
    await once(first)
    await second.annotate(lambda said: {"x": "1"})
    await first.note(lambda said: {"y": said.get("x", "") + "2"})
    assert first.annotations == {"x": "1", "y": "12"}


async def test_a_renewal_answers_what_it_reads_in_the_same_request(
    client: api.Api, held: LeaseServer, clock: Clock, server: wire.Server
) -> None:
    first = candidate(client, clock, "a", answer=lambda said: {"seen": said["asked"]} if "asked" in said else {})
    second = candidate(client, clock, "b")
    await once(first, second)
    await second.annotate(lambda said: {"asked": "yes"})
    clock.now += 2
    before = len(server.seen)
    await once(first)
    assert [each.method for each in server.seen[before:]] == ["PUT", "GET", "PUT"]
    assert first.annotations == {"asked": "yes", "seen": "yes"}
    assert await second.hear("seen", "yes", 15.0) is lease.Heard.answered


async def test_a_late_answer_never_takes_back_what_was_read_after_it(
    client: api.Api, held: LeaseServer, clock: Clock, server: wire.Server
) -> None:
    first, second = candidate(client, clock, "a"), candidate(client, clock, "b")
    await once(first)
    carried_out, deliver = asyncio.Event(), asyncio.Event()

    async def dawdle(request: web.Request) -> web.StreamResponse:
        answer = await held.put(request)
        carried_out.set()
        await deliver.wait()
        return answer

    server.on("PUT", LEASE, dawdle, held.put)
    noting = asyncio.create_task(first.note(lambda said: {"memory": "1"}))
    await carried_out.wait()
    await second.annotate(lambda said: {"asked": "yes"})
    renewing = asyncio.create_task(once(first))
    await asyncio.wait({renewing}, timeout=0.2)  # it would have overtaken the note by now
    deliver.set()
    await noting
    assert await renewing == [True]
    assert first.annotations == {"memory": "1", "asked": "yes"}


async def test_who_renews_and_does_not_answer_is_silent(client: api.Api, held: LeaseServer, clock: Clock) -> None:
    first, second = candidate(client, clock, "a"), candidate(client, clock, "b")
    await once(first, second)
    hearing = asyncio.create_task(second.hear("seen", "yes", 15.0))
    await asyncio.sleep(0)  # it has begun
    clock.now += 5
    await once(first)
    clock.now += 11
    assert await hearing is lease.Heard.silent


async def test_who_does_not_renew_cannot_answer(client: api.Api, held: LeaseServer, clock: Clock) -> None:
    first, second = candidate(client, clock, "a"), candidate(client, clock, "b")
    await once(first, second)
    assert await second.hear("seen", "yes", 0.0) is lease.Heard.nobody
    await first.release()
    await second.read()
    assert await second.hear("seen", "yes", 15.0) is lease.Heard.nobody


async def test_the_term_counts_the_hands_it_went_through(client: api.Api, held: LeaseServer, clock: Clock) -> None:
    first, second = candidate(client, clock, "a"), candidate(client, clock, "b")
    await once(first)
    terms = [first.term]
    clock.now += 20  # it could not renew for long, and nobody was there
    await once(first)
    terms.append(first.term)
    await first.release()
    await once(second)
    await second.release()
    await once(first)
    assert [*terms, first.term] == [0, 0, 2]


async def test_annotating_meets_a_renewal_and_tries_again(
    server: wire.Server, client: api.Api, held: LeaseServer, clock: Clock
) -> None:
    first = candidate(client, clock, "a")
    await once(first)
    server.on("PUT", LEASE, wire.status(409, "Conflict"), held.put)
    await first.annotate(lambda said: {"x": "1"})
    assert first.annotations == {"x": "1"}
    server.on("PUT", LEASE, wire.status(409, "Conflict"))
    with pytest.raises(errors.Conflict):
        await first.annotate(lambda said: {"x": "2"})


async def test_other_peoples_fields_survive(client: api.Api, held: LeaseServer, clock: Clock) -> None:
    metadata = {"name": "gpu-pruner", "resourceVersion": "1", "uid": "u", "labels": {"app": "x"}}
    held.lease = {"metadata": metadata, "spec": {"strategy": "OldestEmulationVersion"}}
    assert await once(candidate(client, clock, "a")) == [True]
    assert (held.spec["strategy"], held.lease["metadata"]["labels"], held.lease["metadata"]["uid"]) == (
        "OldestEmulationVersion",
        {"app": "x"},
        "u",
    )


@pytest.mark.parametrize("times", [(15, 15.0, 2.0), (15, 10.0, 10.0), (15, 10.0, 0.0)])
def test_times_that_could_make_two_leaders_are_refused(client_less: api.Api, times: tuple[int, float, float]) -> None:
    with pytest.raises(ValueError, match="retry < renew deadline < duration"):
        candidate(
            client_less,
            Clock(),
            "a",
            duration_seconds=times[0],
            renew_deadline_seconds=times[1],
            retry_seconds=times[2],
        )
    with pytest.raises(ValueError, match="identity"):
        candidate(client_less, Clock(), "")


@pytest.fixture
def client_less() -> api.Api:
    """An Api that is never entered: what is refused sends nothing."""
    return api.Api(config.Access(server="http://127.0.0.1:1", context="none"))


# Any order of looks, deaths and waits


STEPS = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c"]), st.sampled_from(["look", "look", "look", "release"]), st.floats(0, 16)),
    min_size=1,
    max_size=25,
)


@settings(max_examples=30)
@given(STEPS)
def test_there_are_never_two_leaders(steps: list[tuple[str, str, float]]) -> None:
    asyncio.run(_never_two(steps))


async def _never_two(steps: list[tuple[str, str, float]]) -> None:
    clock = Clock()
    async with wire.Server() as server, api.Api(server.access, qps=100_000) as client:
        LeaseServer(server)
        all_three = {name: candidate(client, clock, name, timedelta(hours=ord(name))) for name in "abc"}
        for name, act, wait in steps:
            await (once(all_three[name]) if act == "look" else all_three[name].release())
            assert sum(each.is_leader for each in all_three.values()) <= 1
            clock.now += wait
            assert sum(each.is_leader for each in all_three.values()) <= 1
