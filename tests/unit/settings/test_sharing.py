"""The flags about sharing: what is wrong with one stops the start, in one sentence."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner

from fallow.doors.cli import webhook
from fallow.model.classes import WorkClass
from fallow.settings import cost_enforcement
from fallow.settings.readers import UsageError


def read(**given: Any) -> cost_enforcement.sharing.AdmissionSharing:
    return cost_enforcement.read_webhook(given, {}).sharing


def test_nothing_is_rewritten_unless_somebody_says_so() -> None:
    made = read()
    assert (made.rewrites, made.schedulers, made.patterns) == (False, {"default-scheduler"}, {})
    assert read(rewrite_requests="true", scheduler_name=["kai"]).schedulers == {"kai"}


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
