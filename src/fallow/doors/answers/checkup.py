"""Is all there that fallow needs? A checklist: each line says what was found, and what to do where that is not enough.

In: what the API server says (ClusterFacts), and one look as `fallow status` takes it, or why there was none. Out: a
Checkup. Nothing is asked here.
Invariant: what could not be looked at is no tick: it says why it is not known.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum
from typing import Final

from fallow import __version__, names
from fallow.doors import answers
from fallow.doors.answers import status as statuses
from fallow.doors.answers import workloads as rows
from fallow.model import units
from fallow.model.seen import Absent, Known, Unseen
from fallow.model.units import Seconds
from fallow.wiring import checking, daemon

OLDEST: Final = (1, 28)  # the first that tells who one is
_SKEW: Final[Seconds] = 30.0
_KINDS: Final = (
    names.POLICY_PLURAL, names.BUDGET_PLURAL, names.ATTRIBUTION_PLURAL, names.SHARING_POLICY_PLURAL,
    names.NODE_CONFIG_PLURAL, names.SCALING_POLICY_PLURAL,
)
_INSTALL: Final = "kubectl apply -k deploy/base, or the Helm chart; docs/operators/install.md"


class CheckMark(StrEnum):
    good = "ok"
    doubtful = "warn"
    bad = "fail"
    unknown = "not known"


class Check(answers.Shape, frozen=True, kw_only=True):
    """One line. `helps`: what to do next; empty where nothing need be done."""

    name: str
    mark: CheckMark
    found: str
    helps: str = ""


class Checkup(answers.Shape, frozen=True, kw_only=True):
    version: str
    checks: tuple[Check, ...]

    @property
    def is_well(self) -> bool:
        return all(each.mark in (CheckMark.good, CheckMark.doubtful) for each in self.checks)


def check(facts: checking.ClusterFacts | str, sight: daemon.Sighting | str) -> Checkup:
    """Instead of either: why there is none."""
    if isinstance(facts, str):
        return Checkup(version=__version__, checks=(_bad("Cluster", facts),))
    checks = (*_check_cluster(facts), *(_check_sight(sight) if not isinstance(sight, str) else (_bad("Look", sight),)))
    return Checkup(version=__version__, checks=checks)


def _bad(name: str, found: str, helps: str = "") -> Check:
    return Check(name=name, mark=CheckMark.bad, found=found, helps=helps)


# ---- the cluster -----------------------------------------------------------------------------------------------------


def _check_cluster(facts: checking.ClusterFacts) -> Iterator[Check]:
    yield _check_version(facts)
    yield _check_clock(facts)
    yield _check_kinds(facts)
    match facts.has_bounds:
        case Known(value=True):
            yield Check(name="Bounds", mark=CheckMark.good, found="ValidatingAdmissionPolicies are served")
        case Known():
            yield Check(
                name="Bounds", mark=CheckMark.doubtful,
                found="ValidatingAdmissionPolicies (Kubernetes 1.30) are not served",
                helps="only its roles bound what the daemon may change: prefer a newer cluster",
            )
        case other:
            yield Check(name="Bounds", mark=CheckMark.unknown, found=_why(other))


def _check_version(facts: checking.ClusterFacts) -> Check:
    said = f"Kubernetes {facts.version or 'of an unknown version'}; you are {facts.who or 'not told who'}"
    digits = re.match(r"v?(\d+)\.(\d+)", facts.version)
    if digits is None:
        return Check(name="Cluster", mark=CheckMark.unknown, found=said)
    if (int(digits[1]), int(digits[2])) < OLDEST:
        return Check(name="Cluster", mark=CheckMark.doubtful, found=said,
                     helps=f"fallow is not tried before {OLDEST[0]}.{OLDEST[1]}: upgrade, or watch it closely")
    return Check(name="Cluster", mark=CheckMark.good, found=said)


def _check_clock(facts: checking.ClusterFacts) -> Check:
    """Ours beside the API server's; the daemon refuses to act where they are far apart."""
    match facts.server_at:
        case Known(value=there):
            apart = facts.at - there
            said = f"this machine's is {units.humane(abs(apart))} {'ahead of' if apart > 0 else 'behind'} the server's"
            if abs(apart) <= _SKEW:
                return Check(name="Clocks", mark=CheckMark.good, found=said)
            return Check(name="Clocks", mark=CheckMark.doubtful, found=said,
                         helps="ages and times shown here are wrong by that: set the clock (chrony, ntp)")
        case other:
            return Check(name="Clocks", mark=CheckMark.unknown, found=_why(other))


