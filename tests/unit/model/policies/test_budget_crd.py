"""CostBudget and CostAttribution: what people may write, what we make of it; no number goes through a float."""

import json
from decimal import Decimal
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from tests import ROOT, bad_budgets
from tests.unit.model.policies import seed_documents

from fallow.model import cost
from fallow.model.policies import attribution_crd, budget, budget_crd, idle, scope_crd
from fallow.model.seen import ABSENT, Known, Register, Unseen
from fallow.model.selectors import Selector

MADE = "2026-11-02T10:30:00Z"


def parse(spec: dict[str, Any], **more: Any) -> budget.CostBudget:
    metadata = {"name": "b", "uid": "u-1", "generation": 2, "creationTimestamp": MADE, **more.pop("metadata", {})}
    return budget_crd.parse(scope_crd.decode(json.dumps({"metadata": metadata, "spec": spec, **more}).encode()))


def test_the_budget_of_the_old_readme_is_read_as_it_is_meant():
    read = parse(seed_documents.BUDGET["spec"])
    assert read.invalid == ()
    assert read.amount == Decimal(50000)
    assert read.period == budget.BudgetPeriod(length=30 * 86400, start=1793577600.0)  # its day, 00:00 UTC
    assert read.scope.namespace_selector == Selector(match_labels={"team": "ml-team"})
    assert [(one.name, one.threshold, one.channels[0].type) for one in read.alerts] == [
        ("at-80", Decimal(80), "slack"), ("at-100", Decimal(100), "email"),
    ]
    assert read.enforcement == budget.EnforcementRule(
        mode=budget.EnforcementMode.throttle, grace=7200.0,
        throttle=budget.ThrottleRule(max_spot_instances=5, block_on_demand=True),
    )


@pytest.mark.accepts("cost", 13)
@pytest.mark.parametrize(("spec", "field"), bad_budgets.BAD.values(), ids=bad_budgets.BAD)
def test_what_was_stored_before_is_refused_by_us_with_its_field_named(spec, field):
    read = parse(spec)
    assert field in [fault.partition(": ")[0] for fault in read.invalid]
    if not field.startswith(("spec.alerts", "spec.enforcement")):
        assert read.amount is None  # nothing is compared with what cannot be read


@pytest.mark.parametrize("spec", bad_budgets.GOOD.values(), ids=bad_budgets.GOOD)
def test_what_the_api_server_takes_we_read(spec):
    assert parse(spec).invalid == ()


@given(st.decimals(min_value="0.01", max_value=10**13, places=2))
def test_an_amount_is_the_decimal_that_is_written(amount):
    text = f'{{"metadata":{{"name":"b"}},"spec":{{"scope":{{"type":"cluster"}},"budget":{{"amount":{amount}}}}}}}'
    assert budget_crd.parse(scope_crd.decode(text.encode())).amount == amount


@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from([
        "scope", "budget", "amount", "alerts", "threshold", "channels", "type", "config", "enforcement", "x",
    ]), inner),
))
def test_reading_never_raises(spec):
    read = budget_crd.parse({"metadata": {"name": "b"}, "spec": spec, "status": spec})
    assert attribution_crd.parse({"spec": spec, "status": spec}).name == ""
    assert read.amount is None or not any("spec.scope" in fault for fault in read.invalid)


def test_fields_of_older_versions_are_what_they_became():
    read = parse(bad_budgets.GOOD["deprecated"])
    assert (read.amount, read.period.word, read.period.length) == (Decimal(5000), "month", None)
    assert read.alerts[0].name == "at-75"
    assert (read.enforcement.mode, read.enforcement.grace) == ("block", 1800.0)


def test_a_channel_is_told_what_it_knows_and_a_secret_wins_and_is_never_shown():
    refs = {"webhook": {"name": "s", "key": "k"}}
    channels = [
        {"type": "slack", "config": {"webhook_url": "https://hooks/s3cret", "channel": "#ml"}},
        {"type": "slack", "config": {"webhook": "https://hooks/s3cret"}, "configSecretRefs": refs},
    ]
    (alert,) = parse(bad_budgets.spec(alerts=[{"threshold": 1, "channels": channels}])).alerts
    assert [one.name for one in alert.channels] == ["slack-1", "slack-2"]
    assert alert.channels[1].find("webhook_url") == idle.SecretKey("s", "k")
    assert "s3cret" not in repr(alert)


