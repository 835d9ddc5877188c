"""Makes the documents into a site: `make site`, into build/site. Nothing in it loads anything from elsewhere.

In: the Markdown files of the project as they are, pictures of the dashboard where `make shots` has made some, the
commands and the custom resources. Out: a folder of pages, by mkdocs-material in strict mode.
Every page stays where it is in the repository; here it is copied to where it stands in the site, and its links with it.
What a page links to and is no page (a manifest, a folder of examples) comes along.
Invariant: a link that leads nowhere ends it; a document that is in no menu does, too.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import click
import yaml

from fallow import __version__
from fallow.doors.cli import man
from fallow.model.policies import attribution_crd, budget_crd, idle_crd, nodeconfig_crd, scaling_crd, sharing_crd

ROOT: Final = Path(__file__).parent.parent
SHOTS: Final = ROOT / "build" / "shots"
LINK: Final = re.compile(r"(!?\[[^\]]*\]\()([^)\s#]*)(#[^)\s]*)?\)")
_FENCES: Final = {".yaml": "yaml", ".yml": "yaml", ".csv": "text", ".json": "json", ".py": "python"}
_MOST_SHOWN: Final = 40_000  # characters of a file that is shown on the page of its folder
_NAMES: Final = {"docs/README.md": "map.md", "README.md": "project/readme.md"}
_OPERATE: Final = "docs/operators/"

# What stands in the menu, in its order: a title, and a page, or further entries.
MENU: Final[Mapping[str, Any]] = {
    "Home": {"Welcome": "docs/index.md", "All documents, by reader": "docs/README.md"},
    "Begin": {
        "A tour of five minutes": "docs/tour.md", "The idea on one page": "docs/concepts.md", "README": "README.md",
        "The demo": "docs/demo.md", "What it would have done": "docs/backtest.md", "Traces": "docs/traces.md",
        "Beside other tools": "docs/comparison.md", "Coming from another tool": "docs/migrate.md",
        "What the pages look like": "pages.md",
    },
    "For owners": {"What was that message?": "docs/owners.md"},
    "For operators": {
        "Install": {
            "Install": f"{_OPERATE}install.md", "The Helm chart": "charts/fallow/README.md",
            "Switch on": f"{_OPERATE}switch-on.md", "Upgrade and remove": f"{_OPERATE}upgrade.md",
            "Images": f"{_OPERATE}images.md", "What it runs with": f"{_OPERATE}support.md",
            "Large clusters": f"{_OPERATE}large.md", "Several clusters": f"{_OPERATE}clusters.md",
            "Node exporter": f"{_OPERATE}exporter.md", "Exporter examples": "examples/exporter/README.md",
        },
        "Say what may happen": {
            "Policies": f"{_OPERATE}policies.md", "Notices": f"{_OPERATE}notices.md", "Brakes": f"{_OPERATE}brakes.md",
            "Whom it believes": f"{_OPERATE}trust.md", "Who may": f"{_OPERATE}who-may.md",
        },
        "Watch it": {
            "Troubleshoot": f"{_OPERATE}troubleshoot.md", "Grafana": f"{_OPERATE}grafana.md",
            "Alerts": f"{_OPERATE}alerts.md", "Runbooks": "docs/runbooks/*",
        },
        "Pack, share, scale": {
            "Packing": "docs/packing.md", "The scheduler's extender": f"{_OPERATE}extender.md",
            "Sharing and emptying": f"{_OPERATE}sharing.md",
            "Sharing by hand": "examples/sharing/README.md", "Nodes that come and go": f"{_OPERATE}scaling.md",
            "Spot nodes": f"{_OPERATE}spot.md",
        },
    },
    "For finance": {
        "Budgets, and the way past them": "docs/finance.md", "The cost model": "docs/cost-model.md",
        "Costs": f"{_OPERATE}cost.md", "Budgets": f"{_OPERATE}budgets.md", "Prices": f"{_OPERATE}prices.md",
    },
    "Reference": {
        "Commands": "commands.md", "Flags": f"{_OPERATE}flags.md", "Metrics": f"{_OPERATE}metrics.md",
        "Reasons": f"{_OPERATE}reasons.md", "Kinds": f"{_OPERATE}kinds.md", "API": f"{_OPERATE}api.md",
        "Custom resources": "custom-resources.md",
    },
    "Behind it": {
        "Security": "SECURITY.md", "Measured": "docs/benchmarks.md", "Sources": "docs/sources.md",
        "What we refuse": "SCOPE.md", "Changes": "CHANGELOG.md", "Contributing": "CONTRIBUTING.md",
        "The house": "docs/contributors/architecture.md", "Words": "docs/contributors/glossary.md",
        "Decisions": "docs/contributors/decisions/*", "What we hold ourselves to": "docs/spec/*",
    },
}


class NoSite(Exception):
    """One sentence."""


# ---- where everything stands -----------------------------------------------------------------------------------------


def place(path: str) -> str:
    """Where a file of the repository stands in the site."""
    if path in _NAMES:
        return _NAMES[path]
    return path.removeprefix("docs/") if path.startswith("docs/") else f"project/{path}"


def list_menu(entries: Mapping[str, Any] = MENU) -> Iterator[str]:
    """The pages in the menu, by their path in the repository; those that are made here, by their name alone."""
    for entry in entries.values():
        if isinstance(entry, str):
            yield from _expand(entry) if entry.endswith("/*") else (entry,)
        else:
            yield from list_menu(entry)


def _expand(folder: str) -> Iterator[str]:
    yield from (str(each.relative_to(ROOT)) for each in sorted((ROOT / folder[:-2]).glob("*.md")))


def find_lost(entries: Mapping[str, Any] = MENU) -> list[str]:
    """Documents that are in no menu, where nobody would find them."""
    every = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    return sorted({str(each.relative_to(ROOT)) for each in every} - set(list_menu(entries)))


def make_menu(entries: Mapping[str, Any]) -> list[Any]:
    return [{title: _make_entry(entry)} for title, entry in entries.items()]


def _make_entry(entry: Any) -> Any:
    if not isinstance(entry, str):
        return make_menu(entry)
    if entry.endswith("/*"):
        return [place(each) for each in _expand(entry)]
    return entry if entry in MADE else place(entry)


# ---- pages as they are -----------------------------------------------------------------------------------------------


class Staging:
    """Copies what is needed into one folder; `missing`: links that lead nowhere."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._done, self.missing = folder, set[str](), list[str]()

    def stage(self, path: str) -> str:
        """`path`: of a file or a folder, in the repository. Where it is now."""
        there = ROOT / path
        if there.is_dir():
            if (there / "README.md").is_file():
                return self.stage(f"{path}/README.md")
            return self._stage_folder(path)
        target = place(path)
        if path not in self._done:
            self._done.add(path)
            (self._folder / target).parent.mkdir(parents=True, exist_ok=True)
            if there.suffix == ".md":
                (self._folder / target).write_text(self._relink(there.read_text(), path, target))
            else:
                shutil.copyfile(there, self._folder / target)
        return target

    def _stage_folder(self, path: str) -> str:
        """A page with all that is in it."""
        target = f"{place(path)}/index.md"
        if path not in self._done:
            self._done.add(path)
            (self._folder / target).parent.mkdir(parents=True, exist_ok=True)
            lines = [f"# {path}", ""]
            for each in sorted((ROOT / path).iterdir()):
                lines += self._show(each, target)
            (self._folder / target).write_text("\n".join(lines) + "\n")
        return target

    def _show(self, file: Path, page: str) -> list[str]:
        named = str(file.relative_to(ROOT))
        if file.is_dir() or file.suffix == ".md":
            if file.is_dir() and not any(file.glob("*.*")):
                return []
            return [f"- [{file.name}]({_from(page, self.stage(named))})", ""]
        if file.suffix in _FENCES and file.stat().st_size <= _MOST_SHOWN:
            return [f"## {file.name}", "", f"```{_FENCES[file.suffix]}", file.read_text().rstrip(), "```", ""]
        return [f"- [{file.name}]({_from(page, self.stage(named))})", ""]

    def _relink(self, text: str, path: str, target: str) -> str:
        def turn(found: re.Match[str]) -> str:
            head, link, anchor = found[1], found[2], found[3] or ""
            if not link or "://" in link or link.startswith("mailto:"):
                return found[0]
            there = os.path.normpath((ROOT / path).parent / link)
            if not Path(there).exists() or not there.startswith(str(ROOT)):
                self.missing.append(f"{path}: {link}")
                return found[0]
            return f"{head}{_from(target, self.stage(os.path.relpath(there, ROOT)))}{anchor})"

        return LINK.sub(turn, text)


