"""Five thousand workloads: the page holds what is in sight, asks for little, and stays whole while it is scrolled."""

from __future__ import annotations

from playwright.async_api import expect

from tests.browser.conftest import Opening

_IN_SIGHT = 80  # rows of 44 px on a window of 900, and those beyond it on both sides


async def test_only_the_rows_in_sight_are_on_the_page_wherever_it_is_scrolled_to(visit: Opening, crowd: str) -> None:
    async with visit(crowd) as tab:
        page = await tab.go("/workloads?view=all&sort=name")
        await expect(page.locator("tfoot")).to_contain_text("5,000 workloads")
        for place in (0.0, 0.25, 0.5, 0.75, 1.0):
            await page.evaluate(f"scrollTo(0, document.documentElement.scrollHeight * {place})")
            await page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
            assert 0 < await page.locator("tr.wr").count() <= _IN_SIGHT
        await page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
        await expect(page.locator("tr.wr").last).to_contain_text("job-999")
        await page.locator("#filter").fill("job-4321")
        await expect(page.locator("tr.wr")).to_have_count(1)


async def test_a_jump_shows_every_row_in_sight_and_print_shows_all(visit: Opening, crowd: str) -> None:
    async with visit(crowd) as tab:
        page = await tab.go("/workloads?view=all&sort=name&q=job-43")
        await expect(page.locator("tfoot")).to_contain_text("111 workloads")
        await page.evaluate("scrollTo(0, 2200)")
        await expect(page.locator("tr.wr", has_text="job-4350")).to_be_in_viewport()  # in the lower half of the window
        assert await page.locator("tr.wr").count() <= _IN_SIGHT
        await page.evaluate("dispatchEvent(new Event('beforeprint'))")
        await expect(page.locator("tr.wr")).to_have_count(111)
        await page.evaluate("dispatchEvent(new Event('afterprint'))")
        await expect(page.locator("tr.wr")).not_to_have_count(111)


async def test_the_chosen_row_comes_into_sight_and_has_the_focus_wherever_the_page_was(
    visit: Opening, crowd: str
) -> None:
    async with visit(crowd) as tab:
        page = await tab.go("/workloads?view=all&sort=name")
        await expect(page.locator("tfoot")).to_contain_text("5,000 workloads")
        for _ in range(30):  # more than fit into the window
            await page.keyboard.press("j")
        current = page.locator("tr.wr.cur")
        await expect(current).to_have_attribute("aria-rowindex", "31")
        await expect(current).to_be_in_viewport()
        await expect(current.locator("a").first).to_be_focused()
        name = await current.locator("a").first.inner_text()
        await page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
        await expect(page.locator("tr.wr", has_text=name)).to_have_count(0)  # far away, and not on the page
        await page.keyboard.press("k")
        await expect(current).to_have_attribute("aria-rowindex", "30")
        await expect(current).to_be_in_viewport()
        await expect(current.locator("a").first).to_be_focused()
        assert await page.locator("tr.wr").count() <= _IN_SIGHT


async def test_a_field_of_thousands_is_drawn_and_can_be_read(visit: Opening, crowd: str) -> None:
    async with visit(crowd) as tab:
        page = await tab.go("/")
        await expect(page.locator("h1")).to_contain_text("12,800 GPUs lie fallow")
        await expect(page.locator(".fieldsec canvas, .fieldsec svg").first).to_be_visible()
