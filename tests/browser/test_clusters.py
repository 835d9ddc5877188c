"""The page of several clusters: sums of those that are seen, and one that is away is said in words, never as 0."""

from __future__ import annotations

import pytest
from playwright.async_api import expect

from fallow.doors.api import pages
from tests.browser import browsing
from tests.browser.conftest import Opening
from tests.unit.doors.api.test_clusters import AWAY, PretendPeer, beside

WIDE, PHONE = (1440, 900), (390, 844)


@pytest.mark.parametrize("size", [WIDE, PHONE], ids=["wide", "phone"])
async def test_a_cluster_that_is_away_is_said_in_words_and_is_in_no_sum(visit: Opening, size: tuple[int, int]) -> None:
    peers = PretendPeer(), PretendPeer(overview=AWAY["refused"])
    async with (
        beside(*peers, files=pages.read_files()) as client, visit(client.url, size=size, for_axe=True) as tab,
    ):
        page = await tab.go("/clusters")
        await expect(page.locator("h1")).to_contain_text("110 GPUs in 2 clusters")
        await expect(page.locator("h1")).to_contain_text("peer-2 is not seen")
        away = page.locator("tbody tr", has_text="peer-2")
        await expect(away).to_contain_text("Not seen: it does not answer")
        figures = await away.locator("td.n").all_inner_texts()
        assert set(figures) == {"not seen"}
        await expect(page.locator("tfoot")).to_contain_text("$1,000.25")
        await expect(page.locator("tbody a", has_text="peer-1")).to_have_attribute("href", peers[0].url)
        assert await tab.beyond() <= 0
        assert await browsing.find_faults(page) == []


async def test_who_has_one_cluster_has_no_such_page_in_the_menu(visit: Opening) -> None:
    async with beside(files=pages.read_files()) as client, visit(client.url) as tab:
        page = await tab.go("/clusters")
        await expect(page.locator("h1")).to_contain_text("the only cluster")
        await expect(page.locator("nav.nav a", has_text="Clusters")).to_have_count(0)
