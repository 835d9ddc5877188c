"""The chart's files against what they are made from: nothing of deploy/ is forgotten, nothing in the chart is left
over, and every value means a flag that exists."""

import json
import re

import jsonschema_rs
import yaml
from docs import chart, chart_values, write
from tests import ROOT
from tests.real import shipped

from fallow import settings

CHART = ROOT / "charts" / "fallow"
MADE = {path.removeprefix("charts/fallow/") for path in chart.FILES if path.startswith("charts/fallow/")}


def test_every_manifest_is_in_the_chart_or_left_out_with_a_reason():
    """One more is one row: TEMPLATES in docs/chart.py."""
    there = {
        str(path.relative_to(ROOT)) for path in (ROOT / "deploy").rglob("*.yaml")
        if path.name != "kustomization.yaml" and "one-namespace" not in path.parts and "crd" not in path.name
    }
    names = ("20-books.yaml", "20-session-key.yaml")
    patches = {f"deploy/{place}/{name}" for place in chart.COMPONENTS for name in names}
    assert there - patches == {each for each in {*chart.TEMPLATES, *chart.LEFT_OUT} if each.startswith("deploy/")}


def test_nothing_in_the_chart_is_left_over():
    there = {str(path.relative_to(CHART)) for path in CHART.rglob("*") if path.is_file()}
    assert there == MADE | set(chart.BY_HAND)


def test_all_definitions_of_custom_resources_are_in_it():
    made = [path for path in write.DOCUMENTS if path.startswith("deploy/base/") and "crd" in path]
    assert {path.name for path in (CHART / "crds").iterdir()} == {path.rpartition("/")[2] for path in made}


def test_the_other_name_is_the_same_chart():
    """Whoever installs gpu-autoscaler gets every file of fallow, but for the name."""
    other = ROOT / "charts" / "gpu-autoscaler"
    for path in CHART.iterdir():
        if path.name not in ("Chart.yaml", "README.head"):
            assert (other / path.name).resolve() == path, f"charts/gpu-autoscaler/{path.name}"
    assert yaml.safe_load((other / "Chart.yaml").read_text())["name"] == "gpu-autoscaler"


def test_every_flag_is_a_value_or_is_held_by_the_chart():
    mine = {row.flag for row in chart_values.ROWS if row.flag and row.program == "controller"}
    free = {flag.name for flag in chart_values.FREE}
    assert mine | chart_values.HELD | free == {flag.name for flag in settings.FLAGS}
    assert not mine & chart_values.HELD


def test_every_value_is_used_by_a_template():
    """Besides in checks and in words."""
    text = "".join(path.read_text() for path in (CHART / "templates").rglob("*")
                   if path.is_file() and path.name not in ("checks.yaml", "NOTES.txt"))

    def is_used(path):
        parts = path.split(".")
        stems = [".".join(parts[:number]) for number in range(1, len(parts))]
        leaf = re.escape(parts[-1])
        with_stem = any(re.search(rf"(with|range).* \.Values\.{re.escape(stem)}\b", text) for stem in stems)
        is_below = with_stem and re.search(rf"[ (]\.(\w+\.)*{leaf}\b", text) is not None
        is_one_of_all = re.search(rf"range \$\w+, \$\w+ := \.Values\.{re.escape(stems[-1])} ", text) if stems else None
        return f".Values.{path}" in text or is_below or is_one_of_all is not None

    assert [row.path for row in chart_values.ROWS if not is_used(row.path)] == []


def test_defaults_are_in_the_values_and_fit_their_own_schema():
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    jsonschema_rs.validate(json.loads((CHART / "values.schema.json").read_text()), values)
    for row in chart_values.ROWS:
        found = values
        for part in row.path.split("."):
            found = found[part]
        assert found == row.default


def test_what_is_shipped_is_safe():
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert (values["runMode"], values["requirePolicy"], values["bounds"]["enabled"]) == ("dry-run", "", True)
    acting = {"sharing", "extender", "exporter", "admissionWebhook", "cost"}
    assert [name for name in acting if values[name]["enabled"]] == []
    text = "".join(path.read_text() for path in (CHART / "templates").rglob("*.yaml"))
    assert "LoadBalancer" not in text
    assert "privileged: true" not in text


def test_rights_that_nothing_used_are_told_also_those_of_the_hook(tmp_path):
    """What `make rights` asks after all tests on real parts."""
    notes = tmp_path / "rights.jsonl"
    notes.write_text(json.dumps([["patch", "", "nodes"], ["list", "resource.k8s.io", "resourceclaimtemplates"]]))
    unused = shipped.find_unused(notes)
    assert {"base/20-reader.yaml", "webhook/10-role.yaml", "spot-watch/10-role.yaml", shipped.HOOK} <= set(unused)
    assert unused["spot-watch/10-role.yaml"] == [("get", "", "nodes")]
    left = [right for right in unused[shipped.HOOK] if right[2] == "resourceclaimtemplates"]
    assert left == [("delete", "resource.k8s.io", "resourceclaimtemplates")]


# ---- what the specification names ------------------------------------------------------------------------------------


def named_values():
    """`a.{b,c}` is two names, `a.*` whatever is below it."""
    for path in (ROOT / "docs" / "spec").glob("*.md"):
        for part in re.findall(r"^Values of the Helm chart: (.*?)\n\n", path.read_text(), re.MULTILINE | re.DOTALL):
            for name in re.findall(r"`([^`]+)`", part):
                stem, _, leaves = name.partition("{")
                yield from (f"{stem}{leaf}" for leaf in leaves.rstrip("}").split(","))


def test_every_value_that_the_specification_names_is_there():
    paths, named = {row.path for row in chart_values.ROWS}, list(named_values())
    assert len(named) > 70
    missing = [
        name for name in named
        if not any(path == name or path.startswith(f"{name.removesuffix('*').rstrip('.')}.") for path in paths)
    ]
    assert missing == []
