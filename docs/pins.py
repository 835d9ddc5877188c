"""Writes the packages of the images and of `kubectl fallow` with their hashes, of the versions in constraints.txt:
`make pins`.

In: what each needs, the package index, Debian's mirror. Out: deploy/image/*.txt: Python's packages as
`pip install --require-hashes` takes them, with the hashes of the wheels for each processor that the images are built
for, and for people's machines those of every wheel that may fit one; Debian's with their places and hashes. Run it when
a dependency changes, or Debian has mended something; a test compares what is written with constraints.txt.
"""

import json
import re
import subprocess
import sys
import tempfile
import tomllib
import urllib.request
from collections.abc import Iterable, Iterator
from pathlib import Path

from packaging import tags, utils
from pip._internal.models.index import PyPI

from docs import debian

ROOT = Path(__file__).parent.parent
PYTHON = "3.11"  # of the images
PROCESSORS = {"amd64": "x86_64", "arm64": "aarch64"}  # as images and Debian, and as Python and Linux call them
SUITE = "bookworm"  # Debian's, whose Python it is
# What the node exporter imports; see the contract "The node's programs stay light" in pyproject.toml.
EXPORTER = ("aiohttp", "bcrypt", "click", "h2", "httptools", "msgspec", "nvidia-ml-py", "PyYAML")
# Of Debian: the C library, Python, what its modules are linked with, authorities of TLS. No shell is among them.
DEBIAN = (
    "base-files", "ca-certificates", "libbz2-1.0", "libc6", "libexpat1", "libffi8", "libgcc-s1",
    "liblzma5", "libpython3.11-minimal", "libpython3.11-stdlib", "libssl3", "libuuid1", "python3.11-minimal", "zlib1g",
)
DEBIAN_CONTROLLER = ("libsqlite3-0", "libstdc++6", "tzdata")  # the ledger, the solver, schedules
KREW = "krew.txt"
# Wheels that pip may choose on a machine of a person: a Python of these or any, Linux or macOS, these processors.
_PYTHONS = re.compile(r"py3|cp31[1-9]")
_MACHINES = re.compile(r"any|(manylinux|musllinux).*_(x86_64|aarch64)|macosx_.*_(x86_64|arm64|universal2)")
ABOUT = "# Made by `make pins` from constraints.txt: {}.\n"


def sets() -> dict[str, tuple[str, tuple[str, ...]]]:
    """File name -> what it is, and the packages that are asked for by name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    asked = tuple(project["project"]["dependencies"])
    exporter = tuple(each for each in asked if each.startswith(EXPORTER))
    extras = tuple(project["project"]["optional-dependencies"]["postgres"])  # a ledger may be there: no other image
    return {
        "controller.txt": ("the packages of the image", asked + extras),
        "exporter.txt": ("the packages of the exporter's image", exporter),
        "build.txt": ("what makes the wheel of fallow", tuple(project["build-system"]["requires"])),
        KREW: ("the packages of `kubectl fallow`, for people's machines", asked),
    }


def _resolve(asked: tuple[str, ...], processor: str) -> dict[str, tuple[str, str]]:
    """Name -> version and hash of the wheel that pip would install there."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        platforms = [f"--platform={each}_{processor}" for each in ("manylinux2014", "manylinux_2_28")]
        subprocess.run([
            sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--only-binary=:all:",
            f"--python-version={PYTHON}", *platforms, f"--target={folder}", f"--report={report}",
            f"--constraint={ROOT / 'constraints.txt'}", *asked,
        ], check=True)
        found = json.loads(report.read_text())["install"]
    return {
        each["metadata"]["name"].lower().replace("_", "-"):
        (each["metadata"]["version"], each["download_info"]["archive_info"]["hashes"]["sha256"])
        for each in found
    }


def requirements(about: str, asked: tuple[str, ...]) -> str:
    """Of the images: the wheels that pip would install there."""
    everywhere = [_resolve(asked, processor) for processor in PROCESSORS.values()]
    return ABOUT.format(about) + "".join(
        _pin(name, version, {one[name][1] for one in everywhere})
        for name, (version, _) in sorted(everywhere[0].items())
    )


def requirements_of_people(about: str, asked: tuple[str, ...]) -> str:
    """Which machine it will be is not known: every wheel of that version that may fit one."""
    found = _resolve(asked, PROCESSORS["amd64"])
    return ABOUT.format(about) + "".join(
        _pin(name, version, list_hashes(name, version, _read_index(name)))
        for name, (version, _) in sorted(found.items())
    )


def _pin(name: str, version: str, hashes: Iterable[str]) -> str:
    return " \\\n    ".join([f"{name}=={version}", *(f"--hash=sha256:{each}" for each in sorted(hashes))]) + "\n"


def _read_index(name: str) -> str:
    """Its page of the index, from which pip itself would take it."""
    with urllib.request.urlopen(f"{PyPI.simple_url}/{name}/", timeout=60) as answer:
        return str(answer.read().decode())


def list_hashes(name: str, version: str, page: str) -> Iterator[str]:
    for file, digest in re.findall(r'href="[^"#]*/([^/"#]+\.whl)#sha256=([0-9a-f]{64})"', page):
        of, is_version, _, fits = utils.parse_wheel_filename(file)
        if (of, str(is_version)) == (utils.canonicalize_name(name), version) and any(map(_may_fit, fits)):
            yield digest


def _may_fit(tag: tags.Tag) -> bool:
    is_python = tag.abi == "abi3" or _PYTHONS.fullmatch(tag.interpreter) is not None
    return is_python and _MACHINES.fullmatch(tag.platform) is not None


def debian_packages() -> str:
    """A line for each: processor, name, version, SHA-256, place below the mirror."""
    mirror = debian.find_mirror().removesuffix("debian")
    sources = [f"{mirror}debian {SUITE} main", f"{mirror}debian {SUITE}-updates main",
               f"{mirror}debian-security {SUITE}-security main"]
    lines = [line for processor in PROCESSORS for line in _list_packages(processor, sources)]
    return "# Made by `make pins`: Debian's packages of the images.\n" + "\n".join(lines) + "\n"


def _list_packages(processor: str, sources: list[str]) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        options = debian.prepare_apt(Path(folder) / "apt", sources, processor)
        subprocess.run(["apt-get", *options, "--quiet=2", "update"], check=True)
        for each in debian.look_up(options, sorted((*DEBIAN, *DEBIAN_CONTROLLER))):
            archive = "debian-security" if each["Filename"].startswith("pool/updates/") else "debian"
            yield f"{processor} {each['Package']} {each['Version']} {each['SHA256']} {archive}/{each['Filename']}"


if __name__ == "__main__":
    (ROOT / "deploy" / "image" / "debian.txt").write_text(debian_packages())
    for file, (about, asked) in sets().items():
        write = requirements_of_people if file == KREW else requirements
        (ROOT / "deploy" / "image" / file).write_text(write(about, asked))
