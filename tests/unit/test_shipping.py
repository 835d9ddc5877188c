"""What is shipped besides the code: pinned packages of the images, the exporter's with only what it imports, and
pages on security, installing and owning that name only what exists."""

import importlib.metadata
import json
import re
import subprocess
import sys

import click
import pytest
import yaml
from docs import pins
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tests import ROOT

from fallow import names, settings
from fallow.doors.cli import main
from fallow.model import kinds
from fallow.settings import exporter as variables

IMAGE = ROOT / "deploy" / "image"
CONSTRAINTS = {
    canonicalize_name(line.partition("==")[0]): line.partition("==")[2]
    for line in (ROOT / "constraints.txt").read_text().split()
}


def pinned(file):
    """Name -> version and hashes."""
    lines = re.sub(r"^#.*\n", "", (IMAGE / file).read_text()).replace("\\\n", "").splitlines()
    found = {}
    for line in lines:
        what, *hashes = line.split()
        name, version = what.split("==")
        found[canonicalize_name(name)] = (version, hashes)
    return found


# ---- packages --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", pins.sets())
def test_an_image_has_the_versions_of_the_constraints_each_with_its_hashes(file):
    for name, (version, hashes) in pinned(file).items():
        assert CONSTRAINTS.get(name) == version, f"run `make pins`: {name}"
        assert hashes
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", each) for each in hashes)


@pytest.mark.parametrize("file", pins.sets())
def test_an_image_has_all_that_its_packages_need_and_nothing_else(file):
    _, asked = pins.sets()[file]
    assert set(pinned(file)) == closure(asked), f"run `make pins`: {file}"


def closure(asked):
    found, todo = set(), [Requirement(each) for each in asked]
    while todo:
        requirement = todo.pop()
        name = canonicalize_name(requirement.name)
        if name in found or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        found.add(name)
        todo += [Requirement(each) for each in importlib.metadata.requires(name) or []]
    return found


def test_the_solver_is_installed_with_the_product_and_not_on_gpu_nodes():
    asked = {Requirement(each).name for each in pins.sets()["controller.txt"][1]}
    assert "highspy" in asked & set(pinned("controller.txt"))
    assert "highspy" not in pinned("exporter.txt")


def test_the_exporter_is_asked_for_by_names_that_the_project_knows():
    _, asked = pins.sets()["exporter.txt"]
    assert {Requirement(each).name for each in asked} == set(pins.EXPORTER)


ONLY = """
import importlib, importlib.machinery, json, pkgutil, sys
allowed = set(json.loads(sys.argv[1])) | set(sys.stdlib_module_names) | {"fallow"}
class Only(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return super().find_spec(name, path, target) if name.partition(".")[0] in allowed else None
sys.meta_path[:] = [Only if each is importlib.machinery.PathFinder else each for each in sys.meta_path]
sys.path[:0] = [sys.argv[2]]
for each in json.loads(sys.argv[3]):
    package = importlib.import_module(each)
    for found in pkgutil.walk_packages(getattr(package, "__path__", ()), f"{each}."):
        importlib.import_module(found.name)
sys.argv[1:] = ["--once"]
from fallow.doors.cli.exporter import gpu_idle_exporter
gpu_idle_exporter()
"""


def test_the_exporter_runs_with_the_packages_of_its_image_alone():
    """Everything it may load, also for an API server or a web configuration; then it looks once and finds no driver."""
    has = [
        module for module, owners in importlib.metadata.packages_distributions().items()
        if any(canonicalize_name(owner) in pinned("exporter.txt") for owner in owners)
    ]
    loads = [
        "fallow.doors.exporter", "fallow.observe.node", "fallow.clients.nvml", "fallow.clients.kubelet",
        "fallow.clients.kubernetes", "yaml", "bcrypt",
    ]
    command = [sys.executable, "-c", ONLY, json.dumps(has), str(ROOT / "src"), json.dumps(loads)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env={"ATTRIBUTION": "off"})
    assert "Traceback" not in done.stderr, done.stderr[-800:]  # No module named ...
    assert done.returncode in (0, 1)  # 1: no driver here


# ---- pages -----------------------------------------------------------------------------------------------------------

PAGES = (
    "SECURITY.md", "docs/owners.md", "docs/concepts.md",
    *(f"docs/operators/{page}.md" for page in ("install", "switch-on", "upgrade", "troubleshoot")),
)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_names_only_flags_variables_annotations_and_files_that_exist(page):
    text = (ROOT / page).read_text()
    commands = [main.fallow.get_command(click.Context(main.fallow), verb) for verb in main.VERBS]
    flags = {name for command in commands for option in command.params for name in option.opts}
    typed = {"--create-namespace", "--ignore-not-found", "--field-selector"}  # of other programs
    assert set(re.findall(r"(?<![\w-])(--[a-z][a-z-]+)", text)) <= flags | typed
    written = {value for name, value in vars(names).items() if isinstance(value, str) and name.isupper()}
    assert set(re.findall(r"gpuautoscaler\.io/([\w-]+)", text)) <= {each.partition("/")[2] for each in written}
    for place in re.findall(r"\b((?:deploy|examples|docs)/[\w./*-]*\w)", text):
        assert list(ROOT.glob(place)) or "LETTER" in place, place


