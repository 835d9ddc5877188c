"""The clouds that clusters run in, each in its own words; `exchange` is what they share.

A cloud hands out credentials that live for minutes: each `credentials` makes a Signer (clients/signing.py), which
whoever assembles hands to the client that needs it. What it is for (a service, a scope, a resource) is an argument.
`Cloud`: what whoever adds and removes machines asks of any of them; each cloud's `groups` is one, and the pretend one.
Nothing here reads the environment or the clock.
"""

from collections.abc import Sequence
from typing import Protocol

from fallow.model.machines import CloudMachine, Growth, MachineGroup, MachineNotice, WantOfMachines


class CloudHands(Protocol):
    """What changes machines. Every call is bounded in time and raises an error of clients/errors.py; only the caller
    chooses who goes."""

    async def grow(self, growth: Growth) -> None:
        """Raise the target to base + count; where it is there or above, nothing. Raises errors.OutOfStock,
        errors.QuotaSpent; errors.Conflict where the target is below the base by now: somebody lowered it, and so
        many would be more than were asked for."""
        ...

    async def remove(self, group: str, ids: Sequence[str]) -> None:
        """Exactly these machines, and the target lowered by as many. One that is gone already is no error. Raises
        errors.PartlyDone where only some could be."""
        ...


class Cloud(CloudHands, Protocol):
    """With what can be seen of them, in the same way."""

    async def groups(self, ids: Sequence[str]) -> tuple[MachineGroup, ...]:
        """Those, each with what can be read of it; one that cannot be has `error`."""
        ...

    async def machines(self, group: str) -> tuple[CloudMachine, ...]:
        """May lag behind what was asked for."""
        ...

    async def wants(self, group: str) -> tuple[WantOfMachines, ...]:
        """What it could not give lately, where it tells that apart from the request."""
        ...

    async def notices(self) -> tuple[MachineNotice, ...]:
        """From a queue, where one is configured."""
        ...

    async def forget(self, notices: Sequence[MachineNotice]) -> None:
        """They are recorded: the queue may drop them."""
        ...
