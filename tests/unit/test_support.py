"""The page of versions names what the tests run, in the versions that they run."""

import re

import pytest
from docs import pins
from tests import ROOT
from tests.real import build

from fallow.model import kinds

PAGE = (ROOT / "docs" / "operators" / "support.md").read_text()
RUN, PRETENDED = (PAGE.partition(f"## {title}")[2].partition("\n## ")[0] for title in ("Run by", "Pretended by"))


@pytest.mark.parametrize(("name", "version"), [
    ("Kubernetes", build.KUBERNETES), ("etcd", build.ETCD), ("Helm", build.HELM), ("Karpenter", build.KARPENTER),
    ("PostgreSQL", build.POSTGRES), ("TimescaleDB", build.TIMESCALEDB), ("Python", pins.PYTHON),
    ("Prometheus", build.PROMETHEUS.replace("-", " ")), ("runc", build.RUNC.replace("-", " ")),
])
def test_a_version_that_is_run_is_the_one_that_is_built(name, version):
    [row] = re.findall(rf"^\| {name}\b.*$", RUN, re.MULTILINE)
    assert version in row


def test_stand_ins_are_of_the_versions_that_we_speak():
    assert f"moto {build.MOTO}" in PRETENDED
    assert build.KWOK in RUN
    for row in (kinds.SCALED_OBJECT, kinds.KUEUE_WORKLOAD, *(each for each in kinds.KINDS if "kserve" in each.group)):
        [line] = [each for each in PRETENDED.splitlines() if row.kind in each]
        assert all(f"{version}`" in line for version in row.versions), row.kind


def test_what_is_built_for_the_tests_is_on_the_page():
    """A new program in the tests gets a row, or stands beside another."""
    beside = {"kubectl", "kwok", "moto", "kubeconform"}
    rows = " ".join(re.findall(r"^\| ([^|]+)\|", RUN, re.MULTILINE)).lower()
    assert [part.name for part in build.PARTS if part.name not in rows and part.name not in beside] == []
