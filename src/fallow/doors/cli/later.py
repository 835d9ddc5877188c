"""Modules of ours that run when they are first used: to describe a command, nothing of what it works with is needed.

In: the name of a module. Out: that module; whatever modules of ours it imports are there, and run their file the first
time that something is asked of them; so do those that they import. `--help` of a command that would load numpy and a
web client takes a quarter of the time this way, and what a daemon answers is shown without numpy (`python -m benchmarks
help_time commands`).
Invariant: nobody finds half of a module, in no thread. An annotation must not ask for anything where that counts: such
a file begins with `from __future__ import annotations`.
"""

import contextlib
import gc
import importlib
import importlib.abc
import importlib.machinery
import sys
import threading
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

_OURS = "fallow."
# What an import itself asks of a module that is there already, or sets on a new one.
_IMPORTS_ASK = frozenset({
    "__spec__", "__class__", "__dict__", "__loader__", "__name__", "__package__", "__path__", "__file__", "__cached__",
})


_ONE_AT_A_TIME = threading.RLock()
_running: set[str] = set()


class _Later(ModuleType):
    """A module whose file has not run to its end. Whoever asks it for something while another thread runs it waits."""

    def __getattribute__(self, name: str) -> Any:
        if name not in _IMPORTS_ASK:
            with _ONE_AT_A_TIME:
                if type(self) is _Later and self.__name__ not in _running:
                    _run(self)
        return ModuleType.__getattribute__(self, name)


def _run(module: ModuleType) -> None:
    """Where it fails (Ctrl-C, too) it is as before: whoever asks next, perhaps to clean up, finds no half of it."""
    _running.add(module.__name__)
    try:
        with _no_collector():
            module.__spec__.loader_state.exec_module(module)  # type: ignore[union-attr]
        module.__class__ = ModuleType
    finally:
        _running.discard(module.__name__)


class _Loader(importlib.abc.Loader):
    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _Later(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Not yet."""


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not fullname.startswith(_OURS):
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.submodule_search_locations is None:  # packages run: they hold next to nothing
            spec.loader, spec.loader_state = _Loader(), spec.loader
        return spec


_FINDER = _Finder()


def load(name: str) -> ModuleType:
    """The module itself runs; of what it imports, only what it asks for while it does."""
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)
    module = importlib.import_module(name)
    if isinstance(module, _Later):
        _run(module)
    return module


@contextlib.contextmanager
def _no_collector() -> Iterator[None]:
    """What imports make stays for good: a collector that looks at it again and again takes a sixth of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.freeze()
            gc.enable()
