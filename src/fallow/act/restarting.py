"""Pods made anew, one after the other, because sharing a GPU hurt them: as `kubectl rollout restart` does it.

In: a ShareRestart that was decided, and who judges the object as it is read just before. Out: one sentence on what was
done, or why it was not.
Invariant: one request with uid and version writes what restarts and for which back-off it was; so it is done once for
each, whoever was killed in between. Nothing else of the template is touched.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from fallow import names
from fallow.act import sending
from fallow.act.events import Announcer
from fallow.clients import errors
from fallow.model import pointers, units
from fallow.model.share_hurts import RestartEnded, RestartRefusal, ShareRestart
from fallow.model.units import Instant

Refuse: TypeAlias = Callable[[ShareRestart, Mapping[str, Any]], tuple[RestartRefusal, str] | None]
TEMPLATE = ("spec", "template", "metadata", "annotations")


class Restarter:
    """`refuse`: what speaks against it, by the object as it is now."""

    def __init__(self, writer: sending.PatchWriter, announcer: Announcer, refuse: Refuse) -> None:
        self._writer, self._announcer, self._refuse = writer, announcer, refuse

    async def restart(self, restart: ShareRestart, now: Instant) -> RestartEnded:
        """Raises what the server says."""
        ref = restart.workload.ref
        body = await self._writer.read(ref)
        if (refused := self._refuse(restart, body)) is not None:
            reason, because = refused
            return RestartEnded(because=f"{reason}: {because}", may_follow=reason is RestartRefusal.NotAsItWas)
        if self._writer.is_dry:
            return RestartEnded(because="its pods would be made anew, with whole GPUs; this is a dry run")
        try:
            await self._writer.send(_write(restart, body["metadata"]["resourceVersion"], now))
        except errors.Conflict:
            because = f"{RestartRefusal.NotAsItWas}: it changed meanwhile, and is looked at again"
            return RestartEnded(because=because, may_follow=True)
        because = (f"Its pods are made anew, one after the other, with whole GPUs: GPUSharingPolicy {restart.policy} "
                   "restarts what sharing hurt.")
        await self._announcer.announce(ref, names.Event.SHARING_RESTARTED, because, now)
        return RestartEnded(because=because, is_done=True)


def _write(restart: ShareRestart, version: str, now: Instant) -> sending.Write:
    ref, at = restart.workload.ref, units.rfc3339(now)
    marks = {names.SHARING_RESTARTED: restart.until}
    return sending.Write(
        ref,
        {"metadata": {"uid": ref.uid, "resourceVersion": version, "annotations": marks},
         "spec": {"template": {"metadata": {"annotations": {names.RESTARTED_AT: at}}}}},
        shows={pointers.join((*TEMPLATE, names.RESTARTED_AT)): at}, is_sent_once=True,
    )
