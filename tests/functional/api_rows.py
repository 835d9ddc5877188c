"""Single requests to an API server, and what must come of each: the table of tests/functional/test_api.py.

They are made on a small scene: a Deployment `d`, a Scalable `s`, a ConfigMap `c`, a Lease `l`; {ns} is the test's own
namespace.
"""

from __future__ import annotations

from typing import Any

import msgspec

Object = dict[str, Any]
MAPS, PODS = "/api/v1/namespaces/{ns}/configmaps", "/api/v1/namespaces/{ns}/pods"
DEPLOYS, SCALES = "/apis/apps/v1/namespaces/{ns}/deployments", "/apis/example.com/v1/namespaces/{ns}/scalables"
LEASES, JOBS = "/apis/coordination.k8s.io/v1/namespaces/{ns}/leases", "/apis/batch/v1/namespaces/{ns}/jobs"
EVENTS, OLD_EVENTS = "/apis/events.k8s.io/v1/namespaces/{ns}/events", "/api/v1/namespaces/{ns}/events"
NOBODY = "00000000-0000-0000-0000-000000000000"
PARTIAL = "application/json;as=PartialObjectMetadata{};g=meta.k8s.io;v=v1,application/json"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"


def deployment(name: str, replicas: int | None = 3, **more: Any) -> Object:
    container = {"name": "main", "image": "example.invalid/app:1"}
    template = {"metadata": {"labels": {"app": name}}, "spec": {"containers": [container]}}
    spec: Object = {"selector": {"matchLabels": {"app": name}}, "template": template, **more}
    if replicas is not None:
        spec["replicas"] = replicas
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}


def scalable(name: str, **spec: Any) -> Object:
    return {"apiVersion": "example.com/v1", "kind": "Scalable", "metadata": {"name": name}, "spec": spec}


def pod(name: str, **labels: str) -> Object:
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": {"containers": [{"name": "main", "image": "example.invalid/app:1"}]},
    }


def named(name: str, **more: Any) -> Object:
    return {"metadata": {"name": name}, **more}


def event(name: str, **more: Any) -> Object:
    regarding = {"apiVersion": "v1", "kind": "Pod", "namespace": "default", "name": "p", "uid": "u"}
    return {
        "metadata": {"name": name}, "eventTime": "2026-05-04T12:00:00.123456Z", "type": "Normal", "reason": "Looked",
        "action": "look", "reportingController": "fallow", "reportingInstance": "test", "regarding": regarding,
        "note": "hello", **more,
    }


class Row(msgspec.Struct):
    """One request and what must come of it: code, reason, and `fields`: JSON pointer -> value in the answer."""

    id: str
    method: str
    path: str
    body: Any = None
    how: str = ""
    code: int = 200
    reason: str | None = None
    fields: dict[str, Any] = {}
    query: dict[str, str] = {}
    accept: str = "application/json"
    says: str = ""
    warns: str = ""


