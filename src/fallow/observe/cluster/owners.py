"""From pods to the workloads people think of, through any chain of controllers.

In: a `View`: pods, the objects that were seen by kind and uid, what could not be had and why, and the companions by
what they steer.
Out: `find_gaps` says which objects are named but were not seen (the mirror gets them), `resolve` the workloads.
Pure: the same view gives the same workloads.
Invariant: an owner is followed only if namespace, group, kind, name and uid all fit: who may create a pod may write
anything into its owner references, and what one names leads no other astray. Whatever stops a chain early is trouble on
its workload, never a smaller workload that its operator would restore; and of whatever may stand above the break it is
not known what all belongs to it (`strays`).
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from fallow import names
from fallow.model import cluster, kinds, pointers, selectors
from fallow.model.cluster import Trouble
from fallow.model.seen import ABSENT, Input, Known, Unseen, several
from fallow.model.units import Instant
from fallow.observe.cluster import objects, pods

Key: TypeAlias = kinds.Key
Steered: TypeAlias = tuple[str, str, str, str]  # namespace, group, kind, name
Named: TypeAlias = tuple[str, cluster.Owner]  # an owner reference, and the namespace of what carries it
Owned: TypeAlias = Mapping[Named, list[cluster.Pod]]

# Deeper than any operator we know; what is deeper is a loop.
MOST_OWNERS = 10

POD: Key = ("", "Pod")
# More different sets of labels than these on strays of one namespace, and all that select pods there are in doubt.
_MOST_LOOKS = 200
_NON_SCALABLE = {("apps", "DaemonSet"), ("", "Node")}


class Lost(msgspec.Struct, frozen=True):
    """An owner that could not be had, why, and when it is worth asking again."""

    trouble: Trouble
    because: str
    retry_at: Instant = math.inf


class View(msgspec.Struct, kw_only=True, eq=False):
    """Everything that resolving needs, at one instant."""

    pods: tuple[cluster.Pod, ...]
    owned: Owned  # the same, by what owns them
    stores: Mapping[Key, Mapping[str, objects.Seen]]  # by kind, then by uid
    rows: Mapping[Key, kinds.Kind]  # of the kinds we can pause
    pointers: Mapping[Key, str | None]  # where replicas stand, of kinds outside the table that serve /scale
    lost: Mapping[cluster.Ref, Lost]
    hpas: Input[Mapping[Steered, tuple[cluster.Companion, ...]]]
    scaled_objects: Input[Mapping[Steered, tuple[cluster.Companion, ...]]]
    kueue: Input[Mapping[tuple[str, str], tuple[cluster.Companion, ...]]]  # by namespace and uid of the job
    queued: tuple[Named, ...]  # namespace and job of each Kueue Workload that carries our record
    budgets: Input[Mapping[str, tuple[tuple[selectors.Selector, cluster.Companion], ...]]]  # by namespace
    climbed: "dict[Named, _Climb]" = {}  # filled while climbing: finding gaps and resolving climb the same chains


class Gaps(msgspec.Struct):
    """What the chains name. `missing` is neither seen nor lost."""

    missing: set[cluster.Ref]
    uids: set[str]
    named: set[Steered]  # objects known by name only
    lost: set[cluster.Ref]  # those that could not be had, and still matter


class _Climb(msgspec.Struct, frozen=True, gc=False):
    """The owners from the lowest up, and the one that could not be passed, if any."""

    links: tuple[objects.Seen, ...]
    stopped_at: cluster.Ref | None = None
    why: Lost | None = None  # None with stopped_at: a gap


class _Route(msgspec.Struct, frozen=True, gc=False):
    """From a pod's direct owner to its workload. `above`: the CronJob over a Job that is the workload."""

    ref: cluster.Ref
    links: tuple[objects.Seen, ...]
    above: cluster.Owner | None = None
    trouble: Trouble | None = None
    because: str = ""
    is_broken: bool = False  # it stopped where somebody should stand
    passed: tuple[cluster.Owner, ...] = ()  # what admins want looked past

    @property
    def top(self) -> objects.Seen | None:
        return self.links[-1] if self.links and self.links[-1].ref is self.ref else None


# ---- climbing ----


