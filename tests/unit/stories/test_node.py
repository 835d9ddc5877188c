"""One poll, from the driver's answers to the judgement: on the pretend driver library, and on a scripted driver."""

import pathlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from tests.fakes.nvml import fake
from tests.fakes.nvml.fake import GIB, NOT_AVAILABLE, Error, Instance, Process, Sample, State
from tests.fakes.proc import NOW, Proc

from fallow.clients import errors, proc
from fallow.clients.nvml import driver as nvml
from fallow.model import processes
from fallow.model.processes import Poll, Problem, Reading, Result, Samples
from fallow.settings.exporter import Options
from fallow.stories.node import NodeStory

STEP = 5.0
UTILIZATION = "nvmlDeviceGetProcessesUtilizationInfo"


class Node:
    """The node's story over a driver and a /proc, five seconds from one poll to the next."""

    def __init__(self, folder: pathlib.Path, driver: processes.Driver, **options: Any) -> None:
        self.proc = Proc(folder / "proc")
        self.table = proc.ProcessTable(str(self.proc.root))
        self.driver, self.options = driver, Options(**options)
        self.now, self.monotonic = NOW, 1000.0
        self.begin()

    def begin(self) -> None:
        nobody: Any = None  # neither pods nor a thread are needed to look
        clocks = (lambda: self.now), (lambda: self.monotonic)
        self.story = NodeStory(self.options, self.driver, self.table, nobody, nobody, *clocks)
        self.collector = self.story.collector

    @property
    def is_up(self) -> bool:
        return self.collector.trouble is None

    def state(self) -> list[processes.KeptProcess]:
        return self.story.processes.export(self.monotonic)

    def poll(self, seconds: float = STEP) -> Poll:
        poll = self.story.look(self.now, self.monotonic)
        self.now, self.monotonic = self.now + seconds, self.monotonic + seconds
        return poll


class FakeNode(Node):
    """With NVML beneath, and the pretend library beneath that."""

    def __init__(self, folder: pathlib.Path, **options: Any) -> None:
        self.fake = fake.Fake(folder)
        super().__init__(folder, nvml.Nvml(str(self.fake.library)), **options)

    def see(self, *devices: fake.Device, errors: Sequence[Error] = (), seconds: float = STEP) -> Poll:
        self.fake.put(State(devices, errors=errors))
        return self.poll(seconds)

    def work(self, pid: int, sm: int, ago: float = 1.0) -> Sample:
        return Sample(pid, sm, stamp=int((self.now - ago) * 1e6))

    def use(self, sm: int, **said: Any) -> processes.Process:
        """PID 42 on one GPU, using so much of it."""
        samples = [self.work(42, sm)] if sm else []
        return only(self.see(fake.Device(processes=[Process(42)], samples=samples, **said)))


@pytest.fixture
def node(tmp_path: pathlib.Path) -> Iterator[FakeNode]:
    made = FakeNode(tmp_path)
    made.proc.put(42)
    yield made
    made.collector.close()


def only(poll: Poll) -> processes.Process:
    (judged,) = poll.devices
    assert judged.processes is not None
    (process,) = judged.processes
    return process


# ---- on the pretend library ----------------------------------------------------------------------------------------


@pytest.mark.accepts("exporter", 1)
def test_held_memory_without_work_is_idle_from_the_second_poll_on(node: FakeNode) -> None:
    seen = [node.use(0) for _ in range(3)]
    assert [process.idle_seconds for process in seen] == [0, 5, 10]
    assert [process.idle_memory for process in seen] == [0, GIB, GIB]
    assert (seen[0].name, seen[0].start, seen[0].memory) == ("train", 777, GIB)


@pytest.mark.accepts("exporter", 2, 3)
def test_work_ends_idleness_and_two_zeros_are_needed_again(node: FakeNode) -> None:
    assert [node.use(sm).idle_seconds for sm in (50, 0, 50, 0, 0, 1, 0, 0)] == [0, 0, 0, 0, 5, 0, 0, 5]


@pytest.mark.accepts("exporter", 4)
def test_a_failed_call_for_utilisation_is_unknown_and_the_next_zero_goes_on(node: FakeNode) -> None:
    node.proc.put(43, 778)
    devices = [fake.Device(processes=[Process(42)]), fake.Device(processes=[Process(43)])]
    node.see(*devices)
    broken = node.see(*devices, errors=[Error(UTILIZATION, 999, device="0")])
    one, other = (judged.processes[0] for judged in broken.devices if judged.processes)
    assert (one.idle_seconds, one.idle_memory, one.sm, one.is_unknown) == (None, None, None, True)
    assert (other.idle_seconds, broken.devices[0].idle_memory) == (5, None)
    assert (broken.result, broken.problems) == (Result.partial, [Problem("0", UTILIZATION, "Unknown", 999)])
    after = node.see(*devices)
    assert [judged.processes[0].idle_seconds for judged in after.devices if judged.processes] == [10, 10]
    assert after.result is Result.ok


