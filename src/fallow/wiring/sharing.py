"""For shared nodes and the policies of sharing: the stories with their eyes and hands.

In: what the daemon has assembled. Out: Stories for the loop, and what must run beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

import msgspec

from fallow import loop, names, telemetry
from fallow.act import claim_templates, events, owner_uses, partitions, share_statuses
from fallow.clients.kubernetes import api as kube
from fallow.clients.prometheus import client
from fallow.decide.sharing import PartIndex, ShareTerms
from fallow.model import cluster, kinds, long_memory
from fallow.model.claims import ClaimGround
from fallow.model.partition import PartitionNode
from fallow.model.patterns import Pattern
from fallow.model.policies.sharing import SharingPolicy
from fallow.model.seen import Input, Known, Register, Unseen, several
from fallow.model.sharing import OwnerUse, TopOwner
from fallow.model.units import Instant, Seconds
from fallow.observe import claims as claiming
from fallow.observe import share_pods
from fallow.observe import sharing as watching
from fallow.observe.cluster import pods
from fallow.observe.usage import hurting, owning
from fallow.settings.sharing import PartitionSettings
from fallow.stories import owner_use as measuring
from fallow.stories import share_claims as templating
from fallow.stories import share_guard as guarding
from fallow.stories import share_policies as reporting
from fallow.stories import sharing as shared
from fallow.wiring import share_terms, share_why
from fallow.wiring.ground import Groundwork

# The names of the stories.
SHARING, POLICIES, OWNER_USE, GUARD, CLAIMS = "sharing", "share-policies", "owner-use", "share-guard", "share-claims"


class SharingParts(msgspec.Struct, frozen=True):
    """`nodes`: as the story sees them."""

    story: loop.Story
    nodes: Callable[[], Input[tuple[PartitionNode, ...]]]
    background: tuple[Callable[[], Coroutine[Any, Any, None]], ...]


class ClaimParts(msgspec.Struct, frozen=True):
    """`nodes`, `ground`: as the story sees them."""

    story: loop.Story
    nodes: Callable[[], Input[PartIndex]]
    ground: Callable[[], Input[ClaimGround]]
    background: tuple[Callable[[], Coroutine[Any, Any, None]], ...]


class SharingStories(msgspec.Struct, frozen=True):
    """`beside`: what must run beside them. `explainer`: for who asks why a pod shares, or not."""

    stories: list[loop.Story]
    beside: list[Callable[[], Coroutine[Any, Any, None]]]
    explainer: share_why.ShareExplainer


def make_stories(ground: Groundwork) -> SharingStories:
    """The daemon's. No less often than it looks for idle GPUs."""
    made, policies = make_parts(ground), watching.watch_policies(ground.api)
    asked, statuses = _find_prometheus(ground), share_statuses.ShareStatuses(ground.api)
    used = _make_owner_use(ground, lambda: isinstance(policies.seen, Known), asked)
    guard = guarding.ShareGuardStory(
        sights=guarding.GuardSights(
            policies=lambda: policies.seen, pods=lambda: ground.seen.pods,
            workloads=lambda: ground.seen.workloads({}), namespaces=lambda: ground.seen.namespaces,
            nodes=lambda: ground.seen.nodes, read=asked and hurting.HurtReader(*asked).read,
        ),
        acts=guarding.GuardHands(
            hands=ground.hands, statuses=statuses, enter=ground.kept.enter if ground.kept is not None else None,
            held=lambda now: why_held(ground, now, acts=True, flag=""),
        ),
        metrics=ground.metrics,
    )
    sights = reporting.PolicySights(
        policies=lambda: watching.rank(policies.seen), nodes=lambda: _index(made.nodes()),
        namespaces=lambda: ground.seen.namespaces, owners=lambda: _find_owners(ground),
        use=used.find, reverts=guard.find_reverts, running=lambda: share_pods.list_running(ground.api),
    )
    claimed: list[loop.Story] = []
    beside = [*made.background, policies.run]
    if ground.options.sharing.by_claims:
        kept = make_claims(
            ground.api, policies=sights.policies, namespaces=sights.namespaces,
            exempt=share_terms.find_exempt(ground.namespace),
            held=lambda now: why_held(ground, now, acts=ground.options.sharing.acts, flag="--sharing"),
            interval=min(templating.INTERVAL, ground.options.loop.interval),
        )
        sights = msgspec.structs.replace(sights, nodes=kept.nodes, claims=kept.ground)
        claimed, beside = [kept.story], [*beside, *kept.background]

    async def find_terms() -> ShareTerms:
        return (await _read_terms(ground))[0]

    story = reporting.SharePoliciesStory(
        sights=sights, statuses=statuses, terms=find_terms, metrics=ground.metrics,
        by_claims=ground.options.sharing.by_claims,
    )
    reported = loop.Story(
        name=POLICIES, interval=min(reporting.INTERVAL, ground.options.loop.interval), budget=reporting.INTERVAL,
        tick=story.tick, look=story.look, fail=story.fail, is_vital=False,
    )
    measured = loop.Story(
        name=OWNER_USE, interval=min(measuring.INTERVAL, ground.options.loop.interval), budget=measuring.BUDGET,
        tick=used.tick, look=used.look, fail=used.fail, is_vital=False,
    )
    guarded = loop.Story(
        name=GUARD, interval=min(guarding.INTERVAL, ground.options.loop.interval), budget=guarding.INTERVAL,
        tick=guard.tick, look=guard.look, fail=guard.fail, is_vital=False,
    )
    return SharingStories(
        [made.story, *claimed, measured, guarded, reported], beside, _make_explainer(ground, sights)
    )


