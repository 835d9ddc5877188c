"""Owners told through the commands: by Slack, by a policy's webhook with a secret from a Secret, by mail; on a real
cluster with a real Prometheus and receivers on loopback that check what they get."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json

import pytest
from aiohttp import web

from fallow import names
from tests.real import cluster as clusters
from tests.real import history, scene
from tests.unit.clients import loopback

Scene = scene.Scene


@pytest.fixture
async def stage(cluster: clusters.Cluster, prometheus: history.PrometheusWorld) -> Scene:
    return await Scene(cluster, prometheus).prepare()


async def marks(stage: Scene) -> dict[str, str]:
    return scene.marks_of(await stage.cluster.get("apps/v1", "Deployment", "llm"))


@pytest.mark.accepts("idle", 18)
async def test_while_slack_is_down_no_clock_starts_and_when_it_is_back_the_notice_comes_before_the_pause(
    stage: Scene,
) -> None:
    await stage.deployment(replicas=2)
    await stage.begin()
    answers = loopback.in_turn(*[lambda asked: web.Response(status=500)] * 3, lambda asked: web.Response(text="ok"))
    async with loopback.serve(answers) as inbox:
        slack = {"SLACK_WEBHOOK_URL": f"{inbox.url}/services/T/B/s3cret", "SLACK_CHANNEL": "#gpu"}
        said = await stage.prune("--ack-grace-period", "3600", code=3, **slack)
        assert "the notice was not delivered" in said
        assert "s3cret" not in said
        assert names.PENDING_SINCE not in await marks(stage)
        said = await stage.prune("--ack-grace-period", "3600", **slack)
        assert "told #gpu" in said
        assert (await marks(stage))[names.TOLD] == "#gpu"
        await stage.prune("--ack-grace-period", "3600", **slack)  # in notice: nothing is sent twice
        assert len(inbox.asked) == 4
        made = await stage.cluster.get("apps/v1", "Deployment", "llm")
        assert made["spec"]["replicas"] == 2
        paused = await stage.prune("--ack-grace-period", "0", **slack)  # its time is over
        assert "pause" in paused
    notice, rests = (json.loads(asked.body)["attachments"][0] for asked in inbox.asked[-2:])
    assert notice["title"] == "Idle GPU Detected"
    assert {"title": "Namespace", "value": stage.namespace, "short": True} in notice["fields"]
    assert rests["title"] == "Paused"
    assert (await stage.cluster.get("apps/v1", "Deployment", "llm"))["spec"]["replicas"] == 0


async def test_a_policys_webhook_is_signed_by_a_key_from_a_secret(stage: Scene) -> None:
    await stage.deployment()
    async with loopback.serve(lambda asked: web.Response()) as inbox:
        plain = {"url": f"{inbox.url}/hook", "key": "k3y"}
        data = {key: base64.b64encode(text.encode()).decode() for key, text in plain.items()}
        metadata = {"name": "channels", "namespace": f"{stage.namespace}-own"}
        await stage.cluster.apply({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data})
        refs = {"url": {"name": "channels", "key": "url"}, "hmac_key": {"name": "channels", "key": "key"}}
        channels = [{"name": "books", "type": "webhook", "configSecretRefs": refs}]
        await stage.make_policy(notice={"grace": "1h", "channels": channels})
        await stage.begin()
        await stage.prune()
    [asked] = inbox.asked
    signed = hmac.new(b"k3y", f"{asked.headers['X-Fallow-Timestamp']}.".encode() + asked.body, hashlib.sha256)
    assert asked.headers["X-Fallow-Signature"] == f"sha256={signed.hexdigest()}"
    told, why = json.loads(asked.body), await stage.explain("Deployment/llm")
    assert (told["type"], told["workload"], told["verdict"]) == ("notice", why["workload"], "idle")
    assert told["owner"] == why["owner"]
    assert [(gpu["uuid"], gpu["pod"], gpu["verdict"]) for gpu in told["gpus"]] == [
        (gpu["uuid"], gpu["pod"], gpu["verdict"]) for gpu in why["gpus"]
    ]
    assert [body["spec"] for body in told["patch"].values()] == [{"replicas": 0}]
    assert names.PENDING_SINCE in await marks(stage)


async def test_a_channel_whose_secret_is_not_there_is_named_and_starts_no_clock(stage: Scene) -> None:
    await stage.deployment()
    channels = [{"name": "books", "type": "webhook", "configSecretRefs": {"url": {"name": "nowhere", "key": "url"}}}]
    await stage.make_policy(notice={"channels": channels})
    await stage.begin()
    said = await stage.prune(code=3)
    assert "channel books" in said
    assert names.PENDING_SINCE not in await marks(stage)
    assert "IdleNoticeFailed" in await stage.reasons()