class _Climber:
    """Climbs each chain once."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._pods = {pod.uid: pod for pod in view.pods}
        self._climbed = view.climbed
        self._by_name: dict[Key, dict[tuple[str, str], objects.Seen]] = {}

    def climb(self, namespace: str, owner: cluster.Owner) -> _Climb:
        found = self._climbed.get((namespace, owner))
        if found is None:
            found = self._climbed[namespace, owner] = self._climb(namespace, owner)
        return found

    def _climb(self, namespace: str, start: cluster.Owner) -> _Climb:
        links: list[objects.Seen] = []
        owner: cluster.Owner | None = start
        while owner is not None:
            seen = self._look_up(namespace, owner)
            if seen is None or len(links) == MOST_OWNERS or (owner.group, owner.kind) in _NON_SCALABLE:
                ref = cluster.Ref(owner.group, owner.version, owner.kind, namespace, owner.name, owner.uid)
                return _Climb(tuple(links), ref, self._why_stopped(ref, is_seen=seen is not None))
            links.append(seen)
            namespace, owner = seen.ref.namespace, seen.owner
        return _Climb(tuple(links))

    def _why_stopped(self, ref: cluster.Ref, *, is_seen: bool) -> Lost | None:
        if key_of(ref) in _NON_SCALABLE:
            return Lost(Trouble.NonScalable, f"{ref.short} decides itself where its pods run")
        if is_seen:
            return Lost(Trouble.OwnerLookupFailed, f"more than {MOST_OWNERS} owners are above each other")
        return self._view.lost.get(ref)

    def _look_up(self, namespace: str, owner: cluster.Owner) -> objects.Seen | None:
        """An owner stands in the namespace of what it owns, or in none."""
        seen = self._view.stores.get((owner.group, owner.kind), {}).get(owner.uid)
        if seen is None and (owner.group, owner.kind) == POD and owner.uid in self._pods:
            seen = pods.as_link(self._pods[owner.uid])
        fits = seen is not None and seen.ref.name == owner.name and seen.ref.namespace in (namespace, "")
        return seen if fits else None

    def climb_from(self, seen: objects.Seen) -> _Climb:
        """From an object itself, rather than from its owner."""
        if seen.owner is None:
            return _Climb((seen,))
        above = self.climb(seen.ref.namespace, seen.owner)
        return _Climb((seen, *above.links), above.stopped_at, above.why)

    def find_named(self, key: Key, namespace: str, name: str) -> objects.Seen | None:
        if key not in self._by_name:
            store = self._view.stores.get(key, {})
            self._by_name[key] = {(seen.ref.namespace, seen.ref.name): seen for seen in store.values()}
        return self._by_name[key].get((namespace, name))


def _is_broken(climb: _Climb) -> bool:
    """Did it stop where somebody should stand, rather than at something that ends all chains?"""
    return climb.stopped_at is not None and (climb.why is None or climb.why.trouble is not Trouble.NonScalable)


# ---- what is still to be looked up ----


def find_gaps(view: View) -> Gaps:
    climber = _Climber(view)
    gaps = Gaps(set(), set(), set(), set())
    for (namespace, owner), pods_of_it in view.owned.items():
        climb = climber.climb(namespace, owner)
        _note_climb(gaps, owner, climb)
        if climb.why is not None and _is_broken(climb):
            for pod in pods_of_it:
                _note_names(view, climber, pod, gaps)
    for namespace, owner in _owners_besides(view):
        _note_climb(gaps, owner, climber.climb(namespace, owner))
    return gaps


def group_by_owner(some: Iterable[cluster.Pod]) -> Owned:
    """Those that have one."""
    groups: dict[Named, list[cluster.Pod]] = {}
    for pod in some:
        if pod.owner is not None:
            groups.setdefault((pod.namespace, pod.owner), []).append(pod)
    return groups


def _note_climb(gaps: Gaps, owner: cluster.Owner, climb: _Climb) -> None:
    gaps.uids.add(owner.uid)
    gaps.uids.update(link.owner.uid for link in climb.links if link.owner)
    if climb.stopped_at is not None:
        (gaps.missing if climb.why is None else gaps.lost).add(climb.stopped_at)


def _owners_besides(view: View) -> Iterator[Named]:
    """Of what has no pod."""
    for seen in _paused(view):
        if seen.owner is not None:
            yield seen.ref.namespace, seen.owner
    yield from view.queued


def _paused(view: View) -> Iterator[objects.Seen]:
    for key in view.rows:
        for seen in view.stores.get(key, {}).values():
            if names.PAUSED_AT in seen.annotations:
                yield seen


def _note_names(view: View, climber: _Climber, pod: cluster.Pod, gaps: Gaps) -> None:
    for key, name in kinds.named_by(pod.labels):
        gaps.named.add((pod.namespace, *key, name))
        ref = cluster.Ref(key[0], "", key[1], pod.namespace, name, "")
        seen = climber.find_named(key, pod.namespace, name)
        if seen is None:
            (gaps.lost if ref in view.lost else gaps.missing).add(ref)
        elif seen.owner is not None:
            _note_climb(gaps, seen.owner, climber.climb(pod.namespace, seen.owner))


# ---- resolving ----


class _Group(msgspec.Struct, gc=False):
    """The pods of one workload, and the different ways that lead to it."""

    route: _Route
    pods: list[int]
    routes: dict[cluster.Owner | None, _Route]


def resolve(view: View, look_past: Mapping[str, frozenset[str]]) -> tuple[cluster.Workload, ...]:
    """Every object that owns a GPU pod, through whatever chain, and every one that we paused.

    `look_past`: by namespace, the kinds (`Kind` or `Kind.group`) that admins want us to look past, because what is
    below may be paused.
    """
    router = _Router(view, look_past)
    routes, paused = [router.route(pod) for pod in view.pods], list(router.route_paused())
    whose = {route.ref.uid: route.ref for route in (*paused, *routes) if route.top is not None}
    groups: dict[cluster.Ref, _Group] = {}
    strays: dict[str, _Strays] = {}
    for index, (pod, route) in enumerate(zip(view.pods, routes, strict=True)):
        if whose.setdefault(route.ref.uid, route.ref) != route.ref:
            route = _route_liar(pod, route.ref)
        if route.is_broken and pod.node and not pod.terminating:
            strays.setdefault(pod.namespace, _Strays()).add(_Stray(pod, route.ref, route.because))
        group = groups.get(route.ref)
        if group is None:
            group = groups[route.ref] = _Group(route, [], {})
        group.pods.append(index)
        group.routes.setdefault(pod.owner, route)
    for route in paused:
        groups.setdefault(route.ref, _Group(route, [], {None: route}))
    built = (_build(view, group) for group in groups.values())
    return tuple(_taint(one, strays.get(one.ref.namespace)) for one in built) if strays else tuple(built)


class _Stray(msgspec.Struct, frozen=True):
    """A pod on a GPU whose owners could not be followed to the top, by where that stopped and why."""

    pod: cluster.Pod
    at: cluster.Ref
    because: str


class _Strays:
    """Those of one namespace, by their labels: of those that look alike, two that stopped elsewhere say it all."""

    def __init__(self) -> None:
        self._alike: dict[frozenset[tuple[str, str]], list[_Stray]] = {}
        self._any: list[_Stray] = []

    def add(self, stray: _Stray) -> None:
        alike = self._alike.setdefault(frozenset(stray.pod.labels.items()), [])
        for known in (alike, self._any):
            if len(known) < 2 and all(each.at != stray.at for each in known):
                known.append(stray)

    def find(self, workload: cluster.Workload) -> _Stray | None:
        """One that may be the workload's. Where so many differ that looking would take long, any may."""
        row, selector = kinds.of(workload), selectors.read(pointers.read(workload.body, kinds.SELECTOR))
        if (row is not None and row.may_own) or (selector is not None and len(self._alike) > _MOST_LOOKS):
            return next((stray for stray in self._any if stray.at != workload.ref), None)
        fitting = (alike for alike in self._alike.values() if selector is not None and _fits(selector, alike))
        return next((stray for alike in fitting for stray in alike if stray.at != workload.ref), None)


