"""Which tests prove which acceptance lines, and how they last ended: `python -m tests.acceptance`.

In: the marker `@pytest.mark.accepts("idle", 14)` on tests, through the hooks in `conftest`; the numbered lines of
docs/spec/*.md.
Out: `.pytest_cache/v/fallow/acceptance`, JSON of list -> line -> test -> outcome, merged over workers and runs; and its
print.
Invariant: a test stands only under the lines that it names now, with the outcome of its last run.
"""

from __future__ import annotations

import fcntl
import json
import re
from collections.abc import Iterable, Iterator

from tests import ROOT

SPECS = ROOT / "docs" / "spec"
RESULTS = ROOT / ".pytest_cache" / "v" / "fallow" / "acceptance"

Lines = dict[int, str]  # number -> its text
Results = dict[str, dict[str, dict[str, str]]]  # list -> line -> test -> outcome
_WORST_FIRST = ("failed", "skipped", "passed")


def read_specs() -> dict[str, Lines]:
    """The acceptance lists by name (`idle`, `cost`)."""
    return {file.stem: _read_list(file.read_text()) for file in sorted(SPECS.glob("*.md"))}


def _read_list(text: str) -> Lines:
    items = re.findall(r"^(\d+)\. (.*?)(?=^\d+\. |\Z)", text, re.MULTILINE | re.DOTALL)
    return {int(number): " ".join(words.split()) for number, words in items}


def find_fault(name: str, lines: Iterable[int], specs: dict[str, Lines]) -> str | None:
    """What is wrong with an `accepts` mark, in a sentence."""
    if not lines:
        return f"accepts({name!r}) names no line"
    if name not in specs:
        return f"accepts({name!r}, ...): there is no such list; there are {', '.join(specs)}"
    missing = [line for line in lines if line not in specs[name]]
    return f"accepts({name!r}, {missing[0]}): that list has no such line" if missing else None


def worst(one: str, other: str) -> str:
    return min(one, other, key=_WORST_FIRST.index)


def record(outcomes: dict[str, tuple[list[tuple[str, int]], str]]) -> None:
    """Merge what a run found: test -> (the lines it names, its outcome). Several runs may end at once."""
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    with RESULTS.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        results = _without(read_results(), set(outcomes))
        for test, (lines, outcome) in outcomes.items():
            for name, line in lines:
                results.setdefault(name, {}).setdefault(str(line), {})[test] = outcome
        scratch = RESULTS.with_suffix(".new")
        scratch.write_text(json.dumps(results, indent=1, sort_keys=True))
        scratch.rename(RESULTS)


def read_results() -> Results:
    if not RESULTS.exists():
        return {}
    found: Results = json.loads(RESULTS.read_text())
    return found


def _without(results: Results, tests: set[str]) -> Results:
    return {
        name: {line: {test: end for test, end in ends.items() if test not in tests} for line, ends in lines.items()}
        for name, lines in results.items()
    }


def _still_there(test: str) -> bool:
    """A test that was renamed or deleted since proves nothing."""
    path, _, rest = test.partition("::")
    function = rest.rpartition("::")[2].partition("[")[0]
    file = ROOT / path
    return file.exists() and re.search(rf"\bdef {re.escape(function)}\(", file.read_text()) is not None


def tell(results: Results, specs: dict[str, Lines]) -> Iterator[str]:
    """The page, line by line."""
    for name, lines in specs.items():
        ends = {line: _tests_of(results, name, line) for line in lines}
        proven = sum(bool(tests) and set(tests.values()) == {"passed"} for tests in ends.values())
        yield f"{name}: {proven} of {len(lines)} lines proven"
        for line, text in sorted(lines.items()):
            yield f"  {line}. {text}".rstrip()
            yield from (f"       {end:7} {test}" for test, end in sorted(ends[line].items()))


def _tests_of(results: Results, name: str, line: int) -> dict[str, str]:
    return {test: end for test, end in results.get(name, {}).get(str(line), {}).items() if _still_there(test)}


if __name__ == "__main__":
    for sentence in tell(read_results(), read_specs()):
        print(sentence)
