"""Asking a running daemon instead of looking: it answers at once, needs no measurements of ours, and says what it will
do itself.

In: the options that say which cluster and which daemon, and a question. Out: Told, the daemon's answer with whose it is
and how old; or Untold, why there is none, in one sentence. Then whoever asked looks for themselves.
Invariant: an answer that cannot be relied upon (of another version, older than three intervals, unreadable) is none.
Nothing is written, and no way to fail is a traceback.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Annotated, Any, Final, Generic, TypeVar
from urllib import parse

import click
import msgspec

from fallow import __version__, logs, names, settings, verbs
from fallow.clients import errors
from fallow.doors import answers
from fallow.doors.cli import interrupts, show, where
from fallow.model import units
from fallow.model.units import Instant
from fallow.settings import readers
from fallow.wiring import asking, helping

T = TypeVar("T")

_STALE_AFTER: Final = 3  # intervals
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class DaemonAbout(answers.Shape, frozen=True, kw_only=True):
    """What a daemon says of itself, in every version."""

    version: str
    now: str
    as_of: str | None
    interval_seconds: Annotated[float, msgspec.Meta(gt=0, le=31 * units.DAY)]  # by a longer one nothing would be old
    mode: str
    watches: tuple[str, ...] = ()  # namespaces; none: all
    failure: answers.FailureTold | None = None


class Daemon(msgspec.Struct, frozen=True):
    """A daemon that can be relied upon."""

    door: asking.DaemonDoor
    about: DaemonAbout

    async def read(self, path: str, kind: type[T], **params: str | None) -> T:
        """Raises errors.ClientError; NotFound where the daemon knows of no such thing."""
        given = {name: value for name, value in params.items() if value is not None}
        return decode(await self.door.get(path, given), kind)

    def check_sees(self, namespace: str) -> None:
        """Raises errors.ClientError where it does not look there; "": everywhere."""
        if self.about.watches and namespace not in self.about.watches:
            raise NotWatched(f"it watches only {', '.join(self.about.watches)}")

    @property
    def now(self) -> Instant:
        """By its own clock, which need not be ours."""
        return units.parse_instant(self.about.now)

    def say(self, *, may_look: bool = True) -> str:
        """Whose answer it is, and how old. `may_look`: the command has a --look."""
        at = units.read_instant(self.about.as_of)
        age = f"{units.humane(self.now - at)} ago" if at is not None and self.now > at else "just now"
        how = "acting" if self.about.mode == "acting" else "in dry-run"
        trouble = self.about.failure
        fails = f"; since then it could not decide: {trouble.because}" if trouble else ""
        only = f"; only {', '.join(self.about.watches)}" if self.about.watches else ""
        often = f"it looks every {units.humane(self.about.interval_seconds)}, {how}{only}"
        anew = "; --look looks anew" if may_look else ""
        return f"As {self.door.where} saw it {age} ({often}{anew}){fails}"


def path_of(target: str, namespace: str) -> str:
    """Where the API has a workload, by the words of whoever typed it."""
    kind, name = verbs.read_target(target)
    return "/".join(["/api/v1/workloads", *(parse.quote(part, safe="") for part in (namespace, kind, name))])


class NotWatched(errors.ClientError):
    """The daemon does not look there."""


class Told(msgspec.Struct, Generic[T], frozen=True):
    answer: T
    whose: str
    at: Instant  # now, by the daemon's clock


class UnknownThere(click.ClickException):
    """The daemon answers, and there is no such thing."""


class Untold(msgspec.Struct, frozen=True):
    """`because`: one sentence, "" where somebody asked for a look. `is_usual`: there simply is no daemon. `is_there`:
    there is one; False where nobody tells us."""

    because: str
    is_usual: bool = False
    is_there: bool = False


def ask(
    given: dict[str, Any], question: Callable[[Daemon], Awaitable[T]], *, token_file: Path | None = None,
    patience: units.Seconds | None = None,
) -> Told[T] | Untold:
    """`given`: the options of where.py, of which this takes its own. `token_file`: what proves to a URL who asks."""
    if given.get("look"):
        return Untold("")
    url, proof = _read_url(given), _read_proof(given)
    logs.set_up("default", "error")
    cluster = (given.get("kubeconfig"), given.get("context"))
    with show.refusals(), helping.say_what_to_do():
        doors = asking.open_doors(*cluster, url, proof, token_file=token_file, patience=patience or asking.PATIENCE)
        return interrupts.run(_ask(doors, question, may_look="look" in given))


def _read_url(given: dict[str, Any]) -> str | None:
    text = given.get("daemon_url") or settings.environment().get(where.URL_VARIABLE)
    if not text:
        return None
    try:
        return readers.http_url(text)
    except ValueError:
        such = "is no address such as http://localhost:8080"
        raise click.UsageError(f"--daemon-url: {show.plain(text)} {such}") from None


def _read_proof(given: dict[str, Any]) -> asking.Proof:
    match given.get("daemon_auth") or settings.environment().get(where.AUTH_VARIABLE) or "auto":
        case "auto" | "kube" | "none" as proof:
            return proof
        case other:
            raise click.UsageError(f"{where.AUTH_VARIABLE}: {show.plain(other)} is none of auto, kube, none")


async def _ask(
    opening: AbstractAsyncContextManager[Sequence[asking.DaemonDoor]], question: Callable[[Daemon], Awaitable[T]], *,
    may_look: bool,
) -> Told[T] | Untold:
    async with opening as doors:
        found = await _find(doors)
        if isinstance(found, Untold):
            return found
        try:
            answer = await question(found)
        except errors.NotFound as problem:
            raise UnknownThere(show.plain(problem)) from None
        except errors.ClientError as problem:
            return Untold(f"{found.door.where} {why_not(problem, found.door)}", is_there=True)
        return Told(answer, found.say(may_look=may_look), found.now)


async def _find(doors: Sequence[asking.DaemonDoor]) -> Daemon | Untold:
    """The first that can be relied upon; else why the first of those that are there cannot. What stands in a namespace
    of somebody's own is asked, and shown who asks, only where no daemon is known of that is installed for all."""
    installed = [door for door in doors if door.namespace in names.SYSTEM_NAMESPACES]
    found = await _meet_all(installed)
    if not any(isinstance(each, Daemon) or each.is_there for each in found):
        found += await _meet_all([door for door in doors if door not in installed])
    daemons = [each for each in found if isinstance(each, Daemon)]
    problems = [each for each in found if isinstance(each, Untold) and not each.is_usual]
    if daemons:
        return daemons[0]
    if problems:
        return problems[0]
    named = ", ".join(door.namespace for door in doors)
    return Untold(f"no daemon answers: there is no Service {names.DAEMON_SERVICE} in {named}", is_usual=True)