def _from(page: str, target: str) -> str:
    return os.path.relpath(target, os.path.dirname(page) or ".")


# ---- pages that are made here ----------------------------------------------------------------------------------------


def make_commands() -> str:
    """What --help says of every command."""
    lines = ["# Commands", "", "Made from the commands themselves. In a terminal: `fallow COMMAND --help`, or",
             "`fallow man COMMAND`.", ""]
    for context in man.walk():
        lines += [f"## {context.command_path}", "", *_tell_command(context), ""]
    return "\n".join(lines)


def _tell_command(context: click.Context) -> Iterator[str]:
    command = context.command
    usage = f"{context.command_path} {' '.join(command.collect_usage_pieces(context))}"
    yield from ("```text", usage, "```", "")
    for paragraph in (command.help or "").strip().split("\n\n"):
        first, _, rest = paragraph.partition("\n")
        kept = first.strip() == "\b"
        lines = textwrap.dedent(rest).splitlines()
        yield from ("```text", *lines, "```", "") if kept else (_escape(" ".join(paragraph.split())), "")
    for title, rows in man.list_options(context):
        yield from (f'??? note "{title}"', "", "    | option | meaning |", "    |---|---|")
        yield from (f"    | `{head}` | {_cell(said)} |".replace("|]", "\\|]") for head, said in
                    ((head.replace("|", "\\|"), said) for head, said in rows))
        yield ""