@pytest.mark.accepts("exporter", 5)
@pytest.mark.parametrize("code", [6, 0], ids=["not-found", "value-0"])
@pytest.mark.parametrize("call", [UTILIZATION, "nvmlDeviceGetProcessUtilization"], ids=["new-call", "old-call"])
def test_nothing_ran_is_a_good_zero_for_all(node: FakeNode, code: int, call: str) -> None:
    held = fake.Device(processes=[Process(42), Process(43)])
    failing = [Error(call, code)] if call == UTILIZATION else [Error(UTILIZATION, 3), Error(call, code)]
    for _ in range(2):
        poll = node.see(held, errors=failing)
    assert poll.devices[0].processes is not None
    assert [(process.sm, process.idle_seconds) for process in poll.devices[0].processes] == [(0, 5), (0, 5)]
    assert (poll.result, poll.devices[0].is_supported) == (Result.ok, True)


@pytest.mark.accepts("exporter", 6)
def test_a_mig_gpu_has_memory_and_nothing_idle(node: FakeNode) -> None:
    asked = node.fake.calls(UTILIZATION)
    mig = fake.Device(mig=1, instances=[Instance(1)], processes=[Process(42, 3 * GIB, gi=1, ci=0)])
    for _ in range(3):
        poll = node.see(mig)
        process = only(poll)
        assert (
            process.memory, process.idle_seconds, process.idle_memory, process.is_unknown
        ) == (3 * GIB, None, None, True)
        assert (poll.devices[0].is_supported, poll.devices[0].idle_memory) == (False, None)
    assert node.fake.calls(UTILIZATION) == asked


@pytest.mark.accepts("exporter", 7)
def test_memory_that_is_not_available_is_no_number_and_changes_no_sum(node: FakeNode) -> None:
    held = fake.Device(processes=[Process(42, NOT_AVAILABLE), Process(43, 2 * GIB)])
    node.see(held)
    (judged,) = node.see(held).devices
    assert judged.processes is not None
    assert {process.pid: process.memory for process in judged.processes} == {42: None, 43: 2 * GIB}
    assert {process.pid: process.idle_memory for process in judged.processes} == {42: None, 43: 2 * GIB}
    assert judged.idle_memory == 2 * GIB


@pytest.mark.accepts("exporter", 8)
def test_garbage_is_not_told_and_counted_and_makes_nothing_idle(node: FakeNode) -> None:
    for _ in range(3):
        node.fake.put(State([fake.Device(processes=[Process(42)], samples=[node.work(42, 4_000_000_000)])]))
        poll = node.poll()
        process = only(poll)
        assert (process.sm, process.idle_seconds, process.is_unknown) == (None, None, True)
        assert poll.discarded == {"utilization": 1}


@pytest.mark.accepts("exporter", 9)
def test_a_new_process_with_an_old_pid_starts_from_nothing(node: FakeNode) -> None:
    assert [node.use(0).idle_seconds for _ in range(2)] == [0, 5]
    node.proc.put(42, start=9_000_000, comm=b"other\n")
    assert [(seen := node.use(0)).idle_seconds, seen.name] == [0, "other"]
    assert node.use(0).idle_seconds == 5


@pytest.mark.accepts("exporter", 10)
def test_samples_three_seconds_apart_are_all_seen(node: FakeNode) -> None:
    node.proc.put(43, 778)
    both = [Process(42), Process(43)]
    for sm in (11, 12, 13):
        poll = node.see(
            fake.Device(processes=both, samples=[node.work(42, sm, ago=0.5), node.work(43, sm + 10, ago=3.5)])
        )
        assert poll.devices[0].processes is not None
        assert {process.pid: process.sm for process in poll.devices[0].processes} == {42: sm, 43: sm + 10}


@pytest.mark.accepts("exporter", 11)
@pytest.mark.parametrize("start", [777, 100 * 99_998, 0], ids=["old-process", "young-process", "not-visible"])
def test_what_is_in_the_drivers_buffer_at_the_start_makes_nobody_busy(node: FakeNode, start: int) -> None:
    if start:
        node.proc.put(42, start)  # the young one began 2 s ago, at 100 ticks a second
    else:
        node.proc.remove(42)
    ago = 3.0 if start == 100 * 99_998 else 6.0
    process = only(
        node.see(fake.Device(processes=[Process(42)], samples=[node.work(42, 90, ago), node.work(42, 90, 60.0)]))
    )
    assert (process.sm, process.last_active, process.is_unknown) == (0, None, False)