def make_claims(
    api: kube.Api, *, policies: Callable[[], Input[tuple[SharingPolicy, ...]]],
    namespaces: Callable[[], Register[cluster.Namespace]], exempt: Pattern,
    held: Callable[[Instant], str] = lambda _: "", interval: Seconds = templating.INTERVAL,
) -> ClaimParts:
    """`policies` by rank."""
    eyes, watched = claiming.ClaimEyes(api), watching.watch_part_nodes(api)

    def nodes() -> Input[PartIndex]:
        return share_why.index_parts(claiming.join_devices(watched.seen, eyes.slices.seen))

    story = templating.ShareClaimsStory(
        sights=templating.TemplateSights(
            policies=policies, namespaces=namespaces, nodes=nodes, ground=lambda: eyes.ground,
            named=lambda namespace: claiming.list_named(api, namespace),
        ),
        hands=claim_templates.ClaimHands(api), exempt=exempt, held=held,
    )
    return ClaimParts(
        loop.Story(
            name=CLAIMS, interval=interval, budget=templating.INTERVAL, tick=story.tick, look=story.look,
            fail=story.fail, is_vital=False,
        ),
        nodes, lambda: eyes.ground, tuple(each.run for each in (watched, *eyes.watched)),
    )


def _find_prometheus(ground: Groundwork) -> tuple[client.Prometheus, owning.UseWords] | None:
    """Whom to ask what pods used, and whose series count; None: there is nobody to believe."""
    options = ground.options
    honors = options.long_past is not None and options.long_past.honor_labels
    # Where labels are as the exporter wrote them nothing tells which exporter that was.
    if ground.past is None or (honors and not options.trust_metrics):
        return None
    words = owning.UseWords(
        *(("pod", "namespace") if honors else ("exported_pod", "exported_namespace")),
        exporters=None if options.trust_metrics else options.exporter_namespaces.pattern,
    )
    return ground.past, words


def _make_owner_use(
    ground: Groundwork, is_wanted: Callable[[], bool], asked: tuple[client.Prometheus, owning.UseWords] | None
) -> measuring.OwnerUseStory:
    async def measure(pods: Sequence[owning.OwnedPod], now: Instant) -> Mapping[str, OwnerUse]:
        assert asked is not None
        prometheus, words = asked
        return await owning.read(prometheus, pods, words, now)

    return measuring.OwnerUseStory(
        is_wanted=is_wanted, pods=lambda: _find_owned(ground), measure=None if asked is None else measure,
        tell=owner_uses.UseTeller(ground.api, ground.namespace).tell,
    )


def _find_owned(ground: Groundwork) -> list[owning.OwnedPod]:
    owners = _find_owners(ground)
    return [
        owning.OwnedPod(pod.namespace, pod.name, owners[pod.uid].uid, pod.created_at)
        for pod in ground.seen.pods if pod.uid in owners
    ]


def _index(seen: Input[tuple[PartitionNode, ...]]) -> Input[PartIndex]:
    if not isinstance(seen, Known):
        return seen
    return share_why.index_parts(watching.keep_parts(several(tuple(each.parts for each in seen.value))))


def _make_explainer(ground: Groundwork, sights: reporting.PolicySights) -> share_why.ShareExplainer:
    """By what the stories see."""

    async def look() -> share_why.WhySights:
        terms, assumed = await _read_terms(ground)
        return share_why.WhySights(
            policies=sights.policies(), nodes=sights.nodes(), claims=sights.claims(), terms=terms, assumed=assumed
        )

    async def use(uid: str) -> Input[OwnerUse]:
        return sights.use(uid)

    return share_why.ShareExplainer(ground.api, look, use)


async def _read_terms(ground: Groundwork) -> tuple[ShareTerms, str]:
    """The webhook's; where they are not seen the usual ones, and what is assumed by that."""
    there = await share_why.read_terms(ground.api, ground.namespace)
    usual = share_terms.make_usual(ground.namespace, by_claims=ground.options.sharing.by_claims)
    return there.value if isinstance(there, Known) else usual, share_why.explain_unseen(there)


def _find_owners(ground: Groundwork) -> dict[str, TopOwner]:
    """By the uid of the pod."""
    everybody = ground.seen.pods
    return {
        everybody[place].uid: see_top(each)
        for each in ground.seen.workloads({}) if each.ref.kind != kube.PODS.kind for place in each.pods
    }


def see_top(of: cluster.Workload) -> TopOwner:
    """As the webhook finds it, who goes up to the CronJob of a Job."""
    top = kinds.find_schedule(of) or of.ref
    return TopOwner(
        group=top.group, kind=top.kind, name=top.name, uid=top.uid, labels=of.labels, annotations=_find_marks(of)
    )


def _find_marks(of: cluster.Workload) -> Mapping[str, str]:
    """As the webhook reads them: a back-off may stand below."""
    if names.BACKOFF_UNTIL not in of.marks:
        return of.annotations
    return {**{key: of.marks[key] for key in names.BACKOFF_MARKS if key in of.marks}, **of.annotations}


def make_parts(ground: Groundwork) -> SharingParts:
    return make_story(
        ground.options.sharing, api=ground.api, reader=ground.seen.reader, announcer=ground.hands.announcer,
        metrics=ground.metrics, find_pods=lambda: _find_pods(ground),
        held=lambda now: "--sharing-backend is dra" if ground.options.sharing.by_claims else why_held(
            ground, now, acts=ground.options.sharing.acts, flag="--sharing"
        ),
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
