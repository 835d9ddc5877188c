"""The verbs that only look: `status`, `idle`, `explain`. They run one cycle up to the plan and change nothing."""

import asyncio
import sys
from typing import Any

import click

from fallow import logs, settings, verbs
from fallow.act.notices import text
from fallow.doors.answers import workloads as answers
from fallow.doors.cli import flags, show
from fallow.model import decision, gpus, marks, units
from fallow.stories import idle as stories
from fallow.wiring import daemon

RUNNING = [
    flag.name for flag in settings.FLAGS
    if flag.group == settings.RUNNING and flag.name not in ("--kubeconfig", "--context")
]


def _options(*without: str) -> list[click.Parameter]:
    return flags.flag_options(*RUNNING, "--run-mode", *without)


def _look(given: dict[str, Any]) -> tuple[stories.Look, str]:
    """What is there, and the namespace of the context."""
    options = flags.read_settings(given)
    logs.set_up("default", "error")
    with show.refusals():
        return asyncio.run(daemon.look(options))


def _failure(message: str) -> click.ClickException:
    return click.ClickException(show.plain(message))  # exit code 1


def _refuse_without_evidence(look: stories.Look) -> None:
    if look.snapshot.evidence.trouble is not None:
        raise _failure(f"no decision possible: {look.snapshot.evidence.trouble.because}")


def _status(output: str, **given: Any) -> None:
    look, _ = _look(given)
    numbers, trouble = look.plan.totals, look.snapshot.evidence.trouble
    if show.data(answers.status(look.plan, look.snapshot, look.paused), output):
        sys.exit(0 if trouble is None else flags.EXIT_NO_DECISION)
    show.sentence(
        f"{_many(numbers.gpus, 'GPU')} held by {_many(numbers.pods, 'pod')} of {_many(numbers.workloads, 'workload')}: "
        f"{numbers.active_gpus} active, {numbers.idle_gpus} idle, {numbers.unknown_gpus} cannot tell; "
        f"{_many(len(look.paused), 'workload')} paused by us"
    )
    if look.plan.freeze:
        show.sentence(str(look.plan.freeze))
    for missing in look.snapshot.missing:
        show.sentence(f"not seen: {missing.what}: {missing.because}")
    if numbers.verdicts:
        show.table(["VERDICT", "REASON", "WORKLOADS"], answers.counted(numbers), styled="VERDICT")
    _refuse_without_evidence(look)


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _idle(output: str, everything: bool, **given: Any) -> None:
    look, _ = _look(given)
    _refuse_without_evidence(look)
    shown, numbers = answers.listed(look.plan, everything=everything), look.plan.totals
    if show.data([answers.row(finding, look.plan.at) for finding in shown], output):
        return
    if not shown:
        show.sentence(f"nothing is idle: {numbers.active_gpus} GPUs active, {numbers.unknown_gpus} cannot tell")
        return
    columns = ["NAMESPACE", "WORKLOAD", "GPUS", "MODEL", "VERDICT", "IDLE FOR", "NEXT"]
    if output == "wide":
        columns += ["POLICY", "WHY"]
    show.table(columns, [_cells(finding, look.plan.at)[: len(columns)] for finding in shown], styled="VERDICT")


def _cells(finding: decision.Finding, now: float) -> tuple[Any, ...]:
    quiet = "" if finding.idle_since is None else units.humane(now - finding.idle_since)
    models = ", ".join(map(gpus.shorten, finding.models))
    return (
        finding.workload.ref.namespace, finding.workload.ref.short, finding.gpus, models, answers.verdict(finding),
        f"{quiet} or more" if finding.at_least and quiet else quiet, answers.next_step(finding), finding.rule.name,
        finding.skip_because or finding.because,
    )


