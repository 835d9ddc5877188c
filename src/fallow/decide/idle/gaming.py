"""Who is kept busy only to be left alone? Listed with the evidence, and never acted on.

In: the measurements of a window, to choose whom to ask about; then what those GPUs did in six hours. Out: Suspects.
Of a suspect only gr_engine or gpu_util is active, its mean is below 0.02, tensor cores and memory stay below 0.01, and
its bursts come at even distances (variation below 0.2).
Invariant: what was not measured speaks for a GPU, never against it.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np

from fallow.decide.idle import judge
from fallow.model import cluster, usage
from fallow.model.gaming import SPAN, STEP, Burned, Burner, Suspect
from fallow.model.units import Instant
from fallow.model.usage import Bools, Floats, Signal

MOST: Final = 200  # GPUs that are asked about, at one time
_ACTIVE, _MEAN, _QUIET, _EVEN = 0.01, 0.02, 0.01, 0.2
_LEAST_BURSTS: Final = 6
_LEAST_MEASURED: Final = 0.8  # of the span
_ONLY: Final = (Signal.gr_engine, Signal.gpu_util, Signal.device_util)
_SILENT: Final = (Signal.tensor, Signal.dram)


def find_burners(seen: cluster.Snapshot) -> list[Burner]:
    """Whole GPUs of which that is true in the shortest window; MOST of them, and of a workload all or none: by some of
    its GPUs nobody is listed."""
    if not seen.evidence.usage:
        return []
    use = seen.evidence.usage[min(seen.evidence.usage)]
    owner = {pod: workload.ref for workload in seen.workloads for pod in workload.pods}
    rows = np.flatnonzero(_burns(use) & ~use.mig & ~use.shared).tolist()
    found = (Burner(owner[int(use.pod[row])], use.gpu[row]) for row in rows if int(use.pod[row]) in owner)
    return _choose(each for each in found if each.gpu.startswith("GPU-"))


def _choose(burners: Iterable[Burner]) -> list[Burner]:
    by_workload = dict[cluster.Ref, list[Burner]]()
    for each in burners:
        by_workload.setdefault(each.workload, []).append(each)
    chosen = list[Burner]()
    for some in by_workload.values():
        if not chosen or len(chosen) + len(some) <= MOST:  # one that is larger than that alone
            chosen += some
    return chosen


def _burns(use: usage.Usage) -> Bools:
    active, small = np.zeros(use.rows, np.bool_), np.zeros(use.rows, np.bool_)
    for signal in _ONLY:
        if signal in use.peak:
            active |= use.peak[signal] >= _ACTIVE
            small |= use.mean.get(signal, np.full(use.rows, np.nan)) < _MEAN
    limits = dict.fromkeys(usage.RATIOS, _ACTIVE) | judge.LIMITS
    others = [signal for signal in limits if signal not in _ONLY and signal in use.peak]
    busy_otherwise = [use.peak[signal] >= limits[signal] for signal in others]
    silent = [_column(use, signal) < _QUIET for signal in _SILENT]  # nan: not measured, and so not silent
    return np.asarray(active & small & ~np.any([*busy_otherwise, np.zeros(use.rows, np.bool_)], 0) & np.all(silent, 0))


def _column(use: usage.Usage, signal: Signal) -> Floats:
    return use.peak.get(signal, np.full(use.rows, np.nan))


def find_suspects(burners: Sequence[Burner], did: Mapping[str, Burned], now: Instant) -> list[Suspect]:
    """All the burners of a workload must look so; those with the most GPUs first."""
    by_workload = dict[cluster.Ref, list[str]]()
    for each in burners:
        by_workload.setdefault(each.workload, []).append(each.gpu)
    found = (_judge(ref, gpus, did, now) for ref, gpus in by_workload.items())
    return sorted(filter(None, found), key=lambda one: (-len(one.gpus), str(one.workload)))


def _judge(ref: cluster.Ref, gpus: Sequence[str], did: Mapping[str, Burned], now: Instant) -> Suspect | None:
    known = [did[gpu] for gpu in gpus if gpu in did]
    if len(known) != len(gpus) or not all(map(_is_empty, known)):
        return None
    bursts = [_find_bursts(one.activity) for one in known]
    if any(len(each) < _LEAST_BURSTS for each in bursts):
        return None
    gaps = [np.diff(each) * STEP for each in bursts]
    variation = max(float(each.std() / each.mean()) for each in gaps)
    if variation >= _EVEN:
        return None
    return Suspect(
        workload=ref, gpus=tuple(gpus), since=now - SPAN, until=now, mean=max(one.mean for one in known),
        tensor=max(one.tensor for one in known), dram=max(one.dram for one in known),
        bursts=min(len(each) for each in bursts), every=float(np.median(np.concatenate(gaps))),
        variation=round(variation, 3),
    )


def _is_empty(one: Burned) -> bool:
    measured = float(np.isfinite(one.activity).mean()) if one.activity.size else 0.0
    is_quiet = one.mean < _MEAN and one.tensor < _QUIET and one.dram < _QUIET and not one.sm >= _ACTIVE
    return measured >= _LEAST_MEASURED and is_quiet


def _find_bursts(activity: Floats) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    """Where each begins: a step that is active after one that is not."""
    active = np.nan_to_num(activity, nan=0.0) >= _ACTIVE
    return np.flatnonzero(active & ~np.append(True, active[:-1])).astype(np.int64)
