"""`fallow uninstall`: before fallow goes, everything that it holds is given back.

In: a kubeconfig. Out: a sentence for each thing given back, what stays, and the command that removes the rest; exit
code 1 while anything is still held. It removes no object of an installation: helm or kubectl do, afterwards. `helm
uninstall` runs this by itself.
Invariant: the daemon has confirmed that it pauses nothing before anything is brought back; else nothing is done.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

import click

from fallow import logs, verbs
from fallow.act import emptying, giving_back
from fallow.act.budgets import gates
from fallow.clients.kubernetes import api as kube
from fallow.clients.kubernetes import lease
from fallow.doors.cli import flags, interrupts, show
from fallow.doors.cli import where as where_options
from fallow.model import cluster, kinds, long_memory
from fallow.model.units import HOUR
from fallow.wiring import reach

_STAYS: Final = (
    "what stays: the definitions of custom resources (fallow crds shows them) with your policies and budgets, the "
    "books, and the annotations gpuautoscaler.io/* on workloads, which tell what happened",
    "now remove the rest: helm uninstall RELEASE, or kubectl delete -k deploy/acting (or what you applied)",
)


def _uninstall(yes: bool, namespace: str | None, kubeconfig: str | None, context: str | None) -> None:
    async def act() -> bool:
        memory = await _freeze(kubeconfig, context, namespace) if yes else {}
        if memory is None:
            return False
        async with (
            reach.open_api(kubeconfig, context) as (api, _),
            reach.open_reach(kubeconfig, context, None, everywhere=True) as reached,
        ):
            return await (_give_back(reached, api, memory) if yes else _tell_plan(reached, api))

    logs.set_up("default", "warning")
    with show.refusals():
        if not interrupts.run(act()):
            raise SystemExit(flags.EXIT_NO_DECISION)


async def _tell_plan(reached: verbs.Reach, api: kube.Api) -> bool:
    paused = await verbs.paused(reached, time.time())
    waiting = await gates.find(api, lambda resource: False)
    show.sentence(
        f"{len(paused)} workloads stand paused and would come back; {len(waiting)} pods wait for a budget and would go "
        "on; nodes that are being emptied would be given back", "nothing was done: repeat it with --yes",
    )
    return True


async def _freeze(kubeconfig: str | None, context: str | None, namespace: str | None) -> Mapping[str, str] | None:
    """What stands on its Lease; None: it was not heard, and what comes back could be paused again. Where no daemon ever
    ran there is nobody to ask."""
    try:
        async with reach.open_lease(kubeconfig, context, namespace) as on:
            answer = await verbs.freeze(on, HOUR, "it is removed", time.time())
            memory = on.lease.annotations
    except verbs.Declined as why:
        show.tell(f"nobody is asked to stop: {why}")
        return {} if why.why is verbs.Why.unknown else None
    if answer.heard is lease.Heard.silent:
        show.tell(f"the daemon {answer.holder} did not confirm that it pauses nothing, so nothing is brought back")
        return None
    return memory


async def _give_back(reached: verbs.Reach, api: kube.Api, memory: Mapping[str, str]) -> bool:
    """Is nothing held any more, as far as can be seen?"""
    now = time.time()
    outcomes = await verbs.resume_all(reached, now)
    found = [
        await giving_back.lift_gates(api),
        await giving_back.give_nodes_back(api, emptying.Emptier(api, reached.hands.announcer), now),
    ]
    hidden = [f"not seen: {each.what}: {each.because}" for each in verbs.find_hidden(reached) if _holds(each, memory)]
    held = [*hidden, *(sentence for each in found for sentence in each.held)]
    if not held:
        found.append(await giving_back.drop_finalizers(api))
    for sentence in (*(one.detail for one in outcomes), *(each for one in found for each in one.given_back)):
        show.sentence(sentence)
    for sentence in held:
        show.tell(sentence)
    is_all = not held and all(map(verbs.is_so, outcomes))
    if is_all:
        show.sentence("nothing is paused or held by fallow any more", *_STAYS)
    else:
        show.tell("something is still held: look at it, and repeat this; until then the daemon is frozen for an hour")
    return is_all


def _holds(missing: cluster.Missing, memory: Mapping[str, str]) -> bool:
    """May something of it stand paused? Of kinds outside the table only those whose group its Lease names."""
    plural, _, group = missing.what.partition(".")
    known = (*kinds.KINDS, kinds.SCALED_OBJECT, kinds.KUEUE_WORKLOAD)
    ever = {each[0] for each in long_memory.read_kinds(memory)}
    return group in ever or any((row.plural, row.group) == (plural, group) for row in known)


uninstall = click.Command(
    "uninstall", callback=_uninstall, context_settings=flags.CONTEXT,
    help="Give back all that fallow holds, before it is removed: what is paused comes back, pods that wait for a "
    "budget go on, nodes that are being emptied are given back. `helm uninstall` runs this by itself.\n\n\b\n"
    "  fallow uninstall\n  fallow uninstall --yes",
    params=[
        click.Option(["--yes"], is_flag=True, help="Do it; without this it only says what it would do."),
        click.Option(
            ["-n", "--namespace"], default=None, help="Namespace of the daemon's Lease; default: wherever it is.",
            callback=show.checked(lambda text: verbs.check_namespace(text)),
        ),
        *where_options.cluster_options(),
    ],
)