def _explain(target: str, namespace: str | None, output: str, **given: Any) -> None:
    kind, name = verbs.read_target(target)
    look, own = _look({**given, "namespace": None})
    namespace = namespace or own
    with show.refusals():
        index = verbs.pick(look.snapshot.workloads, target, namespace)
    if index is None:
        seen = "that holds GPUs or is paused by us: see `fallow idle --all`"
        raise _failure(f"no {kind} {name} in namespace {namespace} {seen}")
    (finding, gpus), lost = look.explain(index), look.snapshot.evidence.lost_signals
    if output in ("json", "yaml"):  # only then is it of interest what a pause would send
        show.data(answers.explanation(finding, gpus, look.patch_of(finding), look.plan.at, lost), output)
    else:
        _tell(finding, gpus, look.plan.at)
        for one in lost:
            show.sentence(f"  not seen   signal {one.signal}: {one.because}")
        for ignored in look.snapshot.evidence.ignored:
            show.sentence(f"  not seen   {ignored.who}: {ignored.because}")


def _tell(finding: decision.Finding, gpus: list[decision.GpuFinding], now: float) -> None:
    ref, paused = finding.workload.ref, marks.paused_at(finding.workload)
    show.sentence(f"{ref.short} in {ref.namespace}: {answers.verdict(finding)} ({finding.reason})")
    show.sentence(f"  because    {finding.because}")
    if finding.idle_since is not None:
        quiet = f"{'at least ' if finding.at_least else ''}{units.humane(now - finding.idle_since)}"
        show.sentence(f"  idle       {quiet}, since {units.rfc3339(finding.idle_since)}")
    if paused is not None:
        back = f"fallow resume {text.typed(ref)} -n {ref.namespace}"
        show.sentence(f"  paused     since {units.rfc3339(paused)}; back with: {back}")
    rule, window = finding.rule, units.humane(finding.window)
    show.sentence(f"  policy     {rule.name}: quiet for {window}, then {rule.action.type}")
    if finding.skip is not None:
        show.sentence(f"  left alone {finding.skip_label}: {finding.skip_because}")
    elif finding.next_action:
        at = f" at {units.rfc3339(finding.next_at)}" if finding.next_at else ""
        show.sentence(f"  next       {finding.next_action}{at}")
    chain = " <- ".join(f"{link.kind}/{link.name}" for link in finding.workload.chain)
    show.sentence(f"  owners     Pod <- {chain}" if chain else "  owners     none")
    rows = [(gpu.pod, gpu.gpu, gpu.node, gpu.verdict, gpu.reason, _signals(gpu), gpu.because) for gpu in gpus]
    if rows:
        show.table(["POD", "GPU", "NODE", "VERDICT", "REASON", "SIGNALS", "WHY"], rows, styled="VERDICT")


def _signals(gpu: decision.GpuFinding) -> str:
    peaks = {name: values.get("max") for name, values in gpu.signals.items()}
    return " ".join(f"{name}={peak:.3g}" for name, peak in peaks.items() if peak is not None)


status = flags.FlagCommand(
    "status", callback=_status, params=[*_options(), show.output_option], context_settings=flags.CONTEXT,
    help="The cluster in numbers: how many GPUs are active, idle, or cannot be told; what is paused; what could not be "
    "seen.",
)
idle = flags.FlagCommand(
    "idle", callback=_idle, context_settings=flags.CONTEXT,
    params=[
        *_options(), click.Option(["-A", "--all", "everything"], is_flag=True, help="Also those not idle."),
        show.output_option,
    ],
    help="List idle workloads that hold GPUs: since when, and what comes next, or why they are left alone.",
)
explain = flags.FlagCommand(
    "explain", callback=_explain, context_settings=flags.CONTEXT,
    params=[
        click.Argument(["target"], metavar="KIND/NAME", callback=show.checked(verbs.read_target)),
        click.Option(
            ["-n", "--namespace"], default=None, help="Namespace of the workload; default: the context's.",
            callback=show.checked(verbs.check_namespace),
        ),
        *_options("--namespace"), show.output_option,
    ],
    help="Say why a workload is, or is not, idle: the verdict, the evidence GPU by GPU, the policy, the next action or "
    "why there is none."
    "\n\nKIND is Deployment, or Rollout.argoproj.io where the name alone is not clear.",
)
