"""Anybody's webhook: the explanation of a workload as JSON, signed where a key is given.

The signature is the hex HMAC-SHA256 of `TIMESTAMP.BODY`, so that who receives it can tell that it is ours and new.
Confirmed by any 2xx.
"""

import hashlib
import hmac

import msgspec

from fallow.clients.messages import post
from fallow.model.secret import Secret
from fallow.model.units import Instant

TIMESTAMP, SIGNATURE = "X-Fallow-Timestamp", "X-Fallow-Signature"


async def send(
    poster: post.Poster, address: Secret[str], content: object, now: Instant, *,
    auth_header: Secret[str] | None = None, hmac_key: Secret[str] | None = None,
) -> None:
    body, stamp = msgspec.json.encode(content), str(int(now))
    headers = {TIMESTAMP: stamp}
    if auth_header is not None:
        headers["Authorization"] = auth_header.reveal()
    if hmac_key is not None:
        headers[SIGNATURE] = sign(hmac_key, stamp, body)
    await poster.post(address, body, headers)


def sign(key: Secret[str], stamp: str, body: bytes) -> str:
    made = hmac.new(key.reveal().encode(), stamp.encode() + b"." + body, hashlib.sha256)
    return f"sha256={made.hexdigest()}"
