"""`gpu-pruner`, as it is typed. It stands alone: no other command needs its hundred options.

In: the flags of settings. Out: the exit code of one look, or of a daemon that was ended (prune.py).
"""

from __future__ import annotations

import sys
from typing import Any

import click

from fallow import __version__
from fallow.doors.cli import flags, main


def _start(**given: Any) -> None:
    options = flags.read_settings(given)  # before anything heavy is imported: a usage error answers at once
    sys.exit(main.load("prune").start(options, given))


gpu_pruner = flags.FlagCommand(
    "gpu-pruner", callback=_start, params=[*flags.flag_options()], context_settings=flags.CONTEXT,
    help="Pauses workloads that hold GPUs and do not use them; they come back at a click.\n\n"
    "By default it looks once, says what it would do (dry-run), and exits: 0 done, 1 no decision possible, 2 usage "
    "error, 3 something failed, 4 frozen.",
)
click.version_option(__version__, "-V", "--version", prog_name="gpu-pruner", message="%(prog)s %(version)s")(gpu_pruner)
