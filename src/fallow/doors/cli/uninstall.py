"""`fallow uninstall`: before fallow goes, everything that it holds is given back.

In: a kubeconfig. Out: a sentence for each thing as soon as it is given back, what stays, and the command that removes
the rest; exit code 1 while anything is still held. Of an installation it removes the configurations of the webhook,
which would gate the pods of what comes back, and what no manifest has; helm or kubectl remove the rest, afterwards.
`helm uninstall` runs this by itself.
Invariant: the daemon has confirmed that it pauses nothing before anything is brought back; else nothing is done.
However it ends, what was said is done, and to repeat it does the rest.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from typing import Final

import click
import msgspec

from fallow import logs, names, settings, verbs
from fallow.act import emptying, giving_back, headroom, leaving, moving
from fallow.act.budgets import gates
from fallow.clients import errors
from fallow.clients.kubernetes import api as kube
from fallow.clients.kubernetes import lease
from fallow.decide import sharing
from fallow.doors import answers
from fallow.doors.cli import flags, interrupts, show
from fallow.doors.cli import where as where_options
from fallow.model import cluster, kinds, long_memory
from fallow.model.claims import ClaimTemplate
from fallow.model.seen import Known, Unseen
from fallow.model.units import HOUR
from fallow.observe import claims, node_pools
from fallow.wiring import reach

_NEXT: Final = "now remove the rest: helm uninstall RELEASE, or kubectl delete -k deploy/acting (or what you applied)"
_STAYS: Final = (
    "what stays: the definitions of custom resources (fallow crds shows them) with your policies and budgets; the "
    "books; the annotations gpuautoscaler.io/* on workloads and nodes, which tell what happened; GPUs that a "
    "GPUNodeConfig cut or shared, as they are, with the keys fallow-* in the ConfigMaps that say how, because pods run "
    "on them: delete a GPUNodeConfig while fallow runs to have the former layout back"
)


def _uninstall(yes: bool, namespace: str | None, kubeconfig: str | None, context: str | None) -> None:
    own = namespace or settings.environment().get("POD_NAMESPACE")

    async def act() -> bool:
        home = await (_freeze if yes else _find_home)(kubeconfig, context, own)
        if home is None:
            return False
        async with (
            reach.open_api(kubeconfig, context) as (api, _),
            reach.open_reach(kubeconfig, context, None, everywhere=True) as reached,
        ):
            return await (_give_back(reached, api, home) if yes else _tell_plan(reached, api, home))

    logs.set_up("default", "warning")
    try:
        with show.refusals():
            is_all = interrupts.run(act())
    except (click.ClickException, KeyboardInterrupt):
        if yes:
            show.tell("it broke off: what is said above is done; repeat it for the rest")
        raise
    if not is_all:
        raise SystemExit(flags.EXIT_NO_DECISION)


class LeaseHome(msgspec.Struct, frozen=True, kw_only=True):
    """Where the daemon lives, None: it is not known; and what stands on its Lease."""

    namespace: str | None = None
    memory: Mapping[str, str] = {}


async def _tell_plan(reached: verbs.Reach, api: kube.Api, home: LeaseHome) -> bool:
    """What --yes would do, thing by thing. Nothing is changed."""
    paused = await verbs.paused(reached, time.time())
    waiting = await gates.find(api, lambda resource: False)
    nodes = await giving_back.find_held_nodes(api)
    room = await headroom.find_standing(api, home.namespace)
    made = [f"{resource.kind} {meta.name}" for find in (giving_back.find_door, giving_back.find_class)
            for resource, meta in await find(api)]
    made += [f"ResourceClaimTemplate {each.name} in {each.namespace}" for each in await _find_templates(api)]
    pools = await node_pools.find(api)
    hidden = [each for each in verbs.find_hidden(reached) if _holds(each, {})]
    show.sentence(
        f"{answers.many(len(paused), 'workload')} paused would come back; {answers.many(len(waiting), 'pod')} behind "
        f"the gate of a budget would go on; {answers.many(len(nodes), 'node')} would be given back; "
        f"{answers.many(len(room) if home.namespace else 0, 'object')} that keep room ahead of demand would go",
        *(f"paused: {kinds.typed(each.ref)} in {each.ref.namespace}" for each in paused),
        *(f"waits: pod {each.ref.name} in {each.ref.namespace}" for each in waiting),
        *nodes,
        *(f"held by a budget: NodePool {each.name}" for each in (pools.value if isinstance(pools, Known) else ())
          if each.record is not None),
        *(f"{'keeps room' if home.namespace else 'not touched unless you say -n'}: {resource.kind} {meta.name} in "
          f"{meta.namespace}" for resource, meta in room),
        *(f"would go: {each}" for each in made),
        *(f"not seen: {each.what}: {each.because}" for each in hidden),
        *((f"not seen: {pools.why}",) if isinstance(pools, Unseen) else ()),
        _STAYS, "nothing was done: repeat it with --yes",
    )
    return True


async def _find_home(kubeconfig: str | None, context: str | None, namespace: str | None) -> LeaseHome:
    """For who only asks."""
    try:
        async with reach.open_lease(kubeconfig, context, namespace) as on:
            return LeaseHome(namespace=on.namespace)
    except verbs.Declined as why:
        show.tell(f"where the daemon lives is not known: {why}")
        return LeaseHome(namespace=namespace)


async def _freeze(kubeconfig: str | None, context: str | None, namespace: str | None) -> LeaseHome | None:
    """None: it was not heard, and what comes back could be paused again. Where no daemon ever ran there is nobody to
    ask."""
    try:
        async with reach.open_lease(kubeconfig, context, namespace) as on:
            answer = await verbs.freeze(on, HOUR, "it is removed", time.time())
            home = LeaseHome(namespace=on.namespace, memory=on.lease.annotations)
    except verbs.Declined as why:
        show.tell(f"nobody is asked to stop: {why}")
        return LeaseHome(namespace=namespace) if why.why is verbs.Why.unknown else None
    if answer.heard is lease.Heard.silent:
        show.tell(f"the daemon {answer.holder} did not confirm that it pauses nothing, so nothing is brought back")
        return None
    show.sentence("the daemon pauses nothing for an hour")
    return home


async def _give_back(reached: verbs.Reach, api: kube.Api, home: LeaseHome) -> bool:
    """Is nothing held any more, as far as can be seen?"""
    is_all = await _tell_each(_walk(reached, api, home))
    is_all = is_all and await _tell_each(_finish(api))  # who needs these goes only then
    if is_all:
        show.sentence("nothing is paused or held by fallow any more", _STAYS, _NEXT, _tell_rest(home))
    else:
        show.tell("something is still held: look at it, and repeat this; until then the daemon is frozen for an hour")
    return is_all


async def _tell_each(found: AsyncIterator[giving_back.Leavings]) -> bool:
    """Is none of it held any more?"""
    is_all = True
    async for each in found:
        is_all = is_all and not each.held
        for sentence in each.given_back:
            show.sentence(sentence)
        for sentence in each.held:
            show.tell(sentence)
    return is_all


async def _walk(reached: verbs.Reach, api: kube.Api, home: LeaseHome) -> AsyncIterator[giving_back.Leavings]:
    """One thing after the other: one that fails holds up no other."""
    now, announcer = time.time(), reached.hands.announcer
    async for each in giving_back.open_door(api):
        yield each
    for workload in await verbs.paused(reached, now):
        outcome = await verbs.resume_one(reached, workload, now)
        said = (outcome.detail,)
        yield giving_back.Leavings(said) if verbs.is_so(outcome) else giving_back.Leavings(held=said)
    hidden = (missing for missing in verbs.find_hidden(reached) if _holds(missing, home.memory))
    yield giving_back.Leavings(held=tuple(f"not seen: {missing.what}: {missing.because}" for missing in hidden))
    nodes = giving_back.give_nodes_back(
        api, emptying.Emptier(api, announcer), leaving.LeavingHands(api, announcer), moving.Mover(api, announcer), now
    )
    pools = giving_back.give_pools_back(api, node_pools.find)
    for step in (pools, nodes, giving_back.clear_room(api, home.namespace), giving_back.lift_gates(api)):
        async for each in step:
            yield each


async def _finish(api: kube.Api) -> AsyncIterator[giving_back.Leavings]:
    templates = giving_back.drop_templates(api, _find_templates)
    for step in (giving_back.drop_finalizers(api), giving_back.drop_class(api), templates):
        async for each in step:
            yield each


async def _find_templates(api: kube.Api) -> list[ClaimTemplate]:
    """Of claims: ours by name and label, which a tenant could have written too, and by what they ask for."""
    pages = api.list_pages(kube.CLAIM_TEMPLATES, item=claims.TemplateItem, label_selector="=".join(names.MANAGED_BY))
    try:
        seen = [claims.see_template(item) async for page in pages for item in page.items]
    except errors.NotFound:  # no such kind here
        return []
    return [each for each in seen if each is not None and sharing.is_as_made(each)]


def _tell_rest(home: LeaseHome) -> str:
    """What the daemon itself made, and makes again while it runs."""
    things = f"lease/{names.LEASE} configmap/{names.OWNER_USE} secret/{names.WEBHOOK_CERTIFICATE}"
    place = home.namespace or "NAMESPACE"
    return f"then what it made while it ran: kubectl -n {place} delete --ignore-not-found {things}"


def _holds(missing: cluster.Missing, memory: Mapping[str, str]) -> bool:
    """May something of it stand paused? Of kinds outside the table only those whose group its Lease names."""
    plural, _, group = missing.what.partition(".")
    known = (*kinds.KINDS, kinds.SCALED_OBJECT, kinds.KUEUE_WORKLOAD)
    ever = {each[0] for each in long_memory.read_kinds(memory)}
    return group in ever or any((row.plural, row.group) == (plural, group) for row in known)


uninstall = click.Command(
    "uninstall", callback=_uninstall, context_settings=flags.CONTEXT,
    help="Give back all that fallow holds, before it is removed: what is paused comes back, pods that wait for a "
    "budget go on, NodePools that one holds have their limits back, nodes that are being emptied are given back, room "
    "that is kept ahead of demand goes, and nobody is asked about new pods any more. Without --yes it only says what "
    "that is. `helm uninstall` runs this by itself.\n\n"
    "\b\n  fallow uninstall\n  fallow uninstall --yes",
    params=[
        click.Option(["--yes"], is_flag=True, help="Do it; without this it only says what it would do."),
        click.Option(
            ["-n", "--namespace"], default=None, help="Namespace of the daemon's Lease; default: wherever it is.",
            callback=show.checked(lambda text: verbs.check_namespace(text)),
        ),
        *where_options.cluster_options(),
    ],
)
