"""Pages of exporters: what is read of them and what is refused, however they come; and pages kept in a file."""

import asyncio
import math
import pathlib
import sqlite3
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.clients import loopback

from fallow.clients import errors, exporters, exposition
from fallow.clients.database import pages as kept_pages

GR, UTIL = "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_DEV_GPU_UTIL"
WANTED = (GR, UTIL, "vllm:num_requests_running")
PAGE = f"""# HELP {GR} Ratio of time the graphics engine is active.
# TYPE {GR} gauge
{GR}{{gpu="0",UUID="GPU-a",modelName="NVIDIA H100 80GB HBM3",pod="llm"}} 0.25
{GR}{{gpu="1",UUID="GPU-b",modelName="NVIDIA H100 80GB HBM3",pod=""}} 0
DCGM_FI_DEV_SM_CLOCK{{gpu="0",UUID="GPU-a"}} 1980
{UTIL}{{gpu="0",UUID="GPU-a",modelName="NVIDIA H100 80GB HBM3",pod="llm"}} 37
"""


def read(
    text: str | bytes, *, reader: exposition.Reader | None = None, openmetrics: bool = False, chunk: int = 1 << 20
) -> list[object]:
    """(metric, labels, value) of each sample."""
    reader = reader or exposition.Reader(WANTED)
    body = text.encode() if isinstance(text, str) else text
    page = reader.begin(is_openmetrics=openmetrics)
    for start in range(0, len(body), chunk):
        page.feed(body[start : start + chunk])
    found = page.end()
    return [
        (reader.series[number].metric, reader.series[number].labels, value)
        for number, value in zip(found.numbers, found.values, strict=True)
    ]


# ---- the formats ----------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [1, 7, 64, 1 << 20])
def test_the_wanted_metrics_are_read_and_no_others(chunk: int) -> None:
    model = "NVIDIA H100 80GB HBM3"
    assert read(PAGE, chunk=chunk) == [
        (GR, {"gpu": "0", "UUID": "GPU-a", "modelName": model, "pod": "llm"}, 0.25),
        (GR, {"gpu": "1", "UUID": "GPU-b", "modelName": model, "pod": ""}, 0.0),
        (UTIL, {"gpu": "0", "UUID": "GPU-a", "modelName": model, "pod": "llm"}, 37.0),
    ]


def test_the_next_page_has_the_same_numbers() -> None:
    reader = exposition.Reader(WANTED)
    first = reader.begin(is_openmetrics=False)
    first.feed(PAGE.encode())
    second = reader.begin(is_openmetrics=False)
    second.feed(PAGE.replace(" 0.25", " 0.75").encode())
    one, other = first.end(), second.end()
    assert (one.numbers, other.numbers) == ([0, 1, 2], [0, 1, 2])
    assert (one.values, other.values) == ([0.25, 0.0, 37.0], [0.75, 0.0, 37.0])
    assert len(reader.series) == 3


LINES = {
    "no labels": (f"{GR} 0.5\n", ({}, 0.5)),
    "empty labels": (f"{GR}{{}} 0.5\n", ({}, 0.5)),
    "trailing comma": (f'{GR}{{gpu="0",}} 0.5\n', ({"gpu": "0"}, 0.5)),
    "spaces and tabs": (f'{GR} {{ gpu = "0" , pod="x" }}\t 0.5 \n', ({"gpu": "0", "pod": "x"}, 0.5)),
    "escapes": (f'{GR}{{pod="a\\"b\\\\c\\nd"}} 0.5\n', ({"pod": 'a"b\\c\nd'}, 0.5)),
    "braces in a value": (f'{GR}{{pod="}} 7 {{",gpu="0"}} 0.5\n', ({"pod": "} 7 {", "gpu": "0"}, 0.5)),
    "exponent": (f"{GR} 5e-1\n", ({}, 0.5)),
    "carriage return": (f'{GR}{{gpu="0"}} 0.5\r\n', ({"gpu": "0"}, 0.5)),
    "exemplar": (f'{GR}{{gpu="0"}} 0.5 # {{trace="x"}} 1\n', ({"gpu": "0"}, 0.5)),
    "not ASCII": (f'{GR}{{pod="é"}} 0.5\n', ({"pod": "é"}, 0.5)),
    "+Inf": (f"{GR} +Inf\n", ({}, math.inf)),
}


