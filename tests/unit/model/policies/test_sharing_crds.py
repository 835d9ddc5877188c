"""GPUSharingPolicy and GPUNodeConfig as our reader sees them: defaults, meaning, a sentence for each fault."""

from __future__ import annotations

from typing import Any

import hypothesis
import pytest
import yaml
from hypothesis import strategies as st
from tests import ROOT, bad_sharing

from fallow import names
from fallow.model.classes import WorkClass
from fallow.model.policies import nodeconfig_crd, sharing, sharing_crd
from fallow.model.selectors import Selector

MADE = "2026-11-02T00:00:00Z"


def policy(spec: dict[str, Any], **more: Any) -> sharing.SharingPolicy:
    metadata = {"name": "p", "uid": "u", "generation": 3, "creationTimestamp": MADE}
    return sharing_crd.parse({"metadata": metadata, "spec": spec, **more})


def node(spec: dict[str, Any], **metadata: Any) -> sharing.NodeConfig:
    return nodeconfig_crd.parse({"metadata": {"name": "c", **metadata}, "spec": spec})


@pytest.mark.parametrize(("spec", "field"), bad_sharing.BAD_POLICIES.values(), ids=bad_sharing.BAD_POLICIES)
def test_a_policy_that_is_wrong_says_where_and_changes_nothing(spec: dict[str, Any], field: str) -> None:
    read = policy({"mode": "enforce", **spec})
    assert [fault.partition(": ")[0] for fault in read.invalid] == [field]
    assert not read.enforces


@pytest.mark.accepts("packing", 15)
@pytest.mark.parametrize(("spec", "field"), bad_sharing.BAD_NODES.values(), ids=bad_sharing.BAD_NODES)
def test_a_node_config_that_is_wrong_says_where(spec: dict[str, Any], field: str) -> None:
    assert [fault.partition(": ")[0] for fault in node(spec).invalid] == [field]


def test_a_policy_of_one_word_audits_everybody() -> None:
    read = policy(bad_sharing.GOOD_POLICIES["least"])
    assert read == sharing.SharingPolicy(
        name="p", uid="u", generation=3, created_at=1793577600.0, strategy=sharing.Strategy.auto
    )
    assert (read.enforces, read.invalid, read.namespace_selector.matches({})) == (False, (), True)


def test_every_field_of_a_policy_is_read() -> None:
    read = policy(bad_sharing.GOOD_POLICIES["most"])
    assert read.invalid == ()
    assert read.enforces
    assert (read.namespace_selector, read.pod_selector) == (
        Selector({"team": "ml"}), Selector({}, (("app", "In", ("a", "b")),)),
    )
    assert (read.work, read.priority, read.rollout_percent, read.profile, read.memory_limit) == (
        {WorkClass.inference, WorkClass.notebook}, -5, 10, "1g.5gb+me", 64,
    )
    assert (read.guard.max_latency_ratio, read.guard.restarts_on_revert, read.replicas) == (2.0, True, 16)


def test_a_policy_that_reverts_too_often_audits() -> None:
    said = {"conditions": [
        {"type": "Degraded", "status": "True", "reason": "TooManyReverts", "observedGeneration": 3},
    ]}
    assert not policy(bad_sharing.GOOD_POLICIES["most"], status=said).enforces


@pytest.mark.parametrize("spec", bad_sharing.GOOD_NODES.values(), ids=bad_sharing.GOOD_NODES)
def test_a_node_config_that_is_right(spec: dict[str, Any]) -> None:
    assert node(spec).invalid == ()


def test_what_a_node_config_means() -> None:
    read = node(bad_sharing.GOOD_NODES["mps"], finalizers=[names.REPARTITION], deletionTimestamp=MADE)
    assert (read.node, read.mig, read.mps_clients, read.slicing_replicas) == ("gpu-1", False, 48, None)
    assert (read.disruption, read.drain_timeout, read.is_going, read.has_finalizer) == ("evict", 60.0, True, True)
    plain = node({"nodeName": "n", "mpsMaxClients": 8})
    assert (plain.mps_clients, plain.slicing_replicas, plain.mode, plain.is_going) == (None, None, "audit", False)


def test_the_shipped_definitions_are_those_of_the_code() -> None:
    text = (ROOT / "deploy" / "base" / "12-sharing-crds.yaml").read_text()
    assert list(yaml.safe_load_all(text)) == [sharing_crd.define(), nodeconfig_crd.define()]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3), max_leaves=8,
)
FIELDS = st.sampled_from([*(set().union(*bad_sharing.GOOD_POLICIES.values(), *bad_sharing.GOOD_NODES.values()))])


@hypothesis.given(st.dictionaries(FIELDS, JSON), JSON, JSON)
def test_whatever_stands_there_is_read_and_never_raises(spec: dict[str, Any], status: Any, metadata: Any) -> None:
    for parse in (sharing_crd.parse, nodeconfig_crd.parse):
        parse({"metadata": metadata, "spec": spec, "status": status})
