"""What somebody set, for others to read: flags and variables by the table of flags, without what is secret.

In: the words of a command line, the name and the text of a variable. Out: the same, with *** where a value is a secret,
cannot be read, or belongs to nothing that is known here.
Invariant: only a value that a flag of the table reads, and reads as no Secret, is shown.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from fallow.model.redaction import HIDDEN, Redactor
from fallow.model.secret import Secret
from fallow.settings import cost_enforcement, idle, packing, spot_watch
from fallow.settings.flags import Flag

_TABLES: Final = (*idle.FLAGS, *cost_enforcement.WEBHOOK_FLAGS, *packing.EXTENDER_FLAGS, *spot_watch.FLAGS)
_COMMANDS: Final = frozenset({"run", "prune", "webhook", "extender", "exporter", "spot-watch"})
_REFERENCE: Final = re.compile(r"\$\([A-Za-z_][\w.-]*\)")
_BY_WORD: Final = {word: flag for flag in reversed(_TABLES) for word in (flag.name, flag.short) if word}
_BY_VARIABLE: Final = {
    name: flag for flag in reversed(_TABLES) for name in (flag.key.upper(), flag.variable) if name
}


def show_arguments(words: Sequence[str]) -> list[str]:
    return [word for word, _ in _read_arguments(words)]


def find_secret_arguments(words: Sequence[str]) -> list[str]:
    """Values that may not be shown anywhere: those of flags that are hidden, and of flags that nobody knows."""
    return [text for _, text in _read_arguments(words) if text]


def _read_arguments(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Each as it may be shown, and what of it was hidden."""
    rest = iter(words)
    for word in rest:
        name, has_value, text = word.partition("=")
        flag = _BY_WORD.get(name)
        if flag is None:
            yield (word, "") if word in _COMMANDS else (HIDDEN, text if has_value else word)
        elif flag.switch:
            yield name, ""
        else:
            value = text if has_value else next(rest, "")
            said = _show(flag, value)
            yield f"{name}={said}", value if said == HIDDEN else ""


def show_variable(name: str, text: str) -> str:
    flag = _BY_VARIABLE.get(name)
    return HIDDEN if flag is None else _show(flag, text)


def find_secrets(variables: Iterable[tuple[str, str]]) -> list[str]:
    """Texts that may not be shown anywhere: those of variables that are hidden."""
    return [text for name, text in variables if show_variable(name, text) == HIDDEN]


def _show(flag: Flag, text: str) -> str:
    if _REFERENCE.fullmatch(text):  # the name of a variable, which Kubernetes puts in
        return text
    try:
        value = flag.read(text)
    except (ValueError, TypeError):
        return HIDDEN
    return HIDDEN if _is_secret(value) else Redactor().text(text)


def _is_secret(value: Any) -> bool:
    if isinstance(value, Secret):
        return True
    if isinstance(value, dict):
        return True  # whatever its texts are
    return isinstance(value, tuple | list | set | frozenset) and any(map(_is_secret, value))
