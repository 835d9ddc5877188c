"""Every page: under its strict CSP, for those who see little or use a keyboard, on a phone, by its address."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any

import pytest
from playwright.async_api import expect

from tests.browser import browsing, playing
from tests.browser.conftest import Opening
from tests.browser.test_states import amend

PAGES = (
    "/", "/workloads?view=all", "/workloads?view=paused", "/activity", "/cost", "/nodes", "/policies", "/inbox",
    "/w/team-x/Job/gone",
)


def workload_pages(demo: playing.Demo) -> list[str]:
    """One of each state there is."""
    by_state = {row["state"]: row for row in demo.rows("all") if row["state"] in ("told", "kept", "paused", "unknown")}
    return [f"/w/{row['namespace']}/{row['kind']}/{row['name']}" for row in by_state.values()]


async def test_axe_finds_nothing_serious_on_any_page_in_light_and_dark(visit: Opening, demo: playing.Demo) -> None:
    found: dict[str, list[str]] = {}
    left = [path for path in (*PAGES, *workload_pages(demo)) if path != "/cost"]  # which test_cost.py looks at

    async def look() -> None:
        async with visit(for_axe=True) as tab:
            while left:
                path = left.pop()
                page = await tab.go(path)
                await expect(page.locator(".loading i")).to_have_count(0)
                found[path] = await browsing.find_faults(page)
                await page.emulate_media(color_scheme="dark")  # by which nothing changes but colours
                found[path] += await browsing.find_faults(page, "color-contrast")
                await page.emulate_media(color_scheme="light")

    await asyncio.gather(look(), look())  # two tabs: axe has one core busy
    assert len(found) >= len(PAGES) - 1
    assert {path: faults for path, faults in found.items() if faults} == {}


async def test_under_the_strict_csp_pages_ask_nobody_else_and_none_is_wider_than_its_window(
    visit: Opening, demo: playing.Demo
) -> None:
    async with visit(size=browsing.PHONE) as tab:
        asked: list[str] = []
        tab.page.on("request", lambda request: asked.append(request.url))
        answer = await tab.page.goto(demo.base + "/")
        assert answer is not None
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        wide = {}
        for path in (*PAGES, *workload_pages(demo)):
            page = await tab.go(path)
            await expect(page.locator(".loading i")).to_have_count(0)
            for size in (browsing.PHONE, browsing.WIDE):
                await page.set_viewport_size({"width": size[0], "height": size[1]})
                if beyond := await tab.beyond():
                    wide[path, size] = beyond
            await page.set_viewport_size({"width": browsing.PHONE[0], "height": browsing.PHONE[1]})
        assert wide == {}
        assert [url for url in asked if not url.startswith((demo.base, "data:"))] == []


async def test_an_address_holds_the_whole_state_of_a_list(visit: Opening, demo: playing.Demo) -> None:
    rows = demo.rows("all")
    space = rows[0]["namespace"]
    mine = sorted(row["name"] for row in rows if row["namespace"] == space)
    async with visit() as tab:
        page = await tab.go(f"/workloads?view=all&ns={space}&sort=name")
        await expect(page.locator("tr.wr")).to_have_count(len(mine))
        assert await page.locator("tr.wr .c-name a").all_inner_texts() == mine
        await page.get_by_role("button", name="GPUs").click()
        await expect(page).to_have_url(f"{demo.base}/workloads?view=all&ns={space}&sort=gpus&order=desc")
        await page.reload()
        await expect(page.get_by_role("columnheader", name="GPUs")).to_have_attribute("aria-sort", "descending")
        for old, view in (("/paused", "paused"), ("/acks", "kept"), ("/acknowledgements", "kept")):
            page = await tab.go(old)
            await expect(page).to_have_url(f"{demo.base}/workloads?view={view}")


async def test_the_list_is_walked_by_keyboard(visit: Opening, demo: playing.Demo) -> None:
    async with visit() as tab:
        page = await tab.go("/")
        await page.keyboard.press("Tab")
        await expect(page.get_by_role("link", name="Skip to the page")).to_be_focused()
        await page.keyboard.press("g")
        await page.keyboard.press("w")
        await expect(page).to_have_url(f"{demo.base}/workloads")
        await page.locator("tr.wr").first.wait_for()
        await page.keyboard.press("j")
        current = page.locator("tr.wr.cur")
        await expect(current.locator("a").first).to_be_focused()
        name = await current.locator("a").first.inner_text()
        await page.keyboard.press("x")
        await expect(page.get_by_role("region", name="What to do with the selected workloads")).to_be_visible()
        await page.keyboard.press("Escape")
        await expect(page.locator(".bulk")).to_have_count(0)
        await page.keyboard.press("Enter")
        await expect(page.locator(".wn")).to_have_text(name)
        await page.keyboard.press("?")
        await expect(page.get_by_role("dialog")).to_be_visible()
        await page.keyboard.press("Escape")
        await expect(page.get_by_role("dialog")).to_have_count(0)


async def test_the_field_is_walked_by_arrow_keys_and_says_each_gpu(visit: Opening, demo: playing.Demo) -> None:
    async with visit() as tab:
        page = await tab.go("/")
        cell = page.locator('[role="grid"] [tabindex="0"]').first
        await cell.focus()
        first = await page.evaluate("document.activeElement.getAttribute('aria-label')")
        await page.keyboard.press("ArrowRight")
        second = await page.evaluate("document.activeElement.getAttribute('aria-label')")
        assert first
        assert second
        assert first != second


_WORDS = """() => [...document.querySelector(".evx .fl").parentElement.children].map((e) => e.getBoundingClientRect())
  .filter((box) => box.width).map((box) => [box.left, box.right]).sort((a, b) => a[0] - b[0])"""


@pytest.mark.parametrize("minutes", [20, 60, 150])
async def test_on_a_phone_no_word_above_the_evidence_lies_on_another(
    visit: Opening, demo: playing.Demo, minutes: int
) -> None:
    row = next(row for view in ("idle", "kept", "busy") for row in demo.rows(view))

    def work(said: dict[str, Any]) -> dict[str, Any]:
        ended = datetime.fromisoformat(said["to"]) - timedelta(minutes=minutes)
        return {**said, "lastWork": ended.isoformat()}

    async with visit(size=browsing.PHONE) as tab:
        await amend(tab.page, "/timeline*", work)
        page = await tab.go(f"/w/{row['namespace']}/{row['kind']}/{row['name']}")
        await expect(page.locator(".evx .fl")).to_be_visible()
        boxes = await page.evaluate(_WORDS)
    assert len(boxes) == 2
    assert boxes[0][0] >= 0
    assert boxes[0][1] <= boxes[1][0]
