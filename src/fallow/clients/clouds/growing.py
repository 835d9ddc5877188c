"""To how many machines a group is raised: the one rule of all clouds, by the target that was just read.

In: a Growth and the target. Out: the new target, or None: it is there already. Asked twice, a group grows once.
Invariant: a target is never lowered, and never raised by more than was asked for.
"""

from fallow.clients import errors
from fallow.model.machines import Growth


def find_target(growth: Growth, target: int, most: int) -> int | None:
    """Raises Conflict where somebody lowered the target, Invalid where the group may not have so many."""
    wanted = growth.base + growth.count
    if target >= wanted:
        return None
    if target < growth.base:
        lowered = f"is to have {target} machines by now, and not {growth.base}: somebody lowered that"
        raise errors.Conflict(409, f"{growth.group} {lowered}")
    if wanted > most:
        raise errors.Invalid(400, f"{growth.group} may have {most} machines, and not {wanted}")
    return wanted
