"""The roles in deploy/, made from the table of kinds: what gpu-pruner may read, and what it may patch.

In: the rows of model/kinds, and whether it sees the whole cluster or one namespace. Out: files as `kubectl apply` takes
them. Reading covers every kind, because the workload is the topmost of the owners; writing only what is switched on.
Invariant: nothing is granted that no row or name here asks for, and never `create` or `delete` of a workload.
"""

from collections.abc import Callable, Iterable
from functools import partial

from fallow import names
from fallow.model import kinds
from fallow.observe.scaling.drivers import STATUS_MAP
from fallow.settings.sharing import MIG_MAP, PLUGIN_MAP

HOME, TEAM = "gpu-pruner-system", "my-team"  # where it runs; the one namespace it looks into, as an example
READ, PATCH = ("get", "list", "watch"), ("patch",)
# Verbs of our own, for the bounds: who has the second for a kind, and not the first, only marks back-offs there.
PAUSE, BACK_OFF = "pause", "back-off"
ACT = (*PATCH, PAUSE)
SECRETS = ("gpu-pruner-slack-webhook", "gpu-pruner-config")
COSTS = (names.BUDGET_PLURAL, names.ATTRIBUTION_PLURAL)
OURS = (names.POLICY_PLURAL, names.SHARING_POLICY_PLURAL, names.NODE_CONFIG_PLURAL, names.SCALING_POLICY_PLURAL, *COSTS)
RESTARTED = ("deployments", "statefulsets", "daemonsets")  # where sharing hurt, and a policy says so
HOOKS = ("validatingwebhookconfigurations", "mutatingwebhookconfigurations")
STEERING = (kinds.SCALED_OBJECT, kinds.KUEUE_WORKLOAD)
EVENTS = ("events.k8s.io", ["events"], ("create", "patch"))
FURTHER = {
    "j": ". Suspending one loses its work since the last checkpoint.",
    "k": " (also needs action.allowKnativeRollout in a policy).",
    "x": ".\n# The record of the pause stands on the object itself: add a rule with get, list, watch and patch for "
         "each such kind of yours.\n# deploy/acting/15-bounds.yaml lets it change their /scale, and whole numbers "
         "directly below their spec.",
}

OWNERS = "Every kind that may own a GPU pod: the workload is the topmost of them, so the others must be seen too."
STEERED = "Others that steer the same pods."
WITH_COSTS = "What GPUs cost, if you say so (--cost)."
OWN_NAMESPACE = "A Role may read its own namespace by name: acknowledgements and opt-outs may stand there."


def _words(words: Iterable[str]) -> str:
    quoted = (word if word and "*" not in word else f'"{word}"' for word in words)
    return f"[{', '.join(quoted)}]"


def _rule(
    group: str, resources: Iterable[str], verbs: Iterable[str], *, only: Iterable[str] = (), why: str = ""
) -> str:
    lines = [f"  # {why}"] if why else []
    lines += [f"  - apiGroups: {_words([group])}", f"    resources: {_words(resources)}"]
    lines += [f"    resourceNames: {_words(only)}"] if only else []
    return "\n".join([*lines, f"    verbs: {_words(verbs)}"])


def _rules(rows: Iterable[kinds.Kind], verbs: Iterable[str], why: str = "") -> list[str]:
    """One for each group, in the order of the table. Who reads follows the chains from pods through what is between."""
    by_group: dict[str, list[str]] = {}
    for row in rows:
        between = [f"{kind.lower()}s" for kind in row.between] if "get" in verbs else []
        by_group.setdefault(row.group, []).extend([row.plural, *between])
    whys = [why] + [""] * len(by_group)
    return [_rule(group, plurals, verbs, why=whys[at]) for at, (group, plurals) in enumerate(by_group.items())]


def _grant(
    name: str, rules: Iterable[str], namespace: str | None = None, account: str = "gpu-pruner"
) -> list[str]:
    """A role and its binding to an account of ours; without a namespace for the whole cluster."""
    scope, role, binding = ("", name, name) if namespace else ("Cluster", f"{name}-cr", f"{name}-crb")
    inside = f"\n  namespace: {namespace}" if namespace else ""
    head = "apiVersion: rbac.authorization.k8s.io/v1\nkind: {}\nmetadata:\n  name: {}" + inside
    refers = f"roleRef:\n  apiGroup: rbac.authorization.k8s.io\n  kind: {scope}Role\n  name: {role}"
    subject = f"subjects:\n  - kind: ServiceAccount\n    name: {account}\n    namespace: {HOME}"
    return [
        "\n".join([head.format(f"{scope}Role", role), "rules:", *rules]),
        "\n".join([head.format(f"{scope}RoleBinding", binding), refers, subject]),
    ]