def _fits(selector: selectors.Selector, alike: Sequence[_Stray]) -> bool:
    return selector.matches(alike[0].pod.labels)


def _taint(workload: cluster.Workload, strays: _Strays | None) -> cluster.Workload:
    """Such a pod may belong to whatever stands above the break: what selects it, or may own what owns it."""
    found = strays.find(workload) if strays is not None and workload.pods else None
    if found is None:
        return workload
    why = f"pod {found.pod.name} may be part of it, and whose it is could not be looked up: {found.because}"
    return msgspec.structs.replace(workload, strays=Unseen(why))


class _Router:
    def __init__(self, view: View, look_past: Mapping[str, frozenset[str]]) -> None:
        self._view = view
        self._look_past = look_past
        self._climber = _Climber(view)
        self._routes: dict[Named, _Route] = {}

    def route(self, pod: cluster.Pod) -> _Route:
        if pod.owner is None or pod.static:
            return _route_alone(pod)
        found = self._routes.get((pod.namespace, pod.owner))
        if found is None:
            climb = self._climber.climb(pod.namespace, pod.owner)
            if _is_broken(climb):
                return self._route_by_labels(pod) or self._choose(climb)  # depends on the pod: not remembered
            found = self._routes[pod.namespace, pod.owner] = self._choose(climb)
        return found

    def _route_by_labels(self, pod: cluster.Pod) -> _Route | None:
        for key, name in kinds.named_by(pod.labels):
            seen = self._climber.find_named(key, pod.namespace, name)
            if seen is not None:
                return self._choose(self._climber.climb_from(seen))
        return None

    def route_paused(self) -> Iterator[_Route]:
        """Paused ones without pods. A ReplicaSet carries copies of its Deployment's marks; only the topmost counts."""
        for seen in _paused(self._view):
            route = self._choose(self._climber.climb_from(seen))
            if route.top is seen and route.ref.uid == seen.ref.uid:
                yield route
        for namespace, owner in self._view.queued:
            route = self._choose(self._climber.climb(namespace, owner))
            if route.top is not None:
                yield route

    def _choose(self, climb: _Climb) -> _Route:
        """The topmost object, unless it is one to look past."""
        links, above = list(climb.links), None
        wanted = self._look_past.get(climb.links[0].ref.namespace if links else "", frozenset())
        if climb.stopped_at is not None and not (links and kinds.is_listed(key_of(climb.stopped_at), wanted)):
            why = climb.why or Lost(Trouble.OwnerLookupFailed, f"{climb.stopped_at.short} has not been looked up yet")
            return _Route(climb.stopped_at, climb.links, None, why.trouble, why.because, _is_broken(climb))
        listed = [climb.stopped_at] if climb.stopped_at is not None else []
        while len(links) > 1 and _is_passed(links[-1], links[-2], wanted):
            passed = links.pop()
            listed += [] if _yields(kinds.find(*key_of(passed.ref)), links[-1]) else [passed.ref]
            above = _as_owner(passed.ref) if key_of(passed.ref) == kinds.CRON_JOB.key else None
        trouble, because = self._doubt(links[-1])
        return _Route(links[-1].ref, tuple(links), above, trouble, because, passed=tuple(map(_as_owner, listed)))

    def _doubt(self, top: objects.Seen) -> tuple[Trouble | None, str]:
        """What is wrong with an object at the top of its chain."""
        key, short = key_of(top.ref), top.ref.short
        if key not in self._view.rows:
            return Trouble.ManagedByUnknownOwner, f"{short} ({key[0] or 'core'}) is of a kind that we cannot pause"
        return None, ""


