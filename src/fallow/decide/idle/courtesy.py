"""Where we stand with an idle workload: leave it alone and why, tell its owner, wait, or pause it.

In: the workload with its pods, namespace and ruling, since when it is idle, what a dry run remembers, now. Out: a
Standing.
The state of the notice is on the object (marks idle-since, idle-episode, pending-since), so a restart forgets nothing.
A dry run writes no marks: what it would have written is handed in from Memory.
Invariant: where a rule has channels, `pause` follows only on a notice that was delivered, at least the rule's grace
ago, during the very idleness that this cycle's evidence shows.
"""

import hashlib
from collections.abc import Iterator
from typing import Final

import msgspec

from fallow import names
from fallow.decide.idle import consent, pauses, rules
from fallow.model import cluster, kinds, marks, objections, units
from fallow.model.decision import Detail, Reason, Step
from fallow.model.policies import idle
from fallow.model.policies.idle import ActionType
from fallow.model.seen import Known, Unseen
from fallow.model.units import Instant

# Skips after which an earlier notice no longer counts: whoever lifts them is to be told again before anything happens.
# Not those by which it is not ours: the notice may be another instance's.
_VOIDS_NOTICE: Final = frozenset({
    Reason.ReportOnly, Reason.OptedOut, Reason.Acknowledged, Reason.FightHold, Reason.Immune,
})


class Grounds(msgspec.Struct, frozen=True, gc=False):
    """What the answer may rest on beyond the objects themselves."""

    idle_since: Instant
    at_least: bool
    looked_back: bool = True  # its idle time was looked up in this cycle, or is remembered
    pretended_notice: Instant | None = None  # dry run: when the notice would have been delivered
    pretended_pause: Instant | None = None  # dry run: when it would have been paused
    refused: str | None = None  # what the API server said to its pause: it knows no such field


