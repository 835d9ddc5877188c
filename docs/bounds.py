"""The bounds of our own account in deploy/acting/: an admission policy made from the table of kinds.

In: the rows of model/kinds, each with the pointers that its pause writes, and the default of --protected-namespaces.
Out: a ValidatingAdmissionPolicy and its binding. The right to patch a workload is worth as much as the workload's own
account, so the API server itself refuses whatever gpu-pruner would never write: fields, counts beyond all reason, and a
scaling down that deletes volumes.
Invariant: what no row writes is refused, for kinds of the table and for all others; an expression that cannot be
evaluated refuses too.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import yaml

from docs import roles
from fallow import names, settings
from fallow.act.headroom import CONTAINER_SECURITY, PAUSE, POD_SECURITY, PREFIX
from fallow.act.leaving import TAINTS
from fallow.model import kinds, owner_use, partition, pointers, record, stops
from fallow.settings.sharing import MIG_MAP, PLUGIN_MAP

NAME = "gpu-pruner-bounds"
USER = f"system:serviceaccount:{roles.HOME}:gpu-pruner"
GROUP = "admissionregistration.k8s.io"
ABOUT = """# Made from the code by `make docs`.
# Bounds on gpu-pruner's own account. Whoever may patch a Deployment may run anything in it; this policy lets that one
# account change only what a pause changes, and the mark of a restart that a GPUSharingPolicy asks for; of a kind whose
# roles give the verb `back-off` and not `pause` only the marks of a back-off of sharing; and nothing at all in
# protected namespaces; of nodes with GPUs the cordon, with the record that tells why, two taints of its own, labels of
# its own and two for NVIDIA's programs; of NodePools the limit of GPUs, with the record of what it was; of a budget
# which of its alerts somebody has seen; a pod goes only by a request that names its uid and leaves it time, a node only
# with the record that its machine was told to go, a template of claims only if it is one of ours; in its own namespace
# it runs nothing but pause. No other account is touched.
# For another account than the shipped one change the matchCondition; for other protected namespaces the expression
# that lists them.
"""

_HOOKS = tuple(f"{GROUP}/{each}" for each in roles.HOOKS)
_POD = "/pods"
_NODE, _MAP = "/nodes", "/configmaps"
_DAEMONS = "apps/daemonsets"
_TEMPLATE = "resource.k8s.io/resourceclaimtemplates"
_CONFIG = f"{names.GROUP}/{names.NODE_CONFIG_PLURAL}"
_BUDGET = f"{names.GROUP}/{names.BUDGET_PLURAL}"
_POOL = "karpenter.sh/nodepools"
_NODE_LABELS = (
    names.MIG_CONFIG, names.PLUGIN_CONFIG, names.CONSOLIDATION, names.DEFRAG, names.NODE_POOL, names.SCALING_GROUP,
    names.OWN_CAPACITY, names.OWN_INSTANCE_TYPE, names.OWN_GPU_TYPE,
)
_NODE_RECORDS = (names.REPARTITION, names.EMPTYING, names.SCALE_DOWN, names.SPOT_RECORD)
_KEYS = {
    PLUGIN_MAP: f"k.startsWith('{partition.OURS}')", MIG_MAP: f"k == '{partition.MIG_KEY}'",
    (roles.HOME, names.OWNER_USE): f"k == '{owner_use.KEY}'",
}
# What a pod and its container have that the server fills in, or that placeholders say; nothing that runs or reads.
_POD_FIELDS = (
    "containers", "priorityClassName", "terminationGracePeriodSeconds", "nodeSelector", "tolerations",
    "automountServiceAccountToken", "restartPolicy", "dnsPolicy", "securityContext", "schedulerName",
)
_CONTAINER_FIELDS = (
    "name", "image", "resources", "terminationMessagePath", "terminationMessagePolicy", "imagePullPolicy",
    "securityContext",
)
_RESTARTED = tuple(f"apps/{each}" for each in roles.RESTARTED)
_TEMPLATE_NOTES = ("template", "metadata", "annotations")
_KEPT_BY_SERVER = ("annotations", "generation", "managedFields", "resourceVersion")
# The server itself counts there how often a DaemonSet's template changed.
_COUNTED = f"(k == 'deprecated.daemonset.template.generation' && variables.what == '{_DAEMONS}')"
_OURS = f"k.startsWith('{names.GROUP}/') || k.startsWith('{names.ALIAS_GROUP}/') || k in variables.stops || {_COUNTED}"


class Folded(str):
    """Written as a block, so that quotes stay as they are."""


class _Dumper(yaml.SafeDumper):
    pass


_Dumper.add_representer(Folded, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style=">"))


def _words(words: Iterable[str]) -> str:
    return f"[{', '.join(repr(word) for word in words)}]"


def _same(new: str, old: str, is_free: str) -> str:
    """The same members, but for those that are free; `k` is the member's name."""
    kept = f"{new}.all(k, {is_free} || (k in {old} && {new}[k] == {old}[k]))"
    return f"{kept} && {old}.all(k, {is_free} || k in {new})"


