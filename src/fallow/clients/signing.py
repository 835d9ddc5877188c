"""Who signs or authorises a request of ours: what a client that must prove who we are is handed.

In: a request about to be sent. Out: the headers to add. A client knows Signers and not where they come from: the login
of Prometheus, and the credentials of the clouds, which know nothing of each other.
"""

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import yarl

from fallow.clients.web import aiohttp
from fallow.model.units import Instant


class Outgoing(NamedTuple):
    """A request about to be sent, and the session to ask others by. `headers`: those of it that are to be signed too,
    by their names in small letters; a body without any is a form."""

    session: aiohttp.ClientSession
    method: str
    url: yarl.URL
    body: bytes
    now: Instant
    headers: Mapping[str, str] = {}


class Signer(Protocol):
    async def headers(self, outgoing: Outgoing) -> Mapping[str, str]: ...

    def forget(self) -> None:
        """The last ones were refused: get new ones."""


def bearer(token: str) -> Mapping[str, str]:
    return {"Authorization": f"Bearer {token}"} if token else {}
