"""Kubeconfig files and service accounts: what is found, what wins, and what is said when it cannot work."""

import base64
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trustme
import yaml
from hypothesis import given
from hypothesis import strategies as st

from fallow.clients import errors, proxies
from fallow.clients.kubernetes import config


def kubeconfig(
    folder: Path,
    name: str = "config",
    *,
    cluster: dict[str, Any] | None = None,
    user: dict[str, Any] | None = None,
    context: dict[str, Any] | None = None,
    called: str = "dev",
    current: str | None = "dev",
) -> Path:
    """A kubeconfig with one context `called`, its cluster and its user."""
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": current,
        "clusters": [
            {"name": f"{called}-cluster", "cluster": {"server": "https://k8s.example:6443"} | (cluster or {})}
        ],
        "users": [{"name": f"{called}-user", "user": user or {}}],
        "contexts": [
            {"name": called, "context": {"cluster": f"{called}-cluster", "user": f"{called}-user"} | (context or {})}
        ],
    }
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(content))
    return path


def load(path: Path | str | None, context: str | None = None, **environment: str) -> config.Access:
    return config.load_access(kubeconfig=None if path is None else str(path), context=context, environment=environment)


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def pem(ca: trustme.CA) -> bytes:
    return ca.cert_pem.bytes()


@pytest.fixture
def pair(authority: trustme.CA) -> tuple[bytes, bytes]:
    leaf = authority.issue_cert("ada@example.org")
    return leaf.cert_chain_pems[0].bytes(), leaf.private_key_pem.bytes()


# Which file


def test_the_named_file_wins_over_the_environment(tmp_path: Path) -> None:
    named = kubeconfig(tmp_path, "named", cluster={"server": "https://named"})
    other = kubeconfig(tmp_path, "other", cluster={"server": "https://other"})
    assert load(named, KUBECONFIG=str(other)).server == "https://named"


def test_the_environments_list_wins_over_the_home_folder(tmp_path: Path) -> None:
    kubeconfig(tmp_path, ".kube/config", cluster={"server": "https://home"})
    listed = kubeconfig(tmp_path, "listed", cluster={"server": "https://listed"})
    assert load(None, KUBECONFIG=str(listed), HOME=str(tmp_path)).server == "https://listed"
    assert load(None, KUBECONFIG="", HOME=str(tmp_path)).server == "https://home"


def test_files_are_merged_and_the_first_to_name_a_thing_wins(tmp_path: Path) -> None:
    first = kubeconfig(tmp_path, "one/config", cluster={"server": "https://first"}, current="")
    second = kubeconfig(tmp_path, "two/config", cluster={"server": "https://second"}, current="prod", called="dev")
    third = kubeconfig(
        tmp_path, "three/config", cluster={"server": "https://third"}, called="prod", user={"token": "t"}
    )
    listed = os.pathsep.join([str(first), str(tmp_path / "missing"), str(second), str(third)])
    merged = load(None, KUBECONFIG=listed)
    assert (merged.context, merged.server) == ("prod", "https://third")
    assert load(None, "dev", KUBECONFIG=listed).server == "https://first"


def test_a_context_may_use_a_cluster_and_a_user_of_other_files(tmp_path: Path) -> None:
    mix = {"name": "mix", "context": {"cluster": "a-cluster", "user": "b-user", "namespace": "ml"}}
    contexts = {"current-context": "mix", "contexts": [mix]}
    (tmp_path / "contexts").write_text(yaml.safe_dump(contexts))
    kubeconfig(tmp_path, "a", called="a", cluster={"server": "https://a"})
    kubeconfig(tmp_path, "b", called="b", user={"token": "of-b"})
    access = load(os.pathsep.join(str(tmp_path / name) for name in ("contexts", "a", "b")))
    assert (access.server, access.namespace) == ("https://a", "ml")
    assert access.token is not None
    assert access.token.reveal() == "of-b"


# What is in it


