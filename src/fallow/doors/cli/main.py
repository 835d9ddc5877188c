"""The entry point `fallow`: a group whose verbs are imported when they are called; and how every command of ours ends.

Nothing but click is imported here: `--help` must answer before one notices.
Invariant: whatever becomes of what we print, and whenever somebody has enough, there is no traceback.
"""

import errno
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import click

from fallow import __version__
from fallow.doors.cli import enter, later

# verb -> (module, attribute, one line of help): the module is imported only when the verb is called.
VERBS: dict[str, tuple[str, str, str]] = {
    "run": ("prune", "run", "Keep watching a cluster (the daemon)."),
    "prune": ("prune", "prune", "Look once, or with -d keep looking; takes every flag of gpu-pruner."),
    "status": ("look", "status", "The cluster on one page: busy, idle, cannot tell, and what that costs."),
    "idle": ("look", "idle", "List workloads with idle GPUs, since when, and what comes next."),
    "top": ("look", "top", "The workloads live, with keys to keep, pause, bring back and explain."),
    "explain": ("look", "explain", "The same as why."),
    "why": ("look", "explain", "Why a workload is, or is not, idle, paused or left alone."),
    "pause": ("verbs", "pause", "Pause a workload now; the way back is written with it."),
    "resume": ("verbs", "resume", "Bring a paused workload back as it was. Needs no Prometheus."),
    "paused": ("verbs", "paused", "List what stands paused by fallow. Needs no Prometheus."),
    "ack": ("verbs", "ack", "Keep an idle workload for some hours."),
    "unack": ("verbs", "unack", "End an acknowledgement."),
    "acks": ("verbs", "acks", "List acknowledgements."),
    "history": ("past", "history", "What happened: told, kept, paused, brought back, refused."),
    "freeze": ("verbs", "freeze", "Pause nothing for a while. Resuming always works."),
    "unfreeze": ("verbs", "unfreeze", "End a freeze."),
    "gitops-snippet": ("gitops", "snippet", "Print what keeps Argo CD, Flux or Helm from undoing a pause."),
    "query": ("promql", "query", "Ask Prometheus one expression, with the login that fallow has there."),
    "digest": ("digest", "digest", "What became of the GPUs in some days: to a terminal, Slack or e-mail."),
    "demo": ("demo", "demo", "Watch a pretend GPU cluster through a day, with the real controller at work."),
    "backtest": ("backtest", "backtest", "What a policy would have done: GPU-hours, money, pauses and regrets."),
    "tune": ("tune", "tune", "How long to wait before a pause: savings against interruptions."),
    "trace": ("traces", "trace", "List the traces that other commands take; convert published ones."),
    "exporter": ("exporter", "exporter", "On a GPU node: which processes hold GPUs without computing, as metrics."),
    "pack": ("pack", "pack",
             "Which node and GPU each pod should take, so that the fewest GPUs are stranded; traces replayed."),
    "scale": ("scale", "scale", "Which nodes are added and let go: the plan, and how well demand could be foretold."),
    "clusters": ("clusters", "clusters", "This cluster and those beside it, side by side and summed."),
    "optimize": ("optimize", "optimize", "Who could do with less of a GPU, by what was measured, and what that saves."),
    "cost": ("cost", "cost", "What GPUs cost: by whom, reports, savings, prices, exports; and budgets."),
    "report": ("reports", "report", "All on one page: the cluster, what is wasted, costs and savings of a week."),
    "apply": ("apply", "apply", "Store policies and budgets from a file; says what it corrected."),
    "webhook": ("webhook", "webhook", "Answer the API server when GPU pods are made: budgets, and who shares."),
    "extender": ("extender", "extender", "Answer kube-scheduler which nodes are best for a GPU pod."),
    "spot-watch": ("spot_watch", "spot_watch", "On a spot node: note on it that its cloud takes it back."),
    "doctor": ("doctor", "doctor", "Is all there that fallow needs? A checklist, with what to do next."),
    "support-bundle": ("support_bundle", "support_bundle", "One file for who helps from afar, without secrets."),
    "uninstall": ("uninstall", "uninstall", "Give back all that fallow holds, before it is removed."),
    "crds": ("crds", "crds", "Print the CustomResourceDefinitions."),
    "version": ("reports", "version", "The version, also of Python and of the custom resources."),
    "man": ("man", "man", "The manual page of a command, or all of them into a folder."),
    "completion": ("completing", "completion", "Print what teaches bash, zsh or fish to complete what you type."),
}
# What --help shows them under.
GROUPS: dict[str, tuple[str, ...]] = {
    "Begin here": ("demo", "status", "idle", "why", "explain", "top"),
    "For owners": ("ack", "unack", "acks", "pause", "resume", "paused", "history", "gitops-snippet"),
    "What it would do, and how long to wait": ("backtest", "tune", "scale", "trace"),
    "Keep it running": ("prune", "run", "freeze", "unfreeze", "apply", "crds", "exporter", "webhook", "extender",
                        "spot-watch", "doctor", "support-bundle", "uninstall"),
    "Money, and what could be smaller": ("cost", "report", "clusters", "optimize", "pack", "digest"),
    "Besides": ("query", "man", "completion", "version"),
}
PLUGIN, COMPLETE = "kubectl fallow", "_FALLOW_COMPLETE"
INTERRUPTED = enter.INTERRUPTED
_UNWRITABLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


