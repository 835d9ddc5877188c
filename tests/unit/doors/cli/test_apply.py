"""`fallow apply`: what is corrected is said, what is wrong ends with 2 and its path, and nothing is half done."""

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from tests import bad_budgets
from tests.unit.model.policies import seed_documents

from fallow.doors.cli import apply, corrections, main


def typed(text: str, *words: str):
    return CliRunner().invoke(apply.apply, ["-f", "-", "--dry-run", "client", *words], input=text)


def document(**more) -> dict:
    return {"apiVersion": "gpuautoscaler.io/v1alpha1", "kind": "CostBudget", "metadata": {"name": "b"}, **more}


@pytest.mark.accepts("cost", 12)
def test_the_old_readme_is_right_but_for_its_api_version():
    done = typed(seed_documents.TEXT)
    assert (done.exit_code, len(done.stderr.splitlines())) == (0, 2)


def test_each_correction_is_one_line():
    spec = {
        "scope": {"type": "cluster"}, "monthlyLimit": "5000", "alerts": [{"thresholdPercent": "75"}],
        "enforcement": {"action": "block", "gracePeriodMinutes": 30},
    }
    done = typed(json.dumps(document(spec=spec, apiVersion="gpu-autoscaler.io/v1alpha1")))
    assert done.exit_code == 0, done.output
    assert done.stderr.splitlines() == [
        "b: apiVersion: gpu-autoscaler.io/v1alpha1 is read as gpuautoscaler.io/v1alpha1",
        "b: spec.monthlyLimit: '5000' is read as the number 5000",
        "b: spec.monthlyLimit: is read as spec.budget.amount 5000 with spec.budget.period month",
        "b: spec.alerts[0].thresholdPercent: is read as spec.alerts[0].threshold",
        "b: spec.alerts[0].threshold: '75' is read as the number 75",
        "b: spec.enforcement.action: is read as spec.enforcement.mode",
        "b: spec.enforcement.gracePeriodMinutes: is read as spec.enforcement.gracePeriod 30m",
    ]


def test_every_kind_of_ours_is_printed_and_taken():
    printed = yaml.safe_load(CliRunner().invoke(main.fallow, ["crds"]).stdout)["items"]
    shipped = [
        each for file in Path("deploy/base").glob("*-crd*.yaml") for each in yaml.safe_load_all(file.read_text())
    ]
    assert {each["metadata"]["name"] for each in printed} == {each["metadata"]["name"] for each in shipped}
    for kind in (each["spec"]["names"]["kind"] for each in printed):
        done = typed(json.dumps({**document(spec={}), "kind": kind}))
        assert "is none of" not in done.output
    pool = {"name": "a10g", "capacityType": "spot", "instanceTypes": ["g5.xlarge"], "group": "ml-a10g", "maxSize": 20}
    done = typed(json.dumps({**document(spec={"provider": "aws", "nodePools": [pool]}), "kind": "AutoscalingPolicy"}))
    assert done.output == "autoscalingpolicy.gpuautoscaler.io/b is right (nothing was sent)\n"


def test_a_space_in_a_duration_and_a_quoted_amount():
    done = typed(json.dumps(document(spec=bad_budgets.spec(budget={"amount": "1999.50", "period": "30 d"}))))
    assert done.stderr.splitlines() == [
        "b: spec.budget.amount: '1999.50' is read as the number 1999.50",
        "b: spec.budget.period: '30 d' is read as 30d",
    ]


@pytest.mark.parametrize(("text", "said"), [
    (json.dumps(document(spec={**bad_budgets.spec(), "colour": 1})), "b: spec.colour: there is no such field"),
    (json.dumps(document(spec=bad_budgets.spec(), colour=1)), "b: colour: there is no such field"),
    (json.dumps(document(spec=bad_budgets.spec(budget={"amount": "50k"}))), "b: spec.budget.amount: '50k' is not a"),
    (json.dumps(document(spec=bad_budgets.spec(alerts=5))), "b: spec.alerts: is not a list"),
    (json.dumps(document(spec=bad_budgets.spec(monthlyLimit=5, budget=7))), "b: spec.budget: is not a set of fields"),
    (json.dumps(document(spec=bad_budgets.spec(monthlyLimit=5, budget="x"))), "b: spec.budget: is not a set of"),
    (json.dumps(document(spec=bad_budgets.spec(enforcement=[1]))), "b: spec.enforcement: is not a set of fields"),
    (json.dumps({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "x"}}),
     "document 1: kind: Deployment is none of IdlePolicy, CostBudget, CostAttribution"),
    (json.dumps(document(apiVersion="gpuautoscaler.io/v2", spec={})), "apiVersion: gpuautoscaler.io/v2 is not"),
    (json.dumps({"kind": "CostBudget", "spec": {}}), "document 1: apiVersion is missing: it is gpuautoscaler.io/"),
    (json.dumps({"spec": {}}), "document 1: kind is missing: it is one of IdlePolicy"),
    (json.dumps({**document(spec={}), "metadata": {}}), "document 1: metadata.name is missing"),
    ("a: [", "standard input is no YAML at line"), ("", "standard input holds no document"),
    ("- 1", "standard input, document 1: it is no object with apiVersion, kind"),
])
def test_what_is_wrong_ends_with_two_and_says_where(text, said):
    done = typed(text)
    assert (done.exit_code, said in done.stderr) == (2, True), done.output


@pytest.mark.accepts("cost", 13)
@pytest.mark.parametrize(("spec", "field"), bad_budgets.BAD.values(), ids=bad_budgets.BAD)
def test_a_bad_budget_is_refused_before_anything_is_sent(spec, field):
    done = typed(json.dumps(document(spec=spec)))
    assert (done.exit_code, f"b: {field}: " in done.stderr) == (2, True), done.output


def test_of_both_spellings_of_a_field_neither_is_dropped():
    done = typed(json.dumps(document(spec=bad_budgets.spec(enforcement={"mode": "block", "action": "alert"}))))
    said = "spec.enforcement.action: action is what mode was called before"
    assert (done.exit_code, said in done.stderr) == (2, True)


def test_one_wrong_document_keeps_all_others_away():
    good, bad = json.dumps(document(spec=bad_budgets.spec())), json.dumps(document(spec={}))
    done = typed(f"{good}\n---\n{bad}")
    assert (done.exit_code, done.stdout) == (2, "")


def test_numbers_keep_their_digits_and_times_stay_text():
    (read,) = corrections.read("amount: 1234567.89012345\nwhen: 2026-11-01T00:00:00Z\nbig: 1e3\ncount: 7\n")
    assert (str(read["amount"]), read["when"], read["big"], read["count"]) == (
        "1234567.89012345", "2026-11-01T00:00:00Z", 1000, 7
    )
    assert bytes(apply._wire(read)["amount"]) == b"1234567.89012345"


def test_a_list_is_its_items():
    wrapped = {"apiVersion": "v1", "kind": "List", "items": [document(spec=bad_budgets.spec())]}
    assert typed(json.dumps(wrapped)).stdout == "costbudget.gpuautoscaler.io/b is right (nothing was sent)\n"


def test_a_file_that_is_not_there_is_a_sentence():
    done = CliRunner().invoke(apply.apply, ["-f", "/nowhere/x.yaml"])
    assert (done.exit_code, "cannot be read: No such file" in done.stderr) == (2, True)
