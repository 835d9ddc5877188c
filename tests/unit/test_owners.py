"""The page for owners says what the code does: what is heeded, what a notice reads like, what is not read yet."""

import re

import msgspec
from tests import ROOT
from tests.unit.act.examples import EXAMPLES, NOW, finding_of, identified, workload_of

from fallow import names, settings, verbs
from fallow.act import hooks
from fallow.act.notices import text
from fallow.decide.idle import consent
from fallow.model.policies import idle

PAGE = (ROOT / "docs" / "owners.md").read_text()


def test_every_opt_out_that_is_heeded_stands_on_the_page_and_no_other():
    section = PAGE.split("\n## Opt out\n")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    assert {key for row in rows for key in re.findall(r"`([\w.-]+/[\w-]+):", row)} == consent._OPT_OUTS
    assert f"`{names.OPT_OUT}: {names.OPT_OUT_VALUE}`" in section


def test_the_annotations_on_the_page_are_those_of_the_code():
    written = {value for name, value in vars(names).items() if isinstance(value, str) and name.isupper()}
    found = set(re.findall(r"gpuautoscaler\.io/[\w-]+", PAGE))
    assert found <= written
    assert {names.ACK_UNTIL, names.PRE_PAUSE_HOOK, names.RESUME_REQUESTED, names.WORKLOAD_TYPE} <= found
    assert {names.OWNER, names.NOTIFY} <= found


def test_the_notice_on_the_page_is_the_one_that_is_sent():
    thing = identified(EXAMPLES["deployment"])
    workload = workload_of({**thing, "metadata": {**thing["metadata"], "namespace": "ml"}})
    finding = msgspec.structs.replace(finding_of(workload), gpus=4)
    sent = text.notice_note(finding, NOW, NOW).partition(" | ")[0]
    (shown,) = re.findall(r"^```text\n(.+)\n```$", PAGE, re.MULTILINE)
    assert re.sub(r"\d\d:\d\d", "", shown) == re.sub(r"\d\d:\d\d", "", sent)


def test_the_numbers_on_the_page_are_the_defaults():
    rule, defaults = idle.Rule(), {flag.name: flag.default for flag in settings.FLAGS}
    assert "(30 minutes, unless" in PAGE
    assert defaults["--duration"] == "30"
    assert "left alone for an hour" in PAGE
    assert rule.consent.immunity == float(defaults["--immunity"]) == 3600
    assert re.search(r"one\s+week is the longest", PAGE)
    assert verbs.MAX_ACK_HOURS == int(defaults["--max-ack-hours"]) == 7 * 24
    assert "within a minute unless" in PAGE
    assert rule.action.hook.timeout == 60
    assert "after three cycles" in PAGE
    assert hooks._ABORTS == 3
