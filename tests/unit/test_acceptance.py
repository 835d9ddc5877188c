"""The list of what is proven must not flatter."""

from __future__ import annotations

import pathlib

import pytest
from tests import acceptance

SPEC = """# Idle: what must hold

A sentence before the list.

1. Given a, then b.
2. Given c,
   then d.
"""
SPECS = {"idle": {1: "Given a, then b.", 2: "Given c, then d."}}
LISTS = acceptance.read_specs()
HERE = "tests/unit/test_acceptance.py"


@pytest.fixture(autouse=True)
def places(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.setattr(acceptance, "RESULTS", tmp_path / "results" / "acceptance")
    monkeypatch.setattr(acceptance, "SPECS", tmp_path / "spec")
    return tmp_path


def test_the_lists_are_read_from_the_specs(places: pathlib.Path) -> None:
    (places / "spec").mkdir()
    (places / "spec" / "idle.md").write_text(SPEC)
    assert acceptance.read_specs() == SPECS


@pytest.mark.parametrize(
    ("name", "lines", "sentence"),
    [
        ("idle", (1, 2), None),
        ("idle", (1, 3), "accepts('idle', 3): that list has no such line"),
        ("idel", (1,), "accepts('idel', ...): there is no such list; there are idle"),
        ("idle", (), "accepts('idle') names no line"),
    ],
    ids=["right", "no such line", "no such list", "no line"],
)
def test_a_mark_must_name_what_exists(name: str, lines: tuple[int, ...], sentence: str | None) -> None:
    assert acceptance.find_fault(name, lines, SPECS) == sentence


def test_a_line_is_proven_only_by_tests_that_all_passed_last_time() -> None:
    here, gone = f"{HERE}::test_the_lists_are_read_from_the_specs", f"{HERE}::test_that_was_renamed"
    other = f"{HERE}::test_a_mark_must_name_what_exists[right]"
    acceptance.record(
        {here: ([("idle", 1)], "passed"), gone: ([("idle", 2)], "passed"), other: ([("idle", 1)], "failed")}
    )
    assert next(acceptance.tell(acceptance.read_results(), SPECS)) == "idle: 0 of 2 lines proven"
    acceptance.record({other: ([("idle", 2)], "passed")})  # it names another line now
    assert list(acceptance.tell(acceptance.read_results(), SPECS)) == [
        "idle: 2 of 2 lines proven",
        "  1. Given a, then b.",
        f"       passed  {here}",
        "  2. Given c, then d.",
        f"       passed  {other}",
    ]


def test_the_worst_of_set_up_and_test_counts() -> None:
    assert acceptance.worst("passed", "failed") == acceptance.worst("failed", "skipped") == "failed"
    assert acceptance.worst("passed", "skipped") == "skipped"


def test_every_list_is_numbered_from_1_without_a_gap() -> None:
    for name, lines in LISTS.items():
        assert list(lines) == list(range(1, len(lines) + 1)), name
