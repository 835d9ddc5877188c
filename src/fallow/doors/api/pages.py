"""The dashboard's files, as they were built: the page itself under every address of it, its parts by their names.

In: the folder of the package into which it is built. Out: responses from memory: a name that was not there when we
began is not there. Where nothing was built, a plain page says how to build it.
"""

import gzip
import hashlib
import mimetypes
from pathlib import Path
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

FOLDER: Final = Path(__file__).parent / "static"
INDEX: Final = "index.html"
_ADDRESSES: Final = ("workloads", "w", "activity", "cost", "nodes", "policies", "acks", "acknowledgements", "paused",
                     "inbox", "clusters")
_PACKED: Final = (".html", ".js", ".css", ".svg", ".json", ".txt")
_FOR_EVER: Final = "public, max-age=31536000, immutable"  # its name holds a hash of its content
_NOT_BUILT: Final = b"""<!doctype html><html lang="en"><meta charset="utf-8"><title>fallow</title>
<h1>The dashboard was not built</h1>
<p>The API works: see <a href="/api/openapi.json">/api/openapi.json</a>. To have the pages, run <code>npm ci</code> and
<code>npm run build</code> in the folder <code>ui</code> of the source, and start fallow again.</p></html>
"""
_NOT_THERE: Final = b"""<!doctype html><html lang="en"><meta charset="utf-8"><title>fallow</title>
<h1>There is nothing at this address</h1>
<p><a href="/">Overview</a></p></html>
"""


class BuiltFile(msgspec.Struct, frozen=True):
    body: bytes
    packed: bytes | None
    media_type: str
    etag: str
    is_hashed: bool


def read_files(folder: Path = FOLDER) -> dict[str, BuiltFile]:
    """By their path in the folder; none where it was not built."""
    found = (path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink())
    return {path.relative_to(folder).as_posix(): _read(path, folder) for path in found}


def _read(path: Path, folder: Path) -> BuiltFile:
    body = path.read_bytes()
    kind = "text/javascript" if path.suffix == ".js" else mimetypes.guess_type(path.name)[0]
    return BuiltFile(
        body, gzip.compress(body, 9, mtime=0) if path.suffix in _PACKED else None, kind or "application/octet-stream",
        f'"{hashlib.sha256(body).hexdigest()[:20]}"', path.relative_to(folder).parts[0] == "assets",
    )


class BuiltPages:
    """`show`: the endpoint of whatever is not the API's."""

    def __init__(self, files: dict[str, BuiltFile]) -> None:
        self._files = files

    async def show(self, request: Request) -> Response:
        path = request.url.path.strip("/")
        found = self._files.get(path)
        if found is None and (not path or path.split("/")[0] in _ADDRESSES):
            found = self._files.get(INDEX)
            if found is None:
                return Response(_NOT_BUILT, media_type="text/html", headers={"Cache-Control": "no-cache"})
        if found is None and "text/html" in request.headers.get("accept", ""):  # a person, who is led home
            index = self._files.get(INDEX)
            return Response(index.body if index else _NOT_THERE, 404, media_type="text/html")
        if found is None:
            return Response("404: there is nothing here\n", 404, media_type="text/plain")
        return _send(found, request)


def _send(found: BuiltFile, request: Request) -> Response:
    caching = _FOR_EVER if found.is_hashed else "no-cache"
    headers = {"ETag": found.etag, "Cache-Control": caching, "Vary": "Accept-Encoding"}
    if request.headers.get("if-none-match") == found.etag:
        return Response(status_code=304, headers=headers)
    body = found.body
    if found.packed is not None and "gzip" in request.headers.get("accept-encoding", ""):
        body, headers["Content-Encoding"] = found.packed, "gzip"
    return Response(body, media_type=found.media_type, headers=headers)
