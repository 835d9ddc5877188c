"""The flags about sharing GPUs: what the daemon may do to nodes, what tells the class of a workload, and what the
admission webhook may rewrite.

In: flag texts. Out: PartitionSettings, ConsolidationSettings and DefragSettings for the daemon, AdmissionSharing for
`fallow webhook`.
Without a word of the operator nodes are only advised on. A pattern that is wrong ends here, in one sentence.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from fallow import names
from fallow.model import classes
from fallow.model.classes import WorkClass
from fallow.model.policies.sharing import Strategy
from fallow.settings import readers as read
from fallow.settings.flags import Flag, group
from fallow.settings.readers import UsageError

SHARING: Final = "Sharing and packing"
PLUGIN_MAP: Final = ("gpu-operator", "device-plugin-config")
MIG_MAP: Final = ("gpu-operator", "fallow-mig-parted-config")
_PATTERN: Final = "--classification-pattern"
_WAYS: Final = tuple(str(each) for each in (Strategy.mig, Strategy.mps, Strategy.timeslicing))


def _class_pattern(text: str) -> tuple[WorkClass, str]:
    word, separator, pattern = text.partition("=")
    if not separator or not pattern or word not in list(WorkClass):
        raise ValueError(f"{text!r} is not CLASS=REGEX, with a class of {', '.join(WorkClass)}")
    return WorkClass(word), pattern


def _read_place(text: str) -> tuple[str, str]:
    namespace, separator, name = text.partition("/")
    if not separator or not namespace or not name or "/" in name:
        raise ValueError(f"{text!r} is not NAMESPACE/NAME")
    return namespace, name


_BACKEND: Final = Flag(
    "--sharing-backend", "WAY",
    "How parts of GPUs are given: device-plugin: as resources; dra: by ResourceClaims of NVIDIA's DRA driver, where "
    "resource.k8s.io/v1 and its device classes are served. The daemon and the webhook must be told the same.",
    read.one_of("device-plugin", "dra"), "device-plugin",
)

FLAGS: tuple[Flag, ...] = group(
    SHARING,
    Flag("--sharing", "MODE",
         "What becomes of GPUNodeConfigs: recommend: their status tells what would be done; act: those that say mode: "
         "enforce are carried out. With --sharing-backend dra no node is changed: act keeps ResourceClaimTemplates for "
         "GPUSharingPolicies that enforce.", read.one_of("recommend", "act"), "recommend"),
    _BACKEND,
    Flag("--sharing-max-changes", "N", "Nodes of one pool that are cut or shared anew at the same time.",
         read.whole_number(1), "1"),
    Flag("--sharing-plugin-configmap", "NAMESPACE/NAME",
         "ConfigMap of NVIDIA's device plugin; only keys that begin with fallow- are written there.", _read_place,
         "/".join(PLUGIN_MAP)),
    Flag("--sharing-mig-configmap", "NAMESPACE/NAME",
         "ConfigMap for layouts that NVIDIA's MIG manager has no name for; it must be told to read it.", _read_place,
         "/".join(MIG_MAP)),
    Flag("--consolidation", "MODE",
         "Nodes whose few GPU pods all fit elsewhere: off: not looked for; recommend: told; act: emptied, one at a "
         "time, by evictions that PodDisruptionBudgets allow.", read.one_of("off", "recommend", "act"), "recommend"),
    Flag("--defrag", "MODE",
         "A pod that fits nowhere, and would if one other pod went elsewhere: off: not looked for; recommend: told; "
         "act: that pod is evicted, one at a time, once the scheduler's extender keeps both places.",
         read.one_of("off", "recommend", "act"), "recommend"),
    Flag("--defrag-scheduler", "NAME",
         f"A scheduler that asks the extender (repeatable); none: {names.DEFAULT_SCHEDULER}.", repeat=True),
    Flag("--consolidation-threshold", "SHARE", "Only nodes of whose GPUs less than this share is in use.",
         read.number(0.0, 1.0), "0.5"),
)

WEBHOOK_FLAGS: tuple[Flag, ...] = (
    Flag("--rewrite-requests", "BOOL",
         "Let enforcing GPUSharingPolicies, and pods that ask for it, change requests for a whole GPU into a part of "
         "one; false: that is only counted, and said as a warning.", read.truth, "false"),
    _BACKEND,
    Flag("--scheduler-name", "NAME",
         f"A scheduler whose pods may share GPUs (repeatable); none: {names.DEFAULT_SCHEDULER}.", repeat=True),
    Flag("--sharing-without", "STRATEGY",
         "A way of sharing that is not used, whatever policies and pods say: mig, mps or timeslicing (repeatable).",
         read.one_of(*_WAYS), repeat=True),
    Flag(_PATTERN, "CLASS=REGEX",
         "A further pattern by which image, command or arguments of a container tell its class, tried before the "
         "built-in ones (repeatable).", _class_pattern, repeat=True),
)


class AdmissionSharing(msgspec.Struct, frozen=True, kw_only=True):
    rewrites: bool = False
    by_claims: bool = False
    schedulers: frozenset[str] = frozenset({names.DEFAULT_SCHEDULER})
    without: frozenset[Strategy] = frozenset()
    patterns: Mapping[WorkClass, tuple[str, ...]] = {}


def read_admission(values: Mapping[str, Any]) -> AdmissionSharing:
    """Raises UsageError for a pattern that is no regular expression."""
    return AdmissionSharing(
        rewrites=values["rewrite_requests"], by_claims=_by_claims(values),
        schedulers=frozenset(values["scheduler_name"]) or frozenset({names.DEFAULT_SCHEDULER}),
        without=frozenset(map(Strategy, values["sharing_without"])),
        patterns=_read_patterns(values["classification_pattern"]),
    )


def _read_patterns(given: tuple[tuple[WorkClass, str], ...]) -> dict[WorkClass, tuple[str, ...]]:
    found: dict[WorkClass, tuple[str, ...]] = {}
    for work, pattern in given:
        found[work] = (*found.get(work, ()), pattern)
    try:
        classes.Patterns(found)
    except ValueError as problem:
        raise UsageError(f"{_PATTERN}: {problem}") from None
    return found


class PartitionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How the controller changes nodes. The ConfigMaps by namespace and name: the device plugin's, in which only our
    own keys are written, and one for mig-parted, which its operator must be told to read. `by_claims`: parts of GPUs
    are given by ResourceClaims, and no node is changed."""

    acts: bool = False
    by_claims: bool = False
    max_changes: int = 1  # at once, in one pool of nodes
    plugin_map: tuple[str, str] = PLUGIN_MAP
    mig_map: tuple[str, str] = MIG_MAP


