"""What a GPUNodeConfig asks of its node, in the words of NVIDIA's programs: labels, keys of ConfigMaps, what to expect.

In: the config, the node, a judge of MIG layouts (decide/packing). Out: a NodeAim, or why there is none.
mig-parted's own names (all-1g.10gb, all-balanced, all-disabled) are used where they say the same; other layouts get a
name made of what they are. The device plugin's documents are JSON, which is YAML.
Invariant: the same wish on the same node is the same aim. Only keys that begin with fallow- are ours.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from fallow import names
from fallow.model import gpus, partition
from fallow.model.partition import (
    Documents,
    NodeLayout,
    NodeSharing,
    PartitionNode,
    RepartitionReason,
    WhichMap,
    WriteKey,
)
from fallow.model.policies.sharing import NodeConfig
from fallow.model.seen import Input, Known

_TURNS: Final = "time-slicing"
_OUR_TURNS: Final = f"{partition.OURS}timeslicing-"
_SHARED: Final = ".shared"
_CUT: Final = "-MIG-"  # in a product's name: by migStrategy single every instance is counted as a GPU
_EXCLUSIVE: Final = f"{partition.OURS}exclusive"
_DEFAULT: Final = "default"  # the key that the device plugin falls back to
JudgeLayout: TypeAlias = Callable[[Sequence[str], gpus.Model], str]  # why it is illegal; "" = it is not


class NoAim(msgspec.Struct, frozen=True):
    reason: RepartitionReason
    because: str


class NodeAim(msgspec.Struct, frozen=True, kw_only=True):
    """`documents`: keys of ConfigMaps that must be there before the labels are written."""

    after: NodeLayout
    documents: tuple[WriteKey, ...] = ()


class _Cut(msgspec.Struct, frozen=True):
    """How MIG is to cut each GPU. `instances` None: nobody knows; empty: not at all."""

    label: str | None
    instances: Mapping[str, int] | None


def find_offers(offers: Mapping[str, int]) -> dict[str, int]:
    """What is advertised of GPUs, without what there is none of."""
    return {name: count for name, count in sorted(offers.items())
            if count and (name in (names.GPU, names.GPU_SHARED) or name.startswith(names.MIG_PREFIX))}


def see(node: PartitionNode) -> NodeLayout:
    """As it is now."""
    return NodeLayout(
        node.labels.get(names.MIG_CONFIG), node.labels.get(names.PLUGIN_CONFIG), find_offers(node.offers)
    )


def see_sharing(node: PartitionNode, holding: int | None) -> NodeSharing:
    """`holding`: pods with a share of one of its GPUs."""
    shares = node.offers.get(names.GPU_SHARED, 0)
    way = node.labels.get(names.GPU_SHARING, "")
    if shares and way in ("", "none"):  # NVIDIA's feature discovery is late, or not there: our key's name tells
        way = "mps" if (node.labels.get(names.PLUGIN_CONFIG) or "").startswith(f"{partition.OURS}mps") else _TURNS
    count = _count_gpus(node)
    return NodeSharing(
        way=way if shares else "", shares=shares, gpus=count, holding=holding,
        replicas=shares // count if shares and count else None,
        profiles={
            name.removeprefix(names.MIG_PREFIX): many for name, many in find_offers(node.offers).items()
            if name.startswith(names.MIG_PREFIX)
        },
    )


def aim(config: NodeConfig, node: PartitionNode, judge: JudgeLayout) -> NodeAim | NoAim:
    product = node.labels.get(names.GPU_PRODUCT, "")
    model, count = gpus.find(product), _count_gpus(node)
    if count is None:
        return NoAim(RepartitionReason.GpuUnknown, f"how many GPUs {node.name} has is not known: {names.GPU_COUNT} is "
                                                   "missing, or counts MIG instances (migStrategy single)")
    if config.mps_clients is not None and names.MPS_CAPABLE not in node.labels:  # "true" only once it shares by MPS
        return NoAim(RepartitionReason.MpsUnsupported, f"{node.name} has no label {names.MPS_CAPABLE}: NVIDIA's device "
                                                       "plugin is older than 0.15, or its feature discovery is missing")
    cut = _find_cut(config, node, model, product, judge)
    if isinstance(cut, NoAim):
        return cut
    replicas = config.mps_clients or config.slicing_replicas
    if replicas is not None and cut.instances is None:
        return NoAim(RepartitionReason.GpuUnknown, f"which MIG instances {node.name} will have is not known, so nobody "
                                                   "can say which are to be shared: name them in migProfiles")
    key = _name_plugin(config, node, cut)
    documents = [] if key is None or not key.startswith(partition.OURS) else [
        WriteKey(WhichMap.plugin, key, _write_plugin(config, cut)),
    ]
    if config.profiles and cut.label is not None and cut.label.startswith(partition.OURS) and cut.instances:
        documents.append(WriteKey(WhichMap.mig, cut.label, _write_mig(cut.instances)))
    return NodeAim(
        after=NodeLayout(cut.label, key, _expect(cut, count, replicas, node)), documents=tuple(documents)
    )


def _count_gpus(node: PartitionNode) -> int | None:
    said = node.labels.get(names.GPU_COUNT, "")
    if _CUT in node.labels.get(names.GPU_PRODUCT, ""):
        return None
    return int(said) if said.isdecimal() and len(said) <= 3 and int(said) > 0 else None


# ---- MIG -------------------------------------------------------------------------------------------------------------


def _find_cut(
    config: NodeConfig, node: PartitionNode, model: gpus.Model | None, product: str, judge: JudgeLayout
) -> _Cut | NoAim:
    present = node.labels.get(names.MIG_CONFIG)
    if not config.mig:
        is_cut = any(name.startswith(names.MIG_PREFIX) for name in find_offers(node.offers))
        was_asked = present not in (None, names.MIG_DISABLED)
        return _Cut(names.MIG_DISABLED if is_cut or was_asked else present, {})
    if model is None or model.mig is None:
        return NoAim(RepartitionReason.IllegalLayout, f"no MIG profiles of {product or 'its GPU'} are known")
    if config.mig_config:
        return _Cut(config.mig_config, _read_stock(config.mig_config, model.mig))
    if not config.profiles:
        return _Cut(present, _see_cut(node))
    if because := judge(config.profiles, model):
        return NoAim(RepartitionReason.IllegalLayout, because)
    instances = dict(sorted(Counter(config.profiles).items()))
    return _Cut(_name_stock(instances, model.mig) or _name_ours(instances), instances)


def _see_cut(node: PartitionNode) -> Mapping[str, int] | None:
    """How each GPU is cut now; None where they are not cut alike, or it is not told."""
    offers, times = find_offers(node.offers), (_count_gpus(node) or 0) * _count_turns(node)
    if offers.keys() <= {names.GPU, names.GPU_SHARED}:
        return {} if offers and _is_whole(node) else None
    if not times or any(not name.startswith(names.MIG_PREFIX) or many % times for name, many in offers.items()):
        return None
    plain = {name.removeprefix(names.MIG_PREFIX).removesuffix(_SHARED): many for name, many in offers.items()}
    return {gpus.read_plain(name): many // times for name, many in plain.items()}


def _is_whole(node: PartitionNode) -> bool:
    return node.labels.get(names.MIG_CONFIG) in (None, names.MIG_DISABLED)


def _count_turns(node: PartitionNode) -> int:
    """How many pods share each of its instances, as our key's name tells; 0: by a key that is not ours."""
    if not any(name.endswith(_SHARED) for name in find_offers(node.offers)):
        return 1
    key = node.labels.get(names.PLUGIN_CONFIG) or ""
    digits = key.removeprefix(_OUR_TURNS).partition("-")[0] if key.startswith(_OUR_TURNS) else ""
    return int(digits) if digits.isdecimal() and len(digits) <= 2 else 0


