"""By which flags of the webhook a pod is explained, and that what may not be seen is not taken for none."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest
import yaml
from aiohttp import web
from tests.unit.clients import loopback

from fallow import names
from fallow.clients.kubernetes import api as kube
from fallow.clients.kubernetes import config
from fallow.doors.answers import sharing as telling
from fallow.model import cluster
from fallow.model.seen import Known, Unseen
from fallow.model.sharing import KeptWhole, PartGiven, ShareReason, ShareWhy
from fallow.settings import cost_enforcement
from fallow.settings.readers import UsageError
from fallow.wiring import share_why

HOME, GROUP = "gpu", names.GROUP
POD = {
    "metadata": {"name": "llm-0", "namespace": "ml", "annotations": {f"{GROUP}/gpu-memory": "8Gi"}},
    "spec": {"containers": [{"image": "vllm", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]},
}
POLICY = {
    "metadata": {"name": "small", "uid": "p-1", "generation": 1, "resourceVersion": "1"},
    "spec": {"strategy": "mig", "mode": "enforce"},
}
NODE = {
    "metadata": {"name": "cut", "uid": "n-1", "resourceVersion": "1",
                 "labels": {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}},
    "spec": {}, "status": {"conditions": [{"type": "Ready", "status": "True"}],
                           "allocatable": {"nvidia.com/mig-1g.10gb": "3"}},
}


class Answers:
    """An API server with one pod, one policy and one node; `flags`: of the webhook that is deployed, None: none is."""

    def __init__(self, flags: list[str] | None, refuses: tuple[str, ...] = ()) -> None:
        self.flags, self.refuses = flags, refuses

    def __call__(self, asked: loopback.Asked) -> web.Response:
        place = asked.path.rpartition("/")[2]
        if any(word in asked.path for word in self.refuses):
            return web.json_response({"message": "no"}, status=403)
        found: dict[str, Any] | None = {
            "llm-0": POD, "ml": {"metadata": {"name": "ml"}}, names.WEBHOOK: self.deployment(),
            "gpusharingpolicies": self.list_of(POLICY), "nodes": self.list_of(NODE),
            "resourceclaimtemplates": self.list_of(), "leases": self.list_of(), "resourceslices": self.list_of(),
            "deviceclasses": self.list_of(), "configmaps": self.list_of(),
        }.get(place)
        return web.json_response(found or {"message": "not found"}, status=200 if found else 404)

    def deployment(self) -> dict[str, Any] | None:
        started = {"command": ["fallow", "webhook"], "args": self.flags}
        return None if self.flags is None else {"spec": {"template": {"spec": {"containers": [started]}}}}

    def list_of(self, *items: dict[str, Any]) -> dict[str, Any]:
        return {"metadata": {"resourceVersion": "1"}, "items": list(items)}


async def explain(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, flags: list[str] | None, *refuses: str
) -> ShareWhy:
    monkeypatch.setenv("POD_NAMESPACE", HOME)
    async with loopback.serve(Answers(flags, refuses)) as server:
        written = {
            "apiVersion": "v1", "kind": "Config", "current-context": "c", "users": [{"name": "u", "user": {}}],
            "clusters": [{"name": "c", "cluster": {"server": server.url}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u", "namespace": HOME}}],
        }
        (tmp_path / "kubeconfig").write_text(yaml.safe_dump(written))
        async with share_why.open_explainer(str(tmp_path / "kubeconfig"), None) as explainer:
            found = await explainer.explain("ml", "llm-0", 1_794_900_000.0)
    assert found is not None
    return found


@pytest.mark.parametrize(("flags", "verdict"), [
    (["--rewrite-requests=true"], ("part", ShareReason.Shared)),
    (["--rewrite-requests", "true"], ("part", ShareReason.Shared)),
    ([], ("audited", None)),
    (["--rewrite-requests=true", "--exempt-namespaces=ml|kube-system"], ("whole", ShareReason.ExemptNamespace)),
    (["--rewrite-requests=true", "--scheduler-name=ours"], ("whole", None)),
    (["--rewrite-requests=true", "--sharing-backend=dra"], ("whole", ShareReason.ClaimsNotServed)),
], ids=["enforced", "two words", "default", "exempt", "scheduler", "dra"])
async def test_a_pod_is_explained_by_the_flags_of_the_webhook_that_runs(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, flags: list[str], verdict: tuple[str, ShareReason | None]
) -> None:
    why = await explain(tmp_path, monkeypatch, flags)
    told = telling.tell(why, cluster.Ref("apps", "v1", "Deployment", "ml", "llm", "u"), ())
    assert (told.next, told.assumed) == (verdict[0], None)
    assert verdict[1] is None or why.verdict.reason is verdict[1]


@pytest.mark.parametrize(("flags", "refuses", "because"), [
    (None, (), f"there is no Deployment {names.WEBHOOK} in {HOME}"),
    (["--rewrite-requests=true"], (names.WEBHOOK,), "no"),
    (["--of-another-version=1"], (), "--of-another-version is no flag that is known"),
    (["--rewrite-requests"], (), "--rewrite-requests has no value"),
], ids=["none", "forbidden", "other version", "cut off"])
async def test_flags_that_are_not_seen_are_said_to_be_assumed(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, flags: list[str] | None, refuses: tuple[str, ...],
    because: str,
) -> None:
    why = await explain(tmp_path, monkeypatch, flags, *refuses)
    assert isinstance(why.verdict, PartGiven)
    assert because in why.assumed
    told = telling.tell(why, cluster.Ref("apps", "v1", "Deployment", "ml", "llm", "u"), ())
    assert dict(telling.list_lines(told, 0.0))["webhook"] == why.assumed


@pytest.mark.parametrize("flags", [None, ["--rewrite-requests=true", "--sharing-backend=dra"]], ids=["assumed", "dra"])
async def test_templates_that_may_not_be_listed_are_not_seen_and_not_none(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, flags: list[str] | None
) -> None:
    why = await explain(tmp_path, monkeypatch, flags, "resourceclaimtemplates")
    assert isinstance(why.verdict, KeptWhole)
    assert why.verdict.reason is ShareReason.NotLoaded
    assert "claims are not seen" in why.verdict.because


async def test_templates_do_not_matter_where_the_webhook_gives_no_claims(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    why = await explain(tmp_path, monkeypatch, ["--rewrite-requests=true"], "resourceclaimtemplates")
    assert why.verdict.reason is ShareReason.Shared


def test_the_shipped_webhook_is_read_as_it_is_started() -> None:
    page = pathlib.Path(__file__).parents[3] / "deploy" / "webhook" / "30-webhook.yaml"
    made = next(one for one in yaml.safe_load_all(page.read_text()) if one and one["kind"] == "Deployment")
    (container,) = made["spec"]["template"]["spec"]["containers"]
    read = cost_enforcement.read_webhook_arguments([*container["command"], *container["args"]], HOME)
    assert (read.sharing.rewrites, read.exempt.fullmatch(HOME) is not None) == (False, True)
    with pytest.raises(UsageError):
        cost_enforcement.read_webhook_arguments(["sleep", "1"], HOME)


async def test_a_webhook_of_another_namespace_is_not_ours(tmp_path: pathlib.Path) -> None:
    async with loopback.serve(Answers(None)) as server, kube.Api(config.Access(server=server.url, context="")) as api:
        found = await share_why.read_terms(api, "elsewhere")
    assert isinstance(found, Unseen)
    assert not isinstance(found, Known)
