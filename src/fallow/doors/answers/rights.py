"""What somebody may do, as an answer: so that a page shows what it can do before anybody presses."""

from fallow.doors import answers
from fallow.doors.answers.explaining import MayTold


class MeTold(answers.Shape, frozen=True, kw_only=True):
    """Who asks, and the token that writes of this browser must carry. `may_see_alerts`: mark those of any budget."""

    user: str | None
    mode: str
    may_freeze: MayTold
    may_see_alerts: MayTold
    csrf: str
