"""Takes a picture of every page in light, dark and at 390 px against the development server, and asks axe about each of them.

    python dev/shots.py OUT [page ...]       needs playwright (PyPI) and /usr/bin/chromium; starts `node dev/server.mjs --still` itself
"""
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

HERE = Path(__file__).parent
PORT = 5181
BASE = f"http://127.0.0.1:{PORT}"
FLAGS = "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-component-update --disable-sync"
PAGES = {
    "overview": "/", "workloads": "/workloads?ns=team-*", "workload": "/w/team-chat/Deployment/llm-draft", "activity": "/activity", "nodes": "/nodes", "policies": "/policies",
    "kept": "/workloads?view=kept", "paused": "/workloads?view=paused", "unknown": "/workloads?view=unknown", "kept-workload": "/w/team-robotics/RayCluster/sim-rollouts",
    "paused-workload": "/w/team-speech/Deployment/beam-search", "unknown-workload": "/w/team-bio/Job/protein-fold", "left-workload": "/w/team-vision/StatefulSet/img-index",
    "forbidden": "/w/team-chat/Deployment/llm-draft?dev=403", "frozen-stale": "/?dev=stale,frozen", "empty": "/workloads?dev=empty", "empty-overview": "/?dev=empty", "failed": "/?dev=503",
    "big": "/?dev=big", "big-list": "/workloads?dev=big", "dry": "/?dev=dry", "missing": "/w/team-x/Job/nothing",
}
AXE = (HERE.parent / "node_modules/axe-core/axe.min.js").read_text()


def ready(page: Page, name: str) -> None:
    page.wait_for_load_state("load")
    page.wait_for_timeout(900)
    if name == "overview":
        cell = page.locator('[aria-label^="a100-03 GPU 4"]')
        cell.dispatch_event("pointerenter") if cell.count() else None
    if name == "workloads":
        for row in ("nb-ocr", "nb-fleet", "ablation-study"):
            box = page.locator(f'input[aria-label="Select {row}"]')
            box.check() if box.count() and box.is_visible() else None
    page.wait_for_timeout(400)


def faults(page: Page) -> list[str]:
    """What axe finds, of any weight."""
    page.evaluate(AXE)
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']}).then(r => r.violations)")
    return [f"{v['impact']}: {v['id']}: {len(v['nodes'])} x {v['nodes'][0]['html'][:110]}" for v in found]


def main(out: Path, names: list[str]) -> int:
    out.mkdir(parents=True, exist_ok=True)
    server = subprocess.Popen(["node", str(HERE / "server.mjs"), "--still", "--port", str(PORT)], stdout=subprocess.PIPE)
    server.stdout.readline()
    bad = 0
    try:
        with sync_playwright() as play:
            browser = play.chromium.launch(executable_path="/usr/bin/chromium", args=FLAGS.split())
            for theme, width, height in (("light", 1440, 900), ("dark", 1440, 900), ("390-light", 390, 844), ("390-dark", 390, 844)):
                for name in names or PAGES:
                    if theme == "390-dark" and name not in ("overview", "workload"):
                        continue
                    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=theme.split("-")[-1], timezone_id="UTC", bypass_csp=False)
                    page = context.new_page()
                    page.on("console", lambda m, name=name: m.type == "error" and "503" not in m.text and "404" not in m.text and print(f"  {name}: {m.text}"))
                    page.on("pageerror", lambda e, name=name: print(f"  {name}: {e}"))
                    page.goto(BASE + PAGES[name])
                    ready(page, name)
                    page.screenshot(path=out / f"{name}-{theme}.png", full_page=True)
                    wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
                    if wide > 0:
                        print(f"  {name}-{theme}: {wide} px too wide")
                    axe = browser.new_context(viewport={"width": width, "height": height}, color_scheme=theme.split("-")[-1], timezone_id="UTC", bypass_csp=True)
                    other = axe.new_page()
                    other.goto(BASE + PAGES[name])
                    ready(other, name)
                    for fault in faults(other):
                        bad += fault.startswith(("serious", "critical"))
                        print(f"  {name}-{theme}: axe {fault}")
                    axe.close()
                    context.close()
            browser.close()
    finally:
        server.terminate()
        server.wait()
    print(f"{bad} serious or critical faults")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
