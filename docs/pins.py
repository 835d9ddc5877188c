"""Writes the packages of the images with their hashes, of the versions in constraints.txt: `make pins`.

In: what each image needs, the package index. Out: deploy/image/*.txt, as `pip install --require-hashes` takes them,
with the hashes of the wheels for each processor that the images are built for. Run it when a dependency changes; a test
compares what is written with constraints.txt.
"""

import json
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
PYTHON = "3.11"  # of the images
PROCESSORS = ("x86_64", "aarch64")
# What the node exporter imports; see the contract "The node's programs stay light" in pyproject.toml.
EXPORTER = ("aiohttp", "bcrypt", "click", "h2", "httptools", "msgspec", "nvidia-ml-py", "PyYAML")
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
        "build.txt": ("the packages that make the wheel of fallow itself", tuple(project["build-system"]["requires"])),
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
    everywhere = [_resolve(asked, processor) for processor in PROCESSORS]
    lines = []
    for name in sorted(everywhere[0]):
        hashes = sorted({one[name][1] for one in everywhere})
        pinned = [f"{name}=={everywhere[0][name][0]}", *(f"--hash=sha256:{each}" for each in hashes)]
        lines.append(" \\\n    ".join(pinned))
    return ABOUT.format(about) + "\n".join(lines) + "\n"


if __name__ == "__main__":
    for file, (about, asked) in sets().items():
        (ROOT / "deploy" / "image" / file).write_text(requirements(about, asked))