@pytest.mark.parametrize(("channel", "because"), [
    ({"type": "slack", "config": {"channel": "#a"}}, "spec.alerts[0].channels[0]: slack needs webhook"),
    ({"type": "email", "config": {"to": "a@b", "cc": "x"}},
     "spec.alerts[0].channels[0]: email knows no cc; it knows to, subject"),
    ({"type": "pagerduty"}, "spec.alerts[0].channels[0]: pagerduty needs routingKey"),
])
def test_a_channel_says_what_it_lacks(channel, because):
    assert parse(bad_budgets.spec(alerts=[{"threshold": 1, "channels": [channel]}])).invalid == (because,)


def test_annotations_and_our_own_last_status_are_read():
    notes = {
        "gpuautoscaler.io/alert-ack": "at-80, other", "gpuautoscaler.io/override-until": "2026-11-03T00:00:00Z",
        "gpuautoscaler.io/override-by": "user:ada", "gpuautoscaler.io/override-reason": "release",
    }
    status = {
        "lastUpdated": "2026-11-02T11:00:00Z", "exceededSince": "2026-11-02T10:00:00Z", "enforcementActive": True,
        "period": {"start": "2026-11-01T00:00:00Z", "namespaces": ["a", "b"]}, "currentSpend": "12.50",
        "override": {"asked": "x", "since": "2026-11-02T10:00:00Z", "until": "2026-11-02T12:00:00Z"},
    }
    read = parse(bad_budgets.spec(), metadata={"annotations": notes}, status=status)
    assert read.acknowledged == {"at-80", "other"}
    assert read.wish == budget.OverrideWish("2026-11-03T00:00:00Z", 1793664000.0, "user:ada", "release")
    assert (read.standing.namespaces, read.standing.is_enforced, read.standing.spend) == (("a", "b"), True, "12.50")
    assert read.standing.override == budget.OverrideSeen("x", 1793613600.0, 1793620800.0)


def test_the_attribution_of_the_old_readme_is_read_as_it_is_meant():
    read = attribution_crd.parse(seed_documents.ATTRIBUTION)
    label = cost.DimensionName.label
    assert read.invalid == ()
    assert read.track_by == (
        cost.Dimension(cost.DimensionName.namespace), cost.Dimension(label, "experiment-id"),
        cost.Dimension(label, "user"),
    )
    assert read.period == 86400


def test_fields_of_the_system_before_narrow_the_scope():
    spec = {"namespace": "a", "team": "ml", "project": "p", "labels": {"k": "v"}, "experimentID": "e"}
    read = attribution_crd.parse({"metadata": {"name": "a"}, "spec": spec})
    assert read.scope == budget.SpendScope(
        namespaces=("a",), teams=("ml",), labels=(("k", "v"), ("project", "p")), experiment="e"
    )


# ---- whose a pod is --------------------------------------------------------------------------------------------------

TEAM = budget.SpendScope(type=budget.ScopeType.team, teams=("ml",))
PLACE = budget.SpendScope(namespace_selector=Selector(match_labels={"team": "ml"}))


def pod(labels=None, above=ABSENT, around=ABSENT) -> budget.PodTraits:
    return budget.PodTraits(namespace="a", labels=labels or {}, above=above, around=around)


ML, WEB, BLIND = Known({"team": "ml"}), Known({"team": "web"}), Unseen("forbidden")


