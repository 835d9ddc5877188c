"""What is given by claims, as NVIDIA's driver publishes it: what is incomplete, tainted or odd offers nothing."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fallow import names
from fallow.model.claims import ClaimDevice, ClaimTemplate
from fallow.model.seen import ABSENT, Known, Unseen
from fallow.model.sharing import PartNode
from fallow.observe import claims

NODE = PartNode(name="dra-1")


def device(kind: str = "mig", *, domain: str = "", **more: Any) -> dict[str, Any]:
    said = {"type": kind, "productName": "NVIDIA A100-SXM4-80GB", **({"profile": "1g.10gb"} if kind == "mig" else {})}
    return {
        "name": "gpu-0", "attributes": {f"{domain}{key}": {"string": text} for key, text in said.items()},
        "capacity": {f"{domain}memory": {"value": "9856Mi"}}, **more,
    }


def part(*devices: dict[str, Any], pool: str = "dra-1", generation: int = 1, of: int = 1, **spec: Any) -> Any:
    body = {"metadata": {"name": "s"}, "spec": {
        "driver": names.DRA_DRIVER, "nodeName": "dra-1", "devices": list(devices),
        "pool": {"name": pool, "generation": generation, "resourceSliceCount": of}, **spec,
    }}
    return claims.see_slice(msgspec.convert(body, claims.SliceItem))


INSTANCE = ClaimDevice(product="NVIDIA A100-SXM4-80GB", profile="1g.10gb", memory=9856)
BOARD = ClaimDevice(product="NVIDIA A100-SXM4-80GB", memory=9856)
SHARES = {"memory": {"value": "9856Mi"}, "shares": {"value": "4"}}


@pytest.mark.parametrize(("published", "seen"), [
    (device(), INSTANCE), (device(domain=f"{names.DRA_DRIVER}/"), INSTANCE), (device("gpu"), BOARD),
    (device("gpu", allowMultipleAllocations=True), msgspec.structs.replace(BOARD, shares=None)),
    (device("gpu", allowMultipleAllocations=True, capacity=SHARES), msgspec.structs.replace(BOARD, shares=4)),
    (device("gpu", capacity=SHARES), BOARD),
    (device("gpu", capacity={"memory": {"value": "plenty"}}), msgspec.structs.replace(BOARD, memory=None)),
    (device("vfio"), None), (device(attributes={"type": {"string": "mig"}}), None), (device(attributes=None), None),
    (device(taints=[{"key": "gpu.nvidia.com/xid", "effect": "NoSchedule"}]), None),
], ids=["mig", "qualified", "gpu", "no-bound", "shares", "one-claim", "odd", "vfio", "no-profile", "bare", "tainted"])
def test_a_device_is_what_it_says_of_itself(published: dict[str, Any], seen: ClaimDevice | None) -> None:
    assert part(published).devices == (() if seen is None else (seen,))


def test_a_pool_counts_in_its_newest_generation_and_only_in_full() -> None:
    old, new, half = part(device("gpu")), part(device(), generation=2), part(device(), pool="b", of=2)
    joined = claims.join_devices(Known((NODE, PartNode(name="cpu"))), Known((old, new, half)))
    assert joined == Known((msgspec.structs.replace(NODE, devices=(INSTANCE,)),))
    whole = (half, part(device("gpu"), pool="b", of=2))
    [found] = claims.join_devices(Known((NODE,)), Known(whole)).value  # type: ignore[union-attr]
    assert found.devices == (INSTANCE, BOARD)


@pytest.mark.parametrize("spec", [{"driver": "nic.example.com"}, {"nodeName": ""}], ids=["other", "no-node"])
def test_what_is_not_nvidias_on_one_node_is_not_kept(spec: dict[str, Any]) -> None:
    assert part(device(), **spec) is None


def test_what_is_not_seen_is_not_nothing() -> None:
    away = Unseen("away")
    assert claims.join_devices(away, ABSENT) == claims.join_devices(Known((NODE,)), away) == away
    assert claims.join_devices(Known((NODE,)), ABSENT) == ABSENT
    assert claims.join_ground(ABSENT, away) == claims.join_ground(away, ABSENT) == away


@pytest.mark.parametrize(("meta", "seen"), [
    ({"name": "others"}, None), ({"name": "fallow-x"}, ClaimTemplate(namespace="", name="fallow-x", is_ours=False)),
    ({"name": "fallow-x", "labels": dict([names.MANAGED_BY])}, ClaimTemplate(namespace="", name="fallow-x")),
    ({"name": "fallow-x", "labels": dict([names.MANAGED_BY]), "annotations": {names.LEAVING_SINCE: "soon"}},
     ClaimTemplate(namespace="", name="fallow-x", leaving_since=0.0)),
], ids=["others", "unlabelled", "ours", "odd-mark"])
def test_a_template_is_ours_by_its_label(meta: dict[str, Any], seen: ClaimTemplate | None) -> None:
    assert claims.see_template(msgspec.convert({"metadata": meta}, claims.TemplateItem)) == seen


@pytest.mark.parametrize("profile", [
    "x' || true || '", "1g.10gb' || device.driver != '", "../../secrets", "1g.10gb\n", "", "0g.5gb", "1g.10gb+ME",
    "7g.99999gb", "1g.5gb+" + "a" * 300, "all",
])
def test_what_is_no_profile_reaches_no_expression_and_no_name(profile: str) -> None:
    said = {"type": {"string": "mig"}, "profile": {"string": profile}}
    assert part(device(attributes=said), device("gpu")).devices == (BOARD,)


@pytest.mark.parametrize("memory", ["-5Gi", "0", "1e999999999", "9" * 400, "1Ei", "NaN", ""])
def test_memory_that_no_device_has_is_not_known(memory: str) -> None:
    (seen,) = part(device(capacity={"memory": {"value": memory}})).devices
    assert seen.memory is None


def test_a_pool_that_lies_about_its_parts_is_none() -> None:
    for lying in (part(device(), of=0), part(device(), of=-1), part(device(), of=10**9)):
        assert claims.join_devices(Known((NODE,)), Known((lying,))) == ABSENT
