"""GPUs that look as if they were kept busy only to be left alone: what was measured of them, for people to judge.

Nothing is ever done because of it: a heartbeat, a health check or a small model may look the same.
"""

from typing import Final

import msgspec

from fallow.model import cluster
from fallow.model.units import HOUR, Instant, Seconds
from fallow.model.usage import Floats

SPAN: Final[Seconds] = 6 * HOUR
STEP: Final[Seconds] = 30.0


class Burner(msgspec.Struct, frozen=True):
    """A GPU that only gr_engine or gpu_util call active, and whose it is."""

    workload: cluster.Ref
    gpu: str  # its UUID


class Burned(msgspec.Struct, frozen=True, kw_only=True):
    """What one GPU did in SPAN. nan: not measured. `activity`: the highest of every step, as a ratio."""

    activity: Floats
    mean: float
    tensor: float
    dram: float
    sm: float  # highest; nan where nobody exports it


class Suspect(msgspec.Struct, frozen=True, kw_only=True):
    """A workload of which every active GPU was kept busy by short bursts at even distances, and did nothing else."""

    workload: cluster.Ref
    gpus: tuple[str, ...]
    since: Instant
    until: Instant
    mean: float  # the highest of its GPUs, as all that follow
    tensor: float
    dram: float
    bursts: int  # the fewest
    every: Seconds  # between the begins of two bursts
    variation: float  # of that, as a share
