"""Where fallow answers in further clusters, for who shows their figures beside its own.

In: the peers of the settings. Out: PeerDoors, by which each can be asked, and nothing but asked.
Invariant: a door has no verb but GET; what proves who we are is read from the file that was named for this peer, and
goes to no other; an answer is bounded in time and in size.
"""

import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from fallow import settings
from fallow.clients import proxies
from fallow.clients.kubernetes import api as kube
from fallow.clients.kubernetes import config
from fallow.model.secret import Secret
from fallow.model.units import Seconds
from fallow.settings.peers import Peer

PATIENCE: Final[Seconds] = 5.0
_MOST_BYTES: Final = 8 * 2**20  # an overview of 5,000 workloads is less than one MiB


class PeerDoor(msgspec.Struct, frozen=True):
    """Raises errors.ClientError: it is away, does not let us in, or does not have that."""

    peer: Peer
    api: kube.Api

    async def get(self, path: str, params: Mapping[str, str]) -> bytes:
        return await self.api.relay(path, params, {}, _MOST_BYTES)


@contextlib.asynccontextmanager
async def open_peers(options: settings.Settings, patience: Seconds = PATIENCE) -> AsyncIterator[list[PeerDoor]]:
    """Nothing is asked yet."""
    async with contextlib.AsyncExitStack() as stack:
        yield [
            PeerDoor(each, await stack.enter_async_context(kube.Api(_access(each, options), timeout=patience)))
            for each in options.peers
        ]


def _access(peer: Peer, options: settings.Settings) -> config.Access:
    proxy = proxies.find_proxy(peer.url, options.environment)
    return config.Access(
        server=peer.url, context=peer.name, token_file=Path(peer.token_file) if peer.token_file else None,
        ca=config.Pem("--peer-ca-file", path=Path(peer.ca_file)) if peer.ca_file else None,
        proxy=Secret(proxy) if proxy else None,
    )
