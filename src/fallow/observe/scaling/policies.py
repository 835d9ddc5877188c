"""AutoscalingPolicies as the cluster has them, followed; and what their status remembers for us.

In: an Api. Out: ScalingPolicies by rank. A kind that the server does not have is absent.
"""

from typing import Any

import msgspec

from fallow.clients.kubernetes import api as kube
from fallow.model.policies import scaling_crd
from fallow.model.policies.scaling import ScalingPolicy
from fallow.model.seen import Input, Known
from fallow.observe.budgets import SpendMeta, Watching


class ScalingItem(msgspec.Struct, frozen=True):
    """An AutoscalingPolicy, half decoded."""

    metadata: SpendMeta = SpendMeta()
    spec: msgspec.Raw = msgspec.Raw(b"null")
    status: msgspec.Raw = msgspec.Raw(b"null")

    def whole(self) -> dict[str, Any]:
        parts = {"spec": msgspec.json.decode(self.spec), "status": msgspec.json.decode(self.status)}
        return {"metadata": msgspec.to_builtins(self.metadata), **parts}


def watch(api: kube.Api) -> Watching[ScalingPolicy]:
    return Watching(api, kube.SCALING_POLICIES, ScalingItem, lambda item: scaling_crd.parse(item.whole()))


def rank(seen: Input[tuple[ScalingPolicy, ...]]) -> Input[tuple[ScalingPolicy, ...]]:
    return Known(tuple(sorted(seen.value, key=lambda each: each.rank))) if isinstance(seen, Known) else seen