def _same_but(new: str, old: str, free: Iterable[tuple[str, ...]]) -> str:
    """The same tree, but for these paths. A branch that is absent counts as empty: a pause may have to make it."""
    by_first: dict[str, list[tuple[str, ...]]] = {}
    for first, *rest in free:
        by_first.setdefault(first, []).append(tuple(rest))
    parts = [_same(new, old, f"k in {_words(by_first)}")]
    for first, below in by_first.items():
        if all(path[:1] == (pointers.EVERY,) for path in below):
            parts.append(_same_members(*_branches(new, old, first, "[]"), [path[1:] for path in below]))
        elif all(below):
            parts.append(_same_but(*_branches(new, old, first, "{}"), below))
    return " && ".join(parts)


def _branches(new: str, old: str, name: str, empty: str) -> tuple[str, str]:
    return f"{new}[?{name!r}].orValue({empty})", f"{old}[?{name!r}].orValue({empty})"


def _same_members(new: str, old: str, free: Iterable[tuple[str, ...]]) -> str:
    """The same members in the same order, known by their names, but for these paths of each."""
    ordered = f"{new}.map(e, e.name) == {old}.map(e, e.name)"
    return f"{ordered} && {new}.all(e, {old}.exists_one(o, o.name == e.name && {_same_but('e', 'o', free)}))"


def _spec_rule(written: tuple[str, ...], *, restarts: bool = False) -> str:
    free = [pointers.parts(pointer)[1:] for pointer in written]
    free += [(*_TEMPLATE_NOTES, names.RESTARTED_AT)] if restarts else []
    counts = [pointers.parts(pointer)[1:] for pointer in written if record.is_count(pointer)]
    same = _same_but("variables.spec", "variables.oldSpec", free)
    return " && ".join([same, *(_is_sane("variables.spec", path) for path in counts)])


def _is_sane(body: str, path: tuple[str, ...]) -> str:
    """No more replicas than a record may hold; of every member of a list on the way."""
    if pointers.EVERY in path:
        place = path.index(pointers.EVERY)
        return f"{_below(body, path[:place])}.orValue([]).all(e, {_is_sane('e', path[place + 1:])})"
    return f"{_below(body, path)}.orValue(0) <= {record.MOST_REPLICAS}"


def _below(body: str, path: tuple[str, ...]) -> str:
    return body + "".join(f"[?{part!r}]" for part in path)


def _volume_rules() -> Iterator[tuple[str, str]]:
    """As model/stops.py reads them: what would delete the volumes of its pods is never scaled down."""
    for row in _rows():
        if row.deletes_claims:
            where, kept = f"variables.what != {_resource(row)!r}", "persistentVolumeClaimRetentionPolicy"
            fewer = "variables.spec[?'replicas'].orValue(1) < variables.oldSpec[?'replicas'].orValue(1)"
            made = "size(variables.claims[?'volumeClaimTemplates'].orValue([])) > 0"
            lost = f"{_words(row.deletes_claims)}.exists(m, variables.claims[?{kept!r}][?m].orValue('') == 'Delete')"
            yield f"a {row.kind} that would lose its volumes is not its to scale down", (
                f"{where} || !({fewer} && {made} && {lost})"
            )
    made = f"{_below('variables.spec', pointers.parts(stops.CLAIM_TEMPLATES)[1:])}.orValue([])"
    yield "a kind that it does not know and that makes volumes is not its to scale", (
        f"{_is_known()} || size({made}) == 0 || variables.spec == variables.oldSpec"
    )


