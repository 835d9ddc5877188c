"""Writes what is made from the code: flags, metrics, reasons, alerts, the CRD, the roles and their bounds. A test fails
when one is not up to date."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import yaml

from docs import boards, bounds, chart, roles
from fallow import settings, telemetry
from fallow.model import reasons
from fallow.model.policies import attribution_crd, budget_crd, idle_crd, nodeconfig_crd, scaling_crd, sharing_crd
from fallow.settings import spot_watch

ROOT = Path(__file__).parent.parent
RULES = ROOT / "deploy" / "monitoring" / "20-rules.yaml"


def flags() -> str:
    lines = ["# Flags", "", "Of `gpu-pruner`, `fallow prune` and `fallow run`. Made from the code by `make docs`.", ""]
    for group in dict.fromkeys(flag.group for flag in settings.FLAGS):
        lines += _flag_table(group, [flag for flag in settings.FLAGS if flag.group == group])
    return "\n".join([*lines, *_flag_table("fallow spot-watch", spot_watch.FLAGS)])


def _flag_table(title: str, rows: Iterable[settings.Flag]) -> list[str]:
    lines = [f"## {title}", "", "| flag | default | meaning |", "|---|---|---|"]
    for flag in rows:
        spelled = ", ".join(f"`{name}`" for name in (flag.short, flag.name) if name)
        default = "off" if flag.switch else f"`{flag.default}`" if flag.default else ""
        variable = f" Variable `{flag.variable}`." if flag.variable else ""
        lines.append(_row(spelled, default, flag.help + variable))
    return [*lines, ""]


def metrics() -> str:
    lines = ["# Metrics", "", "Served at `/metrics` by the daemon. Made from the code by `make docs`.", ""]
    lines += ["| name | type | labels | meaning |", "|---|---|---|---|"]
    for metric in telemetry.METRICS:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        lines.append(f"| `{metric.name}` | {metric.type} | {labels} | {metric.help} |")
    most = telemetry.MOST_WORKLOAD_SERIES
    lines += ["", f"Series that name a workload are at most {most}; the rest is counted under `_other`."]
    return "\n".join(lines) + "\n"


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def reason_page() -> str:
    lines = [
        "# Reasons", "",
        "Every workload has a verdict (idle, active, unknown) and a reason. Every idle one that is left alone has a",
        "reason for that too. `fallow status` counts them; `fallow why KIND/NAME -n NAMESPACE` says what was measured.",
        "Here is what each word means and what helps. Made from the code by `make docs`.", "",
    ]
    for title, rows in reasons.GROUPS.items():
        lines += [f"## {title}", "", *_meanings("reason", rows), ""]
    lines += ["## ReportOnly", "", "It is idle and only reported. `ReportOnly:BarePod` and the like say why.", ""]
    return "\n".join([*lines, *_meanings("word", reasons.DETAILS)]) + "\n"


def _meanings(head: str, rows: Mapping[str, reasons.Meaning]) -> list[str]:
    cells = (_row(f"`{word}`", said.means, said.who, said.helps) for word, said in rows.items())
    return [f"| {head} | what it means | who can do something | what helps |", "|---|---|---|---|", *cells]


def alerts() -> str:
    found = [
        rule for part in yaml.safe_load_all(RULES.read_text()) if part
        for group in part["spec"]["groups"] for rule in group["rules"]
    ]
    lines = [
        "# Alerts", "",
        "`kubectl apply -k deploy/monitoring` brings them, for the Prometheus operator. Each has a page on what to do.",
        "Made from `deploy/monitoring/20-rules.yaml` by `make docs`.", "",
        "| alert | severity | after | what it means |", "|---|---|---|---|",
    ]
    for rule in found:
        name, severity, after = rule["alert"], rule["labels"]["severity"], str(rule.get("for", "at once"))
        _, meaning, *_ = (ROOT / "docs" / "runbooks" / f"{name}.md").read_text().split("\n\n")
        lines.append(_row(f"[{name}](../runbooks/{name}.md)", severity, after, meaning))
    return "\n".join(lines) + "\n"


def crd() -> str:
    return "# Made from the code by `make docs`.\n" + yaml.safe_dump(idle_crd.define(), sort_keys=False, width=140)


def cost_crds() -> str:
    made = yaml.safe_dump_all((budget_crd.define(), attribution_crd.define()), sort_keys=False, width=140)
    return f"# Made from the code by `make docs`.\n{made}"


def sharing_crds() -> str:
    made = yaml.safe_dump_all((sharing_crd.define(), nodeconfig_crd.define()), sort_keys=False, width=140)
    return f"# Made from the code by `make docs`.\n{made}"


def scaling_crds() -> str:
    return "# Made from the code by `make docs`.\n" + yaml.safe_dump(scaling_crd.define(), sort_keys=False, width=140)


DOCUMENTS: dict[str, Callable[[], str]] = {
    "docs/operators/flags.md": flags, "docs/operators/metrics.md": metrics, "docs/operators/reasons.md": reason_page,
    "docs/operators/alerts.md": alerts, "deploy/base/10-crd.yaml": crd, "deploy/base/11-cost-crds.yaml": cost_crds,
    "deploy/base/12-sharing-crds.yaml": sharing_crds, "deploy/base/13-scaling-crd.yaml": scaling_crds,
    **boards.FILES, **boards.VALUES, **roles.FILES, **bounds.FILES,
    **chart.FILES,  # the last: it reads the others
}


if __name__ == "__main__":
    for path, write in DOCUMENTS.items():
        (ROOT / path).write_text(write())
