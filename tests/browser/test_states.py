"""What a page says when all is not well: the server's own answers changed on their way to the browser, or none."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from playwright import async_api as play
from playwright.async_api import expect

from tests.browser import browsing, playing, relaying
from tests.browser.conftest import Opening

Change = Callable[[Any], Any]
HTML = '<img src=x onerror="document.title=1">&lt;b&gt;'


async def amend(page: play.Page, path: str, change: Change) -> None:
    """The true answer, changed."""

    async def answer(route: play.Route) -> None:
        asked = {name: text for name, text in route.request.headers.items() if name != "if-none-match"}
        given = await route.fetch(headers=asked)
        await route.fulfill(response=given, body=json.dumps(change(await given.json())))

    await page.route(f"**{path}", answer)


def with_(**more: Any) -> Change:
    return lambda said: {**said, **more}


async def test_measurements_that_are_old_are_said_so(visit: Opening) -> None:
    async with visit() as tab:
        await amend(tab.page, "/api/v1/overview", with_(asOf="2020-01-01T00:00:00Z", banners=[]))
        page = await tab.go("/")
        await expect(page.locator(".banner.stale")).to_contain_text("may be out of date")


async def test_a_freeze_is_said_and_can_be_ended_after_asking(visit: Opening) -> None:
    frozen = {"until": "2099-01-01T00:00:00Z", "because": "idle share rose from 24 % to 61 %", "by": None}
    banner = {"kind": "frozen", "headline": "Frozen until 2099-01-01T00:00:00Z.", "sentence": "No notice, no pause."}
    async with visit() as tab:
        await amend(tab.page, "/api/v1/overview", with_(frozen=frozen, banners=[banner]))
        page = await tab.go("/nodes")
        await expect(page.locator(".banner.frozen")).to_contain_text("No notice, no pause.")
        await page.get_by_role("button", name="Unfreeze…").click()
        await expect(page.get_by_role("dialog")).to_contain_text("pauses")


async def test_nothing_idle_is_a_sentence_and_no_empty_table(visit: Opening) -> None:
    async with visit() as tab:
        none = {"items": [], "next": None, "total": 0}
        await amend(tab.page, "/api/v1/workloads?*", with_(**none))
        page = await tab.go("/workloads")
        await expect(page.locator("h1")).to_have_text("Nothing lies fallow.")
        page = await tab.go("/workloads?q=nosuchname")
        await expect(page.get_by_text("No workload matches.")).to_be_visible()


async def test_what_takes_long_shows_bars_and_what_fails_is_told_with_its_code(visit: Opening) -> None:
    async with visit() as tab:
        held = asyncio.Queue[play.Route]()
        await tab.page.route("**/api/v1/nodes", held.put)
        page = await tab.go("/nodes")
        await expect(page.get_by_role("status", name="Loading").locator("i").first).to_be_visible()
        refusal = {"error": {"code": "Locked", "message": "the ledger is locked by another writer"}}
        await (await held.get()).fulfill(status=503, json=refusal)
        failed = page.get_by_role("alert")
        await expect(failed).to_contain_text("GET /api/v1/nodes: 503, the ledger is locked by another writer.")
        await expect(page.locator(".sharedsec h2")).to_be_visible()  # the rest of the page stays
        await failed.get_by_role("button", name="Try now").click()
        await (await held.get()).continue_()
        await expect(page.locator("table.nt")).to_be_visible()


async def test_what_somebody_may_not_do_is_refused_in_words_with_the_way_to_do_it(
    visit: Opening, demo: playing.Demo
) -> None:
    row = demo.rows("paused")[-1]  # the first may be brought back meanwhile, by another test
    command = f"fallow resume {row['kind']}/{row['name']} -n {row['namespace']}"
    lacks = {"allowed": False, "missing": "patch on deployments.apps", "command": command}
    async with visit() as tab:
        may = dict.fromkeys(("keep", "pause", "resume"), lacks)
        await amend(tab.page, "/explain", with_(may=may))
        page = await tab.go(f"/w/{row['namespace']}/{row['kind']}/{row['name']}")
        bar = page.locator(".actbar")
        await expect(bar.get_by_role("button", name="Resume").first).to_be_disabled()
        await expect(bar).to_contain_text("needs patch on deployments.apps")
        await expect(bar).to_contain_text(command)
        refusal = {"error": {"code": "Forbidden", "message": "ana may not change it"}, "missing": "patch"}
        await page.route("**/resume", lambda route: route.fulfill(status=403, json=refusal))
        page = await tab.go("/workloads?view=paused")
        await page.locator("tr.wr").first.get_by_role("button", name="Resume").click()
        await expect(page.locator(".toast")).to_contain_text("Not brought back.")
        await expect(page.locator(".toast")).to_contain_text("Ana may not change it")


async def test_names_and_reasons_with_html_are_shown_as_they_are(visit: Opening, demo: playing.Demo) -> None:
    def poison(said: Any) -> Any:
        keep = {"until": "2099-01-01T00:00:00Z", "by": HTML, "reason": HTML, "at": None, "idleSeconds": 1, "cost": None}
        words = {**dict.fromkeys(("because", "skipBecause", "policy"), HTML), "models": [HTML]}
        words |= {"state": "kept", "group": "kept"}
        items = [{**row, "name": HTML, "namespace": HTML, "kind": HTML, "keep": keep, **words} for row in said["items"]]
        return {**said, "items": items}

    async with visit() as tab:
        await amend(tab.page, "/api/v1/workloads?*", poison)
        await amend(tab.page, "/api/v1/overview", with_(banners=[{"kind": "data", "headline": HTML, "sentence": HTML}]))
        page = await tab.go("/workloads")
        await expect(page.locator("tr.wr .c-name a").first).to_have_text(HTML)
        await expect(page.locator(".c-next").nth(1)).to_contain_text(HTML)
        page = await tab.go("/")
        await expect(page.locator(".banner")).to_contain_text(HTML)
        assert await page.locator("img").count() == 0
        assert await page.title() != "1"


async def test_a_server_that_is_gone_is_said_and_found_again(browser: play.Browser, demo: playing.Demo) -> None:
    way = relaying.Way(demo.base)
    await way.open()
    async with browsing.visit(browser, way.base) as tab:  # of its own: its clock is not the others'
        await tab.page.clock.install()
        page = await tab.go("/workloads?view=all")
        count = len(demo.rows("all"))
        await expect(page.locator("tr.wr")).to_have_count(count)
        await expect(page.locator(".banner.lost")).to_have_count(0)
        way.shut()
        await expect(page.locator(".banner.lost")).to_contain_text("fallow cannot be reached.", timeout=10_000)
        await expect(page.locator("tr.wr")).to_have_count(count)  # it keeps what it knows
        await way.open()
        await page.clock.fast_forward(31_000)  # the longest it waits before it tries again
        await expect(page.locator(".banner.lost")).to_have_count(0)
    way.shut()


async def test_a_browser_that_is_offline_says_so_at_once(browser: play.Browser, demo: playing.Demo) -> None:
    async with browsing.visit(browser, demo.base) as tab:  # of its own, for the same reason
        await tab.page.clock.install()
        page = await tab.go("/workloads")
        await expect(page.locator(".pulse.off")).to_have_count(0)
        await page.context.set_offline(True)
        await page.evaluate("dispatchEvent(new Event('offline'))")
        await expect(page.locator(".banner.lost")).to_contain_text("This browser is offline.", timeout=20_000)
        await page.context.set_offline(False)
        await page.clock.fast_forward(31_000)  # the longest it waits before it tries again
        await expect(page.locator(".banner.lost")).to_have_count(0)
