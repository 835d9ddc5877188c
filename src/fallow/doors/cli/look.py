"""The verbs that only look, as they are typed: `status`, `idle`, `explain`. What they do is in views.py.

Only what `--help` needs is imported here: the rest is loaded when a verb is called.
"""

from __future__ import annotations

import functools
from typing import Any

import click
import msgspec

from fallow import settings, verbs
from fallow.doors.cli import completing, flags, main, show, watch, where
from fallow.doors.cli import verbs as acting

# What cannot matter to who looks once and changes nothing: how one acts, tells owners, runs and keeps books.
_OF_DAEMONS = (
    settings.TELL, settings.RUNNING, settings.SERVE, settings.COST, settings.COST_STORE, settings.COST_DOORS,
)
_UNUSED = frozenset(
    flag.name for flag in settings.FLAGS
    if (flag.group in _OF_DAEMONS and flag.name not in where.CLUSTER)
    or flag.name in ("--run-mode", "--dry-run-scope", "--compat-annotations", "--cluster", "--honor-labels-clusters")
)
# An address of a mail server asks for --email-from beside it, which a look does not take.
UNUSED_VARIABLES = frozenset({"SMTP_URL", "SMTP_PASSWORD"})


class LookCommand(watch.WatchFlagCommand):
    """The options that people look for first stand first, and alone."""

    is_brief = True

    own = frozenset({"--namespace", "--model-name", "--prometheus-url", *where.CLUSTER})


def _status(**given: Any) -> None:
    main.load("views").status(**given)


def _idle(**given: Any) -> None:
    main.load("views").idle(**given)


def _explain(**given: Any) -> None:
    main.load("views").explain(**given)


def _top(**given: Any) -> None:
    main.load("top").run(**given)


price_option = click.Option(
    ["--price"], metavar="MODEL=DOLLARS", multiple=True, help="What an hour of a GPU costs."
)
_everywhere_option = click.Option(
    ["-A", "--all-namespaces", "everywhere"], is_flag=True, help="All namespaces, which is the default."
)
_BRAKES = "The brakes of `fallow run` (--max-percent-per-hour ...) are taken too: what comes next depends on them."
_HELP = {
    "--namespace": "Only namespaces that match this RE2 expression as a whole.",
    "--model-name": "Only workloads all of whose GPUs match, e.g. 'NVIDIA A10G'.",
    "--prometheus-url": "Prometheus, for a look of one's own.",
}


_SHOWN = ("--namespace", "--model-name")


def _shown_options() -> list[click.Parameter]:
    """-n and -m, which say here what is shown."""
    return [_option(flag) for flag in settings.FLAGS if flag.name in _SHOWN]


@functools.cache
def _options() -> tuple[click.Parameter, ...]:
    """Who is to answer, and the flags by which a look of one's own judges: the same for all, and made once."""
    taken = [_option(flag) for flag in settings.FLAGS if flag.name not in (*_UNUSED, *where.CLUSTER, *_SHOWN)]
    return (*where.daemon_options(), *where.cluster_options(), *taken)


def look_options() -> list[click.Parameter]:
    """All that a command takes which looks, for those that stand elsewhere."""
    return [*_shown_options(), *_options()]


def _option(flag: settings.Flag) -> click.Option:
    """Brakes are taken, for what comes next depends on them; few want them, and one line says that they are there."""
    option = flags.flag_option(msgspec.structs.replace(flag, help=_HELP.get(flag.name, flag.help)))
    option.hidden = flag.group == settings.BRAKES
    return option


status = LookCommand(
    "status", callback=_status, context_settings=flags.CONTEXT, epilog=_BRAKES,
    params=[
        *_shown_options(), _everywhere_option,
        click.Option(
            ["--pods", "by_pod"], is_flag=True,
            help="Instead: every GPU in a pod's hands, by Prometheus; gpu-autoscaler always shows this.",
        ),
        show.output_option, watch.option, price_option, *_options(),
    ],
    help="The cluster on one page: GPUs busy, idle and unknown, what idleness costs, what comes next. A running daemon "
    "is asked first; without one it is looked at anew.\n\n\b\n"
    "  fallow status -n 'team-.*' --watch\n"
    "  fallow status --prometheus-url http://localhost:9090 --duration 60",
)
idle = LookCommand(
    "idle", callback=_idle, context_settings=flags.CONTEXT, epilog=_BRAKES,
    params=[
        *_shown_options(), _everywhere_option,
        click.Option(["--all", "everything"], is_flag=True, help="Also those of whose GPUs none is idle."),
        click.Option(
            ["--sort"], type=click.Choice(("cost", "time", "gpus", "name")), default="cost", show_default=True,
            help="What comes first: cost so far, longest, most.",
        ),
        show.output_option, watch.option, *_options(),
    ],
    help="List workloads with idle GPUs: since when, and what comes next or why they are left alone. A running daemon "
    "is asked first; without one they are looked at anew.\n\n\b\n"
    "  fallow idle -n ml -o wide\n"
    "  fallow idle --all -o json",
)
explain = LookCommand(
    "explain", callback=_explain, context_settings=flags.CONTEXT, epilog=_BRAKES,
    params=[
        acting.target_argument(),
        click.Option(
            ["-n", "--namespace"], default=None, help="Namespace of the workload, by its name; default: the context's.",
            callback=show.checked(lambda text: verbs.check_namespace(text)), shell_complete=completing.namespaces,
        ),
        show.output_option, watch.option, *_options(),
    ],
    help="Say why a workload is, or is not, idle or paused, and whether its pods share GPUs: the evidence GPU by GPU, "
    "the policy, what comes next. A running daemon is asked first; -o wide adds every signal. Of a node: how its GPUs "
    "are cut, who holds them, what is stranded there, why it stays or goes; of an object of fallow's: what becomes of "
    "it.\n\n\b\n"
    "  fallow why Deployment/llm -n ml\n"
    "  fallow why rollout.argoproj.io chat -n ml --watch\n"
    "  fallow explain node/gpu-7\n"
    "  fallow explain gpusharingpolicy/small\n"
    "  fallow explain autoscalingpolicy/gpu-pools",
)
top = LookCommand(
    "top", callback=_top, context_settings=flags.CONTEXT, epilog=_BRAKES,
    params=[
        *_shown_options(), _everywhere_option,
        click.Option(
            ["--every"], type=show.Number(1, 3600), default=5.0, show_default=True, metavar="SECONDS",
            help="How often it is looked at anew.",
        ),
        *_options(),
    ],
    help="The workloads live, on the whole screen, with keys to keep, pause, bring back, explain, filter and sort; ? "
    "lists them. What changes anything says so and asks first, and is done in your own name.",
)
