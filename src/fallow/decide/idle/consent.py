"""What people said: acknowledgements and opt-outs, and the bookkeeping that acks need.

In: a workload with its pods and namespace, the rule's terms of consent, now. Out: the ack or opt-out in force; Marks
and Alerts for acks that must be stamped, have ended or cannot be read.
Heeded on the Namespace, the workload, its marks, and a pod where it is not a copy from above. Doubt is on people's
side: an opt-out whose end cannot be read holds. Nothing is ever written on a Namespace or pod.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, TypeAlias

import msgspec

from fallow import names
from fallow.decide.idle import rules
from fallow.model import cluster, marks, units
from fallow.model.decision import Alert, Decision, Mark
from fallow.model.marks import Said
from fallow.model.policies import idle
from fallow.model.seen import Known, sure
from fallow.model.units import Instant

Changes: TypeAlias = dict[str, str | None]  # of annotations; None = remove

FOREVER: Final = float("inf")
_OPT_OUTS: Final = frozenset({
    names.OPT_OUT, names.OPT_OUT_UNTIL, names.DOWNSCALER_EXCLUDE, names.DOWNSCALER_EXCLUDE_UNTIL,
    names.KARPENTER_DO_NOT_DISRUPT,
})


class Exemption(msgspec.Struct, frozen=True):
    """Why it is left alone, until when, and who signed that."""

    because: str
    until: Instant
    by: str = ""


def has_words(subject: rules.Subject) -> bool:
    """May anything on it or around it speak for leaving it alone? Any annotation may: others are not kept."""
    workload, around = subject.workload, list[cluster.Pod | cluster.Namespace]([*subject.pods, *_spaces(subject)])
    said = (*(each.annotations for each in around), *(each.annotations for each in sure(workload.kueue)))
    if workload.annotations or workload.marks or any(said):
        return True
    return not all(_OPT_OUTS.isdisjoint(each) for each in (workload.labels, *(each.labels for each in around)))


def _spaces(subject: rules.Subject) -> tuple[cluster.Namespace, ...]:
    """Its namespace, whose words count; that one which is not seen holds everything back is courtesy's business."""
    return (subject.namespace.value,) if isinstance(subject.namespace, Known) else ()


def find_ack(subject: rules.Subject, terms: idle.Consent, now: Instant) -> Exemption | None:
    """The ack in force; of several the one that ends last."""
    own = (subject.workload.annotations, subject.workload.marks)
    sources = [own, *((said,) for said in _said_around(subject))]
    return _exempt(marks.choose_ack((marks.read_ack(each, terms.max_ack, now) for each in sources), now))


def find_given_ack(sources: Sequence[Said], terms: idle.Consent, now: Instant) -> Exemption | None:
    """The ack that one object gives, by what is said on it, if it is in force."""
    return _exempt(marks.choose_ack([marks.read_ack(sources, terms.max_ack, now)], now))


def find_pod_ack(pod: cluster.Pod, workload: cluster.Workload, terms: idle.Consent, now: Instant) -> Exemption | None:
    return find_given_ack((_not_copied(pod, workload),), terms, now)


def _exempt(ack: marks.OpenAck | None) -> Exemption | None:
    return None if ack is None else Exemption(_say_ack(ack), ack.until, ack.by)


def _say_ack(ack: marks.OpenAck) -> str:
    return f"acknowledged{f' by {ack.by}' if ack.by else ''} until {units.rfc3339(ack.until)}"


def _said_around(subject: rules.Subject) -> Iterator[Said]:
    for namespace in _spaces(subject):
        yield namespace.annotations
    for pod in subject.pods:
        if pod.annotations:
            yield _not_copied(pod, subject.workload)


def _not_copied(pod: cluster.Pod, workload: cluster.Workload) -> Said:
    """What a pod says that was not copied down to it: a copy outlives the word it was copied from."""
    above = (workload.annotations, workload.marks, *workload.chain_annotations)
    return {key: value for key, value in pod.annotations.items() if all(said.get(key) != value for said in above)}