@pytest.mark.accepts("exporter", 12)
def test_an_mps_client_at_zero_on_a_busy_device_is_unknown(node: FakeNode) -> None:
    node.proc.put(50, 1, comm=b"nvidia-cuda-mps\n")
    held = [Process(42, lists="cm"), Process(50)]
    for _ in range(3):
        poll = node.see(fake.Device(processes=held, samples=[node.work(50, 80)], utilization=80))
        found = {process.pid: process for process in poll.devices[0].processes or ()}
        assert (found[42].type, found[42].is_unknown, found[42].idle_seconds) == ("mps_client", True, None)
        assert (found[50].type, found[50].in_seed, found[50].idle_seconds) == ("mps_server", False, 0)


@pytest.mark.accepts("exporter", 13)
def test_a_lost_gpu_is_gone_at_once_and_told_until_it_returns_or_an_hour_is_over(node: FakeNode) -> None:
    node.proc.put(43, 778)
    good = fake.Device(processes=[Process(43)])
    for _ in range(2):
        node.see(fake.Device(processes=[Process(42)]), good)
    lost = node.see(fake.Device(lost=True), good)
    assert [judged.device.index for judged in lost.devices] == [1]
    assert (lost.lost, lost.result) == ([(0, fake.uuid_of(0))], Result.partial)
    assert lost.devices[0].processes is not None
    assert lost.devices[0].processes[0].idle_seconds == 10
    back = node.see(fake.Device(processes=[Process(42)]), good)
    assert back.lost == []
    assert [judged.processes[0].idle_seconds for judged in back.devices if judged.processes] == [0, 15]
    node.see(fake.Device(lost=True), good, seconds=3599.0)
    assert node.see(fake.Device(lost=True), good, seconds=1.0).lost == [(0, fake.uuid_of(0))]
    assert node.see(fake.Device(lost=True), good).lost == []


@pytest.mark.accepts("exporter", 13)
def test_a_gpu_that_is_no_longer_there_is_lost_and_the_others_move_up(node: FakeNode) -> None:
    node.proc.put(43, 778)
    gone, stays = fake.Device(uuid="GPU-gone", processes=[Process(42)]), fake.Device(
        uuid="GPU-stays", processes=[Process(43)]
    )
    node.see(gone, stays)
    poll = node.see(stays)
    assert (poll.lost, only(poll).idle_seconds) == ([(0, "GPU-gone")], 5)
    assert poll.devices[0].device.index == 0


@pytest.mark.accepts("exporter", 14)
def test_without_a_count_there_are_no_devices_and_with_one_they_are_back(node: FakeNode) -> None:
    node.use(0)
    failed = node.see(fake.Device(), errors=[Error("nvmlDeviceGetCount", 999)])
    assert (failed.result, failed.devices, failed.lost, failed.driver_version) == (Result.error, [], [], "")
    assert failed.problems == [Problem("", "nvmlDeviceGetCount", "Unknown", 999)]
    assert not node.is_up
    assert node.use(0).idle_seconds == 10
    assert node.is_up


@pytest.mark.accepts("exporter", 15)
def test_a_driver_that_appears_later_is_found(node: FakeNode) -> None:
    node.fake.remove()
    absent = node.poll()
    assert (absent.result, absent.devices, node.is_up) == (Result.error, [], False)
    assert node.collector.trouble is not None
    assert node.collector.trouble.code == 9
    assert absent.problems == [Problem("", "nvmlInit", "DriverNotLoaded", 9)]
    assert node.use(0).idle_seconds == 0
    assert (node.is_up, node.collector.trouble) == (True, None)


@pytest.mark.accepts("exporter", 15)
def test_a_driver_reloaded_underneath_is_opened_anew(node: FakeNode) -> None:
    node.use(0)
    node.fake.remove()
    assert node.poll().result is Result.error
    assert node.use(0).idle_seconds == 10


@pytest.mark.accepts("exporter", 16)
def test_what_a_device_cannot_do_is_absent_told_once_and_no_failure(node: FakeNode) -> None:
    state = State([fake.Device(processes=[Process(42)])], errors=[Error("nvmlDeviceGetPowerUsage", 3)])
    node.fake.put(state)
    polls = [node.poll() for _ in range(3)]
    device = polls[2].devices[0].device
    assert (device.power_watts, device.temperature, device.memory_total, device.utilization) == (None, 41, 80 * GIB, 0)
    assert [poll.result for poll in polls] == [Result.ok] * 3
    assert [poll.problems for poll in polls] == [[Problem("0", "nvmlDeviceGetPowerUsage", "NotSupported", 3)], [], []]


