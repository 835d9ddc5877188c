"""A newcomer in the demo: finds what costs most, keeps it, brings back what rests; and the cluster has it too."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from playwright.async_api import expect

from fallow import names
from tests.browser import playing
from tests.browser.conftest import Opening
from tests.browser.test_states import amend


def marks_of(thing: Any) -> dict[str, str]:
    said: dict[str, str] = thing["metadata"].get("annotations") or {}
    return said


def cheap(demo: playing.Demo) -> list[dict[str, Any]]:
    """What can be kept, or is: the cheapest first, for the costliest is another test's."""
    found = [row for row in (*demo.rows("kept"), *demo.rows("idle")) if row["state"] in ("kept", "told", "idle")]
    return sorted(found, key=lambda row: (row["perHour"] or 0.0, row["uid"]))


@pytest.mark.accepts("idle", 20)
async def test_the_costliest_idle_workload_is_found_and_kept_for_four_hours(
    visit: Opening, demo: playing.Demo
) -> None:
    async with visit() as tab:
        page = await tab.go("/")
        await page.get_by_role("navigation", name="Main").get_by_role("link", name="Workloads").click()
        await page.get_by_role("button", name="Cost a day").click()
        first = page.locator("tr.wr", has=page.get_by_role("group", name=re.compile("^Keep "))).first
        ready = [row for row in demo.rows("idle") if row["state"] in ("told", "idle") and row["perHour"]]
        most = max(row["perHour"] for row in ready)
        name = await first.locator(".c-name a").first.inner_text()
        [costliest] = [row for row in ready if row["name"] == name and row["perHour"] == most]
        await first.get_by_role("link", name=name).click()
        await expect(page.locator("h1")).to_contain_text("unless you keep it")
        await page.get_by_label("Reason, for your team (optional)").fill("demo at three")
        await page.get_by_role("button", name=re.compile(r"^4\sh")).first.click()
        await expect(page.get_by_role("status").get_by_text("Kept until")).to_be_visible()
        await expect(page.locator(".actbar")).to_contain_text("by api:you@example.com")
        await expect(page.locator(".actbar")).to_contain_text("“demo at three”")
    said = marks_of(demo.read_object(costliest))
    assert said[names.ACK_REASON] == "demo at three"
    hours = datetime.fromisoformat(said[names.ACK_UNTIL]) - datetime.fromisoformat(said[names.ACK_AT])
    assert round(hours.total_seconds() / 3600, 2) == 4


async def test_a_keep_needs_no_reason(visit: Opening, demo: playing.Demo) -> None:
    row = cheap(demo)[0]
    async with visit() as tab:
        page = await tab.go(f"/w/{row['namespace']}/{row['kind']}/{row['name']}")
        bar, said = page.locator(".actbar"), page.get_by_role("status")
        if row["state"] == "kept":
            await bar.get_by_role("button", name="End it").click()
        await bar.get_by_role("button", name=re.compile(r"^4\sh")).first.click()
        await expect(said.get_by_text("Kept until")).to_be_visible()


async def test_a_freeze_needs_no_reason(visit: Opening, demo: playing.Demo) -> None:
    async with visit() as tab:
        page = await tab.go("/")
        await page.get_by_role("button", name="Freeze").click()
        await page.get_by_role("dialog").get_by_role("button", name=re.compile("^Freeze")).click()
        await expect(page.get_by_text(re.compile("^Frozen until")).first).to_be_visible()
        await page.get_by_role("button", name="Undo").click()
        await expect(page.get_by_text("No longer frozen.")).to_be_visible()


async def test_the_time_that_is_left_counts_down(visit: Opening, demo: playing.Demo) -> None:
    told = next(row for view in ("idle", "kept", "busy") for row in demo.rows(view))
    soon = datetime.now(UTC) + timedelta(seconds=50)  # seconds are shown in the last minute only
    step = {"type": "pause", "at": soon.isoformat(), "because": "its owner was told"}

    def hurry(said: Any) -> Any:
        return {**said, "row": {**said["row"], "state": "told", "verdict": "idle", "keep": None, "next": step}}

    async with visit() as tab:
        await amend(tab.page, "/explain", hurry)
        page = await tab.go(f"/w/{told['namespace']}/{told['kind']}/{told['name']}")
        left = page.get_by_role("img", name=re.compile(r" left$"))
        before = await left.get_attribute("aria-label")
        await expect(left).not_to_have_attribute("aria-label", before or "")


@pytest.mark.accepts("idle", 15)
async def test_what_rests_is_brought_back_by_one_press(visit: Opening, demo: playing.Demo) -> None:
    resting = next(row for row in demo.rows("paused") if row["apiVersion"] == "apps/v1")
    assert demo.read_object(resting)["spec"]["replicas"] == 0
    async with visit() as tab:
        page = await tab.go("/workloads?view=paused")
        await page.locator("tr.wr", has_text=resting["name"]).get_by_role("button", name="Resume").click()
        await expect(page.get_by_text("Coming back.")).to_be_visible()
    now = demo.read_object(resting)
    assert now["spec"]["replicas"] > 0
    assert names.PAUSED_AT not in marks_of(now)


async def test_a_keep_on_one_page_is_seen_on_another_within_two_seconds(visit: Opening, demo: playing.Demo) -> None:
    """Its begin, or its end where one stands already."""
    row = cheap(demo)[1]
    press, standing = ("End it", "Kept until") if row["state"] == "kept" else (re.compile(r"^4\sh"), "Keep it")
    path = f"/w/{row['namespace']}/{row['kind']}/{row['name']}"
    async with visit() as one, visit() as other:
        page, elsewhere = await one.go(path), await other.go(path)
        await expect(elsewhere.locator(".actbar")).to_contain_text(standing)
        await page.locator(".actbar").get_by_role("button", name=press).first.click()
        await expect(page.get_by_text(re.compile("^(No longer kept|Kept until)")).first).to_be_visible()
        await expect(elsewhere.locator(".actbar")).not_to_contain_text(standing, timeout=2_000)


async def test_the_conversation_shows_who_was_told_and_what_they_answered(visit: Opening, demo: playing.Demo) -> None:
    told = demo.ask("/api/v1/conversation")["items"]
    assert {each["by"] for each in told} == {"slack", "mail"}
    async with visit() as tab:
        page = await tab.go("/")
        await page.get_by_role("navigation", name="Main").get_by_role("link", name="Conversation").click()
        await expect(page.locator("h1")).to_contain_text("messages")
        one = page.locator(".message").filter(has_text=told[0]["to"][0])  # somebody else may have been told since
        await expect(one.first).to_be_visible()
        await expect(page.locator(".answer").first).to_be_visible()


async def test_a_kind_that_does_not_exist_and_a_workload_that_is_gone_are_said(
    visit: Opening, demo: playing.Demo
) -> None:
    async with visit() as tab:
        page = await tab.go("/w/team-x/Job/nothing")
        await expect(page.locator("h1")).to_contain_text("nothing")
        page = await tab.go("/w/nowhere")
        await expect(page.locator("h1")).to_have_text("There is nothing at this address.")
