"""Dashboards ask for metrics that there are, with labels that they have; a real Prometheus reads every query."""

import json
import pathlib
import re
import subprocess

import pytest
import yaml
from docs import boards
from tests import ROOT
from tests.real import build
from tests.real.conftest import need

from fallow import telemetry

BOARDS = sorted((ROOT / "dashboards").glob("*.json"))
# Of other exporters: dcgm-exporter and kube-state-metrics.
_OF_GPU = ("UUID", "Hostname", "hostname", "pod", "namespace", "exported_pod", "exported_namespace")
OTHERS = {
    **{f"DCGM_FI_{name}": _OF_GPU for name in (
        "PROF_GR_ENGINE_ACTIVE", "PROF_PIPE_TENSOR_ACTIVE", "PROF_DRAM_ACTIVE", "DEV_GPU_UTIL", "DEV_MEM_COPY_UTIL",
        "DEV_FB_USED", "DEV_FB_FREE", "DEV_GPU_TEMP", "DEV_POWER_USAGE", "DEV_XID_ERRORS",
    )},
    "kube_pod_container_resource_requests": ("namespace", "pod", "resource"),
    "kube_pod_status_phase": ("namespace", "pod", "phase"),
}
LABELS = {metric.name: (*metric.labels, "job", "instance") for metric in telemetry.METRICS} | OTHERS
LABELS |= {f"{one.name}_bucket": (*one.labels, "le") for one in telemetry.METRICS if one.type == "histogram"}
_WORDS = {
    "max", "min", "sum", "avg", "count", "by", "on", "or", "and", "unless", "offset", "time", "vector", "topk", "rate",
    "increase", "changes", "delta", "clamp_min", "label_replace", "max_over_time", "histogram_quantile",
}


def queries(board) -> list[tuple[str, str]]:
    return [(panel["title"], target["expr"]) for panel in board["panels"] for target in panel.get("targets", ())]


EVERY = [(board.name, *one) for board in BOARDS for one in queries(json.loads(board.read_text()))]


@pytest.mark.parametrize(("board", "title", "query"), EVERY, ids=[f"{one[0]}: {one[1]}" for one in EVERY])
def test_a_panel_asks_for_what_there_is(board, title, query):
    bare = re.sub(r'"[^"]*"', '""', query)
    kept = re.sub(r"\{[^}]*\}|\b(?:by|on) \([^)]*\)|\[[^\]]*\]|\b\d\w*", "", bare)
    names = set(re.findall(r"[a-zA-Z_]\w+", kept)) - _WORDS
    assert names or "time()" in query
    assert names <= set(LABELS), (board, title)
    grouped = {label.strip() for some in re.findall(r"\b(?:by|on) \(([^)]*)\)", bare) for label in some.split(",")}
    filtered = set(re.findall(r"\{(\w+)=", bare))
    known = {label for name in names for label in LABELS[name]}
    made = set(re.findall(r', "(\w+)", "\$1"', query))  # by label_replace
    assert grouped | filtered <= known | made, (board, title)


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.name)
def test_a_board_is_nobodys_cluster_and_keeps_its_name(path):
    board = json.loads(path.read_text())
    assert board["uid"].startswith("fallow-")
    assert [each["name"] for each in board["templating"]["list"]] == ["datasource"]
    assert {panel["datasource"]["uid"] for panel in board["panels"]} == {"${datasource}"}
    numbers = [panel["id"] for panel in board["panels"]]
    assert len(numbers) == len(set(numbers))
    assert board["refresh"] in ("30s", "1m")


def test_the_boards_are_those_that_there_are():
    assert {board.name for board in BOARDS} == {pathlib.Path(path).name for path in boards.FILES}


def test_the_board_has_what_the_specification_asks_for():
    [path] = [board for board in BOARDS if board.name == "gpu-cost.json"]
    board = json.loads(path.read_text())
    assert (board["uid"], board["title"]) == ("fallow-cost", "GPU Cost")
    titles = " / ".join(panel["title"] for panel in board["panels"]).lower()
    for wanted in ("hourly rate", "month to date", "projected", "namespace", "team", "model", "capacity", "class",
                   "three idles", "20 costliest", "budgets: used", "burn rate", "saved", "freed", "without a price",
                   "old prices", "per gpu-hour", "acknowledgements", "energy"):
        assert wanted in titles, wanted


@pytest.mark.real
def test_a_real_prometheus_reads_every_query(tmp_path):
    need("promtool")
    asked = [query.replace("$__range", "6h") for _, _, query in EVERY]
    rules = [{"record": f"x:{number}", "expr": query} for number, query in enumerate(asked)]
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "boards", "rules": rules}]}))
    done = subprocess.run([str(build.need("promtool")), "check", "rules", str(file)], capture_output=True, text=True,
                          check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(rules)} rules found" in done.stdout


@pytest.mark.real
def test_the_values_for_grafana_take_ones_own_prometheus(tmp_path):
    """As people type it; a chart that says its values stands for Grafana's."""
    need("helm")
    (tmp_path / "templates").mkdir()
    (tmp_path / "Chart.yaml").write_text("apiVersion: v2\nname: grafana\nversion: 0.0.1\n")
    (tmp_path / "templates" / "said.yaml").write_text("{{ .Values | toJson }}\n")
    words = ["-f", str(ROOT / "helm" / "grafana-values.yaml"), "--set", "adminPassword=x", "--set",
             r"datasources.datasources\.yaml.datasources[0].url=http://mine:9090"]
    done = subprocess.run([str(build.need("helm")), "template", "gpu-grafana", str(tmp_path), *words],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    [values] = [each for each in yaml.safe_load_all(done.stdout) if each]
    assert values["datasources"]["datasources.yaml"]["datasources"][0]["url"] == "http://mine:9090"
    [provider] = values["dashboardProviders"]["dashboardproviders.yaml"]["providers"]
    folder = pathlib.Path(provider["options"]["path"]).name
    shown = {f"{name}.json": json.loads(one["json"]) for name, one in values["dashboards"][folder].items()}
    assert shown == {board.name: json.loads(board.read_text()) for board in BOARDS}
