"""AutoscalingPolicies that must be refused, each with the field that is wrong: by the API server, and by our own reader
of what was stored before. And some that are right."""

from typing import Any

Spec = dict[str, Any]


def policy(**changed: Any) -> Spec:
    return {"provider": "aws", **changed}


def pool(**changed: Any) -> Spec:
    return {"name": "a100", "capacityType": "spot", **changed}


def window(**changed: Any) -> Spec:
    return policy(disruption={"windows": [{"schedule": "0 22 * * 1-5", "durationMinutes": 60, **changed}]})


# What is wrong -> (the spec, the field that is named). What only we can tell (a zone, a time of cron) stands below.
BAD: dict[str, tuple[Spec, str]] = {
    "no-provider": ({}, "spec.provider"),
    "provider": (policy(provider="AWS"), "spec.provider"),
    "mode": (policy(mode="enforce"), "spec.mode"),
    "driver": (policy(driver="asg"), "spec.driver"),
    "thresholds": (policy(scaleDownThreshold=0.9, scaleUpThreshold=0.8), "spec.scaleDownThreshold"),
    "equal-thresholds": (policy(scaleDownThreshold=0.8), "spec.scaleDownThreshold"),
    "percent-threshold": (policy(scaleUpThreshold=80), "spec.scaleUpThreshold"),
    "text-threshold": (policy(scaleUpThreshold="0.8"), "spec.scaleUpThreshold"),
    "nodes": (policy(minNodes=5, maxNodes=4), "spec.minNodes"),
    "negative": (policy(maxNodes=-1), "spec.maxNodes"),
    "cooldown": (policy(scaleUpCooldownSeconds=-1), "spec.scaleUpCooldownSeconds"),
    "spot": (policy(spotInstancePercentage=60), "spec.spotInstancePercentage"),
    "no-tier": (policy(tierOrder=[]), "spec.tierOrder"),
    "tier": (policy(tierOrder=["ondemand"]), "spec.tierOrder[0]"),
    "horizon": (policy(predictive={"horizonMinutes": 10}), "spec.predictive.horizonMinutes"),
    "confidence": (policy(predictive={"minConfidence": 70}), "spec.predictive.minConfidence"),
    "unneeded": (policy(unneededSeconds=59), "spec.unneededSeconds"),
    "unready": (policy(maxUnreadyPercent=0), "spec.maxUnreadyPercent"),
    "order": (policy(scaleDownOrder="cheapest"), "spec.scaleDownOrder"),
    "pool-size": (policy(nodePools=[pool(minSize=3, maxSize=2)]), "spec.nodePools[0].minSize"),
    "pool-tier": (policy(nodePools=[{"name": "a", "capacityType": "cheap"}]), "spec.nodePools[0].capacityType"),
    "pool-gpus": (policy(nodePools=[pool(gpusPerNode=0)]), "spec.nodePools[0].gpusPerNode"),
    "pool-price": (policy(nodePools=[pool(pricePerHour="$3")]), "spec.nodePools[0].pricePerHour"),
    "pool-memory": (policy(nodePools=[pool(memory="lots")]), "spec.nodePools[0].memory"),
    "pool-profile": (
        policy(nodePools=[pool(sharing={"strategy": "mig", "profiles": ["9g.1gb"]})]),
        "spec.nodePools[0].sharing.profiles[0]",
    ),
    "taint": (policy(nodePools=[pool(taints=[{"key": "a", "effect": "Never"}])]), "spec.nodePools[0].taints[0].effect"),
    "window-length": (window(durationMinutes=0), "spec.disruption.windows[0].durationMinutes"),
    "window-limit": (window(maxNodes="120%"), "spec.disruption.windows[0].maxNodes"),
    "limit": (policy(disruption={"maxNodes": "some"}), "spec.disruption.maxNodes"),
    "cron-fields": (window(schedule="0 22 * *"), "spec.disruption.windows[0].schedule"),
}
BAD_BEYOND_THE_SERVER: dict[str, tuple[Spec, str]] = {
    "cron": (window(schedule="0 25 * * 1-5"), "spec.disruption.windows[0].schedule"),
    "zone": (window(timeZone="Mars/Olympus"), "spec.disruption.windows[0].timeZone"),
    "twice": (policy(nodePools=[pool(), pool()]), "spec.nodePools"),
}

GOOD: dict[str, Spec] = {
    "least": policy(),
    "off": policy(enabled=False, enableSpotInstances=False, enableMultiTierScaling=False),
    "most": policy(
        mode="act", driver="direct", scaleUpThreshold=0.75, scaleDownThreshold=0.3, scaleUpCooldownSeconds=0,
        pendingPodTimeoutSeconds=30, queueLengthThreshold=5, queueWaitSeconds=60, minNodes=1, maxNodes=8,
        spotInstancePercentage=0.4, tierOrder=["reserved", "spot", "on-demand"], enablePredictiveScaling=True,
        predictive={"horizonMinutes": 120, "minConfidence": 0.8}, nodeSelector={"pool": "gpu"}, unneededSeconds=300,
        disruption={"maxNodes": 2, "windows": [
            {"schedule": "0 9 * * 1-5", "durationMinutes": 480, "timeZone": "Europe/Berlin"},
        ]},
        scaleDownOrder="spot-first",
        nodePools=[
            pool(
                minSize=0, maxSize=4, gpuType="NVIDIA-A100-SXM4-80GB", instanceTypes=["p4d.24xlarge"], gpusPerNode=8,
                cpu=96, memory="1152Gi", pricePerHour="9.83", labels={"pool": "gpu"}, priority=10,
                taints=[{"key": "nvidia.com/gpu"}], sharing={"strategy": "timeslicing", "replicas": 4}, group="asg-1",
            ),
            {"name": "l4", "capacityType": "on-demand", "availabilityZones": ["a", "b"]},
        ],
    ),
}
