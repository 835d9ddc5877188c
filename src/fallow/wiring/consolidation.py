"""For nodes that could be emptied, and pods that could be moved for others: the stories with their eyes and hands.

In: the Groundwork. Out: Stories for the loop.
"""

from __future__ import annotations

import functools

from fallow import loop
from fallow.act import emptying as acting
from fallow.act.moving import Mover
from fallow.decide import packing
from fallow.model import cluster
from fallow.model.scaling_plan import Fit
from fallow.model.units import Instant
from fallow.observe.cluster import emptied, hosts, moved
from fallow.stories import consolidation, defrag
from fallow.stories.scaling import ScalingCycle
from fallow.wiring import sharing
from fallow.wiring.ground import Groundwork, Later
from fallow.wiring.scaling import SCALING

CONSOLIDATION, DEFRAG = "consolidation", "defrag"  # the names of the stories


def make_story(ground: Groundwork) -> loop.Story:
    options = ground.options.consolidation
    story = consolidation.ConsolidationStory(
        eyes=make_eyes(ground), hands=acting.Emptier(ground.api, ground.hands.announcer), metrics=ground.metrics,
        terms=consolidation.ConsolidationTerms(
            held=lambda now: sharing.why_held(ground, now, acts=options.acts, flag="--consolidation"),
            plans=options.is_on, threshold=options.threshold,
        ),
    )
    return loop.Story(
        name=CONSOLIDATION, interval=min(consolidation.INTERVAL, ground.options.loop.interval),
        budget=consolidation.BUDGET, tick=story.tick, look=story.look, fail=story.fail, is_vital=False,
    )


def make_defrag(ground: Groundwork, later: Later) -> loop.Story:
    options, eyes = ground.options.defrag, make_eyes(ground)
    story = defrag.DefragStory(
        eyes=defrag.DefragEyes(
            moves=moved.MoveEyes(ground.api, eyes.nodes.why_fixed, ground.namespace), capacity=eyes.capacity,
            why_kept=eyes.why_kept,
            waits=lambda now: any(packing.is_stuck(pod, now) for pod in ground.seen.pods),
            served=lambda: find_served(later),
        ),
        hands=Mover(ground.api, ground.hands.announcer), metrics=ground.metrics,
        terms=defrag.DefragTerms(
            held=lambda now: sharing.why_held(ground, now, acts=options.acts, flag="--defrag"), plans=options.is_on,
            schedulers=options.schedulers, enter=ground.kept.enter if ground.kept is not None else None,
        ),
    )
    return loop.Story(
        name=DEFRAG, interval=min(defrag.INTERVAL, ground.options.loop.interval), budget=defrag.BUDGET,
        tick=story.tick, look=story.look, fail=story.fail, is_vital=False,
    )


def find_served(later: Later) -> frozenset[str]:
    """Pods that our own scaling has bought a machine for, which is no node yet."""
    cycle = later.looping.latest(SCALING)
    plan = cycle.plan if isinstance(cycle, ScalingCycle) else None
    return frozenset(each.pod.uid for each in (plan.pods if plan else ()) if each.fit is Fit.FitsInFlight)


def make_eyes(ground: Groundwork) -> consolidation.ConsolidationEyes:
    @functools.lru_cache(maxsize=1)  # of one turn: asked for every pod of a node
    def find_kept(now: Instant) -> packing.WhyKept:
        seen = ground.seen
        return packing.find_kept(seen.pods, seen.workloads({}), seen.namespaces, ground.options.mandate, now)

    async def look_who_is_kept() -> packing.WhyKept:
        now = ground.clock()
        await ground.seen.refresh(now)
        find_kept.cache_clear()  # also where a clock stands still, as that of a pretend world may
        return find_kept(now)

    def why_fixed(pod: cluster.Pod, now: Instant) -> str:
        return find_kept(now)(pod) or packing.why_fixed(pod, now)

    nodes = emptied.NodeEyes(ground.api, why_fixed)
    return consolidation.ConsolidationEyes(nodes, lambda: hosts.look(ground.api), look_who_is_kept)
