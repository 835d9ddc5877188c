"""One write on one object, and reading back what is there: all that pauses, resumes and marks need of the wire.

In: a Write, that is one merge patch on one very object. Out: the object as the server shows it then, or an error.
With dry_run "server" patches are sent with dryRun=All; with "client" whoever would write must not come here.
Invariant: every Write carries the uid of the object that was looked at; an answer without what was written, or with
what was removed, is an error: a webhook may strip our marks, or keep what we take away.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from fallow import names
from fallow.clients import errors
from fallow.clients.kubernetes import api as kubernetes
from fallow.model import cluster, kinds, pointers
from fallow.model.decision import Status

DryRun: TypeAlias = Literal["server", "client"] | None
Lookup: TypeAlias = Callable[[str, str, str], kubernetes.Resource | None]  # group, version, kind


class Write(msgspec.Struct, frozen=True):
    """One merge patch on one object.

    `shows`: what the answer must have (None: must lack), besides every annotation of the patch, or the patch did not
    do what it was for. `is_sent_once`: not again even after a 429, for by then another may be the one who acts.
    """

    ref: cluster.Ref
    body: dict[str, Any]
    shows: Mapping[str, Any] = {}
    subresource: str | None = None
    manager: str = names.FIELD_MANAGER
    is_sent_once: bool = False


class NotShown(errors.BadAnswer):
    """The server took the patch, and its answer lacks what was written: something else stands there now, or would."""

    def __init__(self, message: str, answer: Mapping[str, Any]) -> None:
        super().__init__(message)
        self.answer = answer


class PatchWriter:
    """Writes on the objects of one cluster, for real or as a dry run."""

    def __init__(self, api: kubernetes.Api, lookup: Lookup, dry_run: DryRun = None) -> None:
        self._api = api
        self._lookup = lookup
        self.dry_run = dry_run

    @property
    def is_dry(self) -> bool:
        return self.dry_run is not None

    @property
    def done(self) -> Status:
        """The status of what went well."""
        return Status.dry_run if self.is_dry else Status.done

    async def send(self, write: Write) -> dict[str, Any]:
        answer = await self._patch(write, dry_run=self.dry_run == "server")
        if missed := _find_missed(write, answer):
            raise NotShown(f"{write.ref} was patched, but its {missed}", answer)
        return answer

    async def rehearse(self, write: Write) -> None:
        """The same request as a dry run: whoever would make something else of it is found before anything is hurt.
        Of whatever version: that the object is unchanged is asked of the write itself."""
        metadata = {key: value for key, value in write.body["metadata"].items() if key != "resourceVersion"}
        body = {**write.body, "metadata": metadata}
        answer = await self._patch(msgspec.structs.replace(write, body=body), dry_run=True)
        if missed := _find_missed(write, answer):
            because = f"nothing was changed, for something would alter our patch: of {write.ref} {missed}"
            raise NotShown(because, answer)

    async def _patch(self, write: Write, *, dry_run: bool) -> dict[str, Any]:
        answer = await self._api.merge_patch(
            self._resource(write.ref), write.ref.namespace, write.ref.name, write.body,
            field_manager=write.manager, dry_run=dry_run, subresource=write.subresource,
            patience=kubernetes.ONCE if write.is_sent_once else kubernetes.PATIENCE,
        )
        return kinds.full_scale(answer) if write.subresource == "scale" else answer

    async def operate(self, ref: cluster.Ref, operations: Sequence[Mapping[str, Any]], manager: str) -> None:
        """A JSON patch, for what no merge patch can do."""
        await self._api.json_patch(self._resource(ref), ref.namespace, ref.name, operations, field_manager=manager)

    async def read(self, ref: cluster.Ref, subresource: str | None = None) -> dict[str, Any]:
        resource = self._resource(ref)
        if subresource == "scale":
            return kinds.full_scale(await self._api.read_scale(resource, ref.namespace, ref.name))
        found = await self._api.get(resource, ref.namespace, ref.name)
        if ref.uid and found["metadata"].get("uid") != ref.uid:
            raise errors.NotFound(404, f"{ref} is gone; another object has its name now")
        return found

    async def read_namespace(self, name: str) -> cluster.Namespace:
        """With what people say there, and without kubectl's copy of it."""
        metadata = (await self._api.get(kubernetes.NAMESPACES, None, name))["metadata"]
        said = {key: value for key, value in (metadata.get("annotations") or {}).items() if key != names.LAST_APPLIED}
        return cluster.Namespace(metadata["name"], metadata.get("labels") or {}, said)

    def _resource(self, ref: cluster.Ref) -> kubernetes.Resource:
        resource = self._lookup(ref.group, ref.version, ref.kind)
        if resource is None:
            raise errors.NotFound(404, f"the API server does not know {ref.kind} in {ref.api_version}")
        return resource


def _find_missed(write: Write, answer: Mapping[str, Any]) -> str | None:
    """What the answer should show and does not, in a phrase."""
    marks = write.body["metadata"].get("annotations") or {}
    expected = {pointers.annotation(name): value for name, value in marks.items()} | dict(write.shows)
    for pointer, value in expected.items():
        if (shown := pointers.read(answer, pointer)) != value:
            return f"{pointer} is {shown!r} and not {value!r}"
    return None


def annotate(
    ref: cluster.Ref, changes: Mapping[str, str | None], *, resource_version: str | None = None,
    manager: str = names.FIELD_MANAGER,
) -> Write:
    """Only annotations, on that very object; with a resourceVersion, only if it has not changed since."""
    guards = {"uid": ref.uid} | ({"resourceVersion": resource_version} if resource_version is not None else {})
    return Write(ref, {"metadata": {**guards, "annotations": dict(changes)}}, manager=manager)
