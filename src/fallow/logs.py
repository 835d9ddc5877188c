"""How we log: one line per event to standard error; `default` for people, `pretty` with colours, `json` for machines.

In: records, and with them `fields` for whoever reads the JSON. Out: lines. Light, for the node exporter logs by it too.
Invariant: no text that somebody put into a name can forge a second line.
"""

import json
import logging
import sys
from collections.abc import Mapping
from typing import Any, TextIO

from fallow.model import units

_COLOURS = {
    "DEBUG": "\x1b[2m", "INFO": "\x1b[32m", "WARNING": "\x1b[33m", "ERROR": "\x1b[31m", "CRITICAL": "\x1b[31;1m",
}


class Lines(logging.Formatter):
    def __init__(self, form: str) -> None:
        super().__init__()
        self._form = form

    def format(self, record: logging.LogRecord) -> str:
        when, level, message = units.rfc3339(record.created), record.levelname, record.getMessage()
        if record.exc_info:
            message = f"{message}: {self.formatException(record.exc_info)}"
        fields: Mapping[str, Any] = getattr(record, "fields", {})
        if self._form == "json":
            line = {"time": when, "level": level.lower(), "target": record.name, "message": message, **fields}
            return json.dumps(line, default=str)
        safe = message if message.isprintable() else _escape(message)
        if self._form == "pretty":
            return f"\x1b[2m{when}\x1b[0m {_COLOURS.get(level, '')}{level:>7}\x1b[0m {safe}"
        return f"{when} {level:>7} {record.name}: {safe}"


def _escape(text: str) -> str:
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def set_up(style: str, level: str, stream: TextIO | None = None) -> None:
    """All our logs to standard error, and no other library's chatter below a warning."""
    logs = logging.StreamHandler(stream or sys.stderr)
    logs.setFormatter(Lines(style))
    root = logging.getLogger()
    root.handlers[:] = [logs]
    root.setLevel(logging.WARNING)
    logging.getLogger("fallow").setLevel(level.upper())
