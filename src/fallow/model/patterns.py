"""Regular expressions that people write: RE2, so that no expression can keep us busy, matched against whole strings.

In: the text. Out: a Pattern, or ValueError with the reason, which the caller puts into the sentence of its door.
"""

from typing import Any, Protocol


class Pattern(Protocol):
    """A compiled RE2 expression; we only ever match whole strings."""

    @property
    def pattern(self) -> str: ...

    def fullmatch(self, text: str) -> Any: ...


def compile_pattern(text: str) -> Pattern:
    import re2  # here and not above: --help does without it

    options = re2.Options()
    options.log_errors = False
    try:
        compiled: Pattern = re2.compile(text, options)
    except UnicodeEncodeError:
        raise ValueError("it is not valid Unicode") from None
    except re2.error as problem:
        said = problem.args[0] if problem.args else ""
        raise ValueError(said.decode("utf-8", "replace") if isinstance(said, bytes) else said) from None
    return compiled
