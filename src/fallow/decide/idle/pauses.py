"""What becomes of a pause: asked back, without effect, undone by others, or fought over.

In: a workload that carries marks of a pause or a request to resume, its pods, the rule, now. Out: Resumes, Undos and
Marks; whether it is held after a fight.
The state is on the object (model/marks.py says when a pause stands). Marks of a pause that does not stand are
- half a pause: nobody else wrote the field since, so that something changed our own request: it is put back;
- a way back of ours that was interrupted between two writes: it is finished, and counts as a resume;
- an external resume (we never resumed it, and it runs): counted, and after the third in a day we let go;
- old ones that came back, as `kubectl rollout undo` does: those are cleared without a word.
"""

from typing import Final

from fallow import names
from fallow.decide.idle import consent
from fallow.model import cluster, kinds, marks, record, units
from fallow.model.decision import Alert, Decision, Mark, Resume, Undo
from fallow.model.policies import idle
from fallow.model.seen import Unseen
from fallow.model.units import DAY, MINUTE, Instant, Seconds

EFFECT: Final = 10 * MINUTE  # after so long the pods of a paused workload should be gone
KSERVE_EFFECT: Final = 120.0  # after so long KServe should have heeded its stop annotation
FIGHT: Final = 3  # external resumes within a day after which we let go for a day
GRACE: Final = 30.0  # Kubernetes' own default of terminationGracePeriodSeconds


def find_fight(workload: cluster.Workload, now: Instant) -> consent.Exemption | None:
    """The hold after a fight. One that cannot be read, or lasts longer than ours do, is not ours."""
    until = marks.hold_until(workload, now)
    if until is None or now >= until:
        return None
    because = f"others undid our pauses {FIGHT} times in a day; left alone until {units.rfc3339(until)}"
    return consent.Exemption(because, until)


def tend(workload: cluster.Workload, pods: tuple[cluster.Pod, ...], rule: idle.Rule, now: Instant) -> list[Decision]:
    """What is to be done about the marks of a pause, and about a request to resume."""
    kind = kinds.of(workload)
    if kind is None:
        return []
    target, began = kinds.record_target(kind, workload), marks.paused_at(workload)
    if began is not None:
        alive = [pod for pod in pods if not pod.has_ended]
        return _tend_standing(kind, workload, alive, rule, began, now)
    if names.PAUSED_AT in target.annotations:
        return _tend_void(kind, target, workload, now)
    return _refuse_request(workload)


def _tend_standing(
    kind: kinds.Kind, workload: cluster.Workload, alive: list[cluster.Pod], rule: idle.Rule, began: Instant,
    now: Instant,
) -> list[Decision]:
    if marks.resume_request(workload) is not None:
        return [Resume(workload, _resumer(workload), f"{names.RESUME_REQUESTED} was set on it")]
    said = kinds.record_target(kind, workload).annotations
    if record.read(said.get(names.ORIGINAL_STATE)) is None:
        return [Alert(workload, names.Event.RESUME_FAILED, _describe_lost(kind, workload, said), units.rfc3339(began))]
    ignores_stop = kind.ignores_stop if rule.action.kserve_method == "auto" else None
    if alive and now >= began + KSERVE_EFFECT and ignores_stop and ignores_stop(workload):
        because = f"KServe did not heed {names.KSERVE_STOP} within {units.humane(KSERVE_EFFECT)}"
        return [Resume(workload, names.FIELD_MANAGER, because, {names.KSERVE_NO_STOP: units.rfc3339(now)})]
    if alive and now >= began + EFFECT + _ordered_stop(kind, workload) and not _is_noted(kind, workload):
        because = f"{len(alive)} of its GPU pods are still there {units.humane(now - began)} after the pause"
        changes: consent.Changes = {names.PAUSE_INEFFECTIVE_AT: units.rfc3339(now)}
        return [_note(kind, workload, changes, names.Event.PAUSE_INEFFECTIVE, because)]
    return []


def _describe_lost(kind: kinds.Kind, workload: cluster.Workload, said: marks.Said) -> str:
    """Whoever took its record away, a webhook or a person, may not know what it was for."""
    ref, was = workload.ref, marks.read_count(said.get(names.ORIGINAL_REPLICAS))
    by_hand = f"set {', '.join(kind.writes)} by hand to what it was"
    if kind.replica_path is not None:
        by_hand = f"fallow resume {kinds.typed(ref)} -n {ref.namespace} --replicas {'N' if was is None else was}"
    return f"It stands paused by us, and its record is gone or cannot be read. To bring it back: {by_hand}"


def _ordered_stop(kind: kinds.Kind, workload: cluster.Workload) -> Seconds:
    """What stops its pods one after another needs the time of all of them."""
    spec = workload.body.get("spec") or {}
    if not kind.in_order or spec.get("podManagementPolicy", "OrderedReady") != "OrderedReady":
        return 0.0
    replicas = marks.read_count(workload.annotations.get(names.ORIGINAL_REPLICAS))
    grace = ((spec.get("template") or {}).get("spec") or {}).get("terminationGracePeriodSeconds")
    return (replicas or 0) * float(GRACE if grace is None else grace)


def _is_noted(kind: kinds.Kind, workload: cluster.Workload) -> bool:
    sources = (kinds.record_target(kind, workload).annotations, workload.marks)
    return any(names.PAUSE_INEFFECTIVE_AT in said for said in sources)


