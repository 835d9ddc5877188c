"""A kubelet that has whatever a test gives it: a real gRPC server on a unix socket, by the published field numbers.

In: `pods`, `refusal`, `answer`, `silence`. Out: the wire, and `calls`.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_TEXT, _NUMBER, _MESSAGE = (
    descriptor_pb2.FieldDescriptorProto.TYPE_STRING,
    descriptor_pb2.FieldDescriptorProto.TYPE_INT64,
    descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE,
)
# message -> field -> (number, is repeated, type or message); the kubelet's podresources/v1/api.proto
_MESSAGES: Mapping[str, Mapping[str, tuple[int, bool, Any]]] = {
    "NUMANode": {"ID": (1, False, _NUMBER)},
    "TopologyInfo": {"nodes": (1, True, "NUMANode")},
    "ContainerDevices": {
        "resource_name": (1, False, _TEXT), "device_ids": (2, True, _TEXT), "topology": (3, False, "TopologyInfo")
    },
    "ContainerMemory": {
        "memory_type": (1, False, _TEXT), "size": (2, False, _NUMBER), "topology": (3, False, "TopologyInfo")
    },
    "CDIDevice": {"name": (1, False, _TEXT)},
    "ClaimResource": {
        "cdi_devices": (1, True, "CDIDevice"), "driver_name": (2, False, _TEXT), "pool_name": (3, False, _TEXT),
        "device_name": (4, False, _TEXT), "share_id": (5, False, _TEXT),
    },
    "DynamicResource": {
        "claim_name": (2, False, _TEXT), "claim_namespace": (3, False, _TEXT),
        "claim_resources": (4, True, "ClaimResource"),
    },
    "ContainerResources": {
        "name": (1, False, _TEXT), "devices": (2, True, "ContainerDevices"), "cpu_ids": (3, True, _NUMBER),
        "memory": (4, True, "ContainerMemory"), "dynamic_resources": (5, True, "DynamicResource"),
    },
    "PodResources": {
        "name": (1, False, _TEXT), "namespace": (2, False, _TEXT), "containers": (3, True, "ContainerResources")
    },
    "ListPodResourcesResponse": {"pod_resources": (1, True, "PodResources")},
}


def _make_classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="podresources.proto", package="v1", syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (number, is_repeated, kind) in fields.items():
            made = message.field.add(name=field, number=number, label=3 if is_repeated else 1)
            made.type = _MESSAGE if isinstance(kind, str) else kind
            if isinstance(kind, str):
                made.type_name = f".v1.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"v1.{name}")) for name in _MESSAGES}


_CLASSES = _make_classes()


def pod(name: str, namespace: str = "ml", **containers: Any) -> dict[str, Any]:
    """`main={"nvidia.com/gpu": ["GPU-1"]}`; a claim is `{"gpu.nvidia.com": [("pool", "device")]}`."""
    return {
        "name": name,
        "namespace": namespace,
        "containers": [{"name": container, **_describe(held)} for container, held in containers.items()],
    }


def _describe(held: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    devices: list[Any] = []
    claims: list[Any] = []
    for resource, ids in held.items():
        if all(isinstance(each, str) for each in ids):
            devices.append({"resource_name": resource, "device_ids": list(ids), "topology": {"nodes": [{"ID": 1}]}})
        else:
            found = [{"driver_name": resource, "pool_name": pool, "device_name": device} for pool, device in ids]
            claims.append({"claim_name": "c", "claim_namespace": "ml", "claim_resources": found})
    return {
        "devices": devices, "dynamic_resources": claims, "cpu_ids": [1, 300],
        "memory": [{"memory_type": "memory", "size": 2**40}],
    }


def encode(pods: Sequence[Mapping[str, Any]]) -> bytes:
    """A ListPodResourcesResponse."""
    answer: bytes = _CLASSES["ListPodResourcesResponse"](pod_resources=pods).SerializeToString()
    return answer


class Kubelet:
    """As a context manager; `stop` and `start` take its socket away and bring it back."""

    def __init__(self, folder: Path, version: str = "v1") -> None:
        self._service = f"{version}.PodResourcesLister"
        self.socket = str(folder / "kubelet.sock")
        self.pods: list[dict[str, Any]] = []
        self.calls = 0
        self.refusal: tuple[grpc.StatusCode, str] | None = None
        self.answer: bytes | None = None  # instead of the pods
        self._is_silent = False
        self._may_speak = threading.Event()
        self._server: grpc.Server | None = None

    def silence(self) -> None:
        self._is_silent = True

    def start(self) -> None:
        handler = grpc.unary_unary_rpc_method_handler(self._list, response_serializer=bytes)
        self._server = grpc.server(futures.ThreadPoolExecutor(2))
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(self._service, {"List": handler}),))
        self._server.add_insecure_port(f"unix:{self.socket}")
        self._server.start()

    def stop(self) -> None:
        self._may_speak.set()
        if self._server is not None:
            self._server.stop(None).wait(10)
            self._server = None
        Path(self.socket).unlink(missing_ok=True)

    def __enter__(self) -> Kubelet:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _list(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        assert request == b""
        self.calls += 1
        if self._is_silent:
            self._may_speak.wait(60)
        if self.refusal is not None:
            context.abort(*self.refusal)
        return encode(self.pods) if self.answer is None else self.answer
