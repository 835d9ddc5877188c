"""The NVIDIA driver of this node through NVML: the one gate to it, which knows its calls, its errors and its lies.

In: libnvidia-ml.so.1 (or the library at a given path), loaded when `open` is called and not before. Out: `Reading` and
`Samples` of model/processes.py; errors.DriverDown when there is no driver to ask, or it cannot count its devices. Calls
block: one thread at a time.
Invariant: what could not be read, and what cannot be true, is None and has its `Problem` in the same answer; it is
never 0. Answers and no problems are "this model has no MIG", "nothing ran", and a newer function's absence where an
older one tells the same. A function that this driver does not have is a problem once, and is not tried again until the
next `open`.
"""

import ctypes
import importlib
from collections.abc import Collection
from typing import Any, Final

import msgspec

from fallow.clients import errors
from fallow.clients.nvml import processes
from fallow.model.processes import Device, Holder, Instance, Problem, Reading, Samples
from fallow.names import NvmlCode

_MOST_DEVICES, _MOST_SLICES = 1024, 64
_MOST_PERCENT, _MOST_MILLIWATTS, _MOST_CELSIUS = 100, 5_000_000, 150
_MOST_32, _MOST_64 = 2**32 - 2, 2**64 - 2  # one more is how NVML writes "not available"
_COMPUTE_MODES: Final = ("default", "exclusive_thread", "prohibited", "exclusive_process")
_GPM_METRICS: Final = (2, 1)  # busy SMs; else any activity of graphics or compute. In percent


class _FellOff(Exception):
    """The device fell off the bus while it was asked; its problem is noted."""


class _MigSlice(msgspec.Struct):
    """A MIG instance: what does not change while it exists. None: not known yet."""

    handle: Any
    uuid: str
    gi: int
    ci: int
    profile: str | None = None
    memory_total: int | None = None

    def describe(self, share: float | None) -> Instance:
        return Instance(self.gi, self.ci, self.uuid, self.profile or "", share, self.memory_total)


class _Card(msgspec.Struct, kw_only=True):
    """A device: what does not change while the same one is at its index. None: not known yet."""

    index: int
    handle: Any
    uuid: str
    model: str | None = None
    minor: int | None = None
    pci_bus_id: str | None = None
    compute_mode: str | None = None
    has_gpm: bool | None = None
    is_mig: bool | None = None  # at the last reading
    slices: dict[int, _MigSlice] = {}  # by MIG slot

    def describe(self) -> Device:
        return Device(
            index=self.index, uuid=self.uuid, model=self.model or "", minor=self.minor,
            pci_bus_id=self.pci_bus_id or "", compute_mode=self.compute_mode or "",
        )


class _Questions:
    """Calls about one device (or none), and where they note what failed. `missing`: functions this driver lacks."""

    def __init__(self, nvml: Any, gpu: str, missing: set[str], problems: list[Problem]) -> None:
        self._nvml = nvml
        self._gpu = gpu
        self._missing = missing
        self._problems = problems

    def ask(self, call: str, *arguments: Any, absent: Any = None, codes: Collection[int] = NvmlCode.ABSENT) -> Any:
        """The answer, or None. With `absent` given, the `codes` are an answer too: that one, and no problem."""
        if call in self._missing:
            return absent
        try:
            return getattr(self._nvml, call)(*arguments)
        except self._nvml.NVMLError as error:
            if absent is not None and error.value in codes:
                return absent
            self.note(call, error.value)
        except UnicodeDecodeError:
            self.reject(call)
        return None

    def ask_number(self, call: str, *arguments: Any, most: int) -> int | None:
        return self.check(call, self.ask(call, *arguments), most)

    def check(self, call: str, number: int | None, most: int) -> int | None:
        if number is not None and not 0 <= number <= most:
            self.reject(call)
            return None
        return number

    def reject(self, call: str) -> None:
        """The call went well, and its answer cannot be true."""
        self._problems.append(Problem(self._gpu, call, "Garbage", NvmlCode.OK))

    def note(self, call: str, code: int) -> None:
        """Raises _FellOff if that is what happened."""
        if call in self._missing:
            return
        self._problems.append(Problem(self._gpu, call, _name_error(self._nvml, code), code))
        if code == NvmlCode.FUNCTION_NOT_FOUND:
            self._missing.add(call)
        if code == NvmlCode.GPU_IS_LOST:
            raise _FellOff


