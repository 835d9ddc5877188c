"""`fallow spot-watch`: reads its flags, and becomes the watch.

The watch runs for as long as its node, on every spot node: it is a program of its own that loads a fifth of what reads
flags, and takes this one's place under the same process id.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import click

from fallow import settings
from fallow.doors.cli import flags, main
from fallow.settings import spot_watch as table

_PROGRAM = "from fallow.doors.spot import run; run.main()"


def _watch(**given: Any) -> None:
    environment = settings.environment()
    try:
        options = table.read_watch(given, environment)
    except settings.UsageError as problem:
        raise click.UsageError(str(problem)) from None
    with_level = options._replace(log_level=settings.log_level(environment))
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-c", _PROGRAM, json.dumps(with_level._asdict())])


spot_watch = main.Door(
    "spot-watch", callback=_watch, context_settings=flags.CONTEXT,
    params=[flags.flag_option(flag) for flag in table.FLAGS],
    help="On a spot node: hear from the cloud's metadata that it takes this machine back, and note that on the node, "
    "so that the daemon moves who runs there in time. Needs rights to get and patch nodes; changes two annotations.",
)
