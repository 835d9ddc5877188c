"""Places for a ledger: here on a file, in tests/real on servers."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fallow.account import ledger


class FilePlace:
    """Where one ledger is; it may be opened several times, one after the other or at once."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def ledger(self, **options: Any) -> ledger.Ledger:
        return ledger.on_file(self.path, **options)


@pytest.fixture
def new_place(tmp_path: Path) -> Callable[[], FilePlace]:
    numbers = itertools.count(1)
    return lambda: FilePlace(tmp_path / f"ledger-{next(numbers)}.sqlite")
