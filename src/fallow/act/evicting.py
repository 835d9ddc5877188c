"""Evicts one pod: by the Eviction API alone, so that PodDisruptionBudgets are heeded, and by its uid.

In: an Api, which pod. Out: PodEvicted: a sentence, and what was said against it. `send` is the bare request, which
raises.
"""

from typing import Any, Final

import msgspec

from fallow import names
from fallow.clients import errors
from fallow.clients.kubernetes import api as kube
from fallow.model.cluster import PodId

_SAID: Final = 300  # characters of a refusal
_BUDGET_SAYS: Final = "disruption budget"  # a server that is only busy answers 429, too


class PodEvicted(msgspec.Struct, frozen=True):
    """`refusal`: why it was not; "": it was, or is gone already. `is_budget`: a PodDisruptionBudget said so."""

    said: str
    refusal: str = ""
    is_budget: bool = False


async def send(api: kube.Api, pod: PodId, grace: int | None = None) -> None:
    """`grace`: seconds; None: as the pod has it."""
    options: dict[str, Any] = {"preconditions": {"uid": pod.uid}}
    if grace is not None:
        options["gracePeriodSeconds"] = grace
    body = {
        "apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod.name, "namespace": pod.namespace},
        "deleteOptions": options,
    }
    path = kube.PODS.path(pod.namespace, pod.name, "eviction")
    await api.request("POST", path, body=msgspec.json.encode(body), patience=kube.ONCE)


async def evict(api: kube.Api, pod: PodId, grace: int | None = None) -> PodEvicted:
    who = f"{pod.namespace}/{pod.name}"
    try:
        await send(api, pod, grace)
    except (errors.NotFound, errors.Conflict):
        return PodEvicted(f"{who} is gone already")
    except errors.ClientError as problem:
        refusal = str(problem)[:_SAID]
        is_budget = _BUDGET_SAYS in refusal or names.SEVERAL_BUDGETS in refusal
        return PodEvicted(f"{who} was not evicted: {refusal}", refusal, is_budget)
    return PodEvicted(f"{who} was evicted")
