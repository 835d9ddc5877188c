"""Where the real traces are, for tests that want them."""

import os
from pathlib import Path

import pytest


def find(name: str) -> Path:
    """The file of that name in FALLOW_TRACES; the test says that it was skipped where there is none."""
    folder = Path(os.environ.get("FALLOW_TRACES") or Path(__file__).parents[3].parent / "shared" / "data")
    path = folder / name
    if not path.is_file():
        pytest.skip(f"no trace {name} in FALLOW_TRACES ({folder.name})")
    return path
