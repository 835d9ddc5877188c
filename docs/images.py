"""Makes the images without a base to pull and without a daemon: `make images`, and part of `make release`.

In: the wheel of fallow, the packages pinned in deploy/image (fetched once, checked by their hashes). Out: an archive
for each image, with both processors.
An image has three layers, of which only the last changes with fallow: Debian's packages, Python's, our own. Python code
is compiled by the Python of the image itself, because the root is read-only there.
Invariant: the same commit gives the same bytes, on whichever machine, whoever builds; nothing is run as root.
"""

import argparse
import contextlib
import hashlib
import json
import platform
import re
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from docs import debian, image_oci, image_tree, pins
from docs.image_oci import Layer
from docs.image_tree import File, Tree
from fallow import __version__, settings

ROOT: Final = Path(__file__).parent.parent
PINS: Final = ROOT / "deploy" / "image"


class NoImage(Exception):
    """One sentence."""


class Image(NamedTuple):
    """`packages`: of which file in deploy/image. `programs`: name -> where it enters, the image's own first.
    `bound`: bytes, unpacked. `left_out`: what of fallow's own wheel it does without."""

    name: str
    packages: str
    description: str
    programs: Mapping[str, str]
    port: int
    bound: int
    left_out: re.Pattern[str] | None


# What the exporter and the spot watch never load.
_OFF_NODES: Final = re.compile(
    rf"{image_tree.PLACE}/fallow/((act|account|wiring)/|sim/(?!driver|__init__)|(verbs|loop)\.py|decide/(?!node/|__init__)|observe/(?!node/|__init__)"
    r"|doors/(api|webhook|extender|answers)/|stories/(?!node|spot_watch|__init__)|clients/(clouds|database|messages|prometheus)/)"
)
IMAGES: Final = (
    Image("fallow", "controller", "The controller, the webhook, the extender and the commands of fallow",
          {"gpu-pruner": "gpu_pruner", "fallow": "fallow", "gpu-autoscaler": "gpu_autoscaler"}, 8080, 180_000_000,
          None),
    Image("gpu-idle-exporter", "exporter", "What fallow runs on nodes: the exporter of GPU processes, the spot watch",
          {"gpu-idle-exporter": "gpu_idle_exporter", "fallow": "fallow_on_nodes"}, 9835, 70_000_000,
          _OFF_NODES),
)


# ---- packages --------------------------------------------------------------------------------------------------------


class Package(NamedTuple):
    """A line of debian.txt."""

    processor: str
    name: str
    version: str
    digest: str
    place: str


def list_debian(image: Image) -> list[Package]:
    found = [Package(*line.split()) for line in (PINS / "debian.txt").read_text().splitlines() if line[0] != "#"]
    left_out = pins.DEBIAN_CONTROLLER if image.packages == "exporter" else ()
    return [each for each in found if each.name not in left_out]


def fetch_debian(image: Image, processor: str, *, cache: Path, mirror: str) -> list[bytes]:
    """Debian's packages, from the mirror or from where they were kept."""
    return [fetch(each.place, each.digest, cache=cache, mirror=mirror) for each in list_debian(image)
            if each.processor == processor]


def fetch(place: str, digest: str, *, cache: Path, mirror: str) -> bytes:
    kept = cache / "debian" / digest
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        try:
            with urllib.request.urlopen(f"{mirror}/{place}", timeout=60) as answer:
                _keep(kept, answer.read())
        except (urllib.error.URLError, TimeoutError) as why:
            gone = "; Debian has a newer one by now: make pins" if getattr(why, "code", 0) == 404 else ""
            raise NoImage(f"{place.rpartition('/')[2]} cannot be fetched from {mirror}: {why}{gone}") from why
    content = kept.read_bytes()
    if hashlib.sha256(content).hexdigest() != digest:
        kept.unlink()
        raise NoImage(f"{place.rpartition('/')[2]} is not what was pinned: its SHA-256 is another")
    return content


