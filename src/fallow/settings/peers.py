"""The flags about further clusters whose figures one dashboard shows beside its own.

In: flag texts. Out: the peers: where fallow answers in each of those clusters, and the files that prove who asks.
Invariant: a token goes to no address at which somebody on the way could read it, and none stands in a flag.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib import parse

import msgspec

from fallow import names
from fallow.model import loopback
from fallow.settings import readers as read
from fallow.settings.flags import Flag, group
from fallow.settings.readers import UsageError
from fallow.settings.serving import SERVE

FLAGS: tuple[Flag, ...] = group(
    SERVE,
    Flag("--peer", "NAME=URL",
         "Dashboard of fallow in a further cluster, by name: its figures are shown beside ours, and summed. It is only "
         "read (repeatable).", read.named_url, repeat=True),
    Flag("--peer-token-file", "NAME=FILE",
         "Token by which that dashboard knows us, read anew when it changes; only over https (repeatable).",
         read.named_file, repeat=True),
    Flag("--peer-ca-file", "FILE", "CA certificates (PEM) of those dashboards; default: the system's."),
)


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """fallow in another cluster, which is only read. `url`: of its dashboard."""

    name: str
    url: str
    token_file: str | None = None
    ca_file: str | None = None


def read_peers(values: Mapping[str, Any]) -> tuple[Peer, ...]:
    given, ca_file = values["peer"], values["peer_ca_file"]
    listed = [name for name, _ in given]
    _check_once("--peer", [values["cluster_name"] or names.DEFAULT_CLUSTER, *listed])
    _check_once("--peer-token-file", [name for name, _ in values["peer_token_file"]])
    tokens: dict[str, str] = dict(values["peer_token_file"])
    if strange := sorted(tokens.keys() - set(listed)):
        raise UsageError(f"--peer-token-file: there is no --peer {strange[0]}")
    if ca_file is not None and not Path(ca_file).is_file():
        raise UsageError(f"--peer-ca-file: {ca_file} is no file")
    found = tuple(Peer(name=name, url=url, token_file=tokens.get(name), ca_file=ca_file) for name, url in given)
    for each in found:
        _check_safe(each)
    return found


def _check_once(flag: str, listed: Iterable[str]) -> None:
    """Of --peer the first is our own."""
    seen = set[str]()
    for name in listed:
        if name in seen:
            raise UsageError(f"{flag}: {name} is named twice")
        seen.add(name)


def _check_safe(peer: Peer) -> None:
    parts = parse.urlsplit(peer.url)
    if peer.token_file and parts.scheme != "https" and not loopback.is_here(parts.hostname or ""):
        raise UsageError(f"--peer {peer.name}: a token is shown over https only, and its address is not https")
    if parts.username or parts.password:
        raise UsageError(f"--peer {peer.name}: an address with a user name or a password in it is not taken")