def _file(about: str, parts: Iterable[str]) -> str:
    return "\n---\n".join([f"# Made from the code by `make docs`.\n# {about}", *parts]) + "\n"


def _reading(*, one_namespace: bool) -> list[str]:
    if one_namespace:
        rules = [_rule("", ["pods"], READ), _rule("", ["namespaces"], ["get"], why=OWN_NAMESPACE)]
    else:
        rules = [_rule("", ["pods", "nodes", "namespaces"], READ)]
    rules += _rules(kinds.KINDS, READ, OWNERS)
    rules += [_rule("autoscaling", ["horizontalpodautoscalers"], READ, why=STEERED)]
    rules += [_rule("policy", ["poddisruptionbudgets"], READ), *_rules(STEERING, READ)]
    rules += [_rule("resource.k8s.io", ["resourceclaims"], READ)]
    if not one_namespace:
        rules += [_rule("apiextensions.k8s.io", ["customresourcedefinitions"], READ)]
        rules += [_rule("karpenter.sh", ["nodepools"], READ, why="Who else adds nodes here, and up to which limits?")]
        for plurals, why in ((OURS[:-len(COSTS)], ""), (COSTS, WITH_COSTS)):
            rules += [_rule(names.GROUP, plurals, READ, why=why)]
            rules += [_rule(names.GROUP, [f"{each}/status" for each in plurals], PATCH, why=why)]
    return rules


def _at_home() -> list[str]:
    rules = [
        _rule("coordination.k8s.io", ["leases"], ["create"], why="`create` cannot be limited to a name."),
        _rule("coordination.k8s.io", ["leases"], ["get", "update"], only=[names.LEASE]),
        _rule("", ["configmaps"], ["get"], only=[names.PRICES], why=WITH_COSTS),
    ]
    return _grant("gpu-pruner", rules, HOME)


def reader(about: str, *, one_namespace: bool) -> str:
    account = f"apiVersion: v1\nkind: ServiceAccount\nmetadata:\n  name: gpu-pruner\n  namespace: {HOME}"
    name, namespace = ("gpu-pruner-reader", TEAM) if one_namespace else ("gpu-pruner", None)
    where, status = STATUS_MAP
    other = _rule("", ["configmaps"], ["get"], only=[status], why="Is there a cluster autoscaler?")
    autoscaler = [] if one_namespace else _grant("gpu-pruner-autoscaler", [other], where)
    parts = [*_grant(name, _reading(one_namespace=one_namespace), namespace), *_at_home(), *autoscaler]
    return _file(about, [account, *parts])


def acting(about: str, *, one_namespace: bool) -> str:
    on = [row for letter in names.DEFAULT_LETTERS for row in kinds.KINDS if row.letter == letter]
    rules = [*_rules(on, ACT), *_rules(STEERING, PATCH), _rule(*EVENTS)]
    if not one_namespace:
        rules.append(_rule(names.GROUP, [names.BUDGET_PLURAL], PATCH, why=WITH_COSTS))
    parts = _grant("gpu-pruner-act", rules, TEAM if one_namespace else None)
    return _file(about, [*parts, *(_grant("gpu-pruner-act", [_rule(*EVENTS)], HOME) if one_namespace else [])])


def letter(one: str) -> str:
    on = [row for row in kinds.KINDS if row.letter == one]
    called = " and ".join(row.kind for row in on) if len(on) == 2 else names.LETTERS[one]
    about = f"What --enabled-resources needs for the letter {one}: {called}{FURTHER.get(one, '.')}"
    rules = _rules(on, ACT) or [_rule("*", ["*/scale"], ["get", "patch"])]
    return _file(about, _grant(f"gpu-pruner-act-{one}", rules))


def dashboard(about: str) -> str:
    """Whose token is it, may they: questions about others, which change nothing and tell who asks nothing secret."""
    reviews = [
        _rule("authentication.k8s.io", ["tokenreviews"], ["create"], why="Whose token is it?"),
        _rule("authorization.k8s.io", ["subjectaccessreviews"], ["create"], why="May they?"),
    ]
    secrets = [_rule("", ["secrets"], ["get"], only=SECRETS, why="Channels of policies name these; add yours.")]
    return _file(about, [*_grant("gpu-pruner-dashboard", reviews), *_grant("gpu-pruner-secrets", secrets, HOME)])


