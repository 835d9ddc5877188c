"""The flags about sharing: what is wrong with one stops the start, in one sentence."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner

from fallow import settings
from fallow.doors.cli import webhook
from fallow.model.classes import WorkClass
from fallow.model.policies.sharing import Strategy
from fallow.settings import cost_enforcement
from fallow.settings.readers import UsageError


def read(**given: Any) -> cost_enforcement.sharing.AdmissionSharing:
    return cost_enforcement.read_webhook(given, {}).sharing


def test_nothing_is_rewritten_unless_somebody_says_so() -> None:
    made = read()
    assert (made.rewrites, made.schedulers, made.patterns) == (False, {"default-scheduler"}, {})
    assert read(rewrite_requests="true", scheduler_name=["kai"]).schedulers == {"kai"}
    assert (made.without, read(sharing_without=["mig", "mps"]).without) == (set(), {Strategy.mig, Strategy.mps})
    with pytest.raises(UsageError):
        read(sharing_without=["exclusive"])


def daemon(**given: Any) -> settings.Settings:
    return settings.read_flags(given, {})


def test_nodes_are_only_advised_on_unless_somebody_says_so() -> None:
    made = daemon()
    assert (made.sharing.acts, made.consolidation.acts, made.consolidation.is_on) == (False, False, True)
    acting = daemon(run_mode="scale-down", sharing="act", consolidation="act", consolidation_threshold="0.25",
                    sharing_plugin_configmap="nvidia/plugin")
    assert (acting.sharing.acts, acting.consolidation.acts, acting.consolidation.threshold) == (True, True, 0.25)
    assert acting.sharing.plugin_map == ("nvidia", "plugin")
    assert daemon(consolidation="off").consolidation.is_on is False


@pytest.mark.parametrize(("given", "sentence"), [
    ({"sharing": "act"}, "--sharing act needs --run-mode scale-down: a dry run changes nothing"),
    ({"consolidation": "act"}, "--consolidation act needs --run-mode scale-down: a dry run changes nothing"),
    ({"sharing_plugin_configmap": "plugin"}, "--sharing-plugin-configmap: 'plugin' is not NAMESPACE/NAME"),
    ({"consolidation_threshold": "2"}, "--consolidation-threshold: "),
])
def test_what_cannot_be_meant_stops_the_start(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(UsageError) as refused:
        daemon(**given)
    assert str(refused.value).startswith(sentence)


def test_patterns_keep_their_order_by_class() -> None:
    made = read(classification_pattern=["batch=a=b", "training=x", "batch=c"])
    assert made.patterns == {WorkClass.batch: ("a=b", "c"), WorkClass.training: ("x",)}


@pytest.mark.parametrize(("text", "sentence"), [
    ("batch=(", "--classification-pattern: '(' is not a valid RE2 expression: missing ): ("),
    ("gaming=x", "--classification-pattern: 'gaming=x' is not CLASS=REGEX, with a class of training, inference, "
                 "notebook, batch"),
    ("batch", "--classification-pattern: 'batch' is not CLASS=REGEX, with a class of training, inference, "
              "notebook, batch"),
])
def test_a_bad_pattern_stops_the_start(text: str, sentence: str) -> None:
    with pytest.raises(UsageError) as refused:
        read(classification_pattern=[text])
    assert str(refused.value) == sentence
    done = CliRunner().invoke(webhook.webhook, ["--classification-pattern", text])
    assert (done.exit_code, sentence in done.output.replace("\n", " ")) == (2, True)
