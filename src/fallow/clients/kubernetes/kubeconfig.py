"""Kubeconfig files as they are written: read, checked, merged.

In: one or more paths, as in KUBECONFIG. Out: one `Merged` set of contexts, clusters and users, each with the file it
stands in. As in kubectl, the first file that names a thing wins, and relative paths are relative to the file they stand
in. Invariant: what cannot be used raises Misconfigured with one sentence naming the file, and never shows a credential.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from fallow.clients import errors, secret
from fallow.model.secret import Secret

T = TypeVar("T")


class Extension(msgspec.Struct, frozen=True):
    name: str
    extension: Any = None


class KubeconfigCluster(msgspec.Struct, frozen=True, rename="kebab", kw_only=True):
    server: str | None = None
    certificate_authority: str | None = None
    certificate_authority_data: str | None = None
    insecure_skip_tls_verify: bool | None = None
    tls_server_name: str | None = None
    proxy_url: Secret[str] | None = None
    disable_compression: bool | None = None
    extensions: list[Extension] | None = None


class KubeconfigVariable(msgspec.Struct, frozen=True):
    name: str
    value: Secret[str] | None = None


class Exec(msgspec.Struct, frozen=True, rename="camel"):
    command: str
    api_version: str | None = None
    args: list[str] | None = None
    env: list[KubeconfigVariable] | None = None
    install_hint: str | None = None
    provide_cluster_info: bool | None = None


class KubeconfigUser(msgspec.Struct, frozen=True, rename="kebab", kw_only=True):
    client_certificate: str | None = None
    client_certificate_data: str | None = None
    client_key: str | None = None
    client_key_data: Secret[str] | None = None
    token: Secret[str] | None = None
    token_file: str | None = msgspec.field(default=None, name="tokenFile")
    username: str | None = None
    password: Secret[str] | None = None
    as_user: str | None = msgspec.field(default=None, name="as")
    as_uid: str | None = None
    as_groups: list[str] | None = None
    as_user_extra: dict[str, list[str]] | None = None
    exec: Exec | None = None
    auth_provider: Secret[Any] | None = None


class KubeconfigContext(msgspec.Struct, frozen=True):
    cluster: str | None = None
    user: str | None = None
    namespace: str | None = None


class _NamedCluster(msgspec.Struct, frozen=True):
    name: str
    cluster: KubeconfigCluster | None = None


class _NamedUser(msgspec.Struct, frozen=True):
    name: str
    user: KubeconfigUser | None = None


class _NamedContext(msgspec.Struct, frozen=True):
    name: str
    context: KubeconfigContext | None = None


class _File(msgspec.Struct, frozen=True, rename="kebab"):
    current_context: str | None = None
    clusters: list[_NamedCluster] | None = None
    users: list[_NamedUser] | None = None
    contexts: list[_NamedContext] | None = None


class KubeconfigEntry(msgspec.Struct, Generic[T], frozen=True):
    """A named entry and the file it stands in, which is what its relative paths are relative to."""

    value: T
    file: Path

    def locate(self, path: str) -> Path:
        return self.file.absolute().parent / path


class Merged(msgspec.Struct):
    files: list[Path]
    current_context: str | None = None
    clusters: dict[str, KubeconfigEntry[KubeconfigCluster]] = {}
    users: dict[str, KubeconfigEntry[KubeconfigUser]] = {}
    contexts: dict[str, KubeconfigEntry[KubeconfigContext]] = {}


def read_merged(paths: Sequence[Path]) -> Merged:
    """All files as one, where the first to name a thing wins."""
    merged = Merged(list(paths))
    for path in paths:
        content = _read(path)
        merged.current_context = merged.current_context or content.current_context
        for cluster in content.clusters or ():
            merged.clusters.setdefault(cluster.name, KubeconfigEntry(cluster.cluster or KubeconfigCluster(), path))
        for user in content.users or ():
            merged.users.setdefault(user.name, KubeconfigEntry(user.user or KubeconfigUser(), path))
        for context in content.contexts or ():
            merged.contexts.setdefault(context.name, KubeconfigEntry(context.context or KubeconfigContext(), path))
    return merged


def _read(path: Path) -> _File:
    import yaml  # within a cluster there is no such file

    try:
        text = path.read_text(encoding="utf-8")
    except OSError as problem:
        why = problem.strerror or type(problem).__name__
        raise errors.Misconfigured(f"kubeconfig {path} cannot be read: {why}") from problem
    except UnicodeDecodeError as problem:
        raise errors.Misconfigured(f"kubeconfig {path} cannot be read: it is not UTF-8 text") from problem
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as problem:
        # The library's own message quotes the line, and that may be a token; its cause is dropped for the same reason.
        mark = getattr(problem, "problem_mark", None)
        line = f" (line {mark.line + 1})" if mark is not None else ""
        raise errors.Misconfigured(f"kubeconfig {path} is not valid YAML{line}") from None
    try:
        return msgspec.convert({} if content is None else content, _File, dec_hook=secret.hide)
    except msgspec.ValidationError as problem:
        raise errors.Misconfigured(f"kubeconfig {path} is not a kubeconfig: {problem}") from None
