"""Trying again: how often, after how long, and when it would do harm; once for all clients.

In: an attempt, and how patient its client is. Out: what the attempt returned, or the error of its last try. What only
reads is tried again on lost connections, 429 and 5xx. What changes something is tried again only if it certainly was
not carried out: on 429, or when no connection came about. Who asks us to wait (Retry-After) is heeded, up to a minute.
Invariant: tries and waits are bounded, and nothing is sent again that may have been done.
"""

import asyncio
import itertools
import logging
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

from fallow.clients import errors
from fallow.model.units import Seconds

T = TypeVar("T")

# Longest Retry-After we sit out; the API server's own are 1 s. Longer ones are the caller's to plan for.
LONGEST_WAIT: Seconds = 60.0

log = logging.getLogger(__name__)


class Patience(msgspec.Struct, frozen=True):
    tries: int
    first_wait: Seconds  # each further one is twice as long
    longest_wait: Seconds = LONGEST_WAIT  # for who asks us to

    def wait_after(self, turn: int, problem: errors.ClientError, *, is_read: bool) -> Seconds | None:
        """Seconds until the next try, or None if there must not or need not be one."""
        match problem:
            case errors.Throttled():
                may_repeat = True
            case errors.Unreachable():
                may_repeat = is_read or problem.is_undone
            case errors.ServerFault():
                may_repeat = is_read
            case _:
                return None
        asked = problem.retry_after or 0.0
        if not may_repeat or turn >= self.tries or asked > self.longest_wait:
            return None
        back_off = self.first_wait * float(2 ** (turn - 1))
        return max(asked, back_off) + random.uniform(0, back_off / 2)


async def persist(
    attempt: Callable[[], Awaitable[T]], patience: Patience, *, is_read: bool = True,
    tell: Callable[[errors.ClientError], None] = lambda problem: None,
) -> T:
    """`tell`: called with what went wrong before each further try."""
    for turn in itertools.count(1):
        try:
            return await attempt()
        except errors.ClientError as problem:
            wait = patience.wait_after(turn, problem, is_read=is_read)
            if wait is None:
                raise
            log.debug("%s; asking again", problem)
            tell(problem)
        await asyncio.sleep(wait)
    raise AssertionError("the last try either returns or raises")


def read_header(header: str | None) -> Seconds | None:
    """Retry-After. Kubernetes gives whole seconds; a date, which the standard allows, is treated as not given."""
    return float(header) if header is not None and header.strip().isdecimal() else None
