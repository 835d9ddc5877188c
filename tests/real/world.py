"""A real Kubernetes control plane as plain processes on 127.0.0.1: etcd, API server, controllers, scheduler, pretend
kubelets.

In: the programs that `build` has put in the cache, and a few options (feature gates, a scheduler configuration, flags).
Out: `ControlPlane`, with a kubeconfig, certificates for any user, an audit log of who asked for what, and the means to
kill one of its processes and bring it back.
Invariant: nothing outlives its owner. Each cluster has a file that its owner keeps locked; whoever starts the next
cluster deletes those whose lock is free (their owner was killed before it could clean up).
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import datetime
import fcntl
import json
import os
import pathlib
import secrets
import shutil
import signal
import ssl
import subprocess
import time
import warnings
from collections.abc import Iterator
from typing import Any

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.real import build, lives

# Who asked for what, and what was written; but not what a claim tells its driver: it may be nested deeper than Python
# reads.
_AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "None", "nonResourceURLs": ["/healthz*", "/livez*", "/readyz*"]},
        {"level": "Metadata", "resources": [{"group": "resource.k8s.io", "resources": ["resourceclaims"]}]},
        {"level": "Request", "verbs": ["create", "update", "patch", "delete"]},
        {"level": "Metadata"},
    ],
}


@dataclasses.dataclass(frozen=True)
class Options:
    """What a test may want different from the plain cluster."""

    feature_gates: str = ""  # "HPAScaleToZero=true"
    runtime_config: str = ""  # "resource.k8s.io/v1beta1=true"
    scheduler: dict[str, Any] | None = None  # a KubeSchedulerConfiguration
    flags: tuple[str, ...] = ()  # "kube-controller-manager=horizontal-pod-autoscaler-sync-period=1s"
    stages: tuple[dict[str, Any], ...] = dataclasses.field(default_factory=lambda: tuple(lives.stages()))


PLAIN = Options()

# A controller manager makes 20 requests a second if nobody says otherwise: a wait in every test that makes pods. And
# these clusters are alone and live for minutes: there is no leader to be elected, nothing to be on the disk, and no
# size of a store to be asked for.
_CONTROLLER = {"kube-api-qps": "1000", "kube-api-burst": "2000", "leader-elect": "false"}
PACE = {"qps": 1000, "burst": 2000}  # the same for a scheduler: beside a configuration it ignores those flags
_ARGUMENTS = {
    "kube-controller-manager": _CONTROLLER, "kube-scheduler": _CONTROLLER, "etcd": {"unsafe-no-fsync": "true"},
    "kube-apiserver": {"etcd-count-metric-poll-period": "0", "etcd-db-metric-poll-interval": "0"},
}

_ROOM = 4 << 30  # a cluster takes about an eighth of a gigabyte; there are as many as workers, or twice that


@dataclasses.dataclass(frozen=True)
class Request:
    """One request that the API server answered."""

    user: str
    agent: str
    verb: str
    uri: str
    code: int
    body: Any  # of writes, but of claims; else None


class ControlPlane:
    """A running cluster. Make it with `running()`."""

    def __init__(self, name: str, folder: pathlib.Path) -> None:
        self.name = name
        self.folder = folder
        self.kubeconfig = folder / "kubeconfig.yaml"
        self.audit_log = folder / "logs" / "audit.log"
        context = yaml.safe_load(self.kubeconfig.read_text())
        self.url: str = context["clusters"][0]["cluster"]["server"]
        self.ca = folder / "pki" / "ca.crt"
        self._revived: list[subprocess.Popen[bytes]] = []

    def admin_tls(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.ca))
        context.load_cert_chain(self.folder / "pki" / "admin.crt", self.folder / "pki" / "admin.key")
        return context

    def kubeconfig_with_token(
        self, token: str, path: pathlib.Path, namespace: str, through: str | None = None
    ) -> pathlib.Path:
        return self._write_kubeconfig({"token": token}, path, namespace, through)

    def kubeconfig_of_user(
        self, user: str, groups: tuple[str, ...], path: pathlib.Path, namespace: str
    ) -> pathlib.Path:
        certificate, key = _sign(self.folder / "pki", user, groups)
        data = {"client-certificate-data": _base64(certificate), "client-key-data": _base64(key)}
        return self._write_kubeconfig(data, path, namespace)

    def _write_kubeconfig(
        self, user: dict[str, str], path: pathlib.Path, namespace: str, through: str | None = None
    ) -> pathlib.Path:
        cluster = {"server": through or self.url, "certificate-authority-data": _base64(self.ca.read_bytes())}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "test", "user": user}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test", "namespace": namespace}}],
            "current-context": "test",
        }
        path.write_text(yaml.safe_dump(content))
        path.chmod(0o600)
        return path

    def audit_mark(self) -> int:
        """A place in the audit log, to read only what came later."""
        return self.audit_log.stat().st_size if self.audit_log.exists() else 0

    def requests(self, since: int = 0) -> Iterator[Request]:
        with self.audit_log.open("rb") as log:
            log.seek(since)
            for line in log:
                if line.endswith(b"\n"):  # the last one may be half written
                    yield _read_audit(json.loads(line))

    def kill(self, component: str) -> None:
        """kill -9 of one process, for instance kube-apiserver; `revive` brings it back on the same port."""
        pid = int(self._pid_file(component).read_text())
        os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + 10
        while _is_alive(pid) and time.monotonic() < deadline:  # it holds its port until it is really gone
            time.sleep(0.01)

    def revive(self) -> None:
        """Start again what does not run. Not by kwokctl, which takes a process that nobody has reaped yet for a living
        one."""
        parts = [each for each in yaml.safe_load_all((self.folder / "kwok.yaml").read_text()) if "components" in each]
        for part in parts[0]["components"]:
            if not _is_alive(int(self._pid_file(part["name"]).read_text())):
                self._start(part["name"], [part["binary"], *part["args"]])

    def _start(self, component: str, command: list[str]) -> None:
        with (self.folder / "logs" / f"{component}.log").open("ab") as log:
            process = subprocess.Popen(command, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self._pid_file(component).write_text(str(process.pid))
        self._revived.append(process)

    def close(self) -> None:
        """End what this process started itself, and reap it."""
        for process in self._revived:
            process.kill()
            process.wait(10)

    def _pid_file(self, component: str) -> pathlib.Path:
        return self.folder / "pids" / f"{component}.pid"


@contextlib.contextmanager
def running(options: Options = PLAIN) -> Iterator[ControlPlane]:
    """A cluster for as long as the block lasts."""
    name = f"fallow-{secrets.token_hex(4)}"
    home = _home()
    with contextlib.ExitStack() as stack:
        with no_new_cluster():  # two at once may choose the same ports
            _delete_abandoned(home)
            owner = stack.enter_context((home / f"{name}.owner").open("w"))
            fcntl.flock(owner, fcntl.LOCK_EX)
            stack.callback(_delete, name)
            _create(name, home, options)
        plane = ControlPlane(name, home / "clusters" / name)
        stack.callback(plane.close)
        plane.revive()  # a controller manager gives up on an API server that is not there ten seconds after it
        yield plane


def no_new_cluster() -> contextlib.AbstractContextManager[None]:
    """Nobody makes a cluster meanwhile."""
    return build.lock(_home() / "create.lock")


def _create(name: str, home: pathlib.Path, options: Options) -> None:
    config = home / f"{name}.yaml"
    plain = {
        "apiVersion": "config.kwok.x-k8s.io/v1alpha1", "kind": "KwokctlConfiguration",
        "options": {"bindAddress": "127.0.0.1"},
        "componentsPatches": [
            {"name": program, "extraArgs": [{"key": key, "value": value} for key, value in arguments.items()]}
            for program, arguments in _ARGUMENTS.items()
        ],
    }
    config.write_text(yaml.safe_dump_all([plain, *options.stages]))
    policy = home / f"{name}.audit.yaml"
    policy.write_text(yaml.safe_dump(_AUDIT_POLICY))
    arguments = [
        "--name", name, "--runtime", "binary", "--wait", "240s", "--config", str(config), "--kube-audit-policy",
        str(policy),
    ]
    arguments += ["--kubeconfig", str(home / f"{name}.kubeconfig"), *_binaries()]
    if options.feature_gates:
        arguments += ["--kube-feature-gates", options.feature_gates]
    if options.runtime_config:
        arguments += ["--kube-runtime-config", options.runtime_config]
    if options.scheduler:
        scheduler = home / f"{name}.scheduler.yaml"
        scheduler.write_text(yaml.safe_dump({"clientConnection": PACE, **options.scheduler}))
        arguments += ["--kube-scheduler-config", str(scheduler)]
    for flag in options.flags:
        arguments += ["--extra-args", flag]
    _kwokctl("create", "cluster", *arguments)


def _binaries() -> list[str]:
    """Every one by its path: what is not named, kwokctl would try to download."""
    flags = {"kwok-controller": "kwok"} | {
        name: name for name in ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
    }
    return [word for flag, program in flags.items() for word in (f"--{flag}-binary", str(build.need(program)))]


def _is_alive(pid: int) -> bool:
    try:
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def _home() -> pathlib.Path:
    """In memory where there is room: on a disk that everybody writes to, etcd has answered too late."""
    memory = pathlib.Path("/dev/shm")
    roomy = os.access(memory, os.W_OK) and shutil.disk_usage(memory).total > _ROOM
    home = memory / f"fallow-{os.geteuid()}" if roomy else build.cache() / "control-planes"
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    return home


def _kwokctl(*arguments: str) -> None:
    # A larger heap for a tenth less CPU: these clusters live for minutes.
    environment = {
        "GOGC": "500", **os.environ, "KWOK_WORKDIR": str(_home()), "KWOK_KUBECTL_BINARY": str(build.need("kubectl"))
    }
    environment.pop("KUBECONFIG", None)
    command = [str(build.need("kwokctl")), *arguments]
    done = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=300
    )
    if done.returncode != 0:
        raise RuntimeError(f"kwokctl {' '.join(arguments[:2])} failed: {done.stderr.strip()[-800:]}")


def _delete(name: str) -> None:
    home = _home()
    _kwokctl("delete", "cluster", "--name", name, "--kubeconfig", str(home / f"{name}.kubeconfig"))
    for left in home.glob(f"{name}.*"):
        left.unlink()


def _delete_abandoned(home: pathlib.Path) -> None:
    for file in home.glob("*.owner"):
        with file.open("w") as owner, contextlib.suppress(BlockingIOError):
            fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _delete(file.stem)


def _read_audit(record: dict[str, Any]) -> Request:
    status = record.get("responseStatus") or {}
    who = record.get("impersonatedUser") or record["user"]
    agent, code, body = record.get("userAgent", ""), status.get("code", 0), record.get("requestObject")
    return Request(who.get("username", ""), agent, record["verb"], record["requestURI"], code, body)


def _sign(pki: pathlib.Path, user: str, groups: tuple[str, ...]) -> tuple[bytes, bytes]:
    """A client certificate as the API server reads it: the common name is the user, organisations are the groups."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # kwokctl gives its CA the serial number 0
        ca = x509.load_pem_x509_certificate((pki / "ca.crt").read_bytes())
    ca_key = serialization.load_pem_private_key((pki / "ca.key").read_bytes(), password=None)
    key = ec.generate_private_key(ec.SECP256R1())
    names = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([*names, x509.NameAttribute(NameOID.COMMON_NAME, user)]))
        .issuer_name(ca.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .sign(ca_key, hashes.SHA256())  # type: ignore[arg-type]
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return certificate.public_bytes(pem), private


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


