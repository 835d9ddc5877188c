"""Notices that AWS takes a machine back, from an SQS queue that EventBridge fills.

In: messages of the queue. Out: notices, each with the receipt by which the queue forgets it: an interruption, two
minutes ahead, or the recommendation to rebalance, which has no end. The queue forgets nothing that was not recorded.
Invariant: whoever can write to the queue can only name a machine that is there and that AWS itself calls a spot one;
what else stands in it is dropped, or it would stand before true notices for days.
"""

import xml.etree.ElementTree as ElementTree
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, TypeAlias

import msgspec

from fallow.clients import errors
from fallow.clients.clouds.aws.query import AwsQuery, find_text
from fallow.model import units
from fallow.model.machines import MachineNotice
from fallow.model.units import Instant, Seconds

_LEAD: Final[Seconds] = 120.0
_ENDS: Final = "EC2 Spot Instance Interruption Warning"
_MAY_END: Final = "EC2 Instance Rebalance Recommendation"
_AT_ONCE: Final = 10  # messages, the most that SQS gives
_MOST_TIMES: Final = 10
_HIDDEN: Final = 20  # seconds until a message that was not recorded comes again

Find: TypeAlias = Callable[[Iterable[str]], Awaitable[Mapping[str, ElementTree.Element]]]


class _Message(msgspec.Struct, rename="pascal"):
    receipt_handle: str
    body: str = ""


class _Messages(msgspec.Struct, rename="pascal"):
    messages: list[_Message] = []


class _Failed(msgspec.Struct, rename="pascal"):
    failed: list[dict[str, object]] = []


class _Detail(msgspec.Struct, rename="kebab"):
    instance_id: str = ""


class _CloudEvent(msgspec.Struct, rename="kebab"):
    detail_type: str = ""
    source: str = ""
    time: str = ""
    detail: _Detail = msgspec.field(default_factory=_Detail)


class InterruptionQueue:
    """`find`: which of these machines there are, as EC2 has them."""

    def __init__(self, asking: AwsQuery, url: str, find: Find) -> None:
        self._aws, self._url, self._find = asking, url, find

    async def receive(self) -> tuple[MachineNotice, ...]:
        messages = await self._fetch()
        read = [(each, _read(each)) for each in messages]
        seen = await self._find({event.detail.instance_id for _, event in read if event is not None})
        now = self._aws.clock()
        notices = [
            _make_notice(message, event, seen[event.detail.instance_id], now)
            for message, event in read if event is not None and event.detail.instance_id in seen
            and find_text(seen[event.detail.instance_id], "instanceLifecycle") == "spot"
        ]
        meant = {each.receipt for each in notices}
        await self.forget([each.receipt_handle for each in messages if each.receipt_handle not in meant])
        return tuple(notices)

    async def _fetch(self) -> list[_Message]:
        found = list[_Message]()
        asked = {"MaxNumberOfMessages": _AT_ONCE, "WaitTimeSeconds": 0, "VisibilityTimeout": _HIDDEN}
        for _ in range(_MOST_TIMES):
            page = (await self._aws.ask_queue("ReceiveMessage", self._url, asked, _Messages)).messages
            found += page
            if len(page) < _AT_ONCE:
                break
        return found

    async def forget(self, receipts: Sequence[str]) -> None:
        for begin in range(0, len(receipts), _AT_ONCE):
            entries = [
                {"Id": str(number), "ReceiptHandle": each}
                for number, each in enumerate(receipts[begin:begin + _AT_ONCE])
            ]
            answer = await self._aws.ask_queue("DeleteMessageBatch", self._url, {"Entries": entries}, _Failed)
            if answer.failed:
                raise errors.BadAnswer(f"{self._aws.wire.who}: the queue keeps {len(answer.failed)} messages")


def _read(message: _Message) -> _CloudEvent | None:
    """None: it is no notice."""
    try:
        event = msgspec.json.decode(message.body, type=_CloudEvent)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    is_notice = event.source == "aws.ec2" and event.detail_type in (_ENDS, _MAY_END)
    return event if is_notice and units.read_instant(event.time) is not None else None


def _make_notice(message: _Message, event: _CloudEvent, seen: ElementTree.Element, now: Instant) -> MachineNotice:
    zone, said_at = find_text(seen, "placement/availabilityZone"), units.parse_instant(event.time)
    return MachineNotice(
        provider_id=f"aws:///{zone}/{event.detail.instance_id}", seen_at=now, receipt=message.receipt_handle,
        ends_at=said_at + _LEAD if event.detail_type == _ENDS else None,
    )
