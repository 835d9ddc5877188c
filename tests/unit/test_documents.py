"""Documents that are made from the code are up to date; links and commands in all of them lead somewhere."""

import re

import pytest
from benchmarks import __main__ as benchmarks
from docs import write
from tests import ROOT, documents

from fallow import settings, telemetry, verbs
from fallow.clients.kubernetes import lease
from fallow.doors.cli import flags
from fallow.doors.cli import verbs as typed
from fallow.model import gpus, kinds


@pytest.mark.parametrize("path", write.DOCUMENTS)
def test_a_made_document_is_up_to_date(path):
    assert (ROOT / path).read_text() == write.DOCUMENTS[path](), f"run `make docs`: {path} is not what the code says"


# ---- links -----------------------------------------------------------------------------------------------------------

PAGES = documents.pages()
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s#]*)(?:#([^)\s]*))?\)")


def anchors(page):
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=documents.name_of)
def test_links_lead_somewhere_and_so_do_their_anchors(page):
    for link, anchor in LINK.findall(page.read_text()):
        if link.startswith(("http://", "https://")):
            continue
        there = page.parent / link if link else page
        assert there.exists(), f"{documents.name_of(page)} links to {link}"
        assert not anchor or anchor in anchors(there), f"{documents.name_of(page)} links to {link}#{anchor}"


def test_every_page_is_found_from_the_map():
    """By links, from docs/README.md on; what stands in a folder is found where the folder is."""
    seen, new = set(), [ROOT / "docs" / "README.md"]
    while new:
        page = new.pop()
        if page in seen:
            continue
        seen.add(page)
        links = [(page.parent / link).resolve() for link, _ in LINK.findall(page.read_text()) if "://" not in link]
        new += [each for each in links if each.suffix == ".md"]
        new += [each for link in links if link.is_dir() for each in link.glob("*.md")]
    assert [documents.name_of(page) for page in PAGES if page not in seen] == []


# ---- commands --------------------------------------------------------------------------------------------------------

BLOCKS = [block for page in PAGES for block in documents.blocks(page)]


@pytest.fixture(autouse=True)
def _where_the_reader_is(monkeypatch):
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize("page", PAGES, ids=documents.name_of)
def test_every_fence_says_its_language(page):
    assert set(documents.languages(page)) <= set(documents.LANGUAGES)


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_the_commands_of_a_block_exist(block):
    assert block.commands
    for command in block.commands:
        documents.check(command)


@pytest.mark.parametrize("page", [page for page in PAGES if documents.mentions(page)], ids=documents.name_of)
def test_the_commands_in_running_text_exist(page):
    for command in documents.mentions(page):
        documents.check(command, is_mention=True)


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.why], ids=str)
def test_a_block_that_is_not_run_needs_what_no_test_has(block):
    """Their list is in the names of these tests: what has no outside program or thing in it must be run."""
    outside = ("needs ", "installs ", "is run by ")
    assert block.why.startswith(outside), block.why


@pytest.mark.parametrize("wrong", [
    "fallow idel", "fallow status --no-such-flag", "fallow why", "fallow why Deployment", "gpu-pruner -t x",
    "fallow pack simulat", "make cofee", "kubectl apply -k deploy/nowhere", "kubectl frobnicate",
    "kubectl apply -k deploy/letters",
    "kubectl annotate deployment/llm gpuautoscaler.io/acknowledge=1", "export FOO=1", "rm -rf /",
    "kubectl -n gpu-pruner-system logs deployment/pruner", "kubectl get events --field-selector reason=Nothing",
])
def test_a_wrong_command_is_found(wrong):
    command = documents.Command("x.md", 1, tuple(wrong.split()))
    with pytest.raises(documents.Wrong, match=r"^x\.md:1: "):
        documents.check(command)


def test_the_readme_begins_with_a_picture_and_two_commands():
    text = (ROOT / "README.md").read_text()
    assert re.match(r"# fallow\n\n!\[[^\]]+\]\(docs/pictures/demo\.svg\)\n", text)
    first, *_ = documents.blocks(ROOT / "README.md")
    assert [command.words[:2] for command in first.commands] == [
        ("make", "demo"), ("pip", "install"), ("fallow", "status")
    ]


# ---- tables ----------------------------------------------------------------------------------------------------------


def test_no_name_stands_twice():
    assert len({flag.name for flag in settings.FLAGS}) == len(settings.FLAGS)
    shorts = [flag.short for flag in settings.FLAGS if flag.short]
    assert len(set(shorts)) == len(shorts)
    assert len({metric.name for metric in telemetry.METRICS}) == len(telemetry.METRICS)


def test_what_freeze_answers_stands_on_the_page_of_brakes():
    page = (ROOT / "docs" / "operators" / "brakes.md").read_text()
    rows = re.findall(r"^\| (`[^|]+`) \| ([01]) \|", page, re.MULTILINE)
    said = [(text.split("..."), int(code)) for cell, code in rows for text in re.findall(r"`([^`]+)`", cell)]
    [(unseen, code)] = [each for each in said if each[0][0].startswith("whether")]
    with pytest.raises(verbs.Declined, match=unseen[0].strip()):
        verbs.pick_lease([], "leases may not be listed")
    assert code == flags.EXIT_NO_DECISION
    said.remove((unseen, code))
    answers = [("answered", "a"), ("nobody", ""), ("nobody", "a"), ("silent", "a")]
    for (parts, code), (heard, holder) in zip(said, answers, strict=True):
        answer = verbs.FreezeAnswer("2026-11-20T18:00:00Z", lease.Heard(heard), holder, "never")
        sentence = typed._explain(answer, "x")
        assert all(part.strip() in sentence for part in parts), sentence
        assert code == (flags.EXIT_NO_DECISION if answer.heard is lease.Heard.silent else 0)


def test_every_kind_stands_on_its_page():
    page = (ROOT / "docs/operators/kinds.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    missing = [
        row.kind for row in kinds.KINDS if not any(f"`{row.letter}`" in line and row.kind in line for line in rows)
    ]
    assert missing == []


# ---- benchmarks ------------------------------------------------------------------------------------------------------

MEASURES = re.compile(r"python -m benchmarks((?: [a-z_]+)+)(?: \[([a-z_|]+)\])?(?:`|$)", re.MULTILINE)


def test_every_benchmark_is_on_the_page_of_them():
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    assert [name for name in benchmarks.BENCHMARKS if f"`python -m benchmarks {name}`" not in page] == []


def test_every_benchmark_that_is_named_can_be_run_as_it_says():
    texts = [page.read_text() for page in (*PAGES, *sorted((ROOT / "benchmarks").glob("*.py")))]
    found = [each for text in texts for each in MEASURES.findall(text)]
    assert len(found) >= 8
    for words, parts in found:
        for part in parts.split("|"):
            benchmarks.read([*words.split(), *part.split()])
    with pytest.raises(ValueError, match="no benchmark typo; there are"):
        benchmarks.read(["packing", "typo"])


def test_how_fast_gpus_are_stands_on_the_page_of_sources():
    text = (ROOT / "docs" / "sources.md").read_text().partition("## How fast GPUs are")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| ")][1:]
    said = {name: (tensor, memory) for names_of, tensor, memory, _ in rows for name in names_of.split(", ")}
    assert set(said) == set(gpus.SPEEDS)
    for name, speed in gpus.SPEEDS.items():
        for cell, (slow, fast) in zip(said[name], (speed.tensor, speed.memory), strict=True):
            assert sorted({slow, fast}) == [float(each) for each in re.findall(r"(?<![A-Z\d])\d[\d.]*\b", cell)], name