class Nvml:
    """The driver. `library`: path of libnvidia-ml.so.1 where the loader does not find it by itself."""

    def __init__(self, library: str | None = None) -> None:
        self._path = library
        self._nvml: Any = None  # pynvml, while the driver is open

    def open(self) -> None:
        """Raises DriverDown with the reason; may be tried again."""
        self.close()
        nvml = importlib.import_module("pynvml")
        try:
            if self._path:  # pynvml asks for the library by its name, and gets the one of that name that is there
                ctypes.CDLL(self._path, mode=ctypes.RTLD_GLOBAL)
            nvml.nvmlInit()
        except OSError as error:
            raise errors.DriverDown(f"the NVIDIA driver library cannot be loaded: {error}") from error
        except nvml.NVMLError as error:
            raise _down("NVML does not start", error) from error
        self._nvml = nvml
        self._cards: dict[int, _Card] = {}
        self._missing: set[str] = set()
        self._version: str = _try(nvml, "nvmlSystemGetDriverVersion") or ""
        version = _parse_version(self._version)
        self._lists = processes.Lists(nvml.nvmlLib, version)
        self._samplers = processes.Samplers(nvml.nvmlLib, version)
        self._gpm = _Gpm(nvml)

    def close(self) -> None:
        if self._nvml is not None:
            self._gpm.keep_only(())
            _try(self._nvml, "nvmlShutdown")  # a driver that is gone cannot be shut down, and need not be
            self._nvml = None

    def read(self) -> Reading:
        """All devices with their processes; raises DriverDown if the devices cannot even be counted."""
        count = self._count()
        problems: list[Problem] = []
        if not self._version:
            asked = _Questions(self._nvml, "", self._missing, problems)
            self._version = asked.ask("nvmlSystemGetDriverVersion") or ""
        devices = [device for index in range(count) if (device := self._read_device(index, problems))]
        self._cards = {index: card for index, card in self._cards.items() if index < count}
        self._gpm.keep_only({(device.uuid, instance.gi) for device in devices for instance in device.instances})
        return Reading(self._version, devices, problems)

    def read_samples(self, uuid: str, since: int) -> Samples:
        """Samples newer than `since` (microseconds) of a device of the last reading."""
        nvml = self._need()
        card = next((card for card in self._cards.values() if card.uuid == uuid), None)
        if card is None:
            code = NvmlCode.GPU_NOT_FOUND
            return Samples(None, problems=[Problem("", processes.SAMPLES, _name_error(nvml, code), code)])
        if card.is_mig:
            return Samples(None, is_supported=False)
        problems: list[Problem] = []
        for call, read in self._samplers.ways:
            if call in self._missing:
                continue
            code, found = read(card.handle, since)
            if code in (NvmlCode.OK, NvmlCode.NOT_FOUND):
                return Samples(found)
            problems.append(Problem(str(card.index), call, _name_error(nvml, code), code))
            if code not in NvmlCode.ABSENT:
                return Samples(None, problems=problems)
            if code == NvmlCode.FUNCTION_NOT_FOUND:
                self._missing.add(call)
        return Samples(None, is_supported=False, problems=problems)

    def _need(self) -> Any:
        if self._nvml is None:
            raise errors.DriverDown("NVML is not open")
        return self._nvml

    def _count(self) -> int:
        nvml = self._need()
        try:
            count: int = nvml.nvmlDeviceGetCount()
        except nvml.NVMLError as error:
            raise _down("NVML cannot count its GPUs", error) from error
        if count > _MOST_DEVICES:
            raise errors.DriverDown(f"NVML claims to have {count} GPUs", NvmlCode.OK)
        return count

    def _read_device(self, index: int, problems: list[Problem]) -> Device | None:
        """None: something is at this index that never said what it is."""
        questions = _Questions(self._nvml, str(index), self._missing, problems)
        try:
            if card := self._identify(questions, index):
                return self._look(questions, card)
            is_lost = False  # cannot say who it is just now: that is known from the last time, and nothing else of it
        except _FellOff:
            is_lost = True
        if index not in self._cards:
            return None
        device = self._cards[index].describe()
        device.is_lost = is_lost
        return device

    def _identify(self, questions: _Questions, index: int) -> _Card | None:
        handle = questions.ask("nvmlDeviceGetHandleByIndex", index)
        uuid = questions.ask("nvmlDeviceGetUUID", handle) if handle else None
        if not uuid:
            return None
        card = self._cards.get(index)
        if card is None or card.uuid != uuid:
            card = self._cards[index] = _Card(index=index, handle=handle, uuid=uuid)
        card.handle = handle
        return card

    def _look(self, questions: _Questions, card: _Card) -> Device:
        _learn(questions, card)
        device, handle = card.describe(), card.handle
        rates = questions.ask("nvmlDeviceGetUtilizationRates", handle)
        device.utilization = questions.check("nvmlDeviceGetUtilizationRates", rates and rates.gpu, _MOST_PERCENT)
        device.memory_used, device.memory_total = _ask_memory(questions, handle)
        device.power_watts = _thousandth(questions.ask_number("nvmlDeviceGetPowerUsage", handle, most=_MOST_MILLIWATTS))
        device.temperature = questions.ask_number("nvmlDeviceGetTemperature", handle, 0, most=_MOST_CELSIUS)
        energy = questions.ask_number("nvmlDeviceGetTotalEnergyConsumption", handle, most=_MOST_64)
        device.energy_joules = _thousandth(energy)
        mode = questions.ask("nvmlDeviceGetMigMode", handle, absent=(0, 0))
        device.is_mig = card.is_mig = None if mode is None else mode[0] == 1
        if not device.is_mig:
            device.holders = self._list_holders(questions, card, [])
            return device
        slices, is_complete = _find_slices(questions, card)
        device.holders = self._list_holders(questions, card, slices) if is_complete else None
        shares = self._gpm.measure(questions, card, {one.gi for one in slices})
        device.instances = [one.describe(shares.get(one.gi)) for one in slices]
        return device

    def _list_holders(self, questions: _Questions, card: _Card, slices: list[_MigSlice]) -> list[Holder] | None:
        """None if a list could not be read. On MIG the device's own lists are for the privileged, and add nothing."""
        merger = processes.Merger(is_sliced=card.is_mig is not False)
        bearable = (NvmlCode.NOT_SUPPORTED, NvmlCode.NO_PERMISSION) if slices else ()
        is_complete = self._add_lists(questions, merger, card.handle, processes.NO_INSTANCES, bearable)
        for one in slices:
            is_complete &= self._add_lists(questions, merger, one.handle, (one.gi, one.ci))
        return merger.merge() if is_complete else None

    def _add_lists(
        self, questions: _Questions, merger: processes.Merger, handle: Any, instance: processes.InstanceIds,
        bearable: Collection[int] = (),
    ) -> bool:
        """Whether all is there. A driver without a list of graphics or MPS processes has none: that is no gap."""
        is_complete = True
        for call, kind in processes.LISTS:
            code, entries = self._lists.read(call, handle)
            if code == NvmlCode.OK:
                merger.add(entries, kind, instance)
            elif code not in bearable:
                questions.note(call, code)
                is_complete &= call != processes.COMPUTE and code in NvmlCode.ABSENT
        return is_complete


