"""What is done to a row by one key: kept, paused after asking, brought back. The writes are heard and go no further."""

from __future__ import annotations

from typing import Any

import pytest
from playwright import async_api as play
from playwright.async_api import expect

from tests.browser import browsing, playing
from tests.browser.conftest import Opening

UNTIL = "2099-01-01T00:00:00Z"


class Heard:
    """The writes that a page sends, answered in place of the server."""

    def __init__(self) -> None:
        self.writes = list[tuple[str, Any]]()

    async def listen(self, page: play.Page) -> None:
        await page.route("**/api/v1/**", self._answer)
        await page.route("**/api/v1/events", lambda route: route.abort())  # nothing changes while a key is pressed

    async def _answer(self, route: play.Route) -> None:
        asked = route.request
        if asked.method != "POST":
            await route.fallback()
            return
        path = asked.url.partition("/api/v1/")[2]
        self.writes.append((path, asked.post_data_json))
        kept = {"until": UNTIL, "by": "you", "reason": None, "at": None, "idleSeconds": None, "cost": None}
        done = {"result": "done", "sentence": "Done."}
        await route.fulfill(status=201 if path == "acks" else 202, json=kept if path == "acks" else done)


async def choose_first(tab: browsing.Visit, view: str) -> tuple[play.Page, str]:
    """The first row of a view, by the keyboard; its name."""
    page = await tab.go(f"/workloads?view={view}&sort=name")
    await page.locator("tr.wr").first.wait_for()
    await page.keyboard.press("j")
    link = page.locator("tr.wr.cur a").first
    await expect(link).to_be_focused()
    return page, await link.inner_text()


@pytest.mark.parametrize(("key", "hours"), [("4", 4), ("8", 8), ("2", 24)])
async def test_a_figure_keeps_the_row_for_so_many_hours(
    visit: Opening, demo: playing.Demo, key: str, hours: int
) -> None:
    heard = Heard()
    async with visit() as tab:
        await heard.listen(tab.page)
        page, name = await choose_first(tab, "busy")
        await page.keyboard.press(key)
        await expect(page.get_by_role("status").get_by_text("Kept until")).to_be_visible()
    [(path, body)] = heard.writes
    assert (path, body["name"], body["hours"]) == ("acks", name, hours)


async def test_p_asks_before_it_pauses_and_escape_leaves_it(visit: Opening, demo: playing.Demo) -> None:
    heard = Heard()
    async with visit() as tab:
        await heard.listen(tab.page)
        page, name = await choose_first(tab, "busy")
        await page.keyboard.press("p")
        asked = page.get_by_role("dialog")
        await expect(asked).to_contain_text(name)
        await page.keyboard.press("Escape")
        await expect(asked).to_have_count(0)
        assert heard.writes == []
        await page.keyboard.press("p")
        async with page.expect_response(lambda answer: answer.url.endswith("/pause")):
            await asked.get_by_role("button", name="Pause").last.click()
        await expect(asked).to_have_count(0)
    [(path, body)] = heard.writes
    assert path.startswith("workloads/")
    assert path.endswith(f"/{name}/pause")
    assert body["force"] is False


async def test_r_brings_back_what_rests_and_nothing_else(visit: Opening, demo: playing.Demo) -> None:
    heard = Heard()
    async with visit() as tab:
        await heard.listen(tab.page)
        page, name = await choose_first(tab, "busy")
        await page.keyboard.press("r")  # it does not rest
        page, name = await choose_first(tab, "paused")
        for key in ("4", "8", "2", "p"):  # what rests is neither kept nor paused
            await page.keyboard.press(key)
        await expect(page.get_by_role("dialog")).to_have_count(0)
        await page.keyboard.press("r")
        await expect(page.get_by_text("Coming back.")).to_be_visible()
    [(path, _)] = heard.writes
    assert path.endswith(f"/{name}/resume")


async def test_a_key_in_a_field_is_a_letter(visit: Opening, demo: playing.Demo) -> None:
    heard = Heard()
    async with visit() as tab:
        await heard.listen(tab.page)
        page, _ = await choose_first(tab, "busy")
        await page.keyboard.press("/")
        await page.keyboard.type("482pr")
        await expect(page.locator("#filter")).to_have_value("482pr")
        await expect(page.get_by_role("dialog")).to_have_count(0)
    assert heard.writes == []
