"""What the pretend cluster pays for its machines, and what two of its CostBudgets allow.

In: the nodes and parts of a World. Out: labels and annotations of a node, the operator's own table of prices as a
ConfigMap, and CostBudgets: one of the team that asks for most, which is too small for it, and one of all GPUs, which
suffices.
Invariant: a price is made up and its source says so; a model that is not in the table has none.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final, TypeAlias

import msgspec

from fallow import names
from fallow.model import gpus, units
from fallow.model.units import DAY, HOUR, Instant, Seconds
from fallow.sim.world.nouns import PARTS, Part, SimNode
from fallow.sim.world.world import World

Object: TypeAlias = dict[str, Any]

REGION: Final = "us-east-1"
ON_DEMAND, SPOT = "on-demand", "spot"
PERIOD: Final = "2d"  # of both budgets: when the day is over, half of it is
GPUS: Final = 8  # of a machine that has a type
RENTED: Final = {"demo.example.com/rented": "true"}  # label of a machine that a cloud gives and takes
_TIGHT, _AMPLE = Decimal("0.3"), Decimal("1.25")  # of what is asked for
_COLUMNS: Final = (
    "provider", "region", "instance_type", "gpu_model", "gpus", "capacity_type", "unit", "price_per_hour", "currency",
    "source", "retrieved_at",
)
_SOURCE: Final = "made up for the demo"


class BoughtMachine(msgspec.Struct, frozen=True):
    """A machine with eight GPUs of a model. `capacity`: how it is usually bought. `listed`: all of it for an hour, on
    demand; `spot`: on spot, None where it is not to be had so. No `type`: it is our own, and its price stands on it."""

    type: str
    capacity: str
    listed: Decimal
    spot: Decimal | None = None

    def per_hour(self, tier: str = "") -> Decimal:
        """As it is paid; "" = as usual."""
        return self.spot if (tier or self.capacity) == SPOT and self.spot is not None else self.listed


MACHINES: Final[Mapping[str, BoughtMachine]] = {
    "A100-80GB": BoughtMachine("p4de.24xlarge", ON_DEMAND, Decimal("40.96")),
    "A100-40GB": BoughtMachine("p4d.24xlarge", ON_DEMAND, Decimal("32.77"), Decimal("13.11")),
    "V100-16GB": BoughtMachine("p3.16xlarge", SPOT, Decimal("24.48"), Decimal("9.80")),
    "T4": BoughtMachine("", ON_DEMAND, Decimal("4.00")),
    "L40S": BoughtMachine("", ON_DEMAND, Decimal("14.88")),
}


def find_machine(node: SimNode) -> BoughtMachine | None:
    return MACHINES.get(gpus.normalise(node.model))


def mark_node(node: SimNode) -> tuple[dict[str, str], dict[str, str]]:
    """Labels and annotations by which it is billed; of a machine of another size the table knows its GPUs' price."""
    machine = find_machine(node)
    if machine is None or node.gpus != GPUS:
        return {}, {}
    labels = {names.REGION[0]: REGION, names.OWN_CAPACITY: node.tier or machine.capacity}
    if not machine.type:
        return labels, {names.PRICE_PER_HOUR: str(machine.listed)}
    return {**labels, names.INSTANCE_TYPE[0]: machine.type, **(RENTED if node.machine else {})}, {}


def make_prices(namespace: str, at: Instant) -> Object:
    """The ConfigMap, in the namespace of the product."""
    day = units.rfc3339(at)[:10]
    lines = [",".join(row) for row in (_COLUMNS, *(_fill(row, day) for row in _list_prices()))]
    metadata = {"name": names.PRICES, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {
        names.PRICES_KEY: "\n".join(lines) + "\n",
    }}


def _list_prices() -> Iterable[dict[str, str]]:
    for model, machine in MACHINES.items():
        listed = {"gpu_model": model, "capacity_type": ON_DEMAND}
        yield {**listed, "unit": "gpu_hour", "price_per_hour": str(machine.listed / GPUS)}
        if not machine.type:
            continue
        typed = {**listed, "instance_type": machine.type, "region": REGION, "gpus": str(GPUS), "unit": "node_hour"}
        yield {**typed, "price_per_hour": str(machine.listed)}
        if machine.spot is not None:
            yield {**typed, "capacity_type": SPOT, "price_per_hour": str(machine.spot)}


def _fill(row: Mapping[str, str], day: str) -> Sequence[str]:
    whole = {"provider": "aws", "currency": "USD", "source": _SOURCE, "retrieved_at": day, **row}
    return [whole.get(column, "") for column in _COLUMNS]


# ---- budgets ---------------------------------------------------------------------------------------------------------


def make_budgets(world: World, length: Seconds, webhook: str) -> tuple[Object, ...]:
    """From now on, for a day of that length. `webhook`: of the pretend Slack."""
    rate = sum((rate_of(node) for node in world.nodes.values()), Decimal(0))
    mean = rate / max(1, sum(node.gpus for node in world.nodes.values()))
    asked: dict[str, Seconds] = defaultdict(float)
    for one in world.workloads:
        asked[one.part.namespace] += _asks(one.part, world.now, length)
    if not rate or not asked:
        return ()
    most = max(sorted(asked), key=lambda name: asked[name])
    tight = _round(mean * Decimal(asked[most] / HOUR) * _TIGHT)
    everything = _round(rate * Decimal(2 * DAY / HOUR) * _AMPLE)
    room = {"type": "slack", "config": {"webhook": webhook, "channel": f"#{most}"}}
    letter = {"type": "email", "config": {"to": f"{most}@example.com"}}
    alerts = [
        {"name": "nearly-spent", "threshold": 80, "severity": "warning", "channels": [letter]},
        {"name": "spent", "threshold": 100, "severity": "critical", "channels": [letter, room]},
    ]
    office = {"type": "email", "config": {"to": "finance@example.com"}}
    return (
        _make_budget(most, {"type": "namespace", "namespaces": [most]}, tight, world.now, alerts),
        _make_budget("all-gpus", {"type": "cluster"}, everything, world.now, [
            {"name": "nearly-spent", "threshold": 80, "severity": "warning", "channels": [office]},
        ]),
    )


def rate_of(node: SimNode) -> Decimal:
    """Of an hour of all of it; 0 where its model has no price."""
    machine = find_machine(node)
    return machine.per_hour(node.tier) * node.gpus / GPUS if machine else Decimal(0)


def _asks(part: Part, now: Instant, length: Seconds) -> Seconds:
    """GPU-seconds it would hold if it were never paused and never waited."""
    begin, end = max(part.arrives_at or now, now), min(part.ends_at or now + length, now + length)
    return part.seats / PARTS[part.mode] * max(0.0, end - begin)


def _round(amount: Decimal) -> int:
    """To two digits, as people set a budget."""
    return max(1, int(Decimal(f"{amount:.1e}")))


def _make_budget(
    name: str, scope: Object, amount: int, start: Instant, alerts: Sequence[Object]
) -> Object:
    return {
        "apiVersion": f"{names.GROUP}/{names.POLICY_VERSION}", "kind": names.BUDGET_KIND, "metadata": {"name": name},
        "spec": {
            "scope": scope, "budget": {"amount": amount, "period": PERIOD}, "startDate": units.rfc3339(start),
            "alerts": list(alerts),
        },
    }
