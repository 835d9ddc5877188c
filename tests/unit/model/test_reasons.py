"""Every reason and every detail is explained, once, in words that name only what exists."""

import re

import pytest
from tests import ROOT

from fallow import names, settings
from fallow.doors.cli import main
from fallow.model import reasons
from fallow.model.decision import Detail, Heading, Reason, Verdict

ALL = {**reasons.REASONS, **reasons.DETAILS}


def test_every_reason_and_every_detail_is_explained_in_the_order_of_the_code():
    assert list(reasons.DETAILS) == list(Detail)
    assert list(reasons.REASONS) == list(Reason)


def test_the_groups_have_every_reason_once():
    assert [reason for rows in reasons.GROUPS.values() for reason in rows] == list(Reason)


@pytest.mark.parametrize("word", ALL)
def test_what_is_said_of_a_reason_is_sentences_that_name_only_what_exists(word):
    said = ALL[word]
    assert said.means.endswith(".")
    assert said.helps.endswith(".")
    assert said.means != said.helps
    text = f"{said.means} {said.helps}"
    assert set(re.findall(r"--[a-z-]+", text)) <= {flag.name for flag in settings.FLAGS}
    assert set(re.findall(r"`fallow (\w+)`", text)) <= set(main.VERBS)
    for place in re.findall(r"deploy/[\w/.-]*\w", text):
        assert (ROOT / place).exists(), place
    written = {value for name, value in vars(names).items() if isinstance(value, str) and name.isupper()}
    assert set(re.findall(r"gpuautoscaler\.io/[\w-]+", text)) <= written


def test_a_heading_means_what_its_detail_means():
    bare = Heading(Verdict.idle, Reason.ReportOnly, Detail.BarePod)
    assert reasons.of(bare) is reasons.DETAILS[Detail.BarePod]
    assert reasons.of(Heading(Verdict.active, Reason.Busy)) is reasons.REASONS[Reason.Busy]


def test_the_page_shows_all_of_them():
    page = (ROOT / "docs" / "operators" / "reasons.md").read_text()
    assert re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE) == [*Reason, *Detail]
