"""Parts of GPUs that are given by ResourceClaims (DRA): which there are, and the templates by which pods ask for them.

In: nodes with the devices that NVIDIA's driver publishes, policies, namespaces, the templates that are there. Out: a
GpuPart for one strategy, as parts.py finds them for the device plugin; what a template asks for; the next writes that
keep templates as enforcing policies want them.
Of a MIG profile only instances count that go to one claim alone, of a whole GPU only one that says to how many claims
it goes: a claim of any other device would share nothing, or with anybody. By MPS NVIDIA's driver shares a GPU between
the containers of one claim, and refuses it where a GPU goes to several: no pod is ever given that.
Invariant: only templates with our label are touched. One that nobody wants is marked first; it goes when no webhook can
still know it without the mark, and no pod names it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from fallow import names
from fallow.decide.sharing import parts
from fallow.decide.sharing.needs import ShareNeeds
from fallow.decide.sharing.parts import MigPart, PartIndex
from fallow.model import cluster, gpus
from fallow.model.claims import (
    ClaimDevice,
    ClaimGround,
    ClaimTemplate,
    ClaimWrite,
    MakeTemplate,
    MarkTemplate,
    RemoveTemplate,
)
from fallow.model.patterns import Pattern
from fallow.model.policies.sharing import SharingPolicy, Strategy
from fallow.model.sharing import GpuPart, PartNode, SharePod
from fallow.model.units import Instant, Seconds

# Longer than a webhook rests on what it last saw (observe/sharing.py), and than a review takes.
KEPT_AFTER_MARK: Final[Seconds] = 180.0
_CLOCKS: Final[Seconds] = 60.0  # by which two may differ
CLASSES: Final = frozenset({names.DRA_GPU_CLASS, names.DRA_MIG_CLASS})
USUAL_SLICE: Final = 100  # milliseconds, where nobody wrote anything: the driver's own turns, which need no setting
NO_MPS: Final = (
    "NVIDIA's DRA driver shares a GPU by MPS between the containers of one claim only, so that pods with a claim each "
    "would share nothing"
)
_REQUEST: Final = "gpu"
_INTERVALS: Final = ("Short", "Medium", "Long")
# By which a claim of resource.k8s.io/v1 asks for other devices, or for these in another way.
_SETTINGS: Final = frozenset({
    "adminAccess", "tolerations", "selectors", "capacity", "constraints", "config", "firstAvailable",
})
_OF: Final = {Strategy.mig: (Strategy.mig, Strategy.auto), Strategy.timeslicing: (Strategy.timeslicing, Strategy.auto)}


class ClaimSights(msgspec.Struct, frozen=True, kw_only=True):
    """`policies` by rank. `namespaces` by name. `exempt`: those in which nothing is ever changed."""

    policies: tuple[SharingPolicy, ...]
    namespaces: Mapping[str, cluster.Namespace]
    nodes: PartIndex
    ground: ClaimGround
    exempt: Pattern


# ---- which part ------------------------------------------------------------------------------------------------------


def find(
    strategy: Strategy, needs: ShareNeeds, accepted: Sequence[PartNode], *, profile: str = ""
) -> GpuPart | None:
    """As parts.find; `profile`: one that somebody asks for."""
    if strategy is Strategy.mig:
        chosen = parts.choose_profile(list_profiles(accepted), needs, wanted=profile)
        return None if chosen is None else GpuPart(strategy, profile=chosen, template=name_template(strategy, chosen))
    if strategy is Strategy.timeslicing and any(
        _has_room(device, needs) for node in accepted for device in node.devices
    ):
        return GpuPart(strategy, template=name_template(strategy))
    return None


def list_profiles(nodes: Iterable[PartNode]) -> tuple[MigPart, ...]:
    """Without those of which some instance goes to several claims: nobody knows on which one a pod would be."""
    cut = [device for node in nodes for device in node.devices if device.profile]
    crowded = {device.profile for device in cut if device.shares != 1}
    seen = (_see_part(device) for device in cut if device.profile not in crowded)
    return parts.join_profiles(part for part in seen if part is not None)


def _see_part(device: ClaimDevice) -> MigPart | None:
    model = gpus.find(device.product)
    least, most = parts.guess_memory(device.profile), parts.name_memory(device.profile)
    compute = parts.find_compute(device.profile, model.mig if model is not None else None)
    if least is None or most is None:
        return None
    return MigPart(profile=device.profile, memory=min(device.memory or least, most), compute=compute)


def _has_room(device: ClaimDevice, needs: ShareNeeds) -> bool:
    """Is it a whole GPU that several share, with enough memory if all of them used as much?"""
    if device.profile or device.shares is None or device.shares < 2:
        return False
    return needs.memory is None or (device.memory is not None and needs.memory * device.shares <= device.memory)


# ---- what a template asks for ----------------------------------------------------------------------------------------


def name_template(strategy: Strategy, profile: str = "") -> str:
    """`fallow-mig-1g.10gb`, `fallow-timeslicing`."""
    return names.CLAIM_TEMPLATE_PREFIX + "-".join(filter(None, (strategy, gpus.spell_plainly(profile))))


def find_interval(policies: Iterable[SharingPolicy]) -> str:
    """How long a turn on a shared GPU is, for everybody: the driver refuses two claims on one GPU that differ in it.
    The enforcing policy that ranks first says it; "": as the driver has it, without a setting."""
    for policy in policies:
        if policy.enforces and policy.strategy in _OF[Strategy.timeslicing]:
            return interval_of(policy)
    return ""


def interval_of(policy: SharingPolicy) -> str:
    if policy.slice_ms == USUAL_SLICE:
        return ""
    short, medium, long = _INTERVALS
    return short if policy.slice_ms <= 1 else medium if policy.slice_ms <= 10 else long


def make_asks(strategy: Strategy, profile: str, interval: str) -> dict[str, Any]:
    """The spec of a claim, with what the server would add said."""
    counted = {"allocationMode": "ExactCount", "count": 1}
    if strategy is Strategy.mig:
        chosen = f"device.attributes['{names.DRA_DRIVER}'].profile == '{profile}'"
        exactly = {"deviceClassName": names.DRA_MIG_CLASS, "selectors": [{"cel": {"expression": chosen}}], **counted}
        return {"devices": {"requests": [{"name": _REQUEST, "exactly": exactly}]}}
    share = {"requests": {"shares": "1"}}  # no device without shares is taken for it
    shared: dict[str, Any] = {
        "requests": [{"name": _REQUEST, "exactly": {
            "deviceClassName": names.DRA_GPU_CLASS, "capacity": share, **counted,
        }}],
    }
    if interval:
        parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharing": {
            "strategy": "TimeSlicing", "timeSlicingConfig": {"interval": interval},
        }}
        shared["config"] = [{
            "requests": [_REQUEST], "opaque": {"driver": names.DRA_DRIVER, "parameters": parameters},
        }]
    return {"devices": shared}


def is_given(template: ClaimTemplate | None, part: GpuPart, interval: str) -> bool:
    """May a pod be given it? It is there, ours, stays, and asks for what we would have written."""
    return (
        template is not None and template.is_ours and template.leaving_since is None
        and _says(template.asks, make_asks(part.strategy, part.profile, interval))
    )


def is_as_made(template: ClaimTemplate) -> bool:
    """Is it ours by its label, and does its name stand for what it asks for? Whoever wrote it lost nothing with it."""
    return template.is_ours and any(
        _says(template.asks, make_asks(strategy, profile, interval))
        for strategy, profile in read_name(template.name) for interval in ("", *_INTERVALS)
    )


def _says(found: Any, wanted: Any) -> bool:
    """All that is wanted stands there. What the server itself adds to an object makes it no other; who adds a setting,
    or access as an administrator, has made another."""
    if isinstance(wanted, Mapping):
        if not isinstance(found, Mapping) or any(found.get(key) for key in _SETTINGS - wanted.keys()):
            return False
        return all(_says(found.get(key), value) for key, value in wanted.items())
    if isinstance(wanted, list):
        return isinstance(found, list) and len(found) == len(wanted) and all(map(_says, found, wanted))
    return bool(found == wanted)


# ---- which templates there are to be ---------------------------------------------------------------------------------


def plan(sights: ClaimSights, now: Instant) -> tuple[ClaimWrite, ...]:
    """What is missing first; then marks; then what may go."""
    return (*_make(sights), *_mark(sights, now), *_remove(sights, now))


def _make(sights: ClaimSights) -> Iterator[ClaimWrite]:
    if not CLASSES.issubset(sights.ground.classes):
        return
    interval, made = find_interval(sights.policies), set[tuple[str, str]]()
    for policy in sights.policies:
        ways = _list_ways(policy, sights.nodes) if policy.enforces else ()
        for place in sights.namespaces.values() if ways else ():
            if not _means(policy, place, sights.exempt):
                continue
            for strategy, profile in ways:
                key = place.name, name_template(strategy, profile)
                if key not in sights.ground.templates and key not in made:
                    made.add(key)
                    yield MakeTemplate(*key, make_asks(strategy, profile, interval))


def _list_ways(policy: SharingPolicy, nodes: PartIndex) -> tuple[tuple[Strategy, str], ...]:
    """By what its pods may ask for parts that nodes which it selects offer now."""
    accepted = parts.find_nodes(SharePod(namespace=""), nodes, policy.node_selector)
    cut = [each.profile for each in list_profiles(accepted) if policy.profile in ("", each.profile)]
    by_turns = find(Strategy.timeslicing, ShareNeeds(), accepted) is not None
    ways = [*((Strategy.mig, profile) for profile in cut), *([(Strategy.timeslicing, "")] if by_turns else [])]
    return tuple((strategy, profile) for strategy, profile in ways if policy.strategy in _OF[strategy])


def _means(policy: SharingPolicy, place: cluster.Namespace, exempt: Pattern) -> bool:
    is_off = place.labels.get(names.WEBHOOK_DISABLED[0]) == names.WEBHOOK_DISABLED[1]
    return not is_off and not exempt.fullmatch(place.name) and policy.namespace_selector.matches(place.labels)


def _mark(sights: ClaimSights, now: Instant) -> Iterator[ClaimWrite]:
    for template in sights.ground.templates.values():
        since, is_wanted = template.leaving_since, _is_wanted(template, sights)
        is_due = since is not None if is_wanted else since is None or since > now + _CLOCKS  # a future one never ends
        if template.is_ours and is_due:
            yield MarkTemplate(template, None if is_wanted else now)


def _is_wanted(template: ClaimTemplate, sights: ClaimSights) -> bool:
    """By a policy that enforces there, whether nodes offer it just now or not, and as it is."""
    place = sights.namespaces.get(template.namespace)
    if place is None:
        return False
    interval = find_interval(sights.policies)
    return any(
        policy.enforces and policy.strategy in _OF[strategy] and _means(policy, place, sights.exempt)
        and policy.profile in ("", profile) and _says(template.asks, make_asks(strategy, profile, interval))
        for strategy, profile in read_name(template.name) for policy in sights.policies
    )


def read_name(name: str) -> Iterator[tuple[Strategy, str]]:
    """What it is called by; of a name that is none of ours, nothing."""
    if name == name_template(Strategy.timeslicing):
        yield Strategy.timeslicing, ""
    cut = f"{name_template(Strategy.mig)}-"
    if name.startswith(cut):
        yield Strategy.mig, gpus.read_plain(name.removeprefix(cut))


def _remove(sights: ClaimSights, now: Instant) -> Iterator[ClaimWrite]:
    for template in sights.ground.templates.values():
        since = template.leaving_since
        is_over = since is not None and now - since >= KEPT_AFTER_MARK
        if template.is_ours and is_over and not _is_wanted(template, sights):
            yield RemoveTemplate(template)
