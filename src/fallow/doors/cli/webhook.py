"""`fallow webhook`: the admission webhook of budgets and of sharing, as a process of its own."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from fallow.doors.cli import flags, main, processes
from fallow.settings import cost_enforcement


def _serve(options: cost_enforcement.WebhookSettings) -> Coroutine[Any, Any, int]:
    from fallow.doors.webhook import serve  # a web server: --help does without it

    return serve.run(options)


def _webhook(**given: Any) -> int:
    return processes.run(given, cost_enforcement.read_webhook, _serve)


webhook = main.Door(
    "webhook", callback=_webhook, context_settings=flags.CONTEXT,
    params=[flags.flag_option(flag) for flag in cost_enforcement.WEBHOOK_FLAGS],
    help="Answer the API server when GPU pods are made: those of a scope whose CostBudget is exceeded are denied, or "
    "kept to spot and reserved nodes; those that a GPUSharingPolicy means ask for a part of a GPU instead of a whole "
    "one (--rewrite-requests true). Rights to read are enough; on doubt a pod is admitted as it is.",
)
