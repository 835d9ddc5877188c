"""The entry point `fallow`: a group whose verbs are imported when they are called.

Nothing but click is imported here: `--help` must answer before one notices.
"""

import gc
import importlib
import sys
from types import ModuleType

import click

from fallow import __version__

# verb -> (module, attribute, one line of help): the module is imported only when the verb is called.
VERBS: dict[str, tuple[str, str, str]] = {
    "run": ("prune", "run", "Keep watching a cluster (the daemon)."),
    "prune": ("prune", "prune", "Look once, or with -d keep looking; takes every flag of gpu-pruner."),
    "status": ("look", "status", "The cluster in numbers: busy, idle, cannot tell, paused."),
    "idle": ("look", "idle", "List workloads that hold GPUs, what we think of them and what comes next."),
    "explain": ("look", "explain", "Why a workload is, or is not, idle, paused or left alone."),
    "why": ("look", "explain", "The same as explain."),
    "pause": ("verbs", "pause", "Pause a workload now; the way back is written with it."),
    "resume": ("verbs", "resume", "Bring a paused workload back as it was. Needs no Prometheus."),
    "paused": ("verbs", "paused", "List what stands paused by fallow. Needs no Prometheus."),
    "ack": ("verbs", "ack", "Keep an idle workload for some hours."),
    "unack": ("verbs", "unack", "End an acknowledgement."),
    "acks": ("verbs", "acks", "List acknowledgements."),
    "freeze": ("verbs", "freeze", "Pause nothing for a while. Resuming always works."),
    "unfreeze": ("verbs", "unfreeze", "End a freeze."),
    "demo": ("demo", "demo", "Watch a pretend GPU cluster through a day, with the real controller at work."),
    "backtest": ("backtest", "backtest", "What a policy would have done: GPU-hours, money, pauses and regrets."),
    "tune": ("tune", "tune", "How long to wait before a pause: savings against interruptions."),
    "trace": ("traces", "trace", "List the traces that the commands above take, and convert published ones."),
    "exporter": ("exporter", "exporter", "On a GPU node: which processes hold GPUs without computing, as metrics."),
    "pack": ("pack", "pack",
             "Which node and GPU each pod should take, so that the fewest GPUs are stranded; traces replayed."),
    "crds": ("crds", "crds", "Print the CustomResourceDefinitions."),
}

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


def load(name: str) -> ModuleType:
    """The module of a command, with all that it needs. What imports make stays for good: a collector that looks at it
    again and again takes a sixth of the time."""
    name = f"fallow.doors.cli.{name}"
    if name in sys.modules:
        return sys.modules[name]
    gc.disable()
    try:
        return importlib.import_module(name)
    finally:
        gc.freeze()
        gc.enable()


class LazyGroup(click.Group):
    """A group that knows its verbs by name and imports one only when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        module, attribute, _ = VERBS[cmd_name]
        command: click.Command = getattr(load(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(verb, text) for verb, (_, _, text) in VERBS.items()])


@click.group(cls=LazyGroup, context_settings=CONTEXT)
@click.version_option(__version__, "-V", "--version", message="%(prog)s %(version)s")
def fallow() -> None:
    """Finds GPUs that nobody uses in a Kubernetes cluster and puts them back to work, politely.

    Nothing is changed unless you say so: every command that looks is read-only, and `run` starts in dry-run.

    \b
      fallow status                       the cluster in numbers
      fallow idle -n 'team-.*'            what is idle, since when, and what comes next
      fallow why Deployment/llm -n ml     the evidence, GPU by GPU
      fallow resume Deployment/llm -n ml  bring it back
    """
