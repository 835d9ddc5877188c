"""A file of settings: flags by their names without dashes in front, as YAML.

    prometheus-url: http://prometheus.monitoring:9090
    duration: 45
    gpu-resource: [example.com/gpu]

In: what was typed, the environment, the path of a file. Out: what a door collects, completed by the file. What is typed
wins over a variable, a variable over the file, the file over what is usual.
Invariant: a name that is no flag, a value that is none, a file that cannot be read: UsageError, one sentence with the
file in it; nothing of such a file counts.
"""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from fallow.model import spelling
from fallow.settings import idle
from fallow.settings.flags import Flag
from fallow.settings.readers import UsageError

KEY: Final = "config"
VARIABLE: Final = "FALLOW_CONFIG"
_MOST_BYTES: Final = 1_000_000
_TAG: Final = "tag:yaml.org,2002:"
_SCALARS: Final = frozenset({"str", "int", "float", "timestamp"})
_TRUE: Final = frozenset({"true", "yes", "on"})
_FLAGS: Final = {flag.key: flag for flag in idle.FLAGS if flag.key != KEY}


def find(given: Mapping[str, Any], environ: Mapping[str, str]) -> Path | None:
    named = given.get(KEY) or environ.get(VARIABLE)
    return Path(named) if named else None


def complete(
    given: Mapping[str, Any], environ: Mapping[str, str], usual: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """`usual`: of a command, where nobody says otherwise."""
    path = find(given, environ)
    said = {} if path is None else read(path)
    from_file = {key: value for key, value in said.items() if not _is_variable_set(_FLAGS[key], environ)}
    typed = {key: value for key, value in given.items() if value not in (None, False, ())}
    return {**given, **(usual or {}), **from_file, **typed}


def _is_variable_set(flag: Flag, environ: Mapping[str, str]) -> bool:
    return bool(flag.variable and environ.get(flag.variable))


def read_content(path: Path) -> bytes:
    """No more of it than shows that it is too long. Raises OSError."""
    with path.open("rb") as file:
        return file.read(_MOST_BYTES + 1)


def read(path: Path) -> dict[str, Any]:
    """By Flag.key, each as if it had been typed: 0123 is no number of another base, and nothing is said twice."""
    try:
        content = read_content(path)
    except OSError as problem:
        raise UsageError(f"--{KEY}: {path} cannot be read: {problem.strerror}") from None
    return parse(content, path)


def parse(content: bytes, path: Path) -> dict[str, Any]:
    """What such a file has in it."""
    import yaml  # only who has such a file waits for it

    if len(content) > _MOST_BYTES:
        raise UsageError(f"--{KEY}: {path} is no file of settings: it has more than {_MOST_BYTES} bytes")
    try:
        said = yaml.compose(content, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as problem:
        raise UsageError(f"--{KEY}: {path} is no YAML{_tell_place(problem)}") from None
    if said is None or said.tag == f"{_TAG}null":
        return {}
    if not isinstance(said, yaml.MappingNode):
        raise UsageError(f"--{KEY}: {path} has no settings such as `duration: 45` in it")
    found = [_read_one(path, name, value) for name, value in said.value]
    if twice := [key for key, count in Counter(key for key, _ in found).items() if count > 1]:
        raise UsageError(f"--{KEY}: {path}: {_FLAGS[min(twice)].name[2:]} is said twice")
    return dict(found)


def spell(content: bytes, path: Path) -> list[str]:
    """The same as words of a command line."""
    words = list[str]()
    for key, value in parse(content, path).items():
        name = _FLAGS[key].name
        if _FLAGS[key].switch:
            words += [name] if value else []
        else:
            words += [f"{name}={each}" for each in (value if isinstance(value, tuple) else (value,))]
    return words


def _tell_place(problem: Exception) -> str:
    """Not the line itself: there may be a password in it."""
    mark, what = getattr(problem, "problem_mark", None), getattr(problem, "problem", None)
    return f": line {mark.line + 1}, column {mark.column + 1}: {what}" if mark is not None else ""


def _read_one(path: Path, name: Any, value: Any) -> tuple[str, Any]:
    spelled = name.value.removeprefix("--") if isinstance(name.value, str) else ""
    flag = _FLAGS.get(spelled.replace("-", "_"))
    if flag is None or "_" in spelled:
        meant = spelling.suggest(spelled, {each.name[2:]: each.name[2:] for each in _FLAGS.values()})
        raise UsageError(f"--{KEY}: {path}: there is no setting {spelled!r}{meant}")
    if flag.switch:
        if value.tag != f"{_TAG}bool":
            raise UsageError(f"--{KEY}: {path}: {spelled}: true or false")
        return flag.key, _text(path, spelled, value) == "true"
    if flag.repeat:
        several = value.value if value.tag == f"{_TAG}seq" else [value]
        return flag.key, tuple(_text(path, spelled, each) for each in several)
    return flag.key, _text(path, spelled, value)


def _text(path: Path, spelled: str, value: Any) -> str:
    """As it would be typed."""
    kind = value.tag.removeprefix(_TAG)
    if kind == "bool":
        return "true" if value.value.lower() in _TRUE else "false"
    if kind not in _SCALARS:
        raise UsageError(f"--{KEY}: {path}: {spelled}: one value, as it would be typed, is expected")
    return str(value.value)
