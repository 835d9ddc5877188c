"""Is the exporter well, and may one rely on it? Pure: shown every poll, asked at any instant (monotonic clock).

Unwell, so that a restart is due: the loop died, a poll hangs, nothing succeeded for a while after the driver had
worked, or the driver was updated underneath. No driver at all is no illness: it may come. Ready: the driver answers,
and did so lately.
"""

from collections.abc import Iterable

import msgspec

from fallow import names
from fallow.model import processes, units
from fallow.model.units import Seconds

MISMATCHED = "the driver was updated underneath: its library and its kernel module are of different versions; restart"


class ExporterHealth(msgspec.Struct):
    interval: Seconds
    is_up: bool = False  # the driver answered at the last poll
    has_mismatch: bool = False
    died: str = ""  # why the loop ended, if it did
    succeeded: Seconds | None = None
    began: Seconds | None = None  # the poll that is under way

    @property
    def patience(self) -> Seconds:
        return max(3 * self.interval, 30.0)

    def end(self, result: processes.Result, problems: Iterable[processes.Problem], now: Seconds) -> None:
        self.began = None
        self.is_up = result is not processes.Result.error
        if self.is_up:
            self.succeeded, self.has_mismatch = now, False
        elif any(problem.code == names.NvmlCode.VERSION_MISMATCH for problem in problems):
            self.has_mismatch = True  # until the driver works: between two attempts to open it there is no news

    def is_stuck(self, now: Seconds) -> bool:
        """A poll is under way for so long that what the last one found must not be shown any more."""
        return self.began is not None and now - self.began > self.patience

    def why_unwell(self, now: Seconds) -> str:
        """Empty: well."""
        if self.died:
            return f"the loop ended: {self.died}"
        if self.has_mismatch:
            return MISMATCHED
        if self.is_stuck(now) and self.began is not None:
            return f"a call to the driver has not returned for {units.humane(now - self.began)}"
        if self.succeeded is not None and now - self.succeeded > self.patience:
            return f"no poll succeeded for {units.humane(now - self.succeeded)}"
        return ""

    def why_not_ready(self, now: Seconds) -> str:
        """Empty: ready."""
        return self.why_unwell(now) or ("" if self.is_up else "the driver does not answer")