def _route_alone(pod: cluster.Pod) -> _Route:
    link = pods.as_link(pod)
    if pod.static:
        because = "a static pod is run by its node's kubelet from a file"
        return _Route(link.ref, (link,), None, Trouble.NonScalable, because)
    return _Route(link.ref, (link,), None, Trouble.BarePod, "the pod has no owner that could bring it back")


def _route_liar(pod: cluster.Pod, named: cluster.Ref) -> _Route:
    """It names an owner that nobody has seen by the uid of another object: it must not pass for that one."""
    link, because = pods.as_link(pod), f"it names {named.short} as its owner by the uid of another object"
    return _Route(link.ref, (link,), None, Trouble.OwnerMissing, because, is_broken=True)


def _is_passed(upper: objects.Seen, lower: objects.Seen, wanted: frozenset[str]) -> bool:
    row = kinds.find(*key_of(upper.ref))
    if row is not None and _yields(row, lower):
        return row.is_schedule or kinds.is_finished(row, upper.body)
    return kinds.is_listed(key_of(upper.ref), wanted)


def _yields(row: kinds.Kind | None, lower: objects.Seen) -> bool:
    """Is the kind's own row what passes it, and nobody's list: a schedule, or what its cluster outlives?"""
    return row is not None and (row.is_schedule or row.outlived_by == lower.ref.kind)


def key_of(ref: cluster.Ref) -> Key:
    return ref.group, ref.kind


def _as_owner(ref: cluster.Ref) -> cluster.Owner:
    return cluster.Owner(ref.group, ref.version, ref.kind, ref.name, ref.uid)


