"""What GPUs cost, on screen: over a real ledger with a month of eight teams, over empty books, and over none."""

from __future__ import annotations

import csv
import io
import re
from decimal import Decimal
from typing import Any
from urllib import parse

import pytest
from playwright import async_api as play
from playwright.async_api import expect

from tests.browser import browsing, spent
from tests.browser.conftest import Opening
from tests.browser.test_states import HTML, amend

COSTS, HOURS, SHARES = 2, 1, 3  # columns of the table
PARTS = range(5, 9)


@pytest.fixture
def month(books: dict[str, str]) -> str:
    return books["month"]


@pytest.fixture
def bookless(books: dict[str, str]) -> str:
    return books["none"]


@pytest.fixture
def empty(books: dict[str, str]) -> str:
    return books["empty"]


def figure(text: str) -> Decimal:
    """As it is printed; nothing is nothing."""
    return Decimal(re.sub(r"[^\d.−]", "", text).replace("−", "-") or 0)


class Printed:
    """The table of who caused it, cell by cell."""

    def __init__(self, rows: list[list[str]], total: list[str]) -> None:
        self.rows, self.total = rows, total

    def named(self, name: str) -> list[str]:
        return next(row for row in self.rows if row[0].startswith(name))

    def sum(self, column: int, *, of: list[list[str]] | None = None) -> Decimal:
        return sum((figure(row[column]) for row in (self.rows if of is None else of)), Decimal(0))

    @property
    def causes(self) -> list[list[str]]:
        """What stands above the line of all of them."""
        end = next(place for place, row in enumerate(self.rows) if row[0].startswith("All "))
        return self.rows[:end]

    @property
    def below(self) -> list[list[str]]:
        return self.rows[len(self.causes) + 1 :]

    @property
    def held(self) -> list[str]:
        return self.rows[len(self.causes)]


_CELLS = "(rows) => rows.map((row) => [...row.cells].map((cell) => cell.innerText.trim()))"


async def read_table(page: play.Page) -> Printed:
    table = page.locator("table.ct")
    await table.wait_for()
    rows = await table.locator("tbody tr").evaluate_all(_CELLS)
    [total] = await table.locator("tfoot tr").evaluate_all(_CELLS)
    return Printed(rows, total)


async def open_cost(tab: browsing.Visit, query: str = "") -> play.Page:
    page = await tab.go(f"/cost{query}")
    await expect(page.locator(".loading")).to_have_count(0)
    return page


def assert_adds_up(printed: Printed) -> None:
    for column in (HOURS, COSTS, SHARES):
        assert printed.sum(column, of=printed.causes) == figure(printed.held[column])
        assert figure(printed.held[column]) + printed.sum(column, of=printed.below) == figure(printed.total[column])
    for column in PARTS:
        assert printed.sum(column, of=printed.causes) == figure(printed.held[column])


# ---- what is printed -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("query", ["", "?by=workload&window=7d", "?by=model&window=month", "?by=label:tier&window=24h"])
async def test_every_cent_is_in_one_row_and_one_column(visit: Opening, month: str, query: str) -> None:
    async with visit(month) as tab:
        page = await open_cost(tab, query)
        printed = await read_table(page)
        legs = await page.locator(".legs .big").all_inner_texts()
        shares = await page.locator(".legs .xs .n").all_inner_texts()
    assert_adds_up(printed)
    assert figure(printed.total[COSTS]) > 10_000
    assert sum(map(figure, legs)) == figure(printed.total[COSTS])
    assert sum(map(figure, shares)) == 100
    for row in printed.causes:
        assert sum(figure(row[column]) for column in PARTS) == figure(row[COSTS])


async def test_the_sentence_the_legend_and_the_table_say_the_same(visit: Opening, month: str) -> None:
    async with visit(month) as tab:
        page = await open_cost(tab)
        printed = await read_table(page)
        said = [figure(amount) for amount in re.findall(r"\$[\d,.]*\d", await page.locator("h1").inner_text())]
        legend = page.locator("table.lgt")
        parts = await legend.locator("tbody td:nth-child(3)").all_inner_texts()
        whole = await legend.locator("tfoot td:nth-child(3)").inner_text()
    total, nothing, idle, most_idle, free = said
    assert total == round(figure(printed.total[COSTS]))
    assert nothing == idle + free
    assert 0 < most_idle <= idle
    assert abs(nothing - figure(printed.held[7]) - printed.sum(COSTS, of=printed.below)) <= 1
    assert len(parts) == len(spent.TEAMS) + 1
    assert sum(map(figure, parts)) == figure(whole) == total