def books(about: str) -> str:
    """Events of objects without a namespace are kept in `default`; those about itself where it runs."""
    rule = _rule(EVENTS[0], EVENTS[1], ["create"])
    return _file(about, [part for where in ("default", HOME) for part in _grant("gpu-pruner-cost", [rule], where)])


HOLDS_POOLS = _rule("karpenter.sh", ["nodepools"], PATCH, why="The limit of GPUs, and the record of what it was.")


def enforcing(about: str) -> str:
    """Of the controller: taking gates away."""
    rules = [
        _rule("", ["pods"], PATCH, why="Gates go when a budget has room again, or is lifted."),
        _rule("resource.k8s.io", ["resourceclaimtemplates", "deviceclasses"], READ[:1],
              why="How many GPUs does a pod that waits ask for by claims?"),
    ]
    return _file(about, _grant("gpu-pruner-enforce", rules))


def holding_pools(about: str) -> str:
    """Of the controller: limits of NodePools, under a throttle."""
    return _file(about, _grant("gpu-pruner-node-pools", [HOLDS_POOLS]))


def certifying(about: str) -> str:
    """Of the controller: the webhook's certificate, and who must know of it."""
    rules = [
        _rule("admissionregistration.k8s.io", HOOKS, ["get", "patch"], only=[names.WEBHOOK], why="Their caBundle."),
    ]
    papers = [
        _rule("", ["secrets"], ["create"], why="The webhook's certificate; `create` cannot be limited to a name."),
        _rule("", ["secrets"], ["get", "update"], only=[names.WEBHOOK_CERTIFICATE]),
    ]
    return _file(about, [
        *_grant("gpu-pruner-certificate", rules), *_grant("gpu-pruner-certificate", papers, HOME),
    ])


def telling_webhook(about: str) -> str:
    """Of the controller: what the webhook reads of owners."""
    rules = [
        _rule("", ["configmaps"], ["create"], why="`create` cannot be limited to a name."),
        _rule("", ["configmaps"], ["get", "patch"], only=[names.OWNER_USE]),
    ]
    return _file(about, _grant("gpu-pruner-owner-use", rules, HOME))


CLAIMING = ("resourceclaimtemplates", "deviceclasses", "resourceslices")


def webhook(about: str) -> str:
    account = f"apiVersion: v1\nkind: ServiceAccount\nmetadata:\n  name: {names.WEBHOOK}\n  namespace: {HOME}"
    rules = [
        _rule(names.GROUP, [names.BUDGET_PLURAL, names.SHARING_POLICY_PLURAL], READ),
        _rule("", ["namespaces", "nodes"], READ),
        *_rules(kinds.KINDS, READ[:1], "Whose pod is it? By the labels of its topmost owner."),
        _rule("apps.nvidia.com", ["nimservices"], READ[:1], why="... which tells that it serves."),
        _rule("resource.k8s.io", ["resourceclaims"], READ[:1], why="Does a pod ask for GPUs by claims?"),
        _rule("resource.k8s.io", CLAIMING, READ, why="... and which can it be given (--sharing-backend dra)?"),
        _rule("authorization.k8s.io", ["subjectaccessreviews"], ["create"], why="May they override?"),
    ]
    used = [_rule("", ["configmaps"], READ, only=[names.OWNER_USE], why="What owners used of GPUs, by the daemon.")]
    return _file(about, [
        account, *_grant(names.WEBHOOK, rules, account=names.WEBHOOK),
        *_grant(names.WEBHOOK, used, HOME, account=names.WEBHOOK),
    ])


NODES = (
    _rule("", ["nodes"], PATCH, why="Cordons, labels and the record of a change: deploy/acting/15-bounds.yaml."),
    _rule("", ["pods/eviction"], ["create"], why="By the Eviction API alone, which heeds PodDisruptionBudgets."),
    _rule(*EVENTS),
)


