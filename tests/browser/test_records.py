"""What was learnt is shown where people look: regrets that widened a window, what looks like a heartbeat. And a page
that cannot be loaded says so."""

from __future__ import annotations

from typing import Any

import pytest
from playwright import async_api as play
from playwright.async_api import expect

from tests.browser import playing
from tests.browser.conftest import Opening
from tests.browser.test_states import amend, with_

WIDENED = {
    "times": 1.5, "fromSeconds": 3600.0, "because": "4 of 12 pauses were undone within 15 min, more than 20%",
    "since": "2026-11-15T14:47:00Z", "backAt": "2099-11-22T14:47:00Z", "calmBelow": 0.1, "pauses": 8, "regrets": 1,
}


def widen(said: Any) -> Any:
    first, *others = said["items"]
    return {**said, "items": [{**first, "goneIdleSeconds": 5400.0, "widened": WIDENED}, *others]}


def suspect(row: dict[str, Any]) -> dict[str, Any]:
    who = {name: row[name] for name in ("apiVersion", "kind", "namespace", "name", "uid")}
    return {
        "workload": who, "gpus": ["GPU-1", "GPU-2"], "since": "2026-11-17T08:00:00Z", "until": "2026-11-17T14:00:00Z",
        "mean": 0.007, "tensorMax": 0.0, "dramMax": 0.002, "bursts": 359, "everySeconds": 60.0, "variation": 0.02,
        "sentence": "",
    }


@pytest.mark.parametrize("page_of", ["/activity", "/policies/{name}"])
async def test_a_window_that_grew_is_told_with_why_and_until_when(
    visit: Opening, demo: playing.Demo, page_of: str
) -> None:
    name = demo.ask("/api/v1/policies")["items"][0]["name"]
    async with visit() as tab:
        await amend(tab.page, "/api/v1/policies", widen)
        page = await tab.go(page_of.format(name=name))
        told = page.locator(".widening")
        await expect(told).to_contain_text(f"{name} waits 90\N{NO-BREAK SPACE}min instead of 60\N{NO-BREAK SPACE}min")
        await expect(told).to_contain_text("4 of 12 pauses were undone within 15 min, more than 20%.")
        await expect(told).to_contain_text("Sun 22\N{NO-BREAK SPACE}Nov 14:47 at the earliest")
        await expect(told).to_contain_text("less than 10\N{NO-BREAK SPACE}% of its pauses are undone until then")
        await expect(told).to_contain_text("so far 1 of 8")


async def test_what_looks_like_a_heartbeat_is_listed_with_its_evidence_and_nothing_is_done(
    visit: Opening, demo: playing.Demo
) -> None:
    row = demo.rows("all")[0]
    async with visit() as tab:
        await amend(tab.page, "/api/v1/gaming", with_(items=[suspect(row)], because=None))
        page = await tab.go("/activity")
        beats = page.locator(".beats")
        await expect(beats.get_by_role("link", name=row["name"])).to_be_visible()
        await expect(beats).to_contain_text("2\N{NO-BREAK SPACE}GPUs")
        await expect(beats).to_contain_text("A burst every 1\N{NO-BREAK SPACE}min, 359 of them")
        await expect(beats).to_contain_text("vary by 2\N{NO-BREAK SPACE}%")
        await expect(beats).to_contain_text("fallow never acts on this")


@pytest.mark.parametrize(("said", "words"), [
    ({"items": [], "asked": 3, "because": None, "asOf": None}, "Nothing does. 3\N{NO-BREAK SPACE}GPUs"),
    ({"items": [], "asked": 0, "because": "Prometheus does not answer", "asOf": None},
     "Cannot tell: Prometheus does not answer."),
], ids=["nothing", "not-known"])
async def test_no_heartbeat_and_not_known_are_two_sentences(visit: Opening, said: dict[str, Any], words: str) -> None:
    async with visit() as tab:
        await amend(tab.page, "/api/v1/gaming", with_(**said))
        page = await tab.go("/activity")
        await expect(page.locator(".beats")).to_contain_text(words)


async def test_a_day_is_summed_up_however_much_of_it_is_shown_and_no_bar_is_later_than_now(
    visit: Opening, demo: playing.Demo
) -> None:
    counts = {"told": 41, "paused": 30, "resumed": 20, "broughtBack": 1, "regretted": 1, "kept": 5}
    async with visit() as tab:
        await amend(tab.page, "/api/v1/decisions?*", with_(counts=counts, next="1"))
        page = await tab.go("/activity")
        await expect(page.locator("h1")).to_contain_text("30\N{NO-BREAK SPACE}pauses today")
        day = page.locator("table.log .day").first
        await expect(day).to_contain_text("41 notices, 30 pauses, 21 came back, 5 keeps, 1 regret")
        await expect(page.locator(".after").first).to_contain_text("of 98 shown. Older")
        bars = page.locator(".pace svg rect")
        await expect(bars.first).to_be_visible()
        ends = await bars.evaluate_all("(all) => all.map((each) => each.getBoundingClientRect().right)")
        now = await page.locator(".pace .now").evaluate("(line) => line.getBoundingClientRect().right")
    assert max(ends) <= now + 1


async def test_an_address_names_the_policy_that_is_shown(visit: Opening, demo: playing.Demo) -> None:
    name = demo.ask("/api/v1/policies")["items"][-1]["name"]
    async with visit() as tab:
        page = await tab.go(f"/policies/{name}")
        await expect(page.get_by_role("heading", name=f"What {name} matches now")).to_be_visible()


async def test_a_page_that_cannot_be_loaded_says_so_and_can_be_loaded_again(visit: Opening) -> None:
    async with visit() as tab:

        async def refuse(route: play.Route) -> None:
            await route.abort()

        await tab.page.route("**/assets/records-*.js", refuse)
        page = await tab.go("/")
        await page.get_by_role("navigation", name="Main").get_by_role("link", name="Activity").click()
        await expect(page.locator("h1")).to_have_text("This page could not be loaded.")
        await page.unroute("**/assets/records-*.js")
        await page.get_by_role("button", name="Load again").click()
        await expect(page.get_by_role("heading", name="What was decided")).to_be_visible()
