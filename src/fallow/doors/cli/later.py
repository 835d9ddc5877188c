"""Modules of ours that run when they are first used: to describe a command, nothing of what it works with is needed.

In: the name of a module. Out: that module; whatever modules of ours it imports are there, and run their file the first
time that something is asked of them. By then imports are as ever: what runs, runs with all it needs. `--help` of a
command that would load numpy and a web client takes a quarter of the time this way (`python -m benchmarks help_time`).
Invariant: an annotation must not ask for anything: a file of commands begins with `from __future__ import annotations`.
"""

import contextlib
import gc
import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

_OURS = "fallow."
# What an import itself asks of a module that is there already, or sets on a new one.
_IMPORTS_ASK = frozenset({
    "__spec__", "__class__", "__dict__", "__loader__", "__name__", "__package__", "__path__", "__file__", "__cached__",
})


class _Later(ModuleType):
    """A module whose file has not run yet."""

    def __getattribute__(self, name: str) -> Any:
        if name in _IMPORTS_ASK:
            return super().__getattribute__(name)
        _run(self)
        return getattr(self, name)


def _run(module: ModuleType) -> None:
    module.__class__ = ModuleType
    try:
        with _no_collector():
            module.__spec__.loader_state.exec_module(module)  # type: ignore[union-attr]
    except BaseException:  # Ctrl-C, too: whoever asks next, perhaps to clean up, must not find half of it
        module.__class__ = _Later
        raise


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


def load(name: str) -> ModuleType:
    """The module itself runs; of what it imports, only what it asks for while it does."""
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    try:
        module = importlib.import_module(name)
        if isinstance(module, _Later):
            _run(module)
        return module
    finally:
        sys.meta_path.remove(finder)


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
