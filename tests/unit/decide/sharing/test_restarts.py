"""Who is restarted because sharing hurt it, and who is not."""

from __future__ import annotations

from typing import Any

import pytest
from tests import builders
from tests.unit.decide.sharing import scenes

from fallow import names
from fallow.decide import sharing
from fallow.model import units
from fallow.model.policies.sharing import HurtGuard, SharingMode
from fallow.model.share_hurts import RestartRefusal, RevertsKept, ShareRestart, ShareRevert
from fallow.model.units import DAY, HOUR

NOW = builders.NOW
SHARED = {names.OPTIMIZED: "true", names.OPTIMIZATION_STRATEGY: "mps", names.OPTIMIZATION_POLICY: "small"}
UNTIL = units.rfc3339(NOW + 20 * HOUR)
BACK_OFF = {names.BACKOFF_UNTIL: UNTIL, names.REVERTED_POLICY: "small"}
ASKS = HurtGuard(restarts_on_revert=True)
OURS = {"small": RevertsKept((ShareRevert("uid-ml/llm", NOW - HOUR),))}


def find(
    marks: dict[str, str] | None = None, *, reverts: dict[str, RevertsKept] | None = None,
    pod: dict[str, Any] | None = None, **policy: Any,
) -> tuple[ShareRestart, ...]:
    made = builders.World()
    marked = BACK_OFF if marks is None else marks
    made.workload("ml/llm", annotations=marked, pod={"annotations": SHARED, **(pod or {})})
    asked = scenes.policy(**{"guard": ASKS, **policy})
    return sharing.find_restarts(made.workloads, made.pods, (asked,), OURS if reverts is None else reverts, NOW)


def test_whoever_was_hurt_and_still_shares_is_restarted_once_for_each_back_off() -> None:
    (found,) = find()
    assert (found.workload.ref.name, found.policy, found.until) == ("llm", "small", UNTIL)
    assert find({**BACK_OFF, names.SHARING_RESTARTED: UNTIL}) == ()
    assert find({**BACK_OFF, names.SHARING_RESTARTED: units.rfc3339(NOW - DAY)}) != ()


@pytest.mark.parametrize("case", [
    {"guard": HurtGuard()}, {"mode": SharingMode.audit}, {"reverts_too_often": True}, {"name": "other"},
    {"marks": {}}, {"marks": {**BACK_OFF, names.BACKOFF_UNTIL: units.rfc3339(NOW - HOUR)}},
    {"reverts": {"small": RevertsKept()}}, {"reverts": {"small": RevertsKept((ShareRevert("uid-ml/other", NOW),))}},
    {"pod": {"annotations": {}}}, {"pod": {"phase": "Failed"}}, {"pod": {"node": ""}},
], ids=[
    "not-asked", "audit", "braked", "other", "no-marks", "over", "not-ours", "another", "whole", "ended", "waits",
])
def test_nobody_else_is(case: dict[str, Any]) -> None:
    assert find(**case) == ()


def body(kind: str = "Deployment", marks: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    return {"kind": kind, "metadata": {"name": "llm", "annotations": BACK_OFF if marks is None else marks},
            "spec": {"replicas": 2, **spec}}


@pytest.mark.parametrize(("kind", "there", "reason"), [
    ("Deployment", body(), None),
    ("Deployment", body(strategy={"type": "RollingUpdate"}), None),
    ("StatefulSet", body("StatefulSet", updateStrategy={"type": "RollingUpdate"}), None),
    ("DaemonSet", body("DaemonSet"), None),
    ("Deployment", body(strategy={"type": "Recreate"}), RestartRefusal.NotRolling),
    ("StatefulSet", body(updateStrategy={"type": "OnDelete"}), RestartRefusal.NotRolling),
    ("Deployment", body(paused=True), RestartRefusal.Paused),
    ("Deployment", body(replicas=0), RestartRefusal.Paused),
    ("Deployment", body(marks={}), RestartRefusal.NotAsItWas),
    ("Deployment", body(marks={**BACK_OFF, names.SHARING_RESTARTED: UNTIL}), RestartRefusal.NotAsItWas),
    ("Notebook", body(), RestartRefusal.OtherKind),
])
def test_what_is_read_just_before_may_speak_against_it(
    kind: str, there: dict[str, Any], reason: RestartRefusal | None
) -> None:
    made = builders.World()
    made.workload("ml/llm", kind=kind, annotations=BACK_OFF)
    asked = ShareRestart(workload=made.workloads[0], policy="small", until=UNTIL)
    refused = sharing.refuse_restart(asked, there)
    assert (refused[0] if refused else None) is reason
