"""Have the outside programs that the real tests run: `python -m tests.real.build [PROGRAM...]`.

In: the Go modules next to this file (which pin the versions), the Go tool, on Debian also apt.
Out: executables in `${FALLOW_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/fallow}/<part>-<version>/`, so that a second run
costs nothing. Programs on PATH are preferred only where any recent version will do (Prometheus, kubectl).
Invariant: an executable in the cache is whole. It is made in a scratch folder and renamed into place, under a lock
per part, so any number of builds may run at once. A program that cannot be had raises `CannotHave` with the reason.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence

HERE = pathlib.Path(__file__).parent
KUBERNETES, ETCD, KWOK = "v1.36.3", "v3.6.5", "v0.8.0"
PROMETHEUS = "2.42-or-later"  # Debian's package, or what prometheus/go.mod pins

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


def cache() -> pathlib.Path:
    root = os.environ.get("FALLOW_CACHE")
    if root:
        return pathlib.Path(root)
    return pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "fallow"


def find(program: str) -> pathlib.Path | None:
    """The executable if it is there already, without building anything."""
    part = _part_of(program)
    on_path = shutil.which(program) if part.any_version else None
    if on_path:
        return pathlib.Path(on_path)
    kept = _folder(part) / program
    return kept if kept.exists() else None


def need(program: str) -> pathlib.Path:
    """The executable; `CannotHave` if it has not been made."""
    found = find(program)
    if found is None:
        raise CannotHave(f"{program} is not there: run `python -m tests.real.build`")
    return found


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


def _install_kwok(program: str, folder: pathlib.Path) -> None:
    command = [_go(), "install", "-trimpath", "-ldflags", "-s -w", f"sigs.k8s.io/kwok/cmd/{program}@{KWOK}"]
    _run(command, f"go install of {program} failed", CGO_ENABLED="0", GOBIN=str(folder))


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
    shutil.move(folder / "root" / "usr" / "bin" / program, folder / program)
    _run([str(folder / program), "--version"], f"the packaged {program} does not run here")


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
    Part("kwok", KWOK, ("kwok", "kwokctl"), _install_kwok),
    Part("prometheus", PROMETHEUS, ("prometheus", "promtool"), _unpack_or_build_prometheus, any_version=True),
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
        try:
            print(f"{program}: {obtain(program)}", flush=True)
        except CannotHave as why:
            print(f"{program} cannot be had: {why}", file=sys.stderr, flush=True)
            failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
