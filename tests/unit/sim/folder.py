"""Where the real traces are, for tests that want them."""

import os
from pathlib import Path

import pytest


def find(name: str) -> Path:
    """The file of that name in FALLOW_TRACES; the test says that it was skipped where there is none."""
    folder = os.environ.get("FALLOW_TRACES")
    if not folder:
        pytest.skip(f"no trace {name}: FALLOW_TRACES is not set")
    path = Path(folder) / name
    if not path.is_file():
        pytest.skip(f"no trace {name} in FALLOW_TRACES ({path.parent.name})")
    return path
