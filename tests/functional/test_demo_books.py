"""The demo keeps books: its closing report says what `fallow cost report` says, what GPUs cost is the price of their
nodes for the time, and a team that overspends is told once. One day in a process of its own serves all of these."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any
from urllib import request

import pytest

from fallow.sim import paying
from tests.functional.test_demo import LookingIn, start

NODES, HOURS = 4, 3  # one machine of each kind, and the one that a pod leaves for another
GPUS = {"L40S": 1}  # of machines that have not as many as the others


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LookingIn]:
    folder = tmp_path_factory.mktemp("traces")
    playing = start(folder, "--nodes", str(NODES), "--hours", str(HOURS), "--stay", "--dashboard-port", "0")
    yield LookingIn(playing, "The cluster goes on in real time")
    playing.kill()
    playing.communicate()


def told(day: LookingIn) -> str:
    return "".join(day.heard)


def link(day: LookingIn) -> str:
    return re.findall(r"export FALLOW_DAEMON_URL=(\S+)", told(day))[-1]


def ask(day: LookingIn, path: str) -> Any:
    with request.urlopen(f"{link(day)}{path}", timeout=20) as answer:
        return json.load(answer)


def report(day: LookingIn, *words: str) -> Any:
    """Of the day that was reported, by the very command that the report names."""
    (window,) = set(re.findall(r"fallow cost report (--from \S+ --to \S+)", told(day)))
    said = day.type("cost", "report", *window.split(), "--daemon-url", link(day), "-o", "json", *words)
    return json.loads(said)


def row_of(day: LookingIn, name: str) -> list[str]:
    return re.findall(rf"^{name}\s.*$", told(day), re.MULTILINE)[0].split()


def dollars(amount: float) -> str:
    return f"${amount:,.2f}"


def test_the_closing_report_is_what_the_ledger_says(day: LookingIn) -> None:
    booked = report(day)
    assert row_of(day, "total")[1:4] == [f"{booked['gpuHours']:,.1f}", "h", dollars(booked["total"])]
    assert booked["rows"]
    for row in booked["rows"]:
        shown = row_of(day, row["key"])
        assert shown[1:4] == [f"{row['gpuHours']:,.1f}", "h", dollars(row["cost"])], row["key"]
    assert row_of(day, "nobody's")[1:4] == [
        f"{booked['platform']['gpuHours']:,.1f}", "h", dollars(booked["platform"]["cost"]),
    ]
    paid = sum(round(100 * row["cost"]) for row in booked["rows"])
    assert paid + round(100 * booked["platform"]["cost"]) + round(100 * booked["rest"]) == round(100 * booked["total"])


def test_by_class_it_is_the_same_money(day: LookingIn) -> None:
    booked = report(day, "--by", "class")
    for row in booked["rows"]:
        assert row_of(day, row["key"])[1:4] == [f"{row['gpuHours']:,.1f}", "h", dollars(row["cost"])]
    assert booked["total"] == report(day)["total"]


def scaled(day: LookingIn) -> dict[str, float]:
    """With scaling, with pausing alone, the difference and what it is made of, as the closing report tells it."""
    told_of = re.search(
        r"with scaling the day cost \$(?P<paid>\S+); with pausing alone its first \d+ nodes run all day, which is "
        r"\$(?P<alone>\S+) at the same prices: \$(?P<less>\S+) \([\d.]+%\) less, .* which is \$(?P<gone>\S+), and "
        r"nodes that were added cost \$(?P<added>\S+)", told(day),
    )
    assert told_of is not None, told(day)
    return {name: float(text.replace(",", "")) for name, text in told_of.groupdict().items()}


def test_all_gpus_cost_the_price_of_their_nodes_for_the_time_that_they_were_there(day: LookingIn) -> None:
    """The oracle is the table of prices: what is shared, freed, resumed or renamed in between changes nothing."""
    booked, said = report(day), scaled(day)
    assert said["paid"] == booked["total"]
    rates = (each.per_hour() * GPUS.get(model, paying.GPUS) for model, each in paying.MACHINES.items())
    assert said["alone"] == float(HOURS * sum(rates) / paying.GPUS)
    assert said["alone"] - said["paid"] == pytest.approx(said["less"], abs=0.001)
    assert said["gone"] - said["added"] == pytest.approx(said["less"], abs=0.001)
    assert booked["unpricedGpuHours"] == 0


def test_what_nodes_that_went_saved_is_what_the_ledger_claims(day: LookingIn) -> None:
    (claimed,) = re.findall(r"released nodes saved \$([\d,.]+) beyond pausing", told(day))
    saved = {each["type"]: each["saved"] for each in ask(day, "/api/v1/cost/savings?window=24h")["lines"]}
    assert 0 < float(claimed) <= saved["autoscaling"], "the day goes on"
    assert float(claimed) <= scaled(day)["gone"]
    (policy,) = ask(day, "/api/v1/scaling")["policies"]
    assert (policy["name"], policy["driver"], policy["acts"]) == ("elastic", "direct", True)


def test_the_api_answers_as_the_command_does(day: LookingIn) -> None:
    window = re.findall(r"--from (\S+) --to (\S+)", told(day))[-1]
    heard, typed = ask(day, f"/api/v1/cost/report?window={window[0]},{window[1]}"), report(day)
    assert [(row["key"], row["cost"], row["gpuHours"]) for row in heard["rows"]] == [
        (row["key"], row["cost"], row["gpuHours"]) for row in typed["rows"]
    ]
    assert (heard["total"], heard["gpuHours"], heard["window"]) == (typed["total"], typed["gpuHours"], typed["window"])


def test_what_was_given_back_and_saved_is_what_the_ledger_claims(day: LookingIn) -> None:
    saved = {each["type"]: each for each in ask(day, "/api/v1/cost/savings?window=24h")["lines"]}
    spot, given = re.findall(r"spot nodes cost \$([\d,.]+) less", told(day))[-1], re.findall(
        r"pauses gave back ([\d,.]+) GPU-hours", told(day)
    )[-1]
    assert 0 < float(spot.replace(",", "")) <= saved["spot"]["saved"], "the day goes on"
    assert 0 < float(given) <= saved["waste"]["gpuHours"] + 0.05
    assert row_of(day, "total")[5] == given


def test_a_team_that_overspends_is_told_once_by_each_way(day: LookingIn) -> None:
    (team,) = re.findall(r"budget (team-\S+): \$[\d,.]+ of \$[\d,.]+ spent \(\d+ %\), 2 alerts", told(day))
    messages = [
        (each["by"], tuple(each["to"]), each["text"]) for each in ask(day, "/api/v1/conversation")["items"]
        if f"Budget {team}" in each["title"]
    ]
    counted = Counter((by, to) for by, to, _ in messages)
    assert counted == {("mail", (f"{team}@example.com",)): 2, ("slack", (f"#{team}",)): 1}, "at 80 % and at 100 %"
    assert len(set(messages)) == 3
    budgets = {each["budget"]: each for each in ask(day, "/api/v1/cost/budgets")["items"]}
    assert (budgets[team]["status"], budgets["all-gpus"]["status"]) == ("exceeded", "ok")
    assert [each["alert"] for each in budgets[team]["alerts"]] == ["nearly-spent", "spent"]
    assert team in day.type("cost", "budget")


def test_counts_are_those_of_the_audit(day: LookingIn) -> None:
    counts = ask(day, "/api/v1/digest?window=24h")["counts"]
    shown = re.findall(r"(\d+) notices?, (\d+) answered .*?; (\d+) pauses?, (\d+) resumes?; (\d+) regretted", told(day))
    known = [counts[name] for name in ("notices", "kept", "paused", "resumed", "regretted")]
    assert all(int(was) <= now for was, now in zip(shown[-1], known, strict=True)), "some more since the day ended"
