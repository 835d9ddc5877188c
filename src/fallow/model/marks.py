"""Our marks on objects, read: acks, notices, pauses, resumes and fights.

In: a workload with its annotations. Out: texts, instants and counts; None where there is no mark, or one that cannot
be read.
A mark stands on the workload, on the object that carries its marks, or on its Kueue Workload. What follows from a mark
is decided in decide; what is written is made in act.
Invariant: marks of a pause count only while its pause value still stands and paused-at is later than resumed-at.
"""

import collections
import contextlib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Final, TypeAlias

import msgspec

from fallow import names
from fallow.model import cluster, kinds, pointers, record, units
from fallow.model.seen import sure
from fallow.model.units import Instant, Seconds

Said: TypeAlias = Mapping[str, str]

_SKEW: Final = 5 * units.MINUTE  # by which the clock of the daemon before us may be ahead
ACKS: Final = (names.ACK_UNTIL, names.ACK_UNTIL_ALIAS)


def read_all(workload: cluster.Workload, key: str) -> list[str]:
    """Its values, wherever marks of a pause or a resume may stand."""
    sources = (workload.annotations, workload.marks, *(each.annotations for each in sure(workload.kueue)))
    return [said[key] for said in sources if key in said]


def latest(texts: Iterable[str | None], by: Instant = math.inf) -> Instant | None:
    """Of those that can be read and are not later than `by`."""
    return max((found for found in map(units.read_instant, texts) if found is not None and found <= by), default=None)


