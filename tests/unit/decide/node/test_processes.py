"""Which processes are idle: streaks of zeros that were really read, and every way of not knowing."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fallow.decide.node import processes
from fallow.decide.node.processes import ProcessHistory, Rules
from fallow.model.processes import Device, Fact, Holder, Judged, KeptProcess, Process, Sample, Samples, Type

NOW = 1_800_000_000.0
GIB = 2**30
GPU = "GPU-a"
PID = 42
STEP = 5.0


def micros(instant: float) -> int:
    return int(instant * 1e6)


class Watch:
    """One device and a history, poll by poll. `now` moves with the monotonic clock unless a test sets it."""

    def __init__(self, **rules: Any) -> None:
        self.history = ProcessHistory(Rules(**rules))
        self.now, self.monotonic = NOW, 1000.0
        self.discarded: dict[str, int] = {}
        self.asked: int | None = None
        self.facts = {PID: Fact(start=777, name="train")}

    def wait(self, seconds: float = STEP) -> "Watch":
        self.now += seconds
        self.monotonic += seconds
        return self

    def judge(self, device: Device, found: list[Sample] | None, *, supported: bool = True) -> Judged:
        self.asked = self.history.since(device, self.facts, self.now, self.monotonic)
        samples = {} if self.asked is None else {device.uuid: Samples(found, supported)}
        (judged,), self.discarded = self.history.judge([device], samples, self.facts, self.now, self.monotonic)
        return judged

    def poll(self, sm: int | None, *, memory: int | None = GIB, load: int | None = 0) -> Process:
        """One process that uses so much; None: the call fails. Then the time to the next poll passes."""
        found = None if sm is None else [Sample(PID, micros(self.now) - 1, sm)] if sm else []
        process = only(self.judge(device(Holder(PID, memory, is_compute=True), load=load), found))
        self.wait()
        return process


def device(*holders: Holder, load: int | None = 0, uuid: str = GPU, **said: Any) -> Device:
    return Device(index=0, uuid=uuid, utilization=load, holders=list(holders), is_mig=said.pop("is_mig", False), **said)


def only(judged: Judged) -> Process:
    assert judged.processes is not None
    (process,) = judged.processes
    return process


def busy(*pids: int, at: float, sm: int = 50) -> list[Sample]:
    return [Sample(pid, micros(at), sm) for pid in pids]


# ---- streaks -------------------------------------------------------------------------------------------------------

# A poll: b busy, 1 one percent, 0 nothing, n no memory, ? the call fails. Idle seconds after each; None: absent.
STORIES: dict[str, list[float | None]] = {
    "0": [0],
    "00": [0, 5],
    "0000": [0, 5, 10, 15],
    "b0b00": [0, 0, 0, 0, 5],
    "00100": [0, 5, 0, 0, 5],
    "00b00": [0, 5, 0, 0, 5],
    "00n00": [0, 5, 0, 0, 5],
    "n": [0],
    "?": [None],
    "?0": [None, 0],
    "?00": [None, 0, 5],
    "0?0": [0, None, 10],
    "00?0": [0, 5, None, 15],
    "0?b0": [0, None, 0, 0],
    "0??????0": [0, *[None] * 6, 35],  # unknown for 30 seconds
    "0???????0": [0, *[None] * 7, 0],  # for longer
    "0???????00": [0, *[None] * 7, 0, 5],
}


@pytest.mark.accepts("exporter", 1, 2, 3, 4)
@pytest.mark.parametrize("story", STORIES)
def test_two_zeros_are_needed_every_time(story: str) -> None:
    watch = Watch()
    sm = {"b": 50, "1": 1, "0": 0, "n": 0, "?": None}
    polls = [watch.poll(sm[word], memory=0 if word == "n" else GIB) for word in story]
    assert [process.idle_seconds for process in polls] == STORIES[story]
    assert [process.is_unknown for process in polls] == [word == "?" for word in story]
    for process in polls:
        held = None if process.is_unknown else GIB if process.idle_seconds else 0
        assert process.idle_memory == held


@pytest.mark.parametrize(("polls", "wanted"), [(1, [0, 5, 10]), (2, [0, 5, 10]), (3, [0, 0, 10])])
def test_how_many_zeros_are_needed_can_be_set(polls: int, wanted: list[float]) -> None:
    watch = Watch(idle_polls=polls)
    judged = [watch.poll(0) for _ in range(3)]
    assert [process.idle_seconds for process in judged] == wanted
    assert [process.idle_memory for process in judged] == [GIB if place >= polls - 1 else 0 for place in range(3)]


@pytest.mark.parametrize(("threshold", "sm", "is_idle"), [(0, 1, False), (3, 3, True), (3, 4, False), (100, 100, True)])
def test_up_to_the_threshold_is_nothing(threshold: float, sm: int, is_idle: bool) -> None:
    watch = Watch(threshold=threshold)
    watch.poll(sm)
    process = watch.poll(sm)
    assert (process.sm, process.idle_seconds) == (sm, 5 if is_idle else 0)
    assert (process.last_active is None) == is_idle


def test_polls_faster_than_the_driver_samples_do_not_read_silence_between_two_samples() -> None:
    """A driver that takes a sample a second, asked five times a second."""
    watch = Watch(poll_interval=0.2)
    holder = device(Holder(PID, GIB, is_compute=True))
    for turn in range(20):
        process = only(watch.judge(holder, busy(PID, at=watch.now - 0.1) if turn % 5 == 0 else []))
        assert process.idle_seconds == (0 if turn % 5 == 0 else None)
        watch.wait(0.2)
    silent = [only(watch.wait(0.2).judge(holder, [])).idle_seconds for _ in range(3)]
    assert silent == [0, pytest.approx(0.2), pytest.approx(0.4)]


def test_polls_further_apart_than_state_is_kept_still_make_a_streak() -> None:
    watch = Watch(poll_interval=60.0, stale_after=30.0)
    assert watch.poll(0).idle_seconds == 0
    watch.wait(55)
    assert watch.poll(0).idle_seconds == 60


@pytest.mark.accepts("exporter", 7)
@pytest.mark.parametrize(("memory", "idle_memory"), [(None, None), (GIB, GIB)], ids=["not-available", "known"])
def test_memory_that_is_not_available_is_not_a_number_but_the_process_is_idle(
    memory: int | None, idle_memory: int | None
) -> None:
    watch = Watch()
    other = Holder(43, 3 * GIB, is_compute=True)
    for _ in range(2):
        judged = watch.wait().judge(device(Holder(PID, memory, is_compute=True), other), [])
    assert judged.processes is not None
    assert (
        judged.processes[0].memory, judged.processes[0].idle_memory, judged.processes[0].idle_seconds
    ) == (memory, idle_memory, 5)
    assert judged.idle_memory == 3 * GIB + (memory or 0)


# ---- who a process is ----------------------------------------------------------------------------------------------


@pytest.mark.accepts("exporter", 9)
@pytest.mark.parametrize("gap", [0, 2], ids=["at-once", "after-two-polls"])
@pytest.mark.parametrize(
    ("before", "after", "idle"), [(777, 777, True), (777, 778, False), (777, 0, False), (0, 0, False)]
)
def test_a_reused_pid_does_not_inherit_idle_time(gap: int, before: int, after: int, idle: bool) -> None:
    watch = Watch()
    watch.facts = {PID: Fact(before)}
    watch.poll(0)
    watch.poll(0)
    for _ in range(gap):
        watch.judge(device(), None)
        watch.wait()
    watch.facts = {PID: Fact(after)}
    inherits = idle or (before == after and gap == 0)  # nothing told them apart: it never left the list
    assert bool(watch.poll(0).idle_seconds) == inherits


@pytest.mark.accepts("exporter", 18)
def test_a_vanished_process_ends_at_once_and_is_forgotten_after_a_while() -> None:
    watch = Watch()
    watch.poll(0)
    watch.poll(0)
    kept = []
    for _ in range(8):
        assert watch.judge(device(), None).processes == []
        kept.append(len(watch.history.export(watch.monotonic)))
        watch.wait()
    assert kept == [1, 1, 1, 1, 1, 1, 1, 0]  # missing for 30 seconds, then for longer


def test_a_list_that_fails_says_nothing_and_forgets_nobody() -> None:
    watch = Watch()
    watch.poll(0)
    blind = Device(index=0, uuid=GPU, holders=None)
    judged = watch.judge(blind, None)
    assert (judged.processes, judged.idle_memory, watch.asked) == (None, None, None)
    watch.wait()
    assert watch.poll(0).idle_seconds == 10


@pytest.mark.accepts("exporter", 13)
@pytest.mark.parametrize("how", ["lost", "vanished"])
def test_what_is_known_of_a_device_goes_with_it(how: str) -> None:
    watch = Watch()
    watch.poll(0)
    watch.poll(0)
    gone = [Device(index=0, uuid=GPU, is_lost=True)] if how == "lost" else []
    assert watch.history.judge(gone, {}, {}, watch.now, watch.monotonic) == ([], {})
    assert watch.history.export(watch.monotonic) == []
    watch.wait()
    assert [watch.poll(0).idle_seconds for _ in range(2)] == [0, 5]


def test_state_follows_the_uuid_when_the_index_changes() -> None:
    watch = Watch()
    watch.poll(0)
    moved = device(Holder(PID, GIB, is_compute=True))
    moved.index = 3
    assert only(watch.judge(moved, [])).idle_seconds == 5


def test_devices_without_a_uuid_are_never_told_apart_and_never_idle() -> None:
    watch = Watch()
    nameless = [device(Holder(PID, GIB, is_compute=True), uuid="") for _ in range(2)]
    for _ in range(3):
        judged, _ = watch.history.judge(nameless, {"": Samples([])}, watch.facts, watch.now, watch.monotonic)
        watch.wait()
        assert [only(each).idle_seconds for each in judged] == [None, None]


# ---- samples -------------------------------------------------------------------------------------------------------


@pytest.mark.accepts("exporter", 5)
def test_an_empty_answer_is_a_good_zero_for_every_listed_process() -> None:
    watch = Watch()
    both = device(Holder(PID, GIB, is_compute=True), Holder(43, GIB, is_compute=True))
    for _ in range(2):
        judged = watch.judge(both, [])
        watch.wait()
    assert judged.processes is not None
    assert [
        (process.sm, process.idle_seconds, process.is_unknown) for process in judged.processes
    ] == [(0, 5, False)] * 2
    assert (judged.idle_memory, judged.is_supported) == (2 * GIB, True)


@pytest.mark.accepts("exporter", 8)
@pytest.mark.parametrize(("bad", "reason"), [
    (Sample(PID, micros(NOW - 1), 4_000_000_000), "utilization"),
    (Sample(PID, micros(NOW - 1), 101), "utilization"),
    (Sample(PID, 0, 3), "stamp"),
    (Sample(PID, 0, 0), "stamp"),
    (Sample(PID, micros(NOW + 10.1), 0), "stamp"),
], ids=["huge", "above-100", "stamp-0-busy", "stamp-0-silent", "future"])
@pytest.mark.parametrize("beside", [None, 0, 7], ids=["alone", "beside-zero", "beside-busy"])
def test_garbage_is_thrown_away_and_counted(bad: Sample, reason: str, beside: int | None) -> None:
    watch = Watch()
    found = [bad] if beside is None else [bad, Sample(PID, micros(NOW - 2), beside)]
    process = only(watch.judge(device(Holder(PID, GIB, is_compute=True)), found))
    assert (process.sm, process.is_unknown) == (beside, beside is None)
    assert process.idle_seconds == (None if beside is None else 0)
    assert watch.discarded == {reason: 1}


def test_garbage_is_counted_once_and_not_again_at_the_next_poll() -> None:
    watch = Watch()
    bad = Sample(PID, micros(NOW - 1), 4_000_000_000)
    held = device(Holder(PID, GIB, is_compute=True))
    watch.judge(held, [bad])
    assert watch.discarded == {"utilization": 1}
    watch.wait()
    assert only(watch.judge(held, [bad])).is_unknown is False
    assert watch.discarded == {}


def test_a_stamp_up_to_ten_seconds_ahead_is_believed() -> None:
    watch = Watch()
    process = only(watch.judge(device(Holder(PID, GIB, is_compute=True)), busy(PID, at=NOW + 9.9)))
    assert (process.sm, process.last_active) == (50, NOW)


@pytest.mark.accepts("exporter", 10)
def test_each_process_has_its_own_stamp() -> None:
    watch = Watch()
    both = device(Holder(PID, GIB, is_compute=True), Holder(43, GIB, is_compute=True))
    watch.facts[43] = Fact(start=778)
    watch.judge(both, [*busy(PID, at=NOW), *busy(43, at=NOW - 3)])
    watch.wait()
    judged = watch.judge(both, [*busy(PID, at=NOW + 1, sm=20), *busy(43, at=NOW - 2, sm=30), *busy(PID, at=NOW, sm=99)])
    assert watch.asked == micros(NOW - 3)
    assert judged.processes is not None
    assert [process.sm for process in judged.processes] == [20, 30]


@pytest.mark.accepts("exporter", 11)
@pytest.mark.parametrize(("started_at", "since"), [
    (None, NOW - STEP), (NOW - 3600, NOW - STEP), (NOW - 2, NOW - 2), (NOW + 60, NOW),
], ids=["unknown", "old", "young", "ahead-of-the-clock"])
def test_what_ran_before_a_process_was_first_seen_does_not_count(started_at: float | None, since: float) -> None:
    watch = Watch()
    watch.facts = {PID: Fact(777, "train", started_at)}
    old = [*busy(PID, at=since - 1), *busy(PID, at=since - 3600), *busy(PID, at=since)]
    process = only(watch.judge(device(Holder(PID, GIB, is_compute=True)), old))
    assert (watch.asked, process.sm, process.last_active) == (micros(since), 0, None)


def test_samples_of_who_is_not_listed_are_ignored() -> None:
    watch = Watch()
    process = only(
        watch.judge(device(Holder(PID, GIB, is_compute=True)), [*busy(99, at=NOW), Sample(99, 0, 101), Sample(0, 0, 0)])
    )
    assert (process.sm, watch.discarded) == (0, {})


def test_the_highest_of_several_samples_counts() -> None:
    watch = Watch()
    found = [*busy(PID, at=NOW - 3, sm=10), *busy(PID, at=NOW - 1, sm=0), *busy(PID, at=NOW - 2, sm=60)]
    process = only(watch.judge(device(Holder(PID, GIB, is_compute=True)), found))
    assert (process.sm, process.last_active) == (60, NOW - 2)


@pytest.mark.parametrize("engine", ["memory", "encoder", "decoder", "jpeg", "ofa"])
@pytest.mark.parametrize(
    ("percent", "is_active"), [(1, True), (0, False), (4_000_000_000, False)], ids=["works", "silent", "garbage"]
)
def test_any_engine_counts_as_activity_but_only_sm_ends_idleness(engine: str, percent: int, is_active: bool) -> None:
    watch = Watch()
    watch.poll(0)
    sample = Sample(PID, micros(watch.now - 1), 0, **{engine: percent})
    process = only(watch.judge(device(Holder(PID, GIB, is_compute=True)), [sample]))
    assert process.idle_seconds == 5
    assert process.last_active == (watch.now - 1 if is_active else None)


def test_who_is_silent_for_long_does_not_make_the_driver_tell_all_it_has() -> None:
    watch = Watch()
    for _ in range(20):
        watch.poll(0)
    watch.poll(0)
    assert watch.asked == micros(watch.now - 2 * STEP - processes.LATEST_ARRIVAL)


def test_after_a_failed_call_samples_are_asked_for_from_where_the_last_good_one_ended() -> None:
    watch = Watch()
    watch.poll(50)
    used_up = micros(NOW) - 1
    for _ in range(6):
        watch.poll(None)
        assert watch.asked == used_up


@pytest.mark.parametrize("step", [-3600.0, -20.0, 3600.0])
def test_a_clock_that_is_set_does_not_turn_work_into_silence(step: float) -> None:
    watch = Watch()
    for _ in range(3):
        watch.poll(50)
    watch.now += step
    for _ in range(6):
        assert watch.poll(50).sm == 50


# ---- MIG, MPS, hidden activity, graphics ---------------------------------------------------------------------------


@pytest.mark.accepts("exporter", 6)
def test_on_mig_memory_is_known_and_nothing_is_idle() -> None:
    watch = Watch()
    held = device(Holder(PID, GIB, is_compute=True, instances=((1, 0),)), is_mig=True)
    for _ in range(5):
        judged = watch.judge(held, [])
        process = only(judged)
        assert (process.memory, process.idle_seconds, process.idle_memory, process.sm) == (GIB, None, None, None)
        assert (process.is_unknown, process.instances) == (True, ((1, 0),))
        assert (judged.is_supported, judged.idle_memory, watch.asked) == (False, None, None)
        watch.wait()


def test_what_may_be_mig_is_not_idle() -> None:
    watch = Watch()
    for _ in range(3):
        judged = watch.wait().judge(device(Holder(PID, GIB, is_compute=True), is_mig=None), [])
        assert (only(judged).is_unknown, judged.is_supported) == (True, None)


@pytest.mark.parametrize(("found", "supported", "said"), [([], True, True), (None, True, None), (None, False, False)])
def test_support_is_what_the_driver_showed(found: list[Sample] | None, supported: bool, said: bool | None) -> None:
    watch = Watch()
    judged = watch.judge(device(Holder(PID, GIB, is_compute=True)), found, supported=supported)
    assert judged.is_supported is said
    assert only(judged).is_unknown is (found is None)
    assert watch.wait().judge(device(), None).is_supported is said  # nobody to ask about: as it was


def test_a_device_without_processes_holds_no_idle_memory() -> None:
    judged = Watch().judge(device(), None)
    assert (judged.processes, judged.idle_memory, judged.is_supported) == ([], 0, None)


@pytest.mark.accepts("exporter", 12)
@pytest.mark.parametrize(("load", "is_unknown"), [(0, False), (5, False), (6, True), (90, True), (None, True)])
@pytest.mark.parametrize("has_list", [True, False], ids=["in-the-mps-list", "only-the-server-shows"])
def test_the_zero_of_an_mps_client_counts_only_on_a_quiet_device(
    load: int | None, is_unknown: bool, has_list: bool
) -> None:
    watch = Watch()
    watch.facts |= {50: Fact(1, "nvidia-cuda-mps"), 51: Fact(2, "other")}
    clients = [Holder(PID, GIB, is_compute=True, is_mps=has_list), Holder(51, GIB, is_compute=True, is_mps=has_list)]
    held = device(*clients, Holder(50, 30, is_compute=True), load=load)
    for _ in range(2):  # another client works, so the activity is not hidden
        judged = watch.judge(held, busy(51, at=watch.now - 1))
        watch.wait()
    assert judged.processes is not None
    client, other, server = judged.processes
    assert (client.is_unknown, client.idle_seconds) == (is_unknown, None if is_unknown else 5)
    assert client.type is (Type.mps_client if has_list else Type.compute)
    assert (other.is_unknown, other.idle_seconds, other.sm) == (False, 0, 50)
    assert (server.type, server.in_seed, server.idle_seconds) == (Type.mps_server, False, 0)


@pytest.mark.parametrize("name", ["nvidia-cuda-mps-server", "nvidia-cuda-mps"], ids=["whole", "as-the-kernel-cuts-it"])
def test_the_mps_server_is_never_idle_and_not_in_the_seeds_series(name: str) -> None:
    watch = Watch()
    watch.facts = {PID: Fact(777, name)}
    for _ in range(4):
        process = watch.poll(0)
        assert (
            process.type, process.in_seed, process.idle_seconds, process.idle_memory
        ) == (Type.mps_server, False, 0, 0)


@pytest.mark.parametrize(("load", "sms", "threshold", "are_unknown"), [
    (6, (0, 0), 0, True),
    (5, (0, 0), 0, False),
    (90, (0, 80), 0, False),
    (90, (0, 1), 0, False),
    (None, (0, 0), 0, False),
    (90, (0, 10), 10, True),  # ten percent do not account for ninety
    (12, (0, 10), 10, False),
], ids=["hidden", "noise", "seen", "seen-a-little", "load-unknown", "hidden-below-threshold", "accounted-for"])
def test_activity_that_nobody_shows_makes_all_unknown(
    load: int | None, sms: Sequence[int], threshold: float, are_unknown: bool
) -> None:
    watch = Watch(threshold=threshold)
    watch.facts[43] = Fact(778)
    held = device(Holder(PID, GIB, is_compute=True), Holder(43, GIB, is_compute=True), load=load)
    for _ in range(2):
        found = [Sample(pid, micros(watch.now - 1), sm) for pid, sm in zip((PID, 43), sms, strict=True)]
        judged = watch.judge(held, found)
        watch.wait()
    assert judged.processes is not None
    assert judged.processes[0].idle_seconds == (None if are_unknown else 5)
    assert judged.processes[0].sm == (None if are_unknown else 0)
    assert (judged.idle_memory is None) == are_unknown


GRAPHICS = [
    (Holder(PID, GIB, is_graphics=True), Type.graphics),
    (Holder(PID, GIB, is_graphics=True, is_compute=True), Type.both),
    (Holder(PID, GIB, is_compute=True), Type.compute),
]


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize(("holder", "kind"), GRAPHICS, ids=["graphics", "both", "compute"])
def test_graphics_only_stays_out_of_the_seeds_series_unless_asked_for(
    holder: Holder, kind: Type, include: bool
) -> None:
    watch = Watch(include_graphics=include)
    for _ in range(2):
        judged = watch.judge(device(holder), [])
        watch.wait()
    process = only(judged)
    in_seed = include or kind is not Type.graphics
    assert (process.type, process.in_seed, process.idle_seconds) == (kind, in_seed, 5)
    assert judged.idle_memory == (GIB if in_seed else 0)


def test_in_the_scope_of_a_pod_hidden_processes_are_not_told_but_account_for_activity() -> None:
    watch = Watch(only_visible=True)
    watch.facts[99] = Fact(0)
    held = device(Holder(PID, GIB, is_compute=True), Holder(99, GIB, is_compute=True), load=80)
    for _ in range(2):
        judged = watch.judge(held, busy(99, at=watch.now - 1))
        watch.wait()
    process = only(judged)
    assert (process.pid, process.idle_seconds, judged.idle_memory) == (PID, 5, GIB)


# ---- over a restart ------------------------------------------------------------------------------------------------


def restarted(watch: Watch, away: float, **rules: Any) -> Watch:
    kept = watch.history.export(watch.monotonic)
    again = Watch(**rules)
    again.now, again.monotonic = watch.now + away, watch.monotonic + away
    again.history.restore(kept, again.monotonic)
    return again


@pytest.mark.accepts("exporter", 23)
@pytest.mark.parametrize(("first", "seconds"), [
    (0, [30, 35]), (None, [None, 0]), (50, [0, 0]),
], ids=["zero", "unknown", "busy"])
def test_idle_time_goes_on_if_the_first_observation_is_a_zero(first: int | None, seconds: list[float | None]) -> None:
    watch = Watch()
    watch.poll(0)
    watch.poll(0)
    again = restarted(watch, 20.0)
    assert [again.poll(sm).idle_seconds for sm in (first, 0)] == seconds


@pytest.mark.accepts("exporter", 23)
def test_another_process_with_the_same_pid_does_not_go_on_with_it() -> None:
    watch = Watch()
    watch.poll(0)
    watch.poll(0)
    again = restarted(watch, 20.0)
    again.facts = {PID: Fact(start=778)}
    assert again.poll(0).idle_seconds == 0


def test_work_while_nobody_looked_is_found_in_the_drivers_memory() -> None:
    watch = Watch()
    watch.poll(0)
    watch.poll(0)
    again = restarted(watch, 20.0)
    process = only(again.judge(device(Holder(PID, GIB, is_compute=True)), busy(PID, at=again.now - 18)))
    assert (process.sm, process.idle_seconds, process.last_active) == (50, 0, again.now - 18)


def test_when_it_last_worked_is_still_known() -> None:
    watch = Watch()
    last = watch.poll(50).last_active
    assert last is not None
    assert restarted(watch, 100.0).poll(0).last_active == last


def test_a_restart_does_not_stretch_how_long_one_may_be_unknown() -> None:
    watch = Watch()
    watch.poll(0)
    watch.poll(0)
    for _ in range(8):
        watch.poll(None)
    assert restarted(watch, 1.0).poll(0).idle_seconds == 0


def test_the_first_look_after_a_restart_may_not_come_too_late() -> None:
    watch = Watch()
    watch.poll(0)
    watch.poll(0)
    again = restarted(watch, 20.0).wait(60.0)
    assert again.poll(0).idle_seconds == 0


def test_restarts_in_a_row_without_a_look_do_not_add_up() -> None:
    watch = Watch()
    watch.poll(0)
    watch.poll(0)
    again = restarted(restarted(watch, 200.0), 200.0)
    assert again.poll(0).idle_seconds == 0


def test_a_clock_set_back_just_before_a_restart_does_not_turn_work_into_silence() -> None:
    watch = Watch()
    watch.poll(50)
    watch.now -= 3600.0
    again = restarted(watch, 20.0)
    assert [again.poll(50).sm for _ in range(3)] == [50, 50, 50]


def test_a_pid_that_was_another_process_in_between_starts_anew() -> None:
    watch = Watch()
    watch.poll(0)
    watch.facts = {PID: Fact(778)}
    watch.poll(None)
    watch.facts = {PID: Fact(777)}
    assert [watch.poll(0).idle_seconds for _ in range(2)] == [0, 5]


def test_without_a_start_time_nothing_is_kept() -> None:
    watch = Watch()
    watch.facts = {}
    watch.poll(0)
    assert watch.history.export(watch.monotonic) == []


def test_a_streak_from_the_future_is_none() -> None:
    watch = Watch()
    watch.history.restore([KeptProcess(
        uuid=GPU, pid=PID, start=777, streak=9, first_zero=watch.monotonic + 50, known=watch.monotonic + 60,
        last_active=None, stamp=0,
    )], watch.monotonic)
    assert [watch.poll(0).idle_seconds for _ in range(2)] == [0, 5]


# ---- whatever happens ----------------------------------------------------------------------------------------------

polls = st.fixed_dictionaries({
    "sm": st.sampled_from([None, 0, 0, 0, 1, 50, 101]),
    "memory": st.sampled_from([None, 0, GIB]),
    "load": st.sampled_from([None, 0, 5, 6, 90]),
    "is_mig": st.sampled_from([None, False, False, True]),
    "is_mps": st.booleans(),
    "list": st.sampled_from(["there", "there", "there", "failed", "missing"]),
    "start": st.sampled_from([777, 777, 777, 778, 0]),
    "after": st.sampled_from([0.1, 5.0, 5.0, 29.0, 31.0, 300.0]),
    "step": st.sampled_from([0.0, 0.0, 0.0, -3600.0, -7.0, 50.0]),
    "restart": st.booleans(),
})


@given(st.lists(polls, max_size=25), st.integers(1, 3))
def test_only_zeros_that_were_read_make_idle(story: list[dict[str, Any]], wanted: int) -> None:
    """Told again in plain words: how many good zeros since the process last did something, was another, or was gone."""
    watch, zeros, first = Watch(idle_polls=wanted), 0, 0.0
    owner = None
    for poll in story:
        watch.wait(poll["after"])
        watch.now += poll["step"]
        if poll["restart"]:
            watch = restarted(watch, 1.0, idle_polls=wanted)
        watch.facts = {PID: Fact(poll["start"])}
        holder = Holder(PID, poll["memory"], is_compute=True, is_mps=poll["is_mps"])
        held = None if poll["list"] == "failed" else [holder] if poll["list"] == "there" else []
        found = None if poll["sm"] is None else [Sample(PID, micros(watch.now) - 1, poll["sm"])] if poll["sm"] else []
        judged = watch.judge(
            Device(index=0, uuid=GPU, utilization=poll["load"], is_mig=poll["is_mig"], holders=held), found
        )
        if poll["list"] != "there":
            assert judged.processes == held
            continue
        process = only(judged)
        zeros = zeros if owner == poll["start"] else 0
        owner = poll["start"]
        is_zero = poll["sm"] == 0 and poll["memory"] != 0 and poll["is_mig"] is False and (poll["load"] or 0) <= 5
        if is_zero:
            zeros, first = zeros + 1, first if zeros else watch.monotonic
        elif not process.is_unknown:
            zeros = 0
        assert process.is_unknown == (process.idle_seconds is None)
        assert process.sm is None or 0 <= process.sm <= 100
        if process.idle_seconds:
            assert is_zero
            assert zeros >= wanted
            assert 0 < process.idle_seconds <= watch.monotonic - first
        if process.idle_memory:
            assert is_zero
            assert (zeros >= wanted, process.idle_memory) == (True, poll["memory"])


@given(st.lists(st.sampled_from([0, 0, 0, 50]), min_size=1, max_size=20), st.data())
def test_an_error_in_place_of_a_zero_never_makes_anything_more_idle(uses: list[int], data: st.DataObject) -> None:
    fails = data.draw(st.lists(st.booleans(), min_size=len(uses), max_size=len(uses)))
    good, bad = Watch(), Watch()
    for sm, has_failed in zip(uses, fails, strict=True):
        wanted, got = good.poll(sm), bad.poll(None if has_failed and sm == 0 else sm)
        assert (got.idle_seconds or 0) <= (wanted.idle_seconds or 0)
        assert (got.idle_memory or 0) <= (wanted.idle_memory or 0)
