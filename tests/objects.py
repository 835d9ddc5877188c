"""The objects of a YAML text: manifests, definitions, what helm and kustomize render.

In: the text. Out: its objects, without empty ones. libyaml reads them where it is there, ten times as fast as what is
written in Python: our definitions are long, and are read by many tests.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterable
from typing import Any

import yaml

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read(text: str) -> list[dict[str, Any]]:
    return [each for each in yaml.load_all(text, _Loader) if each]


def read_files(paths: Iterable[pathlib.Path]) -> list[dict[str, Any]]:
    return [each for path in paths for each in read(path.read_text())]
