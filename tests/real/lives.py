"""How the pretend kubelets behave: kwok Stages, as Python objects.

kwok's own stages finish every Job's pod at once; these leave it running, because a GPU job that nobody uses is what we
look for. A pod (or its template) chooses another life by the annotation `fallow.test/life`:
`starting` stays bound but never starts, `unready` runs without becoming Ready, `finishes` succeeds, `lingers` takes two
seconds to go. A node that carries `down` is no longer kept Ready.
Invariant: no stage matches a pod that is up, so a status written by a test (see `Cluster.age`) stays as written.
"""

from __future__ import annotations

from typing import Any

ANNOTATION = "fallow.test/life"
_LIFE = f'.metadata.annotations["{ANNOTATION}"]'
_READY = '.status.conditions.[] | select( .type == "Ready" ) | .status'

_NODE_STATUS = """
{{ $now := Now }}
conditions:
- type: Ready
  status: "True"
  reason: KubeletReady
  message: the pretend kubelet is up
  lastHeartbeatTime: {{ $now | Quote }}
  lastTransitionTime: {{ $now | Quote }}
phase: Running
"""

_POD_STATUS = """
{{ $now := Now }}
conditions:
- {type: PodReadyToStartContainers, status: "True", lastTransitionTime: {{ $now | Quote }}}
- {type: Initialized, status: "True", lastTransitionTime: {{ $now | Quote }}}
- {type: ContainersReady, status: "READY", lastTransitionTime: {{ $now | Quote }}}
- {type: Ready, status: "READY", lastTransitionTime: {{ $now | Quote }}}
initContainerStatuses:
{{ range .spec.initContainers }}
- name: {{ .name | Quote }}
  image: {{ .image | Quote }}
  imageID: ""
  ready: true
  restartCount: 0
  {{ if eq .restartPolicy "Always" }}
  started: true
  state: {running: {startedAt: {{ $now | Quote }}}}
  {{ else }}
  state: {terminated: {exitCode: 0, reason: Completed, startedAt: {{ $now | Quote }}, finishedAt: {{ $now | Quote }}}}
  {{ end }}
{{ end }}
containerStatuses:
{{ range .spec.containers }}
- name: {{ .name | Quote }}
  image: {{ .image | Quote }}
  imageID: ""
  ready: LOWER_READY
  started: true
  restartCount: 0
  state: {running: {startedAt: {{ $now | Quote }}}}
{{ end }}
{{ with NodeIPWith .spec.nodeName }}
hostIP: {{ . | Quote }}
{{ end }}
{{ with PodIPWith .spec.nodeName ( or .spec.hostNetwork false ) .metadata.uid .metadata.name .metadata.namespace }}
podIP: {{ . | Quote }}
podIPs: [{ip: {{ . | Quote }}}]
{{ end }}
phase: Running
startTime: {{ $now | Quote }}
"""

_FINISHED_STATUS = """
{{ $now := Now }}
conditions:
- {type: ContainersReady, status: "False", reason: PodCompleted, lastTransitionTime: {{ $now | Quote }}}
- {type: Ready, status: "False", reason: PodCompleted, lastTransitionTime: {{ $now | Quote }}}
containerStatuses:
{{ range .spec.containers }}
- name: {{ .name | Quote }}
  image: {{ .image | Quote }}
  imageID: ""
  ready: false
  started: false
  restartCount: 0
  state: {terminated: {exitCode: 0, reason: Completed, startedAt: {{ $now | Quote }}, finishedAt: {{ $now | Quote }}}}
{{ end }}
phase: Succeeded
"""


def stages() -> list[dict[str, Any]]:
    return [
        _stage("node-up", "Node", [_none_of(_READY, "True"), _none_of(_LIFE, "down")], _status(_NODE_STATUS)),
        _stage("pod-up", "Pod", [*_WAITS, _none_of(_LIFE, "starting", "unready")], _status(_pod_up(ready=True))),
        _stage("pod-unready", "Pod", [*_WAITS, _one_of(_LIFE, "unready")], _status(_pod_up(ready=False))),
        _stage(
            "pod-finish", "Pod", [_one_of(_LIFE, "finishes"), _one_of(".status.phase", "Running")],
            _status(_FINISHED_STATUS),
        ),
        _stage("pod-gone", "Pod", [_DYING, _none_of(_LIFE, "lingers")], {"delete": True}),
        _stage("pod-gone-slowly", "Pod", [_DYING, _one_of(_LIFE, "lingers")], {"delete": True}, seconds=2),
    ]


def _stage(
    name: str, kind: str, selector: list[dict[str, Any]], then: dict[str, Any], seconds: int = 0
) -> dict[str, Any]:
    spec = {"resourceRef": {"apiGroup": "v1", "kind": kind}, "selector": {"matchExpressions": selector}, "next": then}
    if seconds:
        spec["delay"] = {"durationMilliseconds": seconds * 1000}
    return {"apiVersion": "kwok.x-k8s.io/v1alpha1", "kind": "Stage", "metadata": {"name": name}, "spec": spec}


def _pod_up(ready: bool) -> str:
    word = str(ready)
    return _POD_STATUS.replace("LOWER_READY", word.lower()).replace("READY", word)


def _status(template: str) -> dict[str, Any]:
    return {"statusTemplate": template}


def _one_of(key: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": "In", "values": list(values)}


def _none_of(key: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": "NotIn", "values": list(values)}


_DYING = {"key": ".metadata.deletionTimestamp", "operator": "Exists"}
_WAITS = [{"key": ".metadata.deletionTimestamp", "operator": "DoesNotExist"}, _one_of(".status.phase", "Pending")]
