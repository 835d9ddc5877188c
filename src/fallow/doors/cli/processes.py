"""Commands that are a process of their own beside the daemon: the webhook, the extender.

In: what was typed, how to read it, what to run. Out: an exit code. What is wrong with flags is said before anything is
opened; an address that is taken or a folder that cannot be read ends it with one sentence.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol, TypeVar

import click

from fallow import logs, settings
from fallow.clients import errors
from fallow.doors.cli import flags

log = logging.getLogger("fallow")


class Logs(Protocol):
    @property
    def log_format(self) -> str: ...


T = TypeVar("T", bound=Logs)


def run(
    given: Mapping[str, Any], read: Callable[[Mapping[str, Any], Mapping[str, str]], T],
    serve: Callable[[T], Coroutine[Any, Any, int]],
) -> int:
    environment = settings.environment()
    try:
        options = read(given, environment)
    except settings.UsageError as problem:
        raise click.UsageError(str(problem)) from None
    logs.set_up(options.log_format, settings.log_level(environment))
    calm_collector()
    try:
        return asyncio.run(serve(options))
    except (errors.Misconfigured, settings.UsageError) as problem:
        log.error("%s", problem)
        return flags.EXIT_USAGE


def calm_collector() -> None:
    """A cycle makes tens of thousands of rows, and none of them is garbage that only the collector finds."""
    gc.set_threshold(50_000, 20, 50)