def _learn(questions: _Questions, card: _Card) -> None:
    if card.model is None:
        card.model = questions.ask("nvmlDeviceGetName", card.handle)
    if card.minor is None:
        card.minor = questions.ask_number("nvmlDeviceGetMinorNumber", card.handle, most=_MOST_32)
    if card.pci_bus_id is None:
        card.pci_bus_id = _ask_bus_id(questions, card.handle)
    if card.compute_mode is None:
        mode = questions.ask_number("nvmlDeviceGetComputeMode", card.handle, most=len(_COMPUTE_MODES) - 1)
        card.compute_mode = None if mode is None else _COMPUTE_MODES[mode]


def _ask_bus_id(questions: _Questions, handle: Any) -> str | None:
    pci = questions.ask("nvmlDeviceGetPciInfo", handle)
    try:
        return None if pci is None else str(pci.busId)
    except UnicodeDecodeError:
        questions.reject("nvmlDeviceGetPciInfo")
        return None


def _ask_memory(questions: _Questions, handle: Any) -> tuple[int | None, int | None]:
    """Used and total: both, or none of them."""
    memory = questions.ask("nvmlDeviceGetMemoryInfo", handle)
    if memory is not None and memory.used <= memory.total <= _MOST_64:
        return memory.used, memory.total
    if memory is not None:
        questions.reject("nvmlDeviceGetMemoryInfo")
    return None, None


def _thousandth(number: int | None) -> float | None:
    return None if number is None else number / 1000


def _find_slices(questions: _Questions, card: _Card) -> tuple[list[_MigSlice], bool]:
    """The MIG instances of a device, and whether these are all."""
    slots = questions.ask_number("nvmlDeviceGetMaxMigDeviceCount", card.handle, most=_MOST_SLICES)
    found, is_complete = {}, slots is not None
    for slot in range(slots or 0):
        call = "nvmlDeviceGetMigDeviceHandleByIndex"
        handle = questions.ask(call, card.handle, slot, absent=False, codes=(NvmlCode.NOT_FOUND,))
        if handle is False:
            continue
        one = _read_slice(questions, handle, card.slices.get(slot)) if handle else None
        if one is None:
            is_complete = False
        else:
            found[slot] = one
    card.slices = found
    return list(found.values()), is_complete


