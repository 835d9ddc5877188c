"""For budgets: the story with its eyes and hands, and for a person at a keyboard the wires by which a test goes.

In: what the daemon has assembled, and the books (BudgetBooks). Out: a Story for the loop and what must run beside it.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import msgspec

from fallow import loop, settings, telemetry
from fallow.act import events
from fallow.act.budgets import sending, statuses, wires
from fallow.act.notices import facts, senders
from fallow.clients.kubernetes import api as kube
from fallow.clients.messages import post
from fallow.decide.budgets import plan
from fallow.decide.budgets.node_pools import PoolEdits
from fallow.model import cluster
from fallow.model.policies.budget import CostAttribution, CostBudget, PodTraits
from fallow.model.seen import Input, several
from fallow.model.units import Instant
from fallow.observe import budgets as watching
from fallow.observe import claimed, node_pools
from fallow.observe.cluster import mirror
from fallow.stories import budgets as told_budgets
from fallow.wiring import reach

BUDGETS = "budgets"  # the name of the story


class BudgetParts(msgspec.Struct, frozen=True):
    """The story, and what follows the cluster for it. `attributions`, `budgets`: as the cluster has them."""

    story: loop.Story
    attributions: Callable[[], Input[tuple[CostAttribution, ...]]]
    budgets: Callable[[], Input[tuple[CostBudget, ...]]]
    background: tuple[Callable[[], Coroutine[Any, Any, None]], ...]


def make_story(
    options: settings.Settings, *, api: kube.Api, seen: mirror.Mirror, namespace: str, poster: post.Poster,
    head: facts.Letterhead, metrics: telemetry.Telemetry, books: told_budgets.BudgetBooks,
    announcer: events.Announcer, frozen: Callable[[Instant], str],
) -> BudgetParts:
    """`namespace`: ours, where the Secrets are. `frozen`: why nothing may be begun; "": it may."""
    known, shown = watching.watch_budgets(api), watching.watch_attributions(api)
    terms, allowed = options.enforcement, options.enforcement.enabled
    made = _make_wires(api, namespace, poster, options)
    hands = told_budgets.BudgetHands(
        api=api, wires=made, sender=sending.AlertSender(made, head, metrics), statuses=statuses.StatusWriter(api),
        announcer=announcer, is_gpu=seen.reader.is_gpu, count_claimed=claimed.ClaimReader(api).count_gpus,
    )
    sights = told_budgets.BudgetSights(
        budgets=lambda: known.seen, attributions=lambda: shown.seen, namespaces=lambda: seen.namespaces,
        pods=lambda: _find_pods(seen), nodes=lambda: seen.nodes,
        node_pools=lambda: node_pools.find(api), frozen=frozen,
    )
    story = told_budgets.BudgetsStory(
        sights=sights, books=books, hands=hands, metrics=metrics,
        terms=plan.BudgetTerms(
            enforces=allowed, longest_override=terms.longest_override, pools=_find_edits(options),
        ),
    )
    # No less often than the books are written.
    interval = min(told_budgets.INTERVAL, options.cost_store.interval)
    return BudgetParts(
        loop.Story(
            name=BUDGETS, interval=interval, budget=told_budgets.INTERVAL, tick=story.tick, look=story.look,
            fail=story.fail, is_vital=False,
        ),
        sights.attributions, sights.budgets,
        (known.run, shown.run),
    )


def _find_edits(options: settings.Settings) -> PoolEdits:
    if not options.enforcement.edits_node_pools:
        return PoolEdits.off
    return PoolEdits.done if options.enforcement.enabled and options.mandate.acting else PoolEdits.said


def _find_pods(seen: mirror.Mirror) -> Input[tuple[tuple[cluster.Pod, PodTraits], ...]]:
    return several(watching.find_traits(seen.pods, seen.workloads({}), seen.namespaces))


def _make_wires(
    api: kube.Api, namespace: str, poster: post.Poster, options: settings.Settings
) -> wires.AlertWires:
    secrets = senders.SecretReader(api, namespace)
    sender = senders.Senders(poster, secrets, options.telling.mail)
    return wires.AlertWires(poster, sender, secrets, options.enforcement.pager_url)


@contextlib.asynccontextmanager
async def open_wires(options: settings.Settings) -> AsyncIterator[tuple[kube.Api, wires.AlertWires]]:
    """For a test of a budget's channels: Secrets are read where the daemon has them, with the rights of who asks."""
    async with reach.open_api(options.kubeconfig, options.context) as (api, own):
        home = options.own_namespace or (await reach.find_home(api, own, acting=False)).namespace
        async with post.Poster(options.environment) as poster:
            yield api, _make_wires(api, home, poster, options)
