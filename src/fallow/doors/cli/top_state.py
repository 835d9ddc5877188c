"""What `fallow top` shows and what its keys do, without a terminal: states, and how each follows from the one before.

In: a TopState and a key. Out: the next TopState. What is to be done outside stands in `wish`: whoever carries it out
takes it from there.
Invariant: nothing is asked for that changes anything before somebody has read what it will do and said yes to exactly
that workload; the mark stays on its workload, wherever new rows put it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

import msgspec

from fallow.doors.answers import many
from fallow.doors.answers import rows as telling
from fallow.doors.answers import workloads as naming
from fallow.model import kinds
from fallow.model.units import Instant

Face: TypeAlias = Literal["list", "filter", "confirm", "page", "help"]
Deed: TypeAlias = Literal["keep", "pause", "resume"]

VIEWS: Final = ("idle", "unknown", "busy", "paused", "kept", "all")
_LAST: Final = "9999"
SORTS: Final[Mapping[str, tuple[Callable[[telling.ApiRow], Any], bool]]] = {  # (by what, the greatest first)
    "next": (lambda row: row.next.at or "" if row.next else _LAST, False),
    "idle": (lambda row: row.idle_seconds or 0, True), "GPUs": (lambda row: row.held, True),
    "cost": (lambda row: row.idle_per_hour or 0.0, True), "name": (lambda row: "", False),
}
KEEP_HOURS: Final = {"4": 4, "8": 8, "2": 24}
_DEEDS: Final[Mapping[str, Deed]] = {"k": "keep", "p": "pause", "r": "resume"}
_MOVES: Final = {"up": -1, "down": 1, "page up": -10, "page down": 10, "home": -(10**9), "end": 10**9}
HELP: Final = """\
arrows     choose a workload; page up, page down, home, end
enter, e   why: the verdict, the evidence GPU by GPU, what comes next
k          keep it although it is idle: for 4, 8 or 24 hours
p          pause it now; the way back is written with it
r          bring a paused one back as it was
/          only what has this in its name, namespace or kind; escape ends it
tab        the next view: idle, unknown, busy, paused, kept, all
s          the next order: next step, idle for longest, GPUs, cost, name
space      look again now
q, Ctrl-C  leave

