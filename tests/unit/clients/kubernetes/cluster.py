"""A pretend API server for one kind: objects with versions, a history that can be compacted, watches that can be cut.

It keeps what Kubernetes promises: a watch from version N tells everything after N, or ERROR 410 if that is no longer
known.
"""

import asyncio
import itertools
from typing import Any

import msgspec
from aiohttp import web
from tests.unit.clients.kubernetes import wire

PODS = "/api/v1/pods"


class Cluster:
    def __init__(self, server: wire.Server) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.lists = 0
        self.watched_from: list[str] = []
        self.watches: set[asyncio.Queue[bytes | None]] = set()
        self.expire_with_status = False
        self._history: list[tuple[int, bytes]] = []
        self._compacted = 0
        self._versions = itertools.count(1)
        self._version = 0
        server.on("GET", PODS, self._answer)

    def put(self, uid: str, **content: Any) -> None:
        type_ = "MODIFIED" if uid in self.objects else "ADDED"
        self.objects[uid] = content
        self._tell(type_, uid, content)

    def delete(self, uid: str) -> None:
        self._tell("DELETED", uid, self.objects.pop(uid))

    def bookmark(self) -> None:
        """Move the version on, as if something outside the watch's selection had changed, and say so."""
        self._version = next(self._versions)
        body = {"type": "BOOKMARK", "object": {"kind": "Pod", "metadata": {"resourceVersion": str(self._version)}}}
        self.send(msgspec.json.encode(body) + b"\n")

    def compact(self) -> None:
        self._compacted = self._version
        self._history.clear()

    def send(self, data: bytes) -> None:
        """Bytes as they are, to every open watch."""
        for queue in self.watches:
            queue.put_nowait(data)

    def end_watches(self, abruptly: bool = False) -> None:
        """What changes from now on is told only to watches opened later."""
        for queue in self.watches:
            queue.put_nowait(b"CUT" if abruptly else None)
        self.watches.clear()

    def _tell(self, type_: str, uid: str, content: dict[str, Any]) -> None:
        self._version = next(self._versions)
        line = msgspec.json.encode({"type": type_, "object": self._dress(uid, content, self._version)}) + b"\n"
        self._history.append((self._version, line))
        self.send(line)

    def _dress(self, uid: str, content: dict[str, Any], version: int) -> dict[str, Any]:
        return {"metadata": {"uid": uid, "name": uid, "resourceVersion": str(version)}, **content}

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        return await (self._watch(request) if "watch" in request.query else self._list(request))

    async def _list(self, request: web.Request) -> web.StreamResponse:
        self.lists += 1
        items = [self._dress(uid, content, self._version) for uid, content in self.objects.items()]
        return await wire.give({"items": items, "metadata": {"resourceVersion": str(self._version)}})(request)

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        since = request.query["resourceVersion"]
        self.watched_from.append(since)
        expired = int(since) < self._compacted
        if expired and self.expire_with_status:
            return await wire.status(410, "Expired", "too old resource version")(request)
        response = web.StreamResponse()
        await response.prepare(request)
        if expired:
            error = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
            await response.write(msgspec.json.encode({"type": "ERROR", "object": error}) + b"\n")
            return response
        for version, line in self._history:
            if version > int(since):
                await response.write(line)
        await self._follow(request, response)
        return response

    async def _follow(self, request: web.Request, response: web.StreamResponse) -> None:
        queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.watches.add(queue)
        try:
            while (data := await queue.get()) is not None:
                if data == b"CUT":
                    assert request.transport is not None
                    request.transport.abort()
                    return
                await response.write(data)
        finally:
            self.watches.discard(queue)
