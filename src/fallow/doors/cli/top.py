"""`fallow top`: the workloads live, on a screen of its own, with keys to keep, pause, bring back and explain.

In: the options of a look. Out: the screen, until somebody leaves it. Looks and acts are done beside it, one at a time,
so that a key is always answered at once.
"""

from __future__ import annotations

import contextlib
import io
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import click
import msgspec

from fallow.doors.cli import screen, top_state, top_view, views
from fallow.doors.cli import verbs as acting
from fallow.model.units import Instant, Seconds

Change: TypeAlias = Callable[[top_state.TopState], top_state.TopState]

EVERY: Seconds = 5.0


class Aside:
    """What takes time, done in a thread of its own, in its order; each gives a change of what is shown."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._asked: queue.Queue[Callable[[], Change]] = queue.Queue()
        self._done: queue.Queue[Change | BaseException] = queue.Queue()
        self._wake = wake
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def do(self, task: Callable[[], Change]) -> None:
        self._asked.put(task)

    @property
    def is_idle(self) -> bool:
        """Nothing waits and nothing is under way: no key is to wait for a look behind the one that is."""
        return not self._asked.unfinished_tasks

    def changes(self) -> Iterator[Change]:
        """What was done since. A defect is raised here, where the screen is left properly."""
        with contextlib.suppress(queue.Empty):
            while True:
                done = self._done.get_nowait()
                if isinstance(done, BaseException):
                    raise done
                yield done

    def _work(self) -> None:
        while True:
            task = self._asked.get()
            try:
                self._done.put(task())
            except BaseException as problem:
                self._done.put(problem)
            self._asked.task_done()
            self._wake()


def _look(given: dict[str, Any], asked: views.ViewFilter) -> Change:
    try:
        seen = views.see_rows(given, asked, "table")
    except click.ClickException as problem:
        because = problem.format_message()
        return lambda state: msgspec.structs.replace(state, failure=because)
    rows = [row for row in seen.rows if row.held or row.rest is not None]
    return lambda state: top_state.take(state, rows, seen.source or seen.rules, seen.at, _say(seen.failure))


def _say(failure: click.ClickException | None) -> str:
    return failure.format_message() if failure else ""


def _explain(given: dict[str, Any], wish: top_state.TopWish) -> Change:
    try:
        page = views.tell_why(wish.target, wish.namespace, "table", given)
        lines = [*page.text.splitlines(), *filter(None, [_say(page.failure)])]
    except click.ClickException as problem:
        lines = [problem.format_message()]
    return lambda state: msgspec.structs.replace(state, face="page", page=tuple(lines), scroll=0)


def _carry_out(given: dict[str, Any], wish: top_state.TopWish, now: Instant) -> Change:
    where = {name: given[name] for name in ("kubeconfig", "context")}
    asked = {**where, "namespace": wish.namespace, "hours": wish.hours}
    try:
        said = f"{acting.carry_out(wish.what, wish.target, asked, now)} (the list shows it after the next look)"
    except click.ClickException as problem:
        said = problem.format_message()
    return lambda state: msgspec.structs.replace(state, message=said, is_busy=False)


def run(every: Seconds, everywhere: bool, **given: Any) -> None:
    views.read_scope(everywhere, given)
    asked = views.read_filter(given)
    if not screen.can_be_opened():
        raise click.ClickException("this needs a terminal; `fallow idle --watch` shows the same without one")
    try:
        with contextlib.redirect_stderr(io.StringIO()), screen.opened() as opened:
            _show(opened, given, asked, every)
    except EOFError:  # the terminal is gone
        raise SystemExit(1) from None


def _show(opened: screen.Screen, given: dict[str, Any], asked: views.ViewFilter, every: Seconds) -> None:
    aside, state = Aside(opened.wake), top_state.TopState()
    looked = 0.0
    while not state.is_over:
        if time.monotonic() - looked >= every and aside.is_idle:
            looked = time.monotonic()
            aside.do(lambda: _look(given, asked))
        opened.draw(top_view.draw(state, *opened.size, time.time()))
        for key in opened.read_keys(1.0):
            state = top_state.press(state, key)
            if state.wish is not None:
                _wish(aside, given, asked, state.wish)
                state = msgspec.structs.replace(state, wish=None)
        for change in aside.changes():
            state = change(state)


def _wish(aside: Aside, given: dict[str, Any], asked: views.ViewFilter, wish: top_state.TopWish) -> None:
    if wish.what == "why":
        aside.do(lambda: _explain(given, wish))
        return
    if wish.what != "look":
        now = time.time()
        aside.do(lambda: _carry_out(given, wish, now))
    aside.do(lambda: _look(given, asked))
