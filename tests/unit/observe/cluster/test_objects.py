"""What is remembered of an object: who else wrote on it after we paused it."""

import json

import msgspec
import pytest

from fallow import names
from fallow.clients.kubernetes import api as kube
from fallow.observe.cluster import objects

PAUSED = "2026-11-15T10:00:00Z"
DEPLOYMENTS = kube.Resource("apps", "v1", "deployments", "Deployment", True, True)


def wrote(manager: str, at: str | None, part: str = "") -> dict[str, str]:
    entry = {"manager": manager, "operation": "Update", "fieldsType": "FieldsV1"}
    return entry | ({"time": at} if at else {}) | ({"subresource": part} if part else {})


@pytest.mark.parametrize(
    ("entries", "writer"),
    [
        ([], ""),
        ([wrote("fallow", PAUSED)], ""),
        ([wrote("kubectl", "2026-11-15T09:00:00Z")], ""),
        (
            [wrote("kubectl", "2026-11-15T11:00:00Z"), wrote("argocd-controller", "2026-11-15T12:00:00Z")],
            "argocd-controller",
        ),
        ([wrote("kube-controller-manager", "2026-11-15T12:00:00Z", "status")], ""),
        ([wrote("kube-controller-manager", "2026-11-15T12:00:00Z", "scale")], "kube-controller-manager"),
        ([wrote("fallow-resume", "2026-11-15T12:00:00Z"), wrote("kubectl", "soon")], ""),
    ],
    ids=[
        "nobody", "only-us", "before-the-pause", "the-last-one", "a-status", "an-autoscaler",
        "us-and-an-unreadable-time",
    ],
)
def test_who_else_wrote_since_the_pause(entries: list[dict[str, str]], writer: str) -> None:
    meta = {
        "uid": "u", "name": "llm", "namespace": "ml", "annotations": {names.PAUSED_AT: PAUSED}, "managedFields": entries
    }
    assert _see(meta).writer == writer


def test_of_what_is_not_paused_no_writer_is_asked() -> None:
    meta = {"uid": "u", "name": "llm", "namespace": "ml", "managedFields": [wrote("kubectl", "2026-11-15T11:00:00Z")]}
    assert _see(meta).writer == ""


def _see(meta: dict[str, object]) -> objects.Seen:
    item = msgspec.json.decode(json.dumps({"metadata": meta, "spec": {"replicas": 1}}), type=objects.Item)
    return objects.see(item, DEPLOYMENTS, ("/spec/replicas",))
