"""The hands that keep ResourceClaimTemplates: made, marked as leaving, removed.

In: a ClaimWrite. Out: "" where it is done or overtaken, else what the server said.
Invariant: one that somebody else made is not taken over; a mark and a removal are for the very object that was seen, as
it was seen.
"""

from fallow import names
from fallow.clients import errors
from fallow.clients.kubernetes import api as kube
from fallow.model import units
from fallow.model.claims import ClaimWrite, MakeTemplate, MarkTemplate, RemoveTemplate


class ClaimHands:
    def __init__(self, api: kube.Api) -> None:
        self._api = api

    async def do(self, write: ClaimWrite) -> str:
        try:
            match write:
                case MakeTemplate():
                    await self._make(write)
                case MarkTemplate():
                    await self._mark(write)
                case RemoveTemplate(template=one):
                    await self._api.delete(
                        kube.CLAIM_TEMPLATES, one.namespace, one.name, uid=one.uid,
                        resource_version=one.resource_version,
                    )
        except (errors.NotFound, errors.Conflict):  # the namespace is gone, or somebody was faster: the next look tells
            return ""
        except errors.ClientError as problem:
            return str(problem)
        return ""

    async def _make(self, write: MakeTemplate) -> None:
        label, word = names.MANAGED_BY
        body = {
            "apiVersion": kube.CLAIM_TEMPLATES.api_version, "kind": kube.CLAIM_TEMPLATES.kind,
            "metadata": {"name": write.name, "labels": {label: word}}, "spec": {"spec": write.asks},
        }
        await self._api.create(kube.CLAIM_TEMPLATES, write.namespace, body)  # applied, it would be ours whoever made it

    async def _mark(self, write: MarkTemplate) -> None:
        one = write.template
        mark = None if write.since is None else units.rfc3339(write.since)
        body = {"metadata": {
            "uid": one.uid, "resourceVersion": one.resource_version, "annotations": {names.LEAVING_SINCE: mark},
        }}
        await self._api.merge_patch(
            kube.CLAIM_TEMPLATES, one.namespace, one.name, body, field_manager=names.FIELD_MANAGER
        )
