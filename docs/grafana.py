"""Grafana dashboards as values: a board is rows of panels, a panel asks questions. `draw` makes the JSON that Grafana
reads. What each board shows stands in boards.py."""

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import yaml

WIDTH: Final = 24
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_LAST: Final = {"reduceOptions": {"calcs": ["lastNotNull"]}}
_OPTIONS: Final[Mapping[str, dict[str, Any]]] = {
    "stat": {**_LAST, "colorMode": "value", "graphMode": "area"},
    "piechart": {**_LAST, "legend": {"displayMode": "table", "placement": "right", "values": ["value", "percent"]}},
    "bargauge": {**_LAST, "orientation": "horizontal", "displayMode": "basic"},
    "timeseries": {"tooltip": {"mode": "multi", "sort": "desc"}},
    "table": {}, "heatmap": {"calculate": False}, "state-timeline": {},
}
_AT_ONCE: Final = ("piechart", "bargauge", "table")  # ask for the last value only
_FOLDER: Final = "fallow"
_STACKED: Final = {"stacking": {"mode": "normal"}, "fillOpacity": 30, "lineWidth": 1}


class Query(NamedTuple):
    """`legend`: what a series is called; in a table, the head of its column."""

    promql: str
    legend: str = ""
    unit: str = ""  # of its column, where that is not the panel's


class Panel(NamedTuple):
    """`about`: what a reader might take wrongly. `steps`: colours from these values on, green before. `most`: where a
    bar ends."""

    title: str
    shape: str
    width: int
    queries: tuple[Query, ...]
    unit: str = "none"
    about: str = ""
    decimals: int | None = None
    is_stacked: bool = False
    steps: tuple[tuple[str, float], ...] = ()
    most: float | None = None


class Row(NamedTuple):
    """Panels side by side, of one height."""

    height: int
    panels: tuple[Panel, ...]


class Board(NamedTuple):
    uid: str
    title: str
    about: str
    tags: tuple[str, ...]
    rows: tuple[Row, ...]
    refresh: str = "30s"
    since: str = "now-6h"


def draw(board: Board) -> str:
    drawn, top = list[dict[str, Any]](), 0
    for row in board.rows:
        left = 0
        for panel in row.panels:
            place = {"w": panel.width, "h": row.height, "x": left, "y": top}
            drawn.append({"id": len(drawn) + 1, "gridPos": place, **_draw_panel(panel)})
            left += panel.width
        if left != WIDTH:
            raise ValueError(f"{board.title}: a row of {row.panels[0].title!r} is {left} wide instead of {WIDTH}")
        top += row.height
    source = {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus", "current": {},
              "hide": 0}
    made = {
        "uid": board.uid, "title": board.title, "description": board.about, "tags": list(board.tags),
        "timezone": "utc", "schemaVersion": 39, "version": 1, "editable": True, "refresh": board.refresh,
        "time": {"from": board.since, "to": "now"}, "annotations": {"list": []}, "links": [],
        "templating": {"list": [source]}, "panels": drawn,
    }
    return json.dumps(made, indent=1) + "\n"


def _draw_panel(panel: Panel) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit, "custom": _STACKED if panel.is_stacked else {}}
    if panel.decimals is not None:
        defaults["decimals"] = panel.decimals
    if panel.most is not None:
        defaults |= {"min": 0, "max": panel.most}
    if panel.steps:
        steps = [{"color": "green", "value": None}, *({"color": color, "value": at} for color, at in panel.steps)]
        defaults["thresholds"] = {"mode": "absolute", "steps": steps}
    made = {
        "type": panel.shape, "title": panel.title, "description": panel.about, "datasource": _SOURCE,
        "targets": [_draw_query(panel.shape, at, query) for at, query in enumerate(panel.queries)],
        "options": _OPTIONS[panel.shape], "fieldConfig": {"defaults": defaults, "overrides": _draw_columns(panel)},
    }
    return made if panel.shape != "table" else {**made, "transformations": _join_columns(panel)}


def _draw_query(shape: str, at: int, query: Query) -> dict[str, Any]:
    """Columns of a table are told apart by their letter."""
    made = {"refId": _letter(at), "expr": query.promql, "datasource": _SOURCE}
    if shape == "table":
        return {**made, "instant": True, "format": "table"}
    return {**made, "legendFormat": query.legend, **({"instant": True} if shape in _AT_ONCE else {})}


def _draw_columns(panel: Panel) -> list[dict[str, Any]]:
    return [
        {"matcher": {"id": "byName", "options": query.legend}, "properties": [{"id": "unit", "value": query.unit}]}
        for query in panel.queries if query.unit
    ]


def _join_columns(panel: Panel) -> list[dict[str, Any]]:
    """One line for all queries about the same. A single one's column is called Value, without a letter."""
    letters = [""] if len(panel.queries) == 1 else [f" #{_letter(at)}" for at in range(len(panel.queries))]
    heads = {f"Value{letter}": query.legend for letter, query in zip(letters, panel.queries, strict=True)}
    return [
        {"id": "merge", "options": {}},
        {"id": "organize", "options": {"excludeByName": {"Time": True}, "renameByName": heads}},
    ]


def _letter(at: int) -> str:
    return chr(ord("A") + at)


def make_values(boards: Mapping[str, Board]) -> str:
    """For Grafana's own Helm chart: a Grafana of its own that asks one Prometheus and has these boards."""
    source = {"name": "Prometheus", "type": "prometheus", "access": "proxy", "isDefault": True,
              "url": "http://prometheus-k8s.monitoring.svc.cluster.local:9090"}
    provider = {"name": "fallow", "orgId": 1, "folder": "GPU", "type": "file", "disableDeletion": False,
                "editable": True, "options": {"path": f"/var/lib/grafana/dashboards/{_FOLDER}"}}
    made = {
        "datasources": {"datasources.yaml": {"apiVersion": 1, "datasources": [source]}},
        "dashboardProviders": {"dashboardproviders.yaml": {"apiVersion": 1, "providers": [provider]}},
        "dashboards": {_FOLDER: {name: {"json": draw(board)} for name, board in boards.items()}},
    }
    about = (
        "# Values for Grafana's own Helm chart: a Grafana with these dashboards. Made from the code by `make docs`.\n"
        "# Say your password (adminPassword) and your Prometheus; docs/operators/grafana.md has the command.\n"
    )
    return about + yaml.safe_dump(made, sort_keys=False, width=140)