def _check_kinds(facts: checking.ClusterFacts) -> Check:
    match facts.kinds:
        case Known(value=served):
            missing = [each for each in _KINDS if each not in served]
            if not missing:
                return Check(name="Custom resources", mark=CheckMark.good, found=f"all {len(_KINDS)} are served")
            return Check(name="Custom resources", mark=CheckMark.doubtful, found=f"not served: {', '.join(missing)}",
                         helps="an older release is installed: fallow crds | kubectl apply --server-side -f -")
        case Absent():
            return Check(name="Custom resources", mark=CheckMark.doubtful, helps=_INSTALL,
                         found="none is served: idleness is judged by flags alone, and nothing is paused by policy")
        case other:
            return Check(name="Custom resources", mark=CheckMark.unknown, found=_why(other))


def _why(other: Absent | Unseen) -> str:
    return other.why if isinstance(other, Unseen) else "nobody tells"


# ---- what a look saw -------------------------------------------------------------------------------------------------


def _check_sight(sight: daemon.Sighting) -> Iterator[Check]:
    look = sight.look
    page = statuses.status(look, rows.view(look.plan), sight.daemon)
    problems = {each.what: each for each in page.problems}
    yield _check_nodes(page)
    yield _check_measurements(page, problems.pop(statuses.MEASUREMENTS, None))
    for each in problems.values():
        yield Check(name="Sight", mark=CheckMark.doubtful, found=f"{each.what}: {each.because}", helps=each.helps)
    yield _check_verdicts(page)
    yield _check_policies(page)
    yield _check_daemon(page)


def _check_nodes(page: statuses.StatusPage) -> Check:
    there = page.cluster
    if there.nodes is None:
        return Check(name="GPU nodes", mark=CheckMark.unknown, found="nodes may not be read",
                     helps="deploy/base/20-reader.yaml has the rights")
    if not there.nodes:
        return _bad("GPU nodes", "no node offers GPUs",
                    "does NVIDIA's device plugin run? kubectl get nodes -o custom-columns="
                    "'NODE:.metadata.name,GPUS:.status.allocatable.nvidia\\.com/gpu'")
    return Check(name="GPU nodes", mark=CheckMark.good,
                 found=f"{answers.many(there.nodes, 'node')} with {answers.many(there.physical or 0, 'GPU')}")


def _check_measurements(page: statuses.StatusPage, problem: statuses.DataProblem | None) -> Check:
    if problem is not None:
        return _bad("Measurements", problem.because, problem.helps)
    return Check(name="Measurements", mark=CheckMark.good, found=f"of {answers.many(page.pods, 'pod')} that hold GPUs")


def _check_verdicts(page: statuses.StatusPage) -> Check:
    said = (
        f"of {answers.many(page.gpus, 'GPU')} in use {page.active_gpus} busy, {page.idle_gpus} idle, "
        f"{page.unknown_gpus} that fallow cannot tell of"
    )
    if page.gpus and page.unknown_gpus * 2 > page.gpus:
        return Check(name="Verdicts", mark=CheckMark.doubtful, found=said, helps="fallow status counts the reasons; "
                     "docs/operators/reasons.md says what helps against each")
    return Check(name="Verdicts", mark=CheckMark.good, found=said)


def _check_policies(page: statuses.StatusPage) -> Check:
    if page.rules.policies is None:
        return Check(name="Policies", mark=CheckMark.unknown, found=page.rules.sentence)
    if not page.rules.policies:
        return Check(name="Policies", mark=CheckMark.doubtful,
                     found="there is no IdlePolicy: everything is only reported",
                     helps="docs/operators/policies.md; deploy/acting/example-policy.yaml is one")
    return Check(name="Policies", mark=CheckMark.good, found=page.rules.sentence)


def _check_daemon(page: statuses.StatusPage) -> Check:
    there = page.rules.daemon
    if there.running is None:
        return Check(name="Daemon", mark=CheckMark.unknown, found=there.because)
    if not there.running:
        return Check(name="Daemon", mark=CheckMark.doubtful, found=there.because, helps=_INSTALL)
    return Check(name="Daemon", mark=CheckMark.good, found=f"runs in {there.namespace}")