class ConsolidationSettings(msgspec.Struct, frozen=True, kw_only=True):
    is_on: bool = True
    acts: bool = False
    threshold: float = 0.5


class DefragSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`schedulers`: those that ask the extender, which keeps the places of a move."""

    is_on: bool = True
    acts: bool = False
    schedulers: frozenset[str] = frozenset({names.DEFAULT_SCHEDULER})


def read_partitions(values: Mapping[str, Any]) -> PartitionSettings:
    """Raises UsageError for what would act in a dry run."""
    return PartitionSettings(
        acts=may_act("sharing", values), by_claims=_by_claims(values), max_changes=values["sharing_max_changes"],
        plugin_map=values["sharing_plugin_configmap"], mig_map=values["sharing_mig_configmap"],
    )


def read_consolidation(values: Mapping[str, Any]) -> ConsolidationSettings:
    """Raises UsageError for what would act in a dry run."""
    return ConsolidationSettings(
        is_on=values["consolidation"] != "off", acts=may_act("consolidation", values),
        threshold=values["consolidation_threshold"],
    )


def read_defrag(values: Mapping[str, Any]) -> DefragSettings:
    """Raises UsageError for what would act in a dry run."""
    return DefragSettings(
        is_on=values["defrag"] != "off", acts=may_act("defrag", values),
        schedulers=frozenset(values["defrag_scheduler"]) or frozenset({names.DEFAULT_SCHEDULER}),
    )


def _by_claims(values: Mapping[str, Any]) -> bool:
    return bool(values["sharing_backend"] == "dra")


def may_act(flag: str, values: Mapping[str, Any]) -> bool:
    """A dry run changes nothing, whatever else is asked for."""
    acts: bool = values[flag] == "act"
    if acts and values["run_mode"] != "scale-down":
        raise UsageError(
            f"--{flag} act needs --run-mode scale-down: a dry run changes nothing. Where only nodes are to be changed, "
            "and nobody paused, add --require-policy true and make no IdlePolicy"
        )
    return acts
