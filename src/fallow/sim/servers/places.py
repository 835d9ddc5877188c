"""The scheduler of a pretend cluster with our extender: it keeps the places that stand on nodes, and says so.

In: a World, the Store in which places are written on nodes, the Objects by which it is known whose they are. Out: the
world keeps them for whom they are meant; with every `step` a Lease says which are kept, as the extender does it.
Invariant: only a place that there is, or that somebody has who is to leave it, is said to be kept.
"""

from typing import Final

from fallow import names
from fallow.model import moving
from fallow.sim.servers import objects
from fallow.sim.servers import store as stores
from fallow.sim.world import world as worlds

LEASE: Final = stores.Key("coordination.k8s.io", "Lease", "default", names.EXTENDER_LEASE)  # where the product lives


class HeldPlaces:
    def __init__(self, world: worlds.World, store: stores.Store, shown: objects.Objects) -> None:
        self._world, self._store, self._shown = world, store, shown
        self._kept: dict[str, str] = {}  # by node, as the extender calls it
        store.subscribe(self._hear)

    def _hear(self, change: stores.Change) -> None:
        name, is_there = change.entry.key.name, change.type != "DELETED"
        if change.entry.key.kind != "Node" or name not in self._world.nodes:
            return
        marks = change.entry.object["metadata"].get("annotations") or {}
        held = moving.read_place(marks.get(names.PLACE_HELD)) if is_there else None
        if held is None and self._kept.pop(name, None) is not None:
            self._world.free_place(name)
        elif held is not None and name not in self._kept:
            meant = self._shown.find_meant(held)
            if meant is not None and self._world.keep_place(name, meant, is_left=bool(held.pod)):
                self._kept[name] = moving.name_place(held.move, name)

    def step(self) -> None:
        if not self._kept:
            return
        if self._store.find(LEASE) is None:
            meta = {"name": LEASE.name, "namespace": LEASE.namespace}
            self._store.create({"apiVersion": f"{LEASE.group}/v1", "kind": LEASE.kind, "metadata": meta, "spec": {}})
        said = moving.PlacesSaid(v=1, at=self._world.clock, kept=tuple(self._kept.values()), refused=())
        self._store.patch(LEASE, {"metadata": {"annotations": {f"{names.PLACES_KEPT}sim": moving.write(said)}}})
