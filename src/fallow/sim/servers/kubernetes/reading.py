"""Get and list: one object or all of a kind, whole, as metadata or as a Table, in pages that belong together.

In: a Call. Out: the answer's bytes. Objects are encoded once per version (`store.Entry`): a list is a concatenation.
Invariant: the pages of one list show the objects as they were at its first page, or the list is over (410).
"""

import base64
import binascii
import json
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import msgspec

from fallow.sim.servers import store as stores
from fallow.sim.servers.kubernetes import calls, catalogue, events, refusals, selectors, tables

_SNAPSHOTS = 64  # lists that may be read page by page at the same time
_TABLE, _METADATA = "Table", "PartialObjectMetadata"
_EXPIRED = (
    "The provided continue parameter is too old to display a consistent list result. You must start a new list without "
    "the continue parameter."
)


def encode(kind: catalogue.ServedKind, entry: stores.Entry) -> bytes:
    """The whole object, in the version that was asked for."""
    if kind.group == events.GROUP:
        return msgspec.json.encode(events.to_new(entry.object))
    return f'{{"kind":"{kind.kind}","apiVersion":"{kind.api_version}",'.encode() + entry.body[1:]


def find(call: calls.Call, store: stores.Store) -> stores.Entry | None:
    return store.find(stores.Key(*call.kind.home, call.path.namespace, call.path.name))


def get(call: calls.Call, store: stores.Store) -> stores.Entry:
    if (found := find(call, store)) is None:
        raise call.refuse_absent()
    return found


def encode_metadata(entry: stores.Entry) -> bytes:
    return b'{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1",' + entry.metadata[1:]


def choose_form(accept: str) -> str:
    """Table, PartialObjectMetadata, or "" for the object itself."""
    if calls.accepts(accept, _TABLE):
        return _TABLE
    is_partial = calls.accepts(accept, _METADATA) or calls.accepts(accept, f"{_METADATA}List")
    return _METADATA if is_partial else ""


def represent(call: calls.Call, entry: stores.Entry, now: float) -> bytes:
    """One object in the form the client asked for."""
    form = choose_form(call.headers.get("Accept", ""))
    if form == _METADATA:
        return encode_metadata(entry)
    if form == _TABLE:
        return _encode_table(call, [entry], {"resourceVersion": entry.object["metadata"]["resourceVersion"]}, now)
    return encode(call.kind, entry)


def _encode_table(call: calls.Call, entries: Sequence[stores.Entry], metadata: dict[str, Any], now: float) -> bytes:
    included = call.query.get("includeObject", "Metadata")
    return msgspec.json.encode(tables.write(call.kind, entries, now, metadata, included))


class ObjectReader:
    def __init__(self, store: stores.Store) -> None:
        self._store = store
        self._snapshots: OrderedDict[tuple[str, str, int], list[stores.Entry]] = OrderedDict()

    def expire(self) -> None:
        """Every list that is being read page by page is over."""
        self._snapshots.clear()

    def list(self, call: calls.Call, now: float) -> bytes:
        limit = read_number(call.query.get("limit", ""))
        version, chosen, is_selected = self.choose(call)
        page, rest = (chosen[:limit], chosen[limit:]) if limit else (chosen, [])
        metadata: dict[str, Any] = {"resourceVersion": str(version)}
        if rest:
            metadata["continue"] = self._remember(call.kind, version, page[-1].key.path)
            if not is_selected:
                metadata["remainingItemCount"] = len(rest)
        return _encode_list(call, page, metadata, now)

    def choose(self, call: calls.Call) -> tuple[int, Sequence[stores.Entry], bool]:
        """The version that is shown, the objects that are meant, and whether a selector chose them."""
        query = call.query
        test = selectors.read(call.kind, query.get("labelSelector", ""), query.get("fieldSelector", ""))
        version, start, entries = self._begin(call)
        if call.path.namespace:
            entries = [entry for entry in entries if entry.key.namespace == call.path.namespace]
        later = [entry for entry in entries if entry.key.path > start] if start else entries
        return version, later if test is None else [entry for entry in later if test(entry.object)], test is not None

    def _begin(self, call: calls.Call) -> tuple[int, str, Sequence[stores.Entry]]:
        """The version to show, the name after which to begin, and all objects of that version."""
        token, asked = call.query.get("continue", ""), read_number(call.query.get("resourceVersion", ""))
        home = call.kind.home
        if token:
            if asked:
                raise refusals.bad("specifying resource version is not allowed when using continue")
            version, start = _read_token(token)
            if version > self._store.version:
                raise refusals.too_new(version, self._store.version)
            if (*home, version) not in self._snapshots:
                raise refusals.ApiRefusal(410, _EXPIRED)
            return version, start, self._snapshots[*home, version]
        if asked > self._store.version:
            raise refusals.too_new(asked, self._store.version)
        return self._store.version, "", self._store.entries(*home)

    def _remember(self, kind: catalogue.ServedKind, version: int, last: str) -> str:
        key = (*kind.home, version)
        if key not in self._snapshots:
            self._snapshots[key] = self._store.entries(*kind.home)
            if len(self._snapshots) > _SNAPSHOTS:
                self._snapshots.popitem(last=False)
        body = json.dumps({"v": "meta.k8s.io/v1", "rv": version, "start": f"/{last}\0"}).encode()
        return base64.urlsafe_b64encode(body).decode().rstrip("=")


def read_number(text: str) -> int:
    try:
        return int(text or 0)
    except ValueError:
        raise refusals.bad(f'strconv.ParseInt: parsing "{text}": invalid syntax') from None


def _read_token(token: str) -> tuple[int, str]:
    try:
        body = json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
        return int(body["rv"]), str(body["start"]).removeprefix("/").rstrip("\0")
    except (ValueError, KeyError, TypeError, binascii.Error) as problem:
        raise refusals.bad(f"invalid continue token: continue key is not valid: {problem}") from problem


def _encode_list(call: calls.Call, page: Sequence[stores.Entry], metadata: dict[str, Any], now: float) -> bytes:
    form, kind = choose_form(call.headers.get("Accept", "")), call.kind
    if form == _TABLE:
        return _encode_table(call, page, metadata, now)
    if form == _METADATA:
        name, version, items = "PartialObjectMetadataList", "meta.k8s.io/v1", [encode_metadata(entry) for entry in page]
    else:  # items of built-in kinds do not say what they are; those of custom kinds do
        says = kind.is_custom or kind.group == events.GROUP
        name, version = f"{kind.kind}List", kind.api_version
        items = [encode(kind, entry) if says else entry.body for entry in page]
    head = f'{{"kind":"{name}","apiVersion":"{version}","metadata":'.encode() + msgspec.json.encode(metadata)
    return b"".join((head, b',"items":[', b",".join(items), b"]}"))