@pytest.mark.parametrize(("scope", "traits", "covered"), [
    (TEAM, pod({"team": "ml"}, BLIND, BLIND), True),
    (TEAM, pod({"team": "web"}, ML, ML), False),
    (TEAM, pod({}, ML, WEB), True),
    (TEAM, pod({}, WEB, ML), False),
    (TEAM, pod({}, ABSENT, ML), True),
    (TEAM, pod({}, BLIND, ML), None),
    (TEAM, pod({}, ABSENT, BLIND), None),
    (TEAM, pod({}, Known({}), Known({})), False),
    (PLACE, pod({}, BLIND, ML), True),
    (PLACE, pod({"team": "ml"}, ML, WEB), False),
    (PLACE, pod({}, ML, BLIND), None),
    (budget.SpendScope(namespaces=("b",), teams=("ml",)), pod({}, BLIND, BLIND), False),
    (budget.SpendScope(labels=(("x", "1"), ("y", "2"))), pod({"x": "1", "y": "3"}), False),
    (budget.SpendScope(experiment="e"), pod({"experiment-id": "e"}), True),
    (budget.SpendScope(), pod({}, BLIND, BLIND), True),
])
def test_a_pod_is_shown_with_whom_it_says_itself(scope, traits, covered):
    assert scope.covers(traits, payer=False) is covered


@pytest.mark.parametrize(("scope", "traits", "covered"), [
    (TEAM, pod({"team": "web"}, WEB, ML), True),
    (TEAM, pod({"team": "ml"}, ML, WEB), False),
    (TEAM, pod({"team": "ml"}, ABSENT, Known({})), True),
    (TEAM, pod({}, ML, Known({"team": ""})), True),
    (TEAM, pod({"team": "ml"}, ML, BLIND), None),
    (TEAM, pod({}, BLIND, ML), True),
    (TEAM, pod({}, BLIND, Known({})), None),
    (budget.SpendScope(experiment="e"), pod({"experiment-id": "x"}, ABSENT, Known({"experiment-id": "e"})), True),
    (budget.SpendScope(labels=(("x", "1"),)), pod({"x": "1"}, ABSENT, Known({"x": "2"})), False),
    (PLACE, pod({"team": "ml"}, ML, WEB), False),
    (budget.SpendScope(), pod({}, BLIND, BLIND), True),
])
def test_a_budget_means_a_pod_by_its_namespace_where_that_says_anything(scope, traits, covered):
    assert scope.covers(traits, payer=True) is covered


@pytest.mark.parametrize(("scope", "traits", "covered"), [
    (TEAM, pod({"team": "ml"}, ML, Known({})), False),
    (TEAM, pod({"team": "web"}, WEB, ML), True),
    (TEAM, pod({"team": "ml"}, ML, BLIND), None),
    (budget.SpendScope(namespaces=("a",), teams=("ml",)), pod({"team": "ml"}, ABSENT, Known({})), True),
    (budget.SpendScope(), pod({}, BLIND, BLIND), True),
])
def test_what_only_a_tenant_says_counts_for_no_cap(scope, traits, covered):
    assert scope.covers(traits, payer=True, vouched=True) is covered


def test_the_books_must_have_every_label_that_somebody_groups_or_chooses_by():
    shown = attribution_crd.parse({"metadata": {"name": "a"}, "spec": {
        "trackBy": ["namespace", "label:model"], "labels": {"stage": "prod"},
    }})
    spent = budget_crd.parse({"metadata": {"name": "b"}, "spec": {
        "scope": {"type": "label", "labels": {"tier": "gold"}}, "budget": {"amount": 1},
    }})
    assert budget.find_label_keys([shown], [spent]) == {"model", "stage", "tier"}


def test_a_selector_over_namespaces_that_are_not_all_seen_means_nobody_knows_whom():
    class Labelled:
        labels = {"team": "ml"}  # noqa: RUF012

    seen = {"a": Labelled()}
    assert budget.find_live(PLACE, Register(seen)) == Known(("a",))
    assert budget.find_live(PLACE, Register(seen, BLIND)) == BLIND
    assert budget.find_live(TEAM, Register(seen, BLIND)) == ABSENT


@pytest.mark.parametrize("path", sorted((ROOT / "examples" / "budgets").glob("*.yaml")), ids=lambda path: path.name)
def test_the_examples_are_right(path):
    parsers = {"CostBudget": budget_crd.parse, "CostAttribution": attribution_crd.parse}
    for document in yaml.safe_load_all(path.read_text()):
        assert parsers[document["kind"]](document).invalid == ()


def test_the_definitions_stand_in_deploy():
    text = (ROOT / "deploy" / "base" / "11-cost-crds.yaml").read_text()
    assert "name: costbudgets.gpuautoscaler.io" in text
    assert "name: costattributions.gpuautoscaler.io" in text
