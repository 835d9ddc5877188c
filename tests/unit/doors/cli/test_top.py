"""`fallow top`: what its keys do, what fits on which screen, and that a terminal is as it was however it ends."""

import asyncio
import contextlib
import os
import pty
import re
import signal
import struct
import sys
import termios
import threading
import time
from fcntl import ioctl

import click
import msgspec
import pytest
from tests.builders import NOW
from tests.unit.doors.cli import test_pages, test_verbs
from tests.unit.observe.cluster import pretend

from fallow.doors.cli import screen, top, top_state, top_view

ask, type_in, press = test_verbs.ask, test_verbs.type_in, top_state.press


@pytest.fixture
def state():
    return top_state.take(top_state.TopState(), test_pages.rows_of(test_pages.look()), "As the daemon saw it", NOW, "")


def pressed(state, *keys):
    for key in keys:
        state = press(state, key)
    return state


def test_keys_choose_views_orders_and_workloads(state):
    assert [row.name for row in state.shown] == ["llama-finetune-70b", "segmenter"]
    assert pressed(state, "down").chosen.name == "segmenter"
    assert pressed(state, "down", "down", "end", "page down").chosen.name == "segmenter"
    assert pressed(state, "down", "home").chosen.name == "llama-finetune-70b"
    assert [pressed(state, *["tab"] * count).view for count in range(7)] == [*top_state.VIEWS, "idle"]
    assert pressed(state, "back tab").view == "all"
    assert [pressed(state, *["s"] * count).sort for count in range(6)] == [*top_state.SORTS, "next"]
    assert pressed(state, "s", "s").chosen.name == "llama-finetune-70b"  # the most GPUs first
    assert pressed(state, "q").is_over


def test_a_filter_is_typed_kept_and_ended(state):
    typed = pressed(state, "/", "l", "l", "a", "x", "backspace")
    assert (typed.words, [row.name for row in typed.shown]) == ("lla", ["llama-finetune-70b"])
    assert pressed(typed, "enter", "q").is_over
    assert pressed(typed, "escape").words == ""
    assert not pressed(state, "/", "q", "up").is_over


@pytest.mark.parametrize(
    ("keys", "wish"),
    [
        ("k4", ("keep", 4)), ("k8", ("keep", 8)), ("k2", ("keep", 24)), ("py", ("pause", 0)),
        ("kn", None), ("ky", None), ("pn", None), ("p4", None), ("pq", None), ("r", None),
    ],
)
def test_nothing_is_done_before_somebody_said_yes_to_what_it_does(state, keys, wish):
    asked = pressed(state, keys[0])
    assert asked.wish is None
    done = pressed(asked, *keys[1:])
    assert (None if done.wish is None else (done.wish.what, done.wish.hours)) == wish
    assert done.face == "list"
    assert done.message
    assert not done.is_over
    if wish:
        assert (done.wish.target, done.wish.namespace) == ("StatefulSet/llama-finetune-70b", "research")
        assert not pressed(done, "q").is_over  # what is under way ends first


def test_what_is_asked_names_the_workload_and_what_will_be_done(state):
    rows = {row.name: row for row in state.rows}
    said = top_state.describe("pause", rows["llama-finetune-70b"])
    assert said.startswith("Pause StatefulSet/llama-finetune-70b in research now: 8 GPUs come free")
    assert "AT WORK" in top_state.describe("pause", rows["chat"])
    assert "3 replicas" in top_state.describe("resume", rows["asleep"])


def test_a_yes_that_comes_too_late_is_none(state):
    """Between the question and the answer it went away."""
    asked = pressed(state, "p")
    gone = top_state.take(asked, [row for row in state.rows if row.name != "llama-finetune-70b"], "", NOW, "")
    done = pressed(gone, "y")
    assert (done.wish, done.message) == (None, "it is no longer there: nothing was done")


