"""Nodes that come and go. This page is the one entrance.

Read in this order: `story` (the order of it: look, plan, act, account, tell), `departures` (nodes that leave, step by
step), `ahead` (nodes that are started before anybody waits, and requests for other autoscalers), `telling` (statuses,
Events, the log); `terms`: what they are all given.
"""

from fallow.stories.scaling.story import BUDGET, GATHERING, ScalingStory
from fallow.stories.scaling.terms import INTERVAL, ScalingCycle, ScalingHands, ScalingStoryTerms

__all__ = ["BUDGET", "GATHERING", "INTERVAL", "ScalingCycle", "ScalingHands", "ScalingStory", "ScalingStoryTerms"]
