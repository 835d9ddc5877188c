"""Documents that are made from the code are up to date, and what the README shows exists."""

import re

import pytest
from docs import write
from tests import ROOT

from fallow import settings, telemetry
from fallow.doors.cli import main
from fallow.model import kinds


@pytest.mark.parametrize("path", write.DOCUMENTS)
def test_a_made_document_is_up_to_date(path):
    assert (ROOT / path).read_text() == write.DOCUMENTS[path](), f"run `make docs`: {path} is not what the code says"


def test_the_commands_of_the_readme_exist():
    text = (ROOT / "README.md").read_text()
    verbs = set(re.findall(r"^fallow (\w+)", text, re.MULTILINE))
    assert verbs
    assert verbs <= set(main.VERBS)
    targets = set(re.findall(r"`?make ([a-z]+)", text))
    made = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert targets <= made
    assert {"demo", "test"} <= targets


def test_links_between_documents_lead_somewhere():
    for document in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]:
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text()):
            assert (document.parent / link).exists(), f"{document.name} links to {link}"


def test_no_name_stands_twice():
    assert len({flag.name for flag in settings.FLAGS}) == len(settings.FLAGS)
    shorts = [flag.short for flag in settings.FLAGS if flag.short]
    assert len(set(shorts)) == len(shorts)
    assert len({metric.name for metric in telemetry.METRICS}) == len(telemetry.METRICS)
    assert not {flag.name for flag in settings.FLAGS} & set(settings.NOT_YET)


def test_every_kind_stands_on_its_page():
    page = (ROOT / "docs/operators/kinds.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    missing = [
        row.kind for row in kinds.KINDS if not any(f"`{row.letter}`" in line and row.kind in line for line in rows)
    ]
    assert missing == []
