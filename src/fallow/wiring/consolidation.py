"""For nodes that could be emptied: the story with its eyes and hands. In: the Groundwork. Out: a Story for the loop."""

from __future__ import annotations

import functools

from fallow import loop
from fallow.act import emptying as acting
from fallow.decide import packing
from fallow.model import cluster
from fallow.model.units import Instant
from fallow.observe.cluster import emptied, hosts
from fallow.stories import consolidation
from fallow.wiring import sharing
from fallow.wiring.ground import Groundwork

CONSOLIDATION = "consolidation"  # the name of the story


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
