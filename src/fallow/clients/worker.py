"""One thread for calls that block and may hang: the driver's, and password hashes.

In: jobs. Out: futures of the event loop that asked. Jobs are done one after the other, so what they share needs no
lock.
Invariant: a job that never returns holds up its worker and nothing else: neither the event loop, nor the end of the
process.
"""

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class Worker:
    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any]]] = queue.SimpleQueue()
        # A daemon: the interpreter does not wait for it, as it would for an executor's threads.
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    def do(self, job: Callable[[], T]) -> "asyncio.Future[T]":
        if not self._thread.ident:
            self._thread.start()
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._jobs.put((job, done))
        return done

    def _work(self) -> None:
        while True:
            job, done = self._jobs.get()
            try:
                settle, outcome = done.set_result, job()
            except BaseException as problem:
                settle, outcome = done.set_exception, problem
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                done.get_loop().call_soon_threadsafe(_settle, done, settle, outcome)
            del job, done, settle, outcome  # or the last result would live until the next job


def _settle(done: "asyncio.Future[Any]", settle: Callable[[Any], None], outcome: Any) -> None:
    if not done.done():
        settle(outcome)