def _hook_rule() -> str:
    new, old = "dyn(object).webhooks", "dyn(oldObject).webhooks"
    rest = _same("dyn(object)", "dyn(oldObject)", "k in ['metadata', 'webhooks']")
    same = f"{_same_members(new, old, [('clientConfig', 'caBundle')])} && {rest}"
    return f"!(variables.what in {_words(_HOOKS)}) || request.operation == 'DELETE' || ({same})"


def _is_map() -> str:
    """One of the ConfigMaps that NVIDIA's programs and our webhook read."""
    named = (f"(variables.place == '{place}' && dyn(object).metadata.name == '{name}')" for place, name in _KEYS)
    return f"({' || '.join(named)})"


def _map_rules() -> Iterator[tuple[str, str]]:
    """Of what is created as much as of what is changed."""
    new, old = "dyn(object)[?'data'].orValue({})", "variables.oldData"
    for (place, name), is_free in _KEYS.items():
        where = f"variables.what != '{_MAP}' || variables.place != '{place}' || dyn(object).metadata.name != '{name}'"
        yield f"of ConfigMap {place}/{name} other keys are not its to change", (
            f"{where} || ({_same(new, old, is_free)})"
        )
    same = _same("dyn(object)", "dyn(oldObject)", "k in ['metadata', 'data']")
    meta = _same("dyn(object).metadata", "dyn(oldObject).metadata", f"k in {_words(_KEPT_BY_SERVER[1:])}")
    made = (
        "dyn(object).all(k, k in ['apiVersion', 'kind', 'metadata', 'data']) && "
        "dyn(object).metadata.all(k, !(k in ['labels', 'annotations', 'ownerReferences', 'finalizers']))"
    )
    yield "of a ConfigMap nothing but data is its to change", (
        f"variables.what != '{_MAP}' || (request.operation == 'CREATE' ? {made} : {same} && {meta})"
    )


def _node_rules() -> Iterator[tuple[str, str]]:
    labels, old = "dyn(object).metadata[?'labels'].orValue({})", "dyn(oldObject).metadata[?'labels'].orValue({})"
    cordoned, before = (f"variables.{each}[?'unschedulable'].orValue(false)" for each in ("spec", "oldSpec"))
    yield "of a node's labels nothing but those for NVIDIA's programs, and its own, are its to change", (
        _same(labels, old, f"k in {_words(_NODE_LABELS)}")
    )
    yield "in the spec of a node nothing but the cordon and its own taints is its to change", (
        _same_but("variables.spec", "variables.oldSpec", [("unschedulable",), ("taints",)])
    )
    taints, before_taints = (f"variables.{each}[?'taints'].orValue([])" for each in ("spec", "oldSpec"))
    # The server's own goes and comes with the cordon.
    free = f"{_words((*TAINTS, 'node.kubernetes.io/unschedulable'))}"
    yield "taints of others are not its to change", (
        f"{taints}.filter(t, !(t.key in {free})) == {before_taints}.filter(t, !(t.key in {free})) && "
        f"{taints}.all(t, !(t.key in {_words(TAINTS)}) || t.effect == 'NoSchedule')"
    )
    yield "a node is not its to cordon without a record that tells why", (
        f"!{cordoned} || {before} || {_words(_NODE_RECORDS)}.exists(k, k in variables.notes)"
    )
    has_gpus = f"dyn(oldObject)[?'status'][?'capacity'].orValue({{}}).exists(k, k.startsWith('{names.NVIDIA}'))"
    # One that never became Ready shows none; it is let go by its record.
    ready = "dyn(oldObject)[?'status'][?'conditions'].orValue([]).exists(c, c.type == 'Ready' && c.status == 'True')"
    failed = f"(!{ready} && ('{names.SCALE_DOWN}' in variables.notes || '{names.SCALE_DOWN}' in variables.oldNotes))"
    yield "a node without GPUs of NVIDIA is not its to change", f"{has_gpus} || {failed}"


