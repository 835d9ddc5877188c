"""The flags about sharing GPUs: what tells the class of a workload, and what the admission webhook may rewrite.

In: flag texts. Out: AdmissionSharing for `fallow webhook`. A pattern that is wrong ends here, in one sentence.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from fallow.model import classes
from fallow.model.classes import WorkClass
from fallow.settings import readers as read
from fallow.settings.flags import Flag
from fallow.settings.readers import UsageError

DEFAULT_SCHEDULER: Final = "default-scheduler"
_PATTERN: Final = "--classification-pattern"


def _class_pattern(text: str) -> tuple[WorkClass, str]:
    word, separator, pattern = text.partition("=")
    if not separator or not pattern or word not in list(WorkClass):
        raise ValueError(f"{text!r} is not CLASS=REGEX, with a class of {', '.join(WorkClass)}")
    return WorkClass(word), pattern


WEBHOOK_FLAGS: tuple[Flag, ...] = (
    Flag("--rewrite-requests", "BOOL",
         "Let enforcing GPUSharingPolicies, and pods that ask for it, change requests for a whole GPU into a part of "
         "one; false: that is only counted, and said as a warning.", read.truth, "false"),
    Flag("--scheduler-name", "NAME", f"A scheduler whose pods may share GPUs (repeatable); none: {DEFAULT_SCHEDULER}.",
         repeat=True),
    Flag(_PATTERN, "CLASS=REGEX",
         "A further pattern by which image, command or arguments of a container tell its class, tried before the "
         "built-in ones (repeatable).", _class_pattern, repeat=True),
)


class AdmissionSharing(msgspec.Struct, frozen=True, kw_only=True):
    rewrites: bool = False
    schedulers: frozenset[str] = frozenset({DEFAULT_SCHEDULER})
    patterns: Mapping[WorkClass, tuple[str, ...]] = {}


def read_admission(values: Mapping[str, Any]) -> AdmissionSharing:
    """Raises UsageError for a pattern that is no regular expression."""
    return AdmissionSharing(
        rewrites=values["rewrite_requests"],
        schedulers=frozenset(values["scheduler_name"]) or frozenset({DEFAULT_SCHEDULER}),
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
    own keys are written, and one for mig-parted, which its operator must be told to read."""

    max_changes: int = 1  # at once, in one pool of nodes
    plugin_map: tuple[str, str] = ("gpu-operator", "device-plugin-config")
    mig_map: tuple[str, str] = ("gpu-operator", "fallow-mig-parted-config")
