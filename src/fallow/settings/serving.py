"""The flags about who may come in: how people show who they are, and Slack's buttons.

In: flag texts, the environment. Out: ServingSettings. What would let people in whom nobody knows (Slack's buttons
without the secret by which Slack is known, a login without a provider) is a usage error, before anything is contacted.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from fallow.model.login import ClaimNames, OidcClient
from fallow.model.secret import Secret
from fallow.settings import readers as read
from fallow.settings.flags import Flag, group
from fallow.settings.readers import UsageError

SERVE = "Who may come in"
AuthMode: TypeAlias = Literal["email", "kube", "oidc", "proxy"]
_LEAST_KEY = 32  # bytes

FLAGS: tuple[Flag, ...] = group(
    SERVE,
    Flag("--dashboard-auth", "MODE",
         "How people show who they are. email: not at all; it answers this machine only, where everybody reads, and "
         "may acknowledge for a day with an e-mail address. kube: by a token that the API server knows. oidc: by "
         "logging in at an OpenID Connect provider. proxy: by the headers of a trusted proxy. "
         "Default: email in gpu-pruner, kube in fallow.", read.one_of("email", "kube", "oidc", "proxy")),
    Flag("--oidc-issuer-url", "URL", "The provider, to the letter as its tokens name it.", read.issuer,
         variable="OIDC_ISSUER_URL"),
    Flag("--oidc-client-id", "ID", "As what the provider knows us.", variable="OIDC_CLIENT_ID"),
    Flag("--oidc-client-secret-file", "FILE",
         "Our secret there, read anew for every login; or the variable OIDC_CLIENT_SECRET. None: by PKCE alone."),
    Flag("--oidc-scopes", "A,B", "What is asked for beside openid.", read.name_list, "profile,email"),
    Flag("--oidc-username-claim", "CLAIM",
         "The claim that is somebody's name; email only where email_verified is true.", default="sub"),
    Flag("--oidc-username-prefix", "PREFIX",
         "What stands before the name; default: the issuer's address and #, nothing before an email; -: nothing."),
    Flag("--oidc-groups-claim", "CLAIM", "The claim that lists somebody's groups.", default="groups"),
    Flag("--oidc-groups-prefix", "PREFIX", "What stands before each group.", default=""),
    Flag("--oidc-ca-file", "FILE", "CA certificates (PEM) of the provider; default: the system's."),
    Flag("--trusted-proxy", "CIDR", "Whose X-Forwarded-User and X-Forwarded-Groups are believed (repeatable).",
         read.network, repeat=True),
    Flag("--session-key-file", "FILE",
         "Key of at least 32 bytes by which sessions are known and replicas believe each other: the same for all of "
         "them; default: made at every start, for one replica."),
    Flag("--slack-interaction-addr", "IP:PORT",
         "Where Slack's buttons are heard in daemon mode; the variable SLACK_SIGNING_SECRET is then needed, and "
         "SLACK_BOT_TOKEN (scope usergroups:read) where policies name consent.slackGroups.",
         read.listen_address),
    Flag("--slack-interaction-port", "PORT", "The same, on all addresses.", read.port),
)


class ServingSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`slack_secret`: what Slack signs with; it is there wherever `slack_address` is."""

    auth: AuthMode = "email"
    trusted_proxies: tuple[str, ...] = ()
    oidc: OidcClient | None = None  # it is there wherever `auth` is oidc
    claims: ClaimNames = ClaimNames()
    session_key: Secret[bytes] | None = None  # None = made at every start
    slack_address: tuple[str, int] | None = None
    slack_secret: Secret[str] | None = None
    slack_token: Secret[str] | None = None  # of a bot that may ask who is in a group


def read_serving(values: Mapping[str, Any], environ: Mapping[str, str]) -> ServingSettings:
    auth: AuthMode = values["dashboard_auth"] or "email"
    proxies: tuple[str, ...] = values["trusted_proxy"]
    if auth == "proxy" and not proxies:
        raise UsageError("--dashboard-auth proxy needs --trusted-proxy: by whose headers are people known?")
    if auth == "oidc" and not values["dashboard_public_url"]:
        raise UsageError("--dashboard-auth oidc needs --dashboard-public-url: where do people come back to?")
    secret = environ.get("SLACK_SIGNING_SECRET", "").strip()
    token, address = environ.get("SLACK_BOT_TOKEN", "").strip(), _slack_address(values)
    if address is not None and not secret:
        raise UsageError("--slack-interaction-addr needs SLACK_SIGNING_SECRET: without it anybody could press buttons")
    return ServingSettings(
        auth=auth, trusted_proxies=proxies, oidc=_oidc(values, environ) if auth == "oidc" else None,
        claims=ClaimNames(
            user=values["oidc_username_claim"], user_prefix=values["oidc_username_prefix"],
            groups=values["oidc_groups_claim"], groups_prefix=values["oidc_groups_prefix"],
        ),
        session_key=_session_key(values["session_key_file"]),
        slack_address=address if values["daemon_mode"] else None, slack_secret=Secret(secret) if secret else None,
        slack_token=Secret(token) if token else None,
    )


def _oidc(values: Mapping[str, Any], environ: Mapping[str, str]) -> OidcClient:
    issuer, client_id = values["oidc_issuer_url"], values["oidc_client_id"]
    if not issuer or not client_id:
        raise UsageError("--dashboard-auth oidc needs --oidc-issuer-url and --oidc-client-id")
    secret, file = environ.get("OIDC_CLIENT_SECRET", "").strip(), values["oidc_client_secret_file"]
    if file is not None and not Path(file).is_file():
        raise UsageError(f"--oidc-client-secret-file: {file} is no file")
    return OidcClient(
        issuer=issuer, client_id=client_id, secret=Secret(secret) if secret else None, secret_file=file,
        scopes=values["oidc_scopes"], ca_file=values["oidc_ca_file"],
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