def test_one_value_that_fails_makes_the_poll_partial_every_time(node: FakeNode) -> None:
    for _ in range(2):
        poll = node.see(fake.Device(), errors=[Error("nvmlDeviceGetTemperature", 999)])
        assert (
            poll.result, [problem.call for problem in poll.problems]
        ) == (Result.partial, ["nvmlDeviceGetTemperature"])
        assert (poll.devices[0].device.temperature, poll.devices[0].device.power_watts) == (None, 75.5)


@pytest.mark.accepts("exporter", 18)
def test_a_vanished_process_ends_at_the_next_poll_and_is_known_for_thirty_seconds(node: FakeNode) -> None:
    node.use(0)
    node.use(0)
    assert node.see(fake.Device()).devices[0].processes == []
    assert len(node.state()) == 1
    for _ in range(7):
        node.see(fake.Device())
    assert node.state() == []


# ---- on a driver that follows a script -----------------------------------------------------------------------------


class Script:
    """A driver that says what the test says. `down`: why it does not work, by call."""

    def __init__(self, *devices: processes.Device) -> None:
        self.devices = list(devices)
        self.problems: list[Problem] = []
        self.samples: dict[str, Samples] = {}
        self.down: dict[str, errors.DriverDown] = {}
        self.opened: list[float] = []
        self.asked: list[tuple[str, int]] = []
        self.is_open = False
        self.clock = lambda: 0.0
        self.meanwhile: Callable[[], object] = list  # what happens while it is asked for samples

    def _fail(self, call: str) -> None:
        if call in self.down:
            raise self.down[call]

    def open(self) -> None:
        assert not self.is_open
        self.opened.append(self.clock())
        self._fail("open")
        self.is_open = True

    def close(self) -> None:
        assert self.is_open
        self.is_open = False

    def read(self) -> Reading:
        assert self.is_open
        self._fail("read")
        return Reading("550.54", self.devices, list(self.problems))

    def read_samples(self, uuid: str, since: int) -> Samples:
        assert self.is_open
        self._fail("read_samples")
        self.asked.append((uuid, since))
        self.meanwhile()
        return self.samples.get(uuid, Samples([]))


def gpu(index: int, *pids: int, memory: int | None = GIB, **said: Any) -> processes.Device:
    holders = [processes.Holder(pid, memory, is_compute=True) for pid in pids]
    return processes.Device(index=index, uuid=f"GPU-{index}", is_mig=False, utilization=0, holders=holders, **said)


def scripted(folder: pathlib.Path, *devices: processes.Device, **options: Any) -> tuple[Script, Node]:
    script = Script(*devices)
    node = Node(folder, script, **options)
    script.clock = lambda: node.monotonic
    return script, node


@pytest.mark.accepts("exporter", 15)
def test_a_driver_that_does_not_start_is_tried_after_1_2_4_up_to_60_seconds(tmp_path: pathlib.Path) -> None:
    script, node = scripted(tmp_path, gpu(0))
    script.down["open"] = errors.DriverDown("no library")
    began = node.monotonic
    polls = [node.poll(1.0) for _ in range(250)]
    assert [at - began for at in script.opened] == [0, 1, 3, 7, 15, 31, 63, 123, 183, 243]
    assert {(poll.result, len(poll.devices)) for poll in polls} == {(Result.error, 0)}
    assert sum(len(poll.problems) for poll in polls) == len(script.opened)
    assert polls[0].problems[0].error == "LibraryNotFound"
    assert node.collector.retry_at == began + 303
    script.down.clear()
    node.monotonic = node.collector.retry_at
    assert (node.poll().result, node.collector.retry_at) == (Result.ok, None)


def test_after_it_worked_a_driver_is_tried_from_one_second_on_again(tmp_path: pathlib.Path) -> None:
    script, node = scripted(tmp_path, gpu(0))
    script.down["open"] = errors.DriverDown("not loaded", 9)
    for _ in range(40):
        node.poll(1.0)
    script.down.clear()
    node.monotonic = node.collector.retry_at or 0.0
    assert node.poll(1.0).result is Result.ok
    script.down["read"] = script.down["open"] = errors.DriverDown("mismatch", 18)
    script.opened.clear()
    began = node.monotonic
    polls = [node.poll(1.0) for _ in range(8)]
    assert [at - began for at in script.opened] == [1, 2, 4]
    assert polls[1].problems == [Problem("", "nvmlInit", "LibRmVersionMismatch", 18)]
    assert node.collector.trouble is not None
    assert node.collector.trouble.code == 18


