"""Why a pod shares a GPU, or not: what we changed is told and put back before the ladder is asked what comes next."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.unit.decide.sharing import scenes

from fallow import names
from fallow.decide import sharing
from fallow.doors.answers import sharing as telling
from fallow.model import cluster, units
from fallow.model.seen import Known
from fallow.model.sharing import KeptWhole, PartGiven, SharePod, ShareReason, ShareWhy
from fallow.model.units import HOUR

REF = cluster.Ref("apps", "v1", "Deployment", "ml", "llm", "u-1")


def changed(pod: SharePod, around: sharing.ShareAround) -> SharePod:
    """As the API server has it after the webhook."""
    given = sharing.judge(pod, around, scenes.TERMS, scenes.NOW)
    assert isinstance(given, PartGiven), given
    limits = {given.part.resource: "1"}
    held = msgspec.structs.replace(pod.containers[given.container], requests=limits, limits=limits)
    at = "/metadata/annotations/"
    steps = (each for each in sharing.change(pod, given, scenes.NOW) if each["path"].startswith(at))
    marks = {each["path"].removeprefix(at).replace("~1", "/"): each["value"] for each in steps}
    return msgspec.structs.replace(
        pod, annotations={**pod.marks, **marks}, containers=(held,), node_name="gpu-1",
        node_selector={**(pod.node_selector or {}), **given.part.selector},
    )


def explain(pod: SharePod, around: sharing.ShareAround, now: float = scenes.NOW) -> ShareWhy:
    return sharing.explain_pod(pod, around, scenes.TERMS, now)


@pytest.mark.parametrize(("strategy", "resource"), [
    ("mig", "nvidia.com/mig-1g.10gb"), ("timeslicing", names.GPU_SHARED), ("mps", names.GPU_SHARED),
])
def test_a_pod_that_was_changed_tells_from_what_to_what_and_what_the_next_gets(strategy: str, resource: str) -> None:
    around = scenes.around(scenes.policy(strategy))
    why = explain(changed(scenes.needing(), around), around)
    assert why.had is not None
    assert (why.had.strategy, why.had.resource, why.had.policy) == (strategy, resource, "small")
    assert (why.had.was, why.had.at) == ("1", scenes.NOW)
    assert isinstance(why.verdict, PartGiven)  # the same again, and not AlreadyOptimized or NodeChosen
    assert why.verdict.part.resource == resource
    lines = dict(telling.list_lines(telling.tell(why, REF, ()), scenes.NOW + HOUR))
    assert lines["shares"] == (
        f"llm-0 asked for a whole GPU and asks for {resource} instead, by {strategy} and GPUSharingPolicy small, "
        f"1h ago ({units.rfc3339(scenes.NOW)})"
    )
    assert lines["class"] == "inference: what its containers run"
    assert lines["so"] == "kubectl annotate Deployment/llm -n ml gpuautoscaler.io/sharing=disabled"
    assert "takes the others" in lines["beware"] or strategy == "mig"


def test_a_pod_on_nodes_that_do_not_rename_is_told_too() -> None:
    around = scenes.around(scenes.policy("timeslicing"), nodes=(scenes.sharing_node(renames=False),))
    why = explain(changed(scenes.needing(), around), around)
    assert why.had is not None
    assert why.had.resource == ""
    lines = dict(telling.list_lines(telling.tell(why, REF, ()), 0.0))
    assert "keeps to nodes that share GPUs instead" in lines["shares"]


@pytest.mark.parametrize(("pod", "policies", "reason"), [
    (scenes.needing(), [], ShareReason.NoPolicy),
    (scenes.needing(annotations={names.SHARING: "disabled"}), [scenes.policy()], ShareReason.OptedOut),
    (scenes.pod(), [scenes.policy()], ShareReason.VramUnknown),
    (scenes.needing("8Gi", scenes.container("2")), [scenes.policy()], ShareReason.NotOneGpu),
], ids=str)
def test_one_that_is_left_alone_has_the_reason_of_the_ladder(pod: SharePod, policies: Any, reason: ShareReason) -> None:
    running = msgspec.structs.replace(pod, node_name="gpu-1")  # it runs: that is no reason
    why = explain(running, scenes.around(*policies))
    assert why.had is None
    assert isinstance(why.verdict, KeptWhole)
    assert why.verdict.reason is reason
    told = telling.tell(why, REF, ())
    assert (told.next, told.unprotected) == ("whole", None)
    assert telling.is_of_interest(told) is (reason is not ShareReason.NoPolicy)


def test_what_was_taken_back_says_until_when_and_why() -> None:
    until = units.rfc3339(scenes.NOW + HOUR)
    owner = msgspec.structs.replace(scenes.OWNER, annotations={
        names.BACKOFF_UNTIL: until, names.SHARING_REVERTS: "2", names.REVERTED_BECAUSE: "its pods restarted 3 times",
    })
    around = scenes.around(scenes.policy("mig"), owner=Known(owner))
    why = explain(changed(scenes.needing(), scenes.around(scenes.policy("mig"))), around)
    lines = dict(telling.list_lines(telling.tell(why, REF, ()), scenes.NOW))
    assert lines["taken back"] == (
        f"whole GPUs until {until}, because sharing hurt it: its pods restarted 3 times; that was the 2. time"
    )
    assert lines["next pods"].startswith("keep whole GPUs (BackOff): ")
    assert explain(scenes.needing(), around, scenes.NOW + 2 * HOUR).back_off is None