Keep, pause and resume say what they will do, and ask first. They are done
in your own name, with the rights of your kubeconfig, as `fallow ack`,
`fallow pause` and `fallow resume` do them."""


class TopWish(msgspec.Struct, frozen=True):
    """What is to be done outside: an act, a page of why, or another look."""

    what: Literal["keep", "pause", "resume", "why", "look"]
    target: str = ""
    namespace: str = ""
    hours: float = 0


class TopState(msgspec.Struct, frozen=True, kw_only=True):
    """`marked`: the uid of the workload that keys are about. `scroll`: of a page. `message`: what became of an act."""

    rows: tuple[telling.ApiRow, ...] = ()
    source: str = ""
    at: Instant | None = None
    failure: str = ""
    face: Face = "list"
    view: str = "idle"
    sort: str = "next"
    words: str = ""
    marked: str = ""
    asked: Deed | None = None
    page: tuple[str, ...] = ()
    scroll: int = 0
    message: str = ""
    is_busy: bool = False
    wish: TopWish | None = None
    is_over: bool = False

    @property
    def shown(self) -> list[telling.ApiRow]:
        by, down = SORTS[self.sort]
        groups, words = telling.VIEWS[self.view], self.words.lower()
        fits = [
            row for row in self.rows
            if row.group in groups and words in f"{row.namespace}/{row.kind}/{row.name}".lower()
        ]
        named = sorted(fits, key=lambda row: (row.namespace, row.name, row.uid))
        return sorted(named, key=by, reverse=down)

    @property
    def place(self) -> int:
        """Of the mark among what is shown."""
        return next((at for at, row in enumerate(self.shown) if row.uid == self.marked), 0)

    @property
    def chosen(self) -> telling.ApiRow | None:
        shown = self.shown
        return shown[min(self.place, len(shown) - 1)] if shown else None


def name(row: telling.ApiRow) -> str:
    return kinds.typed(naming.read_ref(row))


def describe(deed: Deed, row: telling.ApiRow) -> str:
    """What will be done, before it is."""
    named, gpus = f"{name(row)} in {row.namespace}", many(row.held, "GPU")
    match deed:
        case "keep":
            return f"Keep {named} ({gpus}): it is not paused until then. For 4, 8 or 24 hours? [4] [8] [2] or [n]o"
        case "pause":
            busy = " It is AT WORK." if row.state == "busy" else ""
            comes = "comes" if row.held == 1 else "come"
            return f"Pause {named} now: {gpus} {comes} free, and r brings it back.{busy} [y]es or [n]o?"
        case "resume":
            size = row.rest.size if row.rest else "what is recorded"
            return f"Bring {named} back: {size}. [y]es or [n]o?"


def take(state: TopState, rows: Sequence[telling.ApiRow], source: str, at: Instant, failure: str) -> TopState:
    """A new look. What somebody reads or answers just now stays as it is."""
    return msgspec.structs.replace(state, rows=tuple(rows), source=source, at=at, failure=failure)


def press(state: TopState, key: str) -> TopState:
    match state.face:
        case "filter":
            return _type_filter(state, key)
        case "confirm":
            return _answer(state, key)
        case "page" | "help":
            return _read_on(state, key)
        case "list":
            return _choose(msgspec.structs.replace(state, message=""), key)


def _choose(state: TopState, key: str) -> TopState:
    change, row = msgspec.structs.replace, state.chosen
    match key:
        case "q" if state.is_busy:
            return change(state, message="what you asked for is still being done; Ctrl-C leaves at once")
        case "q":
            return change(state, is_over=True)
        case "?" | "h":
            return change(state, face="help", page=tuple(HELP.splitlines()), scroll=0)
        case "/":
            return change(state, face="filter")
        case "escape":
            return change(state, words="")
        case "tab" | "back tab":
            return change(state, view=_following(VIEWS, state.view, 1 if key == "tab" else -1), marked="")
        case "s":
            return change(state, sort=_following(tuple(SORTS), state.sort, 1))
        case " ":
            return change(state, wish=TopWish("look"))
        case "up" | "down" | "page up" | "page down" | "home" | "end":
            return _move(state, _MOVES[key])
        case "enter" | "e" if row is not None:
            return change(state, wish=TopWish("why", name(row), row.namespace))
        case "k" | "p" | "r" if row is not None:
            return _ask_first(state, _DEEDS[key], row)
    return state


def _following(words: Sequence[str], word: str, step: int) -> str:
    return words[(words.index(word) + step) % len(words)]


def _move(state: TopState, by: int) -> TopState:
    shown = state.shown
    if not shown:
        return state
    place = min(max(0, state.place + by), len(shown) - 1)
    return msgspec.structs.replace(state, marked=shown[place].uid)


def _ask_first(state: TopState, deed: Deed, row: telling.ApiRow) -> TopState:
    """Of what makes no sense: why."""
    change = msgspec.structs.replace
    if state.is_busy:
        return change(state, message="one thing after the other: the last one is still being done")
    if deed == "resume" and row.rest is None:
        return change(state, message=f"{name(row)} is not paused by fallow")
    if deed != "resume" and row.rest is not None:
        return change(state, message=f"{name(row)} is paused already; r brings it back")
    return change(state, face="confirm", asked=deed, marked=row.uid)


def _answer(state: TopState, key: str) -> TopState:
    """Only what was offered is a yes; all else is a no. What is gone meanwhile is left alone."""
    row, deed = state.chosen, state.asked
    back = msgspec.structs.replace(state, face="list", asked=None)
    hours = KEEP_HOURS.get(key, 0)
    if row is None or row.uid != state.marked or deed is None:
        return msgspec.structs.replace(back, message="it is no longer there: nothing was done")
    if (deed == "keep" and hours) or (deed != "keep" and key == "y"):
        wish = TopWish(deed, name(row), row.namespace, hours)
        return msgspec.structs.replace(back, wish=wish, is_busy=True, message=f"{deed} {name(row)} ...")
    return msgspec.structs.replace(back, message="nothing was done")


def _type_filter(state: TopState, key: str) -> TopState:
    match key:
        case "enter":
            return msgspec.structs.replace(state, face="list")
        case "escape":
            return msgspec.structs.replace(state, face="list", words="")
        case "backspace":
            return msgspec.structs.replace(state, words=state.words[:-1])
    return msgspec.structs.replace(state, words=state.words + key) if len(key) == 1 else state


def _read_on(state: TopState, key: str) -> TopState:
    if key in ("q", "escape", "enter", "e", "?", "h"):
        return msgspec.structs.replace(state, face="list", page=(), scroll=0)
    last = max(0, len(state.page) - 1)
    return msgspec.structs.replace(state, scroll=min(max(0, state.scroll + _MOVES.get(key, 0)), last))
