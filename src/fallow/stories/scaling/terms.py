"""What the parts of the story of nodes are all given: hands, terms, the latest cycle, and how to find things in it."""

import math
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from fallow.act.events import Announcer
from fallow.act.growing import Grower
from fallow.act.headroom import HeadroomHands
from fallow.act.leaving import LeavingHands
from fallow.act.scaling_statuses import ScalingStatuses
from fallow.decide import scaling as deciding
from fallow.model import seen
from fallow.model.scaling import ScaledNode, ScalingSight
from fallow.model.scaling_plan import PolicyPlan, ScalingPlan
from fallow.model.units import Instant, Seconds

INTERVAL: Final[Seconds] = 30.0


class ScalingHands(msgspec.Struct, frozen=True):
    leaving: LeavingHands
    grower: Grower
    headroom: HeadroomHands
    statuses: ScalingStatuses
    announcer: Announcer


class ScalingStoryTerms(msgspec.Struct, frozen=True, kw_only=True):
    """`is_on`: nodes are planned for at all; `acts`: and plans carried out, where a policy says so. `frozen`: why
    nothing may be begun now; "": it may. `wake_in`: asks for the next turn after so many seconds."""

    is_on: bool = True
    acts: bool = False
    interval: Seconds = INTERVAL  # between two full looks
    frozen: Callable[[Instant], str] = lambda now: ""
    brain: deciding.ScalingTerms = deciding.ScalingTerms()
    wake_in: Callable[[Seconds], None] = lambda seconds: None


class ScalingCycle(msgspec.Struct, frozen=True, kw_only=True):
    """`plan`, `sight`: the latest."""

    plan: ScalingPlan | None = None
    sight: ScalingSight | None = None
    done: tuple[str, ...] = ()
    failure: str = ""

    @property
    def policies(self) -> tuple[PolicyPlan, ...]:
        return self.plan.policies if self.plan is not None else ()

    def find_nodes(self, wanted: Callable[[ScaledNode], bool] = lambda node: True) -> Iterable[ScaledNode]:
        return [each for each in (seen.sure(self.sight.nodes) if self.sight is not None else ()) if wanted(each)]

    def find_plan(self, node: ScaledNode) -> PolicyPlan | None:
        """Of the policy that its record names, else of the one that means it."""
        said = node.drain.policy if node.drain else node.spot.policy if node.spot else ""
        verdicts = self.plan.nodes if self.plan is not None else ()
        named = said or next((each.policy for each in verdicts if each.node == node.name), "")
        return next((each for each in self.policies if each.policy.name == named), None)

    def may_mean(self, plan: PolicyPlan, node: ScaledNode) -> bool:
        """Not where people have made it another policy's, or nobody's, since it was begun with."""
        verdicts = self.plan.nodes if self.plan is not None else ()
        return next((each.policy for each in verdicts if each.node == node.name), plan.policy.name) == plan.policy.name

    @property
    def due(self) -> Instant:
        """When somebody will have waited long enough for a node."""
        return min((each.due for each in self.policies if each.due is not None), default=math.inf)
