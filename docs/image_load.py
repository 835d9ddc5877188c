"""Puts the images into docker or podman of this machine: `make docker`.

In: the archives that docs/images.py makes, for this processor. Out: the same images in the form that every
`docker load` takes, which is older than the OCI's, under their own names and those that other documents use.
"""

import argparse
import io
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from docs import image_oci, images
from fallow import __version__

# Image -> further names of it.
ALSO: Final[Mapping[str, tuple[str, ...]]] = {
    "gpu-idle-exporter": ("ghcr.io/affinode/gpu-idle-exporter:latest",),
}


def repack(archive: Path, processor: str, names: Iterable[str], into: Path) -> None:
    """As `docker save` writes it: a list of what is in it, the configuration, the layers unpacked."""
    config, layers = image_oci.read_plain(archive, processor)
    files = {"config.json": config, **{f"{number}/layer.tar": layer for number, layer in enumerate(layers)}}
    said = {"Config": "config.json", "RepoTags": list(names), "Layers": [each for each in files if "/" in each]}
    with tarfile.open(into, mode="w", format=tarfile.PAX_FORMAT) as made:
        for name, content in {**files, "manifest.json": image_oci.dump([said])}.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            made.addfile(entry, io.BytesIO(content))


def find_tool() -> str:
    for each in ("docker", "podman"):
        if found := shutil.which(each):
            return found
    raise images.NoImage("there is neither docker nor podman here to take them; make images writes archives for others")


def load(tool: str, archive: Path, names: Iterable[str]) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        packed = Path(scratch) / "image.tar"
        repack(archive, images.this_processor(), names, packed)
        if subprocess.run([tool, "load", "--input", str(packed)], check=False).returncode != 0:
            raise images.NoImage(f"{tool} did not take {archive.name}")


def take(archives: Iterable[Path]) -> None:
    tool = find_tool()
    for path in archives:
        name = path.name.removesuffix(f"-{__version__}.oci.tar")
        load(tool, path, (f"{name}:{__version__}", *ALSO.get(name, ())))


def main() -> None:
    asked = argparse.ArgumentParser(prog="docs.image_load", description=__doc__.splitlines()[0])
    asked.add_argument("folder", type=Path, help="where the archives are made")
    asked.add_argument("--mirror", default="", help="a place with debian/ and debian-security/ below [default: apt's]")
    words = asked.parse_args()
    try:
        take(images.make_here(words.folder, words.mirror, [images.this_processor()]))
    except images.NoImage as why:
        sys.exit(f"Error: {why}")


if __name__ == "__main__":
    main()
