"""One meaning for each word: no class name stands for two things, and words that meant a dozen do not come back."""

import ast
import functools
import re
from collections import defaultdict
from pathlib import Path

from tests import ROOT

from fallow.model.cost import PART_WORDS

SOURCES = sorted((ROOT / "src" / "fallow").rglob("*.py"))


@functools.cache
def nodes_of(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text())))


def classes_of(path: Path) -> list[str]:
    return [node.name for node in nodes_of(path) if isinstance(node, ast.ClassDef)]


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
        module, *inside = nodes_of(path)
        known |= {node.name for node in inside if isinstance(node, ast.ClassDef | ast.FunctionDef)}
        known |= {
            node.target.id
            for node in module.body
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
        }
    page = (ROOT / "docs" / "contributors" / "glossary.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    words = [line.split("`")[1].rpartition(".")[2] for line in rows]
    assert words
    assert [word for word in words if word not in known] == []
    assert len(words) == len(set(words))


READ_BY_PEOPLE = [
    ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "ui" / "src").rglob("*.tsx")),
    *(path for room in ("doors", "act") for path in sorted((ROOT / "src" / "fallow" / room).rglob("*.py"))),
]


def test_the_five_parts_of_a_cost_have_one_set_of_words() -> None:
    """In the table of the cost model, in the glossary, and no other words for them anywhere that people read."""
    model, glossary = (ROOT / "docs" / "cost-model.md").read_text(), ROOT / "docs" / "contributors" / "glossary.md"
    rows = [[cell.strip(" `") for cell in line.split("|")] for line in model.splitlines() if "the team's" in line
            or "the platform's |" in line]
    assert {row[2]: row[1] for row in rows if len(row) > 4} == PART_WORDS
    assert all(word in glossary.read_text() for word in PART_WORDS.values())
    worn = re.compile(r"allocated, unused|allocated and unused|use unknown|else unused|held and unused|held unmeasured")
    pages = [path for path in READ_BY_PEOPLE if "spec" not in path.parts and "decisions" not in path.parts]
    assert {str(path.relative_to(ROOT)): found for path in pages if (found := worn.findall(path.read_text()))} == {}


def test_worn_words_are_no_names() -> None:
    found = set()
    for path in SOURCES:
        for node in nodes_of(path):
            names = (getattr(node, field, None) for field in ("id", "arg", "attr"))
            found |= {(path, name) for name in names if name in ("told", "mood", "desk")}
    assert found == set()
