"""The kubelet's pod-resources socket: which container was given which devices. One call, `v1.PodResourcesLister/List`.

In: the path of a unix socket. Out: every pod the kubelet lists, with its containers, their devices and their claims, or
one error of the clients' tree. gRPC is one POST over HTTP/2: h2 keeps the protocol, and the few messages are read here
by field number, so that no gRPC or protobuf library need be loaded on every node. What we do not know is skipped, as
protobuf wants it.
Invariant: a call ends within its timeout, and no answer larger than LONGEST_ANSWER_BYTES is taken in.
"""

import asyncio
from urllib import parse

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import msgspec

from fallow.clients import errors

LIST = "/v1.PodResourcesLister/List"
LONGEST_ANSWER_BYTES = 16 * 1024 * 1024  # the limit that the kubelet's own client sets for these messages
_READ_BYTES = 64 * 1024
_PREFIX_BYTES = 5  # before a gRPC message: is it compressed, and how long is it
_VARINT, _DELIMITED = 0, 2  # protobuf's wire types
_FIXED_BYTES = {1: 8, 5: 4}
# https://grpc.io/docs/guides/status-codes
_STATUSES = (
    "OK", "Cancelled", "Unknown", "InvalidArgument", "DeadlineExceeded", "NotFound", "AlreadyExists",
    "PermissionDenied", "ResourceExhausted", "FailedPrecondition", "Aborted", "OutOfRange", "Unimplemented", "Internal",
    "Unavailable", "DataLoss", "Unauthenticated",
)


class ResourceDevices(msgspec.Struct, frozen=True, gc=False):
    """Devices of one resource, named as its device plugin names them."""

    resource: str
    ids: tuple[str, ...]


class ClaimedDevice(msgspec.Struct, frozen=True, gc=False):
    """A device that dynamic resource allocation gave."""

    driver: str
    pool: str
    device: str


class ContainerDevices(msgspec.Struct, frozen=True, gc=False):
    name: str
    devices: tuple[ResourceDevices, ...] = ()
    claims: tuple[ClaimedDevice, ...] = ()


class PodDevices(msgspec.Struct, frozen=True, gc=False):
    """A pod and what its containers have. Pods without devices are listed too, by some kubelets also ended ones."""

    namespace: str
    name: str
    containers: tuple[ContainerDevices, ...] = ()


async def list_grants(socket: str, timeout: float) -> tuple[PodDevices, ...]:
    """Raises Unreachable (no socket, no answer in time), Rejected (the kubelet's own message) or BadAnswer."""
    try:
        async with asyncio.timeout(timeout):
            return read_list(await _call(socket, timeout))
    except TimeoutError:
        raise errors.Unreachable(f"the kubelet at {socket} did not answer within {timeout:g} s") from None
    except OSError as problem:
        why = problem.strerror or problem
        raise errors.Unreachable(f"the kubelet cannot be reached at {socket}: {why}") from problem
    except h2.exceptions.H2Error as problem:
        raise errors.BadAnswer(f"the kubelet at {socket} does not speak HTTP/2 as it should: {problem}") from problem


async def _call(socket: str, timeout: float) -> bytes:
    reader, writer = await asyncio.open_unix_connection(socket)
    try:
        exchange = _Exchange(socket, timeout)
        while not exchange.is_over:
            writer.write(exchange.wire.data_to_send())
            await writer.drain()
            exchange.take(await reader.read(_READ_BYTES))
        return exchange.message()
    finally:
        writer.close()


