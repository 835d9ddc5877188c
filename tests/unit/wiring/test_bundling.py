"""Of a part that is too long the end stays, and no half of a secret with it; of a command what the flags know; of pods
the log of each container, wherever they are."""

import json
from typing import Any

import pytest
from aiohttp import web
from tests.unit.clients import loopback

from fallow.model import redaction
from fallow.wiring import bundling
from fallow.wiring.bundling import BundlePart

KEY = "-----BEGIN PRIVATE KEY-----\n" + "c2VjcmV0\n" * 20 + "-----END PRIVATE KEY-----\n"


def test_a_secret_that_stands_where_a_page_is_cut_is_taken_out_whole(monkeypatch):
    monkeypatch.setattr(bundling, "MOST_BYTES", 200)
    part = bundling.clean(BundlePart("a.log", "first\n" + KEY + "x" * 120), redaction.Redactor())
    assert part.text is not None
    assert "c2VjcmV0" not in part.text
    assert part.text.endswith("x" * 120)


def test_the_end_of_a_page_that_is_too_long_stays_and_is_said(monkeypatch):
    monkeypatch.setattr(bundling, "MOST_BYTES", 10)
    part = bundling.clean(BundlePart("a.log", "old " * 10 + "the newest"), redaction.Redactor())
    assert part == BundlePart("a.log", "the newest", "only its end: it is too long")
    tree = bundling.clean(BundlePart("a.json", '["longer than that"]'), redaction.Redactor())
    assert tree == BundlePart("a.json", None, "it is too long")


def test_a_command_is_shown_by_the_table_of_flags_as_arguments_are():
    collector = bundling._Collector(None, [])  # type: ignore[arg-type]
    command = ["/bin/fallow", "run", "--prometheus-token", "hunter22", "--duration=30"]
    told = collector._tell_container({"name": "a", "command": command})
    assert told["command"] == ["/bin/fallow", "run", "--prometheus-token=***", "--duration=30"]
    assert collector.secrets == ["hunter22"], "its log may say it"


def test_a_file_of_settings_is_shown_by_the_table_of_flags_too_and_one_that_is_none_says_why():
    collector = bundling._Collector(None, [])  # type: ignore[arg-type]
    said = "duration: 45\ndaemon-mode: true\nprometheus-token: hunter22\ngpu-resource: [example.com/gpu, b/c]\n"
    told = collector._tell_files({"data": {"settings.yaml": said, "odd.yaml": "prometheus-token: [hunter23]"}})
    assert told["settings.yaml"] == [
        "--duration=45", "--daemon-mode", "--prometheus-token=***", "--gpu-resource=example.com/gpu",
        "--gpu-resource=b/c",
    ]
    assert "odd.yaml: prometheus-token: one value" in told["odd.yaml"]
    assert collector.secrets == ["hunter22"]


def pod(name: str, *containers: str, restarted: str = "") -> dict[str, Any]:
    return {
        "metadata": {"name": name}, "spec": {"containers": [{"name": each} for each in containers]},
        "status": {"containerStatuses": [
            {"name": each, "restartCount": int(each == restarted)} for each in containers
        ]},
    }


PODS = {
    "home": [pod("fallow-scheduler-1", "scheduler", "extender", restarted="extender")],
    "gpu-idle-exporter": [pod("gpu-idle-exporter-1", "gpu-idle-exporter")],
}


def answer(asked: loopback.Asked) -> web.Response:
    """As an API server with pods in two namespaces, which wants to know of which container a log is."""
    if asked.path.endswith("/pods"):
        return web.json_response({"metadata": {}, "items": PODS[asked.path.split("/")[-2]]})
    if not asked.path.endswith("/log"):
        return web.json_response({"message": "no such thing"}, status=404)
    if "container" not in asked.query:
        return web.json_response({"message": "a container name must be specified"}, status=400)
    when = "before" if asked.query.get("previous") else "now"
    return web.Response(text=f"{asked.query['container']} {when}")


@pytest.fixture
async def gathered(tmp_path):
    async with loopback.serve(answer) as server:
        (tmp_path / "config").write_text(json.dumps({
            "clusters": [{"name": "c", "cluster": {"server": server.url}}], "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}], "users": [{"name": "u", "user": {}}],
        }))
        found = await bundling.gather(str(tmp_path / "config"), None, "home")
        yield {part.name: part for part in found.parts}


async def test_each_container_of_each_of_our_pods_has_its_log(gathered):
    logs = {name: part.text for name, part in gathered.items() if name.endswith(".log")}
    assert logs == {
        "home/fallow-scheduler-1.scheduler.log": "scheduler now",
        "home/fallow-scheduler-1.extender.log": "extender now",
        "home/fallow-scheduler-1.extender.before.log": "extender before",
        "gpu-idle-exporter/gpu-idle-exporter-1.gpu-idle-exporter.log": "gpu-idle-exporter now",
    }


async def test_what_is_the_daemons_alone_is_looked_for_where_it_lives(gathered):
    assert {
        "home/lease.json", "home/configmap-gpu-pruner.json", "home/configmap-gpu-pruner-settings.json",
    } <= gathered.keys()
    assert not [name for name in gathered if name.startswith("gpu-idle-exporter/configmap")]
