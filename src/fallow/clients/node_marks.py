"""The annotations of one node, for a program that may get and patch nodes and nothing else, and must stay small.

In: the API server, the pod's own token and authority. Out: the annotations, and a merge patch of some. The patch names
the node's uid: what was read of one node is not written on another one of its name.
"""

import json
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple
from urllib import parse

from fallow.clients import errors, plain
from fallow.model.units import Seconds

_TIMEOUT: Final[Seconds] = 5.0
_WHO: Final = "the API server"


class NodeNotes(NamedTuple):
    uid: str
    annotations: Mapping[str, str]


class NodeMarks:
    """`authority_file` "": whom this machine trusts."""

    def __init__(self, server: str, node: str, *, token_file: str, authority_file: str) -> None:
        self._url = f"{server}/api/v1/nodes/{parse.quote(node, safe='')}"
        self._token_file, self._authority_file = token_file, authority_file

    def read(self) -> NodeNotes:
        return self._send("GET", None)

    def write(self, uid: str, annotations: Mapping[str, str]) -> None:
        self._send("PATCH", {"metadata": {"uid": uid, "annotations": annotations}})

    def _send(self, method: str, patch: Mapping[str, object] | None) -> NodeNotes:
        """Token and authority are read each time: both are renewed beside us, and this is seldom."""
        try:
            token = Path(self._token_file).read_text().strip() if self._token_file else ""
            trust = ssl.create_default_context(cafile=self._authority_file or None)
        except OSError as problem:
            raise errors.Misconfigured(f"{problem.filename or self._authority_file}: {problem.strerror}") from None
        headers = {"Accept": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
        body = json.dumps(patch).encode() if patch else None
        if body:
            headers["Content-Type"] = "application/merge-patch+json"
        answer = plain.ask(_WHO, method, self._url, headers=headers, timeout=_TIMEOUT, body=body, trust=trust)
        if answer.status != 200:
            raise errors.rejection(answer.status, f"{_WHO} answered {answer.status} to {method} of this node")
        return _read_notes(answer.body)


def _read_notes(body: bytes) -> NodeNotes:
    try:
        metadata = json.loads(body)["metadata"]
        notes = metadata.get("annotations") or {}
        return NodeNotes(str(metadata["uid"]), {str(key): str(value) for key, value in notes.items()})
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise errors.BadAnswer(f"{_WHO} gave a node that cannot be read") from None
