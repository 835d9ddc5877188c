"""`kubectl krew install fallow`: what krew downloads, and the manifest that tells it from where; and install.sh, which
brings the same to who has no krew: curl -sSL ADDRESS/install.sh | bash.

In: the wheel of a release, the address under which its files will be, and the moment of its commit. Out: a tar.gz with
the wheel, the packages that it was tried with and their hashes, and a small script; a Plugin for krew's index; the
other script.
Invariant: the scripts change nothing but a folder of its own, in which the first call puts fallow's packages; it says
so. A package whose hash is another is not taken. The same commit gives the same bytes.
"""

import gzip
import hashlib
import io
import tarfile
from pathlib import Path
from typing import Final

import yaml

from docs import pins
from fallow import __version__

ROOT: Final = Path(__file__).parent.parent
BIN: Final = "kubectl-fallow"
NAME: Final = f"fallow-krew-{__version__}.tar.gz"
_SCRIPT: Final = """\
#!/bin/sh
# kubectl fallow, as krew brings it. fallow is a Python program: the first call puts it, with the packages that it was
# tried with, into a folder of its own; every other call starts it from there. Gone with: rm -r THAT FOLDER
set -eu
here=$(CDPATH= cd -- "$(dirname -- "$(readlink -f -- "$0")")" && pwd)
home=${XDG_DATA_HOME:-$HOME/.local/share}/fallow/krew-@VERSION@
if [ ! -e "$home/.ready" ]; then
  python=${PYTHON:-python3}
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || {
    echo "kubectl fallow needs Python 3.11 or newer with venv; name one by PYTHON=..." >&2
    exit 1
  }
  echo "the first time: fallow's packages are put into $home" >&2
  rm -rf "$home"
  "$python" -m venv "$home" >&2
  put() { "$home/bin/pip" install -q --disable-pip-version-check "$@" >&2; }
  put --require-hashes --only-binary=:all: --requirement "$here/@PACKAGES@"
  put --no-index --no-deps "$here"/fallow-*.whl # its hash is krew's to check
  touch "$home/.ready"
fi
exec "$home/bin/kubectl-fallow" "$@"
"""


INSTALL: Final = "install.sh"
_INSTALL: Final = """\
#!/bin/sh
# Puts the commands of fallow @VERSION@ (fallow, gpu-pruner, gpu-autoscaler, kubectl-fallow) where a shell finds them:
#   curl -sSL @URL@/install.sh | bash
# Nothing is changed but ~/.local/share/fallow (XDG_DATA_HOME) and links in ~/.local/bin (FALLOW_BIN). Gone with: rm -r
# that folder, and rm those links.
set -eu
install() {
  python=${PYTHON:-python3} data=${XDG_DATA_HOME:-$HOME/.local/share}/fallow links=${FALLOW_BIN:-$HOME/.local/bin}
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || {
    echo "fallow needs Python 3.11 or newer with venv; name one by PYTHON=..." >&2
    exit 1
  }
  scratch=$(mktemp -d)
  trap 'rm -rf "$scratch"' EXIT
  curl -fsSL -o "$scratch/packed" "@URL@/@NAME@"
  "$python" - "$scratch/packed" <<'CHECK' || { echo "@NAME@: its SHA-256 is another than it was" >&2; exit 1; }
import hashlib, sys
sys.exit(hashlib.sha256(open(sys.argv[1], "rb").read()).hexdigest() != "@DIGEST@")
CHECK
  tar -xzf "$scratch/packed" -C "$scratch"
  "$scratch/@BIN@" --version >/dev/null
  mkdir -p "$links"
  for each in fallow gpu-pruner gpu-autoscaler kubectl-fallow kubectl_complete-fallow; do
    ln -sf "$data/krew-@VERSION@/bin/$each" "$links/$each"
  done
  echo "fallow @VERSION@ is in $links"
  case ":$PATH:" in
    *":$links:"*) ;;
    *) echo "which is not in your PATH yet: export PATH=\\"$links:\\$PATH\\"" ;;
  esac
}
install </dev/null # at the end, so that nothing is done by half of a script
"""


def write_installer(archive: bytes, url: str) -> str:
    """`url`: the folder in which the files of this release are."""
    said = {"URL": url.rstrip("/"), "NAME": NAME, "BIN": BIN, "VERSION": __version__,
            "DIGEST": hashlib.sha256(archive).hexdigest()}
    text = _INSTALL
    for name, value in said.items():
        text = text.replace(f"@{name}@", value)
    return text


def pack(wheel: Path, at: int) -> bytes:
    entries = {
        "LICENSE": ((ROOT / "LICENSE").read_bytes(), 0o644),
        BIN: (_SCRIPT.replace("@VERSION@", __version__).replace("@PACKAGES@", pins.KREW).encode(), 0o755),
        pins.KREW: ((ROOT / "deploy" / "image" / pins.KREW).read_bytes(), 0o644),
        wheel.name: (wheel.read_bytes(), 0o644),
    }
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, (content, mode) in sorted(entries.items()):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime, entry.mode = len(content), at, mode
            archive.addfile(entry, io.BytesIO(content))
    return gzip.compress(made.getvalue(), mtime=at)


def describe(archive: bytes, url: str) -> str:
    """`url`: the folder in which the files of this release are."""
    made = {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2", "kind": "Plugin",
        "metadata": {"name": "fallow"},
        "spec": {
            "version": f"v{__version__}", "homepage": url,
            "shortDescription": "Find idle GPUs, and bring back what was paused",
            "description": (
                "Shows which GPUs of a cluster nobody uses, since when and why, what that costs, and what fallow will\n"
                "do about it; keeps, pauses and brings back workloads. Looking changes nothing.\n"
            ),
            "caveats": (
                "Needs Python 3.11 or newer with venv. The first call installs fallow's Python packages, checked by\n"
                "their hashes, into $XDG_DATA_HOME/fallow (~/.local/share/fallow). Measurements come from a daemon in\n"
                "the cluster, or from Prometheus: export PROMETHEUS_URL=...\nBegin with: kubectl fallow status\n"
            ),
            "platforms": [{
                "selector": {"matchExpressions": [{"key": "os", "operator": "In", "values": ["linux", "darwin"]}]},
                "uri": f"{url.rstrip('/')}/{NAME}", "sha256": hashlib.sha256(archive).hexdigest(), "bin": BIN,
            }],
        },
    }
    return yaml.safe_dump(made, sort_keys=False, width=140)