def _tend_void(kind: kinds.Kind, target: kinds.Target, workload: cluster.Workload, now: Instant) -> list[Decision]:
    began, ended = units.read_instant(target.annotations[names.PAUSED_AT]), marks.ended_at(kind, workload)
    stands = kinds.holds_pause(kind, workload)
    if _may_be_needed(kind, workload, began, ended, now):
        return []
    if marks.is_coming_back(workload):
        return [Resume(workload, _resumer(workload), "its resume was begun, and is finished now")]
    because = "its marks of a pause are older than its last resume"
    put_back: consent.Changes = {}
    if began is not None and (ended is None or began > ended) and not stands:
        if marks.is_half_back(workload):
            return [Resume(workload, names.FIELD_MANAGER, "its way back was begun, and is finished now")]
        if marks.is_half_taken(workload):
            return [Undo(workload, "its pause was half taken: the value that stands is nobody's, and not the pause")]
        if not _was_begun_only(kind, target, workload):
            return _note_reversal(kind, workload, now)
        because, put_back = "its pause was begun and never carried out", _find_cleared(kind, target)
    if _lives_elsewhere(kind, workload):
        return []  # clearing them would restart its pods, and they count for nothing
    return [_note(kind, workload, consent.drop(target.annotations, names.PAUSE_KEYS) | put_back, None, because)]


def _may_be_needed(
    kind: kinds.Kind, workload: cluster.Workload, began: Instant | None, ended: Instant | None, now: Instant
) -> bool:
    """Can it not be told that the pause is over? Then its record may be the only way back."""
    if ended is not None and ended > now + DAY:
        return True  # nobody resumed it then
    if isinstance(workload.scaled_objects, Unseen) or isinstance(workload.kueue, Unseen):
        return True  # by one that cannot be seen it may stand paused
    if kinds.way(kind, workload) is kinds.Way.scale and not workload.body:
        return True  # its /scale could not be read
    return began is None and kinds.holds_pause(kind, workload)  # paused, by marks that cannot be read


def _find_cleared(kind: kinds.Kind, target: kinds.Target) -> consent.Changes:
    """The marks that the pause took away, such as those of the last resume: its immunity goes on."""
    found = record.read(target.annotations.get(names.ORIGINAL_STATE))
    return dict(found.marks) if found and kinds.find_fault(kind, found) is None else {}


def _resumer(workload: cluster.Workload) -> str:
    return (marks.resume_request(workload) or "").strip()[:256] or "annotation"


def _was_begun_only(kind: kinds.Kind, target: kinds.Target, workload: cluster.Workload) -> bool:
    """We were interrupted between the record and the act, where these are two writes: nothing was changed yet."""
    found = record.read(target.annotations.get(names.ORIGINAL_STATE))
    if found and kinds.recorded_scalers(found):  # the one that was to pause it has no record of its own
        return not any(names.ORIGINAL_STATE in each.annotations for each in kinds.pausing_scalers(workload))
    is_by_scale = found is not None and kinds.way(kind, workload) is kinds.Way.scale
    return is_by_scale and not target.writer and not target.is_ours


def _note_reversal(kind: kinds.Kind, workload: cluster.Workload, now: Instant) -> list[Decision]:
    if kind.marks_on and not workload.pods:
        return []  # where its marks belong is known when its pods are back; a mark on it now would restart them
    said = kinds.record_target(kind, workload).annotations
    times = [*marks.recent_reversals(workload, now), now]
    writer = kinds.pause_target(kind, workload).writer or "somebody"
    noted = {names.PAUSE_REVERSALS: ",".join(units.rfc3339(time) for time in times)}
    if len(times) >= FIGHT:
        noted[names.FIGHT_HOLD_UNTIL] = units.rfc3339(now + DAY)
    if kinds.still_paused(kind, workload):
        because = "others brought a part of it back, and the rest would stay behind without a record"
        return [Resume(workload, f"{names.BY_OTHERS}{writer}", because, noted)]
    changes: consent.Changes = {
        **({} if _lives_elsewhere(kind, workload) else consent.drop(said, (*names.PAUSE_KEYS, names.RESUME_REQUESTED))),
        names.RESUMED_AT: units.rfc3339(now), names.RESUMED_BY: f"{names.BY_OTHERS}{writer}", **noted,
    }
    because = "it was paused by us and runs again, and the resume was not ours"
    if len(times) < FIGHT:
        return [_note(kind, workload, changes, None, because)]
    because = f"others undid our pauses {len(times)} times within a day, last {writer}: left alone for a day"
    return [_note(kind, workload, changes, names.Event.PAUSE_REVERTED, because)]


def _refuse_request(workload: cluster.Workload) -> list[Decision]:
    """A request that stays would undo the next pause at once."""
    if names.RESUME_REQUESTED not in workload.marks:
        return []  # none, or one on an object that may not be touched: no pause while it is there (courtesy.py)
    because = "it is not paused by us: there is nothing to resume"
    return [consent.mark(workload, {names.RESUME_REQUESTED: None}, names.Event.RESUME_FAILED, because)]


def _lives_elsewhere(kind: kinds.Kind, workload: cluster.Workload) -> bool:
    return workload.has_marks_elsewhere and kinds.record_target(kind, workload).ref.uid == workload.ref.uid


def _note(
    kind: kinds.Kind, workload: cluster.Workload, changes: consent.Changes, event: str | None, because: str
) -> Mark:
    """On the object that carries the record, or where its marks are if touching that object restarts its pods."""
    if _lives_elsewhere(kind, workload):
        return consent.mark(workload, changes, event, because)
    target = kinds.record_target(kind, workload)
    return Mark(workload, target.ref, target.resource_version, changes, event, because)
