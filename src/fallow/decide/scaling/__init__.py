"""When nodes are added and released, how many, of which kind. This page is the one entrance.

Read in this order: `foresight` (how many GPUs will be wanted), `fit` (what fits where), `templates` (what a new node
will be), `demand` (what every pod that waits means), `tiers`, `pack` and `apart` (which pools, how many), `grow`,
`shrink` and `brakes`, `prewarm` and `ahead` (before anybody waits), `remembered` and `arrivals` (what was asked for
before), `drivers` (who moves machines), `elsewhere` (what others are left to do), `kept` (what need not be computed
again), `plan` (all of it, in order); `drain`, `spot` and `leaving` (a node that goes, step by step).
Pure: no clock, no files, no logging.
"""

from fallow.decide.scaling.drain import begin as begin_drain
from fallow.decide.scaling.drain import find_objection
from fallow.decide.scaling.drivers import FATAL
from fallow.decide.scaling.fit import SHARES, measure
from fallow.decide.scaling.foresight import HISTORY, WEEK, Floats, Foresight, Guesser, Ints, foresee, rehearse
from fallow.decide.scaling.grow import BUSY_FOR
from fallow.decide.scaling.kept import KeptSight
from fallow.decide.scaling.leaving import advance
from fallow.decide.scaling.plan import plan
from fallow.decide.scaling.prewarm import count_results as count_prewarms
from fallow.decide.scaling.prewarm import find_distrust
from fallow.decide.scaling.remembered import bridge, clear_failures, note_failure, note_looks, note_shortage, recall
from fallow.decide.scaling.spot import is_taken_back
from fallow.decide.scaling.tiers import InstanceScore, ScalingTerms

__all__ = [
    "BUSY_FOR", "FATAL", "HISTORY", "SHARES", "WEEK", "Floats", "Foresight", "Guesser", "InstanceScore", "Ints",
    "KeptSight", "ScalingTerms", "advance", "begin_drain", "bridge", "clear_failures", "count_prewarms",
    "find_distrust", "find_objection", "foresee", "is_taken_back", "measure", "note_failure", "note_looks",
    "note_shortage", "plan", "recall", "rehearse",
]
