"""Takes a picture of every page in light, dark and at 390 px against the development server, and asks axe about each.

    python dev/shots.py OUT [page ...]

Needs playwright (PyPI) and /usr/bin/chromium, and starts `node dev/server.mjs --still` itself. The pictures are taken
under the CSP of the product; axe is injected into a second page without it. Ends with 1 if axe finds something serious.
"""
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

HERE = Path(__file__).parent
PORT = 5181
BASE = f"http://127.0.0.1:{PORT}"
FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)
DRAFT = "/w/team-chat/Deployment/llm-draft"
PAGES = {
    "overview": "/",
    "workloads": "/workloads?ns=team-*",
    "workload": DRAFT,
    "activity": "/activity",
    "nodes": "/nodes",
    "policies": "/policies",
    "kept": "/workloads?view=kept",
    "paused": "/workloads?view=paused",
    "unknown": "/workloads?view=unknown",
    "kept-workload": "/w/team-robotics/RayCluster/sim-rollouts",
    "paused-workload": "/w/team-speech/Deployment/beam-search",
    "unknown-workload": "/w/team-bio/Job/protein-fold",
    "left-workload": "/w/team-vision/StatefulSet/img-index",
    "missing": "/w/team-x/Job/nothing",
    "forbidden": f"{DRAFT}?dev=403",
    "frozen-stale": "/?dev=stale,frozen",
    "empty": "/workloads?dev=empty",
    "empty-overview": "/?dev=empty",
    "failed": "/?dev=503",
    "dry": "/?dev=dry",
    "big": "/?dev=big",
    "big-list": "/workloads?dev=big",
}
LOOKS = {"light": (1440, 900), "dark": (1440, 900), "390-light": (390, 844), "390-dark": (390, 844)}
DARK_PHONE = ("overview", "workload")  # the other pages are looked at in the light on a phone
AXE = (HERE.parent / "node_modules/axe-core/axe.min.js").read_text()


@contextmanager
def served() -> Iterator[None]:
    command = ["node", str(HERE / "server.mjs"), "--still", "--port", str(PORT)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        server.stdout.readline()
        yield
    finally:
        server.terminate()
        server.wait()


@contextmanager
def opened(browser: Browser, name: str, look: str, *, bypass_csp: bool) -> Iterator[Page]:
    width, height = LOOKS[look]
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme=look.rpartition("-")[2],
        timezone_id="UTC",
        bypass_csp=bypass_csp,
    )
    page = context.new_page()
    page.on("pageerror", lambda error: print(f"  {name}-{look}: {error}"))
    page.on("console", lambda said: complaint(name, said.type, said.text))
    page.goto(BASE + PAGES[name])
    prepare(page, name)
    yield page
    context.close()


def complaint(name: str, kind: str, text: str) -> None:
    """What the browser complains of; the refusals that we asked for are none."""
    if kind == "error" and "status of 503" not in text and "status of 404" not in text:
        print(f"  {name}: {text}")


def prepare(page: Page, name: str) -> None:
    """Wait for the charts, and point at or select what the drawn pages show."""
    page.wait_for_load_state("load")
    page.wait_for_timeout(900)
    cell = page.locator('[aria-label^="a100-03 GPU 4"]')
    if name == "overview" and cell.count():
        cell.dispatch_event("pointerenter")
    for row in ("nb-ocr", "nb-fleet", "ablation-study") if name == "workloads" else ():
        box = page.locator(f'input[aria-label="Select {row}"]')
        if box.count() and box.is_visible():
            box.check()
    page.wait_for_timeout(400)


def faults(page: Page) -> list[str]:
    page.evaluate(AXE)
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']}).then(r => r.violations)")
    return [f"{v['impact']}: {v['id']}: {len(v['nodes'])} x {v['nodes'][0]['html'][:110]}" for v in found]


def take(browser: Browser, name: str, look: str, out: Path) -> int:
    """One picture; the number of serious faults."""
    with opened(browser, name, look, bypass_csp=False) as page:
        page.screenshot(path=out / f"{name}-{look}.png", full_page=True)
        beyond = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        if beyond > 0:
            print(f"  {name}-{look}: {beyond} px too wide")
    with opened(browser, name, look, bypass_csp=True) as page:
        found = faults(page)
    for fault in found:
        print(f"  {name}-{look}: axe {fault}")
    return sum(fault.startswith(("serious", "critical")) for fault in found)


def main(out: Path, names: list[str]) -> int:
    out.mkdir(parents=True, exist_ok=True)
    wanted = [(n, look) for look in LOOKS for n in names or PAGES if look != "390-dark" or n in DARK_PHONE]
    with served(), sync_playwright() as play:
        browser = play.chromium.launch(executable_path="/usr/bin/chromium", args=FLAGS.split())
        bad = sum(take(browser, name, look, out) for name, look in wanted)
    print(f"{len(wanted)} pictures, {bad} serious or critical faults")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
