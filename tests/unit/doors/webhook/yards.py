"""What the sharing webhook sees, as a test says; and pods as the API server sends them."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from tests.unit.decide.sharing import scenes

from fallow import names
from fallow.decide import sharing as ladder
from fallow.doors.webhook import sharing
from fallow.model import cluster
from fallow.model.policies.sharing import SharingPolicy
from fallow.model.seen import ABSENT, Input, Known, Register
from fallow.model.sharing import OwnerUse, TopOwner


class Yard:
    def __init__(self, *policies: SharingPolicy, rewrites: bool = True) -> None:
        self.policies: Input[tuple[SharingPolicy, ...]] = Known(policies) if policies else ABSENT
        self.nodes: Input[ladder.PartIndex] = Known(ladder.PartIndex((scenes.CUT, scenes.SLICED, scenes.MPS)))
        self.namespaces: Register[cluster.Namespace] = Register({"ml": scenes.ML})
        self.owner: Input[TopOwner] | None = ABSENT  # None: never answers
        self.use: Input[OwnerUse] = ABSENT
        self.stale = ""
        self.owners_asked = 0
        self.terms = msgspec.structs.replace(scenes.TERMS, rewrites=rewrites)

    def judge(self) -> sharing.ShareJudge:
        async def top(namespace: str, references: Any) -> Input[TopOwner]:
            self.owners_asked += 1
            if self.owner is None:
                await asyncio.sleep(60)
            return self.owner if self.owner is not None else ABSENT

        eyes = sharing.ShareEyes(
            policies=lambda: self.policies, nodes=lambda: self.nodes, namespaces=lambda: self.namespaces, top=top,
            use=lambda uid: self.use, stale=lambda: self.stale,
        )
        return sharing.ShareJudge(eyes, self.terms, lambda: scenes.NOW)


def pod(gpus: Any = "1", *, annotations: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    """As the API server has it after its own defaults: requests are limits."""
    asked = {names.GPU: gpus, "cpu": "4", "memory": "8Gi"}
    return {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "llm", "namespace": "ml", "labels": {"app": "llm"},
                     **({} if annotations is None else {"annotations": annotations})},
        "spec": {
            "containers": [
                {"name": "proxy", "image": "envoy", "resources": {}},
                {"name": "main", "image": "vllm/vllm-openai:1", "args": ["--model", "x"],
                 "env": [{"name": "A", "value": "b"}], "resources": {"limits": asked, "requests": dict(asked)}},
            ],
            "initContainers": [{"name": "fetch", "image": "curl"}],
            "schedulerName": "default-scheduler", "priority": 0, "volumes": [{"name": "v", "emptyDir": {}}],
            "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"}],
            **spec,
        },
    }


def review(of: Any, operation: str = "CREATE") -> dict[str, Any]:
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "r-1", "namespace": of["metadata"].get("namespace", "ml") if isinstance(of, dict) else "ml",
        "operation": operation, "userInfo": {"username": "ada"}, "object": of,
    }}