@pytest.mark.parametrize("name", LINES)
def test_every_way_to_write_a_line(name: str) -> None:
    line, (labels, value) = LINES[name]
    reader = exposition.Reader(WANTED)
    for _ in range(2):  # at first sight, and as a line that is known
        assert read(line, reader=reader) == [(GR, labels, value)]


def test_nan_is_told_as_it_is() -> None:
    ((_, _, value),) = read(f"{GR} NaN\n")  # type: ignore[misc]
    assert math.isnan(value)


@pytest.mark.parametrize(
    ("openmetrics", "text"), [(False, "1800000000500"), (True, "1800000000.5")], ids=["0.0.4", "OpenMetrics"]
)
def test_a_time_of_its_own_is_in_the_formats_unit(openmetrics: bool, text: str) -> None:
    page = exposition.Reader(WANTED).begin(is_openmetrics=openmetrics)
    page.feed(f'{UTIL}{{gpu="0"}} 3\n{GR}{{gpu="0"}} 0.5 {text}\n# EOF\n'.encode())
    assert page.end().stamps == {1: 1_800_000_000.5}


@given(
    st.dictionaries(st.from_regex(r"[a-z_]{1,8}", fullmatch=True), st.text(max_size=12), max_size=4),
    st.floats(allow_nan=False),
)
def test_whatever_labels_say_is_read_back(labels: dict[str, str], value: float) -> None:
    inner = ",".join(
        '{}="{}"'.format(key, text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n"))
        for key, text in labels.items()
    )
    assert read(f"{GR}{{{inner}}} {value!r}\n".encode("utf-8", "surrogatepass")) == [(GR, labels, value)]


BAD = {
    "cut in a line": (f'{GR}{{gpu="0"}} 0.5\n{UTIL}{{gpu="0"}} 3', False),
    "cut in a value": (f'{GR}{{gpu="0"}} 0.', False),
    "no EOF": (f'{GR}{{gpu="0"}} 0.5\n', True),
    "cut EOF": (f'{GR}{{gpu="0"}} 0.5\n# EO', True),
    "no value": (f'{GR}{{gpu="0"}}\n', False),
    "a word": (f'{GR}{{gpu="0"}} busy\n', False),
    "an underscore": (f'{GR}{{gpu="0"}} 1_0\n', False),
    "open label": (f'{GR}{{gpu="0}} 0.5\n', False),
    "label without quotes": (f"{GR}{{gpu=0}} 0.5\n", False),
    "web page": ("<!DOCTYPE html><html></html>\n", False),
    "endless line": (f'{GR}{{pod="' + "x" * 100_000, False),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_whole_page_is_refused(name: str) -> None:
    text, openmetrics = BAD[name]
    with pytest.raises(exposition.Unreadable):
        read(text, openmetrics=openmetrics)


def test_a_known_line_with_a_value_that_is_none_is_refused() -> None:
    reader = exposition.Reader(WANTED)
    read(f"{GR} 0.5\n", reader=reader)
    for bad in ("x", "1_0", "", "0.5 0.5 0.5"):
        with pytest.raises(exposition.Unreadable):
            read(f"{GR} {bad}\n", reader=reader)


def test_labels_that_are_not_utf_8_are_refused() -> None:
    with pytest.raises(exposition.Unreadable, match="UTF-8"):
        read(f'{GR}{{pod="'.encode() + b"\xff" + b'"} 1\n')


@pytest.mark.parametrize(
    "line", [f'{GR}{{pod="p-%d"}} 0\n', f"{GR} %d\n"], ids=["different", "the same again and again"]
)
def test_a_million_series_are_refused_early(line: str) -> None:
    reader = exposition.Reader(WANTED)
    page = reader.begin(is_openmetrics=False)
    for start in range(0, exposition.MOST_SERIES, 1000):
        page.feed("".join(line % number for number in range(start, start + 1000)).encode())
    with pytest.raises(exposition.Unreadable, match="more than"):
        page.feed((line % exposition.MOST_SERIES).encode())
    assert len(reader.series) <= exposition.MOST_SERIES + 1


def test_lines_that_come_and_go_are_forgotten() -> None:
    reader = exposition.Reader(WANTED)
    for start in range(0, 20_000, 500):
        read("".join(f'{GR}{{pod="p-{number}"}} 0\n' for number in range(start, start + 500)), reader=reader)
    assert len(reader.series) <= 3000
    assert read(PAGE, reader=reader) == read(PAGE)


# ---- over the wire --------------------------------------------------------------------------------


Scrape = Callable[[], Awaitable[exposition.Page]]


@asynccontextmanager
async def asked(answer: loopback.Answer, timeout: float = 2.0) -> AsyncIterator[tuple[loopback.Loopback, Scrape]]:
    async with loopback.serve(answer) as server, exporters.Exporters(timeout=timeout) as client:
        reader = exposition.Reader(WANTED)
        yield server, lambda: client.scrape(f"{server.url}/metrics?key=s3cret", reader)


async def test_a_page_is_fetched_and_read() -> None:
    async with asked(lambda _: web.Response(text=PAGE)) as (server, scrape):
        page = await scrape()
    assert page.values == [0.25, 0.0, 37.0]
    assert (server.asked[0].path, server.asked[0].headers["Accept-Encoding"]) == ("/metrics", "identity")


async def test_openmetrics_needs_its_end() -> None:
    kind = {"Content-Type": "application/openmetrics-text; version=1.0.0; charset=utf-8"}
    answers = loopback.in_turn(
        lambda _: web.Response(text=PAGE + "# EOF\n", headers=kind), lambda _: web.Response(text=PAGE, headers=kind)
    )
    async with asked(answers) as (_, scrape):
        assert len((await scrape()).values) == 3
        with pytest.raises(errors.BadAnswer, match="the end of the page is missing"):
            await scrape()


FAULTS = {
    "500": (lambda _: web.Response(status=500, text="sorry"), errors.ServerFault, "answered 500"),
    "404": (lambda _: web.Response(status=404), errors.NotFound, "answered 404"),
    "elsewhere": (lambda _: web.Response(status=302, headers={"Location": "/login"}), errors.Rejected, "answered 302"),
    "packed": (lambda _: web.Response(body=b"x", headers={"Content-Encoding": "gzip"}), errors.BadAnswer, "packed"),
    "web page": (lambda _: web.Response(text="<html>log in</html>\n"), errors.BadAnswer, "a web page"),
    "half a line": (lambda _: web.Response(text=PAGE[:-10]), errors.BadAnswer, "cut"),
}


@pytest.mark.parametrize("name", FAULTS)
async def test_what_goes_wrong_has_a_name(name: str) -> None:
    answer, error, words = FAULTS[name]
    async with asked(answer) as (server, scrape):
        with pytest.raises(error, match=words) as caught:
            await scrape()
    assert server.url in str(caught.value)
    assert "s3cret" not in str(caught.value)


async def test_who_hangs_is_left_in_time() -> None:
    async def hang(_: loopback.Asked) -> web.Response:
        await asyncio.sleep(60)
        return web.Response()

    async with asked(hang, timeout=0.2) as (_, scrape):
        began = time.monotonic()
        with pytest.raises(errors.Unreachable, match=r"within 0\.2s"):
            await scrape()
    assert time.monotonic() - began < 2


async def _raw(answer: bytes) -> tuple[asyncio.Server, str]:
    """A server that sends just these bytes and hangs up."""

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(speak, "127.0.0.1", 0)
    return server, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/metrics"


@pytest.mark.parametrize(
    "head",
    [f"Content-Length: {len(PAGE) + 50}\r\n", "Transfer-Encoding: chunked\r\n"],
    ids=["shorter than said", "chunks without an end"],
)
async def test_a_connection_that_breaks_gives_no_half_page(head: str) -> None:
    body = PAGE if "Length" in head else f"{len(PAGE):x}\r\n{PAGE}\r\n"
    server, url = await _raw(f"HTTP/1.1 200 OK\r\n{head}\r\n{body}".encode())
    async with server, exporters.Exporters(timeout=2.0) as client:
        with pytest.raises(errors.ClientError):
            await client.scrape(url, exposition.Reader(WANTED))


async def test_a_closed_port_is_unreachable() -> None:
    server, url = await _raw(b"")
    server.close()
    async with exporters.Exporters(timeout=2.0) as client:
        with pytest.raises(errors.Unreachable, match="cannot be reached"):
            await client.scrape(url, exposition.Reader(WANTED))


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n", b"\x00\x01\r\n\r\n"])
async def test_no_error_tells_what_is_secret_in_an_address(answer: bytes) -> None:
    server, url = await _raw(answer)
    secret = url.replace("http://", "http://bob:S3CR3T@") + "?token=S3CR3T%2fS3CR3T"
    async with server, exporters.Exporters(timeout=2.0) as client:
        with pytest.raises(errors.ClientError, match=f"the exporter at {url} ") as refused:
            await client.scrape(secret, exposition.Reader(WANTED))
    assert "S3CR3T" not in "".join(traceback.format_exception(refused.value))


async def test_a_page_without_end_is_cut_off() -> None:
    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            while True:
                await response.write(b"other_metric 1\n" * 50_000)
        except ConnectionError:
            return response

    application = web.Application()
    application.router.add_get("/metrics", endless)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with exporters.Exporters(timeout=30.0) as client:
            with pytest.raises(errors.BadAnswer, match="more than 32 MiB"):
                await client.scrape(f"http://127.0.0.1:{runner.addresses[0][1]}/metrics", exposition.Reader(WANTED))
    finally:
        await runner.cleanup()


# ---- kept in a file -------------------------------------------------------------------------------


async def keep(path: pathlib.Path, version: int = 1, *, writes: bool = True) -> kept_pages.Pages:
    pages = kept_pages.Pages(path, version, writes=writes)
    await pages.open()
    return pages


async def test_pages_outlive_the_process(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "state" / "usage.sqlite"
    first = await keep(path)
    await first.add({1: b"a", 2: b"b"}, 10, b"ten", 0)
    await first.add({3: b"c"}, 11, b"eleven", 11, keep={2, 3})
    reader = await keep(path, writes=False)
    assert await reader.read(0) == ({2: b"b", 3: b"c"}, [(11, b"eleven")]), "readers do not wait for the writer to end"
    await reader.close()
    await first.close()
    again = await keep(path)
    assert await again.read(12) == ({2: b"b", 3: b"c"}, [])
    await again.close()


async def test_another_layout_is_not_guessed_at(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "usage.sqlite"
    old = await keep(path, 1)
    await old.add({1: b"a"}, 10, b"ten", 0)
    await old.close()
    looking = await keep(path, 2, writes=False)
    assert await looking.read(0) == ({}, [])
    still = await keep(path, 1, writes=False)
    assert (await still.read(0)).pages == [(10, b"ten")], "who only reads changes nothing"
    await still.close()
    new = await keep(path, 2)
    assert await new.read(0) == ({}, [])
    await new.close()


async def test_a_broken_file_is_set_aside(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "usage.sqlite"
    path.write_bytes(b"this is no database at all, " * 100)
    pages = await keep(path)
    await pages.add({}, 10, b"ten", 0)
    assert (await pages.read(0)).pages == [(10, b"ten")]
    assert (tmp_path / "usage.sqlite.unreadable").exists()
    await pages.close()


async def test_the_database_of_another_program_is_left_alone(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "usage.sqlite"
    theirs = sqlite3.connect(path)
    theirs.execute("CREATE TABLE pages (precious TEXT)")
    theirs.close()
    with pytest.raises(errors.Misconfigured, match="another program"):
        await keep(path)


async def test_a_directory_that_cannot_be_is_said(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(errors.Misconfigured, match="cannot be used"):
        await keep(tmp_path / "file" / "usage.sqlite")
    missing = await keep(tmp_path / "nothing" / "usage.sqlite", writes=False)
    assert await missing.read(0) == ({}, [])
    assert not (tmp_path / "nothing").exists()
