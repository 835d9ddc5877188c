"""NVIDIA's MIG manager, device plugin and feature discovery on one node, as far as its Node object shows them.

In: the node's labels, the documents of the device plugin's ConfigMap, mig-parted's configurations by name. Out: what
one of the programs writes next, a NodeWrite at a time, so that everything in between can be seen.
Written from their sources (docs/sources.md says which): the manager takes the device plugin away before it cuts, says
`success` before the plugin is back, and says nothing but `success` where all is as asked for; a configuration that it
does not have is `failed` at once. The plugin runs on with what it had while its ConfigMap lacks the key of the label,
and does not notice that a key has another content. That a node can do MPS is said once it does it, and not before.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from fallow import names

STOCK: Final[Mapping[str, Mapping[str, int]]] = {
    names.MIG_DISABLED: {}, "all-1g.5gb": {"1g.5gb": 7}, "all-1g.10gb": {"1g.10gb": 7},
    "all-balanced": {"1g.5gb": 2, "2g.10gb": 1, "3g.20gb": 1},
}
SILENCE, REBOOTING = "silence", "rebooting"  # answers after which `settle` says how it went on
PAUSED: Final = "paused-for-mig-change"
CLIENTS: Final = tuple(
    f"nvidia.com/gpu.deploy.{name}" for name in ("device-plugin", "gpu-feature-discovery", "dcgm-exporter", "dcgm")
)
_WAYS: Final = {"timeSlicing": "time-slicing", "mps": "mps"}


class NodeWrite(msgspec.Struct, frozen=True):
    """Labels (None: taken off), and what the node offers from now on; None: as before. What is 0 was offered before."""

    labels: Mapping[str, str | None] = {}
    offers: Mapping[str, int] | None = None


class NvidiaNode:
    """`answers`: how the manager ends, a word for each change; `success` when they are used up."""

    def __init__(
        self, gpus: int, product: str, *, answers: Sequence[str] = (), offers: Mapping[str, int] | None = None
    ) -> None:
        self._gpus, self._product, self.answers = gpus, product, list(answers)
        self._due: deque[NodeWrite] = deque()
        self._cut: Mapping[str, int] | None = {}  # each GPU; None: a change ended half-way
        self._asked = ""  # the last that the manager read
        self._key: str | None = None
        self._document: Mapping[str, Any] = {}
        self._offers: dict[str, int] = dict(offers or {names.GPU: gpus})

    def heed(
        self, labels: Mapping[str, str], plugin: Mapping[str, Any], mig: Mapping[str, Any]
    ) -> NodeWrite | None:
        """What is written next; None: nothing is to be done. `plugin`: documents by key, decoded."""
        if not self._due:
            self._due.extend(self._manage(labels, mig))
        if not self._due:
            self._due.extend(self._plug(labels.get(names.PLUGIN_CONFIG), plugin))
        return self._due.popleft() if self._due else None

    # ---- the MIG manager ---------------------------------------------------------------------------------------------

    def _manage(self, labels: Mapping[str, str], mig: Mapping[str, Any]) -> Iterator[NodeWrite]:
        asked = labels.get(names.MIG_CONFIG, "")
        if not asked or asked == self._asked:  # a label that is gone is heeded no more than one that stays
            return
        self._asked = asked
        cut, answer = find_cut(asked, mig), self.answers.pop(0) if self.answers else "success"
        if cut is None:
            yield NodeWrite({names.MIG_CONFIG_STATE: "failed"})
            return
        if cut != self._cut or answer != "success":
            yield NodeWrite({names.MIG_CONFIG_STATE: "pending", **dict.fromkeys(CLIENTS, PAUSED)})
            yield NodeWrite(offers=dict.fromkeys(self._offers, 0))
        yield from self._end(cut, answer)

    def _end(self, cut: Mapping[str, int], answer: str) -> Iterator[NodeWrite]:
        if answer == REBOOTING:
            yield NodeWrite({names.MIG_CONFIG_STATE: REBOOTING})
        if answer in (REBOOTING, SILENCE):
            return
        shown = cut if answer == "success" else self._cut or {}
        self._cut = cut if answer == "success" else None
        yield NodeWrite({**dict.fromkeys(CLIENTS, "true"), names.MIG_CONFIG_STATE: answer})
        yield from self._restart(shown)

    def settle(self, answer: str, mig: Mapping[str, Any]) -> None:
        """The manager, which was silent or rebooted, comes to an end of what it was asked for."""
        self._due.extend(self._end(find_cut(self._asked, mig) or {}, answer))

    # ---- the device plugin, and feature discovery beside it ----------------------------------------------------------

    def _plug(self, key: str | None, plugin: Mapping[str, Any]) -> Iterator[NodeWrite]:
        document = plugin.get(key) if key else {}
        if key == self._key or document is None:
            return
        self._key, self._document = key, document
        yield from self._restart(self._cut or {})

    def _restart(self, cut: Mapping[str, int]) -> Iterator[NodeWrite]:
        """It offers what it finds; labels come after it."""
        plain = {_resource_of(name): self._gpus * count for name, count in cut.items()} or {names.GPU: self._gpus}
        none: tuple[str, Mapping[str, Any]] = ("", {})
        way, shared = next(iter((self._document.get("sharing") or {}).items()), none)
        replicas = {one["name"]: one["replicas"] for one in shared.get("resources", ())}
        is_renamed = bool(shared.get("renameByDefault"))
        offers = {
            f"{name}.shared" if name in replicas and is_renamed else name: count * replicas.get(name, 1)
            for name, count in plain.items()
        }
        gone = {name: 0 for name in self._offers if name not in offers}
        self._offers = offers
        yield NodeWrite(offers={**gone, **offers})
        suffix = "-SHARED" if names.GPU in replicas and not is_renamed else ""
        whole = 0 if cut else replicas.get(names.GPU, 1)  # of GPUs that are cut no sharing is told
        yield NodeWrite({
            names.GPU_PRODUCT: f"{self._product}{suffix}", names.GPU_COUNT: str(self._gpus),
            names.GPU_REPLICAS: str(whole), names.GPU_SHARING: _WAYS.get(way, "none"),
            names.MPS_CAPABLE: "true" if way == "mps" else "false", names.MIG_STRATEGY: "mixed",
            **{f"{_resource_of(name)}.count": str(self._gpus * count) for name, count in cut.items()},
        })


def find_cut(asked: str, mig: Mapping[str, Any]) -> Mapping[str, int] | None:
    """Of each GPU, by the manager's own configurations or those of a ConfigMap; None: there is none of that name."""
    if asked in mig:
        found: Mapping[str, int] = mig[asked][0]["mig-devices"]
        return found
    return STOCK.get(asked)


def _resource_of(profile: str) -> str:
    return names.MIG_PREFIX + profile.replace("+", ".")
