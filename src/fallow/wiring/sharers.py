"""Who could share the GPU that it holds: asked of the API server when somebody wants advice.

In: an Api. Out: Sharers, of one node or of all; unseen, and why, where nobody tells what owners used or pods may not be
listed. Nothing is written anywhere, and no Prometheus is asked: the daemon did, and its table says the rest.
"""

from fallow.clients import errors
from fallow.clients.kubernetes import api as kube
from fallow.decide import sharing
from fallow.model import cluster
from fallow.model.seen import ABSENT, Input, Known, Register, Unseen
from fallow.model.units import Instant
from fallow.observe import budgets, share_pods
from fallow.observe import sharing as watching
from fallow.wiring import share_why

_NOBODY = "no daemon tells what owners used (it measures that where there is a GPUSharingPolicy, and a Prometheus)"


async def find(api: kube.Api, now: Instant, node: str = "") -> Input[tuple[sharing.Sharer, ...]]:
    try:
        return await _find(api, now, node)
    except errors.ClientError as problem:
        return Unseen(str(problem))


async def _find(api: kube.Api, now: Instant, node: str) -> Input[tuple[sharing.Sharer, ...]]:
    namespace, terms = await share_why.find_terms(api)
    table = watching.watch_owner_use(api, namespace)
    await table.list_once()
    if not isinstance(table.seen, Known):
        return Unseen(table.seen.why if isinstance(table.seen, Unseen) else _NOBODY)
    running = await share_pods.list_running(api, node)
    places, owners = await list_namespaces(api), budgets.TopOwners(api)
    found = list[sharing.Sharer]()
    for each in running:
        owner = await owners.read_top(each.pod.namespace, list(each.owners))
        use = watching.find_use(table.seen, owner.value.uid, now) if isinstance(owner, Known) else ABSENT
        if isinstance(use, Unseen):  # the table is too old for anybody
            return use
        around = sharing.ShareAround(namespace=places.find(each.pod.namespace), owner=owner, use=use)
        sharer = sharing.see_sharer(each.pod, around, terms, now)
        found += [sharer] if sharer is not None else []
    return Known(tuple(found))


async def list_namespaces(api: kube.Api) -> Register[cluster.Namespace]:
    watched = budgets.watch_namespaces(api)
    await watched.list_once()
    return budgets.Places(watched).register
