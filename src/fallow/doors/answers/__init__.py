"""What we say about a workload, as plain data: the same words for the terminal, for JSON and later for the API.

In: findings of the brain. Out: dictionaries of strings, numbers and None, ready to be encoded. Instants are RFC 3339; None is "not known".
"""

from collections.abc import Mapping, Sequence
from typing import Any

from fallow.decide.idle import pauses
from fallow.model import cluster, decision, units
from fallow.model.units import Instant


def instant(value: Instant | None) -> str | None:
    return None if value is None else units.rfc3339(value)


def workload(ref: cluster.Ref) -> dict[str, Any]:
    return {"apiVersion": ref.api_version, "kind": ref.kind, "namespace": ref.namespace, "name": ref.name, "uid": ref.uid}


def row(finding: decision.Finding, now: Instant) -> dict[str, Any]:
    """One line of `fallow idle`."""
    return {
        **workload(finding.workload.ref),
        "gpus": finding.gpus,
        "idleGpus": finding.idle_gpus,
        "models": list(finding.models),
        "verdict": str(finding.verdict),
        "reason": str(finding.reason),
        "because": finding.because,
        "idleSince": instant(finding.idle_since),
        "atLeast": finding.at_least,
        "idleSeconds": None if finding.idle_since is None else round(now - finding.idle_since),
        "pausedAt": instant(pauses.paused_at(finding.workload)),
        "policy": finding.rule.name,
        "skip": finding.skip_label,
        "skipBecause": finding.skip_because or None,
        "nextAction": next_action(finding),
    }


def next_action(finding: decision.Finding) -> dict[str, Any] | None:
    if finding.next_action is None:
        return None
    return {"type": finding.next_action, "at": instant(finding.next_at)}


def explanation(
    finding: decision.Finding, gpus: Sequence[decision.GpuFinding], patch: Mapping[str, Any] | None, now: Instant
) -> dict[str, Any]:
    """The full answer to "why", with the evidence GPU by GPU. `patch` is what a pause would send."""
    return {
        "workload": workload(finding.workload.ref),
        "verdict": str(finding.verdict),
        "reasons": [{"reason": str(finding.reason), "because": finding.because}],
        "skips": [] if finding.skip is None else [{"skip": finding.skip_label, "because": finding.skip_because}],
        "policy": finding.rule.name,
        "idleSince": instant(finding.idle_since),
        "atLeast": finding.at_least,
        "neverUsed": finding.never_used,
        "pausedAt": instant(pauses.paused_at(finding.workload)),
        "windowSeconds": round(finding.window),
        "coverage": finding.coverage,
        "gpus": [_gpu(gpu) for gpu in gpus],
        "owner": [{"kind": link.kind, "name": link.name, "uid": link.uid} for link in finding.workload.chain],
        "nextAction": next_action(finding),
        "patch": patch,
        "cost": None,
        "asOf": instant(now),
    }


def _gpu(gpu: decision.GpuFinding) -> dict[str, Any]:
    return {
        "uuid": gpu.gpu, "node": gpu.node, "pod": gpu.pod, "model": gpu.model,
        "verdict": str(gpu.verdict), "reason": str(gpu.reason), "because": gpu.because,
        "signals": {name: _signal(values) for name, values in gpu.signals.items()},
    }


def _signal(values: Mapping[str, float | None]) -> dict[str, Any]:
    samples = values.get("samples")
    return {"max": values.get("max"), "samples": None if samples is None else round(samples), "newest": instant(values.get("newest"))}


def totals(numbers: decision.Totals) -> dict[str, Any]:
    return {
        "workloads": numbers.workloads, "pods": numbers.pods, "gpus": numbers.gpus,
        "activeGpus": numbers.active_gpus, "idleGpus": numbers.idle_gpus, "unknownGpus": numbers.unknown_gpus,
        "verdicts": [
            {"verdict": verdict, "reason": reason, "workloads": count}
            for (verdict, reason), count in sorted(numbers.verdicts.items(), key=lambda item: -item[1])
        ],
    }
