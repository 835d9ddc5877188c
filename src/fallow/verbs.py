"""What a person may ask for, with its checks: pause, resume, keep, release, freeze, override. Every door calls these.

In: what the verb reaches (the cluster as it is seen, hands on it, who asks), a workload as KIND/NAME, values already
parsed. Out: Outcomes; or Declined, a sentence of which the door makes an exit code or a status.
Invariant: a workload is named without doubt before anything is done to it. Whether who asks may do it, the API server
decides, or the door.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

import msgspec

from fallow import names, settings
from fallow.act import execute, marking
from fallow.act import hands as doing
from fallow.act.budgets import gates
from fallow.act.budgets import node_pools as holding_pools
from fallow.clients import errors
from fallow.clients.kubernetes import api as kube
from fallow.clients.kubernetes import lease
from fallow.decide.idle import plan as brain
from fallow.model import cluster, decision, kinds, node_pools, record, units
from fallow.model import marks as reading
from fallow.model.decision import Code, Outcome, Status
from fallow.model.policies import budget, budget_crd, idle
from fallow.model.seen import Input, Known, Unseen
from fallow.model.units import Instant, Seconds
from fallow.observe import node_pools as observed_pools
from fallow.observe.cluster import absence, mirror

MAX_ACK_HOURS = 168
ANSWER_PATIENCE: Seconds = 15.0  # as long as a Lease lasts: who does not renew in that time leads no more
MAX_FREEZE = 366 * units.DAY  # longer is a slip of the finger: whoever wants that stops the daemon


_NAMESPACE: Final = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")
_TARGET: Final = re.compile(r"[A-Za-z][-A-Za-z0-9.]*/[a-z0-9](?:[-a-z0-9.]*[a-z0-9])?")
_POD: Final = ("", "Pod")
# What carries no pause: where one of these cannot be seen, nothing that stands paused is overlooked.
_PAUSE_NOTHING: Final = frozenset({
    "pods", "nodes", "namespaces", "horizontalpodautoscalers.autoscaling", "poddisruptionbudgets.policy",
    "resourceclaims.resource.k8s.io", f"{names.POLICY_PLURAL}.{names.GROUP}",
})
# What a terminal or a page would obey, or could be misled by, instead of showing it.
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_MARKUP: Final = re.compile(r"<[A-Za-z/!?]")


class Why(StrEnum):
    """What programs may tell apart in what was declined."""

    malformed = "malformed"
    too_long = "tooLong"  # longer than anybody may ask for
    unknown = "unknown"  # no such workload, no such ack
    unclear = "unclear"  # several of that name, or whether there is one cannot be seen
    held = "held"  # acknowledged or opted out
    changed = "changed"


class Declined(Exception):
    """Not done, and nothing was tried: one word, one sentence."""

    def __init__(self, why: Why, because: str) -> None:
        super().__init__(because)
        self.why = why


class Reach(msgspec.Struct, frozen=True):
    """What a verb works with: the objects of one namespace ("": of all), hands, and in whose name. `mandate`: what the
    flags of the daemon say, where it is the daemon who acts."""

    mirror: mirror.Mirror
    hands: doing.Hands
    namespace: str
    by: str
    mandate: idle.Mandate | None = None


class Ack(msgspec.Struct, frozen=True):
    """An acknowledgement as it is written on a workload. `void`: why it does not hold; "" for one that does, and then
    `until` is when it ends, which its policy may have before what is written."""

    ref: cluster.Ref
    until: str
    void: str
    by: str | None
    reason: str | None


class OnLease(msgspec.Struct, frozen=True):
    """What freezes a daemon: its Lease, where that stands, in whose name, what time the API server says it is; and what
    of others could not be seen."""

    lease: lease.Leadership
    namespace: str
    by: str
    time: Input[Instant]
    unseen: str = ""


class FreezeAnswer(msgspec.Struct, frozen=True):
    """What the daemon made of a freeze, or of its end."""

    until: str | None  # as it stands on the Lease
    heard: lease.Heard
    holder: str
    renewed: str  # when it last did, by its own clock
    is_longer: bool = False  # than was asked for: a longer freeze stood there, and was kept


def read_target(text: str) -> tuple[str, str]:
    """`Deployment/llm`, `deploy/llm` or `Rollout.argoproj.io/llm`: which kind is meant, the cluster knows."""
    kind, _, name = text.partition("/")
    if not _TARGET.fullmatch(text):
        form = "is not of the form KIND/NAME, such as Deployment/llm, deploy/llm or Rollout.argoproj.io/llm"
        raise Declined(Why.malformed, f"{text!r} {form}")
    return kind, name


def check_namespace(text: str) -> None:
    if not _NAMESPACE.fullmatch(text):
        raise Declined(Why.malformed, f"{text!r} cannot be the name of a namespace")


def check_words(text: str, what: str, longest: int = marking.ACK_REASON_CHARACTERS) -> None:
    """Words that somebody else will read: plain ones. Whoever shows them escapes them all the same."""
    if len(text) > longest:
        raise Declined(Why.malformed, f"{what} is longer than {longest} characters")
    if _CONTROL.search(text):
        raise Declined(Why.malformed, f"{what} holds control characters; plain words in one line, please")
    if _MARKUP.search(text):
        raise Declined(Why.malformed, f"{what} holds markup; plain words, please")


def is_called(
    ref: cluster.Ref, kind: str, name: str, namespace: str, meant: Collection[kinds.Key] = ()
) -> bool:
    """Does `kind`, as people type it, and `name` mean this object? `meant`: kinds that the server calls so."""
    key = ref.group, ref.kind
    return ref.namespace == namespace and ref.name == name and (key in meant or kinds.is_called(key, kind))


def pick(
    workloads: Iterable[cluster.Workload], target: str, namespace: str, meant: Collection[kinds.Key] = ()
) -> int | None:
    """The index of the one that `target` means; None where there is none."""
    kind, name = read_target(target)
    refs = enumerate(each.ref for each in workloads)
    found = {index: ref for index, ref in refs if is_called(ref, kind, name, namespace, meant)}
    if len(found) > 1:
        which = ", ".join(f"{ref.kind}.{ref.group}/{ref.name}" for ref in found.values())
        raise Declined(Why.unclear, f"{target} is not clear, say which: {which}")
    return next(iter(found), None)


async def find(reach: Reach, target: str, now: Instant) -> cluster.Workload:
    """The workload that is meant: by its own name, or by that of one of its pods."""
    (kind, name), seen = read_target(target), reach.mirror
    meant = seen.find_kinds(kind)
    if pick(seen.workloads({}), target, reach.namespace, meant) is None:
        await seen.look_for(kind, now)  # paused, and the last of its kind
    workloads = seen.workloads({})
    index = pick(workloads, target, reach.namespace, meant)
    if index is not None:
        return workloads[index]
    if _POD in meant and (above := _find_above(reach, name)):
        return above
    raise Declined(Why.unknown, await absence.explain(seen, kind, name, reach.namespace))


def _find_above(reach: Reach, pod: str) -> cluster.Workload | None:
    """The workload to which a pod of that name belongs."""
    called = (reach.namespace, pod)
    there = {index for index, each in enumerate(reach.mirror.pods) if (each.namespace, each.name) == called}
    return next((each for each in reach.mirror.workloads({}) if not there.isdisjoint(each.pods)), None)


async def check_place(reach: Reach) -> None:
    """A namespace that is not there is no empty one."""
    if reach.namespace and (because := await absence.explain_namespace(reach.mirror, reach.namespace)):
        raise Declined(Why.unknown, because)


async def pause(reach: Reach, target: str, reason: str, now: Instant, *, force: bool = False) -> list[Outcome]:
    """Now, whether idle or not. An ack, an opt-out and a protected namespace are heeded unless `force`."""
    workload = await find(reach, target, now)
    pods = _pods_of(reach, workload)
    namespace = reach.mirror.namespaces.find(reach.namespace)
    if not force and _is_protected(reach, workload.ref.namespace):
        raise Declined(Why.held, f"namespace {workload.ref.namespace} is protected; --force pauses there all the same")
    if not force and isinstance(namespace, Unseen):
        because = f"whether namespace {reach.namespace} opted out cannot be seen: {namespace.why}"
        raise Declined(Why.held, because)
    if not force and (found := brain.find_exemption(workload, pods, namespace, now)):
        raise Declined(Why.held, f"{workload.ref.short} is {found.because}")
    finding = decision.Finding(
        workload=workload, verdict=decision.Verdict.unknown, reason=decision.Reason.NoGpuPods,
        because=f"{reason} ({reach.by})", rule=idle.Rule(name="by hand"),
        gpus=sum(pod.gpu_count or 0 for pod in pods), idle_gpus=0, models=(), window=0.0,
    )
    try:
        heeded = namespace.value if isinstance(namespace, Known) and not force else None
        asked = decision.Pause(finding, reason)
        return [await reach.hands.pause(asked, workload, pods, now, by=reach.by, namespace=heeded)]
    except errors.Conflict:
        because = f"{workload.ref.short} or its Namespace changed at this very moment; look again, repeat the command"
        raise Declined(Why.changed, because) from None


def _is_protected(reach: Reach, namespace: str) -> bool:
    own = reach.mandate.scope.protected_namespaces if reach.mandate else None
    return bool(own.fullmatch(namespace) if own else re.fullmatch(settings.PROTECTED_NAMESPACES, namespace))


async def resume(
    reach: Reach, target: str, now: Instant, *, replicas: int | None = None, force: bool = False
) -> list[Outcome]:
    """As it was, or with `replicas` where the record of the size is lost. An intact one is heeded unless `force`."""
    if replicas is not None and not 0 < replicas <= record.MOST_REPLICAS:
        raise Declined(Why.malformed, f"{replicas} is no number of replicas: 1 to {record.MOST_REPLICAS}")
    asked = decision.Resume(await find(reach, target, now), reach.by, "asked for by hand")
    return [await reach.hands.resume(asked, now, replicas=replicas, is_forced=force)]


async def paused(reach: Reach, now: Instant) -> list[cluster.Workload]:
    """All that stands paused by us, of whatever kind, the longest first."""
    await reach.mirror.look_for("", now)
    return list_paused(reach)


def list_paused(reach: Reach) -> list[cluster.Workload]:
    """The same, of the kinds that are followed already."""
    began = [(marked, each) for each in reach.mirror.workloads({}) if (marked := reading.paused_at(each)) is not None]
    return [each for _, each in sorted(began, key=lambda one: (one[0], str(one[1].ref)))]


def find_hidden(reach: Reach, *, or_kept: bool = False) -> tuple[cluster.Missing, ...]:
    """What could not be seen although something of it may stand paused. `or_kept`: or be acknowledged, which a
    Namespace can be too."""
    harmless = _PAUSE_NOTHING - {"namespaces"} if or_kept else _PAUSE_NOTHING
    return tuple(each for each in reach.mirror.missing if each.what not in harmless)


async def resume_all(reach: Reach, now: Instant) -> list[Outcome]:
    """All of them; one that fails does not hold up the others."""
    return [await resume_one(reach, workload, now) for workload in await paused(reach, now)]


async def resume_one(reach: Reach, workload: cluster.Workload, now: Instant) -> Outcome:
    asked = decision.Resume(workload, reach.by, "asked for by hand")
    try:
        return await reach.hands.resume(asked, now)
    except errors.ClientError as problem:
        return execute.explain(asked, problem, now, is_dry=reach.hands.writer.is_dry)


def check_ack(until: Instant, now: Instant) -> None:
    because = f"an acknowledgement ends in the future, a minute at least and at most {MAX_ACK_HOURS} hours ahead"
    if not now + units.MINUTE <= until:  # also what is no number
        raise Declined(Why.malformed, because)
    if until > now + MAX_ACK_HOURS * units.HOUR:
        raise Declined(Why.too_long, because)


async def keep(reach: Reach, target: str, until: Instant | None, reason: str, now: Instant) -> list[Outcome]:
    """The acknowledgement: not paused until then although idle; without an end, for as long as is usual."""
    if until is not None:
        check_ack(until, now)
    workload = await find(reach, target, now)
    longest = _longest_ack(reach, workload)
    if until is not None and until > now + longest:
        held = f"the policy that holds for {workload.ref.short} heeds an acknowledgement for {units.humane(longest)}"
        raise Declined(Why.too_long, f"{held} at most; say --hours {units.hours(longest)} or less")
    end = now + min(idle.USUAL_ACK, longest) if until is None else until
    mark = marking.ack_mark(workload, until=end, by=reach.by, reason=reason, now=now)
    if kinds.stands_paused(workload):
        because = f"{workload.ref.short} is paused; resume it instead"
        return [Outcome(mark, Status.refused, now, because, code=Code.AlreadyPaused)]
    if not kinds.is_markable(workload):
        because = f"an acknowledgement on {workload.ref.short} itself would restart its pods; put it on the Namespace"
        return [Outcome(mark, Status.refused, now, because, code=decision.Detail.NoPlaceForMarks)]
    return [await reach.hands.mark(mark, now)]


def _longest_ack(reach: Reach, workload: cluster.Workload) -> Seconds:
    return min(find_consent(reach, workload).max_ack, MAX_ACK_HOURS * units.HOUR)


def find_consent(reach: Reach, workload: cluster.Workload) -> idle.Consent:
    """As policies say, else the flags, where it is the daemon who acts; where neither is known, as by default."""
    mandate = reach.mandate or idle.Mandate()
    if not isinstance(reach.mirror.policies, Known):
        return mandate.rule.consent
    namespace = reach.mirror.namespaces.find(workload.ref.namespace)
    return brain.find_consent(workload, _pods_of(reach, workload), namespace, reach.mirror.policies, mandate)


def _pods_of(reach: Reach, workload: cluster.Workload) -> tuple[cluster.Pod, ...]:
    return tuple(reach.mirror.pods[index] for index in workload.pods)


async def release(reach: Reach, target: str, now: Instant) -> list[Outcome]:
    """The acknowledgement ended, on every object of its own on which it stands."""
    workload = await find(reach, target, now)
    marks, around = marking.unack_marks(workload, by=reach.by), _find_around(reach, workload, now)
    short = workload.ref.short
    if not marks:
        raise Declined(Why.unknown, f"{short} is {f'kept by {around}' if around else 'not acknowledged'}")
    done = [await reach.hands.mark(mark, now) for mark in marks]
    if around:
        done[-1] = msgspec.structs.replace(done[-1], because=f"{done[-1].because}; it is still kept by {around}")
    return done


def _find_around(reach: Reach, workload: cluster.Workload, now: Instant) -> str:
    """Who else keeps it: its Namespace or one of its pods, and the command that ends that; "": nobody."""
    terms = idle.Consent(max_ack=_longest_ack(reach, workload))
    namespace = workload.ref.namespace
    space = reach.mirror.namespaces.known.get(namespace)
    gone = " ".join(f"{key}-" for key in names.ACK_KEYS)
    if space is not None and brain.find_given_ack((space.annotations,), terms, now):
        return f"its Namespace, for all that is in it: kubectl annotate namespace {namespace} {gone} ends that"
    for pod in _pods_of(reach, workload):
        if brain.find_pod_ack(pod, workload, terms, now):
            return f"its pod: kubectl annotate pod {pod.name} -n {namespace} {gone} ends that"
    return ""


def acks(reach: Reach, now: Instant) -> list[Ack]:
    """On workloads, and on Namespaces, where they hold for everything in them, as long as its policy heeds one."""
    found = [
        _read_ack(each.ref, (each.annotations, each.marks), _longest_ack(reach, each), now)
        for each in reach.mirror.workloads({})
    ]
    spaces = (each for each in reach.mirror.namespaces.known.values() if reach.namespace in ("", each.name))
    longest = idle.Consent().max_ack
    found += [
        _read_ack(cluster.Ref("", "v1", "Namespace", each.name, each.name, ""), (each.annotations,), longest, now)
        for each in spaces
    ]
    return [ack for ack in found if ack is not None]


def _read_ack(ref: cluster.Ref, sources: Sequence[reading.Said], longest: Seconds, now: Instant) -> Ack | None:
    """None where nobody said anything."""
    said = {key: value for each in sources for key, value in each.items()}
    written = reading.ack_until(said)
    if written is None:
        return None
    holds = brain.find_given_ack(sources, idle.Consent(max_ack=longest), now)
    by, reason = said.get(names.ACK_BY) or said.get(names.ACK_BY_ALIAS), said.get(names.ACK_REASON)
    if holds is not None:
        return Ack(ref, units.rfc3339(holds.until), "", by, reason)
    is_time = units.read_instant(written) is not None
    return Ack(ref, written, "it is over" if is_time else "that is no time", by, reason)


def check_freeze(seconds: Seconds) -> None:
    if not 0 < seconds <= MAX_FREEZE:
        because = f"a freeze lasts more than nothing and at most {units.humane(MAX_FREEZE)}"
        raise Declined(Why.malformed, because)


def pick_lease(found: Sequence[str], unseen: str) -> str:
    """The namespace of the only Lease there is."""
    if len(found) == 1:
        return found[0]
    if unseen and not found:
        where = f"say with -n where its Lease {names.LEASE} stands"
        raise Declined(Why.unclear, f"whether a daemon runs could not be seen, {where}: {unseen}")
    if not found:
        raise Declined(Why.unknown, f"no Lease {names.LEASE} is there: no daemon runs that this could reach")
    more = f"; {unseen}" if unseen else ""
    first = [each for each in names.SYSTEM_NAMESPACES if each in found]
    which = ", ".join((*first, *sorted(set(found) - set(first))))
    several = f"the Lease {names.LEASE} stands in several namespaces, say which with -n: {which}{more}"
    raise Declined(Why.unclear, several)


async def freeze(on: OnLease, seconds: Seconds, reason: str, now: Instant) -> FreezeAnswer:
    """Nothing is paused anywhere until then; resuming works. Once this returns `answered` or `nobody`, none begins.

    A freeze that lasts longer is kept: only `unfreeze` ends one early. `now` counts where the server tells no time:
    the daemon's clock agrees with the server's, and who asks may be an hour behind."""
    check_freeze(seconds)
    until = units.rfc3339((on.time.value if isinstance(on.time, Known) else now) + seconds)
    changes = {names.FROZEN_UNTIL: until, names.FROZEN_BECAUSE: reason and f"{reason} ({on.by})"}
    answer = await _ask_holder(on, lambda said: {} if _lasts_longer(said.get(names.FROZEN_UNTIL), until) else changes)
    return msgspec.structs.replace(answer, is_longer=answer.until != until)


async def unfreeze(on: OnLease) -> FreezeAnswer:
    return await _ask_holder(on, lambda said: {names.FROZEN_UNTIL: None, names.FROZEN_BECAUSE: None})


def _lasts_longer(standing: str | None, until: str) -> bool:
    """One that cannot be read lasts until somebody takes it off."""
    ends = units.read_instant(standing)
    return bool(standing) and (ends is None or ends > units.parse_instant(until))


async def _ask_holder(on: OnLease, make: lease.MakeChanges) -> FreezeAnswer:
    """Written on the Lease, which its holder reads every two seconds; who takes it later reads it before."""
    try:
        await on.lease.annotate(make)
    except errors.NotFound:
        none = f"no Lease {names.LEASE} is in namespace {on.namespace}: no daemon runs there"
        raise Declined(Why.unknown, none) from None
    until = on.lease.annotations.get(names.FROZEN_UNTIL)
    heard = await on.lease.hear(names.FROZEN_SEEN, until, ANSWER_PATIENCE)
    return FreezeAnswer(until, heard, on.lease.holder or "", on.lease.renewed or "never")


def is_so(outcome: Outcome) -> bool:
    """Is it now as was asked? What was so already counts; what kept changing under us does not."""
    if outcome.status is Status.overtaken:
        return outcome.code in (Code.AlreadyPaused, Code.AlreadyRunning)
    return outcome.status in (Status.done, Status.dry_run)


# ---- budgets ---------------------------------------------------------------------------------------------------------

MAX_OVERRIDE = 365 * units.DAY  # a daemon heeds as much as its --cost-max-override-hours says, which only it knows


def check_override(seconds: Seconds, reason: str) -> None:
    if not 0 < seconds <= MAX_OVERRIDE:
        raise Declined(Why.too_long, f"an override lasts more than 0 and at most {units.humane(MAX_OVERRIDE)}")
    if not reason.strip() or _CONTROL.search(reason):
        raise Declined(Why.malformed, "say why, on one line: others read it")


async def override(api: kube.Api, name: str, seconds: Seconds, reason: str, now: Instant) -> str:
    """Let a budget be exceeded for a while; until when. Who may update that budget may do this."""
    check_override(seconds, reason)
    until, who = units.rfc3339(now + seconds), await api.who_am_i() or "unknown"
    said = dict(zip(names.OVERRIDE_KEYS, (until, f"{names.BY_USER}{who}", reason.strip()), strict=True))
    await _annotate_budget(api, await _read_budget(api, name), said)
    return until


async def end_override(api: kube.Api, name: str) -> None:
    await _annotate_budget(api, await _read_budget(api, name), dict.fromkeys(names.OVERRIDE_KEYS))


async def acknowledge_alert(api: kube.Api, name: str, alert: str) -> bool:
    """Mark this alert as seen in the period that runs, and nothing else. False: it was already. Who may update that
    budget may do this."""
    found = await _read_budget(api, name)
    of = budget_crd.parse(found)
    known = [rule.name for rule in of.alerts]
    if alert not in known:
        raise Declined(Why.unknown, f"CostBudget {name} has no alert {alert}; it has {', '.join(known) or 'none'}")
    start = of.standing.period_start
    seen = alert if start is None else budget.name_seen(alert, start)
    if not of.acknowledged.isdisjoint((alert, seen)):
        return False
    others = (each for each in of.acknowledged if each.partition("@")[0] != alert)
    said = {names.ALERT_ACK: ",".join(sorted({seen, *others}))}
    await _annotate_budget(api, found, said, is_as_read=True)
    return True


async def _annotate_budget(
    api: kube.Api, found: Mapping[str, Any], said: Mapping[str, str | None], *, is_as_read: bool = False
) -> None:
    """`is_as_read`: declined where anything of it is another by now, and not only where it was made anew."""
    name, guards = found["metadata"]["name"], ("uid", "resourceVersion") if is_as_read else ("uid",)
    body = {"metadata": {**{key: found["metadata"][key] for key in guards}, "annotations": said}}
    try:
        await api.merge_patch(kube.COST_BUDGETS, None, name, body, field_manager=names.FIELD_MANAGER)
    except errors.NotFound:
        raise _no_budget(name) from None
    except errors.Conflict:
        raise Declined(Why.changed, f"CostBudget {name} changed meanwhile: try again") from None


async def _read_budget(api: kube.Api, name: str) -> Mapping[str, Any]:
    try:
        return await api.get(kube.COST_BUDGETS, None, name)
    except errors.NotFound:
        raise _no_budget(name) from None


def _no_budget(name: str) -> Declined:
    return Declined(Why.unknown, f"there is no CostBudget {name}")


async def lift(api: kube.Api, name: str) -> tuple[int, int]:
    """Let the pods go on that wait for this budget: how many do, of how many. What else they wait for stays. Declined
    where neither it nor any pod that waits for it is there."""
    waiting = [pod for pod in await gates.find(api, lambda resource: False) if name in pod.budgets]
    if not waiting:  # of one that is gone, pods may still wait
        await _read_budget(api, name)
    return await gates.remove(api, waiting), len(waiting)


async def free_pools(api: kube.Api, name: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Of the NodePools of Karpenter that this budget holds: what is given back, and what is still held and why."""
    seen = await observed_pools.find(api)
    if isinstance(seen, Unseen):
        return (), (f"whether it holds NodePools is not seen: {seen.why}",)
    freed, held = list[str](), list[str]()
    for pool in seen.value if isinstance(seen, Known) else ():
        record = node_pools.read(pool.record or "")
        if record is None or name not in record.budgets:
            continue
        try:
            freed.append(f"NodePool {pool.name} {await holding_pools.give_back(api, pool)}")
        except errors.ClientError as problem:
            held.append(f"NodePool {pool.name} is still held: {problem}")
    return tuple(freed), tuple(held)
