"""Where the API server is and who we are to it: kubeconfig files, or the pod's own service account.

In: a kubeconfig path or none, a context or none, the environment. Out: one frozen `Access`, or Misconfigured with one
sentence saying which file is wrong and what to do. Files are checked here and read again when they change (credentials,
tls). Invariant: nothing is sent, no program is started, and no repr of an Access shows a credential.
"""

import base64
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias
from urllib import parse

import msgspec

from fallow import names
from fallow.clients import errors, proxies, tls
from fallow.clients.kubernetes import kubeconfig as files
from fallow.model.secret import Secret

EXEC_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
# The cluster extension whose content is handed to exec plugins as spec.cluster.config.
_EXEC_EXTENSION = "client.authentication.k8s.io/exec"

_Cluster: TypeAlias = files.KubeconfigEntry[files.KubeconfigCluster]
_User: TypeAlias = files.KubeconfigEntry[files.KubeconfigUser]


class Pem(msgspec.Struct, frozen=True):
    """A certificate or key: given inline, or a file that may be renewed under us."""

    name: str
    data: Secret[bytes] | None = None
    path: Path | None = None

    def read(self) -> bytes:
        if self.path is None:
            return self.data.reveal() if self.data else b""
        try:
            return self.path.read_bytes()
        except OSError as problem:
            raise errors.Misconfigured(f"{self.name} {self.path} cannot be read: {problem.strerror}") from problem

    def stamp(self) -> int:
        """Changes when the file does; 0 while it is away, as it is for a moment when it is being replaced."""
        try:
            return self.path.stat().st_mtime_ns if self.path else 0
        except OSError:
            return 0


class ExecPlugin(msgspec.Struct, frozen=True):
    """A program that prints credentials; `environment` is complete, KUBERNETES_EXEC_INFO included."""

    api_version: str
    command: str
    args: tuple[str, ...]
    environment: Secret[dict[str, str]]
    install_hint: str | None = None


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """One API server, and all ways we have to prove who we are.

    At most one of token, basic, exec_plugin is used, in that order.
    """

    server: str  # https://host:port and perhaps a path, without a slash at the end
    context: str
    namespace: str | None = None
    ca: Pem | None = None  # None: the system's own
    verify: bool = True
    tls_server_name: str | None = None
    proxy: Secret[str] | None = None
    client_certificate: Pem | None = None
    client_key: Pem | None = None
    token: Secret[str] | None = None
    token_file: Path | None = None  # what it holds wins over `token`
    basic: Secret[str] | None = None  # user:password
    exec_plugin: ExecPlugin | None = None
    impersonation: tuple[tuple[str, str], ...] = ()  # headers


def load_access(
    *, kubeconfig: str | None, context: str | None, environment: Mapping[str, str],
    service_account_dir: Path = Path(names.SERVICE_ACCOUNT_DIR),
) -> Access:
    """The given kubeconfig, else KUBECONFIG, else ~/.kube/config, else the pod's service account."""
    paths = _choose_files(kubeconfig, environment)
    if paths:
        return _from_files(files.read_merged(paths), context, environment)
    if context is not None:
        asked = f"there is no kubeconfig to look for context {context!r} in"
        raise errors.Misconfigured(f"{asked}; name one with --kubeconfig")
    return _from_service_account(service_account_dir, environment)


def list_contexts(kubeconfig: str | None, environment: Mapping[str, str]) -> list[str]:
    """Those there are to choose from."""
    return list(files.read_merged(_choose_files(kubeconfig, environment)).contexts)


def _choose_files(kubeconfig: str | None, environment: Mapping[str, str]) -> list[Path]:
    if kubeconfig is not None:
        named = _split(kubeconfig)
        if missing := [path for path in named if not path.exists()]:
            raise errors.Misconfigured(f"kubeconfig {missing[0]} does not exist")
        if not named:
            raise errors.Misconfigured("the kubeconfig path is empty; name a file or leave it out")
        return named
    if listed := _split(environment.get("KUBECONFIG", "")):
        # As in kubectl, files of the list may be missing; if all are, going on would reach a cluster nobody named.
        if present := [path for path in listed if path.exists()]:
            return present
        listing = ", ".join(map(str, listed))
        raise errors.Misconfigured(f"KUBECONFIG names no file that exists ({listing}); correct or unset it")
    default = Path(environment["HOME"], ".kube", "config") if environment.get("HOME") else None
    return [default] if default and default.exists() else []


def _split(paths: str) -> list[Path]:
    return [Path(path) for path in paths.split(os.pathsep) if path]