async def test_days_come_to_the_table_to_the_cent(visit: Opening, month: str) -> None:
    """Where the sum is small enough to be told in cents: days are rounded each by itself."""
    async with visit(month) as tab:
        page = await open_cost(tab, "?window=16h")
        printed = await read_table(page)
        whole = await page.locator("table.lgt tfoot td:nth-child(3)").inner_text()
    assert figure(whole) == figure(printed.total[COSTS])


async def test_who_used_pays_by_use_and_the_total_stays(visit: Opening, month: str) -> None:
    async with visit(month) as tab:
        page = await open_cost(tab)
        by_allocation = await read_table(page)
        await page.get_by_role("button", name="Use", exact=True).click()
        await expect(page.get_by_role("cell", name="Held and not used")).to_be_visible()
        await expect(page).to_have_url(f"{month}/cost?basis=use")
        by_use = await read_table(page)
    assert_adds_up(by_use)
    assert by_use.total[COSTS] == by_allocation.total[COSTS]
    chat = by_use.named("team-chat")
    assert chat[COSTS] == chat[5] != by_allocation.named("team-chat")[COSTS]


# ---- down to pods ----------------------------------------------------------------------------------------------------


async def test_a_row_leads_to_its_workloads_and_these_to_their_pods(visit: Opening, month: str) -> None:
    async with visit(month) as tab:
        page = await open_cost(tab, "?window=7d")
        team = (await read_table(page)).named("team-vision")
        await page.get_by_role("link", name="team-vision").click()
        await expect(page.locator("h1")).to_contain_text("team-vision cost")
        await expect(page.locator(".loading")).to_have_count(0)
        workloads = await read_table(page)
        assert (workloads.total[COSTS], workloads.below) == (team[COSTS], [])
        assert_adds_up(workloads)
        await page.locator("table.ct").get_by_role("link", name="train", exact=True).click()
        await expect(page.locator("h1")).to_contain_text("train in team-vision cost")
        await expect(page.locator(".loading")).to_have_count(0)
        pods = await read_table(page)
        assert pods.total[COSTS] == workloads.named("train")[COSTS]
        assert_adds_up(pods)
        asked = parse.parse_qs(parse.urlsplit(page.url).query)
        assert (asked["by"], asked["window"]) == (["pod"], ["7d"])
        await page.get_by_role("navigation", name="Filter").get_by_role("link", name="All costs").click()
        await expect(page).to_have_url(f"{month}/cost?window=7d")
        await page.go_back()
        await expect(page.locator("h1")).to_contain_text("train in team-vision cost")


async def test_the_address_holds_every_choice(visit: Opening, month: str) -> None:
    async with visit(month) as tab:
        page = await open_cost(tab)
        await page.get_by_label("Window").select_option("7d")
        await page.get_by_role("button", name="Label…").click()
        await expect(page.locator("h1")).to_have_text("By which label?")
        await page.get_by_label("Key of the label").fill("tier")
        await page.keyboard.press("Enter")
        await expect(page.locator("table.ct")).to_contain_text("gold")
        await page.get_by_role("button", name="Held idle").click()
        await expect(page.get_by_role("columnheader", name="Held idle")).to_have_attribute("aria-sort", "descending")
        await expect(page).to_have_url(f"{month}/cost?window=7d&by=label%3Atier&sort=heldIdle")
        await page.reload()
        await expect(page.get_by_role("columnheader", name="Held idle")).to_have_attribute("aria-sort", "descending")
        idle = [figure(row[7]) for row in (await read_table(page)).causes]
    assert idle == sorted(idle, reverse=True)


async def test_the_rows_as_a_file_come_to_the_total(visit: Opening, month: str) -> None:
    async with visit(month) as tab:
        page = await open_cost(tab, "?by=workload")
        total = (await read_table(page)).total
        async with page.expect_download() as coming:
            await page.get_by_role("button", name="CSV").click()
        saved = await coming.value
        text = (await saved.path()).read_text()
    rows = list(csv.DictReader(io.StringIO(text)))
    assert saved.suggested_filename == "fallow-cost-workload-30d.csv"
    assert sum(Decimal(row["cost_usd"]) for row in rows) == figure(total[COSTS])
    assert {row["namespace"] for row in rows} >= {*spent.TEAMS, "__unallocated__", "__unused_commitment__"}


# ---- beside it -------------------------------------------------------------------------------------------------------


