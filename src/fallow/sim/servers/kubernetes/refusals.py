"""How an API server says no: an HTTP code and a Status object with reason, message, details and causes.

Each function is one of the real server's sentences, because clients read them: kubectl and the product do.
"""

from collections.abc import Sequence
from typing import Any

_REASONS = {
    400: "BadRequest", 401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 405: "MethodNotAllowed",
    406: "NotAcceptable", 409: "Conflict", 410: "Expired", 415: "UnsupportedMediaType", 422: "Invalid",
    429: "TooManyRequests", 504: "Timeout",
}


class ApiRefusal(Exception):
    """Becomes the answer to the request. `details` as in a Status."""

    def __init__(self, code: int, message: str, *, reason: str = "", details: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code, self._details = code, details
        self._reason = reason or _REASONS.get(code, "")

    def to_status(self) -> dict[str, Any]:
        status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": str(self)}
        more = {"code": self.code, "reason": self._reason or None, "details": self._details}
        return status | {name: value for name, value in more.items() if value is not None}


def qualify(plural: str, group: str) -> str:
    return f"{plural}.{group}" if group else plural


def details(name: str, group: str, kind: str, **more: Any) -> dict[str, Any]:
    return {**({"name": name} if name else {}), **({"group": group} if group else {}), "kind": kind, **more}


def bad(message: str) -> ApiRefusal:
    return ApiRefusal(400, message)


def unknown_format(*known: str) -> ApiRefusal:
    formats = ", ".join(known)
    message = f"the body of the request was in an unknown format - accepted media types include: {formats}"
    return ApiRefusal(415, message)


def no_such_path() -> ApiRefusal:
    return ApiRefusal(404, "the server could not find the requested resource", details={})


def absent(plural: str, group: str, name: str) -> ApiRefusal:
    return ApiRefusal(404, f'{qualify(plural, group)} "{name}" not found', details=details(name, group, plural))


def exists(plural: str, group: str, name: str) -> ApiRefusal:
    message = f'{qualify(plural, group)} "{name}" already exists'
    return ApiRefusal(409, message, reason="AlreadyExists", details=details(name, group, plural))


def conflict(plural: str, group: str, name: str, why: str = "") -> ApiRefusal:
    why = why or "the object has been modified; please apply your changes to the latest version and try again"
    message = f'Operation cannot be fulfilled on {qualify(plural, group)} "{name}": {why}'
    return ApiRefusal(409, message, details=details(name, group, plural))


def invalid(kind: str, group: str, name: str, faults: Sequence[tuple[str, str, str]]) -> ApiRefusal:
    """`faults`: (field, reason such as FieldValueInvalid, message)."""
    causes = [{"reason": reason, "message": message, "field": field} for field, reason, message in faults]
    words = ", ".join(f"{field}: {message}" for field, _, message in faults)
    text = f'{qualify(kind, group)} "{name}" is invalid: {words if len(faults) == 1 else f"[{words}]"}'
    return ApiRefusal(422, text, details=details(name, group, kind, causes=causes))


def bad_patch(result: str, why: str) -> ApiRefusal:
    """A patch whose outcome is no object of the kind: the real server quotes all of it."""
    message = f"Invalid value: {result}: {why}"
    causes = [{"reason": "FieldValueInvalid", "message": message, "field": "patch"}]
    return ApiRefusal(422, f' "" is invalid: patch: {message}', details={"causes": causes})


def unfit_patch() -> ApiRefusal:
    """A JSON patch that cannot be read or whose test fails: the real server does not say more."""
    return ApiRefusal(422, "the server rejected our request due to an error in our request", details={})


def field_conflicts(fields: Sequence[tuple[str, str, str]]) -> ApiRefusal:
    """`fields`: (manager, apiVersion, field) of what others own."""
    causes = [
        {"reason": "FieldManagerConflict", "message": f'conflict with "{manager}" using {version}', "field": field}
        for manager, version, field in fields
    ]
    if len(causes) == 1:
        text = f"1 conflict: {causes[0]['message']}: {causes[0]['field']}"
    else:
        by_manager: dict[str, list[str]] = {}
        for manager, version, field in fields:
            by_manager.setdefault(f'conflicts with "{manager}" using {version}:', []).append(f"- {field}")
        lines = "\n".join("\n".join((head, *listed)) for head, listed in by_manager.items())
        text = f"{len(causes)} conflicts: {lines}"
    return ApiRefusal(409, f"Apply failed with {text}", details={"causes": causes})


def too_old(version: object) -> ApiRefusal:
    return ApiRefusal(410, f"too old resource version: {version}")


def too_new(version: int, current: int) -> ApiRefusal:
    causes = [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]
    message = f"Timeout: Too large resource version: {version}, current: {current}"
    return ApiRefusal(504, message, details={"causes": causes, "retryAfterSeconds": 1})