def sharing(about: str) -> str:
    """Of the controller: nodes are cordoned and labelled, and NVIDIA's programs told what to do; or templates kept."""
    where, plugin = PLUGIN_MAP
    maps = [
        _rule("", ["configmaps"], ["create"], why="`create` cannot be limited to a name."),
        _rule("", ["configmaps"], ["get", "patch"], only=[plugin, MIG_MAP[1]]),
    ]
    finalizer = _rule(names.GROUP, [names.NODE_CONFIG_PLURAL], PATCH, why="Its finalizer, while a change runs.")
    templates = [
        _rule("resource.k8s.io", CLAIMING, READ, why="With --sharing-backend dra: what is given by claims, ..."),
        _rule("resource.k8s.io", CLAIMING[:1], ["create", "patch", "delete"],
              why="... and the templates by which pods ask for it: deploy/acting/15-bounds.yaml."),
    ]
    restarts = _rule("apps", RESTARTED, ["get", *PATCH],
                     why="guard.restartOnRevert: pods made anew where sharing hurt. Never without 15-bounds.yaml.")
    rules = [finalizer, *NODES, *templates, restarts]
    return _file(about, [*_grant("gpu-pruner-sharing", rules), *_grant("gpu-pruner-sharing", maps, where)])


def backing_off(about: str) -> str:
    """Of the controller: every kind whose pods may share, also where it may not be paused."""
    marks = (*PATCH, BACK_OFF)
    rules = [*_rules(kinds.KINDS, marks), _rule("apps", RESTARTED[2:], marks), _rule(*EVENTS)]
    return _file(about, _grant("gpu-pruner-back-off", rules))


def consolidation(about: str) -> str:
    kept = [_rule("coordination.k8s.io", ["leases"], READ[:1], only=[names.EXTENDER_LEASE],
                  why="Which places does the extender keep?")]
    return _file(about, [
        *_grant("gpu-pruner-consolidation", NODES), *_grant("gpu-pruner-consolidation", kept, HOME),
    ])


ROOM = (("apps", "deployments", ("list", "create", "patch")), ("", "podtemplates", ("create", "patch")),
        ("autoscaling.x-k8s.io", "capacitybuffers", ("list", "create", "patch")),
        ("autoscaling.x-k8s.io", "provisioningrequests", ("list", "create", "delete")))


def scaling(about: str) -> str:
    """Of the controller: nodes are drained and removed, and room is kept ahead of demand."""
    rules = [
        *NODES, _rule("", ["nodes"], ["delete"], why="The object of a machine that is gone: only with its record."),
        _rule("", ["pods"], ["delete"], why="Past a budget, from a machine that its cloud ends anyway."),
        _rule("scheduling.k8s.io", ["priorityclasses"], ["create"], why="That of placeholders."),
    ]
    room = [_rule(group, [plural], verbs) for group, plural, verbs in ROOM]
    return _file(about, [*_grant("gpu-pruner-scaling", rules), *_grant("gpu-pruner-scaling", room, HOME)])


def leaving(about: str) -> str:
    """For as long as an uninstall takes: to give back whatever may be held, of every kind, also of those that are not
    switched on any more."""
    rules = [
        *_rules(kinds.KINDS, ACT), *_rules(STEERING, PATCH), _rule("*", ["*/scale"], ["get", "patch"]), *NODES[::2],
        _rule("", ["pods"], PATCH, why="Gates of budgets."), HOLDS_POOLS,
        _rule("admissionregistration.k8s.io", HOOKS, ["get", "delete"], only=[names.WEBHOOK],
              why="First of all, or pods of what comes back would get gates."),
        _rule(names.GROUP, [names.NODE_CONFIG_PLURAL], PATCH, why="Its finalizer."),
        _rule("scheduling.k8s.io", ["priorityclasses"], ["get", "delete"], only=[names.HEADROOM_CLASS],
              why="That of placeholders."),
        _rule("resource.k8s.io", CLAIMING[:1], ["list", "delete"], why="Ours: deploy/acting/15-bounds.yaml."),
    ]
    room = [_rule(group, [plural], ["list", "delete"]) for group, plural, _ in ROOM]
    return _file(about, [*_grant("gpu-pruner-uninstall", rules), *_grant("gpu-pruner-uninstall", room, HOME)])


