"""Where a running daemon answers: its Service, through the API server and with the rights of whoever asks; or a URL.

In: a kubeconfig, and a URL or none. Out: DaemonDoors, in the order in which they are to be believed.
Invariant: what proves who somebody is goes to nobody who was not named for it. Through the API server's proxy whoever
commands that Service would read it: it goes there only with `kube`, and to a URL only over verified TLS or to this very
machine, unless `kube` says otherwise (docs/contributors/decisions/0008-answers-from-the-daemon.md).
"""

import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Final, Literal, TypeAlias
from urllib import parse

import msgspec

from fallow import names, settings
from fallow.clients import errors, proxies
from fallow.clients.kubernetes import api as kube
from fallow.clients.kubernetes import config, credentials
from fallow.model import loopback, redaction
from fallow.model.secret import Secret
from fallow.model.units import Seconds

Proof: TypeAlias = Literal["auto", "kube", "none"]  # whether the Kubernetes token is shown

PATIENCE: Final[Seconds] = 5.0  # a look of one's own takes less than to wait for longer


class DaemonDoor(msgspec.Struct, frozen=True):
    """One place where a daemon may answer. `namespace`: of its Service; "": it is a URL. `own_namespace`: the
    context's, for who names a workload and no namespace."""

    where: str
    namespace: str
    own_namespace: str
    api: kube.Api
    prefix: str = ""
    headers: Mapping[str, str] = {}

    async def get(self, path: str, params: Mapping[str, str]) -> bytes:
        return await self.api.relay(f"{self.prefix}{path}", params, self.headers)


@contextlib.asynccontextmanager
async def open_doors(
    kubeconfig: str | None, context: str | None, url: str | None, proof: Proof, *, token_file: Path | None = None,
    patience: Seconds = PATIENCE,
) -> AsyncIterator[list[DaemonDoor]]:
    """Nothing is asked yet. `token_file`: what proves to the URL who asks, and was named for it, instead of anything of
    the kubeconfig. Without a URL: the Services of the namespaces in which fallow is installed, those of the cluster
    before the context's own, in which tenants may put what they like."""
    environment = settings.environment()
    access = _load(kubeconfig, context, environment, is_needed=url is None)
    if url is not None:
        shown = _at(url, access, proof, environment)
        if token_file is not None:
            shown = msgspec.structs.replace(shown, token=None, token_file=token_file, exec_plugin=None)
        async with kube.Api(shown, timeout=patience) as api:
            own = (access.namespace if access else None) or "default"
            named = f"the daemon at {redaction.hide_logins(url, [url])}"
            yield [DaemonDoor(where=named, namespace="", own_namespace=own, api=api)]
        return
    assert access is not None
    own = access.namespace or "default"
    async with kube.Api(access, timeout=patience) as api:
        headers = await _prove(access) if proof == "kube" else {}
        places = dict.fromkeys((*names.SYSTEM_NAMESPACES, own))
        yield [_behind(api, place, own, headers) for place in places]


def _load(
    kubeconfig: str | None, context: str | None, environment: Mapping[str, str], *, is_needed: bool
) -> config.Access | None:
    """Who names a URL needs no cluster."""
    try:
        return config.load_access(kubeconfig=kubeconfig, context=context, environment=environment)
    except errors.Misconfigured:
        if is_needed or kubeconfig or context:
            raise
        return None


def _behind(api: kube.Api, namespace: str, own: str, headers: Mapping[str, str]) -> DaemonDoor:
    service = f"{names.DAEMON_SERVICE}:{names.DAEMON_PORT}"
    prefix = f"{kube.NAMESPACES.path(name=namespace)}/services/{service}/proxy"
    return DaemonDoor(
        where=f"the daemon in {namespace}", namespace=namespace, own_namespace=own, api=api, prefix=prefix,
        headers=headers,
    )


async def _prove(access: config.Access) -> Mapping[str, str]:
    """The API server takes our own Authorization off what it passes on: what somebody behind it shall see has another
    name. Who acts as somebody else (--as) shows nothing: the token is not theirs."""
    if access.impersonation:
        return {}
    shown = await credentials.Credentials(access).authorization() or ""
    return {names.RELAYED_AUTHORIZATION: shown} if shown.startswith("Bearer ") else {}


def _at(
    url: str, access: config.Access | None, proof: Proof, environment: Mapping[str, str]
) -> config.Access:
    """That server, with our token where it may be shown to it, and nothing else of ours."""
    found, proxy = config.Access(server=url, context=""), proxies.find_proxy(url, environment)
    if access is not None and not access.impersonation and (proof == "kube" or (proof == "auto" and _is_safe(url))):
        found = msgspec.structs.replace(
            found, token=access.token, token_file=access.token_file, exec_plugin=access.exec_plugin
        )
    return msgspec.structs.replace(found, proxy=Secret(proxy) if proxy else None)


def _is_safe(url: str) -> bool:
    """Nobody on the way can read along: TLS, whose certificate is always verified here, or this very machine."""
    parts = parse.urlsplit(url)
    return parts.scheme == "https" or loopback.is_here(parts.hostname or "")
