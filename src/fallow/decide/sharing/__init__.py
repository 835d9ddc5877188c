"""Who shares a GPU with whom, and how a node is cut for it. This page is the one entrance.

Read in this order: `needs` (how much of a GPU), `parts` and `claims` (what nodes offer, by the device plugin and by
ResourceClaims), `strategy` (the ladder of verdicts), `mutate` (what of a pod is changed), `standing` (what came of a
policy), `hurts` and `restarts` (whom sharing hurt), `advice` (who could do with less), `why` (one pod, explained),
`crowd` (how many could share one GPU); then `layouts` (what a node config asks for), `steps` (a change that runs),
`repartition` (which change begins).
Pure: no clock, no files, no logging.
"""

from fallow.decide.sharing.advice import advise, join_uses, waste_hours
from fallow.decide.sharing.claims import ClaimSights, find_interval, is_as_made
from fallow.decide.sharing.claims import plan as plan_claims
from fallow.decide.sharing.crowd import Sharer, advise_crowd, see_sharer
from fallow.decide.sharing.hurts import (
    count_reverts,
    find_watched,
    hurts_too_many,
    keep_reverts,
    revert,
    revert_schedule,
)
from fallow.decide.sharing.hurts import judge as judge_hurt
from fallow.decide.sharing.layouts import JudgeLayout, find_offers
from fallow.decide.sharing.layouts import see_sharing as see_node_sharing
from fallow.decide.sharing.mutate import change
from fallow.decide.sharing.needs import ShareNeeds, advise_clients, advise_replicas, read_most
from fallow.decide.sharing.parts import PartIndex
from fallow.decide.sharing.repartition import plan as plan_nodes
from fallow.decide.sharing.restarts import find as find_restarts
from fallow.decide.sharing.restarts import refuse as refuse_restart
from fallow.decide.sharing.standing import ByClaims, count_shared
from fallow.decide.sharing.standing import count as count_pods
from fallow.decide.sharing.standing import stand as stand_policy
from fallow.decide.sharing.steps import PartitionSights
from fallow.decide.sharing.strategy import (
    ShareAround,
    ShareTerms,
    classify,
    find_pod_events,
    find_policy_name,
    judge,
    leave_alone,
    needs_owner,
)
from fallow.decide.sharing.why import explain as explain_pod
from fallow.decide.sharing.why import find_part, is_meant

__all__ = [
    "ByClaims", "ClaimSights", "JudgeLayout", "PartIndex", "PartitionSights", "ShareAround", "ShareNeeds", "ShareTerms",
    "Sharer", "advise", "advise_clients", "advise_crowd", "advise_replicas", "change", "classify", "count_pods",
    "count_reverts", "count_shared", "explain_pod", "find_interval", "find_offers", "find_part", "find_pod_events",
    "find_policy_name", "find_restarts", "find_watched", "hurts_too_many", "is_as_made", "is_meant", "join_uses",
    "judge", "judge_hurt", "keep_reverts", "leave_alone", "needs_owner", "plan_claims", "plan_nodes", "read_most",
    "refuse_restart", "revert", "revert_schedule", "see_node_sharing", "see_sharer", "stand_policy", "waste_hours",
]
