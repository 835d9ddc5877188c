"""`fallow clusters` as it is typed; the other end is a daemon that says what it is told to."""

import json

import pytest
from tests.unit.doors.cli import test_asking, test_past, test_verbs

ask, type_in, daemon, server = test_verbs.ask, test_verbs.type_in, test_asking.daemon, test_past.server
GPUS = {"total": 100.0, "busy": 60.0, "idle": 20.0, "unknown": 8.0, "free": 12.0}
NONE = dict.fromkeys(GPUS)
COSTS = {"currency": "USD", "perHour": 5.0, "monthToDate": 1234.5, "projected": None, "savedThisMonth": 7.0}


def row(name, **said):
    usual = {
        "name": name, "url": None, "sight": "seen", "because": None, "seenAt": "2026-11-15T12:00:00Z",
        "measuredSeconds": 30.0, "mode": "acting", "version": "1", **GPUS, "givenBackGpuHours": 70.5, "currency": "USD",
        "costs": COSTS,
    }
    return {**usual, **said}


SUMS = {
    "clusters": 1, "unseen": ["west"], **GPUS, "givenBackGpuHours": 70.5, "wouldGiveBackGpuHours": None,
    "money": [{**COSTS, "clusters": 1}, {**COSTS, "clusters": 1, "currency": "EUR"}], "withoutBooks": 0,
}
AWAY = row("west", sight="away", because="it does not answer: no route", mode=None, givenBackGpuHours=None, costs=None,
           measuredSeconds=None, **NONE)


@pytest.fixture
def told(daemon):
    daemon.about |= {"asOf": "2026-11-15T11:59:30Z", "clusters": [row("home"), AWAY], "sums": SUMS}
    return daemon


async def test_a_cluster_that_is_away_has_dashes_and_a_sentence(server, ask, told):
    done = await ask("clusters", "--daemon-url", told.url)
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    home = next(line for line in lines if line.startswith("home"))
    assert home.split()[:9] == ["home", "acting", "100", "60", "20", "8", "12", "70.5", "h"]
    assert "1,234.50 USD" in home
    west = next(line for line in lines if line.startswith("west"))
    assert west.split()[1:9] == ["-"] * 8
    assert "not seen: it does not answer: no route" in done.output
    assert "Not seen, and in no sum: west." in done.output
    assert "in EUR" in done.output
    assert told.asked[-1].path == "/api/v1/all-clusters"
    said = json.loads((await ask("clusters", "-o", "json", "--daemon-url", told.url)).stdout)
    assert [each["total"] for each in said["clusters"]] == [100.0, None]


async def test_who_is_asked_and_is_not_there_is_one_sentence(server, ask):
    done = await ask("clusters", "--daemon-url", "http://127.0.0.1:1")
    assert (done.exit_code, "does not answer" in done.output) == (1, True)
    assert "Traceback" not in done.output
