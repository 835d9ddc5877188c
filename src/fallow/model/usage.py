"""What was measured: one row per pod's hold on a GPU, one column per signal, over one window.

`nan` means "not measured" in every column and never turns into 0. A row belongs to a pod that exists; GPUs nobody holds
are only counted. For a shared device the device-level columns hold the device's values (the highest of all rows of its
UUID), whatever pod they named; only process_sm, last_kernel and requests speak of the pod itself. Which primary may
speak for a row is said here once, for the eyes that look back and for the brain that judges.
"""

from collections.abc import Mapping
from enum import IntEnum
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from fallow.model.units import Instant, Seconds

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]
Indices = NDArray[np.int64]
Bools = NDArray[np.bool_]


class Signal(IntEnum):
    """Ratios are 0-1; copy, enc, dec are percent; pcie bytes/s; fb_growth MiB; power W; last_kernel seconds ago."""

    gr_engine = 0
    sm_active = 1
    gpu_util = 2  # DCGM_FI_DEV_GPU_UTIL: never valid on MIG, nor as primary on a shared device
    device_util = 3  # gpu_idle_device_utilization_percent: shown as gpu_util, valid on a shared device
    process_sm = 4
    last_kernel = 5
    tensor = 6
    dram = 7
    copy = 8
    enc = 9
    dec = 10
    pcie = 11
    fb_growth = 12
    power = 13
    requests = 14  # >= 1 when any request was running, waiting or served in the window

    @property
    def label(self) -> str:
        return "gpu_util" if self is Signal.device_util else self.name


PRIMARIES = (
    Signal.gr_engine, Signal.sm_active, Signal.gpu_util, Signal.device_util, Signal.process_sm, Signal.last_kernel,
)
OPTIONAL = tuple(signal for signal in Signal if signal not in PRIMARIES)
RATIOS = tuple(signal for signal in PRIMARIES if signal is not Signal.last_kernel)
OF_DEVICES = tuple(signal for signal in RATIOS if signal is not Signal.process_sm)
NEVER_ON_MIG: Final = frozenset({Signal.gpu_util, Signal.device_util})  # of them
TRICKLE: Final = 5.0  # a mean of this part of the threshold is work, though no single sample reaches it
FIRST_SAMPLE: Final[Seconds] = 180.0  # a new pod's first sample comes a scrape, a mapping and a step of a search later


def longest_gap(interval: Floats) -> Floats:
    """Seconds between two samples past which nobody watched."""
    return np.maximum(3.0 * interval, 300.0)


class Usage(msgspec.Struct, kw_only=True):
    """The evidence of one window. All arrays have one entry per row."""

    window: Seconds
    pod: Ints  # index into Snapshot.pods
    gpu: tuple[str, ...]  # GPU identity: UUID, or node/index; a MIG instance adds /GPU_I_ID
    model: tuple[str, ...]  # "" = not known
    mig: Bools
    shared: Bools
    peak: Mapping[Signal, Floats]  # highest in the window (last_kernel: latest); a signal nobody exports has no entry
    mean: Mapping[Signal, Floats]  # average over the window, primary ratios only
    count: Mapping[Signal, Floats]  # samples in the window, primaries only
    newest: Mapping[Signal, Floats]  # instant of the newest sample, primaries only
    interval: Floats  # seconds between samples of the row's job
    exporter_up: Bools  # False only where `up` is 0 now
    exporter_frozen: Bools  # energy did not move over the window
    power_floor: Floats  # lowest power of that UUID over 24 h, W; nan = not learned, or too long ago
    last_active: Floats  # by then the last activity of the look-back was over; nan = not looked up; -inf = none found
    observed_since: Floats  # since when it is watched without a longer gap than that; nan = not looked up
    # Of the rows, not of their numbers: an earlier Usage of the same source and window with the same version has the
    # same rows (pod, gpu, model). None = not known.
    version: int | None = None
    index: tuple[str, ...] = ()  # of each row's board on its node, "" = not known; () = of none, for people only
    blank: Mapping[Signal, Bools] = {}  # some of its samples are none, and hide what the others say

    @property
    def rows(self) -> int:
        return len(self.gpu)