async def test_budgets_show_what_is_left_and_where_they_are_heading(visit: Opening, month: str) -> None:
    async with visit(month) as tab:
        page = await open_cost(tab)
        shown = page.locator(".bd")
        await expect(shown).to_have_count(3)
        await page.get_by_role("button", name="All 5").click()
        await expect(shown).to_have_count(5)
        chat = shown.filter(has_text="chat-november")
        await expect(chat).to_contain_text("Forecast 154")
        await expect(chat.locator("svg[role=img]")).to_contain_text("empty")
        await expect(chat).to_contain_text("Alert “forecast” fired")
        await expect(chat.get_by_role("button", name="as seen")).to_have_count(0)  # nobody may here
        bio = shown.filter(has_text="bio-november")
        await expect(bio).to_contain_text("by ana@example.com: Paper deadline. $412.00 were spent under it.")
        await expect(shown.filter(has_text="ads-november")).to_contain_text("Too early to tell")
        await expect(shown.filter(has_text="all-gpus")).to_contain_text("12.4 GPU-hours without a price are not in it.")


async def test_who_is_logged_in_marks_an_alert_as_seen_and_a_refusal_is_said(visit: Opening, month: str) -> None:
    may = {"allowed": True, "missing": None, "command": ""}
    said, asked = {"user": "ada", "mode": "kube", "csrf": "c", "mayFreeze": may, "maySeeAlerts": may}, list[str]()
    error = {"code": "Forbidden", "message": "ada may not acknowledge it"}
    missing = {"error": error, "missing": "patch on costbudgets"}

    async def mark(route: play.Route) -> None:
        asked.append(f"{route.request.method} {parse.urlsplit(route.request.url).path}")
        seen = {"budget": "chat-november", "alert": "forecast", "wasSeen": False}
        await route.fulfill(status=403, json=missing) if len(asked) == 1 else await route.fulfill(json=seen)

    async with visit(month) as tab:
        await tab.page.route("**/api/v1/me", lambda route: route.fulfill(json=said))
        await tab.page.route("**/ack", mark)
        page = await open_cost(tab)
        chat = page.locator(".bd").filter(has_text="chat-november")
        press = chat.get_by_role("button", name="Mark alert forecast of chat-november as seen")
        await press.click()
        await expect(page.get_by_text("Ada may not acknowledge it. Missing: patch on costbudgets.")).to_be_visible()
        await press.click()
        await expect(press).to_have_count(0)
        await expect(chat).to_contain_text(re.compile("Alert “forecast” fired .*, seen\\."))
    assert asked == ["POST /api/v1/cost/budgets/chat-november/alerts/forecast/ack"] * 2


async def test_what_was_saved_is_apart_from_what_was_only_freed(visit: Opening, month: str) -> None:
    async with visit(month) as tab:
        page = await open_cost(tab)
        rows = await page.locator("table.sv tbody tr").evaluate_all(_CELLS)
        [total] = await page.locator("table.sv tfoot tr").evaluate_all(_CELLS)
        for column in (2, 3, 4, 5):
            assert sum(figure(row[column]) for row in rows) == figure(total[column])
        for row in [*rows, total]:
            assert figure(row[2]) == figure(row[3]) + figure(row[4])
        await expect(page.get_by_text("Dry runs would have freed 12.0 GPU-hours")).to_be_visible()
        keeps = page.locator("section", has_text="Open keeps").last
        costs = await keeps.locator("tbody td:last-child").all_inner_texts()
        whole = await keeps.locator("tfoot td:last-child").inner_text()
    assert len(costs) == len(spent.KEPT)
    assert sum(map(figure, costs)) == figure(whole) > 0


async def test_hours_without_a_price_are_words_and_no_money(visit: Opening, month: str) -> None:
    async with visit(month) as tab:
        page = await open_cost(tab)
        await expect(page.locator(".ctl")).to_contain_text("12.4 GPU-hours have no price")
        await expect(page.get_by_text("12.4 GPU-hours have no price and are in no sum")).to_be_visible()
        page = await open_cost(tab, '?by=workload&filter=team:"team-ads"')
        odd = (await read_table(page)).named("odd")
        assert (odd[HOURS], odd[COSTS], *(odd[column] for column in PARTS)) == ("12.4", "no price", "", "", "", "")
        await page.get_by_role("link", name="odd").click()
        await expect(page.locator("h1")).to_contain_text("12.4 GPU-hours have no price.")
        assert "$" not in await page.locator("h1").inner_text()


# ---- when all is not well --------------------------------------------------------------------------------------------


async def test_without_books_a_sentence_says_how_to_have_them(visit: Opening, bookless: str) -> None:
    async with visit(bookless, for_axe=True) as tab:
        page = await open_cost(tab)
        await expect(page.locator("h1")).to_have_text("What the GPUs cost is not written down here.")
        await expect(page.locator("main")).to_contain_text("start the daemon with --cost true")
        await expect(page.get_by_role("alert")).to_have_count(0)
        assert await browsing.find_faults(page) == []