def make_resources() -> str:
    """Every field of every custom resource."""
    definitions = [module.define() for module in
                   (idle_crd, budget_crd, attribution_crd, sharing_crd, nodeconfig_crd, scaling_crd)]
    lines = ["# Custom resources", "", "All are of `gpuautoscaler.io/v1alpha1` and belong to the whole cluster. Made",
             "from the code; `fallow crds` prints the definitions themselves, `fallow apply` stores objects and says",
             "what it corrected.", ""]
    for each in definitions:
        names, version = each["spec"]["names"], each["spec"]["versions"][0]
        schema = version["schema"]["openAPIV3Schema"]["properties"]
        short = ", ".join(f"`{name}`" for name in names.get("shortNames", ()))
        lines += [f"## {names['kind']}", "", f"`kubectl get {names['plural']}`{f' ({short})' if short else ''}", "",
                  "| field | type | meaning |", "|---|---|---|", *_list_fields(schema["spec"], ""), ""]
    return "\n".join(lines)


def _list_fields(schema: Mapping[str, Any], path: str) -> Iterator[str]:
    needed = set(schema.get("required", ()))
    for name, field in schema.get("properties", {}).items():
        here = f"{path}.{name}" if path else name
        yield f"| `{here}`{' (needed)' if name in needed else ''} | {_type_of(field)} | {_cell(_mean(field))} |"
        inner = field.get("items", field)
        yield from _list_fields(inner, f"{here}[]" if "items" in field else here)