def _ends() -> str:
    """A node whose machine was told to go; a pod by its uid, with some time left to it."""
    record = f"dyn(oldObject).metadata[?'annotations'][?'{names.SCALE_DOWN}'].orValue('')"
    options = "dyn(request.options)"
    node = f"variables.what == '{_NODE}' && {record}.matches('\"removing\":[0-9]')"
    pod = (
        f"variables.what == '{_POD}' && {options}[?'preconditions'][?'uid'].orValue('') != '' && "
        f"{options}[?'gracePeriodSeconds'].orValue(0) >= 1 && dyn(oldObject).spec[?'nodeName'].orValue('') != ''"
    )
    return f"request.operation == 'DELETE' && variables.part == '' && (({node}) || ({pod}))"


def _keeps_room() -> str:
    """Objects by which room is kept ahead of demand, in our own namespace, and of pods nothing but pause."""
    kinds_of = [f"{group}/{plural}" for group, plural, _ in roles.ROOM]
    named = "dyn(object).metadata.name.startsWith('fallow-')"
    spec = f"(variables.what == '{kinds_of[0]}' ? dyn(object).spec.template : dyn(object).template).spec"
    plain = f"{spec}.all(k, k in {_words(_POD_FIELDS)}) && {_is_locked(spec, POD_SECURITY)}"
    pause = (
        f"{spec}.containers.all(c, c.image == '{PAUSE}' && c.all(k, k in {_words(_CONTAINER_FIELDS)}) && "
        f"{_is_locked('c', CONTAINER_SECURITY)}) && {spec}.containers.size() == 1"
    )
    place = f"variables.place == '{roles.HOME}' && variables.part == '' && request.operation in ['CREATE', 'UPDATE']"
    runs = f"!(variables.what in {_words(kinds_of[:2])}) || ({plain} && {pause})"
    keeps = f"{place} && variables.what in {_words(kinds_of)} && {named} && ({runs})"
    goes = (
        f"variables.place == '{roles.HOME}' && variables.part == '' && request.operation == 'DELETE' && "
        f"variables.what in {_words(kinds_of)} && (dyn(oldObject).metadata.name.startsWith('{names.GANG_PREFIX}') || "
        f"dyn(oldObject).metadata.name.startsWith('{PREFIX}'))"
    )
    return f"({keeps}) || ({goes})"


def _is_locked(body: str, allowed: Mapping[str, Any]) -> str:
    """Its securityContext says nothing else; what it does not say, as placeholders of older versions, is no more."""
    return _says_only(f"{body}[?'securityContext'].orValue({{}})", allowed)


def _says_only(body: str, allowed: Mapping[str, Any]) -> str:
    parts = [f"{body}.all(k, k in {_words(allowed)})"]
    for name, value in allowed.items():
        if isinstance(value, Mapping):
            parts.append(_says_only(f"{body}[?{name!r}].orValue({{}})", value))
        else:
            parts.append(f"{body}[?{name!r}].orValue({json.dumps(value)}) == {json.dumps(value)}")
    return " && ".join(parts)


def _is_template() -> str:
    """One of our own, whether it comes or goes."""
    meta, (label, word) = "(request.operation == 'DELETE' ? dyn(oldObject) : dyn(object)).metadata", names.MANAGED_BY
    named = f"{meta}.name.startsWith('{names.CLAIM_TEMPLATE_PREFIX}')"
    return f"{named} && {meta}[?'labels'][?'{label}'].orValue('') == '{word}'"


def _config_rule() -> str:
    """Its finalizer comes and goes; all others stay."""
    new, old = (f"dyn({each}).metadata[?'finalizers'].orValue([])" for each in ("object", "oldObject"))
    ours = f"filter(f, f != '{names.REPARTITION}')"
    rest = "variables.spec == variables.oldSpec && variables.notes == variables.oldNotes"
    return f"{new}.{ours} == {old}.{ours} && {rest}"


def _is_known() -> str:
    return f"variables.what in {_words(_resource(row) for row in _rows())}"


def _restart_rule() -> str:
    """Pods are made anew only together with the mark for which back-off that is."""
    new, old = (
        f"{_below(f'variables.{each}', (*_TEMPLATE_NOTES, names.RESTARTED_AT))}.orValue('')"
        for each in ("spec", "oldSpec")
    )
    mark, before = (f"variables.{each}[?'{names.SHARING_RESTARTED}'].orValue('')" for each in ("notes", "oldNotes"))
    backs_off = f"{mark} == variables.notes[?'{names.BACKOFF_UNTIL}'].orValue('')"
    told = f"{mark} != {before} && {backs_off}"
    return f"!(variables.what in {_words(_RESTARTED)}) || {new} == {old} || ({told})"


