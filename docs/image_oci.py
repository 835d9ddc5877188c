"""Writes images as the OCI's image layout says (version 1.0): layers, a configuration, a manifest for each processor.

In: trees and what to say of them. Out: one archive that `podman load`, `skopeo copy oci-archive:` and containerd take.
Invariant: the same trees give the same bytes: paths are sorted, owners are root, times are the ones given, and gzip
notes none.
"""

import dataclasses
import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from docs.image_tree import NOBODY, File, Tree

_TYPE: Final = "application/vnd.oci.image"
_NAME: Final = "org.opencontainers.image"


@dataclasses.dataclass(frozen=True)
class Layer:
    """Packed, with the digest of what it is unpacked and the bytes of its files."""

    packed: bytes
    unpacked: str
    size: int


@dataclasses.dataclass(frozen=True)
class About:
    """What an image says of itself. `at`: its commit's time, in seconds."""

    name: str
    version: str
    revision: str
    at: int
    description: str
    program: str
    port: int


def pack_layer(tree: Tree, at: int = 0) -> Layer:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path, file in sorted(_with_folders(tree).items()):
            archive.addfile(_describe(path, file, at), io.BytesIO(file.content or b""))
    plain = made.getvalue()
    size = sum(len(file.content or b"") for file in tree.values())
    return Layer(gzip.compress(plain, compresslevel=6, mtime=0), _digest(plain), size)


def _with_folders(tree: Tree) -> Tree:
    """A file's folders must be there before it, or whoever unpacks chooses their modes."""
    folders = {str(each) for path in tree for each in Path(path).parents if str(each) != "."}
    return {**{each: File(mode=0o755) for each in folders}, **tree}


def _describe(path: str, file: File, at: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(path)
    entry.mtime, entry.mode, entry.uname, entry.gname = at, file.mode, "root", "root"
    if file.target:
        entry.type, entry.linkname, entry.mode = tarfile.SYMTYPE, file.target, 0o777
    elif file.content is None:
        entry.type = tarfile.DIRTYPE
    else:
        entry.size = len(file.content)
    return entry


def write_archive(path: Path, about: About, images: Mapping[str, Iterable[Layer]]) -> str:
    """`images`: the layers by processor. The digest of all, by which a cluster names it."""
    blobs: dict[str, bytes] = {}

    def keep(content: bytes, kind: str, **more: Any) -> dict[str, Any]:
        digest = _digest(content)
        blobs[digest] = content
        return {"mediaType": f"{_TYPE}.{kind}", "digest": digest, "size": len(content), **more}

    manifests = [keep(dump(_describe_image(about, processor, list(layers), keep)), "manifest.v1+json",
                      platform=_platform(processor)) for processor, layers in images.items()]
    index = {"schemaVersion": 2, "mediaType": f"{_TYPE}.index.v1+json", "manifests": manifests,
             "annotations": _labels(about)}
    top = keep(dump(index), "index.v1+json", annotations={f"{_NAME}.ref.name": f"{about.name}:{about.version}"})
    files = {"oci-layout": dump({"imageLayoutVersion": "1.0.0"}),
             "index.json": dump({"schemaVersion": 2, "manifests": [top]}),
             **{f"blobs/{each.replace(':', '/')}": content for each, content in blobs.items()}}
    with tarfile.open(path, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, file in sorted(_with_folders({name: File(content) for name, content in files.items()}).items()):
            archive.addfile(_describe(name, file, 0), io.BytesIO(file.content or b""))
    return str(top["digest"])


def _describe_image(about: About, processor: str, layers: list[Layer], keep: Any) -> dict[str, Any]:
    config = {
        "created": _tell_time(about.at), **_platform(processor),
        "rootfs": {"type": "layers", "diff_ids": [each.unpacked for each in layers]},
        "config": {
            "User": f"{NOBODY}:{NOBODY}", "WorkingDir": "/", "Entrypoint": [about.program],
            "ExposedPorts": {f"{about.port}/tcp": {}}, "Labels": _labels(about),
            "Env": ["PATH=/usr/local/bin:/usr/bin", "LANG=C.UTF-8", "PYTHONUNBUFFERED=1", "PYTHONDONTWRITEBYTECODE=1"],
        },
        "history": [{"created": _tell_time(about.at), "created_by": "fallow docs/images.py"} for _ in layers],
    }
    return {
        "schemaVersion": 2, "mediaType": f"{_TYPE}.manifest.v1+json", "config": keep(dump(config), "config.v1+json"),
        "layers": [keep(each.packed, "layer.v1.tar+gzip") for each in layers], "annotations": _labels(about),
    }


def _platform(processor: str) -> dict[str, str]:
    return {"architecture": processor, "os": "linux", **({"variant": "v8"} if processor == "arm64" else {})}


def _labels(about: About) -> dict[str, str]:
    return {
        f"{_NAME}.title": about.name, f"{_NAME}.description": about.description, f"{_NAME}.version": about.version,
        f"{_NAME}.revision": about.revision, f"{_NAME}.created": _tell_time(about.at),
        f"{_NAME}.licenses": "Apache-2.0",
    }


def _tell_time(at: int) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def dump(what: Any) -> bytes:
    return json.dumps(what, indent=1, sort_keys=True).encode()


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def read_archive(path: Path, processor: str) -> tuple[dict[str, Any], list[tarfile.TarFile]]:
    """The configuration of an image, and its layers in order."""
    config, layers = read_plain(path, processor)
    return json.loads(config), [tarfile.open(fileobj=io.BytesIO(each)) for each in layers]


def read_plain(path: Path, processor: str) -> tuple[bytes, list[bytes]]:
    """The same as they were written, unpacked; every digest on the way is checked."""
    with tarfile.open(path) as archive:

        def read(said: dict[str, Any]) -> bytes:
            content = _read(archive, f"blobs/{said['digest'].replace(':', '/')}")
            assert _digest(content) == said["digest"], said
            return content

        [top] = json.loads(_read(archive, "index.json"))["manifests"]
        manifests = json.loads(read(top))["manifests"]
        [manifest] = [json.loads(read(each)) for each in manifests if each["platform"]["architecture"] == processor]
        layers = [gzip.decompress(read(each)) for each in manifest["layers"]]
        config = read(manifest["config"])
    assert [_digest(each) for each in layers] == json.loads(config)["rootfs"]["diff_ids"]
    return config, layers


def _read(archive: tarfile.TarFile, name: str) -> bytes:
    read = archive.extractfile(name)
    assert read is not None, name
    return read.read()


def list_files(layers: Iterable[tarfile.TarFile]) -> Iterator[tarfile.TarInfo]:
    for each in layers:
        yield from each