def _from_files(merged: files.Merged, context: str | None, environment: Mapping[str, str]) -> Access:
    where = f"kubeconfig {', '.join(map(str, merged.files))}"
    offer = f" (there are: {', '.join(merged.contexts)})" if merged.contexts else ""
    name = context or merged.current_context
    if not name and not merged.contexts:
        raise errors.Misconfigured(f"{where} has no context in it; name another file with --kubeconfig")
    if not name:
        raise errors.Misconfigured(f"{where} has no current-context; choose one with --context{offer}")
    chosen = merged.contexts.get(name)
    if chosen is None:
        raise errors.Misconfigured(f"{where} has no context {name!r}; choose another with --context{offer}")
    asks = chosen.value
    cluster = merged.clusters.get(asks.cluster or "")
    if cluster is None:
        raise _wrong(chosen, f"context {name!r} names cluster {asks.cluster!r}, which is not there")
    nobody = files.KubeconfigEntry(files.KubeconfigUser(), chosen.file)
    user = merged.users.get(asks.user) if asks.user else nobody
    if user is None:
        raise _wrong(chosen, f"context {name!r} names user {asks.user!r}, which is not there")
    return _build(name, asks, cluster, user, environment)


def _wrong(where: files.KubeconfigEntry[Any], text: str) -> errors.Misconfigured:
    return errors.Misconfigured(f"{where.file}: {text}")


def _build(
    name: str, context: files.KubeconfigContext, cluster: _Cluster, user: _User, environment: Mapping[str, str]
) -> Access:
    value = cluster.value
    ca = _pem(cluster, "certificate-authority", value.certificate_authority, value.certificate_authority_data)
    certificate, key = _client_pair(user)
    _check_tls(cluster.file, ca, None)
    _check_tls(user.file, certificate, key)
    verify = not value.insecure_skip_tls_verify
    server = _server(cluster, is_tls=bool(ca or certificate or not verify))
    token, token_file, basic = _static(user)
    return Access(
        server=server, context=name, namespace=context.namespace or None, ca=ca, verify=verify,
        tls_server_name=value.tls_server_name or None, proxy=_proxy(cluster, server, environment),
        client_certificate=certificate, client_key=key, token=token, token_file=token_file, basic=basic,
        exec_plugin=_exec_plugin(user, cluster, ca, environment), impersonation=_impersonation(user),
    )


def _server(cluster: _Cluster, *, is_tls: bool) -> str:
    server = (cluster.value.server or "").rstrip("/")
    if not server:
        raise _wrong(cluster, "the cluster of this context has no server")
    if "://" not in server:
        server = f"{'https' if is_tls else 'http'}://{server}"
    check_address(server, f"{cluster.file}: server", ("https", "http"))
    if "@" in parse.urlsplit(server).netloc:
        raise _wrong(cluster, "server must not hold a user or password; put them into the user entry")
    return server


def check_address(address: str, what: str, schemes: Sequence[str]) -> str:
    """The address itself, if it is one; the sentence never repeats it, for it may hold a password."""
    try:
        parts = parse.urlsplit(address)
        usable = parts.scheme in schemes and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        beginnings = " or ".join(f"{scheme}://" for scheme in schemes)
        raise errors.Misconfigured(f"{what} is not an address that begins with {beginnings}")
    return address


def _pem(where: files.KubeconfigEntry[Any], field: str, path: str | None, data: str | None) -> Pem | None:
    """As in kubectl, inline data wins over a file."""
    if data:
        try:
            decoded = base64.b64decode("".join(data.split()), validate=True)
        except ValueError:
            raise _wrong(where, f"{field}-data is not base64") from None
        return Pem(f"{where.file}: {field}-data", data=Secret(decoded))
    if not path:
        return None
    pem = Pem(f"{where.file}: {field}", path=where.locate(path))
    pem.read()
    return pem


def _client_pair(user: _User) -> tuple[Pem | None, Pem | None]:
    value = user.value
    key_data = value.client_key_data.reveal() if value.client_key_data else None
    certificate = _pem(user, "client-certificate", value.client_certificate, value.client_certificate_data)
    key = _pem(user, "client-key", value.client_key, key_data)
    if (certificate is None) != (key is None):
        half = "client-certificate but no client-key" if certificate else "client-key but no client-certificate"
        raise _wrong(user, f"the user of this context has a {half}")
    return certificate, key


def _check_tls(file: Path, first: Pem | None, key: Pem | None) -> None:
    if first is None:
        return
    try:
        tls.check(None if key else first.read(), (first.read(), key.read()) if key else None)
    except errors.Misconfigured as problem:
        raise errors.Misconfigured(f"{first.path or file}: {problem}") from None


