"""The kubelet's socket, against a real gRPC server, and against what is none."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes import kubelet as fake

from fallow.clients import errors, kubelet


@pytest.fixture
def server(tmp_path: Path) -> Iterator[fake.Kubelet]:
    with fake.Kubelet(tmp_path) as running:
        yield running


@asynccontextmanager
async def serve_bytes(folder: Path, answer: bytes | None) -> AsyncIterator[str]:
    """Something else that listens: it says this and hangs up, or, with None, takes all and says nothing."""
    ends: list[asyncio.StreamWriter] = []

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends.append(writer)
        await reader.read(1000)
        if answer is not None:
            writer.write(answer)
            writer.close()

    path = str(folder / "other.sock")
    other = await asyncio.start_unix_server(take, path)
    try:
        yield path
    finally:
        other.close()
        for end in ends:
            end.close()


async def test_what_the_kubelet_lists_is_read(server: fake.Kubelet) -> None:
    held = {"nvidia.com/gpu": ["GPU-1::0", "GPU-1::1"], "gpu.nvidia.com": [("n1", "gpu-0")]}
    server.pods = [fake.pod("llm-0", "ml", main=held, proxy={}), fake.pod("plain", "web")]
    llm, plain = await kubelet.list_grants(server.socket, 5)
    assert llm == kubelet.PodDevices(
        "ml",
        "llm-0",
        (
            kubelet.ContainerDevices(
                "main",
                (kubelet.ResourceDevices("nvidia.com/gpu", ("GPU-1::0", "GPU-1::1")),),
                (kubelet.ClaimedDevice("gpu.nvidia.com", "n1", "gpu-0"),),
            ),
            kubelet.ContainerDevices("proxy"),
        ),
    )
    assert plain == kubelet.PodDevices("web", "plain")


async def test_a_node_without_pods_is_an_empty_answer(server: fake.Kubelet) -> None:
    assert await kubelet.list_grants(server.socket, 5) == ()


async def test_an_answer_of_many_frames_comes_whole(server: fake.Kubelet) -> None:
    server.pods = [
        fake.pod(f"p{number}", main={"nvidia.com/gpu": [f"GPU-{number}::{n}" for n in range(50)]})
        for number in range(2000)
    ]
    pods = await kubelet.list_grants(server.socket, 5)
    assert len(fake.encode(server.pods)) > 2**20
    assert [pod.name for pod in pods] == [f"p{number}" for number in range(2000)]
    assert pods[-1].containers[0].devices[0].ids[-1] == "GPU-1999::49"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit"),
        (grpc.StatusCode.UNAVAILABLE, "100% grün: später\nnochmal"),
        (grpc.StatusCode.INTERNAL, ""),
    ],
    ids=["limit", "odd-letters", "no-words"],
)
async def test_a_refusal_carries_the_kubelets_own_words(server: fake.Kubelet, code: grpc.StatusCode, said: str) -> None:
    server.refusal = (code, said)
    with pytest.raises(errors.Rejected) as refused:
        await kubelet.list_grants(server.socket, 5)
    assert refused.value.status == code.value[0]
    assert (said or "no reason given") in str(refused.value)


async def test_a_kubelet_without_this_version_says_so(tmp_path: Path) -> None:
    with fake.Kubelet(tmp_path, version="v1alpha1") as old, pytest.raises(errors.Rejected, match="Unimplemented"):
        await kubelet.list_grants(old.socket, 5)


async def test_no_socket_is_unreachable(tmp_path: Path) -> None:
    with pytest.raises(errors.Unreachable, match="No such file"):
        await kubelet.list_grants(str(tmp_path / "absent.sock"), 5)


async def test_a_file_that_nobody_listens_on_is_unreachable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(errors.Unreachable, match="Connection refused"):
        await kubelet.list_grants(str(tmp_path / "file"), 5)


async def test_a_silent_kubelet_blocks_nobody_for_longer_than_the_timeout(server: fake.Kubelet) -> None:
    server.silence()
    began = time.monotonic()
    with pytest.raises(errors.Unreachable, match=r"within 0\.3 s"):
        await kubelet.list_grants(server.socket, 0.3)
    assert 0.25 < time.monotonic() - began < 3
    assert server.calls == 1


async def test_a_socket_that_takes_all_and_says_nothing_is_left_alone(tmp_path: Path) -> None:
    async with serve_bytes(tmp_path, None) as socket:
        with pytest.raises(errors.Unreachable, match="did not answer"):
            await kubelet.list_grants(socket, 0.2)


@pytest.mark.parametrize(
    "answer", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", bytes(range(256))],
    ids=["nothing", "http1", "noise"]
)
async def test_what_is_no_grpc_server_is_an_error_of_ours(tmp_path: Path, answer: bytes) -> None:
    async with serve_bytes(tmp_path, answer) as socket:
        with pytest.raises((errors.Unreachable, errors.BadAnswer)):
            await kubelet.list_grants(socket, 5)


async def test_an_answer_that_is_too_long_is_refused(server: fake.Kubelet) -> None:
    server.answer = bytes(kubelet.LONGEST_ANSWER_BYTES + 1)
    with pytest.raises(errors.BadAnswer, match="more than 16777216 bytes"):
        await kubelet.list_grants(server.socket, 30)


@pytest.mark.parametrize(
    "message",
    [b"\x0a\x05\x0a", b"\x0a", b"\x0b", b"\xff" * 11, b"\x0a\x03\x0a\x01\xff", b"\x09\x01"],
    ids=["cut", "no-length", "group", "endless-number", "not-utf8", "half-a-number"],
)
async def test_a_message_that_cannot_be_read_is_no_empty_list(server: fake.Kubelet, message: bytes) -> None:
    server.answer = message
    with pytest.raises(errors.BadAnswer, match="cannot be read"):
        await kubelet.list_grants(server.socket, 5)


def test_fields_of_the_future_are_skipped() -> None:
    known = fake.encode([fake.pod("a", main={"nvidia.com/gpu": ["GPU-1"]})])
    # Fields 15 and 16, one of each wire type
    future = b"\x78\x96\x01" + b"\x79" + bytes(8) + b"\x7d" + bytes(4) + b"\x82\x01\x02hi"
    assert kubelet.read_list(future + known + future) == kubelet.read_list(known)


words = st.text(max_size=200)
ids = st.lists(words, min_size=1, max_size=4) | st.lists(st.tuples(words, words), min_size=1, max_size=4)
pods = st.builds(fake.pod, words, words, main=st.dictionaries(words, ids, max_size=3))


@given(st.lists(pods, max_size=5))
def test_all_that_protobuf_writes_is_read(listed: list[dict[str, Any]]) -> None:
    found = kubelet.read_list(fake.encode(listed))
    assert [(pod.namespace, pod.name) for pod in found] == [(pod["namespace"], pod["name"]) for pod in listed]
    for pod, was in zip(found, listed, strict=True):
        container = was["containers"][0]
        assert [(each.resource, list(each.ids)) for each in pod.containers[0].devices] == [
            (each["resource_name"], each["device_ids"]) for each in container["devices"]
        ]
        assert [(each.driver, each.pool, each.device) for each in pod.containers[0].claims] == [
            (each["driver_name"], each["pool_name"], each["device_name"])
            for claim in container["dynamic_resources"] for each in claim["claim_resources"]
        ]


cut = st.lists(pods, max_size=2).map(fake.encode).flatmap(lambda m: st.integers(0, len(m)).map(lambda n: m[:n]))


@given(st.binary(max_size=300) | cut)
def test_no_bytes_raise_anything_else(message: bytes) -> None:
    try:
        found = kubelet.read_list(message)
    except errors.BadAnswer:
        return
    assert isinstance(found, tuple)
