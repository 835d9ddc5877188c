"""Times that come again, as cron writes them: `0 17 * * 5` is Fridays at 17:00 in the zone it is meant in.

In: five fields and an IANA zone. Out: the latest such time that is not later than an instant. A time that a change of
the clocks leaves out, or brings twice, comes once (cronsim's rule, which is Debian's).
"""

from datetime import UTC, datetime
from typing import Self

import msgspec

from fallow.model.units import Instant


class Schedule(msgspec.Struct, frozen=True):
    expression: str
    zone: str = "UTC"

    @classmethod
    def parse(cls, expression: str, zone: str) -> Self:
        """Raises ValueError with half a sentence."""
        import cronsim  # who has no schedule does without it

        found = cls(" ".join(expression.split()), zone)
        try:
            if len(found.expression.split()) != 5:
                raise cronsim.CronSimError("it has not five fields")
            found.latest(0.0)
        except cronsim.CronSimError as problem:
            raise ValueError(f"{expression!r} is no time of cron such as '0 17 * * 5': {problem}") from None
        return found

    def latest(self, by: Instant) -> Instant:
        """The last time that is not later than this."""
        import zoneinfo

        import cronsim

        at = datetime.fromtimestamp(by // 60 * 60 + 60, UTC).astimezone(zoneinfo.ZoneInfo(self.zone))
        return next(cronsim.CronSim(self.expression, at, reverse=True)).timestamp()


def read_zone(text: str) -> str:
    import zoneinfo  # here and not above: --help and the exporter do without it

    try:
        zoneinfo.ZoneInfo(text)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"{text!r} is no time zone such as UTC or Europe/Berlin") from None
    return text
