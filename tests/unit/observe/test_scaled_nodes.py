"""What of a node keeps it from leaving, as its object tells it."""

from typing import Any

import msgspec
import pytest

from fallow import names
from fallow.model import partition
from fallow.model.partition import NodeLayout, RepartitionRecord, RepartitionStep
from fallow.observe.scaling import nodes


def see(**annotations: str) -> str:
    body: dict[str, Any] = {"metadata": {"name": "n", "uid": "u", "annotations": annotations}}
    return nodes.see(msgspec.json.decode(msgspec.json.encode(body), type=nodes.ScaledNodeItem)).node.kept


def record(step: RepartitionStep, *, cordoned_by_us: bool = False) -> str:
    return partition.write(RepartitionRecord(
        config="c", uid="u", before=NodeLayout(), after=NodeLayout(), step=step, since=0.0,
        cordoned_by_us=cordoned_by_us,
    ))


@pytest.mark.parametrize(("text", "is_kept"), [
    (record(RepartitionStep.Draining), True), (record(RepartitionStep.RollingBack), True),
    (record(RepartitionStep.Failed, cordoned_by_us=True), True), ("no record", True),
    (record(RepartitionStep.Ready), False), (record(RepartitionStep.Failed), False),
], ids=["runs", "goes-back", "stuck", "unreadable", "done", "failed"])
def test_a_change_of_its_gpus_keeps_a_node_while_it_runs_and_not_for_ever(text: str, is_kept: bool) -> None:
    """What is over leaves its record behind."""
    assert bool(see(**{names.REPARTITION: text})) is is_kept


@pytest.mark.parametrize("text", ["9223372036854775807", "1e99", "8Ei", "many"])
def test_what_no_machine_has_is_not_advertised(text: str) -> None:
    """One kubelet that lies would otherwise keep the nodes of all others from being counted."""
    body = {"metadata": {"name": "n", "uid": "u"}, "status": {"allocatable": {
        "cpu": text, "pods": text, names.GPU: "8", "example.com/odd": text,
    }}}
    found = nodes.see(msgspec.json.decode(msgspec.json.encode(body), type=nodes.ScaledNodeItem)).node
    assert found.has == {names.GPU: 8}