def read_count(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() and len(text) < 7 else None


Nodes: TypeAlias = Mapping[str, Mapping[str, int]]  # by node: how many of which GPU resource
_NODES_CHARACTERS: Final = 4096  # of paused-nodes: what does not fit is not told


def write_nodes(pods: Iterable[cluster.Pod]) -> str:
    """Where they hold which GPUs, as paused-nodes tells it after they are gone; "" where they hold none."""
    held: dict[str, collections.Counter[str]] = {}
    for pod in pods:
        if pod.node and pod.resources and not pod.has_ended:
            held.setdefault(pod.node, collections.Counter()).update(pod.resources)
    while (text := msgspec.json.encode(held, order="sorted").decode()) and len(text) > _NODES_CHARACTERS:
        held.popitem()
    return text if held else ""


def read_nodes(workload: cluster.Workload) -> Nodes:
    """What a pause of ours that stands gave back, by node; empty where that was not told, or in words not ours (as
    what is longer than we write: the numbers in it could be of any length)."""
    noted = read_all(workload, names.PAUSED_NODES) if paused_at(workload) is not None else ()
    for text in (each for each in noted if len(each) <= _NODES_CHARACTERS):
        with contextlib.suppress(msgspec.MsgspecError):
            return msgspec.json.decode(text, type=dict[str, dict[str, Annotated[int, msgspec.Meta(ge=1, le=10**6)]]])
    return {}


def ack_until(said: Said) -> str | None:
    """As it was written: nobody has looked yet whether it can be read, and holds."""
    return said.get(names.ACK_UNTIL) or said.get(names.ACK_UNTIL_ALIAS)


MAX_SKEW: Final = 60.0  # an ack-at further in the future would stretch the longest ack for ever


class OpenAck(msgspec.Struct, frozen=True):
    """An acknowledgement. `until`: as long as its rule lets one last, whatever is written; `by`: "" = not signed."""

    until: Instant
    by: str
    reason: str | None
    at: Instant | None


def read_ack(sources: Sequence[Said], longest: Seconds, now: Instant) -> OpenAck | None:
    """What is said of one object, wherever it stands, over or not: the latest end of any that can be read."""
    until = latest(said.get(key) for said in sources for key in ACKS)
    if until is None:
        return None
    stamp = latest(said.get(names.ACK_AT) for said in sources)
    at = stamp if stamp is not None and stamp <= now + MAX_SKEW else None
    by, reason = _first_said(sources, names.ACK_BY, names.ACK_BY_ALIAS), _first_said(sources, names.ACK_REASON)
    return OpenAck(min(until, (now if at is None else at) + longest), by, reason or None, at)


def choose_ack(acks: Iterable[OpenAck | None], now: Instant) -> OpenAck | None:
    """Of those that are not over, the one that ends last."""
    return max((ack for ack in acks if ack and now < ack.until), key=lambda ack: (ack.until, ack.by), default=None)


def find_ack(
    workload: cluster.Workload, namespace: cluster.Namespace | None, longest: Seconds, now: Instant
) -> OpenAck | None:
    """The one in force, on the workload and what carries its marks, or on its namespace; signed by "somebody" at least.
    (One on a pod holds as well, and is the brain's to find: it may be a copy.)"""
    said = ((workload.annotations, workload.marks), (namespace.annotations,) if namespace else ())
    found = choose_ack((read_ack(each, longest, now) for each in said), now)
    return found and msgspec.structs.replace(found, by=found.by or "somebody")


def _first_said(sources: Sequence[Said], *keys: str) -> str:
    return next((text for said in sources for key in keys if (text := said.get(key))), "")


def notice_at(workload: cluster.Workload) -> Instant | None:
    """When a notice was delivered, by our key or its alias; one that cannot be read was not."""
    if not workload.marks:  # nearly all
        return None
    found = (units.read_instant(workload.marks.get(key)) for key in (names.PENDING_SINCE, names.PENDING_SINCE_ALIAS))
    return next((instant for instant in found if instant is not None), None)


def has_notice(workload: cluster.Workload) -> bool:
    return bool(workload.marks) and any(key in workload.marks for key in names.PENDING_KEYS)


def wishes(workload: cluster.Workload, namespace: Said) -> tuple[str, str, str]:
    """Whom to tell (notify), whom to mention in Slack, and the owner's e-mail address; "" where nobody said."""
    own, carried = workload.annotations, workload.marks

    def find(key: str) -> str:
        return own.get(key) or carried.get(key) or namespace.get(key) or ""

    return find(names.NOTIFY), find(names.SLACK_MENTIONS), own.get(names.OWNER) or carried.get(names.OWNER) or ""


def paused_at(workload: cluster.Workload) -> Instant | None:
    """When we paused it, if that pause still stands."""
    kind = kinds.of(workload)
    if kind is None or not kinds.holds_pause(kind, workload):
        return None
    began, ended = units.read_instant(_record(kind, workload).get(names.PAUSED_AT)), ended_at(kind, workload)
    return began if began is not None and (ended is None or began > ended) else None


def is_over(workload: cluster.Workload) -> bool:
    """May its record go? Not while the pause stands: without the record there is no way back."""
    kind = kinds.of(workload)
    if kind is None:
        return False
    began, ended = units.read_instant(_record(kind, workload).get(names.PAUSED_AT)), ended_at(kind, workload)
    is_older = began is not None and ended is not None and began <= ended
    return is_older or not kinds.holds_pause(kind, workload)


def is_half_taken(workload: cluster.Workload) -> bool:
    """Is there a record of our pause, but not its value, although nobody else wrote the field since?

    Our pause made the field ours, and whoever changes it makes it theirs. Where it is still ours, something changed the
    pause itself on its way (a webhook), or we were interrupted while taking it back.
    """
    kind = kinds.of(workload)
    if kind is None or kinds.holds_pause(kind, workload) or is_stale(_record(kind, workload)):
        return False
    target = kinds.pause_target(kind, workload)
    values = (pointers.read(target.body, pointer) for pointer in record.fields_in(target.annotations))
    return target.is_ours and any(value is not None for value in values)


def is_half_back(workload: cluster.Workload) -> bool:
    """Half taken, and as recorded: our way back was interrupted before its marks went. Whoever began it wanted it to
    run, so it counts as resumed."""
    kind = kinds.of(workload)
    if kind is None or not is_half_taken(workload):
        return False
    target = kinds.pause_target(kind, workload)
    found = record.read(target.annotations.get(names.ORIGINAL_STATE))
    return found is not None and all(pointers.read(target.body, at) == was for at, was in found.fields.items())


def is_stale(said: Said) -> bool:
    """Marks that were copied back by an undo: the pause they tell of ended already."""
    paused, resumed = (units.read_instant(said.get(name)) for name in (names.PAUSED_AT, names.RESUMED_AT))
    return paused is not None and resumed is not None and paused <= resumed


def is_coming_back(workload: cluster.Workload) -> bool:
    """Has a resume of ours given its ScaledObject back to KEDA, and not yet looked at what KEDA made of it?"""
    return any(_is_given_back(scaler) for scaler in kinds.scalers(workload))


def _is_given_back(scaler: cluster.Companion) -> bool:
    return names.RESUME_REQUESTED in scaler.annotations and not kinds.SCALED_OBJECT.holds(kinds.as_target(scaler).body)


def _record(kind: kinds.Kind, workload: cluster.Workload) -> Said:
    return kinds.record_target(kind, workload).annotations


def ended_at(kind: kinds.Kind, workload: cluster.Workload) -> Instant | None:
    """The resume that may have ended its pause: noted with the record, or beside an object that may not be touched."""
    beside = workload.marks if workload.marks_ref.uid != workload.ref.uid else {}
    return latest(said.get(names.RESUMED_AT) for said in (_record(kind, workload), beside))


def hold_until(workload: cluster.Workload, now: Instant) -> Instant | None:
    """The end of the hold after a fight; one that lasts longer than ours do is not ours."""
    return latest(read_all(workload, names.FIGHT_HOLD_UNTIL), by=now + units.DAY + _SKEW)


def recent_reversals(workload: cluster.Workload, now: Instant) -> list[Instant]:
    """When others undid our pauses within the last day, wherever that was noted; two may bear the same second."""
    times: collections.Counter[Instant] = collections.Counter()
    for said in read_all(workload, names.PAUSE_REVERSALS):
        noted = (units.read_instant(text) for text in said.split(","))
        times |= collections.Counter(time for time in noted if time is not None and now - units.DAY < time <= now)
    return sorted(times.elements())


def fight(workload: cluster.Workload, now: Instant) -> dict[str, str]:
    """What a pause or a resume takes along to a workload whose marks stand on another object, which may go with it."""
    if not workload.has_marks_elsewhere:
        return {}
    times = ",".join(units.rfc3339(time) for time in recent_reversals(workload, now))
    until = hold_until(workload, now)
    hold = "" if until is None else units.rfc3339(until)
    return {key: said for key, said in {names.PAUSE_REVERSALS: times, names.FIGHT_HOLD_UNTIL: hold}.items() if said}


def resume_request(workload: cluster.Workload) -> str | None:
    """Somebody asks for it back: any value counts. On a ScaledObject that was given back it is our own, unfinished."""
    given_back = (each.annotations[names.RESUME_REQUESTED] for each in kinds.scalers(workload) if _is_given_back(each))
    return next(iter((*read_all(workload, names.RESUME_REQUESTED), *given_back)), None)
