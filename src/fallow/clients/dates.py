"""What time it is elsewhere: the `Date` of the last answer, carried on by a clock that nobody sets.

In: the headers of each good answer, as it arrives. Out: the other end's time now, unseen while no answer tells it.
Invariant: an answer out of a cache (`Age`) does not count: its date is that of another answer. Where none has told a
date for some minutes, though answers came, the time is unseen again: another may answer by now, or its clock was set.
A Date is exact to a second, and how long an answer was under way is not known: who compares allows for more than both.
"""

import email.utils
import time
from collections.abc import Callable, Mapping
from typing import Final

from fallow.model import units
from fallow.model.seen import Input, Known, Unseen
from fallow.model.units import MINUTE, Instant, Seconds

CARRIED: Final[Seconds] = 15 * MINUTE  # five cycles of the daemon: a few answers out of a cache are nothing yet


class OtherClock:
    """The clock of one server. `monotonic` is ours."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._said: tuple[Instant, float] | None = None  # what it said, and when that arrived
        self._answered = 0.0  # when its last answer arrived, whether that said it or not

    def note(self, headers: Mapping[str, str]) -> None:
        said, self._answered = _read(headers.get("Date", "")), self._monotonic()
        if said is not None and "Age" not in headers:
            self._said = said, self._answered

    def read(self) -> Input[Instant]:
        if self._said is None:
            return Unseen("none of its answers says when it was given (Date)")
        said, arrived = self._said
        if self._answered - arrived > CARRIED:
            silent = units.humane(self._answered - arrived)
            return Unseen(f"its answers of the last {silent} do not say when they were given (Date)")
        return Known(said + self._monotonic() - arrived)


def _read(text: str) -> Instant | None:
    try:
        return email.utils.parsedate_to_datetime(text).timestamp()
    except (ValueError, OverflowError):
        return None
