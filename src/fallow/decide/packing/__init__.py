"""Which node and which GPU a pod takes, so that the fewest GPUs are stranded. This page is the one entrance.

Read in this order: `room` (what is free), `packer` (the one choice everybody shares), `policies` (what makes a node
good: a page each), `fragments` (FGD), `prices`, `lp` and `shadow` (SPP), `auto` (the mix rehearsed), `curve` (a trace
from beginning to end), `defrag` (one move back), `live` and `standing` (a cluster as it is), `reserve` (promises);
`mig` stands by itself: layouts of one GPU.
Pure: no clock, no files, no logging. Whole numbers wherever a choice hangs on them, so that two machines decide alike.
"""

from fallow.decide.packing.auto import CANDIDATES, Rehearsal
from fallow.decide.packing.curve import Curve, add_up, cut_at, find_near, replay
from fallow.decide.packing.defrag import BUDGET, Move, MovePlan, Running, plan_moves
from fallow.decide.packing.fragments import make_tables
from fallow.decide.packing.live import LiveCluster, settle
from fallow.decide.packing.lp import Unsolved
from fallow.decide.packing.packer import Packer, PackingPolicy, Refusal, order_nodes, place
from fallow.decide.packing.policies import POLICIES, prepare, rehearse, spell
from fallow.decide.packing.prices import Prices, find_bound
from fallow.decide.packing.prices import solve as solve_prices
from fallow.decide.packing.room import GPU, Ints, Nodes, PackingNode, PackingPod, Placement, Room
from fallow.decide.packing.standing import ClusterStanding, stand

__all__ = [
    "BUDGET", "CANDIDATES", "GPU", "POLICIES", "ClusterStanding", "Curve", "Ints", "LiveCluster", "Move",
    "MovePlan", "Nodes", "Packer", "PackingNode", "PackingPod", "PackingPolicy", "Placement", "Prices", "Refusal",
    "Rehearsal", "Room", "Running", "Unsolved", "add_up", "cut_at", "find_bound", "find_near", "make_tables",
    "order_nodes", "place", "plan_moves", "prepare", "rehearse", "replay", "settle", "solve_prices", "spell", "stand",
]