def test_relative_paths_are_relative_to_the_file_they_stand_in(
    tmp_path: Path, authority: trustme.CA, pair: tuple[bytes, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "etc/pki").mkdir(parents=True)
    for name, data in {"ca.pem": pem(authority), "ada.pem": pair[0], "ada.key": pair[1], "token": b"secret"}.items():
        (tmp_path / "etc/pki" / name).write_bytes(data)
    user = {"client-certificate": "pki/ada.pem", "client-key": "pki/ada.key", "tokenFile": "pki/token"}
    kubeconfig(tmp_path, "etc/config", cluster={"certificate-authority": "pki/ca.pem"}, user=user)
    monkeypatch.chdir(tmp_path)
    access = load("etc/config")
    assert access.ca is not None
    assert access.ca.read() == pem(authority)
    assert access.client_key is not None
    assert access.client_key.read() == pair[1]
    assert access.token_file == tmp_path / "etc/pki/token"


def test_inline_data_wins_over_files(tmp_path: Path, authority: trustme.CA, pair: tuple[bytes, bytes]) -> None:
    cluster = {"certificate-authority": "nowhere", "certificate-authority-data": b64(pem(authority))}
    user = {"client-certificate-data": b64(pair[0]), "client-key-data": b64(pair[1])}
    access = load(kubeconfig(tmp_path, cluster=cluster, user=user))
    assert access.ca is not None
    assert access.client_certificate is not None
    assert (access.ca.read(), access.client_certificate.read()) == (pem(authority), pair[0])


@pytest.mark.parametrize(
    ("server", "extra", "expected"),
    [
        ("https://host:6443/", {}, "https://host:6443"),
        ("https://rancher/k8s/clusters/c-1", {}, "https://rancher/k8s/clusters/c-1"),
        ("host:8080", {}, "http://host:8080"),
        ("host:6443", {"insecure-skip-tls-verify": True}, "https://host:6443"),
    ],
    ids=["slash-at-the-end", "path-kept", "bare-host", "bare-host-with-tls"],
)
def test_server_addresses(tmp_path: Path, server: str, extra: dict[str, Any], expected: str) -> None:
    access = load(kubeconfig(tmp_path, cluster={"server": server} | extra))
    assert access.server == expected
    assert access.verify is not bool(extra)


def test_impersonation_becomes_headers(tmp_path: Path) -> None:
    user = {"as": "ada", "as-uid": "7", "as-groups": ["ml", "ops"], "as-user-extra": {"example.org/team": ["a", "b"]}}
    assert load(kubeconfig(tmp_path, user=user)).impersonation == (
        ("Impersonate-User", "ada"),
        ("Impersonate-Uid", "7"),
        ("Impersonate-Group", "ml"),
        ("Impersonate-Group", "ops"),
        ("Impersonate-Extra-example.org%2Fteam", "a"),
        ("Impersonate-Extra-example.org%2Fteam", "b"),
    )


def test_a_user_may_be_empty_and_an_unnamed_one_is_nobody(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path, context={"user": None, "namespace": ""})
    access = load(path)
    assert (access.token, access.basic, access.exec_plugin, access.namespace) == (None, None, None, None)


def test_an_exec_plugin_is_told_about_the_cluster_when_it_asks(tmp_path: Path, authority: trustme.CA) -> None:
    (tmp_path / "ca.pem").write_bytes(pem(authority))
    cluster = {
        "certificate-authority": "ca.pem",
        "tls-server-name": "kubernetes.default",
        "proxy-url": "http://proxy:3128",
        "extensions": [
            {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "x"}},
            {"name": "other"},
        ],
    }
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "./bin/login",
        "args": ["--for", "k8s"],
        "env": [{"name": "PROFILE", "value": "ml"}],
        "provideClusterInfo": True,
        "interactiveMode": "Always",
    }
    access = load(kubeconfig(tmp_path, cluster=cluster, user={"exec": plugin}), PATH="/bin", PROFILE="old")
    assert access.exec_plugin is not None
    assert (access.exec_plugin.command, access.exec_plugin.args) == (str(tmp_path / "bin/login"), ("--for", "k8s"))
    environment = access.exec_plugin.environment.reveal()
    assert (environment["PATH"], environment["PROFILE"]) == ("/bin", "ml")
    info = msgspec.json.decode(environment["KUBERNETES_EXEC_INFO"])
    assert info == {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "spec": {
            "interactive": False,
            "cluster": {
                "server": "https://k8s.example:6443",
                "tls-server-name": "kubernetes.default",
                "certificate-authority-data": b64(pem(authority)),
                "proxy-url": "http://proxy:3128",
                "config": {"audience": "x"},
            },
        },
    }


