"""The verbs that only look: `status`, `idle`, `explain`. They run one cycle up to the plan and change nothing."""

import asyncio
import sys
from typing import Any

import click

from fallow import logs, settings, wiring
from fallow.act import notify
from fallow.clients import errors
from fallow.decide.idle import pauses
from fallow.doors import answers
from fallow.doors.cli import flags, show
from fallow.model import decision, units
from fallow.stories import idle as stories

RUNNING = [flag.name for flag in settings.FLAGS if flag.group == settings.RUNNING and flag.name not in ("--kubeconfig", "--context")]
ORDER = (decision.Verdict.idle, decision.Verdict.unknown, decision.Verdict.active)  # what wants attention first
PAUSED = "paused"
GROUPS = (settings.LOOK, settings.RULES, settings.ACT, settings.BRAKES, settings.SOURCE, settings.RUNNING)


def _options(*without: str) -> list[click.Parameter]:
    return flags.flag_options(GROUPS, without=[*RUNNING, "--run-mode", *without])


def _look(given: dict[str, Any]) -> tuple[stories.Look, str]:
    """What is there, and the namespace of the context."""
    told = flags.read_settings(given)
    logs.set_up("default", "error")
    try:
        return asyncio.run(wiring.look(told))
    except errors.Misconfigured as problem:
        raise click.UsageError(show.plain(problem)) from None
    except errors.ClientError as problem:
        raise _failure(str(problem)) from None


def _failure(message: str) -> click.ClickException:
    return click.ClickException(show.plain(message))  # exit code 1


def _refuse_without_evidence(look: stories.Look) -> None:
    if look.snapshot.evidence.trouble is not None:
        raise _failure(f"no decision possible: {look.snapshot.evidence.trouble.because}")


def _status(output: str, **given: Any) -> None:
    look, _ = _look(given)
    numbers = look.plan.totals
    if output in ("json", "yaml"):
        trouble = look.snapshot.evidence.trouble
        show.data({
            **answers.totals(numbers),
            "paused": [answers.workload(workload.ref) for workload in look.paused],
            "frozenUntil": answers.instant(look.plan.frozen_until),
            "source": None if trouble is None else {"reason": trouble.reason, "because": trouble.because},
            "missing": [{"what": missing.what, "because": missing.because} for missing in look.snapshot.missing],
            "asOf": answers.instant(look.plan.at),
        }, output)
        sys.exit(0 if trouble is None else flags.EXIT_NO_DECISION)
    show.sentence(
        f"{_many(numbers.gpus, 'GPU')} held by {_many(numbers.pods, 'pod')} of {_many(numbers.workloads, 'workload')}: "
        f"{numbers.active_gpus} active, {numbers.idle_gpus} idle, {numbers.unknown_gpus} cannot tell; "
        f"{_many(len(look.paused), 'workload')} paused by us"
    )
    if look.plan.frozen_until:
        show.sentence(f"frozen until {units.rfc3339(look.plan.frozen_until)}: {look.plan.frozen_because}")
    for missing in look.snapshot.missing:
        show.sentence(f"not seen: {missing.what}: {missing.because}")
    if numbers.verdicts:
        show.table(["VERDICT", "REASON", "WORKLOADS"], _count_rows(numbers), styled="VERDICT")
    _refuse_without_evidence(look)


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _count_rows(numbers: decision.Totals) -> list[tuple[str, str, int]]:
    """What wants attention first, the many before the few."""
    order = sorted(numbers.verdicts.items(), key=lambda item: (ORDER.index(decision.Verdict(item[0][0])), -item[1], item[0][1]))
    return [(PAUSED if reason == decision.Reason.AlreadyPaused else verdict, reason, count) for (verdict, reason), count in order]


def _idle(output: str, everything: bool, **given: Any) -> None:
    look, _ = _look(given)
    _refuse_without_evidence(look)
    findings = [look.plan.findings[index] for index in range(len(look.plan.findings))]
    shown = [finding for finding in findings if everything or finding.verdict is decision.Verdict.idle]
    shown.sort(key=lambda finding: (ORDER.index(finding.verdict), finding.idle_since or look.plan.at, str(finding.workload.ref)))
    if output in ("json", "yaml"):
        show.data([answers.row(finding, look.plan.at) for finding in shown], output)
        return
    if not shown:
        show.sentence(f"nothing is idle: {look.plan.totals.active_gpus} GPUs active, {look.plan.totals.unknown_gpus} cannot tell")
        return
    columns = ["NAMESPACE", "WORKLOAD", "GPUS", "MODEL", "VERDICT", "IDLE FOR", "NEXT"]
    if output == "wide":
        columns += ["POLICY", "WHY"]
    show.table(columns, [_idle_row(finding, look.plan.at)[: len(columns)] for finding in shown], styled="VERDICT")


