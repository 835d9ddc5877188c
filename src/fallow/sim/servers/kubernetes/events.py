"""Events in their two forms: core/v1, as they are kept, and events.k8s.io/v1, as the product writes them."""

from collections.abc import Mapping
from typing import Any, TypeAlias

Object: TypeAlias = dict[str, Any]

GROUP = "events.k8s.io"
_TO_CORE = {
    "regarding": "involvedObject", "note": "message", "reportingController": "reportingComponent",
    "deprecatedSource": "source", "deprecatedFirstTimestamp": "firstTimestamp",
    "deprecatedLastTimestamp": "lastTimestamp", "deprecatedCount": "count",
}
_TO_NEW = {core: new for new, core in _TO_CORE.items()}
# Always there in the core form, even when nobody said anything.
_CORE_GAPS: Object = {
    "source": {}, "firstTimestamp": None, "lastTimestamp": None, "eventTime": None, "reportingComponent": "",
    "reportingInstance": "",
}


def to_core(event: Mapping[str, Any]) -> Object:
    """As it is kept; what is in the core form already stays."""
    renamed = {_TO_CORE.get(name, name): part for name, part in event.items()}
    return {**_CORE_GAPS, **renamed, "apiVersion": "v1", "kind": "Event"}


def to_new(event: Mapping[str, Any]) -> Object:
    renamed = {_TO_NEW.get(name, name): part for name, part in event.items()}
    return {**renamed, "apiVersion": f"{GROUP}/v1", "kind": "Event"}