def _may(verb: str) -> str:
    """That kind, there."""
    asked = "authorizer.group(request.resource.group).resource(request.resource.resource).namespace(variables.place)"
    return f"{asked}.check('{verb}').allowed()"


def _back_off_rule() -> str:
    """Who may patch a kind for the sake of sharing alone marks a back-off, and restarts what it hurt."""
    marks = f"k in {_words((*names.BACKOFF_MARKS, names.SHARING_RESTARTED))} || {_COUNTED}"
    restarts = _same_but("variables.spec", "variables.oldSpec", [(*_TEMPLATE_NOTES, names.RESTARTED_AT)])
    spec = f"variables.spec == variables.oldSpec || (variables.what in {_words(_RESTARTED)} && {restarts})"
    return f"variables.pauses || ({_same('variables.notes', 'variables.oldNotes', marks)} && ({spec}))"


def _spoken(pointer: str) -> str:
    return ".".join(pointers.parts(pointer)).replace(f".{pointers.EVERY}", "[]")


def _resource(row: kinds.Kind) -> str:
    return f"{row.group}/{row.plural}"


def _written(row: kinds.Kind) -> tuple[str, ...]:
    """What a pause of it writes, and a resume puts back."""
    return (*row.writes, *row.remembers)


def _rows() -> tuple[kinds.Kind, ...]:
    return (*kinds.KINDS, *roles.STEERING)


def _stop_annotations(row: kinds.Kind) -> tuple[str, ...]:
    """The annotations of others that a pause or a resume of this kind writes."""
    own = pointers.annotation("")
    return (*(pointers.parts(each)[-1] for each in _written(row) if each.startswith(own)), *row.touches)


def _by_spec() -> dict[tuple[tuple[str, ...], bool], list[kinds.Kind]]:
    """The kinds, by what of their spec a pause writes, and whether they are restarted."""
    found: dict[tuple[tuple[str, ...], bool], list[kinds.Kind]] = {}
    for row in _rows():
        written = tuple(each for each in _written(row) if each.startswith("/spec/"))
        found.setdefault((written, _resource(row) in _RESTARTED), []).append(row)
    return found


def _variables() -> Mapping[str, str]:
    stops = {_resource(row): _words(_stop_annotations(row)) for row in _rows() if _stop_annotations(row)}
    listed = ", ".join(f"{resource!r}: {written}" for resource, written in stops.items())
    own = [
        "(variables.what == 'events.k8s.io/events' && request.operation in ['CREATE', 'UPDATE'])",
        f"(variables.what == 'coordination.k8s.io/leases' && variables.place == '{roles.HOME}' && "
        "request.operation in ['CREATE', 'UPDATE'])",
        f"(variables.what in {_words(f'{names.GROUP}/{each}' for each in roles.OURS)} && variables.part == 'status' && "
        "request.operation == 'UPDATE')",
        f"(variables.what == '/secrets' && variables.place == '{roles.HOME}' && dyn(object).metadata.name == "
        f"'{names.WEBHOOK_CERTIFICATE}' && request.operation in ['CREATE', 'UPDATE'])",
        f"(variables.what == '{_MAP}' && variables.part == '' && request.operation in ['CREATE', 'UPDATE'] && "
        f"{_is_map()})",
        f"(variables.what in {_words(_HOOKS)} && request.name == '{names.WEBHOOK}' && "
        "request.operation in ['UPDATE', 'DELETE'])",
        "(request.resource.group in ['authorization.k8s.io', 'authentication.k8s.io'] && variables.part == '')",
        f"({_keeps_room()})",
        f"(variables.what == 'scheduling.k8s.io/priorityclasses' && request.operation == 'CREATE' && "
        f"dyn(object).metadata.name == '{names.HEADROOM_CLASS}' && dyn(object).value < 0)",
        f"(variables.what == 'scheduling.k8s.io/priorityclasses' && request.operation == 'DELETE' && "
        f"request.name == '{names.HEADROOM_CLASS}')",
    ]
    return {
        "what": "request.resource.group + '/' + request.resource.resource",
        "part": "request.?subResource.orValue('')",
        "place": "request.?namespace.orValue('')",
        "own": " || ".join(own),
        "change": "request.operation == 'UPDATE' && variables.part == '' && !variables.own",
        # The precondition makes an eviction one of the pod that was looked at, and of none that has its name since.
        "evicts": f"variables.what == '{_POD}' && variables.part == 'eviction' && request.operation == 'CREATE' && "
                  "dyn(object)[?'deleteOptions'][?'preconditions'][?'uid'].orValue('') != ''",
        "keeps": f"variables.what == '{_TEMPLATE}' && variables.part == '' && "
                 f"request.operation in ['CREATE', 'DELETE'] && {_is_template()}",
        "ends": _ends(),
        "oldData": "request.operation == 'CREATE' ? {} : dyn(oldObject)[?'data'].orValue({})",
        # The authorizer is asked for verbs that no request has, and our roles give.
        "pauses": f"!(variables.what in {_words((*map(_resource, kinds.KINDS), _DAEMONS))}) || "
                  f"{_may(roles.PAUSE)} || !{_may(roles.BACK_OFF)}",
        "stops": f"{{{listed}}}[?variables.what].orValue([])",
        "notes": "dyn(object).metadata[?'annotations'].orValue({})",
        "oldNotes": "dyn(oldObject).metadata[?'annotations'].orValue({})",
        "spec": "dyn(object)[?'spec'].orValue({})",
        "oldSpec": "dyn(oldObject)[?'spec'].orValue({})",
        "claims": "variables.oldSpec[?'leaderWorkerTemplate'].orValue(variables.oldSpec)",
    }


