"""One meaning for each word: no class name stands for two things, and words that meant a dozen do not come back."""

import ast
from collections import defaultdict
from pathlib import Path

from tests import ROOT

SOURCES = sorted((ROOT / "src" / "fallow").rglob("*.py"))


def classes_of(path: Path) -> list[str]:
    return [node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)]


def test_no_class_name_is_used_for_two_things() -> None:
    found = defaultdict(list)
    for path in SOURCES:
        for name in classes_of(path):
            found[name].append(str(path.relative_to(ROOT)))
    assert {name: where for name, where in found.items() if len(where) > 1} == {}


def test_the_glossary_names_what_there_is() -> None:
    """Every word of its table that is written as code is a class, a module, a type or a function of ours."""
    known = {path.stem for path in SOURCES} | {path.parent.name for path in SOURCES}
    for path in SOURCES:
        tree = ast.parse(path.read_text())
        known |= {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef | ast.FunctionDef)}
        known |= {
            node.target.id
            for node in tree.body
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
        }
    page = (ROOT / "docs" / "contributors" / "glossary.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    words = [line.split("`")[1].rpartition(".")[2] for line in rows]
    assert words
    assert [word for word in words if word not in known] == []
    assert len(words) == len(set(words))


def test_worn_words_are_no_names() -> None:
    found = set()
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            names = (getattr(node, field, None) for field in ("id", "arg", "attr"))
            found |= {(str(path.relative_to(ROOT)), name) for name in names if name in ("told", "mood", "desk")}
    assert found == set()