class _Exchange:
    """One request and its answer, without a socket: bytes to send, bytes that came."""

    def __init__(self, socket: str, timeout: float) -> None:
        self.is_over = False
        self._socket = socket
        self._headers: dict[str, str] = {}
        self._body = bytearray()
        self.wire = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding="utf-8"))
        self.wire.initiate_connection()
        self.wire.send_headers(1, [
            (":method", "POST"), (":scheme", "http"), (":path", LIST), (":authority", "localhost"), ("te", "trailers"),
            ("content-type", "application/grpc"), ("grpc-timeout", f"{max(1, round(timeout * 1000))}m"),
        ])
        self.wire.send_data(1, bytes(_PREFIX_BYTES), end_stream=True)  # the request has no fields

    def take(self, data: bytes) -> None:
        if not data:
            raise errors.Unreachable(f"the kubelet at {self._socket} hung up before it had answered")
        for event in self.wire.receive_data(data):
            self._take_event(event)

    def _take_event(self, event: h2.events.Event) -> None:
        match event:
            case h2.events.ResponseReceived() | h2.events.TrailersReceived():
                self._headers |= {_text(name): _text(value) for name, value in event.headers or ()}
            case h2.events.DataReceived():
                self._take_body(event)
            case h2.events.StreamEnded():
                self.is_over = True
            case h2.events.StreamReset():
                raise self._broken("broke off its answer", event.error_code)
            case h2.events.ConnectionTerminated() if event.error_code:
                raise self._broken("ended the connection", event.error_code)

    def _broken(self, what: str, code: h2.errors.ErrorCodes | int | None) -> errors.Unreachable:
        name = code.name if isinstance(code, h2.errors.ErrorCodes) else f"code {code}"
        return errors.Unreachable(f"the kubelet at {self._socket} {what} ({name})")

    def _take_body(self, event: h2.events.DataReceived) -> None:
        self._body += event.data or b""
        announced = int.from_bytes(self._body[1:_PREFIX_BYTES], "big") if len(self._body) >= _PREFIX_BYTES else 0
        if max(announced, len(self._body) - _PREFIX_BYTES) > LONGEST_ANSWER_BYTES:
            raise errors.BadAnswer(f"the kubelet at {self._socket} sends more than {LONGEST_ANSWER_BYTES} bytes")
        self.wire.acknowledge_received_data(event.flow_controlled_length or 0, 1)

    def message(self) -> bytes:
        """The answer's one message, once all is there."""
        status = self._headers.get("grpc-status")
        if status is None:
            answered = f"HTTP status {self._headers.get(':status')}"
            raise errors.BadAnswer(f"what listens at {self._socket} does not speak gRPC ({answered})")
        if status != "0":
            raise self._refusal(status)
        flag, length = self._body[:1], int.from_bytes(self._body[1:_PREFIX_BYTES], "big")
        if flag != b"\0" or len(self._body) != _PREFIX_BYTES + length:
            size = len(self._body)
            raise errors.BadAnswer(f"the kubelet at {self._socket} sent {size} bytes that are not one plain message")
        return bytes(self._body[_PREFIX_BYTES:])

    def _refusal(self, status: str) -> errors.Rejected:
        code = int(status) if status.isdecimal() and len(status) < 4 else 2
        name = _STATUSES[code] if code < len(_STATUSES) else f"status {code}"
        said = parse.unquote(self._headers.get("grpc-message", "")) or "no reason given"
        return errors.Rejected(code, f"the kubelet at {self._socket} refuses ({name}): {said}")


def _text(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode("utf-8", errors="replace")


def read_list(message: bytes) -> tuple[PodDevices, ...]:
    """A ListPodResourcesResponse. What cannot be read raises BadAnswer: half a list would make held GPUs look free."""
    try:
        return tuple(_read_pod(pod) for pod in _fields(message).get(1, ()))
    except (IndexError, ValueError) as problem:
        raise errors.BadAnswer(f"the kubelet's list of pod resources cannot be read: {problem}") from problem


def _read_pod(data: bytes) -> PodDevices:
    fields = _fields(data)
    return PodDevices(_string(fields, 2), _string(fields, 1), tuple(map(_read_container, fields.get(3, ()))))


def _read_container(data: bytes) -> ContainerDevices:
    fields = _fields(data)
    claims = (claim for each in fields.get(5, ()) for claim in _fields(each).get(4, ()))
    devices = tuple(map(_read_devices, fields.get(2, ())))
    return ContainerDevices(_string(fields, 1), devices, tuple(map(_read_claim, claims)))


def _read_devices(data: bytes) -> ResourceDevices:
    fields = _fields(data)
    return ResourceDevices(_string(fields, 1), tuple(each.decode() for each in fields.get(2, ())))


def _read_claim(data: bytes) -> ClaimedDevice:
    fields = _fields(data)
    return ClaimedDevice(_string(fields, 2), _string(fields, 3), _string(fields, 4))


def _string(fields: dict[int, list[bytes]], number: int) -> str:
    return fields[number][-1].decode() if number in fields else ""


def _fields(data: bytes) -> dict[int, list[bytes]]:
    """A message's strings and messages, by field number. All we want is one of these; numbers are skipped."""
    found: dict[int, list[bytes]] = {}
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        begin, at = _extent(data, at, tag & 7)
        if at > len(data):
            raise ValueError(f"the field at byte {begin} of {len(data)} is {at - begin} bytes long")
        if tag & 7 == _DELIMITED:
            found.setdefault(tag >> 3, []).append(data[begin:at])
    return found


def _extent(data: bytes, at: int, wire: int) -> tuple[int, int]:
    """Where the value of this wire type begins, and where it ends."""
    if wire == _DELIMITED:
        length, begin = _varint(data, at)
        return begin, begin + length
    if wire == _VARINT:
        return at, _varint(data, at)[1]
    if wire in _FIXED_BYTES:
        return at, at + _FIXED_BYTES[wire]
    raise ValueError(f"byte {at} begins a value of wire type {wire}, which these messages do not have")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The number that begins at `at`, and where the next thing begins."""
    value = 0
    for shift in range(0, 64, 7):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError(f"the number before byte {at} is longer than 64 bits")