# ---- building ----


def _build(view: View, group: _Group) -> cluster.Workload:
    route = max(group.routes.values(), key=lambda each: len(each.links)) if len(group.routes) > 1 else group.route
    links = _distinct_links(group)
    steered = links if route.top else (*links, objects.Seen(ref=route.ref, owner=None))
    top = steered[-1] if route.top is None else route.top
    marks = _find_marks_holder(top, links)
    chain, bodies = _describe_chain(route, links)
    return cluster.Workload(
        ref=route.ref, resource_version=top.resource_version, labels=top.labels, annotations=top.annotations,
        body=top.body, pods=tuple(group.pods), chain=chain, chain_bodies=bodies, trouble=route.trouble,
        trouble_because=route.because, marks_ref=marks.ref, marks=marks.annotations,
        marks_version=None if marks is top else marks.resource_version, hpas=_steering(view.hpas, steered),
        scaled_objects=_steering(view.scaled_objects, steered), kueue=_find_queued(view, route.ref),
        budgets=_find_budgets(view, group), replicas_pointer=view.pointers.get(key_of(route.ref)),
        chain_annotations=tuple(
            link.annotations for link in links if link is not top and objects.has_our_marks(link.annotations)
        ),
        writer=top.writer, is_ours=top.is_ours, passed=route.passed,
    )


def _distinct_links(group: _Group) -> tuple[objects.Seen, ...]:
    if len(group.routes) == 1:
        return next(iter(group.routes.values())).links
    return tuple({link.ref.uid: link for route in group.routes.values() for link in route.links}.values())


def _find_marks_holder(top: objects.Seen, links: tuple[objects.Seen, ...]) -> objects.Seen:
    """The workload, or what stands between it and its GPU pods, however deep: lest a mark restart those.

    Of several the one that carries marks already: while a Revision follows another, both are there.
    """
    row = kinds.find(*key_of(top.ref))
    if row is None or row.marks_on is None:
        return top
    below = [link for link in links if key_of(link.ref) == row.marks_on]
    return min(below, key=lambda link: (not objects.has_our_marks(link.annotations), link.ref.name), default=top)


def _describe_chain(
    route: _Route, links: tuple[objects.Seen, ...]
) -> tuple[tuple[cluster.Owner, ...], tuple[Mapping[str, Any], ...]]:
    """The longest chain; before it, StatefulSets and LeaderWorkerSets of other pods with other volumes."""
    main = route.links if route.links and key_of(route.links[0].ref) != POD else route.links[1:]
    known = {link.ref.uid for link in main}
    bodies = [link.body.get("spec") for link in main]
    others: list[objects.Seen] = []
    for link in links if links is not route.links else ():
        if key_of(link.ref) in kinds.WITH_CLAIMS and link.ref.uid not in known and link.body.get("spec") not in bodies:
            others.append(link)
            bodies.append(link.body.get("spec"))
    chain = [*others, *main]
    owners = [_as_owner(link.ref) for link in chain] + ([route.above] if route.above else [])
    if route.top is None:
        owners.append(_as_owner(route.ref))
    return tuple(owners), tuple(link.body for link in chain if key_of(link.ref) in kinds.WITH_CLAIMS)


def _steering(
    known: Input[Mapping[Steered, tuple[cluster.Companion, ...]]], links: tuple[objects.Seen, ...]
) -> cluster.Steering:
    if not isinstance(known, Known):
        return known
    if not known.value:  # nearly always
        return ABSENT
    found = (known.value.get((link.ref.namespace, link.ref.group, link.ref.kind, link.ref.name), ()) for link in links)
    return several(tuple(companion for companions in found for companion in companions))


def _find_queued(view: View, job: cluster.Ref) -> cluster.Steering:
    found = view.kueue
    return several(found.value.get((job.namespace, job.uid), ())) if isinstance(found, Known) else found


def _find_budgets(view: View, group: _Group) -> cluster.Steering:
    """Those whose selector fits any of its pods. Pods of one template share their labels, which are tried once."""
    if not isinstance(view.budgets, Known):
        return view.budgets
    candidates = view.budgets.value.get(view.pods[group.pods[0]].namespace) if group.pods else None
    if not candidates:
        return ABSENT
    labels = {id(view.pods[index].labels): view.pods[index].labels for index in group.pods}.values()
    return several(tuple(budget for selector, budget in candidates if any(selector.matches(each) for each in labels)))