def _stock(mig: gpus.Mig) -> dict[str, dict[str, int]]:
    """Names and contents of mig-parted's own configurations. Where an installation has others under these names, what
    the node then advertises tells, and the change is taken back."""
    made = {f"all-{gpus.spell_plainly(each.name)}": {each.name: each.most} for each in mig.profiles}
    small = mig.profiles[0].name
    two, three = (next((each.name for each in mig.profiles if each.compute == wide and each.most > 1), None)
                  for wide in (2, 3))
    balanced = {small: 2, **{name: 1 for name in (two, three) if name}}
    return {**made, "all-balanced": balanced, names.MIG_DISABLED: {}}


def _name_stock(instances: Mapping[str, int], mig: gpus.Mig) -> str | None:
    return next((name for name, found in _stock(mig).items() if found == instances and instances), None)


def _read_stock(name: str, mig: gpus.Mig) -> Mapping[str, int] | None:
    return _stock(mig).get(name)


def _name_ours(instances: Mapping[str, int]) -> str:
    text = ",".join(f"{name}x{count}" for name, count in sorted(instances.items()))
    return partition.OURS + hashlib.blake2b(text.encode(), digest_size=4).hexdigest()


def _write_mig(instances: Mapping[str, int]) -> str:
    made = [{"devices": "all", "mig-enabled": True, "mig-devices": dict(instances)}]
    return msgspec.json.encode(made).decode()


