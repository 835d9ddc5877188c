"""The certificate of the admission webhook, of sharing as much as of budgets: made, and renewed long before its end.

    look    whether a webhook is installed, and its Secret
    act     a new leaf or authority where one is due
    tell    what became of it, in the log

One that cannot be renewed is tried again in the next turn; it has a month left.
"""

from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from fallow.clients import errors
from fallow.model.units import MINUTE, Instant, Seconds
from fallow.stories.turn import Complaint, Turn

INTERVAL: Final[Seconds] = MINUTE  # a webhook that was just installed waits for it


class CertificateCycle(msgspec.Struct, frozen=True, kw_only=True):
    failure: str = ""


class CertificateStory:
    """`renew`: looks after it; raises what the server says."""

    def __init__(self, renew: Callable[[Instant], Awaitable[None]]) -> None:
        self._renew = renew
        self._complaint = Complaint("the certificate of the webhook could not be looked after: %s")

    async def tick(self, turn: Turn) -> CertificateCycle:
        if not turn.may_act():
            return CertificateCycle()
        try:
            await self._renew(turn.now)
        except errors.ClientError as problem:
            return self.fail(str(problem), turn)
        self._complaint.note("")
        return CertificateCycle()

    async def look(self, turn: Turn) -> CertificateCycle:
        return CertificateCycle()

    def fail(self, because: str, turn: Turn) -> CertificateCycle:
        self._complaint.note(because)
        return CertificateCycle(failure=because)
