"""What halts a policy: too many nodes unready, measurements that jump, a window of calm, a provider that fails.

In: the nodes of a policy, its memory, now. Out: brakes with a sentence each, and what must be remembered of the jump.
Invariant: a brake only ever takes acts away; spot notices are handled under every one of them.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from fallow.decide.scaling import remembered
from fallow.model import units
from fallow.model.policies.scaling import ScalingPolicy
from fallow.model.scaling import ScaledNode, ScalingMemory
from fallow.model.scaling_plan import Brake
from fallow.model.units import Instant

FEW_UNREADY: Final = 3  # so many may be, whatever the percentage
JUMP: Final = 0.5  # of the nodes that turn under-used in one cycle: the exporter broke, not the users
CALM_CYCLES: Final = 2
COVERED: Final = 0.8  # of the GPUs, for a mean that counts
HALTS_ALL: Final = frozenset({Brake.TooManyUnready, Brake.ProviderFailing})  # the others only what is let go


class PolicyUse(msgspec.Struct, frozen=True):
    """`use`: mean of all GPUs, 0 to 1; None: not known, and `why`. `under_used`: share of the nodes, where it is."""

    use: float | None
    why: str = ""
    under_used: float | None = None


def measure(policy: ScalingPolicy, nodes: Sequence[ScaledNode], measured: str) -> PolicyUse:
    """Weighted by GPUs, over nodes with a value; unknown where they have less than 80 % of the GPUs."""
    if measured:
        return PolicyUse(None, measured)
    total, known, summed, under = 0, 0, 0.0, 0
    for node in nodes:
        gpus = node.gpus or 1
        total += gpus
        if node.use is not None and node.gpus and 0 <= node.use <= 1:
            known += gpus
            summed += gpus * node.use
            under += node.use < policy.shrink_below
    if not total:
        return PolicyUse(None, "it has no nodes")
    if known < COVERED * total:
        return PolicyUse(None, f"of {units.many(total, 'GPU')} only {known} are measured")
    return PolicyUse(summed / known, "", under / len(nodes))


def find(
    policy: ScalingPolicy, nodes: Sequence[ScaledNode], booting: frozenset[str], measured: PolicyUse,
    memory: ScalingMemory, now: Instant,
) -> dict[Brake, str]:
    """`booting`: nodes that were just started and are not Ready for that reason."""
    found: dict[Brake, str] = {}
    counted = [node for node in nodes if not node.is_going and node.name not in booting and not _is_leaving(node)]
    unready = sum(not node.is_ready for node in counted)
    if unready > FEW_UNREADY and unready * 100 > policy.most_unready * len(counted):
        found[Brake.TooManyUnready] = f"{unready} of {len(counted)} nodes are not Ready"
    if is_jumping(policy.name, measured, memory):
        found[Brake.MetricsJump] = "more than half of the nodes turned idle at once: that is measured wrongly"
    open_now = [window for window in policy.windows if window.holds(now)]
    if open_now and policy.find_disruption(now).of(100) == 0:
        found[Brake.Window] = "a window is open in which no node may go"
    if rest := remembered.find_rest(memory, policy.name, now):
        count = remembered.count_failures(memory, policy.name)
        found[Brake.ProviderFailing] = f"its cloud failed {count} times in a row and is left alone for {rest:.0f} s"
    return found


def _is_leaving(node: ScaledNode) -> bool:
    return node.spot is not None or (node.drain is not None and node.drain.removing is not None)


def is_jumping(name: str, measured: PolicyUse, memory: ScalingMemory) -> bool:
    """A jump now, or one that too few normal cycles have passed since."""
    return _jumps(name, measured, memory) or memory.calm.get(name, CALM_CYCLES) < CALM_CYCLES


def _jumps(name: str, measured: PolicyUse, memory: ScalingMemory) -> bool:
    before = memory.under_used.get(name)
    return before is not None and measured.under_used is not None and measured.under_used - before > JUMP


def remember(
    measured: Mapping[str, PolicyUse], memory: ScalingMemory
) -> tuple[dict[str, float], dict[str, int]]:
    """`under_used` and `calm` of the next cycle: what is not measured is neither a jump nor calm."""
    under_used: dict[str, float] = {}
    calm: dict[str, int] = {}
    for name, found in measured.items():
        before, cycles = memory.under_used.get(name), memory.calm.get(name)
        if found.under_used is None:
            under_used |= {name: before} if before is not None else {}
            calm |= {name: cycles} if cycles is not None else {}
            continue
        under_used[name] = found.under_used
        if _jumps(name, found, memory):
            calm[name] = 0
        elif cycles is not None and cycles + 1 < CALM_CYCLES:
            calm[name] = cycles + 1
    return under_used, calm
