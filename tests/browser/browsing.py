"""A real browser on our pages: Debian's Chromium, driven over its own protocol.

In: addresses. Out: pages that remember what the browser complained of (errors of scripts, breaches of the CSP), and
what axe has to say about them. Where there is no browser, or the dashboard was not built, `find_lack` says which.
"""

from __future__ import annotations

import contextlib
import pathlib
import shutil
from collections.abc import AsyncIterator, Iterator
from typing import Any

from playwright import async_api as play

from fallow.doors.api import pages

ROOT = pathlib.Path(__file__).parents[2]
AXE = ROOT / "ui/node_modules/axe-core/axe.min.js"
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]
WIDE, PHONE = (1440, 900), (390, 844)
_LISTEN = """
document.addEventListener("securitypolicyviolation", (e) =>
  console.error(`CSP: ${e.violatedDirective} refused ${e.blockedURI || e.sourceFile}`));
"""


def find_lack() -> str | None:
    """What is missing to look at the pages; None: nothing."""
    if shutil.which("chromium") is None:
        return "no chromium on PATH: apt-get install chromium"
    if not (pages.FOLDER / pages.INDEX).is_file():
        return "the dashboard was not built: make ui (needs npm)"
    return None if AXE.is_file() else "axe-core is not there: npm ci in ui/"


@contextlib.asynccontextmanager
async def browser() -> AsyncIterator[play.Browser]:
    async with play.async_playwright() as driver:
        started = await driver.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        yield started
        await started.close()


class Visit:
    """One tab of somebody's browser. `complaints`: what must not have been said."""

    def __init__(self, page: play.Page, base: str) -> None:
        self.page, self._base, self.complaints = page, base, list[str]()
        page.on("pageerror", self._note)
        page.on("console", self._hear)

    def leave(self) -> None:
        """What the tab says from now on is not about this visit."""
        self.page.remove_listener("pageerror", self._note)
        self.page.remove_listener("console", self._hear)

    def _note(self, error: play.Error) -> None:
        self.complaints.append(str(error))

    def _hear(self, said: play.ConsoleMessage) -> None:
        is_answer = said.text.startswith("Failed to load resource")  # a status that the page itself tells of
        if said.type in ("error", "warning") and not is_answer:
            self.complaints.append(said.text)

    async def go(self, path: str) -> play.Page:
        """There, with its headline: what it shows is then of an answer."""
        await self.page.goto(self._base + path)
        await self.page.locator("main h1").first.wait_for()
        return self.page

    async def beyond(self) -> int:
        """By how many pixels the page is wider than its window."""
        wide: int = await self.page.evaluate("document.documentElement.scrollWidth - innerWidth")
        return wide


@contextlib.asynccontextmanager
async def visit(
    started: play.Browser, base: str, *, size: tuple[int, int] = WIDE, theme: str = "light", for_axe: bool = False,
    headers: dict[str, str] | None = None,
) -> AsyncIterator[Visit]:
    """In a browser of its own. `for_axe`: without the CSP, which lets nobody in, axe neither. `headers`: as a proxy
    before us would add them."""
    page = await _open(started, for_axe, headers)
    await _arrange(page, size, theme)
    yield Visit(page, base)
    await page.unroute_all(behavior="ignoreErrors")
    await page.context.close()


class Tabs:
    """Tabs that one visit after the other takes: a new one costs a process and everything compiled anew, three times
    what the visit itself does. Each leaves nothing behind: no cookie, nothing stored, no way that was changed; a tab
    in which something went wrong is not taken again."""

    def __init__(self, started: play.Browser) -> None:
        self._started, self._free = started, dict[bool, list[play.Page]]()

    @contextlib.asynccontextmanager
    async def visit(
        self, base: str, *, size: tuple[int, int] = WIDE, theme: str = "light", for_axe: bool = False
    ) -> AsyncIterator[Visit]:
        free = self._free.setdefault(for_axe, [])
        page = free.pop() if free else await _open(self._started, for_axe, None)
        await _arrange(page, size, theme)
        tab = Visit(page, base)
        yield tab
        tab.leave()
        await page.unroute_all(behavior="ignoreErrors")
        await page.evaluate("localStorage.clear(), sessionStorage.clear()")
        await page.context.clear_cookies()
        free.append(page)


async def _open(started: play.Browser, for_axe: bool, headers: dict[str, str] | None) -> play.Page:
    context = await started.new_context(timezone_id="UTC", bypass_csp=for_axe, extra_http_headers=headers)
    await context.add_init_script(_LISTEN)
    if for_axe:
        await context.add_init_script(path=AXE)
    return await context.new_page()


async def _arrange(page: play.Page, size: tuple[int, int], theme: str) -> None:
    await page.set_viewport_size({"width": size[0], "height": size[1]})
    await page.emulate_media(
        color_scheme="dark" if theme == "dark" else "light", reduced_motion="reduce", media="screen"
    )


async def find_faults(page: play.Page, *rules: str) -> list[str]:
    """What axe calls serious or critical; `rules`: only these."""
    options = {"resultTypes": ["violations"], "preload": False, **({"runOnly": list(rules)} if rules else {})}
    found = await page.evaluate("(options) => axe.run(document, options).then(r => r.violations)", options)
    return list(_serious(found))


def _serious(found: list[dict[str, Any]]) -> Iterator[str]:
    for each in found:
        if each["impact"] in ("serious", "critical"):
            yield f"{each['impact']}: {each['id']}: {len(each['nodes'])} x {each['nodes'][0]['html'][:160]}"
