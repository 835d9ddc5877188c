"""Why a pod shares a GPU or keeps a whole one: asked of the API server at the instant somebody wants to know.

In: an Api; the policies, nodes and measured owners of a daemon, or as a look of one's own finds them. Out: a ShareWhy,
or None where there is no such pod. Nothing is written anywhere.
"""

import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import msgspec

from fallow.clients.kubernetes import api as kube
from fallow.decide import sharing
from fallow.model import classes
from fallow.model.policies.sharing import SharingPolicy
from fallow.model.seen import ABSENT, Input, Known
from fallow.model.sharing import OwnerUse, PartNode, ShareWhy
from fallow.model.units import Instant
from fallow.observe import budgets, share_pods
from fallow.observe import sharing as watching
from fallow.settings import readers
from fallow.settings.cost_enforcement import EXEMPT
from fallow.settings.sharing import DEFAULT_SCHEDULER
from fallow.wiring import reach


def make_terms(namespace: str) -> sharing.ShareTerms:
    """As the webhook has them where its flags are not given; `namespace`: ours. What it may rewrite does not matter
    here: whoever is still whole is one that the policy would have changed."""
    return sharing.ShareTerms(
        exempt=readers.regex(f"(?:{EXEMPT})|{re.escape(namespace)}"), rewrites=True,
        schedulers=frozenset({DEFAULT_SCHEDULER}), patterns=classes.Patterns(),
    )


def index_parts(seen: Input[tuple[PartNode, ...]]) -> Input[sharing.PartIndex]:
    parts = watching.keep_parts(seen)
    return Known(sharing.PartIndex(parts.value)) if isinstance(parts, Known) else parts


class WhyEyes(msgspec.Struct, frozen=True, kw_only=True):
    """What stands around a pod. `policies` by rank; `use`: of an owner, by its uid."""

    policies: Callable[[], Awaitable[Input[tuple[SharingPolicy, ...]]]]
    nodes: Callable[[], Awaitable[Input[sharing.PartIndex]]]
    use: Callable[[str], Awaitable[Input[OwnerUse]]]


class ShareExplainer:
    def __init__(self, api: kube.Api, eyes: WhyEyes, terms: sharing.ShareTerms) -> None:
        self._api, self._eyes, self._terms = api, eyes, terms
        self._owners = budgets.TopOwners(api)

    async def explain(self, namespace: str, pod: str, now: Instant) -> ShareWhy | None:
        """Raises what the server says of the pod itself; what else is not seen is in the verdict."""
        item = await share_pods.read(self._api, namespace, pod)
        if item is None:
            return None
        owner = await self._owners.read_top(namespace, item.metadata.owner_references)
        around = sharing.ShareAround(
            namespace=await budgets.read_namespace(self._api, namespace), owner=owner,
            policies=await self._eyes.policies(), nodes=await self._eyes.nodes(),
            use=await self._eyes.use(owner.value.uid) if isinstance(owner, Known) else ABSENT,
        )
        return sharing.explain_pod(share_pods.see(item, namespace), around, self._terms, now)


@asynccontextmanager
async def open_explainer(kubeconfig: str | None, context: str | None) -> AsyncIterator[ShareExplainer]:
    """For a look of one's own: what it needs is listed when it is needed."""
    async with reach.open_api(kubeconfig, context) as (api, own):
        known, parts = watching.watch_policies(api), watching.watch_part_nodes(api)

        async def policies() -> Input[tuple[SharingPolicy, ...]]:
            await known.list_once()
            return watching.rank(known.seen)

        async def nodes() -> Input[sharing.PartIndex]:
            await parts.list_once()
            return index_parts(parts.seen)

        async def use(uid: str) -> Input[OwnerUse]:
            table = watching.watch_owner_use(api, home.namespace)
            await table.list_once()
            return watching.find_use(table.seen, uid, time.time())

        home = await reach.find_home(api, own, acting=False)
        yield ShareExplainer(api, WhyEyes(policies=policies, nodes=nodes, use=use), make_terms(home.namespace))
