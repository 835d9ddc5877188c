"""A review as sharing reads it: what of a pod tells whether it may share a GPU, and nothing else is decoded.

In: the bytes of a request. Out: a ShareRequest, or only its uid where the rest cannot be read; a SharePod made of it
as observe/share_pods.py has it.
"""

from typing import Final

import msgspec

from fallow.doors.webhook import reviews
from fallow.model.sharing import SharePod
from fallow.observe import share_pods
from fallow.observe.budgets import OwnerRef


class ShareRequest(msgspec.Struct, frozen=True, rename="camel"):
    uid: str
    namespace: str = ""
    operation: str = ""
    object: share_pods.ShareObject = share_pods.ShareObject()

    @property
    def owners(self) -> list[OwnerRef] | None:
        return self.object.metadata.owner_references


class ShareAsked(msgspec.Struct, frozen=True):
    request: ShareRequest


_ASKED: Final = msgspec.json.Decoder(ShareAsked)


def read(body: bytes) -> ShareRequest | str:
    """The request; only its uid, where the rest cannot be read. Raises one of UNREADABLE where not even that can."""
    try:
        return _ASKED.decode(body).request
    except reviews.UNREADABLE:
        return reviews.read_uid(body)


def see(request: ShareRequest) -> SharePod:
    return share_pods.see(request.object, request.namespace)
