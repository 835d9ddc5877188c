"""The dashboard of a real daemon in a real browser, on the real API server: what is pressed there stands on the
objects, and who may not is told so."""

from __future__ import annotations

import os
import pathlib
from collections.abc import AsyncIterator
from datetime import datetime

import pytest
from playwright import async_api as play
from playwright.async_api import expect

from fallow import names
from tests.browser import browsing
from tests.real import cluster as clusters
from tests.real import product
from tests.real.test_api_auth import EDITS, SEES

ACTS = ("-r", "scale-down", "--confirm-cycles", "1000")  # it is found idle, and not paused while we look


@pytest.fixture
async def browser() -> AsyncIterator[play.Browser]:
    if lack := browsing.find_lack():
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(lack)
    async with browsing.browser() as started:
        yield started


async def serve(pruner: product.Product, *flags: str) -> str:
    address = f"127.0.0.1:{product.free_port()}"
    daemon = await pruner.start(*ACTS, "--dashboard-addr", address, *flags)
    daemon.url = f"http://{address}"
    await daemon.until(daemon.is_ready)
    return daemon.url


async def keep(page: play.Page, reason: str) -> None:
    await page.get_by_label("Reason, for your team (optional)").fill(reason)
    await page.locator(".actbar button.keep").first.click()


async def marks_of(stage: product.Stage, thing: clusters.Object) -> dict[str, str]:
    found: dict[str, str] = (await stage.now(thing))["metadata"].get("annotations") or {}
    return found


@pytest.mark.accepts("idle", 20, 30)
async def test_kept_by_an_address_and_brought_back_by_who_may(
    stage: product.Stage, tmp_path: pathlib.Path, browser: play.Browser
) -> None:
    quiet, rests = await stage.workload("quiet", gpus=2), await stage.workload("rests", replicas=2)
    await stage.prometheus.start()
    await stage.cluster.user("ada", EDITS)
    await stage.cluster.user("bob", SEES)
    page_of = f"/w/{stage.namespace}/Deployment"
    async with product.product_on(stage, tmp_path) as pruner:
        paused = await pruner.fallow("pause", "Deployment/rests", "-n", stage.namespace)
        assert paused.code == 0, paused.said
        base = await serve(pruner)
        async with browsing.visit(browser, base) as tab:
            page = await tab.go("/workloads")
            await page.get_by_role("link", name="quiet").click()
            await expect(page.locator(".cols h2").first).to_have_text("Evidence, GPU by GPU")
            await keep(page, "<b>labels arrive</b>")
            await page.get_by_role("dialog").get_by_role("textbox").fill("ana@example.com")
            await page.get_by_role("dialog").locator("button.pri").click()
            await expect(page.locator(".toast")).to_contain_text("Not kept. The reason holds markup")
            await keep(page, "labels arrive")  # the address is asked for once
            await expect(page.locator(".actbar")).to_contain_text("“labels arrive”")
            await tab.go(f"{page_of}/rests")
            await expect(page.locator(".actbar button.pri")).to_be_disabled()
            await expect(page.locator(".actbar")).to_contain_text("You may look, not change: needs a login")
            assert tab.complaints == []
        said = await marks_of(stage, quiet)
        assert (said[names.ACK_BY], said[names.ACK_REASON]) == ("unverified:ana@example.com", "labels arrive")
        lasts = datetime.fromisoformat(said[names.ACK_UNTIL]) - datetime.fromisoformat(said[names.ACK_AT])
        assert lasts.total_seconds() == pytest.approx(4 * 3600, abs=2)

        base = await serve(pruner, "--dashboard-auth", "proxy", "--trusted-proxy", "127.0.0.1/32")
        for who, may in (("bob", False), ("ada", True)):
            async with browsing.visit(browser, base, headers={"X-Forwarded-User": who}) as tab:
                page = await tab.go(f"{page_of}/rests")
                resume = page.locator(".actbar button.pri")
                if may:
                    await resume.click()
                    await expect(page.get_by_text("Coming back.")).to_be_visible()
                else:
                    await expect(resume).to_be_disabled()
                    await expect(page.locator(".actbar")).to_contain_text("needs patch on deployments")
                    assert (await stage.now(rests))["spec"]["replicas"] == 0
        assert (await stage.now(rests))["spec"]["replicas"] == 2
        assert names.PAUSED_AT not in await marks_of(stage, rests)