def _read_slice(questions: _Questions, handle: Any, known: _MigSlice | None) -> _MigSlice | None:
    uuid = questions.ask("nvmlDeviceGetUUID", handle)
    if known is None or known.uuid != uuid:
        gi = questions.ask_number("nvmlDeviceGetGpuInstanceId", handle, most=_MOST_32)
        ci = questions.ask_number("nvmlDeviceGetComputeInstanceId", handle, most=_MOST_32)
        if not uuid or gi is None or ci is None:
            return None
        known = _MigSlice(handle, uuid, gi, ci)
    known.handle = handle
    if known.profile is None and (name := questions.ask("nvmlDeviceGetName", handle)):
        known.profile = name.partition(" MIG ")[2]  # NVIDIA A100-SXM4-40GB MIG 1g.5gb
    if known.memory_total is None:
        known.memory_total = _ask_memory(questions, handle)[1]
    return known


class _Gpm:
    """What MIG instances do, from two samples of the device's own counters: the last poll's and this one's."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._samples: dict[tuple[str, int], Any] = {}  # by device and GPU instance
        self._request = nvml.c_nvmlGpmMetricsGet_t(
            version=nvml.NVML_GPM_METRICS_GET_VERSION, numMetrics=len(_GPM_METRICS)
        )
        for index, metric in enumerate(_GPM_METRICS):
            self._request.metrics[index].metricId = metric

    def measure(self, questions: _Questions, card: _Card, gis: Collection[int]) -> dict[int, float | None]:
        """Percent since the last poll of each GPU instance; None at first sight. Empty where the device cannot tell."""
        if card.has_gpm is None:
            support = questions.ask("nvmlGpmQueryDeviceSupport", card.handle, absent=False)
            card.has_gpm = None if support is None else bool(support and support.isSupportedDevice)
        return {gi: self._measure(questions, card, gi) for gi in gis} if card.has_gpm else {}

    def _measure(self, questions: _Questions, card: _Card, gi: int) -> float | None:
        older, newer = self._samples.pop((card.uuid, gi), None), questions.ask("nvmlGpmSampleAlloc")
        if newer:
            self._samples[card.uuid, gi] = newer
        try:
            if not newer or questions.ask("nvmlGpmMigSampleGet", card.handle, gi, newer) is None:
                self._drop((card.uuid, gi))
                return None
            return self._compare(questions, older, newer) if older else None
        finally:
            self._free(older)

    def _compare(self, questions: _Questions, older: Any, newer: Any) -> float | None:
        self._request.sample1, self._request.sample2 = older, newer
        if questions.ask("nvmlGpmMetricsGet", self._request) is None:
            return None
        answers = self._request.metrics[: len(_GPM_METRICS)]
        answer = next((answer for answer in answers if answer.nvmlReturn == NvmlCode.OK), None)
        if answer is None:
            questions.note("nvmlGpmMetricsGet", answers[0].nvmlReturn)
        elif 0.0 <= answer.value < _MOST_PERCENT + 0.5:  # a mean: rounding may take it a little over
            return min(float(answer.value), float(_MOST_PERCENT))
        else:
            questions.reject("nvmlGpmMetricsGet")
        return None

    def keep_only(self, seen: Collection[tuple[str, int]]) -> None:
        for key in self._samples.keys() - set(seen):
            self._drop(key)

    def _drop(self, key: tuple[str, int]) -> None:
        self._free(self._samples.pop(key, None))

    def _free(self, sample: Any) -> None:
        if sample:
            _try(self._nvml, "nvmlGpmSampleFree", sample)


def _try(nvml: Any, call: str, *arguments: Any) -> Any:
    """Where the answer is welcome and an error changes nothing."""
    try:
        return getattr(nvml, call)(*arguments)
    except (nvml.NVMLError, UnicodeDecodeError):
        return None


def _down(sentence: str, error: Any) -> errors.DriverDown:
    code: int = error.value
    known = None if code == NvmlCode.LIBRARY_NOT_FOUND else code
    return errors.DriverDown(f"{sentence}: {error} (NVML error {code})", known)


def _name_error(nvml: Any, code: int) -> str:
    """`NotSupported`, as pynvml names it."""
    try:
        name: str = nvml.nvmlExceptionClass(code).__name__
    except ValueError:
        return f"Code{code}"
    return name.removeprefix("NVMLError_")


def _parse_version(text: str) -> tuple[int, ...]:
    """(535, 113, 1) of 535.113.01; empty if it is none."""
    is_one = text.replace(".", "").isdigit() and ".." not in f".{text}."
    return tuple(map(int, text.split("."))) if is_one else ()
