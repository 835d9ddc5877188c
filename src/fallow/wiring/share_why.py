"""Why a pod shares a GPU or keeps a whole one: asked of the API server at the instant somebody wants to know.

In: an Api; the policies, nodes and measured owners of a daemon, or as a look of one's own finds them. Out: a ShareWhy,
or None where there is no such pod. Nothing is written anywhere.
"""

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import msgspec

from fallow import names
from fallow.clients import errors
from fallow.clients.kubernetes import api as kube
from fallow.decide import sharing
from fallow.model.claims import ClaimGround
from fallow.model.policies.sharing import SharingPolicy
from fallow.model.seen import ABSENT, Input, Known, Unseen
from fallow.model.sharing import OwnerUse, PartNode, ShareWhy
from fallow.model.units import Instant
from fallow.observe import budgets, share_pods
from fallow.observe import claims as claiming
from fallow.observe import sharing as watching
from fallow.settings import cost_enforcement, readers
from fallow.wiring import reach, share_terms


class _Started(msgspec.Struct, frozen=True):
    command: tuple[str, ...] | None = None
    args: tuple[str, ...] | None = None


class _StartedSpec(msgspec.Struct, frozen=True):
    containers: tuple[_Started, ...] = ()


class _StartedTemplate(msgspec.Struct, frozen=True):
    spec: _StartedSpec = _StartedSpec()


class _WebhookSpec(msgspec.Struct, frozen=True):
    template: _StartedTemplate = _StartedTemplate()


class _WebhookDeployment(msgspec.Struct, frozen=True):
    spec: _WebhookSpec = _WebhookSpec()


async def read_terms(api: kube.Api, namespace: str) -> Input[sharing.ShareTerms]:
    """By the command line of the webhook that is deployed in our namespace; unseen where there is none, it may not be
    read, or its flags are none of ours."""
    try:
        found = await api.get(kube.DEPLOYMENTS, namespace, names.WEBHOOK, kind=_WebhookDeployment)
        started = next(iter(found.spec.template.spec.containers), _Started())
        words = (*(started.command or ()), *(started.args or ()))
        return Known(share_terms.of_options(cost_enforcement.read_webhook_arguments(words, namespace)))
    except errors.NotFound:
        return Unseen(f"there is no Deployment {names.WEBHOOK} in {namespace}")
    except (errors.ClientError, readers.UsageError) as problem:
        return Unseen(str(problem))


async def find_terms(api: kube.Api) -> tuple[str, sharing.ShareTerms]:
    """Where the daemon lives, and the terms of the webhook there, or those that it would have."""
    home = await reach.find_home(api, None, acting=False)
    there = await read_terms(api, home.namespace)
    return home.namespace, there.value if isinstance(there, Known) else share_terms.make_usual(home.namespace)


def explain_unseen(terms: Input[sharing.ShareTerms]) -> str:
    """What is then assumed; "": nothing has to be."""
    if isinstance(terms, Known):
        return ""
    why = terms.why if isinstance(terms, Unseen) else "nobody looked"
    return f"its flags are not seen ({why}): told as if they were the usual ones, with --rewrite-requests true"


def index_parts(seen: Input[tuple[PartNode, ...]]) -> Input[sharing.PartIndex]:
    return Known(sharing.PartIndex(seen.value)) if isinstance(seen, Known) else seen


class WhySights(msgspec.Struct, frozen=True, kw_only=True):
    """What stands around any pod. `policies` by rank; `claims`: where parts of GPUs are given by those."""

    policies: Input[tuple[SharingPolicy, ...]]
    nodes: Input[sharing.PartIndex]
    claims: Input[ClaimGround]
    terms: sharing.ShareTerms
    assumed: str = ""  # what of these terms nobody saw


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
        made = sharing.explain_pod(share_pods.see(item, namespace), around, seen.terms, now)
        return msgspec.structs.replace(made, assumed=seen.assumed)


@asynccontextmanager
async def open_explainer(kubeconfig: str | None, context: str | None) -> AsyncIterator[ShareExplainer]:
    """For a look of one's own: what it needs is listed when it is needed. Where the webhook's flags are not seen and
    templates of ours stand, or may not be listed, parts of GPUs are given by claims."""
    async with reach.open_api(kubeconfig, context) as (api, own):
        known, parts, claimed = watching.watch_policies(api), watching.watch_part_nodes(api), claiming.ClaimEyes(api)

        async def look() -> WhySights:
            for each in (known, parts, claimed.templates):
                await each.list_once()
            there, listed = await read_terms(api, home.namespace), claimed.templates.seen
            by_claims = there.value.by_claims if isinstance(there, Known) else isinstance(listed, Known | Unseen)
            for watched in claimed.watched if by_claims else ():
                await watched.list_once()
            nodes = claiming.join_devices(parts.seen, claimed.slices.seen) if by_claims else watching.keep_parts(
                parts.seen
            )
            return WhySights(
                policies=watching.rank(known.seen), nodes=index_parts(nodes),
                claims=claimed.ground if by_claims else ABSENT, assumed=explain_unseen(there),
                terms=there.value if isinstance(there, Known)
                else share_terms.make_usual(home.namespace, by_claims=by_claims),
            )

        async def use(uid: str) -> Input[OwnerUse]:
            table = watching.watch_owner_use(api, home.namespace)
            await table.list_once()
            return watching.find_use(table.seen, uid, time.time())

        home = await reach.find_home(api, own, acting=False)
        yield ShareExplainer(api, look, use)