def _static(user: _User) -> tuple[Secret[str] | None, Path | None, Secret[str] | None]:
    value = user.value
    if value.auth_provider is not None:
        raise _wrong(user, "auth-provider is no longer part of Kubernetes; use an exec plugin instead")
    token = value.token if value.token and value.token.reveal() else None
    if (token or value.token_file) and value.username:
        raise _wrong(user, "the user of this context has both a token and a username; remove one")
    password = value.password.reveal() if value.password else ""
    basic = Secret(f"{value.username}:{password}") if value.username else None
    return token, user.locate(value.token_file) if value.token_file else None, basic


def _exec_plugin(user: _User, cluster: _Cluster, ca: Pem | None, environment: Mapping[str, str]) -> ExecPlugin | None:
    wanted = user.value.exec
    if wanted is None:
        return None
    if wanted.api_version not in EXEC_VERSIONS:
        raise _wrong(user, f"exec apiVersion {wanted.api_version!r} is not one of {', '.join(EXEC_VERSIONS)}")
    if not wanted.command:
        raise _wrong(user, "exec has no command")
    complete = dict(environment)
    complete.update((item.name, item.value.reveal() if item.value else "") for item in wanted.env or ())
    spec: dict[str, Any] = {"interactive": False}  # a daemon has nobody to ask
    if wanted.provide_cluster_info:
        spec["cluster"] = _cluster_info(cluster.value, ca)
    info = {"apiVersion": wanted.api_version, "kind": "ExecCredential", "spec": spec}
    complete["KUBERNETES_EXEC_INFO"] = msgspec.json.encode(info).decode()
    # A bare name is looked up in PATH; anything with a slash is a path, relative to the file it stands in.
    command = str(user.locate(wanted.command)) if os.sep in wanted.command else wanted.command
    return ExecPlugin(wanted.api_version, command, tuple(wanted.args or ()), Secret(complete), wanted.install_hint)


def _cluster_info(cluster: files.KubeconfigCluster, ca: Pem | None) -> dict[str, Any]:
    config = next((each.extension for each in cluster.extensions or () if each.name == _EXEC_EXTENSION), None)
    info = {
        "server": cluster.server,
        "tls-server-name": cluster.tls_server_name,
        "insecure-skip-tls-verify": cluster.insecure_skip_tls_verify,
        "certificate-authority-data": base64.b64encode(ca.read()).decode() if ca else None,
        "proxy-url": cluster.proxy_url.reveal() if cluster.proxy_url else None,
        "disable-compression": cluster.disable_compression,
        "config": config,
    }
    return {key: value for key, value in info.items() if value not in (None, "", False)}


def _impersonation(user: _User) -> tuple[tuple[str, str], ...]:
    value = user.value
    headers = [("Impersonate-User", value.as_user)] if value.as_user else []
    headers += [("Impersonate-Uid", value.as_uid)] if value.as_uid else []
    headers += [("Impersonate-Group", group) for group in value.as_groups or ()]
    for key, extras in (value.as_user_extra or {}).items():
        headers += [(f"Impersonate-Extra-{parse.quote(key, safe='')}", extra) for extra in extras]
    if headers and not value.as_user:
        raise _wrong(user, "as-uid, as-groups and as-user-extra need the user they belong to: add `as`")
    if not all(text.isprintable() for _, text in headers):
        raise _wrong(user, "the user to impersonate holds a line break or a control character")
    return tuple(headers)


def _proxy(cluster: _Cluster | None, server: str, environment: Mapping[str, str]) -> Secret[str] | None:
    given = cluster.value.proxy_url if cluster else None
    if cluster and given and given.reveal():
        address, what = given.reveal(), f"{cluster.file}: proxy-url"
    else:
        address, what = proxies.find_proxy(server, environment), "the proxy in the environment"
    return Secret(check_address(address, what, ("http", "https"))) if address else None


def _from_service_account(folder: Path, environment: Mapping[str, str]) -> Access:
    host, port = environment.get("KUBERNETES_SERVICE_HOST"), environment.get("KUBERNETES_SERVICE_PORT") or "443"
    token = folder / "token"
    if not host or not token.exists():
        ways = "name a kubeconfig with --kubeconfig, or run in a pod with a service account"
        raise errors.NoCluster(f"no cluster found: {ways}")
    address = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    server = check_address(address, "KUBERNETES_SERVICE_HOST:KUBERNETES_SERVICE_PORT", ("https",))
    ca = Pem("the service account's CA", path=folder / "ca.crt")
    _check_tls(folder / "ca.crt", ca, None)
    return Access(
        server=server, context="in-cluster", namespace=_read_namespace(folder / "namespace"), ca=ca, token_file=token,
        proxy=_proxy(None, server, environment),
    )


def _read_namespace(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8").strip() or None
    except OSError:
        return None