def test_an_exec_plugin_is_not_told_when_it_does_not_ask(tmp_path: Path) -> None:
    plugin = {"apiVersion": "client.authentication.k8s.io/v1beta1", "command": "login"}
    access = load(kubeconfig(tmp_path, user={"exec": plugin}))
    assert access.exec_plugin is not None
    assert access.exec_plugin.command == "login"
    assert msgspec.json.decode(access.exec_plugin.environment.reveal()["KUBERNETES_EXEC_INFO"])["spec"] == {
        "interactive": False
    }


@pytest.mark.parametrize(
    ("server", "environment", "expected"),
    [
        ("https://k8s.example", {"HTTPS_PROXY": "http://p:1"}, "http://p:1"),
        ("https://k8s.example", {"https_proxy": "p:1"}, "http://p:1"),
        ("http://k8s.example", {"HTTPS_PROXY": "http://p:1"}, ""),
        ("https://k8s.example", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "example"}, ""),
        ("https://k8s.example", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "a.b, .example"}, ""),
        ("https://notexample", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "example"}, "http://p:1"),
        ("https://10.96.0.1", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "10.96.0.0/12"}, ""),
        ("https://10.1.0.1", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "10.96.0.0/12"}, "http://p:1"),
        ("https://k8s.example", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "*"}, ""),
        ("https://127.0.0.1:6443", {"HTTPS_PROXY": "http://p:1"}, ""),
        ("https://localhost:6443", {"HTTPS_PROXY": "http://p:1"}, ""),
        ("https://[::1]:6443", {"HTTPS_PROXY": "http://p:1"}, ""),
        ("https://k8s.example", {}, ""),
    ],
)
def test_proxies_of_the_environment(server: str, environment: dict[str, str], expected: str) -> None:
    assert proxies.find_proxy(server, environment) == expected


def test_the_files_proxy_wins_over_the_environments(tmp_path: Path) -> None:
    access = load(kubeconfig(tmp_path, cluster={"proxy-url": "http://mine:1"}), HTTPS_PROXY="http://theirs:2")
    assert access.proxy is not None
    assert access.proxy.reveal() == "http://mine:1"


# What cannot work


V1 = "client.authentication.k8s.io/v1"


@pytest.mark.parametrize(
    ("cluster", "user", "sentence"),
    [
        ({"server": ""}, {}, "has no server"),
        ({"server": "ftp://x"}, {}, "begins with https:// or http://"),
        ({"server": "https://ada:hunter2@x"}, {}, "must not hold a user or password"),
        ({"certificate-authority": "gone.pem"}, {}, "gone.pem cannot be read"),
        ({"certificate-authority-data": "%%%"}, {}, "certificate-authority-data is not base64"),
        ({"certificate-authority-data": b64(b"no PEM")}, {}, "holds no certificate"),
        ({"proxy-url": "socks5://x"}, {}, "proxy-url is not an address that begins with http:// or https://"),
        ({}, {"client-certificate-data": b64(b"x")}, "client-certificate but no client-key"),
        ({}, {"client-certificate-data": b64(b"x"), "client-key-data": b64(b"hunter2")}, "cannot be used"),
        ({}, {"token": "hunter2", "username": "ada"}, "both a token and a username"),
        ({}, {"token": 12345}, "Expected `str`"),
        ({}, {"as-groups": ["ml"]}, "add `as`"),
        ({}, {"as": "a\nb"}, "line break"),
        ({}, {"exec": {"command": "x", "apiVersion": "client.authentication.k8s.io/v1alpha1"}}, "is not one of"),
        ({}, {"exec": {"command": "", "apiVersion": V1}}, "exec has no command"),
        ({}, {"auth-provider": {"name": "oidc", "config": {"id-token": "hunter2"}}}, "use an exec plugin"),
    ],
)
def test_what_cannot_work_is_said_in_one_sentence(
    tmp_path: Path, cluster: dict[str, Any], user: dict[str, Any], sentence: str
) -> None:
    path = kubeconfig(tmp_path, cluster=cluster, user=user)
    with pytest.raises(errors.Misconfigured) as caught:
        load(path)
    assert sentence in str(caught.value)
    assert str(tmp_path) in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("users:\n- name: a\n  user: {token: hunter2", "not valid YAML (line "),
        ("- just\n- a list", "is not a kubeconfig"),
        ("users: [{name: a, user: {token: [hunter2]}}]", "Expected `str`"),
        ("", "has no context in it; name another file"),
        ("current-context: x", "has no context 'x'"),
        ("{current-context: x, contexts: [{name: x, context: {cluster: c}}]}", "names cluster 'c', which is not there"),
        (
            "{current-context: x, contexts: [{name: x, context: {cluster: c, user: u}}], clusters: [{name: c}]}",
            "names user 'u'",
        ),
    ],
)
def test_broken_files(tmp_path: Path, content: str, sentence: str) -> None:
    path = tmp_path / "broken"
    path.write_text(content)
    with pytest.raises(errors.Misconfigured) as caught:
        load(path)
    assert sentence in str(caught.value)
    assert str(path) in str(caught.value)
    assert "hunter2" not in f"{caught.value} {caught.value.__cause__}"


