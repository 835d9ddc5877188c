"""A file of settings: what is in it counts as if it had been typed, and yields to what was; a bad one is one
sentence."""

import asyncio
import logging
import os
import signal
import time

import pytest

from fallow import settings
from fallow.doors.cli import reloading
from fallow.settings import config_file

TYPED = {"duration": None, "namespace": None, "gpu_resource": (), "daemon_mode": False, "prometheus_url": None}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "settings.yaml"


def complete(path, text, environ=None, **typed):
    path.write_text(text)
    return config_file.complete({**TYPED, "config": str(path), **typed}, environ or {})


def test_a_file_counts_as_if_it_had_been_typed(path):
    found = complete(path, "check-interval: 45\ngpu-resource: [a/gpu, b/gpu]\ndaemon-mode: true\ncost: false\n")
    read = settings.read_flags(found, {})
    assert read.loop.interval == 45
    assert (read.gpu_resources, read.loop.daemon, read.cost.enabled) == (frozenset({"a/gpu", "b/gpu"}), True, False)


def test_what_is_typed_wins_over_a_variable_and_that_over_the_file(path):
    text = "prometheus-url: http://file:9090\nduration: 45\ndashboard-auth: oidc\n"
    assert complete(path, text)["prometheus_url"] == "http://file:9090"
    assert complete(path, text, {"PROMETHEUS_URL": "http://variable:9090"})["prometheus_url"] is None
    assert complete(path, text, prometheus_url="http://typed:9090")["prometheus_url"] == "http://typed:9090"
    assert complete(path, text, duration="60")["duration"] == "60"
    given = {**TYPED, "config": str(path)}
    assert config_file.complete(given, {}, {"dashboard_auth": "kube"})["dashboard_auth"] == "oidc"
    assert config_file.complete(TYPED, {}, {"dashboard_auth": "kube"})["dashboard_auth"] == "kube"
    assert config_file.complete(TYPED, {"FALLOW_CONFIG": str(path)})["duration"] == "45"


@pytest.mark.parametrize(("text", "says"), [
    ("duratoin: 45", "there is no setting 'duratoin'; did you mean duration"), ("a: [", "is no YAML"),
    ("- duration", "has no settings"), ("duration: {a: 1}", "duration: one value"), ("duration: [1, 2]", "one value"),
    ("daemon-mode: 3", "daemon-mode: true or false"), ("config: x", "there is no setting 'config'"),
    ("gpu_resource: x", "there is no setting 'gpu_resource'"), ("duration: null", "one value"),
    ("run-mode: dry-run\nrun-mode: scale-down", "run-mode is said twice"), ("duration: 1\n--duration: 2", "said twice"),
    ("[" * 5000, "is no YAML"), ("duration: !!python/name:os.system x", "one value"), ("? [a]\n: b", "no setting ''"),
    ("<<: {duration: 1}", "there is no setting '<<'"), ("a" * 1_000_001, "it has more than"),
])
def test_what_is_wrong_with_a_file_is_one_sentence_with_its_name(path, text, says):
    with pytest.raises(settings.UsageError) as problem:
        complete(path, text)
    assert says in str(problem.value)
    assert str(path) in str(problem.value)
    assert "\n" not in str(problem.value)


@pytest.mark.parametrize("text", ["prometheus-token: hunter22: x", 'prometheus-token: "hunter22'])
def test_what_is_wrong_with_a_file_does_not_tell_a_secret_of_it(path, text):
    with pytest.raises(settings.UsageError, match=r"is no YAML: line [12], column") as problem:
        complete(path, text)
    assert "hunter22" not in str(problem.value)


@pytest.mark.parametrize("text", ["0123", "1_000", "2020-13-45", "1:30", "9" * 5000])
def test_a_value_is_the_text_that_stands_there(path, text):
    assert complete(path, f"prometheus-token: {text}")["prometheus_token"] == text


def test_a_file_that_is_not_there_is_one_sentence(path):
    with pytest.raises(settings.UsageError, match="cannot be read: No such file"):
        config_file.complete({**TYPED, "config": str(path)}, {})


def test_a_line_that_stands_there_ten_thousand_times_keeps_nobody_busy(path):
    before = time.process_time()
    with pytest.raises(settings.UsageError, match="duration is said twice"):
        complete(path, "duration: 4\n" * 12_000)
    assert time.process_time() - before < 8.0


def test_an_empty_file_says_nothing(path):
    assert complete(path, "# nothing yet\n")["duration"] is None


def read_all(path):
    return settings.read_flags(config_file.complete({**TYPED, "config": str(path)}, {}), {})


def follow(path):
    return reloading.SettingsFile(path, lambda: read_all(path), read_all(path))


async def test_what_changed_between_the_start_and_the_first_look_is_noticed(path):
    path.write_text("check-interval: 45")
    begun = read_all(path)
    path.write_text("check-interval: 60")
    file = reloading.SettingsFile(path, lambda: read_all(path), begun)
    found = file.look()
    assert found is not None
    assert found.loop.interval == 60


async def test_a_comment_is_no_other_setting(path):
    path.write_text("check-interval: 45")
    file = follow(path)
    path.write_text("check-interval: 45  # as ever")
    assert [file.look(), file.look(), file.look()] == [None, None, None]


async def test_a_change_is_read_once_and_a_bad_one_changes_nothing(path, caplog):
    caplog.set_level(logging.INFO, "fallow")
    path.write_text("check-interval: 45")
    file = follow(path)
    assert file.look() is None, "as it was at the start"
    path.write_text("check-interval: 60")
    assert file.look() is None, "it may be half written"
    found = file.look()
    assert found is not None
    assert found.loop.interval == 60
    assert file.look() is None
    for bad in ("duration: x", "duration: [", "\n", "[" * 5000, "duration: 2020-13-45"):
        path.write_text(bad)
        assert [file.look(), file.look(), file.look()] == [None, None, None]
    path.unlink()
    assert [file.look(), file.look(), file.look()] == [None, None, None]
    os.mkfifo(path)
    assert [file.look(), file.look(), file.look()] == [None, None, None], "nobody waits for who writes into a pipe"
    errors = [each.message for each in caplog.records if each.levelname == "ERROR"]
    assert len(errors) == 6, "each once"
    assert all("the former settings hold on" in each for each in errors)


async def test_sighup_reads_it_again_although_it_is_the_same(path, tmp_path, caplog, monkeypatch):
    """What was wrong with it may be mended elsewhere."""
    monkeypatch.setattr(reloading, "SETTLES", 0.01)
    key = tmp_path / "dsn"
    path.write_text("check-interval: 45")
    file = follow(path)
    path.write_text(f"check-interval: 60\ncost: true\ncost-store-dsn-file: {key}")
    following = asyncio.create_task(file.follow())
    async with asyncio.timeout(10):
        while "the former settings hold on" not in caplog.text:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    key.write_text("postgresql://a@b/c")
    os.kill(os.getpid(), signal.SIGHUP)
    found = await asyncio.wait_for(following, 3)
    assert found.loop.interval == 60
