"""What time it is elsewhere: the `Date` of the last answer, carried on by a clock that nobody sets.

In: the headers of each good answer, as it arrives. Out: the other end's time now, unseen while no answer tells it.
Invariant: an answer out of a cache (`Age`) does not count: its date is that of another answer. A Date is exact to a
second, and how long an answer was under way is not known: who compares allows for more than both.
"""

import email.utils
import time
from collections.abc import Callable, Mapping

from fallow.model.seen import Input, Known, Unseen
from fallow.model.units import Instant


class OtherClock:
    """The clock of one server. `monotonic` is ours."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._said: tuple[Instant, float] | None = None  # what it said, and when that arrived

    def note(self, headers: Mapping[str, str]) -> None:
        said = _read(headers.get("Date", ""))
        if said is not None and "Age" not in headers:
            self._said = said, self._monotonic()

    def read(self) -> Input[Instant]:
        if self._said is None:
            return Unseen("none of its answers says when it was given (Date)")
        said, arrived = self._said
        return Known(said + self._monotonic() - arrived)


def _read(text: str) -> Instant | None:
    try:
        return email.utils.parsedate_to_datetime(text).timestamp()
    except (ValueError, OverflowError):
        return None
