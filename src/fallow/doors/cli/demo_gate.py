"""The gate of the pretend cluster: the real webhook's judgement on every pod that is made there.

In: a kubeconfig of the pretend API server and the world's clock. Out: for a pod, the operations by which the webhook
changes it; none where it leaves it alone. It follows policies, nodes and owners over sockets as the webhook does.
Also the two policies of the demo: they audit for a quarter of the day, and then somebody puts them in force.
"""

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec

from fallow import names, settings
from fallow.clients.kubernetes import api as kube
from fallow.clients.kubernetes import config
from fallow.doors.webhook import serve, sharing
from fallow.model.units import Instant, Seconds
from fallow.observe import budgets
from fallow.observe import sharing as observed
from fallow.sim import stage
from fallow.sim.servers import store as stores
from fallow.sim.world import world as worlds
from fallow.wiring import share_terms

Object: TypeAlias = dict[str, Any]

IN_FORCE: Final = 0.25  # of the day
_NAMESPACE: Final = "default"  # of the product
# By the mode of the nodes that it needs: how, and for whom.
_POLICIES: Final[Mapping[str, tuple[str, str, str]]] = {
    "time-sliced": ("notebooks", "timeslicing", "notebook"), "mps": ("services", "mps", "inference"),
}


def make_policies(world: worlds.World) -> Iterator[Object]:
    """One for each way in which nodes of this world share their GPUs."""
    modes = {node.mode for node in world.nodes.values()}
    for mode, (name, strategy, work) in _POLICIES.items():
        if mode in modes:
            yield {
                "apiVersion": f"{names.GROUP}/{names.POLICY_VERSION}", "kind": names.SHARING_POLICY_KIND,
                "metadata": {"name": name}, "spec": {"strategy": strategy, "mode": "audit", "workloadTypes": [work]},
            }


def plan_force(on: stage.Stage, length: Seconds) -> None:
    """Somebody who has seen what they would do puts the policies in force."""
    def enforce() -> None:
        for policy in make_policies(on.world):
            key = stores.Key(names.GROUP, names.SHARING_POLICY_KIND, "", policy["metadata"]["name"])
            on.store.patch(key, {"spec": {"mode": "enforce"}}, stores.Writer(manager="kubectl-edit"))
        on.world.note("sharing is in force")

    on.world.at(on.world.now + IN_FORCE * length, enforce)


@contextlib.asynccontextmanager
async def opened(kubeconfig: Path, clock: Callable[[], Instant]) -> AsyncIterator[stage.Admit]:
    access = config.load_access(kubeconfig=str(kubeconfig), context=None, environment=settings.environment())
    async with kube.Api(access) as api:
        places, policies, nodes = budgets.watch_namespaces(api), observed.watch_policies(api), \
            observed.watch_part_nodes(api)
        used, owners = observed.watch_owner_use(api, _NAMESPACE), budgets.TopOwners(api)
        eyes = serve.make_share_eyes(policies, nodes, places, owners, used, None, clock)
        judge = sharing.ShareJudge(eyes, share_terms.make_usual(_NAMESPACE), clock)
        following = [asyncio.create_task(each.run()) for each in (places, policies, nodes, used)]
        try:
            yield lambda pod: _admit(judge, pod)
        finally:
            for each in following:
                each.cancel()
            await asyncio.gather(*following, return_exceptions=True)


async def _admit(judge: sharing.ShareJudge, pod: Object) -> tuple[Object, ...]:
    request = {"uid": "demo", "operation": "CREATE", "namespace": pod["metadata"]["namespace"], "object": pod}
    answer = await judge.judge(msgspec.json.encode({"request": request}))
    patch = msgspec.json.decode(answer.body)["response"].get("patch")
    return tuple(msgspec.json.decode(base64.b64decode(patch))) if patch else ()
