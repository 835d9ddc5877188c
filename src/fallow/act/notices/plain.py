"""A message for programs: the explanation of a workload, by the names that `explain` of the API has for the same.

In: the facts of a notice, with their proof. Out: what becomes JSON. One workload is the message itself; many that are
told at once stand in a list.
"""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from fallow.act.notices.facts import NoticeFacts
from fallow.act.workloads import bodies
from fallow.model import decision, kinds, reasons, units
from fallow.model.units import Instant


def notice(facts: NoticeFacts) -> dict[str, Any]:
    return {"type": "notice", **_explain(facts)}


def paused(facts: NoticeFacts, what: str) -> dict[str, Any]:
    """It holds no GPU any more."""
    return {"type": "paused", "what": what, **_explain(facts)}


def bundle(several: Sequence[NoticeFacts]) -> dict[str, Any]:
    return {"type": "notices", "workloads": [_explain(facts) for facts in several]}


def _explain(facts: NoticeFacts) -> dict[str, Any]:
    found, ref = facts.finding, facts.ref
    return {
        "workload": {
            "apiVersion": ref.api_version, "kind": ref.kind, "namespace": ref.namespace, "name": ref.name,
            "uid": ref.uid,
        },
        "cluster": facts.head.cluster_name or None, "verdict": str(found.verdict),
        "reasons": [{"reason": str(found.reason), "because": found.because, "helps": reasons.what_helps(
            decision.Heading(found.verdict, found.reason)
        )}],
        "skips": [{"skip": found.skip_label, "because": found.skip_because}] if found.skip else [],
        "policy": found.rule.name, "held": found.gpus, "models": list(found.models),
        "idleSince": _instant(found.idle_since), "atLeast": found.at_least, "neverUsed": found.never_used,
        "windowSeconds": round(found.window), "coverage": found.coverage,
        "gpus": [_gpu(each) for each in facts.proof.gpus],
        "owner": [{"kind": link.kind, "name": link.name, "uid": link.uid} for link in found.workload.chain],
        "nextAction": None if facts.pauses_at is None else {"type": "pause", "at": _instant(facts.pauses_at)},
        "patch": None if facts.pauses_at is None else _patch(facts),
        "cost": None if facts.per_hour is None else {"perHour": facts.per_hour, "currency": facts.head.currency},
        "page": facts.page, "keep": facts.keep_command, "resume": facts.resume_command,
    }


def _gpu(gpu: decision.GpuFinding) -> dict[str, Any]:
    return {
        "uuid": gpu.gpu, "node": gpu.node, "pod": gpu.pod, "model": gpu.model, "verdict": str(gpu.verdict),
        "reason": str(gpu.reason), "because": gpu.because,
        "signals": {name: _signal(values) for name, values in gpu.signals.items()},
    }


def _signal(values: Mapping[str, float | None]) -> dict[str, Any]:
    samples = values.get("samples")
    return {
        **values, "samples": None if samples is None else round(samples), "newest": _instant(values.get("newest")),
    }


def _patch(facts: NoticeFacts) -> dict[str, Any] | None:
    """What the pause would send, by object; None where it cannot be said."""
    workload, kind = facts.finding.workload, kinds.of(facts.finding.workload)
    if kind is None:
        return None
    pause = decision.Pause(facts.finding, facts.finding.because)
    with contextlib.suppress(bodies.CannotWrite):
        writes = bodies.pause_writes(workload, kind, pause, facts.now, pods=facts.proof.pods)
        return {str(write.ref): write.body for write in writes}
    return None


def _instant(at: Instant | None) -> str | None:
    return None if at is None else units.rfc3339(at)