def fetch_wheels(image: Image, processor: str, *, cache: Path) -> list[bytes]:
    """Python's packages: pip checks their hashes; what was kept is checked again."""
    said = (PINS / f"{image.packages}.txt").read_text()
    folder = cache / "wheels" / f"{hashlib.sha256(said.encode()).hexdigest()[:16]}-{processor}"
    pinned = set(re.findall(r"--hash=sha256:([0-9a-f]{64})", said))
    found = _read_wheels(folder, pinned)
    if len(found) < said.count("=="):
        platforms = [f"--platform={each}_{pins.PROCESSORS[processor]}" for each in ("manylinux2014", "manylinux_2_28")]
        words = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes",
                 "--only-binary=:all:", f"--python-version={pins.PYTHON}", *platforms, f"--dest={folder}",
                 f"--requirement={PINS / image.packages}.txt"]
        done = subprocess.run(words, check=False, capture_output=True, text=True)
        if done.returncode != 0:
            raise NoImage(f"pip has not got the packages of {image.name}: {done.stderr.strip().splitlines()[-1]}")
        found = _read_wheels(folder, pinned)
    return found


def _read_wheels(folder: Path, pinned: set[str]) -> list[bytes]:
    found = [each.read_bytes() for each in sorted(folder.glob("*.whl"))]
    return [each for each in found if hashlib.sha256(each).hexdigest() in pinned]


def _keep(path: Path, content: bytes) -> None:
    """Whole or not at all, whoever else writes it."""
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(content)
    Path(file.name).rename(path)


# ---- compiling -------------------------------------------------------------------------------------------------------

# Without a look at the source's time or hash later: nothing changes there. Templates that are no Python are left.
_COMPILE: Final = """
import pathlib, py_compile, sys
top = pathlib.Path(sys.argv[1])
for path in sorted(top.rglob("*.py")):
    try:
        py_compile.compile(str(path), dfile=f"/{path.relative_to(top)}", doraise=True,
                           invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    except py_compile.PyCompileError:
        pass
"""


@contextlib.contextmanager
def compiling(system: Tree) -> Iterator[Callable[[Tree], Tree]]:
    """Gives a function that compiles a tree by the Python of this one, which is of this machine's processor."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "root"
        unpack(system, root)
        [loader] = [root / each for each in system if re.fullmatch(r"usr/lib/[^/]+/ld-linux-[^/]+\.so\.\d", each)]
        words = [str(loader), "--library-path", str(loader.parent), str(root / f"usr/bin/python{pins.PYTHON}"), "-sP"]
        # Sets of constants are written in the order of their hashes.
        variables = {"PYTHONHOME": str(root / "usr"), "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}

        def compile_tree(tree: Tree) -> Tree:
            with tempfile.TemporaryDirectory() as place:
                unpack({path: file for path, file in tree.items() if path.endswith(".py")}, Path(place))
                subprocess.run([*words, "-c", _COMPILE, place], check=True, env=variables)
                found = sorted(Path(place).rglob("*.pyc"))
                return {**tree, **{str(each.relative_to(place)): File(each.read_bytes()) for each in found}}

        yield compile_tree


def unpack(tree: Tree, folder: Path) -> None:
    for path, file in tree.items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        if file.target:
            place.symlink_to(file.target)
        elif file.content is None:
            place.mkdir(exist_ok=True)
        else:
            place.write_bytes(file.content)
            place.chmod(file.mode)


# ---- layers ----------------------------------------------------------------------------------------------------------


def make_layers(image: Image, processor: str, wheel: bytes, *, at: int, cache: Path, mirror: str) -> list[Layer]:
    """Debian's, Python's, ours. The first two are kept: they change with the pins and with what makes them."""
    system = image_tree.of_debian(fetch_debian(image, this_processor(), cache=cache, mirror=mirror))
    with compiling(system) as compiled:
        return [
            _once(image, processor, "debian", cache, lambda: compiled(
                image_tree.of_debian(fetch_debian(image, processor, cache=cache, mirror=mirror)))),
            _once(image, processor, "packages", cache, lambda: compiled(
                image_tree.of_wheels(fetch_wheels(image, processor, cache=cache)))),
            image_oci.pack_layer({**compiled(_our_own(image, wheel)), **image_tree.of_programs(image.programs)}, at),
        ]


def _our_own(image: Image, wheel: bytes) -> Tree:
    tree = image_tree.of_wheels([wheel])
    return {path: file for path, file in tree.items() if image.left_out is None or not image.left_out.match(path)}


def this_processor() -> str:
    [found] = [ours for ours, theirs in pins.PROCESSORS.items() if theirs == platform.machine()] or [""]
    if not found:
        raise NoImage(f"images are made on x86_64 and aarch64, and this machine is {platform.machine()}")
    return found


def _once(image: Image, processor: str, what: str, cache: Path, make: Callable[[], Tree]) -> Layer:
    sources = [PINS / "debian.txt", PINS / f"{image.packages}.txt",
               *(Path(each.__file__ or "") for each in (debian, image_oci, image_tree, pins)), Path(__file__)]
    key = hashlib.sha256(b"\0".join(each.read_bytes() for each in sources)).hexdigest()[:16]
    place = cache / "layers" / f"{image.name}-{processor}-{what}-{key}"
    about = place.with_suffix(".json")
    if about.exists():
        said = json.loads(about.read_text())
        return Layer(place.read_bytes(), said["unpacked"], said["size"])
    made = image_oci.pack_layer(make())
    place.parent.mkdir(parents=True, exist_ok=True)
    _keep(place, made.packed)
    _keep(about, json.dumps({"unpacked": made.unpacked, "size": made.size}).encode())
    return made


# ---- all of it -------------------------------------------------------------------------------------------------------


def make(
    folder: Path, wheel: Path, *, version: str, revision: str, at: int, cache: Path = ROOT / "build" / "images",
    mirror: str = "", processors: Iterable[str] = tuple(pins.PROCESSORS),
) -> Iterator[Path]:
    """The archives. `mirror`: a place with debian/ and debian-security/ below; empty: the one of this machine's apt."""
    ours = mirror or find_mirror()
    for image in IMAGES:
        about = image_oci.About(
            name=image.name, version=version, revision=revision, at=at, description=image.description,
            program=next(iter(image.programs)), port=image.port,
        )
        layers = {each: make_layers(image, each, wheel.read_bytes(), at=at, cache=cache, mirror=ours)
                  for each in processors}
        _bound(image, layers)
        path = folder / f"{image.name}-{version}.oci.tar"
        image_oci.write_archive(path, about, layers)
        yield path