@pytest.mark.parametrize("call", ["read", "read_samples"])
def test_a_driver_that_goes_in_the_middle_of_a_poll_leaves_nothing_of_it(tmp_path: pathlib.Path, call: str) -> None:
    script, node = scripted(tmp_path, gpu(0, 42), gpu(1, 43))
    assert node.poll().result is Result.ok
    script.down[call] = errors.DriverDown("gone", 9)
    poll = node.poll()
    assert (poll.result, poll.devices, poll.lost, script.is_open) == (Result.error, [], [], False)


def test_no_gpu_is_no_trouble(tmp_path: pathlib.Path) -> None:
    _, node = scripted(tmp_path)
    poll = node.poll()
    assert (poll.result, poll.devices, poll.driver_version, node.is_up) == (Result.ok, [], "550.54", True)


def test_only_devices_whose_processes_can_be_told_apart_are_asked_for_samples(tmp_path: pathlib.Path) -> None:
    mig = processes.Device(index=2, uuid="GPU-2", is_mig=True, holders=[processes.Holder(44, GIB)])
    blind = processes.Device(index=3, uuid="GPU-3", is_mig=False, holders=None)
    script, node = scripted(tmp_path, gpu(0, 42), gpu(1), mig, blind)
    node.poll()
    assert script.asked == [("GPU-0", int((NOW - STEP) * 1e6))]


def test_what_is_unsupported_is_told_again_after_the_driver_was_opened_anew(tmp_path: pathlib.Path) -> None:
    script, node = scripted(tmp_path, gpu(0))
    script.problems = [Problem("0", "nvmlDeviceGetPowerUsage", "NotSupported", 3)]
    assert [len(node.poll().problems) for _ in range(2)] == [1, 0]
    script.down["read"] = errors.DriverDown("gone", 9)
    node.poll()
    script.down.clear()
    assert [len(node.poll().problems) for _ in range(2)] == [1, 0]


def test_in_the_scope_of_a_pod_only_visible_processes_are_told(tmp_path: pathlib.Path) -> None:
    _, node = scripted(tmp_path, gpu(0, 42, 43), scope="pod")
    node.proc.put(42)
    assert only(node.poll()).pid == 42


def test_what_is_remembered_can_be_taken_while_the_driver_hangs(tmp_path: pathlib.Path) -> None:
    script, node = scripted(tmp_path, gpu(0, 42))
    node.proc.put(42)
    node.poll()
    taken: list[Any] = []
    script.meanwhile = lambda: taken.extend(node.state())  # as the thread that saves would
    node.poll()
    assert [(kept.pid, kept.start, kept.streak) for kept in taken] == [(42, 777, 1)]


@pytest.mark.accepts("exporter", 23)
@pytest.mark.parametrize(("start", "seconds"), [(777, 30.0), (778, 0.0)], ids=["same-process", "another"])
def test_idle_time_goes_on_in_the_next_story(tmp_path: pathlib.Path, start: int, seconds: float) -> None:
    _, node = scripted(tmp_path, gpu(0, 42))
    node.proc.put(42)
    node.poll()
    node.poll()
    kept = node.state()
    node.collector.close()
    node.begin()
    node.now, node.monotonic = node.now + 20, node.monotonic + 20
    node.story.processes.restore(kept, node.monotonic)
    node.proc.put(42, start)
    assert only(node.poll()).idle_seconds == seconds


@pytest.mark.accepts("exporter", 24)
def test_ten_thousand_processes_are_all_told_and_quickly(tmp_path: pathlib.Path) -> None:
    pids = range(1000, 11_000)
    _, node = scripted(tmp_path, gpu(0, *pids))
    node.poll()
    began = time.process_time()
    (judged,) = node.poll().devices
    took = time.process_time() - began
    assert judged.processes is not None
    assert (len(judged.processes), judged.idle_memory) == (10_000, 10_000 * GIB)
    assert took < 1.0  # a fifth of the interval; it takes a tenth of a second


def test_memory_of_processes_that_ended_is_given_back(tmp_path: pathlib.Path) -> None:
    script, node = scripted(tmp_path)
    for first in range(0, 1000, 100):
        script.devices = [gpu(0, *range(first + 1, first + 101))]
        for pid in range(first + 1, first + 101):
            node.proc.put(pid, start=pid)
        node.poll(20.0)
    assert len(node.state()) <= 300
    assert len(node.table._names) == 100
