"""How often we may ask: a steady rate with a small burst, first come first served.

In: one `wait()` per request about to be sent. Out: it returns when the request may go.
Invariant: in any stretch of t seconds at most `burst + qps * t` requests go.
"""

import asyncio
import time
from collections.abc import Callable

BURST_OF_A_LOOK = 100  # for who asks once, while somebody waits, and then no more: about all that one look asks for


class Pace:
    def __init__(self, qps: float, burst: int, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        if qps <= 0 or burst < 1:
            raise ValueError("the rate must be above 0 and the burst at least 1")
        self._gap = 1.0 / qps
        self._head_start = (burst - 1) * self._gap
        self._monotonic = monotonic
        self._next = float("-inf")

    async def wait(self) -> None:
        delay = self.reserve()
        if delay > 0:
            await asyncio.sleep(delay)

    def reserve(self) -> float:
        """Take the next turn; how many seconds from now it is."""
        now = self._monotonic()
        turn = max(self._next, now - self._head_start)
        self._next = turn + self._gap
        return turn - now