def _type_of(field: Mapping[str, Any]) -> str:
    kind = "list of " + str(field["items"].get("type", "")) if "items" in field else str(field.get("type", "any"))
    values = field.get("enum") or field.get("items", {}).get("enum")
    return f"{kind}: {', '.join(f'`{value}`' for value in values)}" if values else kind


def _mean(field: Mapping[str, Any]) -> str:
    said = str(field.get("description", ""))
    return f"{said} Default: `{field['default']}`." if "default" in field and field["default"] not in ({}, []) else said


def _cell(text: str) -> str:
    return _escape(" ".join(text.split())).replace("|", "\\|")


def _escape(text: str) -> str:
    return text.replace("<", "&lt;")


def make_pictures(folder: Path) -> str:
    """Of the dashboard over the demo, where they have been made."""
    titles = {"overview": "The field", "workloads": "Workloads", "activity": "Activity", "cost": "Cost",
              "nodes": "Nodes"}
    found = [name for name in titles if (SHOTS / f"{name}-light.png").is_file()]
    lines = ["# What the pages look like", ""]
    if not found:
        return "\n".join([*lines, "Pictures of the dashboard were not made for this build (`make shots` makes them).",
                          "`make demo` shows it live; this is the same day in a terminal:", "",
                          "![the demo](pictures/demo.svg)", ""])
    (folder / "shots").mkdir(parents=True, exist_ok=True)
    lines += ["The dashboard over the demo, as it was when this site was made.", ""]
    for name in found:
        for look in ("light", "390-light"):
            if (SHOTS / f"{name}-{look}.png").is_file():
                shutil.copyfile(SHOTS / f"{name}-{look}.png", folder / "shots" / f"{name}-{look}.png")
        lines += [f"## {titles[name]}", "", f"![{titles[name]}, on a wide screen](shots/{name}-light.png)", ""]
    return "\n".join(lines)


MADE: Final = frozenset({"commands.md", "custom-resources.md", "pages.md"})


# ---- all of it -------------------------------------------------------------------------------------------------------


def configure(source: Path, target: Path) -> dict[str, Any]:
    palette = [
        {"media": "(prefers-color-scheme: light)", "scheme": "default", "primary": "white", "accent": "deep orange",
         "toggle": {"icon": "material/weather-night", "name": "Dark"}},
        {"media": "(prefers-color-scheme: dark)", "scheme": "slate", "primary": "black", "accent": "deep orange",
         "toggle": {"icon": "material/weather-sunny", "name": "Light"}},
    ]
    features = ["navigation.tabs", "navigation.tabs.sticky", "navigation.indexes", "navigation.top", "toc.follow",
                "content.code.copy", "search.suggest"]
    return {
        "site_name": f"fallow {__version__}", "docs_dir": str(source), "site_dir": str(target),
        "site_description": "Finds GPUs that nobody uses in a Kubernetes cluster and puts them back to work, politely.",
        "use_directory_urls": True, "nav": make_menu(MENU), "plugins": ["search"], "extra": {"generator": False},
        "theme": {"name": "material", "font": False, "palette": palette, "features": features, "language": "en"},
        "extra_css": ["extra.css"],
        "markdown_extensions": [
            "admonition", "attr_list", "md_in_html", "tables", "pymdownx.details", "pymdownx.superfences",
            {"pymdownx.highlight": {"use_pygments": True}}, {"toc": {"permalink": True, "slugify": _SLUG}},
        ],
        "validation": {
            "nav": {"omitted_files": "info", "not_found": "warn", "absolute_links": "warn"},
            "links": {"not_found": "warn", "anchors": "warn", "absolute_links": "warn", "unrecognized_links": "warn"},
        },
    }


