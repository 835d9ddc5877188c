"""Answers on the terminal: nothing of them is obeyed, nothing of a name is lost."""

import io
import re

import click
import pytest

from fallow.doors.cli import show


@pytest.mark.parametrize("text", ["a\x1b[31mred", "two\nlines", "bell\a", "back\b", "\x9b31m"], ids=ascii)
def test_text_from_the_cluster_commands_no_terminal(text):
    shown = show.plain(text)
    assert shown.isprintable()
    assert len(shown) == len(text)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def draw(monkeypatch, out, rows, columns=80, **environment):
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "TERM", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"TERM": "xterm-256color", "COLUMNS": str(columns), "LINES": "25", **environment}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.stdout", out)
    show.table(["WORKLOAD", "GPUS", "VERDICT", "WHY"], rows, styled="VERDICT")
    return out.getvalue()


LONG = (
    "Deployment/a-very-long-name-that-somebody-thought-was-a-good-idea-for-a-model-server", 12, "idle",
    "its 12 GPUs did nothing",
)


def test_a_narrow_terminal_folds_sentences_between_words(monkeypatch):
    row = ("Deployment/llm", 12, "idle", "all of its 12 GPUs did nothing above 1% for 1h30m since it started")
    lines = click.unstyle(draw(monkeypatch, Terminal(), [row])).splitlines()
    assert len(lines) == 3
    assert all(len(line) <= 80 for line in lines)
    assert f"{lines[1][31:]} {lines[2].strip()}" == row[3]


def test_a_name_is_whole_in_the_narrowest_terminal(monkeypatch):
    shown = click.unstyle(draw(monkeypatch, Terminal(), [LONG], columns=40))
    assert LONG[0] in shown
    assert "…" not in shown


def test_the_word_for_what_comes_next_is_never_broken(monkeypatch):
    draw(monkeypatch, Terminal(), [], columns=40)
    rows = [("team-robotics", "Deployment/captions", 4, "2h21m", "Acknowledged")]
    assert "Acknowledged" in show.grid(["NAMESPACE", "WORKLOAD", "GPUS", "IDLE FOR", "NEXT"], rows)


def test_a_column_that_is_not_there_can_be_spared(monkeypatch):
    draw(monkeypatch, Terminal(), [], columns=40)
    shown = show.grid(["KEY", "KWH"], [("a" * 38, 1.0)], spare=("CO2_KG", "KWH"))
    assert click.unstyle(shown).splitlines() == ["KEY", "a" * 38]


@pytest.mark.parametrize(("columns", "bar"), [(40, 28), (80, 60), (3, 1)])
def test_a_bar_is_no_wider_than_its_terminal(monkeypatch, columns, bar):
    draw(monkeypatch, Terminal(), [], columns=columns)
    assert show.fit_bar(60) == bar
    marks = show.join_words([("#", "", "a word of some length")] * 3)
    assert max(map(len, marks.splitlines())) <= max(columns, len("# a word of some length"))
    monkeypatch.setattr("sys.stdout", io.StringIO())
    assert show.fit_bar(60) == 60


def test_a_pipe_gets_each_row_on_one_line(monkeypatch):
    shown = draw(monkeypatch, io.StringIO(), [LONG, LONG])
    assert len(shown.splitlines()) == 3
    assert "\x1b" not in shown


@pytest.mark.parametrize(
    ("environment", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)],
    ids=["plain", "NO_COLOR", "dumb"],
)
def test_colours_are_for_terminals_that_want_them(monkeypatch, environment, coloured):
    assert ("\x1b[38;5;166m" in draw(monkeypatch, Terminal(), [LONG], **environment)) is coloured


def test_no_line_ends_in_blanks(monkeypatch):
    shown = draw(monkeypatch, io.StringIO(), [LONG, ("x", 1, "active", "")])
    assert all(line == line.rstrip() for line in shown.splitlines())


def test_a_sentence_gets_narrow_before_lines_run_over(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sys.stdout", Terminal())
    laid = show.grid(["WORKLOAD", "WHY"], [("w" * 60, "Scaled it to 0 since it was idle for an hour")])
    assert max(map(len, re.sub(r"\x1b\[[0-9;]*m", "", laid).splitlines())) <= 80


def test_prose_is_folded_between_words_on_a_terminal_only(monkeypatch):
    words = "one word after another " * 5
    for out, width in ((io.StringIO(), 10_000), (Terminal(), 40)):
        monkeypatch.setenv("COLUMNS", "40")
        monkeypatch.setattr("sys.stdout", out)
        show.prose(words, f"{words}\x1b[31m")
        lines = out.getvalue().splitlines()
        assert max(map(len, lines)) <= width
        assert " ".join(out.getvalue().split()) == f"{words}{words}\N{REPLACEMENT CHARACTER}[31m"
        assert (len(lines) == 2) is (width > 40)
        assert lines[-1].startswith("  ")


COLUMNS = ["WHEN", "WHAT", "NAMESPACE", "WORKLOAD", "BY", "WHY"]
HAPPENED = ("2026-11-17T12:56:00Z", "told", "team-search", "LLMInferenceService/llm-chat", "fallow", "quiet " * 20)


def lay_happened(monkeypatch, columns):
    draw(monkeypatch, Terminal(), [], columns=columns)
    return click.unstyle(show.grid(COLUMNS, [HAPPENED, HAPPENED], below=("BY", "WHY"))).splitlines()


def test_what_has_no_room_in_a_row_stands_below_it_and_nothing_is_lost(monkeypatch):
    head, first, *below = lay_happened(monkeypatch, 80)
    assert (head.split(), first.split()) == (COLUMNS[:4], list(HAPPENED[:4]))
    assert below[0].startswith("  BY fallow  WHY quiet quiet")
    assert sum(line.count("quiet") for line in below) == 40
    assert all(len(line) <= 80 for line in (head, first, *below))


def test_a_wide_terminal_has_all_of_it_in_columns(monkeypatch):
    assert lay_happened(monkeypatch, 160)[0].split() == COLUMNS