def _bound(image: Image, layers: Mapping[str, list[Layer]]) -> None:
    for processor, found in layers.items():
        size = sum(each.size for each in found)
        if size > image.bound:
            raise NoImage(f"{image.name} for {processor} has {size / 1e6:.1f} MB, and may have {image.bound / 1e6:.0f}")


def find_mirror() -> str:
    """The one that the variable DEBIAN_MIRROR names; else that of this machine's apt."""
    if named := settings.environment().get("DEBIAN_MIRROR", "").rstrip("/"):
        return named
    try:
        return debian.find_mirror().removesuffix("/debian")
    except debian.NoDebian as why:
        raise NoImage(f"{why}: name one by --mirror or DEBIAN_MIRROR") from why


def ask_git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def find_commit() -> tuple[str, int]:
    """The one that is checked out, and when it was made, in seconds."""
    revision, at = ask_git("log", "-1", "--format=%H %ct").split()
    return revision, int(at)


def check_pages() -> None:
    """Raises NoImage where the dashboard is not built: `make setup` goes on without it."""
    if not (ROOT / "src/fallow/doors/api/static/index.html").is_file():
        raise NoImage("the dashboard is not built, and the wheel would be without: make ui")


def pack_python(folder: Path, *targets: str, at: int) -> None:
    """Wheel and sdist; `targets`: one of them."""
    words = ["env", f"SOURCE_DATE_EPOCH={at}", sys.executable, "-m", "hatchling", "build", "-d", str(folder.resolve())]
    subprocess.run([*words, *(f"-t{each}" for each in targets)], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def main() -> None:
    asked = argparse.ArgumentParser(prog="docs.images", description=__doc__.splitlines()[0])
    asked.add_argument("folder", type=Path, help="where to")
    asked.add_argument("--mirror", default="", help="a place with debian/ and debian-security/ below [default: apt's]")
    asked.add_argument("--processor", choices=pins.PROCESSORS, action="append", help="[default: all]")
    words = asked.parse_args()
    try:
        for path in make_here(words.folder, words.mirror, words.processor or tuple(pins.PROCESSORS)):
            print(f"{path.stat().st_size / 1024:9.1f} KB  {path}")  # noqa: T201
    except NoImage as why:
        sys.exit(f"Error: {why}")


def make_here(into: Path, mirror: str, processors: Iterable[str]) -> Iterator[Path]:
    """Of this checkout."""
    check_pages()
    into.mkdir(parents=True, exist_ok=True)
    revision, at = find_commit()
    with tempfile.TemporaryDirectory() as folder:
        pack_python(Path(folder), "wheel", at=at)
        [wheel] = Path(folder).glob("*.whl")
        yield from make(into, wheel, version=__version__, revision=revision, at=at, mirror=mirror,
                        processors=processors)


if __name__ == "__main__":
    main()