def test_files_and_contexts_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(errors.Misconfigured, match="nowhere does not exist"):
        load(tmp_path / "nowhere")
    with pytest.raises(errors.Misconfigured, match="path is empty"):
        load("")
    with pytest.raises(errors.Misconfigured, match="KUBECONFIG names no file that exists"):
        load(None, KUBECONFIG=str(tmp_path / "nowhere"), HOME=str(tmp_path))
    with pytest.raises(
        errors.Misconfigured, match=r"no context 'prod'; choose another with --context \(there are: dev\)"
    ):
        load(kubeconfig(tmp_path), "prod")
    with pytest.raises(errors.Misconfigured, match="there is no kubeconfig to look for context 'dev' in"):
        load(None, "dev", HOME=str(tmp_path / "empty"))
    with pytest.raises(errors.Misconfigured, match="no cluster found"):
        load(None)
    with pytest.raises(errors.Misconfigured, match="cannot be read: Is a directory"):
        load(tmp_path)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(ANYTHING)
def test_any_yaml_is_either_read_or_refused_in_words(tmp_path_factory: pytest.TempPathFactory, content: Any) -> None:
    path = tmp_path_factory.mktemp("any") / "config"
    path.write_text(
        yaml.safe_dump({"current-context": "x", "contexts": content, "clusters": content, "users": content})
    )
    with pytest.raises(errors.Misconfigured, match="kubeconfig"):
        load(path)


# In the cluster


@pytest.fixture
def account(tmp_path: Path, authority: trustme.CA) -> Path:
    for name, data in {"token": b"in-pod\n", "ca.crt": pem(authority), "namespace": b"gpu-system"}.items():
        (tmp_path / name).write_bytes(data)
    return tmp_path


@pytest.mark.parametrize(
    ("host", "server"), [("10.96.0.1", "https://10.96.0.1:443"), ("fd00::1", "https://[fd00::1]:443")], ids=["v4", "v6"]
)
def test_in_a_pod_the_service_account_is_used(account: Path, host: str, server: str) -> None:
    environment = {
        "KUBERNETES_SERVICE_HOST": host,
        "KUBERNETES_SERVICE_PORT": "443",
        "HTTPS_PROXY": "http://p:1",
        "NO_PROXY": "10.0.0.0/8",
    }
    access = config.load_access(kubeconfig=None, context=None, environment=environment, service_account_dir=account)
    assert (access.server, access.context, access.namespace) == (server, "in-cluster", "gpu-system")
    assert access.token_file == account / "token"
    assert (access.proxy is None) is (host == "10.96.0.1")


def test_a_pod_without_a_usable_authority_is_told_so(account: Path) -> None:
    (account / "ca.crt").write_text("nothing")
    with pytest.raises(errors.Misconfigured, match=r"ca\.crt"):
        config.load_access(
            kubeconfig=None, context=None, environment={"KUBERNETES_SERVICE_HOST": "h"}, service_account_dir=account
        )


def test_no_repr_shows_a_credential(tmp_path: Path, pair: tuple[bytes, bytes]) -> None:
    user = {
        "token": "hunter2",
        "client-certificate-data": b64(pair[0]),
        "client-key-data": b64(pair[1]),
        "exec": {"command": "x", "apiVersion": V1, "env": [{"name": "PASSWORD", "value": "hunter2"}]},
    }
    for each in (user, {"username": "ada", "password": "hunter2"}):
        access = load(kubeconfig(tmp_path, cluster={"proxy-url": "http://u:hunter2@p"}, user=each), SECRET="hunter2")
        shown = f"{access!r} {access} {list(access.__rich_repr__())}"
        assert "hunter2" not in shown
        assert "PRIVATE" not in shown
        assert "https://k8s.example:6443" in shown
