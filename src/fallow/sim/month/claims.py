"""Machines as something to put jobs on: who fits onto which, and how few new ones hold the rest.

In: jobs; machines that stand or come, by what is free on each. Out: who fits nowhere, and Claims on machines to buy.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from fallow.model.cost import CapacityType
from fallow.sim.cloud import PretendGroup
from fallow.sim.month import pools
from fallow.sim.month.jobs import GpuJob
from fallow.sim.month.scene import LARGE


class MachineClaim(msgspec.Struct):
    """A machine to be bought, and how much of it is spoken for."""

    tier: CapacityType
    gpus: int

    is_large: bool

    def fits(self, job: GpuJob) -> bool:
        """Machines that are kept for large jobs, and those that are not, are two pools."""
        most = pools.SIZES[-1] if self.is_large else LARGE // 2
        return self.gpus + job.gpus <= most and self.suits(job)

    def suits(self, job: GpuJob) -> bool:
        return job.spot == (self.tier is CapacityType.spot) and (job.is_large or not self.is_large)

    @property
    def size(self) -> int:
        return next(size for size in pools.SIZES if size >= self.gpus)

    @property
    def price(self) -> float:
        return pools.PER_GPU[self.tier] * self.size


def claim_of(group: PretendGroup) -> MachineClaim:
    return MachineClaim(group.tier, 0, (group.shape.gpus or 0) >= LARGE)


def put(asked: Iterable[GpuJob], claims: Sequence[MachineClaim], room: Sequence[int]) -> list[GpuJob]:
    """Who fits nowhere among these, largest first."""
    free, left = Counter(dict(enumerate(room))), list[GpuJob]()
    for job in sorted(asked, key=lambda job: -job.gpus):
        fitting = [
            place for place, claim in enumerate(claims)
            if free[place] >= job.gpus and claim.suits(job)
        ]
        if fitting:
            free[min(fitting, key=lambda place: free[place])] -= job.gpus
        else:
            left.append(job)
    return left


def bundle(asked: Iterable[GpuJob]) -> list[MachineClaim]:
    """As few machines as hold them."""
    claims = list[MachineClaim]()
    for job in sorted(asked, key=lambda job: -job.gpus):
        tier = CapacityType.spot if job.spot else CapacityType.on_demand
        found = next((claim for claim in claims if claim.is_large == job.is_large and claim.fits(job)), None)
        if found is None:
            claims.append(found := MachineClaim(tier, 0, job.is_large))
        found.gpus += job.gpus
    return claims
