"""Makes a release: `make release`. Everything that people download, into one folder.

In: a clean checkout whose commit has the tag v<version> (or --snapshot: then the folder is no release, and says so).
Out: wheel and sdist, the images, the two Helm charts, the manifests, the dashboards, bills of materials, what changed,
and the SHA-256 of each.
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
import sys
import tarfile
import urllib.parse
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from docs import images, krew
from fallow import __version__

ROOT = Path(__file__).parent.parent
CHARTS: Final = ("fallow", "gpu-autoscaler")
MANIFESTS: Final = ("deploy", "examples", "dashboards", "helm", "LICENSE")
# Types of Conventional Commits that people who use fallow notice.
_NOTED: Final = {"feat": "New", "fix": "Mended", "perf": "Faster"}
_COMMIT: Final = re.compile(r"(?P<type>[a-z]+)(?:\([^)]*\))?(?P<breaks>!?): (?P<said>.+)")


class NoRelease(Exception):
    """One sentence."""


# ---- which commit ----------------------------------------------------------------------------------------------------


def check_commit(*, is_snapshot: bool) -> None:
    """Raises NoRelease where what is here is not what its version says."""
    if is_snapshot:
        return
    if changed := images.ask_git("status", "--porcelain"):
        raise NoRelease(f"{changed.splitlines()[0].split()[-1]} is not committed; --snapshot makes one all the same")
    tag = f"v{__version__}"
    if tag not in images.ask_git("tag", "--points-at", "HEAD").split():
        raise NoRelease(f"this commit has no tag {tag}: git tag {tag}, or --snapshot")
    images.check_pages()


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
    """Also through links to folders, which a chart that is another's twin has. What git ignores is of this machine,
    and may be anybody's secret."""
    said = images.ask_git("ls-files", "--cached", "--others", "--exclude-standard", "-z")
    known = {(ROOT / each).resolve() for each in said.split("\0")}
    walked = (Path(folder) / each for folder, _, files in os.walk(place, followlinks=True) for each in files)
    yield from (path for path in ([place] if place.is_file() else walked) if path.resolve() in known)


# ---- what is in it ---------------------------------------------------------------------------------------------------


def list_materials(image: images.Image) -> str:
    """CycloneDX 1.6, of an image: its packages of Debian and of Python with the hashes that are checked, for both
    processors, and what the pages are made of."""
    pages = _list_scripts() if image.packages == "controller" else ()
    parts = [*_list_system(image), *_list_packages(image), *pages]
    made = {
        "bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1,
        "metadata": {"component": {
            "type": "container", "name": image.name, "version": __version__,
            "description": image.description, "licenses": [{"license": {"id": "Apache-2.0"}}],
        }},
        "components": parts,
    }
    return json.dumps(made, indent=1) + "\n"


def _list_system(image: images.Image) -> Iterator[dict[str, Any]]:
    for each in images.list_debian(image):
        url = f"debian/{each.name}@{urllib.parse.quote(each.version)}?arch={each.processor}&distro=debian-12"
        yield _part("deb", each.name, each.version, [{"alg": "SHA-256", "content": each.digest}], url)


def _list_packages(image: images.Image) -> Iterator[dict[str, Any]]:
    text = (ROOT / "deploy" / "image" / f"{image.packages}.txt").read_text().replace("\\\n", " ")
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


def _part(kind: str, name: str, version: str, hashes: list[dict[str, str]], place: str = "") -> dict[str, Any]:
    url = f"pkg:{kind}/{place or f'{name}@{version}'}"
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
    tags = [each for each in images.ask_git("tag", "--merged", "HEAD", "--sort=-v:refname", "v*").split()
            if each != f"v{__version__}"]
    span = [f"{tags[0]}..HEAD"] if tags else ["HEAD"]
    return images.ask_git("log", "--no-merges", "--format=%s", *span).splitlines()


# ---- all of it -------------------------------------------------------------------------------------------------------


def make(
    folder: Path, *, is_snapshot: bool, url: str = "", has_images: bool = True, mirror: str = ""
) -> list[Path]:
    """The files that were made. `url`: where they will be, for krew and install.sh; none: neither is made. `mirror`: of
    Debian's packages; none: the one of this machine's apt."""
    check_commit(is_snapshot=is_snapshot)
    folder.mkdir(parents=True)
    revision, at = images.find_commit()
    images.pack_python(folder, at=at)
    for name in CHARTS:
        (folder / f"{name}-{__version__}.tgz").write_bytes(pack_chart(name, at))
    (folder / f"fallow-manifests-{__version__}.tar.gz").write_bytes(pack_manifests(at))
    for image in images.IMAGES:
        (folder / f"{image.name}-{__version__}.cdx.json").write_text(list_materials(image))
    [wheel] = folder.glob("*.whl")
    if has_images:
        list(images.make(folder, wheel, version=__version__, revision=revision, at=at, mirror=mirror))
    (folder / krew.NAME).write_bytes(krew.pack(wheel, at))
    if url:
        packed = (folder / krew.NAME).read_bytes()
        (folder / "fallow-krew.yaml").write_text(krew.describe(packed, url))
        (folder / krew.INSTALL).write_text(krew.write_installer(packed, url))
    (folder / "RELEASE.md").write_text(tell_changes(_list_subjects()))
    made = sorted(folder.iterdir())
    sums = "".join(f"{hashlib.sha256(each.read_bytes()).hexdigest()}  {each.name}\n" for each in made)
    (folder / "SHA256SUMS").write_text(sums)
    return [*made, folder / "SHA256SUMS"]


def main() -> None:
    asked = argparse.ArgumentParser(prog="docs.release", description=__doc__.splitlines()[0])
    asked.add_argument("folder", type=Path, help="where to, which is not there yet")
    asked.add_argument("--snapshot", action="store_true", help="of whatever is here; no release")
    asked.add_argument("--url", default="", help="where its files will be: adds fallow-krew.yaml and install.sh")
    asked.add_argument("--no-images", action="store_true", help="without them, which takes seconds; no release")
    asked.add_argument("--mirror", default="", help="of Debian's packages; default: the one of this machine's apt")
    words = asked.parse_args()
    if words.url and not words.url.startswith("https://"):
        sys.exit(f"Error: --url: {words.url} is no https address")
    if words.no_images and not words.snapshot:
        sys.exit("Error: a release has its images: --no-images goes with --snapshot")
    if words.folder.exists():
        sys.exit(f"Error: {words.folder} is there already")
    try:
        made = make(words.folder, is_snapshot=words.snapshot, url=words.url, has_images=not words.no_images,
                    mirror=words.mirror)
    except (NoRelease, images.NoImage) as why:
        sys.exit(f"Error: {why}")
    for path in made:
        print(f"{path.stat().st_size / 1024:9.1f} KB  {path}")  # noqa: T201


if __name__ == "__main__":
    main()
