"""What a flag is: one row of a capability's table. The CLI, --help and docs/operators/flags.md come from
such tables.

In: a table, flag texts as the CLI door collected them, the environment. Out: values by Flag.key. Whatever is wrong
raises UsageError, one sentence that names the flag or the variable.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from fallow.settings import readers


class Flag(msgspec.Struct, frozen=True):
    name: str
    metavar: str  # none for a switch
    help: str
    read: readers.Read = str
    default: str | None = None
    short: str | None = None
    variable: str | None = None  # environment variable it falls back to
    switch: bool = False
    repeat: bool = False
    group: str = ""

    @property
    def key(self) -> str:
        return self.name.removeprefix("--").replace("-", "_")


def group(title: str, *flags: Flag) -> tuple[Flag, ...]:
    return tuple(msgspec.structs.replace(each, group=title) for each in flags)


def read_values(flags: Iterable[Flag], given: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """By Flag.key; `given` has a bool for a switch and a sequence of texts for a repeated flag."""
    return {each.key: _value(each, given.get(each.key), environ) for each in flags}


def _value(flag: Flag, given: Any, environ: Mapping[str, str]) -> Any:
    if flag.switch:
        return bool(given)
    if flag.repeat:
        return tuple(_read(flag, text, flag.name) for text in given or ())
    if given is not None:
        return _read(flag, given, flag.name)
    if flag.variable and environ.get(flag.variable):
        return _read(flag, environ[flag.variable], flag.variable)
    return None if flag.default is None else _read(flag, flag.default, flag.name)


def _read(flag: Flag, text: str, called: str) -> Any:
    try:
        return flag.read(text)
    except ValueError as problem:
        raise readers.UsageError(f"{called}: {readers.explain(problem, text)}") from None


def parse_arguments(flags: Iterable[Flag], arguments: Sequence[str]) -> dict[str, Any]:
    """What a process was started with, as the door would collect it. Raises UsageError for what is none of its flags:
    `--name=value` or `--name value`."""
    known, found, rest = {each.name: each for each in flags}, dict[str, Any](), iter(arguments)
    for word in rest:
        name, has_value, value = word.partition("=")
        flag = known.get(name)
        if flag is None:
            raise readers.UsageError(f"{name} is no flag that is known")
        if flag.switch:
            found[flag.key] = True
            continue
        text = value if has_value else next(rest, None)
        if text is None:
            raise readers.UsageError(f"{name} has no value")
        found[flag.key] = (*found.get(flag.key, ()), text) if flag.repeat else text
    return found
