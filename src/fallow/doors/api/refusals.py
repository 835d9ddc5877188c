"""What is refused, in the one shape that errors of the API have: `{"error": {"code", "message"}, "missing"?}`.

In: Denied, raised wherever a request turns out not to be one we carry out. Out: the answer.
Invariant: a message says what is wrong and what would be right, and never repeats a credential.
"""

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

JSON = "application/json"


class Denied(HTTPException):
    """One word for programs, one sentence for people; `missing`: the right that lacks."""

    def __init__(
        self, status: int, code: str, message: str, *, missing: str | None = None, retry_after: int | None = None
    ) -> None:
        headers = {"Retry-After": str(retry_after)} if retry_after else {}
        if status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        super().__init__(status, message, headers)
        self.code, self.missing = code, missing


def show(refused: Denied) -> Response:
    said: dict[str, object] = {"error": {"code": refused.code, "message": refused.detail}}
    if refused.missing is not None:
        said["missing"] = refused.missing
    return Response(msgspec.json.encode(said), refused.status_code, refused.headers, JSON)


async def answer(request: Request, problem: Exception) -> Response:
    """For an application's exception handlers."""
    assert isinstance(problem, Denied)
    return show(problem)
