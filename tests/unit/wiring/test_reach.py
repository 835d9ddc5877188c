"""Where somebody who runs once finds the daemon's Lease, and what is done where that cannot be told."""

import time
from collections.abc import AsyncIterator

import pytest

from fallow import names, verbs
from fallow.clients import errors
from fallow.clients.kubernetes import api as kube
from fallow.clients.kubernetes import config
from fallow.sim.servers import store as stores
from fallow.sim.servers.kubernetes import server
from fallow.wiring import reach


@pytest.fixture
def store() -> stores.Store:
    return stores.Store(time.time)


@pytest.fixture
async def pretend(store: stores.Store) -> AsyncIterator[server.KubernetesServer]:
    made = server.KubernetesServer(store, time.time)
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def api(pretend: server.KubernetesServer) -> AsyncIterator[kube.Api]:
    async with kube.Api(config.Access(server=pretend.url, context="pretend")) as made:
        yield made


def lease_in(store: stores.Store, *namespaces: str) -> None:
    for namespace in namespaces:
        metadata = {"name": names.LEASE, "namespace": namespace}
        store.create({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": {}})


@pytest.mark.parametrize(("namespaces", "home"), [((), "mine"), (("gpu-pruner-system",), "gpu-pruner-system")])
async def test_it_is_that_of_the_daemon_or_else_our_own(
    store: stores.Store, api: kube.Api, namespaces: tuple[str, ...], home: str
) -> None:
    lease_in(store, *namespaces)
    assert (await reach.find_home(api, "mine", acting=True)).namespace == home


async def test_who_acts_does_not_choose_between_several(store: stores.Store, api: kube.Api) -> None:
    """One of them may be frozen, also where the other is our own."""
    lease_in(store, "gpu-pruner-system", "mine")
    with pytest.raises(errors.BadAnswer, match=r"several namespaces \(gpu-pruner-system, mine\); say by POD_NAMESPACE"):
        await reach.find_home(api, "mine", acting=True)
    assert (await reach.find_home(api, "mine", acting=False)).namespace == "mine"


async def test_a_freeze_without_rights_does_not_say_that_no_daemon_runs(
    pretend: server.KubernetesServer, api: kube.Api
) -> None:
    pretend.refused, pretend.refusal = frozenset({"leases"}), 403
    found, unseen = await reach._find_leases(api, "mine")
    with pytest.raises(verbs.Declined) as declined:
        verbs.pick_lease(found, unseen)
    assert str(declined.value) == (
        "whether a daemon runs could not be seen, say with -n where its Lease gpu-pruner stands: leases may not be "
        "listed everywhere; of single namespaces, none could be looked at, and "
        f"{', '.join((*names.SYSTEM_NAMESPACES, 'mine'))} may not be read"
    )
    with pytest.raises(verbs.Declined, match=r"no daemon runs that this could reach$"):
        verbs.pick_lease([], "")


async def test_leases_that_may_not_be_read_are_not_taken_for_none(
    pretend: server.KubernetesServer, api: kube.Api
) -> None:
    pretend.refused, pretend.refusal = frozenset({"leases"}), 403
    with pytest.raises(errors.BadAnswer, match="may stand anywhere: leases may not be listed"):
        await reach.find_home(api, "mine", acting=True)
    assert (await reach.find_home(api, "mine", acting=False)).namespace == "mine"
