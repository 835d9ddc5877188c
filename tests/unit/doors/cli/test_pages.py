"""The pages of `status`, `idle` and `why` on terminals of several widths and on a pipe."""

import io

import click
import msgspec
import pytest
from tests import builders
from tests.builders import HOUR, MINUTE, NOW
from tests.unit.doors.answers import test_status as examples

from fallow.doors.answers import rows as telling
from fallow.doors.answers import status as statuses
from fallow.doors.answers import workloads as answers
from fallow.doors.cli import pages, show
from fallow.model import cluster, price_book

FOUND = examples.daemon.DaemonSeen("gpu-pruner-system", "gpu-pruner-1", NOW - 2)


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


@pytest.fixture
def draw(monkeypatch):
    """Runs what draws, with an output of so many columns (None: a pipe)."""

    def run(make, columns=None, encoding="utf-8", **environment):
        for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "TERM", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
            monkeypatch.delenv(name, raising=False)
        said = {"TERM": "xterm-256color", "COLUMNS": str(columns or 80), "LINES": "25", **environment}
        for name, value in said.items():
            monkeypatch.setenv(name, value)
        out = Terminal() if columns else io.TextIOWrapper(io.BytesIO(), encoding)
        monkeypatch.setattr("sys.stdout", out)
        return make()

    return run


def a_cluster():
    world = builders.World()
    for number in range(4):
        examples.node(world, f"gpu-node-{number}", 8, product="NVIDIA-A100-SXM4-80GB")
    model, count = "NVIDIA A100-SXM4-80GB", iter(range(100))

    def gpus(*each):
        made = {"idle": builders.idle, "busy": builders.busy}
        return [made[one](model=model, uuid=f"GPU-{next(count):08x}-1111-2222-3333-444455556666") for one in each]

    world.workload("research/llama-finetune-70b", "StatefulSet", gpus=gpus(*["idle"] * 8), pod={"node": "gpu-node-0"})
    world.workload("inference/chat", gpus=gpus("idle", "busy"), pod={"node": "gpu-node-2"})
    marks = builders.pending_marks(NOW - 2 * MINUTE)
    world.workload("vision/segmenter", gpus=gpus("idle"), annotations=marks, pod={"node": "gpu-node-2"})
    world.workload("vision/lost", gpus=[builders.unseen()], pod={"node": "gpu-node-3"})
    said = {"paused_reason": "8 GPUs idle for 2h (policy nightly)", "paused_policy": "nightly"}
    paused = builders.paused_marks(NOW - 3 * HOUR, 8, **said)
    world.workload("research/asleep", pods=[], body={"spec": {"replicas": 0}}, annotations=paused)
    return world


def look():
    polite = builders.rule(notice=builders.notice(10 * MINUTE))
    missing = (cluster.Missing("rollouts.argoproj.io", "the API server answered 403"),)
    return examples.look_at(a_cluster(), builders.mandate(polite, acting=False), missing=missing)


def status_page():
    seen = look()
    page = statuses.status(seen, answers.view(seen.plan), FOUND, price_book.LIST)
    return pages.draw_status(show.fold(page.rules.sentence), page, "", NOW)


def rows_of(seen):
    return [telling.make_row(one, seen.snapshot, NOW) for one in answers.view(seen.plan).workloads]


def idle_page(wide=False):
    seen = look()
    rows, rules = rows_of(seen), statuses.tell_rules(seen, FOUND).sentence
    return pages.draw_idle(show.fold(rules), rows, telling.listed(rows, everything=False), "", wide=wide)


def why_page(index, wide=False):
    seen = look()
    finding, evidence = seen.explain(index)
    answer, rules = answers.explanation(finding, evidence, None, NOW), statuses.tell_rules(seen, FOUND).sentence
    lost = (answers.SignalMissed(signal="tensor", because="422"),)
    return pages.draw_why(show.fold(rules), msgspec.structs.replace(answer, lost_signals=lost), NOW, wide=wide)


PAGES = {"status": status_page, "idle": idle_page, **{f"why-{n}": lambda n=n: why_page(n) for n in range(5)}}


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("columns", [80, 120, 160])
def test_a_page_fits_its_terminal(draw, name, columns):
    for line in click.unstyle(draw(PAGES[name], columns)).splitlines():
        assert len(line) <= columns, line


@pytest.mark.parametrize("name", PAGES)
def test_a_page_begins_with_whose_rules_these_are(draw, name):
    first = draw(PAGES[name]).splitlines()[0]
    assert "a daemon runs in gpu-pruner-system, whose own flags are not known here" in first


@pytest.mark.parametrize("name", PAGES)
def test_a_pipe_gets_no_colour_and_a_terminal_may_refuse_it(draw, name):
    assert "\x1b" not in draw(PAGES[name])
    assert "\x1b[38;5;" not in draw(PAGES[name], 100, NO_COLOR="1")
    if name in ("status", "idle"):
        assert "\x1b[38;5;166m" in draw(PAGES[name], 160)


def test_an_output_without_blocks_gets_letters(draw):
    page = draw(status_page, encoding="ascii")
    page.encode("ascii")
    assert "# busy  - idle  ? cannot tell" in page


def test_the_status_page_has_what_a_first_page_needs(draw):
    page = " ".join(draw(status_page).split())
    for said in (
        "GPUS 32 on 4 nodes, 20 free", "HELD 12 by 4 pods of 4 workloads: 1 busy, 10 idle, 1 cannot tell",
        "MONEY idle GPUs cost $51.20 an hour at list price", "PAUSED 1 workload by fallow, 8 GPUs given back",
        "research StatefulSet/llama-finetune-70b 8 A100-SXM4-80GB 2h 40.96 81.92 notice",
        "in 8m pause vision/segmenter (Deployment) 1 GPU",
        "MissingGpuSeries: 1 GPU of 1 workload cannot be told",
            "what helps: See which GPU of the node", "More: fallow why Deployment/lost -n vision",
        "not seen: rollouts.argoproj.io: the API server answered 403",
    ):
        assert said in page, page


