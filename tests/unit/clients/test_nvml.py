"""The gate to the driver, on a pretend driver library: what is read, what is refused, what errors leave unknown."""

from __future__ import annotations

import ctypes.util
import pathlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from tests.fakes.nvml import fake
from tests.fakes.nvml.fake import GIB, Delay, Device, Error, Instance, Process, Sample, State

from fallow.clients import errors
from fallow.clients.nvml import driver as nvml
from fallow.model import processes

COMPUTE = "nvmlDeviceGetComputeRunningProcesses"
GRAPHICS = "nvmlDeviceGetGraphicsRunningProcesses"
MPS = "nvmlDeviceGetMPSComputeRunningProcesses"
NEW, OLD = "nvmlDeviceGetProcessesUtilizationInfo", "nvmlDeviceGetProcessUtilization"
NAMES = {
    3: "NotSupported", 4: "NoPermission", 6: "NotFound", 7: "InsufficientSize", 9: "DriverNotLoaded",
    13: "FunctionNotFound",
    15: "GpuIsLost", 18: "LibRmVersionMismatch", 21: "NoData", 999: "Unknown", 1234: "Code1234",
}


@pytest.fixture
def library(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> fake.Fake:
    monkeypatch.setenv("FAKE_NVML_STATE", "")  # so that it is as before afterwards
    return fake.Fake(tmp_path, State([Device()]))


@pytest.fixture
def driver(library: fake.Fake) -> Iterator[nvml.Nvml]:
    driver = nvml.Nvml()
    driver.open()
    yield driver
    driver.close()


def problem(gpu: str, call: str, code: int) -> processes.Problem:
    return processes.Problem(gpu, call, NAMES[code], code)


def read_one(driver: nvml.Nvml, library: fake.Fake, device: Device, *failing: Error, **state: Any) -> processes.Device:
    library.put(State([device], errors=failing, **state))
    (found,) = driver.read().devices
    return found


# ---- a whole reading -----------------------------------------------------------------------------------------------

BUSY = [Process(42, 5 * GIB), Process(43, GIB, lists="cg")]
TWO = [Device(processes=[Process(7)]), Device(utilization=37, compute_mode=3, processes=BUSY)]


def test_a_device_is_read_whole(library: fake.Fake, driver: nvml.Nvml) -> None:
    library.put(State(TWO))
    reading = driver.read()
    assert (reading.driver_version, reading.problems, len(reading.devices)) == ("550.54.15", [], 2)
    assert reading.devices[1] == processes.Device(
        index=1, uuid=fake.uuid_of(1), model="NVIDIA H100 80GB HBM3", minor=1, pci_bus_id="00000000:11:00.0",
        compute_mode="exclusive_process", is_mig=False, utilization=37, memory_used=GIB, memory_total=80 * GIB,
        power_watts=75.5, temperature=41, energy_joules=1234.567,
        holders=[
            processes.Holder(42, 5 * GIB, is_compute=True), processes.Holder(43, GIB, is_compute=True, is_graphics=True)
        ],
    )


def test_no_gpu_is_an_answer(library: fake.Fake, driver: nvml.Nvml) -> None:
    library.put(State())
    assert driver.read() == processes.Reading("550.54.15", [], [])


# What each call gives, and what it is worth when it fails.
GIVES = {
    "nvmlDeviceGetUtilizationRates": {"utilization": None},
    "nvmlDeviceGetMemoryInfo": {"memory_used": None, "memory_total": None},
    "nvmlDeviceGetPowerUsage": {"power_watts": None},
    "nvmlDeviceGetTemperature": {"temperature": None},
    "nvmlDeviceGetTotalEnergyConsumption": {"energy_joules": None},
    "nvmlDeviceGetName": {"model": ""},
    "nvmlDeviceGetMinorNumber": {"minor": None},
    "nvmlDeviceGetPciInfo": {"pci_bus_id": ""},
    "nvmlDeviceGetComputeMode": {"compute_mode": ""},
    COMPUTE: {"holders": None},
}
GIVES_UNLESS_ABSENT = {GRAPHICS: {"holders": None}, MPS: {"holders": None}, "nvmlDeviceGetMigMode": {"is_mig": None}}
ROWS = [(call, code, lost) for call, lost in GIVES.items() for code in (3, 4, 9, 13, 18, 21, 999, 1234)]
ROWS += [(call, code, lost) for call, lost in GIVES_UNLESS_ABSENT.items() for code in (4, 9, 18, 21, 999, 1234)]


@pytest.mark.parametrize(("call", "code", "lost"), ROWS, ids=[f"{call}-{NAMES[code]}" for call, code, _ in ROWS])
def test_a_failing_call_takes_its_value_and_no_other(
    library: fake.Fake, driver: nvml.Nvml, call: str, code: int, lost: dict[str, object]
) -> None:
    library.put(State(TWO, errors=[Error(call, code, device="1")]))
    broken = driver.read()
    driver.open()
    library.put(State(TWO))
    whole = driver.read()
    assert broken.problems == [problem("1", call, code)]
    for name, nothing in lost.items():
        assert getattr(whole.devices[1], name) != nothing
        setattr(whole.devices[1], name, nothing)
    assert broken.devices == whole.devices


@pytest.mark.parametrize("code", [3, 13], ids=NAMES.get)
@pytest.mark.parametrize("call", [GRAPHICS, MPS])
def test_a_list_that_this_driver_does_not_have_is_no_gap(
    library: fake.Fake, driver: nvml.Nvml, call: str, code: int
) -> None:
    found = read_one(driver, library, Device(processes=[Process(42)]), Error(call, code))
    assert found.holders == [processes.Holder(42, GIB, is_compute=True)]


@pytest.mark.parametrize("code", [3, 13], ids=NAMES.get)
def test_a_model_without_mig_is_not_on_mig(library: fake.Fake, driver: nvml.Nvml, code: int) -> None:
    library.put(State([Device()], errors=[Error("nvmlDeviceGetMigMode", code)]))
    reading = driver.read()
    assert reading.devices[0].is_mig is False
    assert reading.problems == []


@pytest.mark.parametrize("call", ["nvmlDeviceGetTotalEnergyConsumption", GRAPHICS, MPS])
def test_a_missing_function_is_told_once_and_not_tried_again_until_reopened(
    library: fake.Fake, driver: nvml.Nvml, call: str
) -> None:
    library.put(State([Device(), Device()], errors=[Error(call, 13)]))
    assert driver.read().problems == [problem("0", call, 13)]
    before = library.calls(call)
    assert driver.read().problems == []
    assert library.calls(call) == before
    driver.open()
    assert driver.read().problems == [problem("0", call, 13)]


@pytest.mark.parametrize(
    ("device", "call", "lost"),
    [
        (Device(utilization=101), "nvmlDeviceGetUtilizationRates", ["utilization"]),
        (Device(utilization=2**32 - 1), "nvmlDeviceGetUtilizationRates", ["utilization"]),
        (Device(milliwatts=5_000_001), "nvmlDeviceGetPowerUsage", ["power_watts"]),
        (Device(milliwatts=2**32 - 1), "nvmlDeviceGetPowerUsage", ["power_watts"]),
        (Device(celsius=151), "nvmlDeviceGetTemperature", ["temperature"]),
        (Device(celsius=2**32 - 1), "nvmlDeviceGetTemperature", ["temperature"]),
        (Device(millijoules=2**64 - 1), "nvmlDeviceGetTotalEnergyConsumption", ["energy_joules"]),
        (Device(total=GIB, used=GIB + 1), "nvmlDeviceGetMemoryInfo", ["memory_used", "memory_total"]),
        (Device(total=2**64 - 1), "nvmlDeviceGetMemoryInfo", ["memory_used", "memory_total"]),
        (Device(minor=2**32 - 1), "nvmlDeviceGetMinorNumber", ["minor"]),
        (Device(name="\udcff"), "nvmlDeviceGetName", []),
        (Device(pci="\udcff"), "nvmlDeviceGetPciInfo", []),
        (Device(compute_mode=4), "nvmlDeviceGetComputeMode", []),
    ],
)
def test_what_cannot_be_true_is_not_known(
    library: fake.Fake, driver: nvml.Nvml, device: Device, call: str, lost: list[str]
) -> None:
    library.put(State([device]))
    reading = driver.read()
    assert reading.problems == [processes.Problem("0", call, "Garbage", 0)]
    nothing = [name for name in processes.Device.__struct_fields__ if getattr(reading.devices[0], name) is None]
    assert sorted(nothing) == sorted(lost)


@pytest.mark.parametrize(
    "device", [Device(utilization=100), Device(milliwatts=5_000_000), Device(celsius=150), Device(total=GIB, used=GIB)]
)
def test_what_is_just_possible_is_believed(library: fake.Fake, driver: nvml.Nvml, device: Device) -> None:
    library.put(State([device]))
    assert driver.read().problems == []


def test_a_fact_that_could_not_be_read_is_asked_for_again(library: fake.Fake, driver: nvml.Nvml) -> None:
    assert read_one(driver, library, Device(), Error("nvmlDeviceGetName", 999)).model == ""
    assert read_one(driver, library, Device()).model == "NVIDIA H100 80GB HBM3"
    before = library.calls("nvmlDeviceGetName")
    driver.read()
    assert library.calls("nvmlDeviceGetName") == before


# ---- which device is which -----------------------------------------------------------------------------------------


def test_facts_follow_the_device_when_indices_move(library: fake.Fake, driver: nvml.Nvml) -> None:
    a, b = Device("GPU-a", "A100", minor=5, pci="A"), Device("GPU-b", "H100", minor=6, pci="B")
    library.put(State([a, b]))
    driver.read()
    library.put(State([b, a]))
    moved = [
        (device.index, device.uuid, device.model, device.minor, device.pci_bus_id) for device in driver.read().devices
    ]
    assert moved == [(0, "GPU-b", "H100", 6, "B"), (1, "GPU-a", "A100", 5, "A")]


@pytest.mark.parametrize("call", ["nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID"])
def test_a_device_that_cannot_say_its_name_keeps_it_and_nothing_else(
    library: fake.Fake, driver: nvml.Nvml, call: str
) -> None:
    library.put(State(TWO))
    driver.read()
    library.put(State(TWO, errors=[Error(call, 999, device="1")]))
    reading = driver.read()
    assert reading.problems == [problem("1", call, 999)]
    assert reading.devices[1] == processes.Device(
        index=1, uuid=fake.uuid_of(1), model="NVIDIA H100 80GB HBM3", minor=1, pci_bus_id="00000000:11:00.0",
        compute_mode="exclusive_process",
    )
    driver.open()
    assert [device.index for device in driver.read().devices] == [0]  # it never said it to this one


# Known by the second poll.
FACTS = {"nvmlDeviceGetName", "nvmlDeviceGetMinorNumber", "nvmlDeviceGetPciInfo", "nvmlDeviceGetComputeMode"}
ASKED_EACH_TIME = ["nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID", *(GIVES.keys() - FACTS), *GIVES_UNLESS_ABSENT]


@pytest.mark.parametrize("call", [*sorted(ASKED_EACH_TIME), ""])
def test_a_device_that_fell_off_the_bus_is_lost_whichever_call_finds_out(
    library: fake.Fake, driver: nvml.Nvml, call: str
) -> None:
    library.put(State(TWO))
    before = driver.read()
    library.put(State([TWO[0], Device(lost=True)]) if not call else State(TWO, errors=[Error(call, 15, device="1")]))
    reading = driver.read()
    assert reading.devices[0] == before.devices[0]
    lost = reading.devices[1]
    assert (lost.index, lost.uuid, lost.is_lost) == (1, fake.uuid_of(1), True)
    assert (lost.utilization, lost.memory_used, lost.holders) == (None, None, None)
    assert [found.code for found in reading.problems] == [15]
    library.put(State(TWO))
    assert driver.read() == before


def test_a_device_that_was_lost_from_the_start_has_no_name(library: fake.Fake, driver: nvml.Nvml) -> None:
    library.put(State([Device(lost=True), Device()]))
    reading = driver.read()
    assert [device.index for device in reading.devices] == [1]
    assert reading.problems == [problem("0", "nvmlDeviceGetHandleByIndex", 15)]


# ---- the driver as a whole -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [9, 18, 999], ids=NAMES.get)
def test_a_driver_that_does_not_start_says_why_and_may_be_tried_again(library: fake.Fake, code: int) -> None:
    library.put(State([Device()], errors=[Error("nvmlInitWithFlags", code)]))
    driver = nvml.Nvml()
    with pytest.raises(errors.DriverDown, match=f"NVML does not start: .* \\(NVML error {code}\\)") as down:
        driver.open()
    assert down.value.code == code
    library.put(State([Device()]))
    driver.open()
    assert len(driver.read().devices) == 1
    driver.close()


def test_a_library_that_is_not_there_has_no_code() -> None:
    with pytest.raises(errors.DriverDown, match=r"the NVIDIA driver library cannot be loaded: .*nowhere\.so") as down:
        nvml.Nvml("/nowhere.so").open()
    assert down.value.code is None


@pytest.mark.skipif(ctypes.util.find_library("nvidia-ml") is not None, reason="this machine has an NVIDIA driver")
def test_a_node_without_a_driver_has_no_code_either() -> None:
    code = (
        "from fallow.clients import errors\nfrom fallow.clients.nvml import driver as nvml\n"
        "try: nvml.Nvml().open()\n"
        "except errors.DriverDown as down: print(down.code, down)"
    )
    done = subprocess.run([sys.executable, "-c", code], env={}, capture_output=True, text=True, check=True)
    assert done.stdout == "None NVML does not start: NVML Shared Library Not Found (NVML error 12)\n"


@pytest.mark.parametrize("code", [1, 18, 999])
def test_devices_that_cannot_be_counted_are_a_driver_that_is_down(
    library: fake.Fake, driver: nvml.Nvml, code: int
) -> None:
    library.put(State([Device()], errors=[Error("nvmlDeviceGetCount", code)]))
    with pytest.raises(errors.DriverDown, match="NVML cannot count its GPUs") as down:
        driver.read()
    assert down.value.code == code
    library.put(State([Device()]))
    assert len(driver.read().devices) == 1


def test_a_driver_that_was_unloaded_comes_back_with_a_reopen(library: fake.Fake, driver: nvml.Nvml) -> None:
    library.remove()
    with pytest.raises(errors.DriverDown) as down:
        driver.read()
    assert down.value.code == 9
    library.put(State([Device(), Device()], driver="570.86.15"))
    driver.open()
    reading = driver.read()
    assert (reading.driver_version, len(reading.devices)) == ("570.86.15", 2)


def test_a_closed_driver_is_down(library: fake.Fake, driver: nvml.Nvml) -> None:
    driver.close()
    driver.close()
    with pytest.raises(errors.DriverDown, match="not open"):
        driver.read()
    with pytest.raises(errors.DriverDown, match="not open"):
        driver.read_samples(fake.uuid_of(0), 1)


def test_what_was_opened_twice_is_shut_down_twice(library: fake.Fake, driver: nvml.Nvml) -> None:
    before = library.calls("nvmlInitWithFlags") - library.calls("nvmlShutdown")
    driver.open()
    driver.open()
    assert library.calls("nvmlInitWithFlags") - library.calls("nvmlShutdown") == before
    driver.close()
    assert library.calls("nvmlInitWithFlags") - library.calls("nvmlShutdown") == before - 1


def test_the_version_is_asked_for_again_until_it_is_told(library: fake.Fake) -> None:
    library.put(State([Device()], errors=[Error("nvmlSystemGetDriverVersion", 999)]))
    driver = nvml.Nvml()
    driver.open()
    reading = driver.read()
    assert (reading.driver_version, reading.problems) == ("", [problem("", "nvmlSystemGetDriverVersion", 999)])
    library.put(State([Device()]))
    assert driver.read().driver_version == "550.54.15"
    driver.close()


def test_a_hanging_call_holds_nobody_but_its_caller(library: fake.Fake, driver: nvml.Nvml) -> None:
    library.put(State([Device()], delays=[Delay("nvmlDeviceGetPowerUsage", 400)]))
    reader = threading.Thread(target=driver.read)
    reader.start()
    steps = sum(1 for _ in range(100_000))
    assert reader.is_alive()  # all of that happened while it waited
    assert steps == 100_000
    reader.join()


def test_another_program_loads_the_library_by_path_and_only_when_it_opens(library: fake.Fake) -> None:
    code = (
        "import sys; from fallow.clients.nvml import driver as nvml; "
        "heavy = {'pynvml', 'numpy', 'aiohttp', 'rich'} & set(sys.modules); "
        "driver = nvml.Nvml(sys.argv[1]); driver.open(); print(sorted(heavy), driver.read().devices[0].uuid)"
    )
    environment = {"FAKE_NVML_STATE": str(library.path)}
    done = subprocess.run(
        [sys.executable, "-c", code, str(library.library)], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == (f"[] {fake.uuid_of(0)}\n", "")


# ---- process lists -------------------------------------------------------------------------------------------------


def test_a_process_in_several_lists_is_one(library: fake.Fake, driver: nvml.Nvml) -> None:
    listed = [
        Process(1, 100, lists="c"), Process(1, 300, lists="g"), Process(2, 50, lists="cm"),
        Process(3, fake.NOT_AVAILABLE),
        Process(4, fake.NOT_AVAILABLE, lists="c"), Process(4, 7, lists="g"), Process(0, 9), Process(5, 0, lists="g"),
    ]
    assert read_one(driver, library, Device(processes=listed)).holders == [
        processes.Holder(1, 300, is_compute=True, is_graphics=True),
        processes.Holder(2, 50, is_compute=True, is_mps=True),
        processes.Holder(3, None, is_compute=True),
        processes.Holder(4, 7, is_compute=True, is_graphics=True),
        processes.Holder(5, 0, is_graphics=True),
    ]


DRIVERS = ["470.57.02", "525.60.13", "535.54.03", "535.98", "535.104.05", "535.183.01", "550.54.15", "580.65.06", "odd"]


@pytest.mark.parametrize("version", DRIVERS)
def test_every_driver_lists_the_same_processes(library: fake.Fake, version: str) -> None:
    library.put(State([Device(processes=[Process(pid, pid * GIB) for pid in (41, 42, 43)])], driver=version))
    driver = nvml.Nvml()
    driver.open()
    reading = driver.read()
    driver.close()
    assert [
        (holder.pid, holder.memory) for holder in reading.devices[0].holders or ()
    ] == [(pid, pid * GIB) for pid in (41, 42, 43)]
    assert reading.problems == []


def test_without_the_newest_list_the_one_before_is_used_and_remembered(library: fake.Fake, driver: nvml.Nvml) -> None:
    failing = [Error(f"{COMPUTE}_v3", 13)]
    library.put(State([Device(processes=[Process(42)])], errors=failing))
    for _ in range(2):
        reading = driver.read()
        assert reading.devices[0].holders == [processes.Holder(42, GIB, is_compute=True)]
        assert reading.problems == []
        before = library.calls(f"{COMPUTE}_v3")
    driver.read()
    assert library.calls(f"{COMPUTE}_v3") == before


def test_a_list_of_ten_thousand_is_read_whole_and_at_once_the_next_time(library: fake.Fake, driver: nvml.Nvml) -> None:
    library.put(
        State([Device(processes=[Process(1 + pid, pid) for pid in range(10_000)]), Device(processes=[Process(1)])])
    )
    first, other = driver.read().devices
    assert [(holder.pid, holder.memory) for holder in first.holders or ()] == [(1 + pid, pid) for pid in range(10_000)]
    assert other.holders == [processes.Holder(1, GIB, is_compute=True)]
    before = library.calls(COMPUTE)
    driver.read()
    assert library.calls(COMPUTE) == before + 2


@pytest.mark.parametrize(("times", "is_read", "calls"), [(1, True, 2), (3, True, 4), (4, False, 4), (-1, False, 4)])
def test_a_list_that_grows_is_tried_three_times_more(
    library: fake.Fake, driver: nvml.Nvml, times: int, is_read: bool, calls: int
) -> None:
    before = library.calls(COMPUTE)
    found = read_one(driver, library, Device(processes=[Process(42)]), Error(COMPUTE, 7, times=times))
    assert library.calls(COMPUTE) == before + calls
    assert found.holders == ([processes.Holder(42, GIB, is_compute=True)] if is_read else None)


def test_success_that_wrote_nothing_lists_nobody(library: fake.Fake, driver: nvml.Nvml) -> None:
    assert read_one(driver, library, Device(processes=[Process(42)])).holders
    assert read_one(driver, library, Device(processes=[Process(42)]), Error(COMPUTE, 0)).holders == []


# ---- samples -------------------------------------------------------------------------------------------------------

ENGINES = Sample(42, 50, 2_000, memory=20, encoder=3, decoder=4, jpeg=5, ofa=6)


def sample(
    driver: nvml.Nvml, library: fake.Fake, *found: Sample, since: int = 1, failing: tuple[Error, ...] = ()
) -> processes.Samples:
    library.put(State([Device(), Device(samples=found)], errors=failing))
    driver.read()
    return driver.read_samples(fake.uuid_of(1), since)


def test_samples_are_handed_on_as_they_are(library: fake.Fake, driver: nvml.Nvml) -> None:
    strange = [Sample(7, 4_000_000_000, 3_000), Sample(8, 5, 0), Sample(0, 9, 4_000)]
    assert sample(driver, library, ENGINES, *strange, Sample(9, 9, 900), since=1_000) == processes.Samples(
        [
            processes.Sample(42, 2_000, 50, 20, 3, 4, 5, 6), processes.Sample(7, 3_000, 4_000_000_000),
            processes.Sample(8, 0, 5),
        ]
    )


@pytest.mark.parametrize(
    "failing", [(Error(NEW, 13),), (Error(NEW, 3),), (Error(NEW, 25),)],
    ids=["no function", "not supported", "other version"]
)
def test_the_older_call_stands_in_for_the_newer(
    library: fake.Fake, driver: nvml.Nvml, failing: tuple[Error, ...]
) -> None:
    found = sample(driver, library, ENGINES, failing=failing)
    assert found == processes.Samples([processes.Sample(42, 2_000, 50, 20, 3, 4)])


def test_a_newer_call_that_is_missing_is_not_tried_again(library: fake.Fake, driver: nvml.Nvml) -> None:
    sample(driver, library, ENGINES, failing=(Error(NEW, 13),))
    before = library.calls(NEW)
    assert driver.read_samples(fake.uuid_of(1), 1).found
    assert library.calls(NEW) == before


@pytest.mark.parametrize("call", [NEW, OLD])
@pytest.mark.parametrize("code", [0, 6], ids=["success with nothing", "not found"])
def test_nothing_ran_is_an_answer(library: fake.Fake, driver: nvml.Nvml, call: str, code: int) -> None:
    failing = (Error(call, code),) if call == NEW else (Error(NEW, 13), Error(OLD, code))
    assert sample(driver, library, ENGINES).found
    assert sample(driver, library, ENGINES, failing=failing) == processes.Samples([])
    assert sample(driver, library, ENGINES, since=2_000) == processes.Samples([])


@pytest.mark.parametrize("code", [4, 9, 15, 18, 21, 999, 1234], ids=NAMES.get)
@pytest.mark.parametrize("call", [NEW, OLD])
def test_any_other_error_is_not_known(library: fake.Fake, driver: nvml.Nvml, call: str, code: int) -> None:
    failing = (Error(call, code),) if call == NEW else (Error(NEW, 3), Error(OLD, code))
    found = sample(driver, library, ENGINES, failing=failing)
    assert (found.found, found.is_supported, found.problems[-1]) == (None, True, problem("1", call, code))


@pytest.mark.parametrize("call", [NEW, OLD])
@pytest.mark.parametrize(("times", "is_read", "calls"), [(3, True, 4), (-1, False, 4)], ids=["at last", "never"])
def test_samples_that_do_not_fit_are_tried_three_times_more(
    library: fake.Fake, driver: nvml.Nvml, call: str, times: int, is_read: bool, calls: int
) -> None:
    before = library.calls(call)
    failing = (Error(call, 7, times=times),) if call == NEW else (Error(NEW, 13), Error(OLD, 7, times=times))
    found = sample(driver, library, ENGINES, failing=failing)
    assert library.calls(call) == before + calls
    assert (found.found is not None, found.is_supported) == (is_read, True)
    assert [each.code for each in found.problems if each.code != 13] == ([] if is_read else [7])


def test_many_samples_are_read_whole(library: fake.Fake, driver: nvml.Nvml) -> None:
    found = sample(driver, library, *(Sample(1 + pid, pid % 100, 5_000 + pid) for pid in range(3_000)))
    assert [each.stamp for each in found.found or ()] == [5_000 + pid for pid in range(3_000)]


def test_neither_call_supported_is_said(library: fake.Fake, driver: nvml.Nvml) -> None:
    found = sample(driver, library, ENGINES, failing=(Error(NEW, 3), Error(OLD, 3)))
    assert found == processes.Samples(None, is_supported=False, problems=[problem("1", NEW, 3), problem("1", OLD, 3)])
    assert sample(driver, library, ENGINES).found  # not for ever


@pytest.mark.parametrize(
    ("version", "call"),
    [
        ("470.57.02", None), ("535.104.05", None), ("535.113.01", OLD), ("535.183.01", OLD), ("550.54.15", NEW),
        ("580.65.06", NEW),
    ],
)
def test_each_driver_is_asked_by_the_call_that_it_is_good_at(
    library: fake.Fake, version: str, call: str | None
) -> None:
    library.put(State([Device(samples=[ENGINES])], driver=version))
    driver = nvml.Nvml()
    driver.open()
    driver.read()
    before = library.calls(OLD)
    found = driver.read_samples(fake.uuid_of(0), 1)
    driver.close()
    assert found.is_supported == (call is not None)
    assert [each.jpeg for each in found.found or ()] == {NEW: [5], OLD: [0], None: []}[call]
    assert library.calls(OLD) - before == (call == OLD)


def test_samples_of_a_device_nobody_knows_are_not_known(library: fake.Fake, driver: nvml.Nvml) -> None:
    driver.read()
    found = driver.read_samples("GPU-other", 1)
    assert (found.found, found.is_supported, [each.error for each in found.problems]) == (None, True, ["GpuNotFound"])


# ---- MIG -----------------------------------------------------------------------------------------------------------

LARGE, SMALL = Instance(1, 0, "MIG-a", "3g.40gb", 40 * GIB, sm=62.5, graphics=80.0), Instance(5, 0, "MIG-b", sm=0.0)
TENANTS = [
    Process(41, 4 * GIB, gi=1, ci=0), Process(42, GIB, gi=5, ci=0), Process(43, GIB, gi=1, ci=0),
    Process(43, 2 * GIB, gi=5, ci=0),
]


def sliced(*instances: Instance | None, **more: Any) -> Device:
    return Device(
        mig=1, gpm=True, instances=instances or (LARGE, None, SMALL), processes=more.pop("processes", TENANTS), **more
    )


def test_a_sliced_device_has_instances_and_its_processes_have_places(library: fake.Fake, driver: nvml.Nvml) -> None:
    found = read_one(driver, library, sliced())
    assert (found.is_mig, found.utilization) == (True, None)
    assert found.instances == [
        processes.Instance(1, 0, "MIG-a", "3g.40gb", None, 40 * GIB),
        processes.Instance(5, 0, "MIG-b", "1g.10gb", None, 10 * GIB),
    ]
    assert found.holders == [
        processes.Holder(41, 4 * GIB, is_compute=True, instances=((1, 0),)),
        processes.Holder(42, GIB, is_compute=True, instances=((5, 0),)),
        processes.Holder(43, 3 * GIB, is_compute=True, instances=((1, 0), (5, 0))),
    ]
    before = library.calls(NEW)
    assert driver.read_samples(fake.uuid_of(0), 1) == processes.Samples(None, is_supported=False)
    assert library.calls(NEW) == before


def test_one_part_of_unknown_size_makes_the_sum_unknown(library: fake.Fake, driver: nvml.Nvml) -> None:
    parts = [Process(43, GIB, gi=1, ci=0), Process(43, fake.NOT_AVAILABLE, gi=5, ci=0)]
    assert [holder.memory for holder in read_one(driver, library, sliced(processes=parts)).holders or ()] == [None]


@pytest.mark.parametrize("code", [3, 4], ids=NAMES.get)
def test_lists_of_the_whole_device_are_not_needed_beside_those_of_its_instances(
    library: fake.Fake, driver: nvml.Nvml, code: int
) -> None:
    whole = read_one(driver, library, sliced()).holders
    library.put(State([sliced()], errors=[Error(call, code, device="0") for call in (COMPUTE, GRAPHICS, MPS)]))
    reading = driver.read()
    assert {
        holder.pid: holder for holder in reading.devices[0].holders or ()
    } == {holder.pid: holder for holder in whole or ()}
    assert [each.call for each in reading.problems] == ["nvmlDeviceGetUtilizationRates"]


def test_entries_without_an_instance_belong_to_the_one_that_was_asked(library: fake.Fake, driver: nvml.Nvml) -> None:
    merger_sees = read_one(
        driver, library, sliced(processes=[Process(41, GIB), Process(41, 2 * GIB, gi=1, ci=0)])
    ).holders
    assert merger_sees == [processes.Holder(41, 2 * GIB, is_compute=True, instances=((1, 0),))]


@pytest.mark.parametrize(
    "failing",
    [
        Error(COMPUTE, 999, "0"),
        Error(COMPUTE, 999, "0.2"),
        Error(GRAPHICS, 4, "0.0"),
        Error("nvmlDeviceGetMaxMigDeviceCount", 999),
        Error("nvmlDeviceGetUUID", 999, "0.0"),
        Error("nvmlDeviceGetMigDeviceHandleByIndex", 999),
        Error("nvmlDeviceGetGpuInstanceId", 999),
        Error("nvmlDeviceGetComputeInstanceId", 4),
    ],
    ids=lambda error: f"{error.call} {error.device}",
)
def test_an_instance_that_cannot_be_read_leaves_the_list_unknown(
    library: fake.Fake, driver: nvml.Nvml, failing: Error
) -> None:
    library.put(State([sliced()], errors=[failing]))
    reading = driver.read()
    assert reading.devices[0].holders is None
    assert problem("0", failing.call, failing.code) in reading.problems


def test_a_sliced_device_without_instances_that_hides_its_list_is_not_empty(
    library: fake.Fake, driver: nvml.Nvml
) -> None:
    assert read_one(driver, library, sliced(None)).holders is not None
    assert read_one(driver, library, sliced(None), Error(COMPUTE, 4)).holders is None


def test_instances_come_and_go(library: fake.Fake, driver: nvml.Nvml) -> None:
    read_one(driver, library, sliced())
    new = Instance(2, 1, "MIG-c", "2g.20gb", 20 * GIB)
    found = read_one(driver, library, sliced(new, None, SMALL))
    assert [(one.uuid, one.gi, one.ci, one.profile, one.memory_total) for one in found.instances] == [
        ("MIG-c", 2, 1, "2g.20gb", 20 * GIB), ("MIG-b", 5, 0, "1g.10gb", 10 * GIB),
    ]
    plain = read_one(driver, library, Device(samples=[ENGINES]))
    assert (plain.is_mig, plain.instances) == (False, [])
    assert driver.read_samples(fake.uuid_of(0), 1).found


def use(driver: nvml.Nvml) -> list[float | None]:
    return [one.utilization for one in driver.read().devices[0].instances]


def test_instances_are_measured_between_two_polls(library: fake.Fake, driver: nvml.Nvml) -> None:
    library.put(State([sliced()]))
    assert use(driver) == [None, None]
    assert use(driver) == [62.5, 0.0]
    library.put(State([sliced()], errors=[Error("nvmlGpmMigSampleGet", 999, times=1)]))
    assert use(driver) == [None, 0.0]
    assert use(driver) == [None, 0.0]  # the first of two samples again
    assert use(driver) == [62.5, 0.0]


@pytest.mark.parametrize(
    ("sm", "graphics", "found", "said"),
    [
        (12.5, 80.0, 12.5, None), (-1, 80.0, 80.0, None), (-1, -1, None, "NotSupported"), (150.0, 3.0, None, "Garbage"),
        (float("nan"), 3.0, None, "Garbage"), (100.2, 3.0, 100.0, None),
    ],
)
def test_busy_sms_are_preferred_and_garbage_is_not_known(
    library: fake.Fake, driver: nvml.Nvml, sm: float, graphics: float, found: float | None, said: str | None
) -> None:
    library.put(State([sliced(Instance(1, sm=sm, graphics=graphics))]))
    use(driver)
    reading = driver.read()
    assert [one.utilization for one in reading.devices[0].instances] == [found]
    assert [each.error for each in reading.problems if each.call == "nvmlGpmMetricsGet"] == ([said] if said else [])


@pytest.mark.parametrize(
    "failing", [(), (Error("nvmlGpmQueryDeviceSupport", 3),), (Error("nvmlGpmQueryDeviceSupport", 13),)], ids=str
)
def test_a_device_that_cannot_measure_instances_is_asked_once(
    library: fake.Fake, driver: nvml.Nvml, failing: tuple[Error, ...]
) -> None:
    device = sliced()
    device.gpm = bool(failing)
    library.put(State([device], errors=failing))
    before = library.calls("nvmlGpmQueryDeviceSupport")
    assert use(driver) == use(driver) == [None, None]
    assert library.calls("nvmlGpmQueryDeviceSupport") == before + 1
    assert [each for each in driver.read().problems if "Gpm" in each.call] == []


def test_samples_of_instances_are_given_back(library: fake.Fake, driver: nvml.Nvml) -> None:
    def kept() -> int:
        return library.calls("nvmlGpmSampleAlloc") - library.calls("nvmlGpmSampleFree")

    before = kept()
    library.put(State([sliced()]))
    for _ in range(5):
        driver.read()
    assert kept() == before + 2
    library.put(State([sliced(LARGE)]))
    driver.read()
    assert kept() == before + 1
    library.put(State([sliced(LARGE)], errors=[Error("nvmlGpmMigSampleGet", 15)]))
    driver.read()
    assert kept() == before
    driver.close()
    assert kept() == before
