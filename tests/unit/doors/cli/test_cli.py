"""The commands as a person types them: help, usage errors, exit codes. Nothing is contacted."""

import subprocess
import sys

import pytest
from click.testing import CliRunner

from fallow import __version__, settings
from fallow.doors.cli import main, pruner


def run(command, *arguments, env=None):
    clean = dict.fromkeys(("PROMETHEUS_URL", "PROMETHEUS_TOKEN", "KUBECONFIG", "SLACK_WEBHOOK_URL"))
    return CliRunner(env={**clean, **(env or {})}).invoke(command, arguments, prog_name="gpu-pruner")


def test_help_names_every_flag_with_its_default():
    shown = run(pruner.gpu_pruner, "--help")
    assert shown.exit_code == 0
    for flag in settings.FLAGS:
        assert flag.name in shown.output
        assert flag.short is None or f"{flag.short}, {flag.name}" in shown.output
        assert not flag.default or f"[default:{flag.default}]" in "".join(shown.output.split())


@pytest.mark.parametrize("typed", [
    ["status", "--prometheus-url", "htp://{}@h"], ["status", "http://{}@h"], ["run", "--cluster", "west={}@h"],
    ["cost", "--daemon-url", "http://{}@127.0.0.1:x"], ["run", "--scrape-target=htp://{}@h"],
], ids=" ".join)
@pytest.mark.parametrize("login", ["ada:pa55/wo@rd#", "ada:pa55'wo\\r d"])
def test_no_error_repeats_the_password_of_an_address(tmp_path, login, typed):
    shown = run(main.fallow, *(word.format(login) for word in typed), env={"KUBECONFIG": str(tmp_path / "none")})
    assert shown.exit_code != 0
    assert "pa55" not in shown.output


def test_version():
    assert run(pruner.gpu_pruner, "-V").output == f"gpu-pruner {__version__}\n"


@pytest.mark.accepts("idle", 29)
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["-e", "dq"], "--enabled-resources"), (["-t", "0"], "--duration"), (["-n", "("], "--namespace"),
        (["--no-such-flag"], "--no-such-flag"),
        (["--slack-interaction-addr", "127.0.0.1:3002"], "--slack-interaction-addr"),
        (["--dashboard-port", "0"], "--dashboard-port"), (["--cluster", "a"], "--cluster"),
        (["--cluster", "A=http://b"], "--cluster"), (["--cluster", "a=b"], "--cluster"),
        (["--cluster", "a=http://b", "--cluster", "a=http://c"], "a is named twice"),
        (["--honor-labels-clusters", "a"], "there is no --cluster a"),
        (["--digest-schedule", "0 17 * *"], "--digest-schedule"), (["--scrape-target", "n1:9400"], "--scrape-target"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
def test_a_usage_error_is_one_sentence_and_exit_2(arguments, says):
    shown = run(pruner.gpu_pruner, *arguments, "--prometheus-url", "http://127.0.0.1:1")
    assert shown.exit_code == 2
    [sentence] = [line for line in shown.output.splitlines() if line.startswith("Error:")]
    assert says in sentence


def test_every_verb_exists_and_has_help():
    for verb in main.VERBS:
        shown = run(main.fallow, verb, "--help")
        assert shown.exit_code == 0, verb
        assert "Usage:" in shown.output
        assert "Options:\n  KIND/NAME" not in shown.output, "an argument is no option"


def test_every_verb_stands_in_help_once_under_what_it_is_for():
    assert sorted(verb for verbs in main.GROUPS.values() for verb in verbs) == sorted(main.VERBS)
    shown = run(main.fallow, "--help").output
    assert [shown.count(f"\n  {verb} ") for verb in main.VERBS] == [1] * len(main.VERBS)
    assert shown.index("\nBegin here:") < shown.index("\nFor owners:") < shown.index("\nBesides:")
    few = run(main.gpu_autoscaler, "--help").output
    assert "For owners" not in few, "a heading with nothing below it"


def test_help_imports_nothing_heavy():
    heavy = {"aiohttp", "numpy", "rich", "yaml", "starlette"}
    code = f"import sys, fallow.doors.cli.main; print({heavy!r} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