# ---- the device plugin -----------------------------------------------------------------------------------------------


def _name_plugin(config: NodeConfig, node: PartitionNode, cut: _Cut) -> str | None:
    """Its configuration, by name; as it is where nothing of it has to change."""
    if config.mps_clients is not None:
        return f"{partition.OURS}mps-{config.mps_clients}"
    if config.slicing_replicas is not None:
        made = f"{_OUR_TURNS}{config.slicing_replicas}"
        return made if not cut.instances else f"{made}-{_name_ours(cut.instances).removeprefix(partition.OURS)}"
    present = node.labels.get(names.PLUGIN_CONFIG)
    shares = node.labels.get(names.GPU_SHARING, "none") != "none" or names.GPU_SHARED in find_offers(node.offers)
    return _EXCLUSIVE if shares else present


def _write_plugin(config: NodeConfig, cut: _Cut) -> str:
    made: dict[str, Any] = {"version": "v1", "flags": {"migStrategy": "mixed"}}
    replicas = config.mps_clients or config.slicing_replicas
    if replicas is not None:
        resources = [gpus.name_resource(name) for name in cut.instances] if cut.instances else [names.GPU]
        shared = {
            "renameByDefault": True, "failRequestsGreaterThanOne": True,
            "resources": [{"name": name, "replicas": replicas} for name in resources],
        }
        made["sharing"] = {"mps" if config.mps_clients is not None else "timeSlicing": shared}
    return msgspec.json.encode(made).decode()


def find_only_key(documents: Sequence[WriteKey], held: Input[Documents]) -> str:
    """The one key of the device plugin's ConfigMap, where ours would be its second: a plugin that was installed by its
    own chart takes the only key for nodes without a label, and of two none, unless one is called default."""
    there = held.value if isinstance(held, Known) else {}
    is_first = any(each.which is WhichMap.plugin and each.key not in there for each in documents)
    return next(iter(there)) if is_first and len(there) == 1 and _DEFAULT not in there else ""


def _expect(cut: _Cut, count: int, replicas: int | None, node: PartitionNode) -> dict[str, int]:
    """What the node will advertise."""
    if cut.instances is None:
        return find_offers(node.offers)
    if not cut.instances:
        return {names.GPU: count} if replicas is None else {names.GPU_SHARED: count * replicas}
    if node.labels.get(names.MIG_STRATEGY) == "single" and replicas is None and len(cut.instances) == 1:
        return {names.GPU: count * sum(cut.instances.values())}
    suffix = "" if replicas is None else _SHARED
    times = count * (replicas or 1)
    return {f"{gpus.name_resource(name)}{suffix}": each * times for name, each in cut.instances.items()}