def test_the_security_page_says_what_binds_each():
    text = (ROOT / "SECURITY.md").read_text()
    headings = set(re.findall(r"^## (.+)$", text, re.MULTILINE))
    assert headings >= {"A tenant", "A lying Prometheus", "A stolen token"}
    assert "gpu-pruner-bounds" in (ROOT / "deploy" / "acting" / "15-bounds.yaml").read_text()
    defaults = {flag.name: flag.default for flag in settings.FLAGS}
    brakes = ("--max-actions-per-cycle", "--max-actions-per-namespace", "--max-percent-per-hour")
    said = "{} workloads a cycle, {} a namespace, {} % of the GPUs an hour"
    assert said.format(*(defaults[brake] for brake in brakes)) in text
    assert "WEB_CONFIG_FILE" in {each.name for each in variables.VARIABLES}


@pytest.mark.parametrize("place", ["enforcement", "sharing", "consolidation", "scaling", "webhook"])
def test_whoever_gives_the_account_more_rights_is_told_to_bind_them(place):
    """Patching pods, nodes or webhooks is worth the cluster, and the bounds are part of the acting overlay only."""
    rights = list(yaml.safe_load_all((ROOT / "deploy" / place / "10-role.yaml").read_text()))
    patched = {each for one in rights for rule in one.get("rules", ()) if "patch" in rule["verbs"]
               for each in rule["resources"]}
    assert patched & {"pods", "nodes", "mutatingwebhookconfigurations"}
    assert "deploy/acting/15-bounds.yaml" in (ROOT / "deploy" / place / "10-role.yaml").read_text()
    told = (ROOT / "deploy" / place / "kustomization.yaml").read_text()
    assert "15-bounds.yaml" in told or "besides deploy/acting:" in told


def test_budgets_are_switched_on_behind_the_bounds():
    text = (ROOT / "docs" / "operators" / "budgets.md").read_text()
    bounds, rights = (text.index(f"kubectl apply {what}") for what in ("-f deploy/acting/15-bounds.yaml",
                                                                      "-k deploy/enforcement"))
    assert bounds < rights


@pytest.mark.parametrize("place", ["webhook/20-webhook-role.yaml", "extender/role/10-role.yaml"])
def test_who_only_answers_the_api_server_or_a_scheduler_can_change_nothing(place):
    found = list(yaml.safe_load_all((ROOT / "deploy" / place).read_text()))
    rules = [rule for one in found for rule in one.get("rules", ())]
    assert rules
    changing = [rule for rule in rules if set(rule["verbs"]) - {"get", "list", "watch"}]
    asks = (["subjectaccessreviews"], ["create"], None)  # a question, by the verb of a change
    says = (["leases"], ["patch"], ["fallow-extender"])  # which places it keeps
    assert all((rule["resources"], rule["verbs"], rule.get("resourceNames")) in (asks, says) for rule in changing)


def test_the_webhook_may_read_every_kind_that_tells_the_class_of_its_pods():
    found = yaml.safe_load_all((ROOT / "deploy" / "webhook" / "20-webhook-role.yaml").read_text())
    rules = [rule for one in found for rule in one.get("rules", ()) if "get" in rule["verbs"]]
    read = {(group, plural) for rule in rules for group in rule["apiGroups"] for plural in rule["resources"]}
    assert {("apps.nvidia.com", "nimservices"), *((row.group, row.plural) for row in kinds.KINDS if row.work)} <= read


def test_the_bounds_know_every_kind():
    text = (ROOT / "deploy" / "acting" / "15-bounds.yaml").read_text()
    for row in (*kinds.KINDS, kinds.SCALED_OBJECT, kinds.KUEUE_WORKLOAD):
        assert f"'{row.group}/{row.plural}'" in text, row.kind


def test_who_has_no_cluster_rights_is_told_to_have_the_namespace_first():
    """The overlay for one namespace makes none: that is a right in the whole cluster."""
    files = (ROOT / "deploy" / "one-namespace").rglob("*.yaml")
    assert not [file for file in files if "kind: Namespace\n" in file.read_text()]
    page = (ROOT / "docs" / "operators" / "install.md").read_text()
    commands = page.partition("## In one namespace")[2].split("```")[1].strip().splitlines()
    assert commands[1] == f"kubectl create namespace {names.SYSTEM_NAMESPACES[0]}"