STRICT = {"fieldValidation": "Strict"}
ROWS = [
    # ---- create
    Row("create", "POST", MAPS, named("x", data={"a": "b"}), code=201, fields={"/kind": "ConfigMap", "/data/a": "b",
        "/metadata/generation": None}),
    Row("create-again", "POST", MAPS, named("c"), code=409, reason="AlreadyExists",
        says='configmaps "c" already exists'),
    Row("create-bad-name", "POST", MAPS, named("a_b"), code=422, reason="Invalid",
        fields={"/details/causes/0/field": "metadata.name"}),
    Row("create-nameless", "POST", MAPS, {"metadata": {}}, code=422, reason="Invalid",
        fields={"/details/causes/0/field": "metadata.name"}),
    Row("create-elsewhere", "POST", MAPS, {"metadata": {"name": "x", "namespace": "default"}}, code=400,
        reason="BadRequest", says="does not match"),
    Row("create-nowhere", "POST", "/api/v1/namespaces/nowhere/configmaps", named("x"), code=404, reason="NotFound",
        fields={"/details/kind": "namespaces"}),
    Row("create-other-kind", "POST", MAPS, {"apiVersion": "v1", "kind": "Pod", **named("x")}, code=400,
        reason="BadRequest"),
    Row("create-a-list", "POST", MAPS, [1], code=400, reason="BadRequest"),
    Row("create-with-version", "POST", MAPS, {"metadata": {"name": "x", "resourceVersion": "3"}}, code=500,
        says="resourceVersion should not be set"),
    Row("create-dry", "POST", MAPS, named("x"), code=201, query={"dryRun": "All"}, fields={"/metadata/name": "x"}),
    Row("create-defaults", "POST", DEPLOYS, deployment("x", None), code=201,
        fields={"/spec/replicas": 1, "/metadata/generation": 1}),
    Row("create-job-defaults", "POST", JOBS,
        named("x", spec={"template": {"spec": {"restartPolicy": "Never", **pod("x")["spec"]}}}), code=201,
        fields={"/spec/suspend": False, "/spec/parallelism": 1}),
    Row("create-unknown-strict", "POST", DEPLOYS, deployment("x", bogus=1), code=400, reason="BadRequest", query=STRICT,
        says='unknown field "spec.bogus"'),
    Row("create-unknown", "POST", DEPLOYS, deployment("x", bogus=1), code=201, fields={"/spec/bogus": None},
        warns="spec.bogus"),
    Row("create-no-selector", "POST", DEPLOYS, named("x", spec={"template": pod("x")}), code=422, reason="Invalid"),
    Row("create-no-containers", "POST", PODS, named("x", spec={"containers": []}), code=422,
        fields={"/details/causes/0/field": "spec.containers"}),
    Row("create-pod", "POST", PODS, pod("x"), code=201,
        fields={"/status/phase": "Pending", "/spec/restartPolicy": "Always"}),
    Row("create-custom", "POST", SCALES, scalable("x", size=2, template={"any": 1}), code=201,
        fields={"/spec/template/any": 1, "/metadata/generation": 1}),
    Row("create-custom-status", "POST", SCALES, {**scalable("x"), "status": {"replicas": 9}}, code=201,
        fields={"/status": None}),
    Row("create-custom-kindless", "POST", SCALES, named("x", spec={}), code=400, reason="BadRequest"),
    Row("create-custom-unknown-strict", "POST", SCALES, scalable("x", bogus=1), code=400, query=STRICT,
        says='unknown field "spec.bogus"'),
    Row("create-custom-unknown", "POST", SCALES, scalable("x", bogus=1), code=201, fields={"/spec/bogus": None},
        warns="spec.bogus"),
    Row("create-custom-type", "POST", SCALES, scalable("x", size="three"), code=422, fields={
        "/details/causes/0/field": "spec.size", "/details/causes/0/reason": "FieldValueTypeInvalid"}),
    Row("create-number-as-label", "POST", MAPS, {"metadata": {"name": "x", "labels": {"a": 1}}}, code=400,
        reason="BadRequest"),
    Row("create-custom-number-as-label", "POST", SCALES,
        {**scalable("x"), "metadata": {"name": "x", "labels": {"a": 1}}}, code=400),
    Row("create-text-as-metadata", "POST", MAPS, {"metadata": "x"}, code=400, reason="BadRequest"),
    Row("create-text-as-spec", "POST", DEPLOYS, {"metadata": {"name": "x"}, "spec": "x"}, code=400,
        reason="BadRequest"),
    Row("define-nothing", "POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", named("x.y.z", spec={}),
        code=422),
    Row("delete-oddly", "DELETE", f"{MAPS}/c", {"preconditions": 1}, code=400, reason="BadRequest"),
    # ---- read
    Row("get", "GET", f"{DEPLOYS}/d", fields={"/kind": "Deployment", "/apiVersion": "apps/v1", "/spec/replicas": 3}),
    Row("get-absent", "GET", f"{DEPLOYS}/nobody", code=404, reason="NotFound",
        says='deployments.apps "nobody" not found', fields={"/details/kind": "deployments"}),
    Row("get-no-resource", "GET", "/apis/apps/v1/nonsense", code=404, reason="NotFound"),
    Row("get-no-group", "GET", "/apis/foo/v1/nonsense", code=404),
    Row("get-no-path", "GET", "/nope", code=404),
    Row("get-metadata", "GET", f"{MAPS}/c", accept=PARTIAL.format(""),
        fields={"/kind": "PartialObjectMetadata", "/data": None, "/metadata/name": "c"}),
    Row("get-not-acceptable", "GET", f"{MAPS}/c", accept="text/plain", code=406, reason="NotAcceptable"),
    Row("list-metadata", "GET", SCALES, accept=PARTIAL.format("List"), fields={
        "/kind": "PartialObjectMetadataList", "/items/0/kind": "PartialObjectMetadata", "/items/0/spec": None,
            "/items/0/metadata/name": "s"}),
    Row("list-custom", "GET", SCALES, fields={"/kind": "ScalableList", "/items/0/kind": "Scalable",
        "/items/0/apiVersion": "example.com/v1"}),
    Row("list-built-in", "GET", DEPLOYS,
        fields={"/kind": "DeploymentList", "/items/0/kind": None, "/items/0/metadata/name": "d"}),
    Row("list-by-name", "GET", MAPS, query={"fieldSelector": "metadata.name=c"},
        fields={"/items/0/metadata/name": "c", "/items/1": None}),
    Row("list-not-by-name", "GET", MAPS, query={"fieldSelector": "metadata.name!=c,metadata.name!=kube-root-ca.crt"},
        fields={"/items/0": None}),
    Row("list-by-data", "GET", MAPS, query={"fieldSelector": "data.x=y"}, code=400, reason="BadRequest"),
    Row("list-pods-by-odd-field", "GET", PODS, query={"fieldSelector": "spec.foo=x"}, code=400,
        says="field label not supported: spec.foo"),
    Row("list-custom-by-spec", "GET", SCALES, query={"fieldSelector": "spec.size=3"}, code=400,
        says="field label not supported: spec.size"),
    Row("list-bad-labels", "GET", MAPS, query={"labelSelector": "a in b"}, code=400, reason="BadRequest",
        says="unable to parse requirement"),
    Row("list-bad-limit", "GET", MAPS, query={"limit": "x"}, code=400, reason="BadRequest"),
    Row("list-bad-token", "GET", MAPS, query={"limit": "1", "continue": "garbage"}, code=400, reason="BadRequest",
        says="continue key is not valid"),
    Row("list-future", "GET", MAPS, query={"resourceVersion": "99999999"}, code=504, reason="Timeout"),
    Row("table", "GET", MAPS, accept=TABLE, query={"fieldSelector": "metadata.name=c"}, fields={
        "/kind": "Table", "/columnDefinitions/0/name": "Name", "/rows/0/cells/0": "c", "/rows/0/cells/1": 1,
        "/rows/0/object/kind": "PartialObjectMetadata"}),
    Row("table-custom", "GET", SCALES, accept=TABLE, query={"includeObject": "None"}, fields={
        "/columnDefinitions/1/name": "Age", "/rows/0/cells/0": "s", "/rows/0/object": None}),
    Row("table-deployments", "GET", f"{DEPLOYS}/d", accept=TABLE,
        fields={"/columnDefinitions/1/name": "Ready", "/rows/0/cells/1": "0/3"}),
    # ---- merge patches
    Row("merge", "PATCH", f"{DEPLOYS}/d", {"spec": {"replicas": 0}}, "merge",
        fields={"/spec/replicas": 0, "/metadata/generation": 2}),
    Row("merge-labels", "PATCH", f"{DEPLOYS}/d", {"metadata": {"labels": {"x": "y"}}}, "merge",
        fields={"/metadata/generation": 1}),
    Row("merge-dry", "PATCH", f"{SCALES}/s", {"spec": {"size": 0}}, "merge", query={"dryRun": "All"},
        fields={"/spec/size": 0, "/metadata/generation": 2}),
    Row("merge-removes", "PATCH", f"{MAPS}/c", {"data": {"k": None, "n": "m"}}, "merge", fields={"/data": {"n": "m"}}),
    Row("merge-other-uid", "PATCH", f"{DEPLOYS}/d", {"metadata": {"uid": NOBODY}, "spec": {"replicas": 0}}, "merge",
        code=422, reason="Invalid", fields={"/details/causes/0/field": "metadata.uid"}),
    Row("merge-other-uid-custom", "PATCH", f"{SCALES}/s", {"metadata": {"uid": NOBODY}}, "merge", code=422, fields={
        "/details/causes/0/field": "metadata.uid"}),
    Row("merge-old-version", "PATCH", f"{DEPLOYS}/d", {"metadata": {"resourceVersion": "3"}}, "merge", code=409,
        reason="Conflict", says="the object has been modified"),
    Row("merge-old-version-custom", "PATCH", f"{SCALES}/s", {"metadata": {"resourceVersion": "3"}}, "merge", code=409,
        reason="Conflict"),
    Row("merge-odd-version", "PATCH", f"{MAPS}/c", {"metadata": {"resourceVersion": "abc"}}, "merge", code=500),
    Row("merge-unknown-strict", "PATCH", f"{DEPLOYS}/d", {"spec": {"suspend": True}}, "merge", code=422, query=STRICT,
        fields={"/details/causes/0/field": "patch"}, says='unknown field "spec.suspend"'),
    Row("merge-unknown-strict-custom", "PATCH", f"{SCALES}/s", {"spec": {"suspend": True}}, "merge", code=422,
        query=STRICT, fields={"/details/causes/0/field": "patch"}, says='unknown field "spec.suspend"'),
    Row("merge-unknown", "PATCH", f"{DEPLOYS}/d", {"spec": {"suspend": True}}, "merge", fields={"/spec/suspend": None,
        "/metadata/generation": 1},
        warns="spec.suspend"),
    Row("merge-negative", "PATCH", f"{DEPLOYS}/d", {"spec": {"replicas": -1}}, "merge", code=422,
        fields={"/details/causes/0/field": "spec.replicas"}),
    Row("merge-text-for-number", "PATCH", f"{DEPLOYS}/d", {"spec": {"replicas": "x"}}, "merge", code=422,
        fields={"/details/causes/0/field": "patch"}),
    Row("merge-text-for-number-custom", "PATCH", f"{SCALES}/s", {"spec": {"size": "x"}}, "merge", code=422, fields={
        "/details/causes/0/field": "spec.size"}),
    Row("merge-number-as-annotation", "PATCH", f"{MAPS}/c", {"metadata": {"annotations": {"a": 1}}}, "merge", code=422,
        fields={ "/details/causes/0/field": "patch"}),
    Row("merge-number-as-annotation-custom", "PATCH", f"{SCALES}/s", {"metadata": {"annotations": {"a": 1}}}, "merge",
        code=422),
    Row("merge-text-as-metadata", "PATCH", f"{MAPS}/c", {"metadata": "x"}, "merge", code=422),
    Row("merge-text-as-spec", "PATCH", f"{DEPLOYS}/d", {"spec": "x"}, "merge", code=422),
    Row("merge-rename", "PATCH", f"{MAPS}/c", {"metadata": {"name": "q"}}, "merge", code=400, reason="BadRequest"),
    Row("merge-other-kind", "PATCH", f"{MAPS}/c", {"kind": "Pod"}, "merge", code=422,
        fields={"/details/causes/0/field": "patch"}),
    Row("merge-a-list", "PATCH", f"{MAPS}/c", [1], "merge", code=400, reason="BadRequest"),
    Row("merge-absent", "PATCH", f"{MAPS}/nobody", {}, "merge", code=404, reason="NotFound"),
    Row("merge-status-on-main", "PATCH", f"{SCALES}/s", {"status": {"replicas": 4}}, "merge", fields={"/status": None}),
    Row("patch-as-text", "PATCH", f"{MAPS}/c", {}, "text/plain", code=415, reason="UnsupportedMediaType"),
    # ---- other patches
    Row("json", "PATCH", f"{DEPLOYS}/d", [{"op": "replace", "path": "/spec/replicas", "value": 0}], "json",
        fields={"/spec/replicas": 0}),
    Row("json-add", "PATCH", f"{MAPS}/c", [{"op": "add", "path": "/metadata/annotations", "value": {"a": "b"}}], "json",
        fields={ "/metadata/annotations/a": "b"}),
    Row("json-test", "PATCH", f"{MAPS}/c", [{"op": "test", "path": "/metadata/uid", "value": "x"}], "json", code=422,
        reason="Invalid"),
    Row("json-no-place", "PATCH", f"{MAPS}/c", [{"op": "replace", "path": "/nope/x", "value": 1}], "json", code=422,
        reason="Invalid"),
    Row("json-odd", "PATCH", f"{MAPS}/c", [{"op": "zz", "path": "/data", "value": 1}], "json", code=422,
        reason="Invalid"),
    Row("strategic", "PATCH", f"{DEPLOYS}/d",
        {"spec": {"template": {"spec": {"containers": [{"name": "side", "image": "x"}]}}}}, "strategic",
        fields={"/spec/template/spec/containers/0/name": "side", "/spec/template/spec/containers/1/name": "main"}),
    Row("strategic-custom", "PATCH", f"{SCALES}/s", {"spec": {"size": 1}}, "strategic", code=415,
        reason="UnsupportedMediaType"),
    Row("apply-unnamed-manager", "PATCH", f"{DEPLOYS}/d", {"spec": {"replicas": 5}}, "apply", code=422,
        reason="Invalid", fields={"/details/causes/0/field": "fieldManager"}),
    Row("apply-kindless", "PATCH", f"{DEPLOYS}/d", {"spec": {"replicas": 5}}, "apply", code=400,
        query={"fieldManager": "bob"}),
    Row("apply-conflict", "PATCH", f"{DEPLOYS}/d",
        {"apiVersion": "apps/v1", "kind": "Deployment", "spec": {"replicas": 5}}, "apply", code=409, reason="Conflict",
        query={"fieldManager": "bob"},
        says='Apply failed with 1 conflict: conflict with "suite" using apps/v1: .spec.replicas',
        fields={"/details/causes/0/field": ".spec.replicas", "/details/causes/0/reason": "FieldManagerConflict"}),
    Row("apply-same", "PATCH", f"{DEPLOYS}/d", {"apiVersion": "apps/v1", "kind": "Deployment", "spec": {"replicas": 3}},
        "apply", query={"fieldManager": "bob"},
        fields={"/metadata/managedFields/0/manager": "bob", "/metadata/managedFields/0/operation": "Apply"}),
    Row("apply-forced", "PATCH", f"{DEPLOYS}/d",
        {"apiVersion": "apps/v1", "kind": "Deployment", "spec": {"replicas": 5}}, "apply",
        query={"fieldManager": "bob", "force": "true"}, fields={"/spec/replicas": 5}),
    Row("apply-new", "PATCH", f"{DEPLOYS}/new", deployment("new"), "apply", code=201, query={"fieldManager": "bob"},
        fields={"/spec/replicas": 3}),
    Row("apply-new-nameless", "PATCH", f"{MAPS}/new", {"apiVersion": "v1", "kind": "ConfigMap"}, "apply", code=400,
        query={"fieldManager": "bob"}),
    # ---- subresources
    Row("scale", "GET", f"{DEPLOYS}/d/scale", fields={
        "/kind": "Scale", "/apiVersion": "autoscaling/v1", "/spec/replicas": 3, "/status/selector": "app=d"}),
    Row("scale-custom", "GET", f"{SCALES}/s/scale",
        fields={"/spec/replicas": 3, "/status/replicas": 0, "/status/selector": None}),
    Row("scale-to-zero", "PATCH", f"{DEPLOYS}/d/scale", {"spec": {"replicas": 0}}, "merge", query=STRICT,
        fields={"/kind": "Scale", "/spec": {}}),
    Row("scale-custom-to-zero", "PATCH", f"{SCALES}/s/scale", {"spec": {"replicas": 0}}, "merge", fields={"/spec": {}}),
    Row("scale-other-uid", "PATCH", f"{DEPLOYS}/d/scale", {"metadata": {"uid": NOBODY}, "spec": {"replicas": 0}},
        "merge", code=409, reason="Conflict"),
    Row("scale-old-version", "PATCH", f"{DEPLOYS}/d/scale",
        {"metadata": {"resourceVersion": "3"}, "spec": {"replicas": 0}}, "merge", code=409),
    Row("scale-custom-other-uid", "PATCH", f"{SCALES}/s/scale", {"metadata": {"uid": NOBODY}, "spec": {"replicas": 5}},
        "merge", fields={ "/spec/replicas": 5}),
    Row("scale-custom-old-version", "PATCH", f"{SCALES}/s/scale",
        {"metadata": {"resourceVersion": "3"}, "spec": {"replicas": 0}}, "merge", code=409),
    Row("scale-unknown", "PATCH", f"{SCALES}/s/scale", {"spec": {"replicas": 0, "foo": 1}}, "merge", code=422,
        query=STRICT, says='"spec.foo"'),
    Row("scale-custom-negative", "PATCH", f"{SCALES}/s/scale", {"spec": {"replicas": -2}}, "merge", code=422, fields={
        "/details/causes/0/field": ".spec.size"}),
    Row("no-scale", "GET", f"{MAPS}/c/scale", code=404),
    Row("status", "PATCH", f"{SCALES}/s/status",
        {"status": {"replicas": 2}, "spec": {"size": 7}, "metadata": {"labels": {"q": "r"}}}, "merge",
        query={"fieldManager": "op"},
        fields={ "/status/replicas": 2, "/spec/size": 3, "/metadata/labels": None, "/metadata/generation": 1}),
    Row("method-not-allowed", "PUT", MAPS, {}, code=405, reason="MethodNotAllowed"),
    # ---- replace
    Row("put", "PUT", f"{MAPS}/c", named("c", data={"n": "m"}), fields={"/data": {"n": "m"}}),
    Row("put-absent", "PUT", f"{MAPS}/nobody", named("nobody"), code=404, reason="NotFound"),
    Row("put-other-name", "PUT", f"{MAPS}/c", named("q"), code=400, reason="BadRequest"),
    Row("put-custom-unguarded", "PUT", f"{SCALES}/s", scalable("s", size=1), code=422,
        fields={"/details/causes/0/field": "metadata.resourceVersion"}),
    Row("put-lease-unguarded", "PUT", f"{LEASES}/l", named("l", spec={}), code=422,
        fields={"/details/causes/0/field": "metadata.resourceVersion"}),
    Row("put-lease-overtaken", "PUT", f"{LEASES}/l", {"metadata": {"name": "l", "resourceVersion": "3"}}, code=409,
        reason="Conflict"),
    Row("put-lease-absent", "PUT", f"{LEASES}/m", named("m", spec={"holderIdentity": "b"}), code=201,
        fields={"/spec/holderIdentity": "b"}),
    # ---- delete
    Row("delete", "DELETE", f"{MAPS}/c", fields={"/kind": "Status", "/status": "Success", "/details/name": "c",
        "/details/kind": "configmaps"}),
    Row("delete-absent", "DELETE", f"{MAPS}/nobody", code=404, reason="NotFound"),
    Row("delete-other-uid", "DELETE", f"{MAPS}/c", {"preconditions": {"uid": "x"}}, code=409, reason="Conflict",
        says="the UID in the precondition"),
    Row("delete-overtaken", "DELETE", f"{MAPS}/c", {"preconditions": {"resourceVersion": "1"}}, code=409,
        reason="Conflict"),
    Row("delete-none", "DELETE", MAPS, query={"labelSelector": "none=such"},
        fields={"/kind": "ConfigMapList", "/items": []}),
    # ---- events and reviews
    Row("event", "POST", EVENTS, event("e"), code=201, fields={"/note": "hello", "/regarding/name": "p",
        "/apiVersion": "events.k8s.io/v1"}),
    Row("event-actionless", "POST", EVENTS, event("e", action=""), code=422,
        fields={"/details/causes/0/field": "action"}),
    Row("event-long", "POST", EVENTS, event("e", note="x" * 1025), code=422,
        fields={"/details/causes/0/field": "message"}),
    Row("event-odd-type", "POST", EVENTS, event("e", type="Odd"), code=422, fields={"/details/causes/0/field": "type"}),
    Row("may-i", "POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
        {"spec": {"resourceAttributes": {"verb": "list", "resource": "pods"}}}, code=201,
        fields={"/status/allowed": True}),
    Row("may-they-nothing", "POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", {"spec": {}}, code=422,
        reason="Invalid"),
    Row("odd-token", "POST", "/apis/authentication.k8s.io/v1/tokenreviews", {"spec": {"token": "x"}}, code=201, fields={
        "/status/authenticated": None, "/status/error": "invalid bearer token"}),
    # ---- a watch that cannot be gone on with
    Row("watch-too-old", "GET", "/apis/example.com/v1/scalables",
        query={"watch": "1", "resourceVersion": "1", "timeoutSeconds": "2"},
        fields={ "/0/type": "ERROR", "/0/object/code": 410, "/0/object/reason": "Expired"}),
    # ---- the server itself
    Row("version", "GET", "/version", fields={"/major": "1", "/gitVersion": "v1.36.3"}),
    Row("groups", "GET", "/apis/apps", fields={"/kind": "APIGroup", "/preferredVersion/groupVersion": "apps/v1"}),
]
