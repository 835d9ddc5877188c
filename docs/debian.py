"""Debian's packages without installing any: which there are, by apt in folders of its own; and what is in one.

In: the mirror that this machine's apt uses, a suite, names. Out: versions, places and hashes, which apt has checked
against Debian's signature; the files of a package.
Invariant: this machine's own packages and lists stay as they are.
"""

import io
import re
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

KEYRING: Final = "/usr/share/keyrings/debian-archive-keyring.gpg"


class NoDebian(Exception):
    """One sentence."""


def find_mirror() -> str:
    """The one this machine uses, as http://HOST/debian."""
    places = [Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*.sources"))]
    said = "\n".join(each.read_text() for each in places if each.exists())
    found = re.search(r"^(?:URIs:|deb(?: \[.*?\])?)\s+(\S+/debian)/?\s*(?:\s.*)?$", said, re.MULTILINE)
    if found is None:
        raise NoDebian("no mirror of Debian in apt's sources")
    return found[1]


def prepare_apt(folder: Path, sources: Sequence[str], architecture: str = "") -> list[str]:
    """Options by which apt keeps to this folder; `sources`: the mirror's place, the suite and the component of each."""
    for each in ("lists/partial", "archives/partial", "parts"):
        (folder / each).mkdir(parents=True)
    lines = (f"deb [signed-by={KEYRING}] {each}\n" for each in sources)
    (folder / "sources.list").write_text("".join(lines))
    (folder / "status").touch()
    said = {
        "Dir::Etc::SourceList": folder / "sources.list", "Dir::Etc::SourceParts": folder / "parts",
        "Dir::Etc::Preferences": "/dev/null", "Dir::Etc::PreferencesParts": folder / "parts",
        "Dir::State::Lists": folder / "lists", "Dir::State::status": folder / "status",
        "Dir::Cache::Archives": folder / "archives", "Dir::Cache::pkgcache": "", "Dir::Cache::srcpkgcache": "",
        "APT::Sandbox::User": "root", "APT::Install-Recommends": "false", "Debug::NoLocking": "1",
        **({"APT::Architecture": architecture, "APT::Architectures": architecture} if architecture else {}),
    }
    return [f"-o{key}={value}" for key, value in said.items()]


def look_up(options: Sequence[str], names: Sequence[str]) -> Iterator[dict[str, str]]:
    """What Debian says of the newest version of each: Package, Version, Filename, SHA256 and the rest."""
    words = ["apt-cache", *options, "show", "--no-all-versions", *names]
    shown = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    for paragraph in shown.strip().split("\n\n"):
        yield dict(re.findall(r"^([\w-]+): (.*)$", paragraph, re.MULTILINE))


def open_package(package: bytes) -> tuple[str, tarfile.TarFile]:
    """Its control paragraph, and the archive of its files."""
    parts = dict(_read_ar(package))
    with _open_part(parts, "control.tar") as control:
        read = control.extractfile("./control")
        assert read is not None
        paragraph = read.read().decode()
    return paragraph, _open_part(parts, "data.tar")


def _open_part(parts: dict[str, bytes], start: str) -> tarfile.TarFile:
    [content] = [each for name, each in parts.items() if name.startswith(start)]
    return tarfile.open(fileobj=io.BytesIO(content))


def _read_ar(package: bytes) -> Iterator[tuple[str, bytes]]:
    """A .deb is an ar archive: a line, then members with a header of 60 bytes, each begun at an even place."""
    at = 8
    while at < len(package):
        size = int(package[at + 48 : at + 58])
        yield package[at : at + 16].decode().strip().rstrip("/"), package[at + 60 : at + 60 + size]
        at += 60 + size + size % 2
