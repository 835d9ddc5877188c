"""Writes what is made from the code: flags, metrics, the CRD, the roles and their bounds. A test fails when one is not
up to date."""

from collections.abc import Callable
from pathlib import Path

import yaml

from docs import bounds, roles
from fallow import settings, telemetry
from fallow.model.policies import idle_crd

ROOT = Path(__file__).parent.parent


def flags() -> str:
    lines = ["# Flags", "", "Of `gpu-pruner`, `fallow prune` and `fallow run`. Made from the code by `make docs`.", ""]
    for group in dict.fromkeys(flag.group for flag in settings.FLAGS):
        lines += [f"## {group}", "", "| flag | default | meaning |", "|---|---|---|"]
        for flag in (flag for flag in settings.FLAGS if flag.group == group):
            spelled = ", ".join(f"`{name}`" for name in (flag.short, flag.name) if name)
            default = "off" if flag.switch else f"`{flag.default}`" if flag.default else ""
            variable = f" Variable `{flag.variable}`." if flag.variable else ""
            cells = [spelled, default, flag.help + variable]
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        lines.append("")
    lines += ["## Not in this version yet", "", "Using one of these is a usage error.", ""]
    lines += [f"- `{name}`: {what}" for name, what in settings.NOT_YET.items()]
    return "\n".join(lines) + "\n"


def metrics() -> str:
    lines = ["# Metrics", "", "Served at `/metrics` by the daemon. Made from the code by `make docs`.", ""]
    lines += ["| name | type | labels | meaning |", "|---|---|---|---|"]
    for metric in telemetry.METRICS:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        lines.append(f"| `{metric.name}` | {metric.type} | {labels} | {metric.help} |")
    most = telemetry.MOST_WORKLOAD_SERIES
    lines += ["", f"Series that name a workload are at most {most}; the rest is counted under `_other`."]
    return "\n".join(lines) + "\n"


def crd() -> str:
    return "# Made from the code by `make docs`.\n" + yaml.safe_dump(idle_crd.define(), sort_keys=False, width=140)


DOCUMENTS: dict[str, Callable[[], str]] = {
    "docs/flags.md": flags, "docs/metrics.md": metrics, "deploy/base/10-crd.yaml": crd, **roles.FILES, **bounds.FILES,
}


if __name__ == "__main__":
    for path, write in DOCUMENTS.items():
        (ROOT / path).write_text(write())
