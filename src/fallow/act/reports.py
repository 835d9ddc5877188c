"""What each IdlePolicy amounts to, written into its status after a cycle, so that `kubectl get idlepolicies` tells.

In: the policies, the plan's tally of each. Out: one patch of the status subresource per policy and cycle. A condition
keeps its time while it holds, so the status as it stands is read once and remembered. A report that fails is said once
and harms nothing.
"""

import logging
from collections.abc import Mapping
from typing import Any

from fallow import names
from fallow.act import sending
from fallow.clients import errors
from fallow.clients.kubernetes import api as kubernetes
from fallow.model import cluster, decision
from fallow.model.policies import idle, idle_crd
from fallow.model.seen import sure
from fallow.model.units import Instant

log = logging.getLogger(__name__)


class PolicyReports:
    def __init__(self, api: kubernetes.Api, lookup: sending.Lookup) -> None:
        self._api, self._lookup = api, lookup
        self._standing: dict[str, Mapping[str, Any]] = {}  # uid -> status as last read or written
        self._failing = False

    async def write(self, seen: cluster.Snapshot, plan: decision.Plan, now: Instant) -> None:
        resource = self._lookup(names.GROUP, names.POLICY_VERSION, names.POLICY_KIND)
        if resource is None:
            return
        try:
            for one in sure(seen.policies):
                if one.rule.name in plan.policies:
                    await self._write(resource, one, seen, plan, now)
        except errors.ClientError as problem:
            if not self._failing:
                log.warning("the status of IdlePolicies cannot be written: %s", problem)
            self._failing = True
        else:
            self._failing = False

    async def _write(
        self, of: kubernetes.Resource, one: idle.IdlePolicy, seen: cluster.Snapshot, plan: decision.Plan, now: Instant
    ) -> None:
        if one.uid not in self._standing:
            self._standing[one.uid] = (await self._api.get(of, None, one.name)).get("status") or {}
        body = idle_crd.status(
            one, plan.policies[one.rule.name], previous=self._standing[one.uid], trouble=seen.evidence.trouble,
            freeze=plan.freeze, now=now,
        ) | {"metadata": {"uid": one.uid}}
        manager = names.FIELD_MANAGER
        written = await self._api.merge_patch(of, None, one.name, body, field_manager=manager, subresource="status")
        self._standing[one.uid] = written.get("status") or {}
