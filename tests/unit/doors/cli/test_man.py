"""The manual pages: one for every command, which roff takes without a word, and in which every option stands."""

import pathlib
import re
import shutil
import subprocess

import click
import pytest
from click.testing import CliRunner

from fallow.doors.cli import main, man

PAGES = {context.command_path: context for context in man.walk()}


def type_in(*words):
    return CliRunner().invoke(main.fallow, ["man", *words], prog_name="fallow")


def test_every_command_has_a_page():
    assert {f"fallow {verb}" for verb in main.VERBS} < PAGES.keys()
    assert {"fallow", "gpu-pruner", "gpu-autoscaler", "gpu-idle-exporter", "fallow cost report"} < PAGES.keys()


@pytest.mark.parametrize("path", PAGES)
def test_every_option_and_command_stands_on_its_page(path):
    context = PAGES[path]
    page = man.make(context).replace("\\-", "-")
    for each in context.command.get_params(context):
        if isinstance(each, click.Option) and not each.hidden:
            assert each.opts[0] in page
    for name in context.command.list_commands(context) if isinstance(context.command, click.Group) else ():
        assert name in page


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not here")
def test_roff_takes_every_page_without_a_warning(tmp_path):
    done = type_in("--into", str(tmp_path / "pages"))
    assert (done.exit_code, f"{len(PAGES)} pages" in done.output) == (0, True), done.output
    [hint] = re.findall(r"^ +man (.+)$", done.output, re.MULTILINE)
    assert pathlib.Path(hint).is_file(), "as it is printed"
    pages = sorted((tmp_path / "pages").iterdir())
    assert len(pages) == len(PAGES)
    for page in pages:
        words = ["groff", "-man", "-Tascii", "-ww", "-Wbreak", "-P", "-cbou", str(page)]  # a regex is long
        drawn = subprocess.run(words, capture_output=True, text=True, check=True)
        assert (drawn.stderr, "\nNAME\n" in drawn.stdout) == ("", True), page.name


def test_a_page_is_printed_where_nobody_reads_it_on_a_terminal():
    done = type_in("cost", "report")
    assert done.exit_code == 0
    assert done.output.startswith('.TH "FALLOW\\-COST\\-REPORT" "1"')
    assert "fallow\\-cost\\-report \\- " in type_in("cost", "report").output
    assert type_in("gpu-pruner").output.startswith('.TH "GPU\\-PRUNER"')


@pytest.mark.parametrize(("words", "says"), [
    (["nope"], "there is no command fallow nope"), (["status", "more"], "there is no command fallow status more"),
    (["status", "--into", "x"], "--into writes every page"), (["--into", "/dev/null/x"], "--into: "),
])
def test_what_is_wrong_is_one_sentence(words, says):
    done = type_in(*words)
    assert (done.exit_code, says in done.output) == (2, True), done.output


def test_nothing_of_a_text_is_a_command_of_roffs():
    assert man._escape(".TH x") == "\\&.TH x"
    assert man._escape("a\\b --c") == "a\\eb \\-\\-c"
