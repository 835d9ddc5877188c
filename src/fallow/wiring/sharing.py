"""For shared nodes: the story with its eyes and hands.

In: what the daemon has assembled. Out: a Story for the loop, and what must run beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from fallow import loop, telemetry
from fallow.act import events, partitions
from fallow.clients.kubernetes import api as kube
from fallow.model import cluster, long_memory
from fallow.model.seen import Input, Unseen, several
from fallow.model.units import Instant, Seconds
from fallow.observe import sharing as watching
from fallow.observe.cluster import pods
from fallow.settings.sharing import PartitionSettings
from fallow.stories import sharing as shared
from fallow.wiring.ground import Groundwork

SHARING = "sharing"  # the name of the story


class SharingParts(msgspec.Struct, frozen=True):
    story: loop.Story
    background: tuple[Callable[[], Coroutine[Any, Any, None]], ...]


def make_parts(ground: Groundwork) -> SharingParts:
    """The daemon's. No less often than it looks for idle GPUs."""
    return make_story(
        ground.options.sharing, api=ground.api, reader=ground.seen.reader, announcer=ground.hands.announcer,
        metrics=ground.metrics, find_pods=lambda: _find_pods(ground),
        held=lambda now: why_held(ground, now, acts=ground.options.sharing.acts, flag="--sharing"),
        interval=min(shared.INTERVAL, ground.options.loop.interval),
    )


def why_held(ground: Groundwork, now: Instant, *, acts: bool, flag: str) -> str:
    """Why nodes are left as they are: nobody asked for more than advice, or we are frozen. "": they need not be."""
    if not acts:
        return f"{flag} is not act"
    freeze = long_memory.read_freeze(ground.leadership.annotations, now)
    return str(freeze) if freeze is not None and freeze.holds(now) else ""


def _find_pods(ground: Groundwork) -> Input[tuple[cluster.Pod, ...]]:
    """All that hold or ask for GPUs; unseen where they are not seen in full."""
    if not ground.seen.contents.sees_all:
        return Unseen("only some namespaces are looked into (--watch-namespaces)")
    why = ground.seen.why_blind_to_pods()
    return several(ground.seen.pods) if why is None else Unseen(str(why))


def make_story(
    options: PartitionSettings, *, api: kube.Api, reader: pods.PodReader, announcer: events.Announcer,
    metrics: telemetry.Telemetry, find_pods: Callable[[], Input[tuple[cluster.Pod, ...]]],
    held: Callable[[Instant], str] = lambda _: "", interval: Seconds = shared.INTERVAL,
) -> SharingParts:
    """`find_pods`: all that hold or ask for GPUs; unseen where they are not seen in full."""
    configs, nodes = watching.watch_node_configs(api), watching.watch_partition_nodes(api)

    async def mig_keys() -> Any:
        return watching.find_mig_configs(await watching.read_documents(api, options.mig_map))

    sights = shared.SharingSights(
        configs=lambda: configs.seen, nodes=lambda: nodes.seen, pods=find_pods, mig_keys=mig_keys,
        plugin_keys=lambda: watching.read_documents(api, options.plugin_map),
        holding=lambda node: watching.list_holding(api, node, reader),
    )
    hands = partitions.PartitionHands(api, announcer, plugin_map=options.plugin_map, mig_map=options.mig_map)
    story = shared.SharingStory(sights=sights, hands=hands, metrics=metrics, most=options.max_changes, held=held)
    return SharingParts(
        loop.Story(
            name=SHARING, interval=interval, budget=shared.INTERVAL, tick=story.tick, look=story.look,
            fail=story.fail, is_vital=False,
        ),
        (configs.run, nodes.run),
    )
