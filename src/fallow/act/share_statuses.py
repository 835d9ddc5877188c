"""Statuses of GPUSharingPolicies and GPUNodeConfigs: written where they say something else than before.

In: the object with the status that stands there, the new one. Out: one server-side apply, or none.
Invariant: what is not known now is left out, and stays as it was. A failure is told once, and never fails what it tells
of.
"""

import logging
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from fallow import names
from fallow.clients import errors
from fallow.clients.kubernetes import api as kube
from fallow.model import units
from fallow.model.policies import crd, sharing_crd
from fallow.model.policies.sharing import NodeConfig, SharingPolicy
from fallow.model.share_hurts import RevertsKept
from fallow.model.sharing import PolicyStanding
from fallow.model.units import Instant

log = logging.getLogger("fallow")

_REVERTS: Final = ("recentReverts", "earlierReverts")  # written by themselves, when somebody was hurt


class ShareStatuses:
    def __init__(self, api: kube.Api) -> None:
        self._api, self._is_failing = api, False

    async def write(
        self, resource: kube.Resource, of: SharingPolicy | NodeConfig, status: Mapping[str, Any]
    ) -> None:
        if _timeless(status) == _timeless(of.status):
            return
        body = {
            "apiVersion": resource.api_version, "kind": resource.kind, "metadata": {"name": of.name, "uid": of.uid},
            "status": status,
        }
        try:
            await self._api.apply(resource, None, of.name, body, field_manager=names.FIELD_MANAGER, force=True,
                                  subresource="status")
        except (errors.NotFound, errors.Conflict):  # deleted, or deleted and made again
            return
        except errors.ClientError as problem:
            if not self._is_failing:
                log.warning("the status of %s %s cannot be written: %s", resource.kind, of.name, problem)
            self._is_failing = True
            return
        self._is_failing = False

    async def note_reverts(self, policy: SharingPolicy, kept: RevertsKept) -> None:
        """Whom it hurt, beside what `write` keeps there: a brake must outlive us. Raises what the server says."""
        body = {"metadata": {"uid": policy.uid}, "status": sharing_crd.write_reverts(kept)}
        await self._api.merge_patch(kube.SHARING_POLICIES, None, policy.name, body,
                                    field_manager=names.FIELD_MANAGER, subresource="status")

    async def report_policy(self, policy: SharingPolicy, standing: PolicyStanding, now: Instant) -> None:
        await self.write(kube.SHARING_POLICIES, policy, make_policy_status(policy, standing, now))


def make_policy_status(policy: SharingPolicy, standing: PolicyStanding, now: Instant) -> dict[str, Any]:
    """What could not be counted stays as it was."""
    before, counts = policy.status, standing.counts
    made = sharing_crd.SharingPolicyStatus(
        observed_generation=policy.generation, last_update_time=units.rfc3339(now),
        applied_pods=counts.applied if counts is not None else before.get("appliedPods"),
        audited_pods=counts.audited if counts is not None else before.get("auditedPods"),
        reverted_workloads=before.get("revertedWorkloads") if standing.reverted is None else standing.reverted,
        conditions=crd.conditions(
            sharing_crd.SharingCondition, {"Ready": standing.ready, "Degraded": standing.degraded},
            policy.generation, before, now,
        ),
    )
    status: dict[str, Any] = without_none(msgspec.to_builtins(made))
    return {key: value for key, value in status.items() if key not in _REVERTS}


def without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_none(member) for key, member in value.items() if member is not None}
    return [without_none(member) for member in value] if isinstance(value, list | tuple) else value


def _timeless(status: Mapping[str, Any]) -> dict[str, Any]:
    return {key: without_none(value) for key, value in status.items() if key not in ("lastUpdateTime", *_REVERTS)}
