"""The flags about who may come in: how people show who they are, and Slack's buttons.

In: flag texts, the environment. Out: ServingSettings. Slack's buttons without the secret by which Slack is known are a
usage error, before anything is contacted.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from fallow.model.secret import Secret
from fallow.settings import readers as read
from fallow.settings.flags import Flag, group
from fallow.settings.readers import UsageError

SERVE = "Who may come in"
AuthMode: TypeAlias = Literal["email", "kube", "proxy"]
_LEAST_KEY = 32  # bytes

FLAGS: tuple[Flag, ...] = group(
    SERVE,
    Flag("--dashboard-auth", "MODE",
         "How people show who they are. email: not at all; everybody reads, and may acknowledge for a day with an "
         "e-mail address. kube: by a token that the API server knows. proxy: by the headers of a trusted proxy. "
         "Default: email in gpu-pruner, kube in fallow.", read.auth_mode),
    Flag("--trusted-proxy", "CIDR", "Whose X-Forwarded-User and X-Forwarded-Groups are believed (repeatable).",
         read.network, repeat=True),
    Flag("--session-key-file", "FILE",
         "Key of at least 32 bytes that signs sessions, the same for all replicas; default: made at every start."),
    Flag("--slack-interaction-addr", "IP:PORT",
         "Where Slack's buttons are heard in daemon mode; the variable SLACK_SIGNING_SECRET is then needed.",
         read.listen_address),
    Flag("--slack-interaction-port", "PORT", "The same, on all addresses.", read.port),
)


class ServingSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`slack_secret`: what Slack signs with; it is there wherever `slack_address` is."""

    auth: AuthMode = "email"
    trusted_proxies: tuple[str, ...] = ()
    session_key: Secret[bytes] | None = None  # None = made at every start
    slack_address: tuple[str, int] | None = None
    slack_secret: Secret[str] | None = None


def read_serving(values: Mapping[str, Any], environ: Mapping[str, str]) -> ServingSettings:
    auth: AuthMode = values["dashboard_auth"] or "email"
    proxies: tuple[str, ...] = values["trusted_proxy"]
    if auth == "proxy" and not proxies:
        raise UsageError("--dashboard-auth proxy needs --trusted-proxy: by whose headers are people known?")
    secret = environ.get("SLACK_SIGNING_SECRET", "").strip()
    address = _slack_address(values)
    if address is not None and not secret:
        raise UsageError("--slack-interaction-addr needs SLACK_SIGNING_SECRET: without it anybody could press buttons")
    return ServingSettings(
        auth=auth, trusted_proxies=proxies, session_key=_session_key(values["session_key_file"]),
        slack_address=address if values["daemon_mode"] else None, slack_secret=Secret(secret) if secret else None,
    )


def _slack_address(values: Mapping[str, Any]) -> tuple[str, int] | None:
    address: tuple[str, int] | None = values["slack_interaction_addr"]
    port: int | None = values["slack_interaction_port"]
    if address is not None and port is not None and address[1] != port:
        raise UsageError("--slack-interaction-addr and --slack-interaction-port say two different ports: give one")
    return ("0.0.0.0", port) if address is None and port is not None else address


def _session_key(path: str | None) -> Secret[bytes] | None:
    if path is None:
        return None
    try:
        key = Path(path).read_bytes().strip()
    except OSError as problem:
        raise UsageError(f"--session-key-file: {path} cannot be read: {problem.strerror}") from None
    if len(key) < _LEAST_KEY:
        raise UsageError(f"--session-key-file: {path} holds less than {_LEAST_KEY} bytes")
    return Secret(key)
