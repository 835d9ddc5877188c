"""How the exporter logs: one line per event to standard error, in the three forms of the product (`default`, `json`, `pretty`).

A copy in small of what telemetry.py does for the controller, because telemetry brings the metrics library with it: 3 MB and a tenth of
a second that the exporter does not have to spend. Invariant: no text that somebody put into a name can forge a second line.
"""

import logging
import sys
from collections.abc import Callable, Mapping
from typing import TextIO

import msgspec

from fallow.model import units

_COLOURS = {"DEBUG": "\x1b[2m", "INFO": "\x1b[32m", "WARNING": "\x1b[33m", "ERROR": "\x1b[31m"}


def set_up(form: str, level: str, stream: TextIO | None = None) -> None:
    """Ours from `level` on, other libraries' from a warning on."""
    logs = logging.StreamHandler(stream or sys.stderr)
    logs.setFormatter(Lines(form))
    root = logging.getLogger()
    root.handlers[:] = [logs]
    root.setLevel(logging.WARNING)
    logging.getLogger("fallow").setLevel(level.upper())


class Lines(logging.Formatter):
    def __init__(self, form: str) -> None:
        super().__init__()
        self._write = _FORMS[form]

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        if record.exc_info:
            message = f"{message}: {self.formatException(record.exc_info)}"
        return self._write(record, units.rfc3339(record.created), message)


def _plain(record: logging.LogRecord, when: str, message: str) -> str:
    return f"{when} {record.levelname:>7} {record.name}: {_on_one_line(message)}"


def _pretty(record: logging.LogRecord, when: str, message: str) -> str:
    return f"\x1b[2m{when}\x1b[0m {_COLOURS.get(record.levelname, '')}{record.levelname:>7}\x1b[0m {_on_one_line(message)}"


def _json(record: logging.LogRecord, when: str, message: str) -> str:
    line = {"time": when, "level": record.levelname.lower(), "target": record.name, "message": message}
    return msgspec.json.encode(line).decode()


def _on_one_line(message: str) -> str:
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in message)


_FORMS: Mapping[str, Callable[[logging.LogRecord, str, str], str]] = {"default": _plain, "json": _json, "pretty": _pretty}