FILES: dict[str, Callable[[], str]] = {
    "deploy/base/20-reader.yaml": partial(
        reader, "What gpu-pruner may read, and the little it may write about itself. With this role alone nothing in "
        "the cluster can be paused.", one_namespace=False,
    ),
    "deploy/acting/10-role.yaml": partial(
        acting, "What gpu-pruner needs besides deploy/base/20-reader.yaml to pause workloads of the default letters "
        f"({names.DEFAULT_LETTERS}), to resume them, and to say so in Events.\n"
        "# Further letters: deploy/letters/. Nothing here can create or delete a pod or a workload.",
        one_namespace=False,
    ),
    "deploy/one-namespace/base/20-reader.yaml": partial(
        reader, f"As deploy/base/20-reader.yaml, without any ClusterRole. gpu-pruner lives in {HOME} and sees only "
        f"{TEAM}, which stands for yours.\n# Nodes, other namespaces, CustomResourceDefinitions and IdlePolicies "
        "belong to the whole cluster and are not seen (nodes: ../nodes/nodes.yaml).", one_namespace=True,
    ),
    "deploy/one-namespace/acting/10-role.yaml": partial(
        acting, f"As deploy/acting/10-role.yaml, for {TEAM} only; Events about gpu-pruner itself are written in its "
        "own namespace.", one_namespace=True,
    ),
    "deploy/dashboard/10-role.yaml": partial(
        dashboard, "What gpu-pruner needs besides deploy/base/20-reader.yaml so that people can log in to its "
        "dashboard and API\n# (--dashboard-auth kube, oidc or proxy), and so that policies can name the Secrets of "
        "channels.",
    ),
    **dict.fromkeys(("deploy/cost/15-role.yaml", "deploy/cost/postgres/15-role.yaml"), partial(
        books, "What gpu-pruner needs besides deploy/base/20-reader.yaml to say in Events what became of CostBudgets "
        "and of prices.",
    )),
    "deploy/enforcement/10-role.yaml": partial(
        enforcing, "What gpu-pruner needs besides deploy/base/20-reader.yaml so that budgets that are exceeded can "
        "throttle or block\n# new GPU pods (--cost-enforcement true). Never without deploy/acting/15-bounds.yaml: they "
        "leave of this the gates of pods.",
    ),
    "deploy/enforcement/node-pools/10-role.yaml": partial(
        holding_pools, "What gpu-pruner needs besides deploy/enforcement so that a throttle of the whole cluster can "
        "keep Karpenter from adding GPUs\n# (--cost-enforcement-edit-node-pools true). Never without "
        "deploy/acting/15-bounds.yaml: they leave of a NodePool its limit of GPUs.",
    ),
    "deploy/webhook/10-role.yaml": partial(
        certifying, "What gpu-pruner needs besides deploy/base/20-reader.yaml to make and renew the admission "
        "webhook's certificate. Not needed where\n# somebody else does (--webhook-certificate false). Never without "
        "deploy/acting/15-bounds.yaml: they leave of the configurations the caBundle.",
    ),
    "deploy/webhook/15-owner-use-role.yaml": partial(
        telling_webhook, "What gpu-pruner needs besides deploy/base/20-reader.yaml to tell the admission webhook what "
        "owners used of GPUs.",
    ),
    "deploy/webhook/20-webhook-role.yaml": partial(
        webhook, "What the admission webhook of budgets and sharing may: read, and ask whether somebody may override "
        "a budget.",
    ),
    "deploy/sharing/10-role.yaml": partial(
        sharing, "What gpu-pruner needs besides deploy/base/20-reader.yaml so that GPUNodeConfigs can cut or share the "
        "GPUs of nodes, or pods be given parts of them by claims (--sharing act).",
    ),
    "deploy/sharing/15-back-off-role.yaml": partial(
        backing_off, "What gpu-pruner needs besides deploy/base/20-reader.yaml so that whoever is hurt by sharing gets "
        "whole GPUs back (--rewrite-requests true of the webhook): annotations on the owners of pods.\n# Never without "
        "deploy/acting/15-bounds.yaml: where no other role gives the verb `pause`, they leave of this the marks of a "
        "back-off.",
    ),
    "deploy/consolidation/10-role.yaml": partial(
        consolidation, "What gpu-pruner needs besides deploy/base/20-reader.yaml to empty nodes that are hardly used "
        "(--consolidation act), or to move a pod for another that waits (--defrag act).",
    ),
    "deploy/scaling/10-role.yaml": partial(
        scaling, "What gpu-pruner needs besides deploy/base/20-reader.yaml to add and remove nodes (--scaling act). "
        "Never without deploy/acting/15-bounds.yaml.",
    ),
    **{f"deploy/letters/{one}.yaml": partial(letter, one) for one in names.LETTERS if one not in names.DEFAULT_LETTERS},
}
