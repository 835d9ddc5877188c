"""Asking AWS: forms in and XML out (Auto Scaling, EC2), JSON both ways (SQS), each signed for its service.

In: a service, what is asked of it and the region. Out: an XML element or a decoded answer. AWS says by its code what is
wrong, mostly with status 400; WORDS has those that mean something to whoever adds and removes machines.
Invariant: nothing that changes a group is sent twice.
"""

import re
import urllib.parse
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

import msgspec
import yarl

from fallow.clients import errors
from fallow.clients.clouds import wire
from fallow.clients.clouds.aws import credentials
from fallow.clients.clouds.wire import CloudTrouble
from fallow.model.units import Instant, Seconds

T = TypeVar("T")

_VERSIONS: Final = {"autoscaling": "2011-01-01", "ec2": "2016-11-15"}
_FORM: Final = {"content-type": "application/x-www-form-urlencoded"}
_XML_SAYS: Final = re.compile(rb"<Code>([\w.]{1,80})</Code>\s*(?:<Message>([^<]{0,2000})</Message>)?")
WORDS: Final[wire.Words] = {
    **dict.fromkeys(
        ("InsufficientInstanceCapacity", "InsufficientCapacity", "InsufficientHostCapacity", "UnfulfillableCapacity",
         "InsufficientReservedInstanceCapacity", "ReservationCapacityExceeded", "SpotMaxPriceTooLow"),
        CloudTrouble.out_of_stock),
    **dict.fromkeys(
        ("VcpuLimitExceeded", "MaxSpotInstanceCountExceeded", "InstanceLimitExceeded",
         "MaxSpotFleetRequestCountExceeded"),
        CloudTrouble.quota_spent),
    **dict.fromkeys(
        ("Throttling", "ThrottlingException", "RequestLimitExceeded", "RequestThrottled", "TooManyRequestsException"),
        CloudTrouble.throttled),
    **dict.fromkeys(
        ("AuthFailure", "InvalidClientTokenId", "SignatureDoesNotMatch", "ExpiredToken", "ExpiredTokenException",
         "UnrecognizedClientException", "IncompleteSignature", "MissingAuthenticationToken"),
        CloudTrouble.unauthorized),
    **dict.fromkeys(
        ("AccessDenied", "AccessDeniedException", "UnauthorizedOperation", "OptInRequired"), CloudTrouble.forbidden),
    **dict.fromkeys(("ScalingActivityInProgress", "ResourceContention", "ResourceInUse"), CloudTrouble.conflict),
    **dict.fromkeys(
        ("AWS.SimpleQueueService.NonExistentQueue", "QueueDoesNotExist", "InvalidInstanceID.NotFound",
         "InvalidLaunchTemplateId.NotFound", "InvalidLaunchTemplateName.NotFoundException"), CloudTrouble.missing),
    **dict.fromkeys(("ServiceUnavailable", "Unavailable", "InternalError", "InternalFailure"), CloudTrouble.fault),
}


class _JsonSays(msgspec.Struct):
    type: str = msgspec.field(default="", name="__type")
    message: str = ""


class AwsWire(wire.CloudWire):
    def explain(self, status: int, answer: bytes, wait: Seconds | None) -> errors.ClientError:
        if found := _XML_SAYS.search(answer[:8192]):
            code, said = found[1].decode(), (found[2] or b"").decode(errors="replace")
        else:
            try:
                read = msgspec.json.decode(answer, type=_JsonSays)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                read = _JsonSays()
            code, said = read.type.rpartition("#")[2][:80], read.message
        return wire.make_error(self.who, wire.CloudRefusal(status, code, said, wait), WORDS)


class AwsQuery:
    """`endpoint`: of all services; "": each at its own address in the region. `login`: where credentials are handed
    out, if not where they usually are."""

    def __init__(
        self, asking: AwsWire, environment: Mapping[str, str], *, clock: Callable[[], Instant], region: str = "",
        endpoint: str = "", login: credentials.AwsAddresses | None = None,
    ) -> None:
        self.wire, self.clock, self._endpoint = asking, clock, endpoint
        self._signers = {
            service: credentials.SigV4(
                environment, region, service, purpose="driving Auto Scaling groups",
                addresses=login or credentials.AwsAddresses(),
            )
            for service in ("autoscaling", "ec2", "sqs")
        }

    async def read(self, service: str, action: str, asked: Mapping[str, str]) -> ElementTree.Element:
        return self._parse(await self._send(service, action, asked, is_read=True))

    async def change(self, action: str, asked: Mapping[str, str], *, is_once: bool = False) -> None:
        await self._send("autoscaling", action, asked, is_once=is_once)

    async def read_pages(
        self, service: str, action: str, asked: Mapping[str, str], token: str
    ) -> list[ElementTree.Element]:
        """`token`: where in an answer the next page is named; every page has one of its own name in requests."""
        pages, following = list[ElementTree.Element](), ""
        for _ in range(wire.MOST_PAGES):
            page = await self.read(service, action, {**asked, **({"NextToken": following} if following else {})})
            pages.append(page)
            following = find_text(page, token)
            if not following:
                return pages
        raise self.wire.too_many_pages()

    async def ask_queue(self, action: str, url: str, asked: Mapping[str, Any], shape: type[T]) -> T:
        """What only reads, or may be done twice. `url`: the queue's; it names the host that is asked."""
        host = yarl.URL(url).origin() if not self._endpoint else yarl.URL(self._endpoint)
        headers = {"content-type": "application/x-amz-json-1.0", "x-amz-target": f"AmazonSQS.{action}"}
        body = msgspec.json.encode({"QueueUrl": url, **asked})
        answer = await self.wire.ask(
            "POST", host / "", self.clock(), signer=self._signers["sqs"], body=body, headers=headers
        )
        return self.wire.decode(answer, shape)

    async def _send(
        self, service: str, action: str, asked: Mapping[str, str], *, is_read: bool = False, is_once: bool = False
    ) -> bytes:
        signer = self._signers[service]
        url = yarl.URL(f"{self._endpoint or credentials.service_url(service, signer.region)}/")
        body = urllib.parse.urlencode({"Action": action, "Version": _VERSIONS[service], **asked}).encode()
        answer = await self.wire.send(
            "POST", url, self.clock(), signer=signer, body=body, headers=_FORM, is_read=is_read, is_once=is_once
        )
        return answer.body

    def _parse(self, answer: bytes) -> ElementTree.Element:
        try:
            return ElementTree.fromstring(answer)
        except (ElementTree.ParseError, ValueError, LookupError):  # an encoding that nobody knows, too
            raise errors.BadAnswer(f"{self.wire.who} gave an answer that cannot be read") from None


def number_all(name: str, values: Iterable[str]) -> dict[str, str]:
    """`Names.member` and a, b become Names.member.1 and Names.member.2."""
    return {f"{name}.{number}": value for number, value in enumerate(values, 1)}


def find_text(within: ElementTree.Element, path: str) -> str:
    return (within.findtext(_anywhere(path)) or "").strip()


def find_all(within: ElementTree.Element, path: str) -> list[ElementTree.Element]:
    return within.findall(_anywhere(path))


def _anywhere(path: str) -> str:
    """In whatever XML namespace."""
    return "/".join(f"{{*}}{step}" for step in path.split("/"))
