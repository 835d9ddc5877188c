"""Every alert of deploy/monitoring over a timeline of its own, by Prometheus' own evaluator (`promtool test rules`):
quiet before, said with its words when it holds for long enough, and quiet again."""

from __future__ import annotations

import json
import pathlib
import subprocess
import types
from collections.abc import Mapping
from typing import Any, NamedTuple

import pytest
import yaml

from tests import ROOT
from tests.real import build
from tests.real.conftest import need

RULES = [
    group for part in yaml.safe_load_all((ROOT / "deploy" / "monitoring" / "20-rules.yaml").read_text()) if part
    for group in part["spec"]["groups"]
]
ALERTS = {rule["alert"]: rule for group in RULES for rule in group["rules"]}
LEADS = {'fallow_idle_leader{instance="a"}': "1x200", 'fallow_idle_leader{instance="b"}': "0x200"}


class Timeline(NamedTuple):
    """`series`: a value a minute, as promtool writes them; `quiet`: minutes at which it is not said; `at`: one at which
    it is, with these words and labels."""

    series: dict[str, str]
    quiet: tuple[int, ...]
    at: int
    says: str
    labels: Mapping[str, str] = types.MappingProxyType({})


TIMELINES = {
    "GpuPrunerGone": Timeline(
        {"fallow_build_info": "1x5 _x40 1x30"}, (4, 20, 60), 32, "no gpu-pruner is being scraped",
    ),
    "GpuPrunerNoLeader": Timeline(
        {'fallow_idle_leader{instance="a"}': "1x5 0x40 1x30", 'fallow_idle_leader{instance="b"}': "0x80"},
        (4, 18, 50), 23, "no replica of gpu-pruner holds the Lease, so nothing is judged",
    ),
    "GpuPrunerTwoLeaders": Timeline(
        {'fallow_idle_leader{instance="a"}': "1x60", 'fallow_idle_leader{instance="b"}': "0x5 1x15 0x30"},
        (4, 8, 30), 14, "2 replicas of gpu-pruner believe that they hold the Lease",
    ),
    "GpuPrunerNoGoodCycle": Timeline(
        {'fallow_idle_last_success_timestamp_seconds{instance="a"}': "60x45 2700x20",
         'fallow_idle_last_success_timestamp_seconds{instance="b"}': "0x80"}, (30, 34, 50), 38,
        "the last good cycle of gpu-pruner was 37m 0s ago",
    ),
    "GpuPrunerSourceDown": Timeline(
        {**LEADS, 'fallow_idle_source_up{instance="a",source="prometheus"}': "1x5 0x40 1x30",
         'fallow_idle_source_up{instance="b",source="prometheus"}': "1x80"}, (4, 18, 50), 23,
        "prometheus does not answer gpu-pruner in full, so no GPU is called idle", {"source": "prometheus"},
    ),
    "GpuPrunerCannotTell": Timeline(
        {**LEADS, 'fallow_idle_gpus{instance="a",state="unknown"}': "10x5 60x80 10x30",
         'fallow_idle_gpus{instance="a",state="idle"}': "20x120",
         'fallow_idle_gpus{instance="a",state="active"}': "20x120",
         'fallow_idle_gpus{instance="b",state="active"}': "900x120"}, (4, 60, 90), 70,
        "of 60% of the allocated GPUs it cannot be told whether they are used",
    ),
    "GpuPrunerSignalLost": Timeline(
        {**LEADS, 'fallow_idle_lost_signals{instance="a",signal="dram"}': "0x5 1x80 0x30"}, (4, 60, 90), 70,
        "dram could not be asked for, so GPUs are judged without it", {"signal": "dram"},
    ),
    "GpuPrunerFrozen": Timeline(
        {'fallow_idle_frozen{instance="a"}': "0x5 1x80 0x30"}, (4, 60, 90), 70,
        "gpu-pruner has paused nothing for an hour, because the idle share jumped or somebody said so",
    ),
    "GpuPrunerPausesFail": Timeline(
        {'gpu_pruner_scale_failures_total{instance="a"}': "0x10 2x120"}, (9, 13, 80), 20,
        "2 pauses failed within the last hour",
    ),
    "GpuPrunerResumesFail": Timeline(
        {'fallow_idle_actions_total{instance="a",action="resume",result="failed"}': "0x10 2x120",
         'fallow_idle_actions_total{instance="a",action="pause",result="failed"}': "0x10 9x120"}, (9, 13, 80), 20,
        "2 resumes failed within the last hour: somebody waits for a workload",
    ),
    "GpuPrunerNoticesFail": Timeline(
        {'fallow_idle_notices_total{instance="a",channel="slack",result="failed"}': "0x10 2x120",
         'fallow_idle_notices_total{instance="a",channel="mail",result="done"}': "0x10 9x120"}, (9, 13, 80), 20,
        "2 notices by slack failed within the last hour", {"channel": "slack"},
    ),
    "GpuPrunerIsFought": Timeline(
        {'fallow_idle_fights_total{instance="a",kind="Deployment"}': "0x10 2x10 3x120"}, (9, 15), 25,
        "3 pauses of Deployment were undone by others within a day", {"kind": "Deployment"},
    ),
    "GpuPrunerWatchOld": Timeline(
        {'fallow_watch_age_seconds{instance="a",resource="pods"}': "0+60x40 0x30"}, (14, 29, 50), 32,
        "the API server has said nothing about pods for 32m 0s", {"resource": "pods"},
    ),
    "GpuPrunerForbidden": Timeline(
        {'fallow_api_requests_total{instance="a",verb="patch",code="403"}': "0+1x100 100x90",
         'fallow_api_requests_total{instance="a",verb="list",code="403"}': "0+9x100"}, (1, 58, 175), 80,
        "the API server refused 60 writes (patch) of gpu-pruner within an hour", {"verb": "patch"},
    ),
    "GpuPrunerLarge": Timeline(
        {'process_resident_memory_bytes{instance="a"}': "100000000x5 524288000x40 100000000x30",
         'process_resident_memory_bytes{instance="other"}': "9000000000x80", 'fallow_build_info{instance="a"}': "1x80"},
        (4, 18, 50), 23, "gpu-pruner at a uses 500MiB of its 512 MiB", {"instance": "a"},
    ),
    "GpuPrunerRepartitionFailed": Timeline(
        {**LEADS, 'gpu_autoscaler_stuck_nodes{instance="a"}': "0x5 2x40 0x30",
         'gpu_autoscaler_stuck_nodes{instance="b"}': "9x80"}, (4, 9, 50), 14,
        "the GPUs of 2 nodes were to be cut or shared anew, and their old layout did not come back",
    ),
}


