"""Which node and which GPU a pod takes, so that the fewest GPUs are stranded. This page is the one entrance.

Read in this order: `room` (what is free), `packer` (the one choice everybody shares), `policies` (what makes a node
good: a page each), `fragments` (FGD), `prices`, `lp` and `shadow` (SPP), `auto` (the mix rehearsed), `curve` (a trace
from beginning to end), `defrag` (one move back), `consolidate` and `kept` (a node emptied, and who stays), `moving`
(one pod moved for another), `live` and `standing` (a cluster as it is), `tracking` (one kept up to date, beside a
scheduler), `reserve` (promises); `mig` stands by itself: layouts of one GPU.
Pure: no clock, no files, no logging. Whole numbers wherever a choice hangs on them, so that two machines decide alike.
"""

from fallow.decide.packing.auto import CANDIDATES, Rehearsal
from fallow.decide.packing.consolidate import (
    EVICT_TIMEOUT,
    THRESHOLD,
    ConsolidationPlan,
    may_begin,
    why_fixed,
)
from fallow.decide.packing.consolidate import advance as advance_emptying
from fallow.decide.packing.consolidate import begin as begin_emptying
from fallow.decide.packing.consolidate import plan as plan_consolidation
from fallow.decide.packing.consolidate import rests as rests_after_emptying
from fallow.decide.packing.curve import Curve, add_up, cut_at, find_near, replay
from fallow.decide.packing.defrag import BUDGET, Move, MovePlan, Running, plan_moves
from fallow.decide.packing.fragments import Cause, make_tables
from fallow.decide.packing.kept import WhyKept
from fallow.decide.packing.kept import find as find_kept
from fallow.decide.packing.live import LiveCluster, settle
from fallow.decide.packing.lp import Unsolved
from fallow.decide.packing.mig import IllegalLayout
from fallow.decide.packing.mig import judge as judge_layout
from fallow.decide.packing.moving import MoveChoice, MoveRests, is_stuck
from fallow.decide.packing.moving import advance as advance_move
from fallow.decide.packing.moving import begin as begin_move
from fallow.decide.packing.moving import choose as choose_move
from fallow.decide.packing.packer import Packer, PackingPolicy, Refusal, order_nodes, place
from fallow.decide.packing.policies import POLICIES, prepare, rehearse, spell
from fallow.decide.packing.prices import Prices, find_bound
from fallow.decide.packing.prices import solve as solve_prices
from fallow.decide.packing.room import GPU, Ints, Nodes, PackingNode, PackingPod, Placement, Room
from fallow.decide.packing.standing import ClusterRoom, ClusterStanding, NodeRoom, measure_bound, measure_node, stand
from fallow.decide.packing.standing import measure as measure_room
from fallow.decide.packing.tracking import LiveRoom, NoOpinion, Offered, PackingGround, Ranking, draw_sample, lay_out

__all__ = [
    "BUDGET", "CANDIDATES", "EVICT_TIMEOUT", "GPU", "POLICIES", "THRESHOLD", "Cause", "ClusterRoom", "ClusterStanding",
    "ConsolidationPlan", "Curve", "IllegalLayout", "Ints", "LiveCluster", "LiveRoom", "Move", "MoveChoice", "MovePlan",
    "MoveRests", "NoOpinion", "NodeRoom", "Nodes", "Offered", "Packer", "PackingGround", "PackingNode", "PackingPod",
    "PackingPolicy", "Placement", "Prices", "Ranking", "Refusal", "Rehearsal", "Room", "Running", "Unsolved", "WhyKept",
    "add_up", "advance_emptying", "advance_move", "begin_emptying", "begin_move", "choose_move", "cut_at",
    "draw_sample", "find_bound", "find_kept", "find_near", "is_stuck", "judge_layout", "lay_out", "make_tables",
    "may_begin", "measure_bound", "measure_node", "measure_room", "order_nodes", "place", "plan_consolidation",
    "plan_moves", "prepare", "rehearse", "replay", "rests_after_emptying", "settle", "solve_prices", "spell", "stand",
    "why_fixed",
]