def tend_acks(workload: cluster.Workload, terms: idle.Consent, now: Instant) -> list[Decision]:
    """Stamp an ack made by hand, end one that has expired, and say of one that cannot be read that it does not hold."""
    sources = (workload.annotations, workload.marks)
    values = dict.fromkeys(value for said in sources for key in marks.ACKS if (value := said.get(key)) is not None)
    refused = [value for value in values if units.read_instant(value) is None]
    because = "{!r} is not a time such as 2026-11-15T09:30:00Z: this ack does not hold"
    decisions: list[Decision] = [
        Alert(workload, names.Event.INVALID_ACK, because.format(value), f"invalid-ack:{value}") for value in refused
    ]
    ack = marks.read_ack(sources, terms.max_ack, now)
    if ack is not None and now >= ack.until:
        decisions.append(_end_ack(workload, ack.until))
    elif ack is not None and ack.at is None:
        changes = {names.ACK_AT: units.rfc3339(now), **drop(workload.marks, names.PENDING_KEYS)}
        decisions.append(mark(workload, changes, names.Event.ACKNOWLEDGED, _say_ack(ack)))
    return decisions


def _end_ack(workload: cluster.Workload, end: Instant) -> Decision:
    because = f"the acknowledgement ended at {units.rfc3339(end)}"
    is_elsewhere = workload.has_marks_elsewhere and any(key in workload.annotations for key in marks.ACKS)
    if is_elsewhere:  # made by hand where every change restarts the pods: it stays, and has ended all the same
        return Alert(workload, names.Event.ACK_EXPIRED, because, f"ack-expired:{units.rfc3339(end)}")
    # A notice from before the ack is void: the owner has since said to keep it, and is to be told again.
    changes = drop(workload.marks, (*names.ACK_KEYS, *names.PENDING_KEYS))
    return mark(workload, changes, names.Event.ACK_EXPIRED, because)


def drop(said: Said, keys: Iterable[str]) -> Changes:
    return {key: None for key in keys if key in said}


def mark(workload: cluster.Workload, changes: Changes, event: str | None, because: str) -> Mark:
    """A Mark where this workload's marks are, guarded against change."""
    version = workload.marks_version if workload.has_marks_elsewhere else workload.resource_version
    return Mark(workload, workload.marks_ref, version, changes, event, because)


def find_opt_out(subject: rules.Subject, terms: idle.Consent, now: Instant) -> Exemption | None:
    """The first opt-out in force, in the order namespace, workload, pods."""
    for where, said in _sources(subject, terms.allow_opt_out):
        if not _OPT_OUTS.isdisjoint(said) and (found := _read_opt_out(where, said, now)):
            return found
    return None


def _sources(subject: rules.Subject, beyond_namespace: bool) -> Iterator[tuple[str, Said]]:
    workload = subject.workload
    for namespace in _spaces(subject):
        yield from (("its namespace", said) for said in (namespace.annotations, namespace.labels))
    if not beyond_namespace:
        return
    yield from (("it", said) for said in (workload.annotations, workload.marks, workload.labels))
    for pod in subject.pods:
        yield "a pod of it", pod.labels
        if pod.annotations:
            yield "a pod of it", _not_copied(pod, workload)


def _read_opt_out(where: str, said: Said, now: Instant) -> Exemption | None:
    if said.get(names.OPT_OUT) == names.OPT_OUT_VALUE:
        return Exemption(f"{where} says {names.OPT_OUT}: {names.OPT_OUT_VALUE}", FOREVER)
    for key in (names.DOWNSCALER_EXCLUDE, names.KARPENTER_DO_NOT_DISRUPT):
        if said.get(key, "").lower() == "true":
            return Exemption(f"{where} says {key}: true", FOREVER)
    for key in (names.OPT_OUT_UNTIL, names.DOWNSCALER_EXCLUDE_UNTIL):
        if text := said.get(key):
            until = units.read_instant(text)
            if until is None:
                return Exemption(f"{where} says {key}, with a time that cannot be read: {text[:64]!r}", FOREVER)
            if now < until:
                return Exemption(f"{where} says {key}: {units.rfc3339(until)}", until)
    return None
