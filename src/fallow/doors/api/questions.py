"""One question over HTTP: which path with which parameters it may have, and what is read of a request.

In: an Endpoint of the table, a request. Out: its parameters as values; a ReadAsk, by which an answer is made.
Invariant: a parameter that is wrong, or that there is none of that name, is a sentence and 400.
"""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec
from starlette.requests import Request

from fallow.account import audit
from fallow.doors.answers import explaining
from fallow.doors.answers import rows as telling
from fallow.doors.answers.cost_books import CostBooks
from fallow.doors.api.editions import Edition, Editions
from fallow.doors.api.refusals import Denied
from fallow.model import cluster
from fallow.model.units import Instant
from fallow.settings.serving import AuthMode

May: TypeAlias = Callable[[Request, cluster.Workload], Awaitable[explaining.MayDo]]
MayIn: TypeAlias = Callable[[Request, Sequence[cluster.Ref]], Awaitable[tuple[telling.RowsMay, ...]]]
Read: TypeAlias = Callable[[str], Any]  # raises ValueError, one sentence

NAMESPACE: Final = "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"
KIND: Final = "^[A-Za-z][-A-Za-z0-9.]{0,252}$"
NAME: Final = "^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$"
ALERT: Final = "^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"


class Parameter(msgspec.Struct, frozen=True, kw_only=True):
    """`in_path`: a part of the path, by its name there. `pattern`: what of a text is accepted, for the document."""

    name: str
    help: str
    read: Read = str
    choices: tuple[str, ...] = ()
    default: str | None = None
    in_path: bool = False
    pattern: str | None = None
    form: str | None = None  # the same, where it has a name
    most: int | None = None  # it is a whole number, from 1 or 0 up to this one
    least: int = 1
    is_required: bool = False


class ReadAsk(msgspec.Struct, frozen=True, kw_only=True):
    """One question: what there is to tell, by which parameters, by whom."""

    editions: Editions
    given: Mapping[str, Any]
    request: Request
    may: May | None
    may_in: MayIn | None = None
    auth: AuthMode
    latest: Edition | None

    @property
    def edition(self) -> Edition:
        if self.latest is None:
            raise Denied(503, "NotYet", "no cycle has ended yet", retry_after=5)
        return self.latest

    @property
    def now(self) -> Instant:
        return self.editions.clock()

    @property
    def kept(self) -> audit.Audit:
        if self.editions.kept is None:
            raise Denied(503, "NoHistory", "nothing is written down here")
        return self.editions.kept

    @property
    def books(self) -> CostBooks:
        if self.editions.books is None:
            raise Denied(503, "NoBooks", NO_BOOKS)
        return self.editions.books


NO_BOOKS: Final = "costs are not kept here: start fallow with --cost true, and with a place for its ledger"


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    summary: str
    returns: Any
    answer: Callable[[ReadAsk], Awaitable[Any]]
    parameters: tuple[Parameter, ...] = ()
    is_timed: bool = False  # its answer is of this moment, not of a revision
    refusal: Any = None  # a shape of its own for what is wrong: with `code` and `message`, or raised by itself
    is_live: bool = False  # not even of this moment: it is asked for what was written an instant ago
    is_leaders: bool = False  # it rests on what only who leads writes down: a follower asks there


def read_parameters(endpoint: Endpoint, request: Request) -> dict[str, Any]:
    known = {each.name: each for each in endpoint.parameters}
    query = request.query_params
    for name in query:
        if name not in known or known[name].in_path:
            there = ", ".join(each.name for each in endpoint.parameters if not each.in_path) or "none"
            raise Denied(400, "BadParameter", f"there is no parameter {name!r} here; there are: {there}")
        if len(query.getlist(name)) > 1:
            raise Denied(400, "BadParameter", f"the parameter {name!r} is given twice")
    found = {}
    for name, each in known.items():
        text = request.path_params[name] if each.in_path else query.get(name, each.default)
        if text is None and each.is_required:
            raise Denied(400, "BadParameter", f"the parameter {name!r} is needed: {each.help}")
        found[name] = None if text is None else _read(each, text)
    return found


def _read(parameter: Parameter, text: str) -> Any:
    if parameter.choices and text not in parameter.choices:
        allowed = ", ".join(parameter.choices)
        raise Denied(400, "BadParameter", f"{parameter.name}: {text!r} is not one of {allowed}")
    try:
        return parameter.read(text)
    except (ValueError, OverflowError) as problem:
        raise Denied(400, "BadParameter", f"{parameter.name}: {problem}") from None


def whole(least: int, most: int) -> Read:
    def read(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,9}", text) or not least <= int(text) <= most:
            raise ValueError(f"{text!r} is not a whole number from {least} to {most}")
        return int(text)

    return read


ONE: Final = (
    Parameter(name="namespace", help="Namespace of the workload.", in_path=True, pattern=NAMESPACE),
    Parameter(name="kind", help="Its kind, such as Deployment or Rollout.argoproj.io.", in_path=True, pattern=KIND),
    Parameter(name="name", help="Its name.", in_path=True, pattern=NAME),
)
OF_ALERT: Final = (
    Parameter(name="budget", help="Name of the CostBudget.", in_path=True, pattern=NAME),
    Parameter(name="alert", help="Name of one of its alerts.", in_path=True, pattern=ALERT),
)