def test_every_alert_has_a_timeline():
    assert TIMELINES.keys() == ALERTS.keys()


@pytest.fixture(scope="module")
def promtool(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """All timelines in one run: what promtool says of each."""
    need("promtool")
    folder = tmp_path_factory.mktemp("alerts")
    (folder / "rules.yaml").write_text(yaml.safe_dump({"groups": RULES}))
    return {name: _try(folder, name) for name in TIMELINES}


def _try(folder: pathlib.Path, name: str) -> str:
    """"" where all is as it should be."""
    line, rule = TIMELINES[name], ALERTS[name]
    said = {
        "exp_labels": {**line.labels, **rule["labels"]},
        "exp_annotations": {"summary": line.says, "runbook": rule["annotations"]["runbook"]},
    }
    asked = [{"eval_time": f"{minute}m", "alertname": name, "exp_alerts": []} for minute in line.quiet]
    asked.append({"eval_time": f"{line.at}m", "alertname": name, "exp_alerts": [said]})
    series = [{"series": key, "values": values} for key, values in line.series.items()]
    test = {"rule_files": ["rules.yaml"], "evaluation_interval": "1m",
            "tests": [{"interval": "1m", "input_series": series, "alert_rule_test": asked}]}
    file = folder / f"{name}.yaml"
    file.write_text(json.dumps(test))
    command = [str(build.need("promtool")), "test", "rules", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return "" if done.returncode == 0 else done.stdout + done.stderr


@pytest.mark.parametrize("name", TIMELINES)
def test_an_alert_is_said_when_it_holds_and_only_then(promtool, name):
    assert promtool[name] == ""
