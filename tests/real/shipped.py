"""Accounts with exactly the rights that are shipped, and what of them the audit log says was used.

`make rights` runs all of tests/real and then this as a program: it prints the shipped rights that no program of ours
used there, and ends with 1 if there are any: a right that nobody uses is one too many. No smaller run can tell.

In: files of deploy/ (the chart renders the same: tests/real/test_chart.py). Out: a kubeconfig; `used`, the rights that
an account asked for and was given.
Invariant: a right that is missing fails the test in which it was missed, whatever became of it there.
"""

from __future__ import annotations

import json
import pathlib
import re
import sys
from typing import Any

from docs import roles

from tests import ROOT, objects
from tests.real import cluster as clusters
from tests.real import world

Object = dict[str, Any]
Right = tuple[str, str, str]  # verb, group, resource with its part
# Every account may ask who it is, and what it may: no role of ours grants it.
EVERYBODYS = {
    ("create", "authentication.k8s.io", "selfsubjectreviews"),
    ("create", "authorization.k8s.io", "selfsubjectaccessreviews"),
}
NOTES = ROOT / ".pytest_cache" / "v" / "fallow" / "rights.jsonl"  # of all workers, a line for each test
# Whose rights, where the tests show their use in another way.
ELSEWHERE = {
    "letters/x.yaml": "an example: `*/scale` of kinds that people have themselves",
    "extender/20-scheduler-role.yaml": "of kube-scheduler, which is not ours",
}
HOOK = "charts/fallow/templates/uninstall-role.yaml"
_RESOURCE = re.compile(
    r"/(?:api|apis/(?P<group>[^/]+))/v[^/]+/(?:namespaces/[^/?]+/)?(?P<what>[a-z]+)(?:/[^/?]+(?P<part>/[a-z]+)?)?(?:[?]|$)"
)


def rules(*files: str) -> list[Object]:
    """Of all roles in these files of deploy/."""
    made = objects.read_files([ROOT / "deploy" / file for file in files])
    return [rule for each in made if each.get("kind") in ("Role", "ClusterRole") for rule in each["rules"]]


async def account(cluster: clusters.Cluster, name: str, *files: str, namespace: str | None = None) -> pathlib.Path:
    return await cluster.service_account(name, rules(*files), namespace=namespace)


def granted(some: list[Object]) -> set[Right]:
    return {
        (verb, group, what) for rule in some for verb in rule["verbs"] for group in rule["apiGroups"]
        for what in rule["resources"]
    }


def used(cluster: clusters.Cluster, user: str) -> set[Right]:
    """Since this handle was made."""
    found = set()
    for one in cluster.requests(user=user):
        assert one.code != 403, f"a right is missing: {one.verb} {one.uri}"
        if (right := _read(one)) is not None:
            found.add(right)
    return found


def _read(one: world.Request) -> Right | None:
    """None: it was refused, or is about no resource."""
    place = _RESOURCE.match(one.uri)
    if place is None or one.code >= 400:
        return None
    return one.verb, place["group"] or "", place["what"] + (place["part"] or "")


def note(cluster: clusters.Cluster) -> None:
    """What our programs, by whichever account, asked for and were given in this test."""
    found = sorted({right for one in cluster.requests(agent="fallow/") if (right := _read(one)) is not None})
    if found:
        NOTES.parent.mkdir(parents=True, exist_ok=True)
        with NOTES.open("a") as file:
            file.write(json.dumps(found) + "\n")


def find_unused(notes: pathlib.Path = NOTES) -> dict[str, list[Right]]:
    """By the file that grants it."""
    lines = notes.read_text().splitlines() if notes.exists() else []
    seen = {tuple(right) for line in lines for right in json.loads(line)}
    return {file: sorted(unused) for file, rights in _shipped().items() if (unused := rights - seen - _made(seen))}


def _shipped() -> dict[str, set[Right]]:
    """Of every file of deploy/ that has any, and of the chart's hook, whose role no file of deploy/ has."""
    files = [str(path.relative_to(ROOT / "deploy")) for path in sorted((ROOT / "deploy").rglob("*.yaml"))]
    found = {file: granted(rules(file)) for file in files if "one-namespace" not in file and file not in ELSEWHERE}
    hook = [rule for each in objects.read(roles.leaving("")) for rule in each.get("rules", ())]
    found[HOOK] = granted([rule for rule in hook if rule["apiGroups"] != ["*"]])  # as letters/x.yaml
    return found


def _made(seen: set[Any]) -> set[Right]:
    """An apply of what is not there yet needs `create`, and the audit log calls it a patch; who follows a list may read
    one of it, which is no more; of whoever patches the bounds ask for verbs of ours."""
    by = {"patch": "create", "list": "get", "watch": "get"}
    own = (roles.PAUSE, roles.BACK_OFF)
    asked = {(verb, group, what) for patch, group, what in seen if patch == "patch" for verb in own}
    return {(by[verb], group, what) for verb, group, what in seen if verb in by} | asked


if __name__ == "__main__":
    left = find_unused()
    for name, unused in left.items():
        print(f"{name}: {', '.join(' '.join(filter(None, right)) for right in unused)}")
    sys.exit(1 if left else 0)
