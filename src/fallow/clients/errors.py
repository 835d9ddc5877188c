"""What can go wrong on the wire: the one exception tree of all clients.

    ClientError                 something outside did not do what was asked
    ├── Misconfigured           our own files or settings cannot work; nothing was sent; below it:
    │                           NoCluster, nobody said which one
    ├── Unreachable             no connection, no answer in time, TLS refused; below it:
    │                           Vanished, it answers, and what we kept there is gone
    ├── BadAnswer               an answer came, and it cannot be read or believed; below it:
    │                           BadValue, a value that no database of this kind can keep
    ├── DriverDown              the GPU driver does not work at all (carries the driver's code)
    ├── OutOfStock              a cloud has no such machine now
    ├── QuotaSpent              a cloud gives us no more of them
    ├── PartlyDone              some of what was asked for was done, and some was not (carries which, and why)
    └── Rejected                the other side said no (carries status, message, causes); below it, by HTTP status:
                                Unauthorized, Forbidden, NotFound, Conflict, Gone, Invalid, Throttled, ServerFault

Clients translate the libraries' errors into these (`raise ... from`); only what somebody catches has a class.
Messages name the system and the address, never a credential.
"""

from collections.abc import Mapping, Sequence

from fallow.model.units import Seconds


class ClientError(Exception):
    """Something outside did not do what was asked."""


class Misconfigured(ClientError):
    """Our own files or settings cannot work; nothing was sent."""


class NoCluster(Misconfigured):
    """Nobody said which cluster is meant, and we run in none."""


class Unreachable(ClientError):
    """No connection, no answer in time, or TLS refused. `is_undone`: what was asked for was certainly not carried out.

    `retry_after` is as in Rejected; infinite where trying again cannot help.
    """

    def __init__(self, message: str, *, is_undone: bool = False, retry_after: Seconds | None = None) -> None:
        super().__init__(message)
        self.is_undone = is_undone
        self.retry_after = retry_after


class Vanished(Unreachable):
    """A database is there, and what we kept in it is gone: it is to be opened anew."""


class BadAnswer(ClientError):
    """An answer came, and it cannot be read or believed."""


class BadValue(BadAnswer):
    """A database cannot keep a value that it was given, today or tomorrow; nothing was written."""


class OutOfStock(ClientError):
    """A cloud has no such machine now; `instance_type` and `zone` where it says which."""

    def __init__(self, message: str, *, instance_type: str = "", zone: str = "") -> None:
        super().__init__(message)
        self.instance_type, self.zone = instance_type, zone


class QuotaSpent(ClientError):
    """A cloud gives us no more of them: trying again helps only when somebody raises the quota, or machines go."""


class PartlyDone(ClientError):
    """Some of what was asked for was done; `failed`: by name what was not, and why."""

    def __init__(self, of_what: str, failed: Mapping[str, ClientError]) -> None:
        each = "; ".join(f"{name}: {problem}" for name, problem in failed.items())
        super().__init__(f"{of_what} {len(failed)} could not be removed: {each}")
        self.failed = dict(failed)


class DriverDown(ClientError):
    """The GPU driver does not work at all; `code` is its own, None if not even the library is there."""

    def __init__(self, message: str, code: int | None = None) -> None:
        super().__init__(message)
        self.code = code


class Rejected(ClientError):
    """The other side said no.

    `causes` are (field, message) pairs where the other side gives them (Kubernetes `details.causes`); `retry_after` is
    how long it asked us to wait, None if it did not. `is_behind`: it was not the server that was asked, but one to whom
    that one passed the question on.
    """

    is_behind = False

    def __init__(
        self, status: int, message: str, *, causes: Sequence[tuple[str, str]] = (), retry_after: Seconds | None = None
    ) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.status = status
        self.causes = tuple(causes)


class Unauthorized(Rejected):
    """401."""


class Forbidden(Rejected):
    """403."""


class NotFound(Rejected):
    """404."""


class Conflict(Rejected):
    """409, or a 422 about metadata.uid: the object is not the one we looked at."""


class Gone(Rejected):
    """410: a continue token or resource version that is too old."""


class Invalid(Rejected):
    """400 or 422: the request itself is wrong."""


class Throttled(Rejected):
    """429."""


class ServerFault(Rejected):
    """5xx."""


_MOST_SAID = 400  # characters of what the other side says
_BY_STATUS: dict[int, type[Rejected]] = {
    400: Invalid, 401: Unauthorized, 403: Forbidden, 404: NotFound, 409: Conflict, 410: Gone, 422: Invalid,
    429: Throttled,
}


def rejection(
    status: int, message: str, *, causes: Sequence[tuple[str, str]] = (), retry_after: Seconds | None = None
) -> Rejected:
    """The error for an HTTP status, so that every client names the same thing the same way; of a long message, such as
    one that quotes a whole object, its two ends: what is wrong stands behind the object."""
    kind = _BY_STATUS.get(status, ServerFault if status >= 500 else Rejected)
    if status == 422 and any(field == "metadata.uid" for field, _ in causes):
        kind = Conflict
    half = _MOST_SAID // 2
    said = message if len(message) <= _MOST_SAID else f"{message[:half]} ... {message[-half:]}"
    return kind(status, said, causes=causes, retry_after=retry_after)
