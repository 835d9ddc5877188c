"""For shared nodes and the policies of sharing: the stories with their eyes and hands.

In: what the daemon has assembled. Out: Stories for the loop, and what must run beside them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from fallow import loop, telemetry
from fallow.act import events, partitions, share_statuses
from fallow.clients.kubernetes import api as kube
from fallow.decide.sharing import PartIndex, ShareTerms
from fallow.model import classes, cluster, long_memory
from fallow.model.partition import PartitionNode
from fallow.model.seen import Input, Known, Unseen, several
from fallow.model.sharing import TopOwner
from fallow.model.units import Instant, Seconds
from fallow.observe import share_pods
from fallow.observe import sharing as watching
from fallow.observe.cluster import pods
from fallow.settings import readers
from fallow.settings.cost_enforcement import EXEMPT
from fallow.settings.sharing import DEFAULT_SCHEDULER, PartitionSettings
from fallow.stories import share_policies as told
from fallow.stories import sharing as shared
from fallow.wiring.ground import Groundwork

SHARING, POLICIES = "sharing", "share-policies"  # the names of the stories


class SharingParts(msgspec.Struct, frozen=True):
    """`nodes`: as the story sees them."""

    story: loop.Story
    nodes: Callable[[], Input[tuple[PartitionNode, ...]]]
    background: tuple[Callable[[], Coroutine[Any, Any, None]], ...]


def make_stories(ground: Groundwork) -> tuple[list[loop.Story], list[Callable[[], Coroutine[Any, Any, None]]]]:
    """The daemon's, and what must run beside them. No less often than it looks for idle GPUs."""
    made, policies = make_parts(ground), watching.watch_policies(ground.api)
    story = told.SharePoliciesStory(
        sights=told.PolicySights(
            policies=lambda: watching.rank(policies.seen), nodes=lambda: _index(made.nodes()),
            namespaces=lambda: ground.seen.namespaces, owners=lambda: _find_owners(ground),
            use=lambda uid: Unseen("nobody measured it"),
            running=lambda: share_pods.list_running(ground.api),
        ),
        statuses=share_statuses.ShareStatuses(ground.api), terms=_make_terms(ground),
    )
    told_policies = loop.Story(
        name=POLICIES, interval=min(told.INTERVAL, ground.options.loop.interval), budget=told.INTERVAL,
        tick=story.tick, look=story.look, fail=story.fail, is_vital=False,
    )
    return [made.story, told_policies], [*made.background, policies.run]


def _make_terms(ground: Groundwork) -> ShareTerms:
    """As the webhook has them where its flags are not given. What it may rewrite does not matter here: whoever is still
    whole is one that the policy would have changed."""
    return ShareTerms(
        exempt=readers.regex(f"(?:{EXEMPT})|{re.escape(ground.namespace)}"), rewrites=True,
        schedulers=frozenset({DEFAULT_SCHEDULER}), patterns=classes.Patterns(),
    )


def _index(seen: Input[tuple[PartitionNode, ...]]) -> Input[PartIndex]:
    if not isinstance(seen, Known):
        return seen
    parts = watching.keep_parts(several(tuple(each.parts for each in seen.value)))
    return Known(PartIndex(parts.value)) if isinstance(parts, Known) else parts


def _find_owners(ground: Groundwork) -> dict[str, TopOwner]:
    """By the uid of the pod."""
    everybody = ground.seen.pods
    return {
        everybody[place].uid: TopOwner(
            group=each.ref.group, kind=each.ref.kind, name=each.ref.name, uid=each.ref.uid, labels=each.labels,
            annotations=each.annotations,
        )
        for each in ground.seen.workloads({}) if each.ref.kind != kube.PODS.kind for place in each.pods
    }


def make_parts(ground: Groundwork) -> SharingParts:
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
        lambda: nodes.seen, (configs.run, nodes.run),
    )
