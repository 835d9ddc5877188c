"""GPUs that are given by ResourceClaims (DRA): what the driver publishes of a node, and the templates that we keep.

In: nothing; observe/claims.py fills these in. Out: nothing.
Invariant: what a device does not say of itself is None, never 0.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec

from fallow.model.units import Instant


class ClaimDevice(msgspec.Struct, frozen=True, kw_only=True):
    """`profile`: of a MIG instance; "": a whole GPU. `memory`: MiB. `shares`: to how many claims it is given at most,
    1 to one alone; None: to several, and nobody says how many."""

    product: str = ""
    profile: str = ""
    memory: int | None = None
    shares: int | None = 1


class ClaimTemplate(msgspec.Struct, frozen=True, kw_only=True):
    """`asks`: what a claim that is made of it asks for, as it is written. `is_ours`: by its label. `leaving_since`: we
    have marked it, and nobody is given it any more."""

    namespace: str
    name: str
    uid: str = ""
    resource_version: str = ""
    asks: Mapping[str, Any] = {}
    is_ours: bool = True
    leaving_since: Instant | None = None


class ClaimGround(msgspec.Struct, frozen=True):
    """`classes`: the device classes of NVIDIA's driver that the server has. `templates` by namespace and name."""

    classes: frozenset[str] = frozenset()
    templates: Mapping[tuple[str, str], ClaimTemplate] = {}


class MakeTemplate(msgspec.Struct, frozen=True):
    namespace: str
    name: str
    asks: Mapping[str, Any]


class MarkTemplate(msgspec.Struct, frozen=True):
    """`since`: it is leaving; None: it stays after all."""

    template: ClaimTemplate
    since: Instant | None


class RemoveTemplate(msgspec.Struct, frozen=True):
    template: ClaimTemplate


ClaimWrite: TypeAlias = MakeTemplate | MarkTemplate | RemoveTemplate