class Case(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One idle workload, and what this cycle knows of it."""

    subject: rules.Subject
    workload: cluster.Workload  # the subject's, and below the ruling's rule: nearly every rung asks for them
    kind: kinds.Kind | None
    ruling: rules.Ruling
    rule: idle.Rule
    scope: idle.Scope
    grounds: Grounds


class Standing(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The answer. `until`: before that instant the clock alone does not change it."""

    skip: Reason | None = None
    because: str = ""
    detail: Detail | None = None
    until: Instant = consent.FOREVER
    warns: bool = False
    pauses: bool = False
    is_void: bool = False  # its notice marks no longer count
    next_action: Step | None = None
    next_at: Instant | None = None

    @property
    def is_announced(self) -> bool:
        """Does IdleDetected fit? Not for what people asked us to leave alone."""
        return self.warns or self.pauses or self.skip is Reason.InNotice or self.detail is Detail.Report


class Answered(msgspec.Struct, frozen=True, gc=False):
    """A standing, when it was found, and on which grounds; None = nothing but its objects decided."""

    standing: Standing
    at: Instant
    grounds: Grounds | None


class Episode(msgspec.Struct, frozen=True, gc=False):
    """One time of idleness of one workload, by a name that others can compare."""

    since: Instant
    name: str


def consider(case: Case, now: Instant) -> Standing:
    """The first reason to leave it alone, else the next step of the notice.

    What rests on the whole cluster (freeze, confirmation, pressure, caps) comes after, in plan.py: it can only take a
    step away.
    """
    if found := next(filter(None, _find_reasons(case, now)), None):
        return found
    standing = _take_step(case, now)
    if not case.rule.active_slots and not case.rule.freeze_slots:
        return standing
    return msgspec.structs.replace(standing, until=min(standing.until, rules.next_turn(now)))


def _find_reasons(case: Case, now: Instant) -> Iterator[Standing | None]:
    """To leave it alone: what it is (already paused, a kind or a place we do not touch, a pause that cannot work or is
    not wanted), then what people said of it, then what happened to it, then the time of the week."""
    subject, workload, rule, scope = case.subject, case.workload, case.rule, case.scope
    yield _is_paused(case)
    yield _leave(Reason.KindDisabled, rules.is_disabled(workload, case.kind, rule, scope))
    yield _leave(Reason.KindDisabled, rules.is_unlisted(workload, case.kind, rule), is_void=True)
    yield _leave(Reason.ProtectedNamespace, rules.is_protected(workload.ref.namespace, scope))
    yield _leave(Reason.Excluded, rules.is_excluded(subject, scope))
    yield _is_report_only(case)
    if consent.has_words(subject):  # nobody said anything of nearly all
        yield _exempt(Reason.OptedOut, consent.find_opt_out(subject, rule.consent, now))
        yield _exempt(Reason.Acknowledged, consent.find_ack(subject, rule.consent, now))
        yield _exempt(Reason.FightHold, pauses.find_fight(workload, now))
        yield _is_immune(case, now)
    yield _leave(Reason.OutsideSchedule, rules.why_not_now(rule, now), rules.next_turn(now))


def make_episode(uid: str, since: Instant) -> Episode:
    return Episode(since, hashlib.sha256(f"{uid}{units.rfc3339(since)}".encode()).hexdigest()[:12])


def _leave(
    reason: Reason, because: str | None, until: Instant = consent.FOREVER, *, is_void: bool = False
) -> Standing | None:
    if because is None:
        return None
    return Standing(skip=reason, because=because, until=until, is_void=is_void or reason in _VOIDS_NOTICE)


def _report(detail: Detail, because: str) -> Standing:
    return Standing(skip=Reason.ReportOnly, because=because, detail=detail, is_void=True)


def _is_paused(case: Case) -> Standing | None:
    kind, workload, pretended = case.kind, case.workload, case.grounds.pretended_pause
    if kind is not None and kinds.is_paused(kind, workload):
        because = f"{workload.ref.short} is already {kind.verb}; its pods are on their way out"
        return _leave(Reason.AlreadyPaused, because)
    if kind is not None and kinds.is_finished(kind, workload.body):
        return _leave(Reason.AlreadyPaused, f"{workload.ref.short} has finished")
    if pretended is not None:
        return _leave(Reason.AlreadyPaused, f"it would have been paused at {units.rfc3339(pretended)} (dry run)")
    return None


def _is_report_only(case: Case) -> Standing | None:
    workload, kind, rule = case.workload, case.kind, case.rule
    if workload.trouble is not None:
        return _report(Detail(workload.trouble), workload.trouble_because or str(workload.trouble))
    if kind is None:
        return _report(Detail.ManagedByUnknownOwner, f"we know no way to pause a {workload.ref.kind}")
    if because := rules.why_not_past(workload, rule):
        return _report(Detail.ManagedByUnknownOwner, because)
    if case.ruling.detail:
        return _report(case.ruling.detail, case.ruling.because)
    if not isinstance(case.subject.namespace, Known):  # what stands in one is not there without it
        why = case.subject.namespace.why if isinstance(case.subject.namespace, Unseen) else "it is not in the list"
        return _report(Detail.Unseen, f"whether namespace {workload.ref.namespace} opted out cannot be seen: {why}")
    if case.grounds.refused is not None:
        return _report(Detail.UnsupportedField, case.grounds.refused)
    if objection := objections.find(kind, workload, rule):
        return _report(*objection)
    if rule.action.type is ActionType.report:
        return _report(Detail.Report, f"rule {rule.name} only reports")
    if not rule.notice.channels and (rule.notice.required or rule.action.type is ActionType.notify):
        return _report(Detail.NoChannel, f"rule {rule.name} asks for a notice, and has no channel to send it by")
    return None


def _exempt(reason: Reason, found: consent.Exemption | None) -> Standing | None:
    return _leave(reason, found.because, found.until) if found else None


def _is_immune(case: Case, now: Instant) -> Standing | None:
    if marks.resume_request(case.workload) is not None:
        return _leave(Reason.Immune, f"{names.RESUME_REQUESTED} is set on it: a pause would be undone at once")
    resumed = marks.resumed_at(case.workload)
    until = resumed + case.rule.consent.immunity if resumed is not None else now
    if now >= until:
        return None
    because = f"it was resumed a short while ago and is left alone until {units.rfc3339(until)}"
    return _leave(Reason.Immune, because, until)


def _take_step(case: Case, now: Instant) -> Standing:
    notice, is_notify = case.rule.notice, case.rule.action.type is ActionType.notify
    has_notice = marks.has_notice(case.workload)
    if not notice.channels:  # the way of the old tool: no channel, no wait; IdleDetected is all that is said
        return Standing(pauses=True, is_void=has_notice, next_action=Step.pause, next_at=now)
    notices = (marks.notice_at(case.workload), case.grounds.pretended_notice)
    since = next((since for since in notices if since is not None and _is_valid(case, since, now)), None)
    if since is None:  # with a grace of 0 both in one cycle: the second look finds the mark, or stops
        pauses_now = notice.grace <= 0 and not is_notify
        return Standing(warns=True, pauses=pauses_now, is_void=has_notice, next_action=Step.notice, next_at=now)
    until = since + notice.grace
    if is_notify:
        because = f"its owner was told at {units.rfc3339(since)}; rule {case.rule.name} does no more"
        return Standing(skip=Reason.ReportOnly, because=because, detail=Detail.NotifyOnly)
    if now < until:
        because = f"its owner was told at {units.rfc3339(since)} and has until {units.rfc3339(until)}"
        return Standing(skip=Reason.InNotice, because=because, until=until, next_action=Step.pause, next_at=until)
    return Standing(pauses=True, next_action=Step.pause, next_at=now)


def _is_valid(case: Case, since: Instant, now: Instant) -> bool:
    """Was it idle, and watched, all the time since the notice? A mark in the future is nobody's notice.

    An idle time never begins before the end of the last longer gap, so that it answers both. Where it could not be
    looked up, the notice stands while its grace runs (nothing happens yet) and is given anew after.
    """
    if since > now + 1:
        return False
    grounds = case.grounds
    return grounds.idle_since <= since or (not grounds.looked_back and now < since + case.rule.notice.grace)
