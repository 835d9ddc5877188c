"""Sentences: what was done, why, how to undo it, and what a pause brings with it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.unit.act import examples
from tests.unit.act.examples import EXAMPLES, NOW, finding_of, identified, make, workload_of

from fallow import names
from fallow.act.notices import text
from fallow.model import cluster, decision, kinds
from fallow.model.policies import idle


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("deployment", "Scaled Deployment team-a/llm from 3 to 0: "),
        ("disaggregated", "Scaled DisaggregatedSet team-a/llm to 0: "),
        ("job", "Suspended Job team-a/llm: "),
        ("isvc", "Stopped InferenceService team-a/llm: "),
    ],
)
def test_a_pause_says_what_was_done(name: str, says: str) -> None:
    workload = workload_of(identified(EXAMPLES[name]))
    kind = kinds.of(workload)
    assert kind is not None
    note = text.pause_note(finding_of(workload), kind, 3 if name == "deployment" else None, NOW)
    assert note.startswith(says)
    assert note.endswith(f"Resume: fallow resume {workload.ref.kind}/llm -n team-a")


@pytest.mark.parametrize(
    ("thing", "command"),
    [
        (EXAMPLES["deployment"], "Deployment/llm"),
        (EXAMPLES["rollout"], "Rollout/llm"),
        (EXAMPLES["knative"], "Service.serving.knative.dev/llm"),
        (EXAMPLES["generic"], "Scalable.example.com/llm"),
    ],
    ids=["deployment", "rollout", "knative", "generic"],
)
def test_a_kind_that_could_be_mistaken_is_typed_with_its_group(thing: dict[str, Any], command: str) -> None:
    assert kinds.typed(examples.ref_of(identified(thing))) == command


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({}, "12 GPUs idle for 47m (policy default)"),
        ({"gpus": 1}, "1 GPU idle for 47m (policy default)"),
        ({"at_least": True}, "12 GPUs idle for at least 47m (policy default)"),
        ({"idle_since": None}, "12 GPUs idle (policy default)"),
        ({"rule": idle.Rule()}, "12 GPUs idle for 47m (flags)"),
    ],
    ids=["plain", "one", "at-least", "unknown", "flags"],
)
def test_idleness_is_said_as_it_was_measured(change: dict[str, Any], says: str) -> None:
    finding = msgspec.structs.replace(finding_of(workload_of(identified(EXAMPLES["deployment"]))), **change)
    assert text.idle_sentence(finding, NOW) == says


def test_a_pause_by_hand_does_not_claim_idleness() -> None:
    workload = workload_of(identified(EXAMPLES["deployment"]))
    kind = kinds.of(workload)
    assert kind is not None
    by_hand = msgspec.structs.replace(finding_of(workload), verdict=decision.Verdict.unknown, because="paused by hand")
    assert text.pause_note(by_hand, kind, 3, NOW).startswith(
        "Scaled Deployment team-a/llm from 3 to 0: paused by hand. Resume: "
    )


def warned(thing: dict[str, Any], **more: Any) -> str:
    workload = workload_of(identified(thing), **more)
    kind = kinds.of(workload)
    assert kind is not None
    return " ".join(text.warnings(workload, kind, examples.RULE))


def test_owners_are_told_what_a_pause_brings_with_it() -> None:
    job = cluster.Owner("batch", "v1", "Job", "llm", "u-1")
    cron = (job, cluster.Owner("batch", "v1", "CronJob", "nightly", "u-2"))
    conflict = "While it is paused, a server-side apply of another value conflicts with fallow."
    assert warned(EXAMPLES["deployment"]) == conflict
    assert "last checkpoint" in warned(EXAMPLES["pytorchjob"])
    assert "from its beginning" in warned(EXAMPLES["rayjob"])
    assert "minReplicas" in warned(EXAMPLES["isvc"])
    assert "restarts its pods" in warned(EXAMPLES["isvc"])
    assert "Forbid" in warned(EXAMPLES["job"], chain=cron)
    assert "Forbid" not in warned(EXAMPLES["job"])


def test_gitops_owners_get_what_their_tool_needs() -> None:
    argo = make("apps/v1", "Deployment", {"replicas": 1}, annotations={names.ARGOCD_TRACKING: "x"})
    flux = make("apps/v1", "Deployment", {"replicas": 1}, labels={names.FLUX_NAME: "x"})
    assert "managedFieldsManagers: [fallow]" in warned(argo)
    assert "RespectIgnoreDifferences=true" in warned(argo)
    assert "Flux may undo it" in warned(flux)
