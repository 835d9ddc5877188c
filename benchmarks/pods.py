"""A pretend API server that only lists pods, for the listing benchmark: pages of real-looking pods of about 10 KB, made
once.

Run as `python -m benchmarks.pods TOTAL GPU_EVERY`; prints its port. Pods whose number is a multiple of GPU_EVERY hold a
GPU.
"""

import asyncio
import json
import sys
from typing import Any

from aiohttp import web

PAGE = 500


def _managed_fields() -> list[dict[str, Any]]:
    """What makes a real pod long: who set which field."""
    owned: dict[str, Any] = {
        f"k:{{\"name\":\"VARIABLE_{index}\"}}": {
            ".": {}, "f:name": {}, "f:value": {}, "f:valueFrom": {".": {}, "f:fieldRef": {}}
        }
        for index in range(37)
    }
    container = {
        "k:{\"name\":\"main\"}": {".": {}, "f:env": owned, "f:image": {}, "f:resources": {".": {}, "f:limits": {}}}
    }
    ready: dict[str, Any] = {"k:{\"type\":\"Ready\"}": {".": {}, "f:status": {}, "f:lastTransitionTime": {}}}
    return [
        {"manager": "kube-controller-manager", "operation": "Update", "apiVersion": "v1",
         "time": "2026-11-15T09:00:00Z", "fieldsType": "FieldsV1",
         "fieldsV1": {"f:metadata": {"f:labels": {}}, "f:spec": {"f:containers": container}}},
        {"manager": "kubelet", "operation": "Update", "apiVersion": "v1", "time": "2026-11-15T09:00:05Z",
         "fieldsType": "FieldsV1", "fieldsV1": {"f:status": {"f:conditions": ready}}, "subresource": "status"},
    ]


def make_pod(number: int, holds_gpu: bool) -> dict[str, Any]:
    name = f"worker-{number // 4}-7c9d8b6f5d-{number:06x}"
    limits = {"cpu": "8", "memory": "64Gi", **({"nvidia.com/gpu": "1"} if holds_gpu else {})}
    env = [
        {"name": f"VARIABLE_{index}", "value": f"some value that is rather typical number {index}"}
        for index in range(37)
    ]
    container = {
        "name": "main", "image": "registry.example/team/app:1.2.3", "resources": {"limits": limits, "requests": limits},
        "env": env,
        "volumeMounts": [
            {"name": "data", "mountPath": "/data"},
            {"name": "access", "mountPath": "/var/run/secrets", "readOnly": True},
        ],
        "terminationMessagePath": "/dev/termination-log", "imagePullPolicy": "IfNotPresent",
    }
    return {
        "metadata": {
            "name": name, "namespace": f"team-{number % 50}", "uid": f"{number:08x}-1111-4222-8333-444455556666",
            "resourceVersion": str(number + 1000), "creationTimestamp": "2026-11-15T09:00:00Z",
            "labels": {
                "app": f"worker-{number // 4}", "pod-template-hash": "7c9d8b6f5d", "team": f"team-{number % 50}"
            },
            "annotations": {
                "kubectl.kubernetes.io/restartedAt": "2026-11-14T09:00:00Z", "prometheus.io/scrape": "true"
            },
            "ownerReferences": [{
                "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": f"worker-{number // 4}-7c9d8b6f5d",
                "uid": f"{number // 4:08x}-9999-4222-8333-444455556666", "controller": True, "blockOwnerDeletion": True,
            }],
            "managedFields": _managed_fields(),
        },
        "spec": {
            "containers": [container], "nodeName": f"node-{number % 2000}", "restartPolicy": "Always",
            "serviceAccountName": "default",
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
        },
        "status": {
            "phase": "Running", "podIP": "10.0.0.1", "hostIP": "10.1.0.1", "startTime": "2026-11-15T09:00:01Z",
            "qosClass": "Guaranteed",
            "conditions": [
                {"type": kind, "status": "True", "lastTransitionTime": "2026-11-15T09:00:05Z"}
                for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready")
            ],
            "containerStatuses": [{
                "name": "main", "ready": True, "restartCount": 0, "image": "registry.example/team/app:1.2.3",
                "imageID": "registry.example/team/app@sha256:" + "ab" * 32, "containerID": "containerd://" + "cd" * 32,
                "started": True, "state": {"running": {"startedAt": "2026-11-15T09:00:04Z"}},
            }],
        },
    }


def make_pages(total: int, gpu_every: int) -> list[bytes]:
    pages = []
    for first in range(0, total, PAGE):
        items = [make_pod(number, number % gpu_every == 0) for number in range(first, min(first + PAGE, total))]
        more = (
            {"continue": str(first + PAGE), "remainingItemCount": total - first - PAGE} if first + PAGE < total else {}
        )
        page = {
            "kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "999999", **more}, "items": items
        }
        pages.append(json.dumps(page).encode())
    return pages


async def serve(total: int, gpu_every: int) -> None:
    pages = make_pages(total, gpu_every)

    async def list_pods(request: web.Request) -> web.Response:
        return web.Response(
            body=pages[int(request.query.get("continue") or 0) // PAGE], content_type="application/json"
        )

    app = web.Application()
    app.router.add_get("/api/v1/pods", list_pods)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    size = sum(map(len, pages)) / total
    print(json.dumps({"port": port, "bytes_per_pod": round(size)}), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), int(sys.argv[2])))
