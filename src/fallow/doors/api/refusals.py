"""What is refused, in the one shape that errors of the API have: `{"error": {"code", "message"}, "missing"?}`.

In: Denied, raised wherever a request turns out not to be one we carry out. Out: the answer.
Invariant: a message says what is wrong and what would be right, and never repeats a credential.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from fallow.doors import answers

JSON: Final = "application/json"
Act: TypeAlias = Callable[[Request], Awaitable[Response]]


class ErrorTold(answers.Shape, frozen=True, kw_only=True):
    code: str
    message: str


class ErrorAnswer(answers.Shape, frozen=True, kw_only=True, omit_defaults=True):
    """`missing`: the right that lacks."""

    error: ErrorTold
    missing: str | None = None


class Denied(HTTPException):
    """Not answered, not done: one word for programs, one sentence for people. `missing`: the right that lacks; `body`:
    where another shape is promised."""

    def __init__(
        self, status: int, code: str, message: str, *, missing: str | None = None, retry_after: int | None = None,
        body: Any = None, headers: Mapping[str, str] | None = None,
    ) -> None:
        said = dict(headers or {})
        if retry_after:
            said["Retry-After"] = str(retry_after)
        if status == 401:
            said["WWW-Authenticate"] = "Bearer"
        super().__init__(status, message, said)
        self.code, self.missing, self.body = code, missing, body


def show(refused: Denied) -> Response:
    body = refused.body
    if body is None:
        error = ErrorTold(code=refused.code, message=refused.detail)
        body = ErrorAnswer(error=error, missing=refused.missing)
    headers = {"Cache-Control": "no-store", **(refused.headers or {})}
    return Response(msgspec.json.encode(body), refused.status_code, headers, JSON)


def shown(act: Act) -> Act:
    """What changes nothing in the cluster: refused like all else, and not audited."""

    async def endpoint(request: Request) -> Response:
        try:
            return await act(request)
        except Denied as refused:
            return show(refused)

    return endpoint


async def answer(request: Request, problem: Exception) -> Response:
    """For an application's exception handlers."""
    assert isinstance(problem, Denied)
    return show(problem)
