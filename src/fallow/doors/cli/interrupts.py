"""Ctrl-C while a command waits for an answer: it ends what is under way, and nothing is said about that.

In: what a command waits for. Out: its answer, or KeyboardInterrupt.
`asyncio.run` heeds Ctrl-C wherever the interpreter happens to be, also in the middle of a callback: a timer that has
just seen that nobody cancelled its future then sets a result on a cancelled one, and that is logged as an error. Here
the loop itself is told, and ends between two callbacks.
Invariant: a second Ctrl-C ends it at once; whatever else goes wrong is raised as ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
from collections.abc import Coroutine
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")


def run_shortly(asked: Coroutine[Any, Any, T]) -> T:
    """What ends before there is garbage worth looking for."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        return run(asked)
    finally:
        if was_on:
            gc.enable()


def run_busily(asked: Coroutine[Any, Any, T]) -> T:
    """What computes and never waits, so that its loop would hear of Ctrl-C only at the end: it ends where it is."""
    def interrupt(number: int, frame: FrameType | None) -> None:
        signal.default_int_handler(number, frame)

    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:  # who ignores it is not disturbed
        return asyncio.run(asked)
    with contextlib.suppress(ValueError):  # not in the main thread: as ever
        signal.signal(signal.SIGINT, interrupt)  # asyncio puts its own only where the usual one is
    try:
        return asyncio.run(asked)
    finally:
        with contextlib.suppress(ValueError):
            signal.signal(signal.SIGINT, signal.default_int_handler)


def run(asked: Coroutine[Any, Any, T]) -> T:
    is_interrupted = False

    async def heed() -> T:
        loop, waiting = asyncio.get_running_loop(), asyncio.current_task()

        def interrupt() -> None:
            nonlocal is_interrupted
            is_interrupted = True
            loop.remove_signal_handler(signal.SIGINT)
            if waiting is not None:
                waiting.cancel()

        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):  # not in the main thread: as ever
            loop.add_signal_handler(signal.SIGINT, interrupt)
        return await asked

    try:
        return asyncio.run(heed())
    except asyncio.CancelledError:
        if is_interrupted:
            raise KeyboardInterrupt from None
        raise
