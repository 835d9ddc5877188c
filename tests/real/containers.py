"""Our images, made from this checkout and started: unpacked by the layers of their archive, run by runc as a kubelet
would have it run under Pod Security `restricted`.

In: the packages pinned in deploy/image, this checkout. Out: `Made`, and containers of it.
Invariant: nobody in a container is root, its root is read-only, it has no capability; it shares the network, so that a
test reaches its loopback. What was made is kept by the content it was made from; a container goes with its test.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import pathlib
import shutil
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from docs import image_oci, images
from docs.image_tree import NOBODY

from tests import ROOT
from tests.real import build

AT = 1_790_000_000
VERSION = "0.0.0"
_KEPT_SECONDS = 86_400


@dataclasses.dataclass(frozen=True)
class Made:
    """An image: its archive, its configuration, and where it is unpacked."""

    archive: pathlib.Path
    config: dict[str, Any]
    root: pathlib.Path


def processor() -> str:
    return images.this_processor()


def make() -> dict[str, Made]:
    """By name. `images.NoImage` where packages cannot be fetched."""
    cache = build.cache() / "images"
    cache.mkdir(parents=True, exist_ok=True)
    with build.lock(cache / ".lock"):
        wheel = make_wheel(cache / "wheel")
        sources = [wheel, *sorted((ROOT / "docs").glob("*image*.py")), ROOT / "docs/debian.py", ROOT / "docs/pins.py",
                   *sorted((ROOT / "deploy/image").iterdir())]
        key = hashlib.sha256(b"\0".join(each.read_bytes() for each in sources)).hexdigest()[:16]
        place = cache / f"made-{key}"
        if not place.exists():
            _forget_old(cache)
            _make(wheel, cache, place)
    return {each.name: _open(each.name, place) for each in images.IMAGES}


def make_wheel(folder: pathlib.Path) -> pathlib.Path:
    shutil.rmtree(folder, ignore_errors=True)
    images.pack_python(folder, "wheel", at=AT)
    [wheel] = folder.glob("*.whl")
    return wheel


def _make(wheel: pathlib.Path, cache: pathlib.Path, place: pathlib.Path) -> None:
    scratch = cache / "making"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    made = images.make(scratch, wheel, version=VERSION, revision="0" * 40, at=AT, cache=cache, processors=[processor()])
    for archive in made:
        root = scratch / archive.name.removesuffix(f"-{VERSION}.oci.tar")
        config, layers = image_oci.read_archive(archive, processor())
        for layer in layers:
            layer.extractall(root, filter="fully_trusted")
        root.with_suffix(".json").write_text(json.dumps(config))
    scratch.rename(place)


def _forget_old(cache: pathlib.Path) -> None:
    for each in cache.glob("made-*"):
        if each.stat().st_mtime < time.time() - _KEPT_SECONDS:
            shutil.rmtree(each)


def _open(name: str, place: pathlib.Path) -> Made:
    return Made(place / f"{name}-{VERSION}.oci.tar", json.loads((place / f"{name}.json").read_text()), place / name)


# ---- running ---------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str


def run(image: Made, *command: str, has_tmp: bool = False) -> Ended:
    """To its end; no command: the image's own program. `has_tmp`: with an emptyDir on /tmp."""
    with bundle(image, command=command, has_tmp=has_tmp) as (folder, name):
        done = subprocess.run(_runc("run", "--bundle", str(folder), name), capture_output=True, text=True, timeout=120,
                              check=False, stdin=subprocess.DEVNULL)
    return Ended(done.returncode, done.stdout, done.stderr)


@contextlib.contextmanager
def running(image: Made, *command: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """Beside the test; a signal that it is sent reaches the program."""
    with bundle(image, command=command, variables=variables) as (folder, name):
        process = subprocess.Popen(_runc("run", "--bundle", str(folder), name), text=True, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()
            process.communicate(timeout=30)


@contextlib.contextmanager
def bundle(
    image: Made, *, command: Sequence[str], has_tmp: bool = False, variables: Mapping[str, str] = MappingProxyType({})
) -> Iterator[tuple[pathlib.Path, str]]:
    name = f"fallow-{uuid.uuid4().hex[:12]}"
    folder = build.cache() / "images" / "running" / name
    folder.mkdir(parents=True)
    said = image.config["config"]
    arguments = list(command or said["Entrypoint"])
    environment = [*said["Env"], *(f"{key}={value}" for key, value in variables.items())]
    configured = _configure(image.root, arguments, environment, said["User"], ["/tmp"] if has_tmp else [])
    (folder / "config.json").write_text(json.dumps(configured))
    try:
        yield folder, name
    finally:
        subprocess.run(_runc("delete", "--force", name), capture_output=True, check=False)
        shutil.rmtree(folder)


def _runc(*words: str) -> list[str]:
    return [str(build.need("runc")), "--root", str(build.cache() / "images" / "runc"), *words]


def _configure(
    root: pathlib.Path, arguments: list[str], environment: list[str], user: str, written: list[str]
) -> dict[str, Any]:
    number, group = (int(each) for each in user.split(":"))
    assert number == group == NOBODY
    mounts = {"/proc": ("proc", []), "/dev": ("tmpfs", ["nosuid", "mode=755"]),
              **{each: ("tmpfs", ["nosuid", "nodev", "mode=1777"]) for each in written}}
    return {
        "ociVersion": "1.0.2", "root": {"path": str(root), "readonly": True}, "hostname": "smoke",
        "process": {
            "user": {"uid": number, "gid": group}, "args": arguments, "env": environment, "cwd": "/",
            "noNewPrivileges": True, "capabilities": {},
        },
        "mounts": [{"destination": place, "type": kind, "source": kind, "options": options}
                   for place, (kind, options) in mounts.items()],
        "linux": {"namespaces": [{"type": each} for each in ("pid", "mount", "ipc", "uts")]},
    }
