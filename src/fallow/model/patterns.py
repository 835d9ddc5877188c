"""Regular expressions that people write: RE2, so that no expression can keep us busy.

In: the text. Out: a Pattern, or ValueError with the reason, which the caller puts into the sentence of its door. Names
are matched against whole strings; only what tells the class of a workload is looked for within one.
"""

from collections.abc import Sequence
from typing import Any, Protocol


class Pattern(Protocol):
    """A compiled RE2 expression."""

    @property
    def pattern(self) -> str: ...

    def fullmatch(self, text: str) -> Any: ...

    def search(self, text: str) -> Any: ...


def compile_any(texts: Sequence[str]) -> Pattern:
    """Any of these, in any case. Raises ValueError that begins with the one that is wrong."""
    for text in texts:
        try:
            compile_pattern(text)
        except ValueError as problem:
            raise ValueError(f"{text!r} is not a valid RE2 expression: {problem}") from None
    return compile_pattern("|".join(f"(?:{text})" for text in texts), any_case=True)


def compile_pattern(text: str, *, any_case: bool = False) -> Pattern:
    import re2  # here and not above: --help does without it

    options = re2.Options()
    options.log_errors = False
    options.case_sensitive = not any_case
    try:
        compiled: Pattern = re2.compile(text, options)
    except UnicodeEncodeError:
        raise ValueError("it is not valid Unicode") from None
    except re2.error as problem:
        said = problem.args[0] if problem.args else ""
        raise ValueError(said.decode("utf-8", "replace") if isinstance(said, bytes) else said) from None
    return compiled