def _validations() -> list[tuple[str, str]]:
    protected = next(flag.default for flag in settings.FLAGS if flag.name == "--protected-namespaces")
    return [
        ("it creates and deletes nothing but its Events, its Lease, its certificate, keys for NVIDIA's programs, its "
         "templates of claims, room ahead of demand, evictions that name a uid, pods that a uid names and nodes whose "
         "machines were told to go, on leaving its webhook's configurations, and writes no part of an object but scale",
         "variables.own || variables.evicts || variables.keeps || variables.ends || "
         "(request.operation == 'UPDATE' && variables.part in ['', 'scale'])"),
        ("nothing in a protected namespace is its to change",
         f"variables.own || (variables.what in {_words((_NODE, _CONFIG, _BUDGET, _POOL))} && variables.part == '') || "
         f"!variables.place.matches('^(?:{protected}|{roles.HOME}|)$')"),
        ("the scale of a kind that it knows is not its to write: there it writes the object, where its volumes show",
         f"variables.part != 'scale' || !({_is_known()})"),
        (f"more than {record.MOST_REPLICAS} replicas are not its to ask for",
         f"variables.part != 'scale' || {_is_sane('dyn(object)', ('spec', 'replicas'))}"),
        ("of its webhook's configurations nothing but the caBundle is its to change", _hook_rule()),
        *_map_rules(),
        *((why, f"!variables.change || ({rule})") for why, rule in _list_changes()),
    ]


def _list_changes() -> list[tuple[str, str]]:
    """Of an object that is there."""
    seen = _same("variables.notes", "variables.oldNotes", f"k == '{names.ALERT_ACK}'")
    return [
        ("metadata other than annotations is not its to change",
         _same("dyn(object).metadata", "dyn(oldObject).metadata",
               f"k in {_words(_KEPT_BY_SERVER)} || (k == 'labels' && variables.what == '{_NODE}') || "
               f"(k == 'finalizers' && variables.what == '{_CONFIG}')")),
        (f"without the right to pause that kind (verb {roles.PAUSE}) nothing but the marks of a back-off of sharing is "
         "its to change", _back_off_rule()),
        ("annotations of others are not its to change", _same("variables.notes", "variables.oldNotes", _OURS)),
        ("only metadata and spec are its to change",
         _same("dyn(object)", "dyn(oldObject)", "k in ['metadata', 'spec']")),
        *_list_spec_changes(),
        *_volume_rules(),
        *((why, f"variables.what != '{_NODE}' || ({rule})") for why, rule in _node_rules()),
        (f"of a {names.NODE_CONFIG_KIND} nothing but its finalizer is its to change",
         f"variables.what != '{_CONFIG}' || ({_config_rule()})"),
        ("of a CostBudget nothing but which of its alerts somebody has seen is its to change",
         f"variables.what != '{_BUDGET}' || (variables.spec == variables.oldSpec && {seen})"),
    ]