async def _meet_all(doors: Sequence[asking.DaemonDoor]) -> list[Daemon | Untold]:
    return await asyncio.gather(*map(_meet, doors))


async def _meet(door: asking.DaemonDoor) -> Daemon | Untold:
    try:
        about = decode(await door.get("/api/v1/overview", {}), DaemonAbout)
    except errors.NotFound as problem:
        if not problem.is_behind:
            return Untold("", is_usual=True)
        return Untold(f"{door.where} serves no API (its --dashboard-addr)", is_there=True)
    except errors.ClientError as problem:
        if door.namespace and _is_the_servers(problem):
            raise
        may_not_ask = isinstance(problem, errors.Forbidden) and not problem.is_behind
        return Untold(f"{door.where} {why_not(problem, door)}", is_there=not may_not_ask)
    because = _why_unreliable(about)
    return Untold(f"{door.where} {because}", is_there=True) if because else Daemon(door, about)


def _is_the_servers(problem: errors.ClientError) -> bool:
    """It is the API server that cannot be reached or does not know us: a look of one's own would hear the same."""
    if isinstance(problem, errors.Unreachable):
        return problem.is_undone
    return isinstance(problem, errors.Unauthorized) and not problem.is_behind


def _why_unreliable(about: DaemonAbout) -> str:
    if about.version != __version__:
        return f"is of version {about.version}, and this is {__version__}"
    at, now = units.read_instant(about.as_of), units.read_instant(about.now)
    if now is None:
        return "does not say what time it is"
    if at is None:
        return "has not looked yet"
    if at > now + units.MINUTE:
        return "says that it looked at a time that is yet to come"
    if now - at > _STALE_AFTER * about.interval_seconds:
        return f"last saw the cluster {units.humane(now - at)} ago, and it looks every " \
            f"{units.humane(about.interval_seconds)}"
    return ""


def why_not(problem: errors.ClientError, door: asking.DaemonDoor) -> str:
    """Behind the name of who was asked."""
    if isinstance(problem, errors.Rejected) and problem.is_behind and problem.status == 401:
        if not door.namespace:
            return f"does not know you: {problem}"
        return (
            "asks who you are, which the API server does not pass on: kubectl -n "
            f"{door.namespace} port-forward svc/{names.DAEMON_SERVICE} {names.DAEMON_PORT}, then --daemon-url "
            f"http://localhost:{names.DAEMON_PORT}; or --daemon-auth kube"
        )
    if isinstance(problem, NotWatched):
        return f"cannot tell: {problem}"
    if isinstance(problem, errors.Forbidden):
        return f"may not be asked: {problem}"
    if isinstance(problem, errors.Rejected) and problem.status == 503:  # it is there, and lacks what was asked for
        return f"answers: {problem}"
    return f"does not answer: {problem}"


def decode(body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except _UNREADABLE as problem:
        raise errors.BadAnswer(f"its answer cannot be read ({problem})") from None


@contextlib.contextmanager
def looking_instead(untold: Untold, output: str) -> Iterator[None]:
    """Around a look of one's own: where it has no first line to say it in, why no daemon answers is said beside it."""
    if output in ("json", "yaml") and not untold.is_usual and untold.because:
        show.tell(name_source(untold))
    try:
        yield
    except click.ClickException:
        if output not in ("json", "yaml") and not untold.is_usual and untold.because:
            show.tell(name_source(untold))
        raise


def name_source(untold: Untold) -> str:
    """The first line of a look of one's own; "" where that was asked for."""
    return f"A look of its own: {untold.because}" if untold.because else ""
