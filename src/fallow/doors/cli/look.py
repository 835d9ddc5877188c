"""The verbs that only look, as they are typed: `status`, `idle`, `explain`. What they do is in views.py.

Only what `--help` needs is imported here: the rest is loaded when a verb is called.
"""

from __future__ import annotations

from typing import Any

import click
import msgspec

from fallow import settings, verbs
from fallow.doors.cli import completing, flags, main, show, watch
from fallow.doors.cli import verbs as acting

_CLUSTER = ("--kubeconfig", "--context")
# What cannot matter to who looks once and changes nothing: how one acts, tells owners and runs.
_UNUSED = frozenset(
    flag.name for flag in settings.FLAGS
    if (flag.group in (settings.TELL, settings.RUNNING, settings.SERVE) and flag.name not in _CLUSTER)
    or flag.name in ("--run-mode", "--dry-run-scope", "--compat-annotations")
)
UNUSED_VARIABLES = frozenset({"SMTP_URL"})  # it asks for --email-from beside it, which a look does not take


class LookCommand(watch.WatchFlagCommand):
    """The options that people look for first stand first."""

    own = frozenset({"--namespace", "--model-name", "--prometheus-url", *_CLUSTER})


def _status(**given: Any) -> None:
    main.load("views").status(**given)


def _idle(**given: Any) -> None:
    main.load("views").idle(**given)


def _explain(**given: Any) -> None:
    main.load("views").explain(**given)


_price_option = click.Option(
    ["--price"], metavar="MODEL=DOLLARS", multiple=True, help="What an hour of a GPU costs (repeatable)."
)
_everywhere_option = click.Option(
    ["-A", "--all-namespaces", "everywhere"], is_flag=True, help="All namespaces, which is the default."
)
_BRAKES = "The brakes of `fallow run` (--max-percent-per-hour ...) are taken too: what comes next depends on them."
_HELP = {
    "--namespace": "Only this namespace, or those that match it as an RE2 expression as a whole; nothing else is shown "
    "or counted. Default: all.",
    "--model-name": "Only workloads all of whose GPUs are known to match, e.g. 'NVIDIA A10G'; nothing else is shown or "
    "counted.",
}


def _options(*without: str) -> list[click.Parameter]:
    """The flags by which workloads are judged; -n and -m say here what is shown."""
    return [_option(flag) for flag in settings.FLAGS if flag.name not in (*_UNUSED, *without)]


def _option(flag: settings.Flag) -> click.Option:
    """Brakes are taken, for what comes next depends on them; few want them, and one line says that they are there."""
    option = flags.flag_option(msgspec.structs.replace(flag, help=_HELP.get(flag.name, flag.help)))
    option.hidden = flag.group == settings.BRAKES
    return option


status = LookCommand(
    "status", callback=_status, context_settings=flags.CONTEXT, epilog=_BRAKES,
    params=[_everywhere_option, _price_option, watch.option, show.output_option, *_options()],
    help="The cluster on one page: how many GPUs there are, are busy, idle or cannot be told, what idleness costs, who "
    "is idle most, what comes next, and what is wrong with the data. By default of all namespaces.",
)
idle = LookCommand(
    "idle", callback=_idle, context_settings=flags.CONTEXT, epilog=_BRAKES,
    params=[
        _everywhere_option,
        click.Option(["--all", "everything"], is_flag=True, help="Also those of whose GPUs none is idle."),
        watch.option, show.output_option, *_options(),
    ],
    help="List workloads with idle GPUs: since when, and what comes next, or why they are left alone. Those that are "
    "idle in part are reported too, and left alone. By default of all namespaces.",
)
explain = LookCommand(
    "explain", callback=_explain, context_settings=flags.CONTEXT, epilog=_BRAKES,
    params=[
        acting.target_argument(),
        click.Option(
            ["-n", "--namespace"], default=None, help="Namespace of the workload, by its name; default: the context's.",
            callback=show.checked(lambda text: verbs.check_namespace(text)), shell_complete=completing.namespaces,
        ),
        watch.option, show.output_option, *_options("--namespace", "--model-name"),
    ],
    help="Say why a workload is, or is not, idle: the verdict, the evidence GPU by GPU, the policy, the next action or "
    "why there is none. Of a paused one: why, by which rule, and what it returns to. -o wide adds every signal."
    "\n\nKIND is Deployment, or Rollout.argoproj.io where the name alone is not clear.",
)