def _list_spec_changes() -> list[tuple[str, str]]:
    changes = list[tuple[str, str]]()
    for (written, restarts), rows in _by_spec().items():
        may = f"nothing but {' and '.join(map(_spoken, written))}" if written else "nothing"
        may += " and the mark of a restart" if restarts else ""
        where = f"!(variables.what in {_words(_resource(row) for row in rows)})"
        kind = ", ".join(row.kind for row in rows)
        rule = _spec_rule(written, restarts=restarts)
        changes.append((f"in the spec of {kind} {may} is its to change", f"{where} || ({rule})"))
    daemons = _spec_rule((), restarts=True)
    changes += [
        ("in the spec of DaemonSet nothing but the mark of a restart is its to change",
         f"variables.what != '{_DAEMONS}' || ({daemons})"),
        ("pods are not its to restart without a mark for which back-off of sharing that is", _restart_rule()),
    ]
    gates = _same_but("variables.spec", "variables.oldSpec", [("schedulingGates",)])
    fewer = "variables.oldSpec[?'schedulingGates'].orValue([])"
    left = f"variables.spec[?'schedulingGates'].orValue([]) == {fewer}.filter(g, g.name != '{names.BUDGET_GATE}')"
    changes.append((
        f"in the spec of Pod nothing but the gate {names.BUDGET_GATE} is its to take away",
        f"variables.what != '{_POD}' || variables.spec == variables.oldSpec || ({gates} && {left})",
    ))
    limits = _same_but("variables.spec", "variables.oldSpec", [("limits", names.GPU)])
    changes += [
        (f"in the spec of NodePool nothing but the limit of {names.GPU} is its to change",
         f"variables.what != '{_POOL}' || ({limits})"),
        ("the limit of a NodePool is not its to change without the record of what it was",
         f"variables.what != '{_POOL}' || variables.spec == variables.oldSpec || "
         f"'{names.ORIGINAL_LIMITS}' in variables.notes || '{names.ORIGINAL_LIMITS}' in variables.oldNotes"),
    ]
    # Of any other kind with /scale only its definition says where the count stands; it is a whole number in any case.
    number = (
        "type(variables.spec[?k].orValue(0)) == int && type(variables.oldSpec[?k].orValue(0)) == int && "
        f"variables.spec[?k].orValue(0) <= {record.MOST_REPLICAS}"
    )
    changes.append((
        "in the spec of a kind that it does not know nothing but whole numbers directly below it is its to change",
        f"{_is_known()} || variables.what in {_words((_POD, _NODE, _CONFIG, _DAEMONS, _POOL))} || "
        f"({_same('variables.spec', 'variables.oldSpec', f'({number})')})",
    ))
    return changes


def policy() -> str:
    rule = {"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*/*"], "scope": "*"}
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": {"matchPolicy": "Equivalent", "resourceRules": [rule]},
        "matchConditions": [{"name": "by-gpu-pruner", "expression": Folded(f"request.userInfo.username == '{USER}'")}],
        "variables": [{"name": name, "expression": Folded(text)} for name, text in _variables().items()],
        "validations": [
            {"message": f"gpu-pruner: {why}", "reason": "Forbidden", "expression": Folded(text)}
            for why, text in _validations()
        ],
    }
    head = {"apiVersion": f"{GROUP}/v1", "kind": "ValidatingAdmissionPolicy", "metadata": {"name": NAME}}
    bound = {**head, "kind": "ValidatingAdmissionPolicyBinding"}
    parts = [{**head, "spec": spec}, {**bound, "spec": {"policyName": NAME, "validationActions": ["Deny"]}}]
    return ABOUT + "".join(f"---\n{yaml.dump(part, Dumper=_Dumper, sort_keys=False, width=130)}" for part in parts)


FILES = {"deploy/acting/15-bounds.yaml": policy}
