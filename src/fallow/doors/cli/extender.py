"""`fallow extender`: the scheduler's extender, as a process of its own."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from fallow.doors.cli import flags, main, processes
from fallow.settings import packing


def _serve(options: packing.ExtenderSettings) -> Coroutine[Any, Any, int]:
    from fallow.doors.extender import serve  # a web server: --help does without it

    return serve.run(options)


def _extender(**given: Any) -> int:
    return processes.run(given, packing.read_extender, _serve)


extender = main.Door(
    "extender", callback=_extender, context_settings=flags.CONTEXT,
    params=[flags.flag_option(flag) for flag in packing.EXTENDER_FLAGS],
    help="Answer kube-scheduler, which of the nodes that have room are best for a GPU pod, so that the fewest GPUs are "
    "stranded. Rights to read are enough; on doubt it has no opinion, and the scheduler decides alone.",
)