async def test_empty_books_say_so(visit: Opening, empty: str) -> None:
    async with visit(empty, for_axe=True) as tab:
        page = await open_cost(tab)
        await expect(page.locator("h1")).to_have_text("Nothing is booked in 30 days.")
        await expect(page.get_by_text("There are no CostBudgets.")).to_be_visible()
        await expect(page.get_by_text("Nothing idle is kept now.")).to_be_visible()
        assert await browsing.find_faults(page) == []


@pytest.mark.parametrize(("path", "stays"), [
    ("series", "table.ct"), ("budgets", "table.ct"), ("savings", ".bd"), ("acks", "table.sv"), ("report", ".ctl"),
])
async def test_a_part_that_fails_is_told_and_the_others_stay(visit: Opening, month: str, path: str, stays: str) -> None:
    async with visit(month) as tab:
        refusal = {"error": {"code": "Ledger", "message": "the ledger cannot be read"}}
        await tab.page.route(f"**/api/v1/cost/{path}*", lambda route: route.fulfill(status=503, json=refusal))
        page = await tab.go("/cost")
        failed = page.get_by_role("alert")
        await expect(failed).to_contain_text(f"GET /api/v1/cost/{path}: 503, the ledger cannot be read.")
        await expect(page.locator(stays).first).to_be_visible()
        await page.unroute_all()
        await failed.get_by_role("button", name="Try now").click()
        await expect(failed).to_have_count(0)


async def test_a_window_that_is_none_is_refused_in_words(visit: Opening, month: str) -> None:
    async with visit(month) as tab:
        page = await tab.go("/cost?window=banana")
        await expect(page.get_by_role("alert")).to_contain_text("'banana' is no window")


async def test_names_with_html_are_shown_as_they_are_and_lead_nowhere(visit: Opening, month: str) -> None:
    def poison(said: Any) -> Any:
        rows = [{**row, "key": HTML, "keys": [HTML]} for row in said["rows"][:1]] + said["rows"][1:]
        return {**said, "rows": rows}

    async with visit(month) as tab:
        await amend(tab.page, "/api/v1/cost/report*", poison)
        page = await open_cost(tab)
        await expect(page.locator("table.ct tbody tr").first.locator("td").first).to_have_text(HTML)
        assert await page.locator("img[src=x], table.ct tbody tr:first-child a").count() == 0


# ---- for everybody ---------------------------------------------------------------------------------------------------

VIEWS = (  # each with few rows: axe looks at every one, and they are alike
    "", '?by=workload&budgets=all&filter=team:"team-bio"', '?by=pod&window=24h&filter=team:"team-bio"',
    "?by=label:tier&basis=use",
)


async def test_no_view_is_wider_than_a_phone(visit: Opening, month: str) -> None:
    wide = {}
    async with visit(month, size=browsing.PHONE) as tab:
        for view in VIEWS:
            await open_cost(tab, view)
            wide[view] = await tab.beyond()
    assert set(wide.values()) == {0}


async def test_a_phone_shows_what_was_held_idle_and_saved_without_pushing_aside(visit: Opening, month: str) -> None:
    async with visit(month, size=browsing.PHONE) as tab:
        page = await open_cost(tab)
        for table, head in (("table.ct", "Held idle"), ("table.sv", "saved")):
            box = await page.locator(table).get_by_role("columnheader", name=head, exact=True).bounding_box()
            assert box is not None
            assert box["x"] + box["width"] <= browsing.PHONE[0]


async def test_axe_finds_nothing_serious_in_light_and_dark(visit: Opening, month: str) -> None:
    found = {}
    async with visit(month, for_axe=True) as tab:
        for view in VIEWS:
            page = await open_cost(tab, view)
            found[view] = await browsing.find_faults(page)
            await page.emulate_media(color_scheme="dark")
            found[view] += await browsing.find_faults(page, "color-contrast")
            await page.emulate_media(color_scheme="light")
    assert {view: faults for view, faults in found.items() if faults} == {}


async def test_keys_lead_there_and_a_chart_can_be_read_as_a_table(visit: Opening, month: str) -> None:
    async with visit(month) as tab:
        page = await tab.go("/nodes")
        await page.keyboard.press("g")
        await page.keyboard.press("c")
        await expect(page).to_have_url(f"{month}/cost")
        await expect(page.locator(".loading")).to_have_count(0)
        summary = page.locator(".dd summary")
        await summary.focus()
        await page.keyboard.press("Enter")
        days = page.get_by_role("region", name="Cost by day").locator("tbody tr")
        await expect(days).to_have_count(31)  # thirty days that begin at noon
        total = (await read_table(page)).total
        printed = await days.evaluate_all(_CELLS)
    assert abs(sum(figure(row[-1]) for row in printed) - figure(total[COSTS])) < Decimal("0.31")  # half a cent each
