"""The list of what is proven must not flatter."""

from __future__ import annotations

import pathlib

import pytest
from tests import acceptance

SPEC = """# Idle
1. not a line of the list
## 16. Acceptance

1. Given a, then b.
2. Given c,
   then d.
## 17. More
3. neither is this
"""
SPECS = {"idle": {1: "Given a, then b.", 2: "Given c, then d."}}
HERE = "tests/unit/test_acceptance.py"


@pytest.fixture(autouse=True)
def places(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.setattr(acceptance, "RESULTS", tmp_path / "results" / "acceptance")
    monkeypatch.setenv("FALLOW_SPEC", str(tmp_path / "spec"))
    return tmp_path


def test_the_lists_are_read_from_the_specs(places: pathlib.Path) -> None:
    assert acceptance.read_specs() is None
    (places / "spec").mkdir()
    (places / "spec" / "idle.md").write_text(SPEC)
    (places / "spec" / "notes.md").write_text("# nothing to accept here\n")
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
    acceptance.record({here: ([("idle", 1)], "passed"), gone: ([("idle", 2)], "passed"), other: ([("idle", 1)], "failed")})
    assert next(acceptance.tell(acceptance.read_results(), SPECS)) == "idle: 0 of 2 lines proven"
    acceptance.record({other: ([("idle", 2)], "passed")})  # it names another line now
    assert list(acceptance.tell(acceptance.read_results(), SPECS)) == [
        "idle: 2 of 2 lines proven",
        "  1. Given a, then b.",
        f"       passed  {here}",
        "  2. Given c, then d.",
        f"       passed  {other}",
    ]


def test_without_specs_the_numbers_are_told() -> None:
    test = f"{HERE}::test_the_lists_are_read_from_the_specs"
    acceptance.record({test: ([("cost", 7)], "skipped")})
    assert list(acceptance.tell(acceptance.read_results(), None)) == ["cost: 0 of 1 lines proven", "  7.", f"       skipped {test}"]


def test_the_worst_of_set_up_and_test_counts() -> None:
    assert acceptance.worst("passed", "failed") == acceptance.worst("failed", "skipped") == "failed"
    assert acceptance.worst("passed", "skipped") == "skipped"