@pytest.mark.parametrize(
    ("labels", "product", "says"),
    [
        ({}, "NVIDIA-A100-SXM4-80GB", "GPUS       16 on 1 node, 15 free"),
        ({"nvidia.com/gpu.replicas": "2"}, "NVIDIA-A100-SXM4-80GB",
         "GPUS       8 on 1 node, offered as 16 (MIG, time slices), 15 free"),
        ({}, "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb", "GPUS       3 on 1 node, offered as 16 (MIG, time slices), 15 free"),
    ],
)
def test_gpus_are_boards_and_what_they_are_offered_as_stands_beside(draw, labels, product, says):
    world = builders.World()
    examples.node(world, "node-1", 16, product=product, labels=labels)
    world.workload("ml/llm", gpus=[builders.idle()])
    text = draw(lambda: pages.draw_status("", examples.page_of(world), "", NOW))
    assert says in text
    assert ("HELD       1, each instance or slice as one, by 1 pod" in text) == ("offered as" in says)


def test_the_models_without_a_price_are_named(draw):
    world = builders.World()
    world.workload("ml/llm", gpus=[builders.idle(model="NVIDIA H100 80GB HBM3")] * 4)
    text = draw(lambda: pages.draw_status("", examples.page_of(world), "", NOW))
    assert "without a price: 4 of H100-80GB (--price H100-80GB=DOLLARS says it)" in text


def test_idle_fits_80_columns_with_names_as_people_have_them(draw):
    world = builders.World()
    gpus = [builders.idle(for_=90 * MINUTE)] * 8
    world.workload("team-research/whisper-large-v3-finetune", "StatefulSet", gpus=[*gpus, builders.busy()])
    rows = rows_of(examples.look_at(world))
    listed = telling.listed(rows, everything=False)
    text = draw(lambda: pages.draw_idle("By the flags given", rows, listed, "", wide=False), 80, NO_COLOR="")
    lines = [click.unstyle(line) for line in text.splitlines()]
    assert max(map(len, lines)) <= 80, text
    assert "team-research  StatefulSet/whisper-large-v3-finetune  8 of 9" in "\n".join(lines)
    assert all(word in text.split() for word in ("reported", "only")), text


def test_idle_counts_as_status_does(draw):
    page = " ".join(draw(idle_page).split())
    assert "of 12 GPUs held: 10 idle, 1 workload only in part, 1 busy, 1 cannot tell" in page
    assert "inference Deployment/chat 1 of 2 A100-SXM4-80GB active 5.12 not known reported only" in page


def test_why_says_what_helps_by_the_reason_that_counts(draw):
    """Of one that cannot be told, of one that is left alone, and not of one that stands paused."""
    said = [draw(lambda n=n: why_page(n)) for n in range(5)]
    assert "what helps See which GPU of the node the exporter leaves out" in said[3]
    assert "what helps Keep it with `fallow ack`" in said[2]
    assert "what helps" not in said[4]


def test_why_offers_its_owner_the_command_that_keeps_it(draw):
    assert "keep it    fallow ack StatefulSet/llama-finetune-70b -n research" in draw(lambda: why_page(0))
    assert "fallow ack" not in draw(lambda: why_page(1))  # it is busy
    assert "fallow ack" not in draw(lambda: why_page(4))  # it is paused


def test_why_has_short_uuids_and_wide_the_rest(draw):
    narrow, wide = draw(lambda: why_page(0)), draw(lambda: why_page(0, wide=True))
    assert "GPU-00000000 " in narrow
    assert "1111-2222" not in narrow
    assert "GPU-00000000-1111-2222-3333-444455556666" in wide
    assert "gr_engine=0" in wide


def test_why_of_a_paused_one_says_why_by_which_rule_and_what_it_returns_to(draw):
    page = draw(lambda: why_page(4))
    for said in (
        "Deployment/asleep in research: paused\n", "at 2026-11-15T09:00:00Z (3h ago) by fallow, rule nightly",
        "because    8 GPUs idle for 2h (policy nightly)", "gave back  8 GPUs", "returns to 3 replicas",
        "back with  fallow resume Deployment/asleep -n research",
    ):
        assert said in page, page


def test_nothing_that_a_tenant_wrote_is_obeyed(draw):
    world = builders.World()
    evil = builders.paused_marks(NOW - HOUR, 1, paused_reason="\x1b[2Jhello\x07", paused_policy="\x1b]0;x\x07")
    world.workload("ml/llm", pods=[], body={"spec": {"replicas": 0}}, annotations=evil)
    seen = examples.look_at(world)
    finding, evidence = seen.explain(0)
    answer = answers.explanation(finding, evidence, None, NOW)
    for columns in (None, 80):
        page = draw(lambda: pages.draw_why("rules", answer, NOW, wide=False), columns)
        assert "\x1b[2J" not in page
        assert "\x1b]0" not in page
        assert "\x07" not in page


def test_a_bar_shows_whatever_there_is():
    segments = dict(show.Bar(1, 1000, 1, 1002, columns=20).segments())
    assert [len(segments[state]) for state in ("active", "idle", "unknown")] == [1, 20, 1]
    assert show.Bar(0, 0, 0, 0).segments() == []
