"""The workflows: least rights, actions by commit and not by a name that somebody can move, no word of a stranger in a
shell, and commands that exist."""

import re
import subprocess

import pytest
import yaml
from tests import ROOT

FILES = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
# What somebody who opens a pull request chooses: titles, names of branches, texts.
_STRANGERS = re.compile(r"\$\{\{.*?github\.(event|head_ref)|\$\{\{\s*inputs\.")


@pytest.fixture(params=FILES, ids=lambda path: path.stem)
def workflow(request):
    return request.param.read_text()


def jobs_of(text):
    return yaml.safe_load(text)["jobs"].values()


def scripts_of(text):
    return [step["run"] for job in jobs_of(text) for step in job["steps"] if "run" in step]


def test_there_is_one_for_changes_and_one_for_releases():
    assert [path.stem for path in FILES] == ["ci", "release"]


def test_an_action_is_named_by_its_commit_with_the_version_beside_it(workflow):
    used = re.findall(r"uses: (.+)", workflow)
    assert used
    assert [each for each in used if not re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", each)] == []


def test_rights_are_read_only_but_for_who_publishes(workflow):
    assert yaml.safe_load(workflow)["permissions"] == {"contents": "read"}
    rights = [job["permissions"] for job in jobs_of(workflow) if "permissions" in job]
    assert rights == ([{"contents": "write"}] if "gh release create" in workflow else [])
    assert "pull_request_target" not in workflow
    assert workflow.count("persist-credentials: false") == workflow.count("actions/checkout@")


def test_every_job_ends_and_says_on_what_it_runs(workflow):
    for job in jobs_of(workflow):
        assert 0 < job["timeout-minutes"] <= 120
        assert not job["runs-on"].endswith("latest")


def test_no_word_of_a_stranger_gets_into_a_shell(workflow):
    assert [each for each in scripts_of(workflow) if "${{" in each] == []
    assert not _STRANGERS.search(workflow)


def test_the_commands_exist(workflow):
    for script in scripts_of(workflow):
        assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0
        for targets in re.findall(r"\bmake ([a-z ]+)", script):
            assert set(targets.split()) <= TARGETS
        for path in re.findall(r"(?<![\w/])\.ci/\w+", script):
            assert (ROOT / path).stat().st_mode & 0o111


def test_a_tag_that_makes_a_release_is_one_that_a_release_asks_for():
    """v<version>, as docs.release checks it."""
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    said = yaml.safe_load(text)[True]  # YAML reads `on` so
    assert said == {"push": {"tags": ["v[0-9]+.[0-9]+.[0-9]+"]}}


def test_what_is_released_is_on_main_tested_and_says_where_it_will_be():
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())["jobs"]
    tested = [step["run"] for step in jobs["test"]["steps"] if "run" in step]
    assert tested[0] == 'git merge-base --is-ancestor "$GITHUB_SHA" origin/main'
    assert tested[1].endswith(" .ci/run")
    assert jobs["make"]["needs"] == "test"
    assert jobs["make"]["env"]["URL"].endswith("/releases/download/${{ github.ref_name }}"), "for krew"


def test_images_are_made_wherever_tests_run(workflow):
    """The machines of the workflows have no mirror of Debian themselves."""
    assert "DEBIAN_MIRROR: ${{ vars.DEBIAN_MIRROR }}" in workflow
    for script in scripts_of(workflow):
        assert ".ci/run" not in script or re.search(r"--preserve-env=\S*\bDEBIAN_MIRROR\b", script)