def speaks_for_itself(use: Usage) -> Bools:
    """Which rows have a signal of the pod's own processes."""
    found = np.zeros(use.rows, np.bool_)
    for signal in (Signal.process_sm, Signal.last_kernel):
        if signal in use.peak:
            found |= use.peak[signal] >= 0
    return found


def find_speakers(use: Usage, mig: Bools, shared: Bools) -> dict[Signal, Bools]:
    """Where each primary may speak for a row: say that it is idle, and when it was last active.

    On a shared GPU the pod's own signals silence the device's, and DCGM's gpu_util never counts; on MIG no utilisation.
    """
    of_device = ~(shared & speaks_for_itself(use))
    allowed = {
        Signal.gr_engine: of_device,
        Signal.sm_active: of_device,
        Signal.gpu_util: of_device & ~mig & ~shared,
        Signal.device_util: of_device & ~mig,
    }
    measured = [signal for signal in PRIMARIES if signal in use.peak]
    return {signal: (use.peak[signal] >= 0) & allowed.get(signal, np.bool_(True)) for signal in measured}


def mean_use(use: Usage, mig: Bools, shared: Bools) -> Floats:
    """How busy each row was over the window, 0-1, by the first ratio that speaks of it alone; nan = not measured.

    What a shared device did is nobody's use: there only the pod's own processes count.
    """
    found = np.full(use.rows, np.nan)
    for signal in RATIOS:
        if signal in use.mean:
            is_own = np.ones(use.rows, np.bool_) if signal is Signal.process_sm else ~shared
            may = is_own & ~mig if signal in (Signal.gpu_util, Signal.device_util) else is_own
            found = np.where(np.isnan(found) & may, use.mean[signal], found)
    return found


class DrawnSpan(NamedTuple):
    """Points in time, `step` seconds apart; each stands for the step that ends with it."""

    start: Instant
    step: Seconds
    points: int

    @property
    def end(self) -> Instant:
        return self.start + (self.points - 1) * self.step


class Strictest(NamedTuple):
    """What the rules that can come to hold ask of a GPU, of each the strictest word of any of them."""

    quiet: float  # below it nothing is activity
    busy: float  # from it on everything is
    coverage: float
    max_sample_age: Seconds


class HourReading(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What was measured of one GPU in one pod's hands over an hour of the clock. `pod` "": in nobody's, as far as the
    exporter knows. `use`: of the device or instance, `own_use`: of the pod's own processes, of all of the device."""

    node: str
    namespace: str
    pod: str
    gpu: str  # as in Usage
    use: float | None = None
    own_use: float | None = None
    energy_mj: float | None = None
    watts: float | None = None  # mean
    floor_watts: float | None = None  # what that board draws when it does nothing; None = not known

    @property
    def board(self) -> str:
        """The GPU without its instance."""
        head, slash, _ = self.gpu.rpartition("/")
        return head if slash and self.gpu.startswith(("GPU-", "MIG-")) else self.gpu


class Candidates(NamedTuple):
    """Rows to look back at, and when the owner of each was warned; nan = not."""

    rows: Indices
    warned: Floats


class SourceTrouble(msgspec.Struct, frozen=True):
    """Why there is no evidence at all in this cycle: SourceError, BadResponse, PartialResponse, NoData, WarmingUp."""

    reason: str
    because: str


class LostSignal(msgspec.Struct, frozen=True):
    """A signal that could not be asked for, or not read of some series, and why: what only it shows goes unseen."""

    signal: str
    because: str


class Ignored(msgspec.Struct, frozen=True):
    """Series that were there and do not count: whose they are, and why not."""

    who: str
    because: str
    is_untrusted: bool = False  # for who says so, not for what it says


class Evidence(msgspec.Struct):
    """What the source gave in this cycle: a Usage per window that the rules ask for, or why nothing can be said."""

    at: Instant
    usage: Mapping[Seconds, Usage]
    trouble: SourceTrouble | None
    unallocated: int  # GPUs measured that no pod holds
    gpus_per_node: Mapping[str, int]
    lost_signals: tuple[LostSignal, ...]
    ignored: tuple[Ignored, ...] = ()
