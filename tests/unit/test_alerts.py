"""Every alert of deploy/monitoring has its page, every page its alert, and both name only what exists."""

import re

import pytest
import yaml
from tests import ROOT

from fallow import names, settings, telemetry
from fallow.doors.cli import main
from fallow.model import decision

RULES = ROOT / "deploy" / "monitoring" / "20-rules.yaml"
PAGES = {page.stem: page for page in (ROOT / "docs" / "runbooks").glob("*.md")}
ALERTS = [
    rule for part in yaml.safe_load_all(RULES.read_text()) if part
    for group in part["spec"]["groups"] for rule in group["rules"]
]
EVERYWHERE = {"instance", "job"}  # put on by Prometheus


def test_every_alert_has_its_page_and_every_page_its_alert():
    assert len({alert["alert"] for alert in ALERTS}) == len(ALERTS)
    assert {alert["alert"] for alert in ALERTS} == set(PAGES)


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_an_alert_says_what_is_wrong_how_bad_and_where_to_read_on(alert):
    name = alert["alert"]
    assert alert["labels"]["severity"] in ("info", "warning", "critical")
    assert alert["annotations"]["runbook"] == f"docs/runbooks/{name}.md"
    assert alert["annotations"]["summary"]
    assert PAGES[name].read_text().startswith(f"# {name}\n")


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_an_alert_asks_for_metrics_and_labels_that_exist(alert):
    known = {metric.name: set(metric.labels) for metric in telemetry.METRICS}
    named = set(re.findall(r"\b(?:fallow|gpu_pruner|process)_\w+", alert["expr"]))
    assert named
    assert named <= set(known)
    grouped = {label for group in re.findall(r"(?:by|on) \(([^)]*)\)", alert["expr"]) for label in group.split(", ")}
    matched = set(re.findall(r"(\w+)(?:!?=|[!=]~)\"", alert["expr"]))
    said = set(re.findall(r"\$labels\.(\w+)", alert["annotations"]["summary"]))
    assert grouped | matched | said <= EVERYWHERE.union(*(known[name] for name in named))
    assert said <= grouped, "what is said must be left in the answer"


def test_the_values_that_alerts_match_are_those_of_the_code():
    text = " ".join(alert["expr"] for alert in ALERTS)
    assert set(re.findall(r'state="(\w+)"', text)) <= set(decision.Verdict)
    statuses = {word for words in re.findall(r'result=~"([\w|]+)"', text) for word in words.split("|")}
    assert statuses <= set(decision.Status)


@pytest.mark.parametrize("page", PAGES.values(), ids=lambda page: page.stem)
def test_a_page_names_only_commands_events_flags_and_reasons_that_exist(page):
    text = page.read_text()
    assert set(re.findall(r"fallow ([a-z]+)(?: |`)", text)) <= {*main.VERBS}, "verbs"
    events = {value for name, value in vars(names.Event).items() if name.isupper()}
    assert set(re.findall(r"reason=(\w+)", text)) <= events
    flags = {flag.name for flag in settings.FLAGS} | {"--for", "--replicas", "--previous", "--field-selector"}
    assert set(re.findall(r"(--[a-z-]+)", text)) <= flags
    written = {value for name, value in vars(names).items() if isinstance(value, str) and name.isupper()}
    assert set(re.findall(r"gpuautoscaler\.io/[\w-]+", text)) <= written
    for place in re.findall(r"`(deploy/[\w/-]*)`", text):
        assert (ROOT / place).exists(), place


def test_the_pages_say_what_happens_and_what_to_do():
    for page in PAGES.values():
        _, first, steps = page.read_text().split("\n\n")
        assert first.endswith(".")
        assert steps.startswith("1. ")