def test_the_mark_stays_on_its_workload_when_others_come_before_it(state):
    marked = pressed(state, "down")
    first = msgspec.structs.replace(state.chosen, uid="new", name="aaa")
    assert top_state.take(marked, [first, *state.rows], "", NOW, "").chosen.name == "segmenter"


def test_what_is_paused_comes_back_and_is_not_paused_again(state):
    paused = pressed(state, "tab", "tab", "tab")
    assert paused.chosen.name == "asleep"
    assert pressed(paused, "p").message == "Deployment/asleep is paused already; r brings it back"
    assert pressed(paused, "r", "y").wish.what == "resume"


@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (120, 35), (160, 45), (40, 10), (20, 5), (300, 4)])
@pytest.mark.parametrize("keys", ["", "p", "k", "/x", "?", "\t\t"])
def test_every_face_fits_its_screen(state, columns, rows, keys, monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    shown = pressed(state, *screen.split_keys(keys))
    lines = top_view.draw(shown, columns, rows, NOW)
    assert len(lines) <= rows
    assert max(len(click.unstyle(line)) for line in lines) <= columns
    if keys == "p" and columns >= 80:
        said = " ".join(click.unstyle(" ".join(lines)).split())
        assert "Pause StatefulSet/llama-finetune-70b in research now: 8 GPUs come free" in said
        assert "[y]es or [n]o?" in said


def test_at_80_columns_nothing_but_long_names_is_cut(state):
    lines = [click.unstyle(line) for line in top_view.draw(pressed(state, "back tab"), 80, 24, NOW)]
    assert any(line.rstrip().endswith("for 3h") for line in lines), lines
    assert max(map(len, top_state.HELP.splitlines())) <= 78


def test_nothing_that_a_tenant_wrote_is_obeyed(state):
    evil = msgspec.structs.replace(state.rows[0], because="\x1b[2Jhello\x07", namespace="\x1b]0;x\x07")
    lines = top_view.draw(top_state.take(state, [evil], "\x1b[2J", NOW, "\x1b[2J"), 100, 24, NOW)
    assert not any("\x1b[2J" in line or "\x07" in line or "\x1b]" in line for line in lines)


@pytest.mark.parametrize(
    ("sent", "keys"),
    [
        ("\x1b[A\x1b[B", ["up", "down"]), ("\x1bOA", ["up"]), ("\x1b[5~\x1b[6~", ["page up", "page down"]),
        ("\x1b", ["escape"]), ("\x1b[200~x", ["x"]), ("q\r\t\x7f", ["q", "enter", "tab", "backspace"]),
        ("\x1b[1;5A", []), ("\x01\x02", []), ("ä", ["ä"]), ("\x1b[", []),
    ],
    ids=ascii,
)
def test_keys_have_names_and_what_nobody_knows_is_none(sent, keys):
    assert list(screen.split_keys(sent)) == keys


def test_while_a_look_is_under_way_no_other_is_begun():
    begun, may_end, woken = (threading.Event() for _ in range(3))

    def look():
        begun.set()
        may_end.wait(10)
        return lambda state: state

    aside = top.Aside(woken.set)
    assert aside.is_idle
    aside.do(look)
    assert begun.wait(10)
    assert not aside.is_idle
    may_end.set()
    assert woken.wait(10)
    assert (aside.is_idle, len(list(aside.changes()))) == (True, 1)


def test_without_a_terminal_it_says_what_does_the_same():
    done = type_in("top", KUBECONFIG="/nonexistent/kubeconfig")
    assert (done.exit_code, "fallow idle --watch" in done.output) == (1, True)


# ---- on a terminal ---------------------------------------------------------------------------------------------------


class Terminal:
    """The other end of a pseudo-terminal, on which `fallow top` runs."""

    def __init__(self, kubeconfig, columns=80, rows=24):
        self.ours, self.theirs = pty.openpty()
        self.resize(columns, rows)
        os.set_blocking(self.ours, False)
        self.before = termios.tcgetattr(self.theirs)
        self.env = {"PATH": os.environ["PATH"], "KUBECONFIG": str(kubeconfig), "TERM": "xterm-256color"}
        self.text = ""

    def resize(self, columns, rows):
        ioctl(self.theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    async def start(self, *words):
        code = "from fallow.doors.cli import enter; enter.fallow()"
        ends = {"stdin": self.theirs, "stdout": self.theirs, "stderr": self.theirs}
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, "top", *words, env=self.env, start_new_session=True, **ends
        )

    def read(self):
        with contextlib.suppress(BlockingIOError):
            while found := os.read(self.ours, 65536):
                self.text += found.decode(errors="replace")
        return self.text

    async def until(self, words, patience=30.0):
        """Seen since the last time."""
        end = time.monotonic() + patience
        while words not in click.unstyle(self.read()):
            assert time.monotonic() < end, f"{words!r} is not in {click.unstyle(self.text)[-3000:]}"
            assert self.process.returncode is None, click.unstyle(self.text)[-3000:]
            await asyncio.sleep(0.02)
        self.text = ""

    def press(self, keys):
        os.write(self.ours, keys.encode())

    async def ended(self):
        code = await asyncio.wait_for(self.process.wait(), 20)
        self.read()
        return code

    def is_as_before(self):
        left = self.text.rfind("\x1b[?1049l")
        shown = self.text.rfind("\x1b[?25h")
        return termios.tcgetattr(self.theirs) == self.before and left > 0 and shown > 0 and "\x1b[?1049h" not in (
            self.text[left:]
        )


@pytest.fixture
async def server():
    async with pretend.Server("coordination.k8s.io/v1 leases Lease") as running:
        running.put("namespaces", pretend.made("ml", namespace=None, kind="Namespace", version="v1"))
        running.put_all(pretend.deployed("llm"))
        yield running


@pytest.fixture
async def terminal(server, ask, tmp_path):
    made = Terminal(tmp_path / "kubeconfig")
    yield made
    if made.process.returncode is None:
        made.process.kill()
        await made.process.wait()
    os.close(made.ours)
    os.close(made.theirs)


async def test_on_a_terminal_it_shows_asks_first_resizes_and_leaves_no_trace(terminal):
    await terminal.start()
    await terminal.until("no decision possible")  # there are no measurements, and that is said
    terminal.press("\t")
    await terminal.until("Deployment/llm")
    terminal.press("p")
    await terminal.until("Pause Deployment/llm in ml now")
    terminal.press("n")
    await terminal.until("nothing was done")
    terminal.press("?")
    await terminal.until("keep it although it is idle")
    terminal.press("\x1b")
    terminal.resize(120, 35)
    os.killpg(terminal.process.pid, signal.SIGWINCH)
    await terminal.until("enter why")
    terminal.press("k4")  # the server here only reads: it is refused, and said
    await terminal.until("answered")
    terminal.press("q")
    assert await terminal.ended() == 0
    assert terminal.is_as_before(), repr(terminal.text[-300:])
    assert not re.search("Traceback", terminal.text)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
async def test_however_it_ends_the_terminal_is_as_it_was(terminal, number, code):
    await terminal.start()
    await terminal.until("fallow top")
    os.kill(terminal.process.pid, number)
    assert await terminal.ended() == code
    assert terminal.is_as_before(), repr(terminal.text[-300:])
    assert "Traceback" not in terminal.text


def test_a_line_as_wide_as_the_screen_keeps_its_last_letter(monkeypatch, capsys):
    """What empties the rest of a line empties, behind a full one, its last column."""
    monkeypatch.setattr(screen.shutil, "get_terminal_size", lambda *_, **__: os.terminal_size((10, 3)))
    made = screen.Screen(0, [])
    made.draw(["x" * 10, "y", "z" * 10])
    shown = capsys.readouterr().out
    made.close()
    assert shown.endswith("z")
    assert "\x1b[K" not in shown
    assert shown.count("\x1b[2K") == 3
