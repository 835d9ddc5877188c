"""The second look, just before an act that hurts: are these workloads still what we took them for?

In: the mirror, and the workloads concerned. Each is read anew from the server with its companions and its namespace;
then its pods are listed anew, by its own selector where it makes all of them itself, else with all pods of its
namespace; then everything is resolved by the same code as before. Out: fresh pods and namespaces, and the workloads
with their indices into them. A workload that is gone, of which any part could not be read anew, or whose selector fits
a pod of somebody else, is not among them, and `missing` says why.
Invariant: nothing cached speaks for a workload, its namespace, its companions or its pods; the mirror only lends the
links between.
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from fallow.clients import errors
from fallow.clients.kubernetes import api as kube
from fallow.model import cluster, kinds, pointers, selectors
from fallow.model.seen import Register, Unseen, sure
from fallow.model.units import Instant
from fallow.observe.cluster import companions, mirror, objects, owners, pods
from fallow.observe.cluster.contents import LookPast

# More than these, and one list of the whole namespace is the lighter question.
_MOST_SELECTORS = 20
_OPERATORS = {
    "In": "{key} in ({values})", "NotIn": "{key} notin ({values})", "Exists": "{key}", "DoesNotExist": "!{key}",
}

Read: TypeAlias = list[tuple[cluster.Ref, objects.Seen | None]] | errors.ClientError


class FreshLook(msgspec.Struct, frozen=True):
    pods: tuple[cluster.Pod, ...]
    namespaces: Register[cluster.Namespace]
    workloads: tuple[cluster.Workload, ...]
    missing: tuple[cluster.Missing, ...]


async def look(
    seen: mirror.Mirror, workloads: Collection[cluster.Workload], look_past: LookPast, now: Instant
) -> FreshLook:
    read = await asyncio.gather(*(_read_anew(seen, workload) for workload in workloads))
    spaces = await _read_spaces(seen, {workload.ref.namespace for workload in workloads})
    questions = _ask_for_pods(workloads, read, _find_direct(seen, workloads, look_past))
    listed = await asyncio.gather(*(_list_pods(seen, *question) for question in questions))
    refused: dict[str, errors.ClientError] = {}
    alive: dict[str, cluster.Pod] = {}
    for (namespace, _), pods_there in zip(questions, listed, strict=True):
        if isinstance(pods_there, errors.ClientError):
            refused[namespace] = pods_there
        else:
            alive |= {pod.uid: pod for pod in pods_there}
    faults: dict[str, str] = {}
    fresh: dict[owners.Key, dict[str, objects.Seen | None]] = {}
    for workload, answer in zip(workloads, read, strict=True):
        if isinstance(answer, errors.ClientError) or workload.ref.namespace in refused:
            faults[workload.ref.uid] = str(refused.get(workload.ref.namespace, answer))
            continue
        for ref, found in answer:
            fresh.setdefault(owners.key_of(ref), {})[ref.uid] = found
            if ref == workload.ref and found is None:
                faults[ref.uid] = "it is gone"
    resolved = await _resolve(seen, seen.contents.settle_claims(alive.values()), fresh, look_past, now)
    return _choose(workloads, faults, spaces, *resolved)


async def _read_spaces(seen: mirror.Mirror, wanted: Collection[str]) -> Register[cluster.Namespace]:
    """The namespaces as they are now: somebody may have opted out there a moment ago."""
    names = sorted(wanted)
    found = await asyncio.gather(*(_read_space(seen.api, name) for name in names))
    known = {each.name: each for each in found if isinstance(each, cluster.Namespace)}
    problems = (f"{name}: {each}" for name, each in zip(names, found, strict=True) if name not in known)
    return Register(known, Unseen("; ".join(problems)))


async def _read_space(api: kube.Api, name: str) -> cluster.Namespace | errors.ClientError:
    try:
        return objects.see_namespace(await api.get(kube.NAMESPACES, None, name, kind=objects.Bare))
    except errors.ClientError as problem:
        return problem


def _find_direct(seen: mirror.Mirror, workloads: Iterable[cluster.Workload], look_past: LookPast) -> set[str]:
    """Workloads (by uid) that made all their pods, themselves or by a ReplicaSet.

    Others' pods, such as the executors that the pod of a Job started, are theirs too and bear any labels: a selector
    would not find them, and a busy one would be missed.
    """
    wanted, known = {workload.ref.uid for workload in workloads}, seen.pods
    return {
        workload.ref.uid
        for workload in seen.workloads(look_past)
        if workload.ref.uid in wanted and all(_is_direct(known[index].owner, workload) for index in workload.pods)
    }


def _is_direct(owner: cluster.Owner | None, workload: cluster.Workload) -> bool:
    if owner is None or owner.uid == workload.ref.uid:
        return owner is not None
    row = kinds.find(owner.group, owner.kind)
    return row is not None and row.relays


def _ask_for_pods(
    workloads: Iterable[cluster.Workload], read: Iterable[Read], direct: Collection[str]
) -> list[tuple[str, str | None]]:
    """(namespace, label selector) of each list to make; None: all of the namespace."""
    chosen: dict[str, set[str | None]] = {}
    for workload, answer in zip(workloads, read, strict=True):
        if isinstance(answer, errors.ClientError):
            continue
        fresh = next((found for ref, found in answer if ref == workload.ref), None)
        selector = _selector_of(fresh) if fresh and workload.ref.uid in direct else None
        chosen.setdefault(workload.ref.namespace, set()).add(selector)
    return [
        (namespace, one)
        for namespace, found in chosen.items()
        for one in ((None,) if None in found or len(found) > _MOST_SELECTORS else found)
    ]


def _selector_of(seen: objects.Seen) -> str | None:
    """As the list wants it; None where its kind has none, or it holds something we do not know."""
    found = pointers.read(seen.body, kinds.SELECTOR)
    if not isinstance(found, dict) or not found or set(found) - {"matchLabels", "matchExpressions"}:
        return None
    parts = [f"{key}={value}" for key, value in (found.get("matchLabels") or {}).items()]
    for rule in found.get("matchExpressions") or ():
        if rule.get("operator") not in _OPERATORS:
            return None
        parts.append(_OPERATORS[rule["operator"]].format(key=rule["key"], values=",".join(rule.get("values") or ())))
    return ",".join(parts) or None


async def _list_pods(
    seen: mirror.Mirror, namespace: str, selector: str | None
) -> list[cluster.Pod] | errors.ClientError:
    found: list[cluster.Pod] = []
    pages = seen.api.list_pages(
        kube.PODS, item=pods.PodItem, namespace=namespace, label_selector=selector, field_selector=pods.ALIVE
    )
    try:
        async for page in pages:
            if page.restarted:
                found = []
            if page.unreadable:
                return errors.BadAnswer(f"{len(page.unreadable)} pods in {namespace} could not be read")
            found += [pod for pod in map(seen.reader.read, page.items) if pod is not None]
    except errors.ClientError as problem:
        return problem
    return found


async def _read_anew(seen: mirror.Mirror, workload: cluster.Workload) -> Read:
    """The workload, the object that holds its marks, and its companions; None for what is gone."""
    steering = (workload.hpas, workload.scaled_objects, workload.kueue, workload.budgets)
    companions = [companion for found in steering for companion in sure(found)]
    refs = list(dict.fromkeys([workload.ref, workload.marks_ref, *(companion.ref for companion in companions)]))
    try:
        found = await asyncio.gather(*(_read_one(seen, ref) for ref in refs))
    except errors.ClientError as problem:
        return problem
    return list(zip(refs, found, strict=True))


async def _read_one(seen: mirror.Mirror, ref: cluster.Ref) -> objects.Seen | None:
    try:
        found = await seen.read_anew(ref)
    except errors.NotFound:
        return None
    return found if found.ref.uid == ref.uid else None


async def _resolve(
    seen: mirror.Mirror, alive: tuple[cluster.Pod, ...], fresh: companions.Fresh, look_past: LookPast, now: Instant
) -> tuple[tuple[cluster.Pod, ...], tuple[cluster.Workload, ...]]:
    """As always, with owners looked up that came into being since."""
    view = seen.contents.view_with(alive, fresh)
    for _ in range(owners.MOST_OWNERS):
        gaps = owners.find_gaps(view)
        unknown = {ref for ref in gaps.missing if fresh.get(owners.key_of(ref), {}).get(ref.uid, ref) is not None}
        if not unknown:
            break
        await seen.look_up(unknown, now)
        view = seen.contents.view_with(alive, fresh)
    return alive, owners.resolve(view, look_past)


def _choose(
    wanted: Iterable[cluster.Workload], faults: Mapping[str, str], spaces: Register[cluster.Namespace],
    alive: tuple[cluster.Pod, ...], resolved: Iterable[cluster.Workload],
) -> FreshLook:
    """Only the workloads that were asked for, and only their pods."""
    by_ref = {workload.ref: workload for workload in resolved}
    kept: list[cluster.Pod] = []
    workloads: list[cluster.Workload] = []
    missing: list[cluster.Missing] = []
    for workload in wanted:
        found = by_ref.get(workload.ref)
        if workload.ref.uid in faults:
            missing.append(cluster.Missing(str(workload.ref), faults[workload.ref.uid]))
        elif found is None:
            missing.append(cluster.Missing(str(workload.ref), "it has no GPU pods any more"))
        elif (stranger := _find_stranger(found, alive)) is not None:
            because = f"pod {stranger.name} bears its labels and is not its own"
            missing.append(cluster.Missing(str(workload.ref), because))
        else:
            indices = tuple(range(len(kept), len(kept) + len(found.pods)))
            kept += [alive[index] for index in found.pods]
            workloads.append(msgspec.structs.replace(found, pods=indices))
    return FreshLook(tuple(kept), spaces, tuple(workloads), tuple(missing))


def _find_stranger(workload: cluster.Workload, alive: Sequence[cluster.Pod]) -> cluster.Pod | None:
    """A pod that its selector fits, and that leads elsewhere: one of the two is wrong about whose it is."""
    selector = selectors.read(pointers.read(workload.body, kinds.SELECTOR))
    if selector is None:
        return None
    own = set(workload.pods)
    others = (pod for index, pod in enumerate(alive) if index not in own and pod.namespace == workload.ref.namespace)
    return next((pod for pod in others if not pod.terminating and selector.matches(pod.labels)), None)
