"""Makes a release: `make release`. Everything that people download, into one folder.

In: a clean checkout whose commit has the tag v<version> (or --snapshot: then the folder is no release, and says so).
Out: wheel and sdist, the two Helm charts, the manifests, the dashboards, bills of materials, what changed, and the
SHA-256 of each.
Invariant: the same commit gives the same bytes: times are the commit's, orders are sorted, and nothing of this machine
gets in.
"""

import argparse
import base64
import gzip
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from fallow import __version__

ROOT = Path(__file__).parent.parent
CHARTS: Final = ("fallow", "gpu-autoscaler")
MANIFESTS: Final = ("deploy", "examples", "dashboards", "helm", "LICENSE")
IMAGES: Final = ("controller", "exporter")
# Types of Conventional Commits that people who use fallow notice.
_NOTED: Final = {"feat": "New", "fix": "Mended", "perf": "Faster"}
_COMMIT: Final = re.compile(r"(?P<type>[a-z]+)(?:\([^)]*\))?(?P<breaks>!?): (?P<said>.+)")


class NoRelease(Exception):
    """One sentence."""


# ---- which commit ----------------------------------------------------------------------------------------------------


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def check_commit(*, is_snapshot: bool) -> None:
    """Raises NoRelease where what is here is not what its version says."""
    if is_snapshot:
        return
    if changed := _git("status", "--porcelain"):
        raise NoRelease(f"{changed.splitlines()[0].split()[-1]} is not committed; --snapshot makes one all the same")
    tag = f"v{__version__}"
    if tag not in _git("tag", "--points-at", "HEAD").split():
        raise NoRelease(f"this commit has no tag {tag}: git tag {tag}, or --snapshot")
    if not (ROOT / "src/fallow/doors/api/static/index.html").is_file():
        raise NoRelease("the dashboard is not built, and the wheel would be without: make ui")


# ---- archives --------------------------------------------------------------------------------------------------------


def pack(top: str, paths: Iterable[Path], base: Path, at: int) -> bytes:
    """A tar.gz whose bytes depend on names and contents alone; what links point at is in it."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(paths):
            content = path.read_bytes()
            entry = tarfile.TarInfo(f"{top}/{path.relative_to(base).as_posix()}")
            entry.size, entry.mtime, entry.mode = len(content), at, 0o644
            archive.addfile(entry, io.BytesIO(content))
    return gzip.compress(made.getvalue(), mtime=at)


def pack_chart(name: str, at: int) -> bytes:
    base = ROOT / "charts" / name
    return pack(name, _find_files(base), base, at)


def pack_manifests(at: int) -> bytes:
    paths = [path for each in MANIFESTS for path in _find_files(ROOT / each)]
    return pack(f"fallow-{__version__}", paths, ROOT, at)


def _find_files(place: Path) -> Iterator[Path]:
    """Also through links to folders, which a chart that is another's twin has."""
    if place.is_file():
        yield place
        return
    for folder, _, files in os.walk(place, followlinks=True):
        yield from (Path(folder) / each for each in files)


# ---- what is in it ---------------------------------------------------------------------------------------------------


def list_materials(image: str) -> str:
    """CycloneDX 1.6, of an image: its Python packages with the hashes that are checked, and what the pages are made
    of."""
    parts = [*_list_packages(image), *(_list_scripts() if image == "controller" else ())]
    made = {
        "bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1,
        "metadata": {"component": {
            "type": "application", "name": f"fallow-{image}", "version": __version__,
            "purl": f"pkg:pypi/fallow@{__version__}", "licenses": [{"license": {"id": "Apache-2.0"}}],
        }},
        "components": parts,
    }
    return json.dumps(made, indent=1) + "\n"


def _list_packages(image: str) -> Iterator[dict[str, Any]]:
    text = (ROOT / "deploy" / "image" / f"{image}.txt").read_text().replace("\\\n", " ")
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        pin, *hashes = line.split()
        name, version = pin.split("==")
        kept = [{"alg": "SHA-256", "content": each.removeprefix("--hash=sha256:")} for each in hashes]
        yield _part("pypi", name, version, kept)


