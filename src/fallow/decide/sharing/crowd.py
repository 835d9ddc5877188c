"""How many of those who hold a whole GPU each could share one: for who writes a GPUSharingPolicy or a GPUNodeConfig.

In: pods that run, with what stands around them; the memory of the GPU that they would share. Out: Sharers, and a
CrowdAdvice on all of them together.
Invariant: whoever must not share, trains, or is not measured for four fifths of the time is no part of a crowd. What a
crowd is advised suits each of them, and the largest need of any fits as often as that.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from fallow import names
from fallow.decide.sharing import needs, strategy, why
from fallow.decide.sharing.needs import ShareNeeds
from fallow.decide.sharing.strategy import ShareAround, ShareTerms
from fallow.model.classes import WorkClass
from fallow.model.share_advice import CrowdAdvice
from fallow.model.sharing import SharePod, ShareReason
from fallow.model.units import Instant

_UNSEEN: Final = (ShareReason.NamespaceUnseen, ShareReason.OwnerUnseen)


class Sharer(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that may share the GPU that it holds. `most_replicas`, `most_clients`: as its people say, if they do."""

    pod: str
    node: str
    needs: ShareNeeds
    most_replicas: int | None = None
    most_clients: int | None = None

    @property
    def is_measured(self) -> bool:
        return None not in (self.needs.memory, self.needs.compute, self.needs.mean)

    def count_turns(self, largest: int, gpu_memory: int) -> int:
        assert self.needs.mean is not None
        assert self.needs.compute is not None
        turns = needs.advise_replicas(
            self.needs.mean, self.needs.compute, largest_need=largest, gpu_memory=gpu_memory
        )
        return min(turns, self.most_replicas or turns)

    def count_clients(self, largest: int, gpu_memory: int) -> int:
        assert self.needs.compute is not None
        return needs.advise_clients(
            self.needs.compute, need=largest, gpu_memory=gpu_memory, most=needs.bound_clients(self.most_clients)
        )


def see_sharer(pod: SharePod, around: ShareAround, terms: ShareTerms, now: Instant) -> Sharer | None:
    """None: it shares already, or must keep its whole GPU. Where nobody sees whether it must, it is not measured."""
    free = why.put_back(pod)
    if strategy.is_optimized(pod) or strategy.leave_alone(free, terms):
        return None
    kept = strategy.heed_surroundings(free, around, now)
    if kept is not None and kept.reason in _UNSEEN:
        return Sharer(pod=f"{pod.namespace}/{pod.name}", node=pod.node_name, needs=ShareNeeds())
    if kept is not None or strategy.classify(free, around, terms).work is WorkClass.training:
        return None
    try:
        found = needs.find(pod.marks, around.use)
    except ValueError:  # what it says cannot be read, so the webhook leaves it alone
        return None
    return Sharer(
        pod=f"{pod.namespace}/{pod.name}", node=pod.node_name, needs=found,
        most_replicas=needs.read_most([pod.marks], names.TIMESLICE_REPLICAS),
        most_clients=needs.read_most([pod.marks], names.MPS_CLIENTS),
    )


def advise_crowd(sharers: Sequence[Sharer], gpu_memory: int | None) -> CrowdAdvice:
    """`gpu_memory`: MiB of the smallest GPU that they would share; None: not known, and then nobody can tell."""
    could, alone, unknown = list[Sharer](), list[str](), list[str]()
    for each in sharers:
        if not each.is_measured or gpu_memory is None:
            unknown.append(each.pod)
        elif each.count_turns(each.needs.memory or 0, gpu_memory) > 1:
            could.append(each)
        else:
            alone.append(each.pod)
    made = CrowdAdvice(could=tuple(each.pod for each in could), alone=tuple(alone), unknown=tuple(unknown))
    if not could or gpu_memory is None:
        return made
    largest = max(each.needs.memory or 0 for each in could)
    return msgspec.structs.replace(
        made, largest_need=largest, replicas=min(each.count_turns(largest, gpu_memory) for each in could),
        clients=min(each.count_clients(largest, gpu_memory) for each in could),
    )
