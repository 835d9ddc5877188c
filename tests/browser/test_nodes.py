"""The page of nodes: layouts, the steps of a change, what is planned for each node, who shares, what is stranded."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.async_api import expect

from tests.browser import browsing, playing
from tests.browser.conftest import Opening
from tests.browser.test_states import amend, with_

STEPS = {"Planned": "done", "Cordoning": "done", "Draining": "now", "Labelling": "ahead", "Uncordoning": "ahead"}


def change(node: str, **more: Any) -> dict[str, Any]:
    return {
        "node": node, "config": "cut", "phase": "Configuring", "layout": "56 × 1g.10gb", "reason": "Running",
        "because": "It waits for 4 pods to end", "since": "2026-11-17T14:00:00Z", "until": "2026-11-17T15:25:00Z",
        "steps": [{"name": name, "state": state} for name, state in STEPS.items()], **more,
    }


def rule(**more: Any) -> dict[str, Any]:
    return {
        "name": "notebooks", "strategy": "timeslicing", "mode": "enforce", "enforces": True, "pods": 6, "audited": 0,
        "reverted": 1, "trouble": None, **more,
    }


@pytest.mark.parametrize("size", [browsing.WIDE, browsing.PHONE], ids=["wide", "phone"])
async def test_a_change_is_told_with_its_steps_and_when_it_gives_up(
    visit: Opening, demo: playing.Demo, size: tuple[int, int]
) -> None:
    node = demo.ask("/api/v1/nodes")["nodes"][0]["name"]
    plan = {"node": node, "what": "newLayout", "words": "new layout", "because": "draining"}
    async with visit(size=size) as tab:
        await amend(tab.page, "/api/v1/sharing", with_(changes=[change(node)], plans=[plan]))
        page = await tab.go("/nodes")
        told = page.get_by_role("region", name=f"New layout of {node}")
        await expect(told.locator("[aria-current=step]")).to_contain_text("Draining, now")
        await expect(told.locator("li")).to_have_count(len(STEPS))
        await expect(told).to_contain_text("Gives up at 15:25 and puts the old layout back")
        await expect(told).to_contain_text("56 × 1g.10gb")
        await expect(page.locator(f"#node-{node}")).to_contain_text("new layout draining")
        assert await tab.beyond() <= 0


async def test_who_shares_is_told_with_what_was_taken_back_and_what_is_only_an_audit(visit: Opening) -> None:
    audit = rule(name="services", strategy="auto", mode="audit", enforces=False, pods=0, audited=9, reverted=0)
    unknown = rule(name="new", pods=None, audited=None, reverted=None)
    async with visit() as tab:
        await amend(tab.page, "/api/v1/sharing", with_(policies=[rule(), audit, unknown]))
        page = await tab.go("/nodes")
        rows = page.locator(".rules tr")
        await expect(rows.nth(0)).to_contain_text("6 running pods on a part of a GPU; 1 workload taken back")
        await expect(rows.nth(0)).to_contain_text("in force")
        await expect(rows.nth(1)).to_contain_text("9 running pods would be")
        await expect(rows.nth(1)).to_contain_text("audits only")
        await expect(rows.nth(2)).to_contain_text("not counted yet")


async def test_what_is_stranded_that_nobody_could_find_out_is_said_so(visit: Opening) -> None:
    async with visit() as tab:
        await amend(tab.page, "/api/v1/sharing", with_(room=None, unknown=["pods are not seen: forbidden"]))
        page = await tab.go("/nodes")
        await expect(page.get_by_text("cannot tell: pods are not seen: forbidden.")).to_be_visible()


async def test_sharing_that_cannot_be_asked_for_leaves_the_nodes_as_they_are(visit: Opening) -> None:
    async with visit() as tab:
        refusal = {"error": {"code": "NotYet", "message": "no cycle has ended yet"}}
        await tab.page.route("**/api/v1/sharing", lambda route: route.fulfill(status=503, json=refusal))
        page = await tab.go("/nodes")
        await expect(page.get_by_role("alert")).to_contain_text("GET /api/v1/sharing: 503")
        await expect(page.locator("table.nt tbody").first).to_be_visible()
        tab.complaints.clear()  # the browser itself notes the 503


SHARES = {
    "pod": "nb-0", "pods": 1, "sharedPods": 1, "workClass": "notebook", "classSource": "label", "takenBack": None,
    "changed": {"was": "1", "resource": "nvidia.com/gpu.shared", "strategy": "timeslicing", "policy": "notebooks",
                "at": "2026-11-17T08:00:00Z"},
    "next": "part", "reason": "Shared", "because": "notebook by timeslicing, as policy notebooks asks",
    "resource": "nvidia.com/gpu.shared", "unprotected": "time-slicing keeps nothing apart",
    "optOut": "gpuautoscaler.io/sharing: disabled", "optOutCommand": "kubectl annotate x",
}
BACK = {"until": "2099-11-18T08:00:00Z", "because": "its share of a GPU was 98 % busy for 30 minutes",
        "policy": "services", "times": 1}


@pytest.mark.parametrize("size", [browsing.WIDE, browsing.PHONE], ids=["wide", "phone"])
async def test_a_workload_that_shares_says_by_whose_rule_what_it_risks_and_how_to_leave(
    visit: Opening, demo: playing.Demo, size: tuple[int, int]
) -> None:
    row = demo.rows("all")[0]
    address = f"{row['namespace']}/{row['kind']}/{row['name']}"
    async with visit(size=size) as tab:
        await amend(tab.page, f"/api/v1/workloads/{address}/explain", with_(sharing=SHARES))
        page = await tab.go(f"/w/{address}")
        told = page.locator(".shares")
        await expect(told).to_contain_text("1 of 1 pod on a part of a GPU")
        await expect(told).to_contain_text("by timeslicing, policy notebooks")
        await expect(told).to_contain_text("Beware: time-slicing keeps nothing apart.")
        await expect(told).to_contain_text("gpuautoscaler.io/sharing: disabled")
        assert await tab.beyond() <= 0
        hurt = {**SHARES, "changed": None, "takenBack": BACK, "next": "whole", "reason": "BackedOff", "resource": None}
        await page.unroute_all()
        await amend(page, f"/api/v1/workloads/{address}/explain", with_(sharing=hurt))
        page = await tab.go(f"/w/{address}")
        await expect(told).to_contain_text("Taken back: sharing hurt it")
        await expect(told).to_contain_text("Its next pods get whole GPUs")


@pytest.mark.parametrize(("address", "table"), [("/nodes", ".nt"), ("/cost?window=24h", ".sv")])
async def test_no_figure_of_a_table_is_cut_on_a_phone(visit: Opening, address: str, table: str) -> None:
    async with visit(size=browsing.PHONE) as tab:
        page = await tab.go(address)
        around = page.locator(".scroll", has=page.locator(table))
        await expect(around).to_be_visible()
        assert await around.evaluate("it => it.scrollWidth - it.clientWidth") <= 0


async def test_what_is_stranded_names_the_nodes_that_are_left_out(visit: Opening) -> None:
    room = {"asOf": None, "free": 19.3, "stranded": 4.0, "causes": [], "nodes": [],
            "notes": ["2 nodes left out: each is cut by MIG"]}
    async with visit() as tab:
        await amend(tab.page, "/api/v1/sharing", with_(room=room))
        page = await tab.go("/nodes")
        await expect(page.locator("section", has=page.get_by_text("What is stranded"))).to_contain_text(
            "2 nodes left out: each is cut by MIG. What is free on nodes that are left out counts on the overview"
        )
