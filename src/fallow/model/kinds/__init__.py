"""The kinds of workload we can pause, for all rooms; callers say `kinds.find(...)`, wherever that is written.

row.py: what a row says; table.py: the rows; kserve.py: what is particular to KServe's; pausing.py: what they say of one
workload.
"""
# ruff: noqa: I001 (names in a paragraph, not one to a line)

from fallow.model.kinds.kserve import has_condition
from fallow.model.kinds.pausing import (
    Target, Way, gitops_tool, holds_pause, is_finished, is_paused, objection, own_way, pause_fields, pause_target,
    record_target, scale_target, scalers, target_row, view, warnings, way,
)
from fallow.model.kinds.row import Fields, Key, Kind, Objection
from fallow.model.kinds.table import (
    BUDGET_READS, CRON_JOB, HPA_READS, KINDS, KUEUE_WORKLOAD, LASTING, SCALED_OBJECT, SELECTOR, WITH_CLAIMS,
    find, find_class, full_scale, generic, named_by, of,
)

__all__ = (
    "BUDGET_READS", "CRON_JOB", "HPA_READS", "KINDS", "KUEUE_WORKLOAD", "LASTING", "SCALED_OBJECT",
    "SELECTOR", "WITH_CLAIMS", "Fields", "Key", "Kind", "Objection", "Target", "Way", "find", "find_class", "full_scale",
    "generic", "gitops_tool", "has_condition", "holds_pause", "is_finished", "is_paused", "named_by", "objection", "of", "own_way",
    "pause_fields", "pause_target", "record_target", "scale_target", "scalers", "target_row", "view", "warnings", "way",
)