def _list_scripts() -> Iterator[dict[str, Any]]:
    """Packages whose code is in the pages; what only builds them is not."""
    locked = json.loads((ROOT / "ui" / "package-lock.json").read_text())["packages"]
    for place, each in sorted(locked.items()):
        if place and not each.get("dev") and not each.get("optional"):
            algorithm, _, digest = each["integrity"].partition("-")
            kept = [{"alg": f"SHA-{algorithm.removeprefix('sha')}", "content": base64.b64decode(digest).hex()}]
            yield _part("npm", place.rpartition("node_modules/")[2], each["version"], kept)


def _part(kind: str, name: str, version: str, hashes: list[dict[str, str]]) -> dict[str, Any]:
    url = f"pkg:{kind}/{name}@{version}"
    return {"type": "library", "bom-ref": url, "name": name, "version": version, "purl": url, "hashes": hashes}


# ---- what changed ----------------------------------------------------------------------------------------------------


def tell_changes(subjects: Iterable[str]) -> str:
    """From Conventional Commits, newest first; what breaks something stands first."""
    found: dict[str, list[str]] = {"Breaking": [], **{title: [] for title in _NOTED.values()}}
    for subject in subjects:
        if (one := _COMMIT.fullmatch(subject)) is None:
            continue
        title = "Breaking" if one["breaks"] else _NOTED.get(one["type"])
        if title is not None:
            found[title].append(one["said"])
    lines = [f"# fallow {__version__}", "", "CHANGELOG.md tells it in fewer words.", ""]
    for title, said in found.items():
        lines += [f"## {title}", "", *(f"- {each}" for each in said), ""] if said else []
    return "\n".join(lines)


def _list_subjects() -> list[str]:
    """Since the release before, or since the beginning."""
    tags = [each for each in _git("tag", "--merged", "HEAD", "--sort=-v:refname", "v*").split()
            if each != f"v{__version__}"]
    span = [f"{tags[0]}..HEAD"] if tags else ["HEAD"]
    return _git("log", "--no-merges", "--format=%s", *span).splitlines()


# ---- all of it -------------------------------------------------------------------------------------------------------


def make(folder: Path, *, is_snapshot: bool) -> list[Path]:
    """The files that were made."""
    check_commit(is_snapshot=is_snapshot)
    folder.mkdir(parents=True)
    at = int(_git("log", "-1", "--format=%ct"))
    words = ["env", f"SOURCE_DATE_EPOCH={at}", sys.executable, "-m", "hatchling", "build", "-d", str(folder.resolve())]
    subprocess.run(words, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    for name in CHARTS:
        (folder / f"{name}-{__version__}.tgz").write_bytes(pack_chart(name, at))
    (folder / f"fallow-manifests-{__version__}.tar.gz").write_bytes(pack_manifests(at))
    for image in IMAGES:
        (folder / f"fallow-{image}-{__version__}.cdx.json").write_text(list_materials(image))
    (folder / "RELEASE.md").write_text(tell_changes(_list_subjects()))
    made = sorted(folder.iterdir())
    sums = "".join(f"{hashlib.sha256(each.read_bytes()).hexdigest()}  {each.name}\n" for each in made)
    (folder / "SHA256SUMS").write_text(sums)
    return [*made, folder / "SHA256SUMS"]


def main() -> None:
    asked = argparse.ArgumentParser(prog="docs.release", description=__doc__.splitlines()[0])
    asked.add_argument("folder", type=Path, help="where to, which is not there yet")
    asked.add_argument("--snapshot", action="store_true", help="of whatever is here; no release")
    words = asked.parse_args()
    if words.folder.exists():
        sys.exit(f"Error: {words.folder} is there already")
    try:
        made = make(words.folder, is_snapshot=words.snapshot)
    except NoRelease as why:
        sys.exit(f"Error: {why}")
    for path in made:
        print(f"{path.stat().st_size / 1024:9.1f} KB  {path}")  # noqa: T201


if __name__ == "__main__":
    main()
