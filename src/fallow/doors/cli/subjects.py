"""`fallow explain` of what is no workload: node/NAME, and the objects of ours by their kinds.

In: the kind and name as typed, flags. Out: a page, or the same as JSON or YAML. It looks for itself: the API server has
all of it. Only whom an IdlePolicy rules, and what is planned of nodes, the daemon knows, or a look of one's own.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from fallow import logs, verbs
from fallow.clients.kubernetes import api as kube
from fallow.doors.cli import interrupts, pages, show
from fallow.wiring import reach

if TYPE_CHECKING:
    from fallow.doors.answers.scaling import ScalingPage
    from fallow.doors.answers.subjects import SubjectTold

# What is explained here, and for short; each is called by its kind and its plural, too.
_KINDS: Final = {
    kube.NODES: "no", kube.SHARING_POLICIES: "gsp", kube.NODE_CONFIGS: "gnc", kube.COST_BUDGETS: "cb",
    kube.IDLE_POLICIES: "idp", kube.SCALING_POLICIES: "asp",
}


def find(target: str) -> kube.Resource | None:
    """None: it is a workload, or nothing."""
    word, _, group = verbs.read_target(target)[0].lower().partition(".")
    for resource, short in _KINDS.items():
        if word in (*resource.words, short) and group in ("", resource.group):
            return resource
    return None


def tell(resource: kube.Resource, target: str, output: str, given: dict[str, Any]) -> show.Shown:
    from fallow.doors.answers import subjects as telling  # a packing engine: who asks about workloads does without
    from fallow.wiring import subjects

    name, now = verbs.read_target(target)[1], time.time()

    async def read() -> subjects.NodeSubject | subjects.PolicySubject:
        async with reach.open_api(given.get("kubeconfig"), given.get("context")) as (api, _):
            return await subjects.read(api, resource, name, now)

    logs.set_up("default", "error")
    with show.refusals():
        seen = interrupts.run(read())
    if isinstance(seen, subjects.NodeSubject):
        found = telling.tell_node(seen, now, _find_plan(given, output))
    elif resource == kube.SCALING_POLICIES:
        found = telling.tell_policy(seen, now, planned=_find_plan(given, output))
    else:
        matched = _find_ruled(name, given, output) if resource == kube.IDLE_POLICIES else None
        found = telling.tell_policy(seen, now, matched)
    return show.Shown(show.encode(found, output) if output in ("json", "yaml") else draw(found))


def _find_plan(given: dict[str, Any], output: str) -> ScalingPage:
    from fallow.doors.cli import scale_plan

    return scale_plan.see(given, output)[0]


def _find_ruled(name: str, given: dict[str, Any], output: str) -> list[str] | None:
    from fallow.doors.cli import views

    seen = views.see_rows(given, views.ViewFilter(), output)
    if seen.failure is not None:
        return None
    return [f"{row.namespace}/{row.kind}/{row.name}" for row in seen.rows if row.policy == name]


def draw(found: SubjectTold) -> str:
    lines = [(each.about, each.sentence) for each in found.lines]
    lines += [(each.type, f"{each.status} ({each.reason}): {each.message}") for each in found.conditions]
    holders = [
        (each.namespace, each.pod, ", ".join(f"{many} {name}" for name, many in each.holds.items()),
         each.strategy or "")
        for each in found.holders
    ]
    table = show.grid(["NAMESPACE", "POD", "HOLDS", "BY"], holders) if holders else ""
    return pages.join(f"{show.heading(f'{found.kind}/{found.name}')}\n{show.fields(lines)}", table)
