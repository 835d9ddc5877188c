"""The pretend driver: twice the same, consistent in itself, and with all lives that the exporter must tell apart."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fallow.clients import errors
from fallow.model import processes
from fallow.sim import driver as pretend

BEGIN = 1_800_000_000.0
TRAINER, NOTEBOOK, SHARED, SLICED, MPS, UNSTEADY, JOB = range(7)


class Clock:
    def __init__(self) -> None:
        self.now = BEGIN

    def __call__(self) -> float:
        return self.now


def open_driver(gpus: int = 7, seed: int = 0) -> tuple[pretend.PretendDriver, Clock]:
    clock = Clock()
    driver = pretend.PretendDriver(gpus, seed, clock=clock)
    driver.open()
    return driver, clock


def poll(driver: pretend.PretendDriver, clock: Clock) -> tuple[processes.Reading, dict[str, processes.Samples]]:
    reading = driver.read()
    since = int((clock.now - 5) * 1e6)
    return reading, {device.uuid: driver.read_samples(device.uuid, since) for device in reading.devices}


def watch(seconds: int, gpus: int = 7, seed: int = 0) -> list[tuple[processes.Reading, dict[str, processes.Samples]]]:
    driver, clock = open_driver(gpus, seed)
    seen = []
    for _ in range(0, seconds, 5):
        seen.append(poll(driver, clock))
        clock.now += 5
    return seen


def test_the_same_seed_tells_the_same_and_another_something_else() -> None:
    assert watch(600, seed=3) == watch(600, seed=3)
    assert watch(600, seed=3) != watch(600, seed=4)


def test_it_is_a_driver_and_a_table_by_the_protocols() -> None:
    driver, clock = open_driver()
    table = pretend.PretendTable(driver)

    def use(of: processes.Driver, with_: processes.Table) -> tuple[int, str]:
        return len(of.read().devices), with_.boot_id()

    assert use(driver, table)[0] == 7
    driver.close()
    with pytest.raises(errors.DriverDown, match="not open"):
        driver.read()
    assert pretend.PretendDriver(0, clock=clock).uuid_of(0).startswith("GPU-")


@given(st.integers(0, 40), st.integers(0, 10**6), st.floats(0, 1e6))
def test_at_any_moment_a_device_is_as_busy_as_its_processes_and_fits_its_memory(
    gpus: int, seed: int, later: float
) -> None:
    driver, clock = open_driver(gpus, seed)
    clock.now += later
    reading, samples = poll(driver, clock)
    table = pretend.PretendTable(driver)
    pids = [holder.pid for device in reading.devices for holder in device.holders or ()]
    assert len(pids) == len(set(pids))
    for device in reading.devices:
        assert device.memory_used is not None
        assert device.memory_total is not None
        assert device.memory_used <= device.memory_total
        for holder in device.holders or ():
            start = table.start_of(holder.pid)
            assert start > 0
            assert (table.started_at(start) or clock.now) <= clock.now
        found = samples[device.uuid].found
        if found is not None and device.holders is not None:
            newest = max((each.stamp for each in found), default=0)
            load = sum(each.sm for each in found if each.stamp == newest) if newest == int(clock.now * 1e6) else 0
            assert device.utilization == min(100, load)
            assert all(
                0 < each.sm <= 100 and int((clock.now - 5) * 1e6) < each.stamp <= clock.now * 1e6 for each in found
            )


def busy_share(index: int, seen: list[tuple[processes.Reading, dict[str, processes.Samples]]]) -> float:
    uuid = seen[0][0].devices[index].uuid
    polls = [samples[uuid].found for _, samples in seen]
    return sum(1 for found in polls if found) / sum(1 for found in polls if found is not None)


def test_the_trainer_works_the_notebook_hardly_does_and_the_service_comes_in_bursts() -> None:
    seen = watch(3600, gpus=3)
    assert busy_share(TRAINER, seen) > 0.95
    assert 0.01 < busy_share(NOTEBOOK, seen) < 0.06
    assert 0.3 < busy_share(SHARED, seen) < 0.9


def test_on_a_shared_device_one_works_and_its_neighbour_never_does() -> None:
    seen = watch(600)
    device = seen[0][0].devices[SHARED]
    assert len(device.holders or ()) == 2
    workers = {sample.pid for _, samples in seen for sample in samples[device.uuid].found or ()}
    assert len(workers) == 1


def test_a_sliced_device_measures_instances_and_not_processes() -> None:
    reading, samples = watch(5)[0]
    device = reading.devices[SLICED]
    assert (
        device.is_mig, device.utilization, samples[device.uuid]
    ) == (True, None, processes.Samples(None, is_supported=False))
    assert [(one.gi, one.profile) for one in device.instances] == [(1, "3g.40gb"), (5, "1g.10gb"), (6, "1g.10gb")]
    assert [holder.instances for holder in device.holders or ()] == [((1, 0),), ((5, 0),)]
    assert device.instances[2].utilization == 0.0
    assert processes.Problem(str(SLICED), "nvmlDeviceGetUtilizationRates", "NotSupported", 3) in reading.problems


def test_mps_has_a_server_and_clients_and_a_display_is_no_computing() -> None:
    driver, _ = open_driver()
    devices, table = driver.read().devices, pretend.PretendTable(driver)
    server, *clients = devices[MPS].holders or ()
    assert table.name_of(server.pid, table.start_of(server.pid)) == "nvidia-cuda-mps"
    assert [client.is_mps for client in clients] == [True, True]
    display = (devices[UNSTEADY].holders or ())[1]
    assert (display.is_compute, display.is_graphics) == (False, True)


def test_the_unsteady_device_loses_each_of_its_calls_now_and_then_and_says_so() -> None:
    lost: dict[str, int] = {}
    seen = watch(3600)
    for reading, samples in seen:
        device = reading.devices[UNSTEADY]
        problems = (*reading.problems, *samples[device.uuid].problems)
        failed = {each.call for each in problems if each.gpu == str(UNSTEADY)}
        gone = {
            "nvmlDeviceGetPowerUsage": device.power_watts is None,
            "nvmlDeviceGetComputeRunningProcesses": device.holders is None,
            "nvmlDeviceGetProcessesUtilizationInfo": samples[device.uuid].found is None,
        }
        assert failed == {call for call, is_gone in gone.items() if is_gone}
        for call in failed:
            lost[call] = lost.get(call, 0) + 1
    assert len(lost) == 3
    assert sum(lost.values()) < len(seen) / 3


def test_a_job_ends_and_the_next_is_another_process_of_the_same_pod() -> None:
    driver, clock = open_driver()
    table = pretend.PretendTable(driver)

    def job() -> tuple[int, int]:
        pid = (driver.read().devices[JOB].holders or ())[0].pid
        return pid, table.start_of(pid)

    before = job()
    first, name = table.cgroup_of(*before), table.name_of(*before)
    clock.now += 12 * 60
    after = job()
    assert after[0] != before[0]
    assert after[1] == before[1] + 12 * 60 * 100
    assert (table.start_of(before[0]), table.name_of(*before), table.cgroup_of(*before)) == (0, "unknown", "")
    assert table.name_of(*after) == name == "torchrun"
    pod, container = first.rpartition("/")[0], first.rpartition("/")[2]
    assert table.cgroup_of(*after).rpartition("/")[0] == pod
    assert table.cgroup_of(*after).rpartition("/")[2] != container


def test_what_runs_outside_pods_has_a_path_outside_pods() -> None:
    driver, _ = open_driver()
    table = pretend.PretendTable(driver)
    holders = [holder for device in driver.read().devices for holder in device.holders or ()]
    outside = {table.name_of(pid, start) for pid, start in (
        (holder.pid, table.start_of(holder.pid)) for holder in holders
    )
               if "kubepods" not in table.cgroup_of(pid, start)}
    assert outside == {"nvidia-cuda-mps", "Xorg"}


def test_energy_only_grows_also_when_the_clock_goes_back() -> None:
    driver, clock = open_driver(1)
    joules = []
    for step in (0, 5, -3, 5, 5):
        clock.now += step
        joules.append(driver.read().devices[0].energy_joules or 0.0)
    assert joules == sorted(joules)
    assert joules[-1] > joules[0]


def test_nobody_has_a_pid_that_was_never_given() -> None:
    driver, _ = open_driver(2)
    table = pretend.PretendTable(driver)
    assert [table.start_of(pid) for pid in (0, 1, 32, 33 + 15, 4_000_000)] == [0, 0, 0, 0, 0]
    assert pretend.PretendTable(open_driver(0)[0]).start_of(17) == 0
    found = driver.read_samples("GPU-other", 1)
    assert (found.found, [each.code for each in found.problems]) == (None, [28])


def test_it_is_light() -> None:
    heavy = "{'numpy', 'aiohttp', 'rich', 'starlette'}"
    code = f"import sys; import fallow.sim.driver; print(sorted({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_every_process_in_a_pod_has_a_grant_and_some_grants_have_none() -> None:
    driver, _ = open_driver(7)
    table, owners = pretend.PretendTable(driver), pretend.PretendOwners(driver)
    devices = driver.read().devices
    grants = owners.grants([processes.Judged(device, None, None, None) for device in devices])
    assert grants is not None
    assert {grant.share for grant in grants} == set(processes.Share)
    held = {(grant.uuid, grant.namespace, grant.pod, grant.pod_uid) for grant in grants}
    busy = set()
    for device in devices:
        for holder in device.holders or ():
            start = table.start_of(holder.pid)
            owner = owners.owner_of(holder.pid, start, table.cgroup_of(holder.pid, start))
            if owner.pod:
                busy.add((device.uuid, owner.namespace, owner.pod, owner.pod_uid))
    assert busy < held
