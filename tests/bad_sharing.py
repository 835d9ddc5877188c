"""GPUSharingPolicies and GPUNodeConfigs that must be refused, each with the field that is wrong: by the API server, and
by our own reader of what was stored before. And some that are right."""

from typing import Any

Spec = dict[str, Any]


def policy(**changed: Any) -> Spec:
    return {"strategy": "auto", **changed}


def node(**changed: Any) -> Spec:
    return {"nodeName": "gpu-1", **changed}


# What is wrong -> (the spec, the field that is named).
BAD_POLICIES: dict[str, tuple[Spec, str]] = {
    "no-strategy": ({}, "spec.strategy"),
    "strategy": (policy(strategy="MIG"), "spec.strategy"),
    "mode": (policy(mode="on"), "spec.mode"),
    "class": (policy(workloadTypes=["serving"]), "spec.workloadTypes[0]"),
    "percent": (policy(rolloutPercent=101), "spec.rolloutPercent"),
    "priority": (policy(priority=2**31), "spec.priority"),
    "profile": (policy(migConfig={"profile": "8g.80gb"}), "spec.migConfig.profile"),
    "no-profile": ({"strategy": "mig", "migConfig": {"autoSelectProfile": False}}, "spec.migConfig"),
    "clients": (policy(mpsConfig={"maxClients": 49}), "spec.mpsConfig.maxClients"),
    "threads": (policy(mpsConfig={"defaultActiveThreads": 0}), "spec.mpsConfig.defaultActiveThreads"),
    "memory": (policy(mpsConfig={"memoryLimitMB": 63}), "spec.mpsConfig.memoryLimitMB"),
    "replicas": (policy(timeSlicingConfig={"replicasPerGPU": 17}), "spec.timeSlicingConfig.replicasPerGPU"),
    "slice": (policy(timeSlicingConfig={"sliceMs": 0}), "spec.timeSlicingConfig.sliceMs"),
    "fairness": (policy(timeSlicingConfig={"fairnessMode": "fair"}), "spec.timeSlicingConfig.fairnessMode"),
    "restarts": (policy(guard={"maxRestarts": -1}), "spec.guard.maxRestarts"),
    "ratio": (policy(guard={"maxLatencyRatio": "fast"}), "spec.guard.maxLatencyRatio"),
    "operator": (
        policy(podSelector={"matchExpressions": [{"key": "a", "operator": "Like", "values": ["b"]}]}),
        "spec.podSelector.matchExpressions[0].operator",
    ),
    "label": (policy(nodeSelector={"pool": "a b"}), "spec.nodeSelector.pool"),
}
GOOD_POLICIES: dict[str, Spec] = {
    "least": policy(),
    "most": {
        "strategy": "mig", "mode": "enforce", "nodeSelector": {"pool": "small"},
        "namespaceSelector": {"matchLabels": {"team": "ml"}},
        "podSelector": {"matchExpressions": [{"key": "app", "operator": "In", "values": ["a", "b"]}]},
        "workloadTypes": ["inference", "notebook"], "priority": -5, "rolloutPercent": 10,
        "migConfig": {"profile": "1g.5gb+me", "autoSelectProfile": False},
        "mpsConfig": {"maxClients": 2, "defaultActiveThreads": 1, "memoryLimitMB": 64},
        "timeSlicingConfig": {"replicasPerGPU": 16, "sliceMs": 1, "fairnessMode": "weighted"},
        "guard": {"maxRestarts": 0, "latencyQuery": "up", "maxLatencyRatio": "2", "restartOnRevert": True},
    },
}
BAD_NODES: dict[str, tuple[Spec, str]] = {
    "no-node": ({}, "spec.nodeName"),
    "node": (node(nodeName="GPU_1"), "spec.nodeName"),
    "mps-and-mig": (node(mpsEnabled=True, migEnabled=True), "spec.mpsEnabled"),
    "mps-and-turns": (node(mpsEnabled=True, timeSlicingEnabled=True), "spec.mpsEnabled"),
    "two-layouts": (node(migEnabled=True, migConfig="all-1g.5gb", migProfiles=["1g.5gb"]), "spec.migConfig"),
    "profiles": (node(migProfiles=["1g.5gb"] * 8), "spec.migProfiles"),
    "profile": (node(migProfiles=["1g"]), "spec.migProfiles[0]"),
    "clients": (node(mpsMaxClients=1), "spec.mpsMaxClients"),
    "replicas": (node(timeSlicingReplicas=17), "spec.timeSlicingReplicas"),
    "disruption": (node(disruption="kill"), "spec.disruption"),
    "timeout": (node(drainTimeoutSeconds=59), "spec.drainTimeoutSeconds"),
}
GOOD_NODES: dict[str, Spec] = {
    "least": node(),
    "cut-and-by-turns": node(migEnabled=True, migProfiles=["1g.10gb", "3g.40gb"], timeSlicingEnabled=True),
    "mps": node(mpsEnabled=True, mpsMaxClients=48, mode="enforce", disruption="evict", drainTimeoutSeconds=60),
    "named": node(migEnabled=True, migConfig="all-balanced"),
}
