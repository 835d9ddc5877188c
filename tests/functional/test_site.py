"""The site of the documents: it is built in strict mode, every answer is two clicks away, and no page loads anything
from elsewhere; in a real browser it asks its own host alone and is no wider than a phone."""

import functools
import http.server
import re
import threading

import pytest
from docs import site

from tests import ROOT, documents

mkdocs = pytest.importorskip("mkdocs", reason="mkdocs-material is not installed: make site installs it")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    site.build(folder / "out", folder / "source")
    return folder / "out"


def page_of(path):
    """Where a page of the repository is in the built site."""
    staged = path if path in site.MADE else site.place(path)
    where = staged.removesuffix(".md")
    where = where.removesuffix("README").removesuffix("index")
    return f"{where.strip('/')}/index.html".lstrip("/")


def test_every_page_in_the_menu_is_built(built):
    missing = [page for page in site.list_menu() if not (built / page_of(page)).is_file()]
    assert missing == []


def test_every_document_is_in_a_menu():
    assert site.find_lost() == []
    menu = {"Home": "README.md", "Behind it": {"Words": "docs/contributors/*"}}
    assert {"README.md", "docs/contributors/glossary.md"}.isdisjoint(site.find_lost(menu))
    assert {"SECURITY.md", "docs/operators/clusters.md"} <= set(site.find_lost(menu))


def test_every_document_is_in_the_site(built):
    staged = {page_of(documents.name_of(page)) for page in documents.pages()}
    assert [page for page in sorted(staged) if not (built / page).is_file()] == []


@pytest.mark.parametrize("answer", [
    "charts/fallow/README.md", "docs/operators/install.md", "docs/operators/grafana.md", "docs/operators/alerts.md",
    "docs/operators/upgrade.md", "docs/owners.md", "docs/finance.md", "docs/migrate.md", "docs/comparison.md",
    "SECURITY.md", "docs/benchmarks.md", "docs/contributors/architecture.md", "docs/operators/flags.md",
    "docs/operators/metrics.md", "docs/operators/reasons.md", "docs/operators/api.md", "custom-resources.md",
    "commands.md", "docs/tour.md", "docs/concepts.md", "docs/operators/troubleshoot.md",
])
def test_an_answer_is_at_most_two_clicks_from_the_first_page(built, answer):
    first = links(built, "index.html")
    second = set().union(*(links(built, page) for page in first if (built / page).is_file()))
    assert page_of(answer) in first | second


def links(built, page):
    """Pages of the site that one links to."""
    found = set()
    for link in re.findall(r'href="?([^"\s>#]*)', (built / page).read_text()):
        if "://" not in link and not link.startswith(("mailto:", "data:")):
            there = ((built / page).parent / link).resolve()
            there = there / "index.html" if there.is_dir() else there
            if there.is_file() and there.is_relative_to(built.resolve()) and there.suffix == ".html":
                found.add(str(there.relative_to(built.resolve())))
    return found


def test_every_alert_is_two_clicks_away_with_its_runbook(built):
    runbooks = {page_of(documents.name_of(page)) for page in (ROOT / "docs" / "runbooks").glob("*.md")}
    assert runbooks <= links(built, page_of("docs/operators/alerts.md"))


def test_nothing_is_loaded_from_elsewhere(built):
    assert site.find_foreign(built) == []


def test_what_would_be_loaded_from_elsewhere_is_found(tmp_path):
    script, style = '<script src="https://cdn.example/a.js"></script>', "<link rel=stylesheet href=//b/c.css>"
    (tmp_path / "a.html").write_text(script + style)
    (tmp_path / "b.css").write_text("@import url('https://fonts.example/x');")
    (tmp_path / "c.html").write_text('<a href="https://example.com">a link is no load</a>')
    assert len(site.find_foreign(tmp_path)) == 3


def test_a_link_that_leads_nowhere_is_named(tmp_path, monkeypatch):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.md").write_text("# A\n\n[b](b.md), [out](../../x.md), [c](https://c.example)\n")
    monkeypatch.setattr(site, "ROOT", tmp_path)
    staging = site.Staging(tmp_path / "out")
    staging.stage("docs/a.md")
    assert staging.missing == ["docs/a.md: b.md", "docs/a.md: ../../x.md"]


def test_the_reference_has_every_command_and_field(built):
    commands = (built / page_of("commands.md")).read_text()
    assert "fallow support-bundle" in commands
    assert "--prometheus-url" in commands
    fields = (built / page_of("custom-resources.md")).read_text()
    for word in ("IdlePolicy", "CostBudget", "GPUSharingPolicy", "AutoscalingPolicy", "windows.goneIdle"):
        assert word in fields


@pytest.mark.browser
async def test_in_a_browser_it_asks_its_own_host_alone_and_fits_a_phone(built):
    from tests.browser import browsing

    handler = functools.partial(Quiet, directory=str(built))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    base, asked = f"http://127.0.0.1:{server.server_port}", []
    try:
        async with browsing.browser() as started:
            for size in (browsing.WIDE, browsing.PHONE):
                page = await started.new_page(viewport=dict(zip(("width", "height"), size, strict=True)))
                page.on("request", lambda request: asked.append(request.url))
                for path in ("", "tour/", "migrate/", "operators/flags/"):
                    await page.goto(f"{base}/{path}")
                    wide = await page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
                    assert wide <= 0, f"{path} at {size}: {wide} px too wide"
                await page.close()
    finally:
        server.shutdown()
        server.server_close()
    assert asked
    assert [url for url in asked if not url.startswith((base, "data:", "blob:"))] == []


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass
