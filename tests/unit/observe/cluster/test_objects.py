"""What is remembered of an object: who undid our pause of it."""

import json
from typing import Any

import msgspec
import pytest

from fallow import names
from fallow.clients.kubernetes import api as kube
from fallow.model import stops
from fallow.observe.cluster import objects

PAUSED = "2026-11-15T10:00:00Z"
DEPLOYMENTS = kube.Resource("apps", "v1", "deployments", "Deployment", True, True)


REPLICAS = {"f:spec": {"f:replicas": {}}}
LABELS = {"f:metadata": {"f:labels": {"f:team": {}}}}
LATER, LAST = "2026-11-15T11:00:00Z", "2026-11-15T12:00:00Z"


def wrote(manager: str, at: str | None, owned: dict[str, Any] = REPLICAS, part: str = "") -> dict[str, Any]:
    entry = {"manager": manager, "operation": "Update", "fieldsType": "FieldsV1", "fieldsV1": owned}
    return entry | ({"time": at} if at else {}) | ({"subresource": part} if part else {})


@pytest.mark.parametrize(
    ("entries", "writer"),
    [
        ([], ""),
        ([wrote("fallow", PAUSED)], ""),
        ([wrote("kubectl", LATER, LABELS)], ""),
        ([wrote("argocd", PAUSED), wrote("kubectl", LAST, LABELS)], "argocd"),
        ([wrote("argocd", LATER), wrote("kubectl", LAST)], "kubectl"),
        ([wrote("kube-controller-manager", LAST, part="status")], ""),
        ([wrote("kubectl", None, part="scale"), wrote("edit", LAST, LABELS)], "kubectl"),
        ([wrote("fallow-resume", LAST), wrote("kubectl", "soon")], "kubectl"),
    ],
    ids=[
        "nobody", "only-us", "written-elsewhere", "in-the-same-second", "the-last-of-several", "a-status",
        "through-scale", "an-unreadable-time",
    ],
)
def test_who_undid_a_pause_owns_its_field_now(entries: list[dict[str, Any]], writer: str) -> None:
    assert _see(_meta(entries, {names.PAUSED_AT: PAUSED})).writer == writer


@pytest.mark.parametrize(
    ("entries", "is_ours"),
    [
        ([], False), ([wrote("fallow", PAUSED)], True), ([wrote("fallow-resume", LATER)], True),
        ([wrote("fallow", PAUSED), wrote("kubectl", LATER)], False), ([wrote("fallow", PAUSED, LABELS)], False),
        ([wrote("fallow", PAUSED), wrote("kubectl", LATER, LABELS)], True),
    ],
    ids=["nobody", "the-pause", "its-way-back", "others-too", "elsewhere", "others-elsewhere"],
)
def test_what_our_pause_wrote_is_ours_until_somebody_writes_it(entries: list[dict[str, Any]], is_ours: bool) -> None:
    assert _see(_meta(entries, {names.PAUSED_AT: PAUSED})).is_ours is is_ours


ROLES = ("/spec/roles/name=*/spec/replicas",)
SIZE = {"f:spec": {"f:replicas": {}}}
OWNED_ROLES = {
    "its-size": ({'k:{"name":"prefill"}': SIZE}, True),
    "its-name": ({'k:{"name":"prefill"}': {".": {}, "f:name": {}}}, False),
    "as-a-whole": ({}, True),
}


@pytest.mark.parametrize(("owned", "is_ours"), OWNED_ROLES.values(), ids=OWNED_ROLES)
def test_members_of_a_list_are_owned_one_by_one_or_as_a_whole(owned: dict[str, Any], is_ours: bool) -> None:
    said = {names.ORIGINAL_STATE: json.dumps({"v": 1, "fields": {"/spec/roles/name=prefill/spec/replicas": 2}})}
    creator = {"f:spec": {"f:roles": {'k:{"name":"prefill"}': {".": {}, "f:name": {}}}}}
    entries = [wrote("kubectl", PAUSED, creator), wrote("fallow", LATER, {"f:spec": {"f:roles": owned}})]
    seen = _see(_meta(entries, said), ROLES)
    assert (seen.is_ours, seen.writer) == (is_ours, "")


@pytest.mark.parametrize(
    ("recorded", "writer"),
    [({"/metadata/annotations/stop": None}, ""), ({"/spec/replicas": 3}, "kubectl"), ({"/spec": None}, "kubectl")],
    ids=["an-annotation", "the-count", "above-the-count"],
)
def test_of_several_ways_to_pause_the_one_that_was_recorded_counts(recorded: dict[str, Any], writer: str) -> None:
    """Whoever set a size at any time did not undo a stop by annotation; and one that is gone has no owner."""
    said = {names.ORIGINAL_STATE: json.dumps({"v": 1, "fields": recorded})}
    seen = _see(_meta([wrote("kubectl", LATER)], said), ("/metadata/annotations/stop", "/spec/replicas"))
    assert seen.writer == writer


@pytest.mark.parametrize(
    ("roles", "writer"),
    [
        ({}, "kubectl"), ({'k:{"name":"decode"}': {"f:spec": {"f:replicas": {}}}}, "kubectl"),
        ({'k:{"name":"decode"}': {"f:spec": {"f:template": {}}}}, ""),
    ],
    ids=["the-list-as-a-whole", "a-member-by-its-name", "something-else-of-it"],
)
def test_who_undid_the_pause_of_a_list_is_found_in_it(roles: dict[str, Any], writer: str) -> None:
    said = {names.ORIGINAL_STATE: json.dumps({"v": 1, "fields": {"/spec/roles/name=decode/spec/replicas": 4}})}
    meta = _meta([wrote("kubectl", LATER, {"f:spec": {"f:roles": roles}})], said)
    assert _see(meta, (stops.ROLE_SIZES,)).writer == writer


def test_what_is_paused_through_scale_alone_is_undone_through_scale() -> None:
    sized = {"f:spec": {"f:size": {}}}
    entries = [wrote("kubectl", None, sized, "scale"), wrote("operator", LAST, sized)]
    assert _see(_meta(entries, {names.PAUSED_AT: PAUSED}), ()).writer == "kubectl"


def test_of_what_is_not_paused_no_writer_is_asked() -> None:
    assert _see(_meta([wrote("kubectl", LATER)], {})).writer == ""


def _meta(entries: list[dict[str, Any]], said: dict[str, str]) -> dict[str, Any]:
    return {"uid": "u", "name": "llm", "namespace": "ml", "annotations": said, "managedFields": entries}


def _see(meta: dict[str, Any], writes: tuple[str, ...] = ("/spec/replicas",)) -> objects.Seen:
    item = msgspec.json.decode(json.dumps({"metadata": meta, "spec": {"replicas": 1}}), type=objects.Item)
    return objects.see(item, DEPLOYMENTS, ("/spec/replicas",), writes)


def test_what_is_nested_too_deep_to_be_kept_cannot_be_read() -> None:
    content = {"metadata": {"uid": "u", "name": "evil"}, "spec": {"selector": json.loads("[" * 200 + "]" * 200)}}
    item = msgspec.json.decode(json.dumps(content), type=objects.Item)
    with pytest.raises(ValueError, match="deep"):
        objects.see(item, DEPLOYMENTS, ["/spec/selector"])
    assert objects.see(item, DEPLOYMENTS, ["/spec/replicas"]).body == {"spec": {}}
