"""A picture of every page, in light, dark and at the width of a phone, over the demo: `make shots`.

    python -m tests.browser.shots FOLDER [page ...]

The pages show what the demo's controller really found and did, under the CSP of the product. Ends with 1 where the
browser complained, or where a page is wider than its window.
"""

from __future__ import annotations

import asyncio
import pathlib
import sys
from collections.abc import Iterator

from playwright import async_api as play

from tests.browser import browsing, playing

LOOKS = {
    "light": (browsing.WIDE, "light"), "dark": (browsing.WIDE, "dark"), "390-light": (browsing.PHONE, "light"),
    "390-dark": (browsing.PHONE, "dark"),
}
PAGES = {
    "overview": "/", "workloads": "/workloads", "paused": "/workloads?view=paused", "kept": "/workloads?view=kept",
    "unknown": "/workloads?view=unknown", "activity": "/activity", "cost": "/cost", "nodes": "/nodes",
    "policies": "/policies", "conversation": "/inbox", "missing": "/w/team-x/Job/nothing",
}


def addresses(demo: playing.Demo) -> Iterator[tuple[str, str]]:
    """Every page, and of a workload in each of its states one: that which holds most."""
    yield from PAGES.items()
    rows = sorted(demo.rows("all"), key=lambda row: (row["gpus"], row["perHour"] or 0.0))
    for state, row in {row["state"]: row for row in rows}.items():
        yield f"workload-{state}", f"/w/{row['namespace']}/{row['kind']}/{row['name']}"


async def take(started: play.Browser, base: str, name: str, path: str, folder: pathlib.Path) -> list[str]:
    """One page in all looks; what is wrong with it."""
    wrong = []
    for look, (size, theme) in LOOKS.items():
        async with browsing.visit(started, base, size=size, theme=theme) as tab:
            page = await tab.go(path)
            await page.wait_for_timeout(900)  # charts are drawn after their data came
            told = page.locator('[role="grid"] [aria-label*="told"]')
            if name == "overview" and await told.count():
                await told.first.dispatch_event("pointerenter")
            await page.screenshot(path=folder / f"{name}-{look}.png", full_page=True)
            wrong += [f"{name}-{look}: {each}" for each in tab.complaints]
            if (beyond := await tab.beyond()) > 0:
                wrong.append(f"{name}-{look}: {beyond} px too wide")
    return wrong


async def take_all(demo: playing.Demo, folder: pathlib.Path, names: list[str]) -> list[str]:
    async with browsing.browser() as started:
        wanted = [(name, path) for name, path in addresses(demo) if not names or name in names]
        return [each for name, path in wanted for each in await take(started, demo.base, name, path, folder)]


def main(folder: pathlib.Path, names: list[str]) -> int:
    if lack := browsing.find_lack():
        print(lack)
        return 1
    folder.mkdir(parents=True, exist_ok=True)
    with playing.demo(hours=24, nodes=16) as demo:
        wrong = asyncio.run(take_all(demo, folder, names))
    print(*wrong, sep="\n", end="\n" if wrong else "")
    print(f"the pictures are in {folder}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1]), sys.argv[2:]))
