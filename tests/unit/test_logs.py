"""Log lines that nobody can forge."""

import io
import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fallow import logs

FORGED = 'llm\n2026-01-01T00:00:00Z ERROR fallow: forged\r\x1b[31m\u2028\x85{"level":"error"}'


@pytest.fixture
def restored_logs():
    root, ours = logging.getLogger(), logging.getLogger("fallow")
    before = root.handlers[:], root.level, ours.level
    yield
    root.handlers[:], root.level, ours.level = before
    ours.manager._clear_cache()


def log(style: str, message: str, level: str = "info", **extra: object) -> str:
    stream = io.StringIO()
    logs.set_up(style, level, stream)
    logging.getLogger("fallow.test").info("%s", message, extra=extra)
    return stream.getvalue()


@pytest.mark.usefixtures("restored_logs")
@pytest.mark.parametrize("style", ["json", "default", "pretty"])
def test_a_record_is_one_line_whatever_stands_in_it(style):
    said = log(style, FORGED)
    assert len(said.splitlines()) == 1
    assert said.endswith("\n")
    assert "\x1b[31m" not in said


@given(message=st.text(max_size=60))
def test_no_text_makes_a_second_line(message):
    record = logging.LogRecord("fallow", logging.INFO, "", 0, "%s", (message,), None)
    for style in ("json", "default"):
        assert len(logs.Lines(style).format(record).splitlines()) == 1


@pytest.mark.usefixtures("restored_logs")
def test_json_carries_the_fields_of_the_record():
    said = json.loads(log("json", FORGED, fields={"audit": "Pause", "workload": {"name": FORGED}}))
    assert said["message"] == FORGED
    assert (said["level"], said["target"], said["audit"], said["workload"]) == (
        "info", "fallow.test", "Pause", {"name": FORGED}
    )
    assert said["time"].endswith("Z")


@pytest.mark.usefixtures("restored_logs")
def test_a_traceback_stays_on_its_line():
    stream = io.StringIO()
    logs.set_up("default", "info", stream)
    try:
        raise ValueError("two\nlines")
    except ValueError:
        logging.getLogger("fallow").exception("broken")
    [line] = stream.getvalue().splitlines()
    assert "Traceback" in line
    assert "two\\nlines" in line


@pytest.mark.usefixtures("restored_logs")
def test_the_level_holds_for_us_and_others_are_quiet_below_a_warning():
    assert log("default", "hello", level="warning") == ""
    stream = io.StringIO()
    logs.set_up("default", "debug", stream)
    logging.getLogger("aiohttp").info("chatter")
    logging.getLogger("aiohttp").warning("heed")
    logging.getLogger("fallow").debug("detail")
    assert [line.split(": ")[1] for line in stream.getvalue().splitlines()] == ["heed", "detail"]