_SLUG: Final = "@SLUG@"  # GitHub's, as our links are written
_STYLE: Final = """\
.md-grid { max-width: 76rem; }
.md-typeset table:not([class]) { font-size: 0.68rem; }
.md-typeset table:not([class]) td { min-width: 6rem; }
.md-typeset h1, .md-typeset h2 { font-weight: 600; color: var(--md-default-fg-color); letter-spacing: 0; }
.md-typeset img { border-radius: 0.3rem; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(15rem, 1fr)); gap: 0.8rem; padding: 0; }
.tiles > * { border: 1px solid var(--md-default-fg-color--lightest); border-radius: 0.3rem; padding: 0.2rem 0.9rem; }
"""


def stage(folder: Path) -> None:
    """All sources into one folder. Raises NoSite."""
    if lost := find_lost():
        raise NoSite(f"in no menu: {', '.join(lost)}")
    staging = Staging(folder)
    for page in list_menu():
        if page not in MADE:
            if not (ROOT / page).is_file():
                raise NoSite(f"the menu names {page}, which is not there")
            staging.stage(page)
    if staging.missing:
        raise NoSite(f"links lead nowhere: {'; '.join(staging.missing)}")
    (folder / "commands.md").write_text(make_commands())
    (folder / "custom-resources.md").write_text(make_resources())
    (folder / "pages.md").write_text(make_pictures(folder))
    (folder / "extra.css").write_text(_STYLE)
    staging.stage("docs/pictures/demo.svg")


def build(target: Path, source: Path) -> None:
    shutil.rmtree(source, ignore_errors=True)
    pages = source / "pages"
    pages.mkdir(parents=True)
    stage(pages)
    said = yaml.safe_dump(configure(pages.resolve(), target.resolve()), sort_keys=False)
    slug = "!!python/object/apply:pymdownx.slugs.slugify {kwds: {case: lower}}"
    (source / "mkdocs.yml").write_text(said.replace(f"'{_SLUG}'", slug).replace(_SLUG, slug))
    config = str(source / "mkdocs.yml")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--clean", "-f", config]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise NoSite(f"mkdocs: {done.stdout}{done.stderr}")


_ELSEWHERE: Final = r"[^>]*?(?:src|data|href)=[\"']?((?:https?:)?//[^\"'\s>]+)"
_LOADED: Final = r"stylesheet|icon|preload|preconnect|dns-prefetch|modulepreload"
_LOADS: Final = (
    re.compile(rf"<(?:script|img|iframe|source|video|audio|embed|object)\b{_ELSEWHERE}"),
    re.compile(rf"<link\b(?=[^>]*rel=[\"']?(?:{_LOADED})){_ELSEWHERE}"),
    re.compile(r"(?:url\(|@import\s+)[\"']?((?:https?:)?//[^\"')\s]+)"),
)


def find_foreign(folder: Path) -> list[str]:
    """Whatever a page of the site would load from elsewhere, as far as its markup and styles say so."""
    found = list[str]()
    for path in _find(folder, (".html", ".css")):
        text = path.read_text()
        found += [f"{path.relative_to(folder)}: {each}" for pattern in _LOADS for each in pattern.findall(text)]
    return found


def _find(folder: Path, endings: tuple[str, ...]) -> Iterator[Path]:
    yield from (each for each in sorted(folder.rglob("*")) if each.suffix in endings)


def main() -> None:
    asked = argparse.ArgumentParser(prog="docs.site", description=__doc__.splitlines()[0])
    asked.add_argument("folder", type=Path, help="where to; what is there goes")
    words = asked.parse_args()
    try:
        build(words.folder, words.folder.parent / f"{words.folder.name}-source")
    except NoSite as why:
        sys.exit(f"Error: {why}")
    if foreign := find_foreign(words.folder):
        sys.exit(f"Error: it would load from elsewhere: {'; '.join(foreign)}")
    print(f"{sum(1 for _ in _find(words.folder, ('.html',)))} pages: {words.folder}/index.html")  # noqa: T201


if __name__ == "__main__":
    main()