def _idle_row(finding: decision.Finding, now: float) -> tuple[Any, ...]:
    quiet = "" if finding.idle_since is None else units.humane(now - finding.idle_since)
    models = ", ".join(model.removeprefix("NVIDIA").lstrip(" -") for model in finding.models)
    return (
        finding.workload.ref.namespace, finding.workload.ref.short, finding.gpus, models, _verdict(finding),
        f"{quiet} or more" if finding.at_least and quiet else quiet, _next(finding), finding.rule.name,
        finding.skip_because or finding.because,
    )


def _verdict(finding: decision.Finding) -> str:
    """What stands paused by us holds no GPU that could be judged: people want to see that, not that we cannot tell."""
    return PAUSED if finding.gpus == 0 and pauses.paused_at(finding.workload) is not None else str(finding.verdict)


def _next(finding: decision.Finding) -> str:
    if _verdict(finding) == PAUSED:
        return str(finding.skip_label or "")
    if finding.verdict is not decision.Verdict.idle:
        return str(finding.reason)
    if finding.skip is not None:
        at = f" until {units.clock_time(finding.next_at)} UTC" if finding.next_at else ""
        return f"{finding.skip_label}{at}"
    return finding.next_action or ""


def _explain(target: str, namespace: str | None, output: str, **given: Any) -> None:
    from fallow.doors.cli import hands

    kind, name = hands.read_target(target)
    look, own = _look({**given, "namespace": None})
    namespace = namespace or own
    wanted = [
        index for index, workload in enumerate(look.snapshot.workloads)
        if hands.is_called(workload.ref, kind, name, namespace)
    ]
    if not wanted:
        raise _failure(
            f"no {kind} {name} in namespace {namespace} that holds GPUs or is paused by us: see `fallow idle --all`"
        )
    if len(wanted) > 1:
        raise _failure(hands.say_several(target, [look.snapshot.workloads[index].ref for index in wanted]))
    finding, gpus = look.explain(wanted[0])
    if output in ("json", "yaml"):
        show.data(answers.explanation(finding, gpus, look.patch_of(finding), look.plan.at), output)
        return
    _tell(finding, gpus, look.plan.at)


def _tell(finding: decision.Finding, gpus: list[decision.GpuFinding], now: float) -> None:
    ref, paused = finding.workload.ref, pauses.paused_at(finding.workload)
    show.sentence(f"{ref.short} in {ref.namespace}: {_verdict(finding)} ({finding.reason})")
    show.sentence(f"  because    {finding.because}")
    if finding.idle_since is not None:
        least = "at least " if finding.at_least else ""
        show.sentence(f"  idle       {least}{units.humane(now - finding.idle_since)}, since {units.rfc3339(finding.idle_since)}")
    if paused is not None:
        show.sentence(f"  paused     since {units.rfc3339(paused)}; back with: fallow resume {notify.typed(ref)} -n {ref.namespace}")
    show.sentence(f"  policy     {finding.rule.name}: quiet for {units.humane(finding.window)}, then {finding.rule.action.type}")
    if finding.skip is not None:
        show.sentence(f"  left alone {finding.skip_label}: {finding.skip_because}")
    elif finding.next_action:
        show.sentence(f"  next       {finding.next_action}" + (f" at {units.rfc3339(finding.next_at)}" if finding.next_at else ""))
    chain = " <- ".join(f"{link.kind}/{link.name}" for link in finding.workload.chain)
    show.sentence(f"  owners     Pod <- {chain}" if chain else "  owners     none")
    rows = [
        (gpu.pod, gpu.gpu, gpu.node, str(gpu.verdict), str(gpu.reason), _signals(gpu), gpu.because) for gpu in gpus
    ]
    if rows:
        show.table(["POD", "GPU", "NODE", "VERDICT", "REASON", "SIGNALS", "WHY"], rows, styled="VERDICT")


def _signals(gpu: decision.GpuFinding) -> str:
    return " ".join(f"{name}={values['max']:.3g}" for name, values in gpu.signals.items() if values.get("max") is not None)


status = flags.FlagCommand(
    "status", callback=_status, params=[*_options(), show.output_option], context_settings=flags.CONTEXT,
    help="The cluster in numbers: how many GPUs are active, idle, or cannot be told; what is paused; what could not be seen.",
)
idle = flags.FlagCommand(
    "idle", callback=_idle, context_settings=flags.CONTEXT,
    params=[*_options(), click.Option(["-A", "--all", "everything"], is_flag=True, help="Also those not idle."), show.output_option],
    help="List idle workloads that hold GPUs: since when, and what comes next, or why they are left alone.",
)
explain = flags.FlagCommand(
    "explain", callback=_explain, context_settings=flags.CONTEXT,
    params=[
        click.Argument(["target"], metavar="KIND/NAME"),
        click.Option(["-n", "--namespace", "namespace"], default=None, help="Namespace of the workload; default: the context's."),
        *_options("--namespace"), show.output_option,
    ],
    help="Say why a workload is, or is not, idle: the verdict, the evidence GPU by GPU, the policy, the next action or why there is none."
    "\n\nKIND is Deployment, or Rollout.argoproj.io where the name alone is not clear.",
)
