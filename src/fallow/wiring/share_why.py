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
from fallow.model.claims import ClaimGround
from fallow.model.patterns import Pattern
from fallow.model.policies.sharing import SharingPolicy
from fallow.model.seen import ABSENT, Input, Known
from fallow.model.sharing import OwnerUse, PartNode, ShareWhy
from fallow.model.units import Instant
from fallow.observe import budgets, share_pods
from fallow.observe import claims as claiming
from fallow.observe import sharing as watching
from fallow.settings import readers
from fallow.settings.cost_enforcement import EXEMPT
from fallow.settings.sharing import DEFAULT_SCHEDULER
from fallow.wiring import reach


def find_exempt(namespace: str) -> Pattern:
    """`namespace`: ours."""
    return readers.regex(f"(?:{EXEMPT})|{re.escape(namespace)}")


def make_terms(namespace: str, *, by_claims: bool = False) -> sharing.ShareTerms:
    """As the webhook has them where its flags are not given; `namespace`: ours. What it may rewrite does not matter
    here: whoever is still whole is one that the policy would have changed."""
    return sharing.ShareTerms(
        exempt=find_exempt(namespace), rewrites=True, by_claims=by_claims,
        schedulers=frozenset({DEFAULT_SCHEDULER}), patterns=classes.Patterns(),
    )


def index_parts(seen: Input[tuple[PartNode, ...]]) -> Input[sharing.PartIndex]:
    return Known(sharing.PartIndex(seen.value)) if isinstance(seen, Known) else seen


class WhySights(msgspec.Struct, frozen=True, kw_only=True):
    """What stands around any pod. `policies` by rank; `claims`: where parts of GPUs are given by those."""

    policies: Input[tuple[SharingPolicy, ...]]
    nodes: Input[sharing.PartIndex]
    claims: Input[ClaimGround]
    terms: sharing.ShareTerms


class ShareExplainer:
    """`use`: of an owner, by its uid."""

    def __init__(
        self, api: kube.Api, look: Callable[[], Awaitable[WhySights]], use: Callable[[str], Awaitable[Input[OwnerUse]]]
    ) -> None:
        self._api, self._look, self._use = api, look, use
        self._owners = budgets.TopOwners(api)

    async def explain(self, namespace: str, pod: str, now: Instant) -> ShareWhy | None:
        """Raises what the server says of the pod itself; what else is not seen is in the verdict."""
        item = await share_pods.read(self._api, namespace, pod)
        if item is None:
            return None
        owner, seen = await self._owners.read_top(namespace, item.metadata.owner_references), await self._look()
        around = sharing.ShareAround(
            namespace=await budgets.read_namespace(self._api, namespace), owner=owner, policies=seen.policies,
            nodes=seen.nodes, claims=seen.claims,
            use=await self._use(owner.value.uid) if isinstance(owner, Known) else ABSENT,
        )
        return sharing.explain_pod(share_pods.see(item, namespace), around, seen.terms, now)


@asynccontextmanager
async def open_explainer(kubeconfig: str | None, context: str | None) -> AsyncIterator[ShareExplainer]:
    """For a look of one's own: what it needs is listed when it is needed. Where templates of ours stand, parts of GPUs
    are given by claims."""
    async with reach.open_api(kubeconfig, context) as (api, own):
        known, parts, claimed = watching.watch_policies(api), watching.watch_part_nodes(api), claiming.ClaimEyes(api)

        async def look() -> WhySights:
            for each in (known, parts, claimed.templates):
                await each.list_once()
            by_claims = isinstance(claimed.templates.seen, Known)
            for watched in claimed.watched if by_claims else ():
                await watched.list_once()
            nodes = claiming.join_devices(parts.seen, claimed.slices.seen) if by_claims else watching.keep_parts(
                parts.seen
            )
            return WhySights(
                policies=watching.rank(known.seen), nodes=index_parts(nodes),
                claims=claimed.ground if by_claims else ABSENT, terms=make_terms(home.namespace, by_claims=by_claims),
            )

        async def use(uid: str) -> Input[OwnerUse]:
            table = watching.watch_owner_use(api, home.namespace)
            await table.list_once()
            return watching.find_use(table.seen, uid, time.time())

        home = await reach.find_home(api, own, acting=False)
        yield ShareExplainer(api, look, use)
