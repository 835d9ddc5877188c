"""Dashboards ask for metrics that there are, with labels that they have; a real Prometheus reads every query."""

import json
import re
import subprocess

import pytest
import yaml
from tests import ROOT
from tests.real import build

from fallow import telemetry

BOARDS = sorted((ROOT / "dashboards").glob("*.json"))
METRICS = {metric.name: metric for metric in telemetry.METRICS}
_WORDS = {
    "max", "min", "sum", "by", "or", "vector", "topk", "rate", "delta", "clamp_min", "label_replace",
}


def queries(board) -> list[tuple[str, str]]:
    return [(panel["title"], target["expr"]) for panel in board["panels"] for target in panel.get("targets", ())]


EVERY = [(board.name, *one) for board in BOARDS for one in queries(json.loads(board.read_text()))]


@pytest.mark.parametrize(("board", "title", "query"), EVERY, ids=[f"{one[0]}: {one[1]}" for one in EVERY])
def test_a_panel_asks_for_what_there_is(board, title, query):
    bare = re.sub(r'"[^"]*"', '""', query)
    names = set(re.findall(r"[a-z][a-z_]+", re.sub(r"\{[^}]*\}|\bby \([^)]*\)|\[[^\]]*\]", "", bare))) - _WORDS
    assert names
    assert names <= set(METRICS), (board, title)
    grouped = {label.strip() for some in re.findall(r"\bby \(([^)]*)\)", bare) for label in some.split(",")}
    filtered = set(re.findall(r"\{(\w+)=", bare))
    known = {label for name in names for label in METRICS[name].labels}
    made = {"class"} if "label_replace" in query else set()
    assert grouped | filtered <= known | made, (board, title)


def test_the_board_has_what_the_specification_asks_for():
    [path] = [board for board in BOARDS if board.name == "gpu-cost.json"]
    board = json.loads(path.read_text())
    assert (board["uid"], board["title"]) == ("fallow-cost", "GPU Cost")
    titles = " / ".join(panel["title"] for panel in board["panels"]).lower()
    for wanted in ("hourly rate", "month to date", "projected", "namespace", "team", "model", "capacity", "class",
                   "three idles", "20 costliest", "budgets: used", "burn rate", "saved", "freed", "without a price",
                   "old prices", "per gpu-hour", "acknowledgements", "energy"):
        assert wanted in titles, wanted
    numbers = [panel["id"] for panel in board["panels"]]
    assert len(numbers) == len(set(numbers))


@pytest.mark.real
def test_a_real_prometheus_reads_every_query(tmp_path):
    rules = [{"record": f"x:{number}", "expr": query} for number, (_, _, query) in enumerate(EVERY)]
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "boards", "rules": rules}]}))
    done = subprocess.run([str(build.need("promtool")), "check", "rules", str(file)], capture_output=True, text=True,
                          check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(rules)} rules found" in done.stdout