def load(name: str) -> ModuleType:
    """The module of a command, and of what it needs as much as its description does: the rest comes when it is used."""
    return later.load(f"fallow.doors.cli.{name}")


class Door(click.Command):
    """A command that somebody starts. It ends with a code and one sentence at most, by Ctrl-C with 130, and quietly
    when nobody reads on."""

    def main(
        self, args: Sequence[str] | None = None, prog_name: str | None = None, complete_var: str | None = None,
        standalone_mode: bool = True, **extra: Any,
    ) -> Any:
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, standalone_mode, **extra)
        try:
            code = super().main(args, prog_name or _own_name(), complete_var, standalone_mode=False, **extra)
            sys.exit(code if isinstance(code, int) else 0)
        except click.ClickException as problem:
            vars(problem)["message"] = _hide_logins(problem.message, sys.argv[1:] if args is None else args)
            problem.show()
            sys.exit(problem.exit_code)
        except click.Abort:
            sys.exit(INTERRUPTED)
        except UnicodeEncodeError as problem:
            letter = ascii(problem.object[problem.start])
            _end(f"this output cannot be written in {problem.encoding}: it has {letter}; set PYTHONIOENCODING=utf-8")
        except OSError as problem:
            if problem.errno not in _UNWRITABLE:
                raise
            _end(f"the output cannot be written: {problem.strerror}")


def _hide_logins(said: str, typed: Sequence[str]) -> str:
    """Whoever repeats what was typed or set, also click itself."""
    if "@" not in said:
        return said
    from fallow import settings
    from fallow.model import redaction

    return redaction.hide_logins(said, [*typed, *(text for text in settings.environment().values() if "//" in text)])


def _own_name() -> str:
    """As it is typed."""
    name = Path(sys.argv[0]).name
    return PLUGIN if name == PLUGIN.replace(" ", "-") else name


def _end(because: str) -> NoReturn:
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115  what is still to be written would fail again at the very end
    click.echo(f"Error: {because}", err=True)
    sys.exit(1)


class SpellingGroup(click.Group):
    """A group that names the command which somebody may have meant."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        known = self.list_commands(ctx)
        if args[0] not in known and not args[0].startswith("-") and not ctx.resilient_parsing:
            from fallow.model import spelling

            meant = spelling.suggest(args[0], {verb: f"`{ctx.command_path} {verb}`" for verb in known})
            ctx.fail(f"there is no command {args[0]!r}{meant or '; --help lists all'}")
        return super().resolve_command(ctx, args)


class LazyGroup(Door, SpellingGroup):
    """A group that knows its verbs by name and imports one only when it is called. `verbs`: those of the table that it
    has; none: all."""

    def __init__(self, *given: Any, verbs: Sequence[str] = (), **named: Any) -> None:
        super().__init__(*given, **named)
        self._verbs = {verb: VERBS[verb] for verb in verbs or VERBS}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._verbs)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._verbs:
            return None
        module, attribute, _ = self._verbs[cmd_name]
        command: click.Command = getattr(load(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, verbs in GROUPS.items():
            if shown := [(verb, self._verbs[verb][2]) for verb in verbs if verb in self._verbs]:
                with formatter.section(title):
                    formatter.write_dl(shown)


@click.group(cls=LazyGroup, context_settings=CONTEXT)
@click.version_option(__version__, "-V", "--version", message="%(prog)s %(version)s")
def fallow() -> None:
    """Finds GPUs that nobody uses in a Kubernetes cluster and puts them back to work, politely.

    Nothing is changed unless you say so: every command that looks is read-only, and `run` starts in dry-run.

    \b
      fallow demo                         a pretend cluster; needs none of yours
      fallow status                       your own on one page; it only looks
      fallow idle -n 'team-.*'            what is idle, since when, and what comes next
      fallow why Deployment/llm -n ml     the evidence, GPU by GPU
      fallow resume Deployment/llm -n ml  bring it back
    """


@click.group(
    cls=LazyGroup, context_settings=CONTEXT, verbs=("status", "optimize", "cost", "report", "version"),
    name="gpu-autoscaler",
)
@click.version_option(__version__, "-V", "--version", message="%(prog)s %(version)s")
def gpu_autoscaler() -> None:
    """What the GPUs of a Kubernetes cluster do, what is wasted, and what it costs. The same commands as of `fallow`.

    \b
      gpu-autoscaler status                               GPU use of the cluster
      gpu-autoscaler optimize                             who could do with less
      gpu-autoscaler cost --namespace ml-team --last 7d   where the money went
      gpu-autoscaler cost report --format json            the same, by whatever you like
    """


@click.group(cls=LazyGroup, context_settings=CONTEXT, verbs=("exporter", "spot-watch"), name="fallow")
@click.version_option(__version__, "-V", "--version", message="%(prog)s %(version)s")
def fallow_on_nodes() -> None:
    """What of fallow runs on nodes. All other commands are in the image `fallow`."""
