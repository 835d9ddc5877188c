"""The verbs with which people act: `pause`, `resume`, `ack`, `unack`, `acks`, `freeze`, `unfreeze`. They need only a kubeconfig.

Who acts is the user of the kubeconfig; the API server decides what they may do. Nothing here needs Prometheus or the daemon.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import click
import msgspec

from fallow import logs, names, settings
from fallow.act import hands as doing
from fallow.act import workloads
from fallow.clients import errors
from fallow.clients.kubernetes import api as kube
from fallow.clients.kubernetes import config, lease
from fallow.decide.idle import plan as brain
from fallow.doors import answers
from fallow.doors.cli import flags, show
from fallow.model import cluster, decision, marks, units
from fallow.model.policies import idle
from fallow.observe.cluster import mirror

MAX_ACK_HOURS = 168
MAX_FREEZE = 366 * units.DAY  # longer is a slip of the finger: whoever wants that stops the daemon


# ---- naming a workload ----------------------------------------------------------------------------------------------------------


def read_target(text: str) -> tuple[str, str]:
    """`Deployment/llm` or `Rollout.argoproj.io/llm`."""
    kind, slash, name = text.partition("/")
    if not slash or not kind or not name:
        raise click.UsageError(f"{text!r} is not of the form KIND/NAME, such as Deployment/llm or Rollout.argoproj.io/llm")
    return kind, name


def is_called(ref: cluster.Ref, kind: str, name: str, namespace: str) -> bool:
    """Does `kind` (any case, with or without group) and `name` mean this object?"""
    spelled = {ref.kind.lower(), f"{ref.kind}.{ref.group}".lower()}
    return ref.namespace == namespace and ref.name == name and kind.lower() in spelled


def say_several(target: str, refs: list[cluster.Ref]) -> str:
    return f"{target} is not clear, say which: {', '.join(f'{ref.kind}.{ref.group}/{ref.name}' for ref in refs)}"


class Reach(msgspec.Struct, frozen=True):
    """What a verb works with: the cluster's objects in one namespace, and hands."""

    api: kube.Api
    mirror: mirror.Mirror
    hands: doing.Hands
    namespace: str
    by: str


@contextlib.asynccontextmanager
async def _reach(kubeconfig: str | None, context: str | None, namespace: str | None, *, dry_run: bool) -> AsyncIterator[Reach]:
    access = config.load_access(kubeconfig=kubeconfig, context=context, environment=settings.environment())
    place = namespace or access.namespace or "default"
    async with kube.Api(access) as api, mirror.Mirror(api, watch_namespaces=[place]) as seen:
        await seen.list_all(time.time())
        hands = doing.Hands(api, seen.find_resource, reporting_instance=names.FIELD_MANAGER, dry_run="server" if dry_run else None)
        yield Reach(api, seen, hands, place, f"user:{await api.who_am_i() or 'unknown'}")


def _find(reach: Reach, target: str) -> cluster.Workload:
    kind, name = read_target(target)
    found = [workload for workload in reach.mirror.workloads({}) if is_called(workload.ref, kind, name, reach.namespace)]
    if not found:
        unseen = "".join(f"; not seen: {missing.what}: {missing.because}" for missing in reach.mirror.missing)
        raise click.ClickException(
            f"no {kind} {name} in namespace {reach.namespace} that holds GPUs or is paused by fallow{show.plain(unseen)}"
        )
    if len(found) > 1:
        raise click.ClickException(say_several(target, [workload.ref for workload in found]))
    return found[0]


# ---- running a verb -------------------------------------------------------------------------------------------------------------


def _do(act: Callable[[Reach], Awaitable[list[decision.Outcome]]], given: dict[str, Any]) -> None:
    """Runs `act`, shows its outcomes, and ends with 1 if what was asked for is not so."""
    logs.set_up("default", "warning")
    output, dry_run = given["output"], given.get("dry_run", False)

    async def run() -> list[decision.Outcome]:
        async with _reach(given["kubeconfig"], given["context"], given["namespace"], dry_run=dry_run) as reach:
            return await act(reach)

    outcomes = _wait_for(run())
    if output in ("json", "yaml"):
        show.data([_answer(outcome) for outcome in outcomes], output)
    else:
        for outcome in outcomes:
            show.sentence(outcome.detail)
    if not all(_is_so(outcome) for outcome in outcomes):
        raise SystemExit(flags.EXIT_NO_DECISION)


def _is_so(outcome: decision.Outcome) -> bool:
    """Is it now as was asked? What was so already (AlreadyPaused, AlreadyRunning) counts; what kept changing under us does not."""
    if outcome.status is decision.Status.overtaken:
        return outcome.code in (decision.Code.AlreadyPaused, decision.Code.AlreadyRunning)
    return outcome.status in (decision.Status.done, decision.Status.dry_run)


def _wait_for(work: Any) -> Any:
    try:
        return asyncio.run(work)
    except errors.Misconfigured as problem:
        raise click.UsageError(show.plain(problem)) from None
    except (errors.ClientError, workloads.CannotWrite) as problem:
        raise click.ClickException(show.plain(problem)) from None


def _answer(outcome: decision.Outcome) -> dict[str, Any]:
    return {"status": str(outcome.status), "at": answers.instant(outcome.at), "detail": outcome.detail, "after": outcome.after}


def _options(*more: click.Parameter, target: bool = True, dry_run: bool = False) -> list[click.Parameter]:
    params: list[click.Parameter] = [click.Argument(["target"], metavar="KIND/NAME")] if target else []
    params += [
        *more,
        click.Option(["-n", "--namespace"], default=None, help="Namespace; default: the context's."),
        click.Option(["--kubeconfig"], default=None, metavar="FILE", help="Kubeconfig file."),
        click.Option(["--context"], default=None, metavar="NAME", help="Context of the kubeconfig."),
        show.output_option,
    ]
    if dry_run:
        params.append(click.Option(["--dry-run"], is_flag=True, help="Let the API server check it; change nothing."))
    return params


def _pause(target: str, reason: str, force: bool, **given: Any) -> None:
    async def act(reach: Reach) -> list[decision.Outcome]:
        now, workload = time.time(), _find(reach, target)
        pods = tuple(reach.mirror.pods[index] for index in workload.pods)
        namespace = reach.mirror.namespaces.get(reach.namespace)
        if not force and (found := brain.find_exemption(workload, pods, namespace, now)):
            raise click.ClickException(f"{workload.ref.short} is {found.because}; --force pauses it all the same")
        finding = decision.Finding(
            workload=workload, verdict=decision.Verdict.unknown, reason=decision.Reason.NoGpuPods,
            because=f"{reason} ({reach.by})", rule=idle.Rule(name="by hand"),
            gpus=sum(pod.gpu_count or 0 for pod in pods), idle_gpus=0, models=(), window=0.0,
        )
        try:
            return [await reach.hands.pause(decision.Pause(finding, reason), workload, pods, now, by=reach.by)]
        except errors.Conflict:
            raise click.ClickException(f"{workload.ref.short} changed at this very moment; look again and repeat the command") from None

    _do(act, given)


def _resume(target: str, replicas: int | None, **given: Any) -> None:
    async def act(reach: Reach) -> list[decision.Outcome]:
        workload = _find(reach, target)
        return [await reach.hands.resume(decision.Resume(workload, reach.by, "asked for by hand"), time.time(), replicas=replicas)]

    _do(act, given)


def _ack(target: str, hours: float | None, until: str | None, reason: str, **given: Any) -> None:
    now = time.time()
    end = _read_end(hours, until, now)

    async def act(reach: Reach) -> list[decision.Outcome]:
        return [await reach.hands.acknowledge(_find(reach, target), until=end, by=reach.by, reason=reason, now=now)]

    _do(act, given)


def _read_end(hours: float | None, until: str | None, now: float) -> float:
    if (hours is None) == (until is None):
        raise click.UsageError("say either --hours or --until")
    try:
        end = now + hours * units.HOUR if hours is not None else units.parse_instant(until or "")
    except ValueError as problem:
        raise click.UsageError(f"--until: {problem}") from None
    if not now < end <= now + MAX_ACK_HOURS * units.HOUR:
        raise click.UsageError(f"an acknowledgement ends in the future, and at most {MAX_ACK_HOURS} hours ahead")
    return end


def _unack(target: str, **given: Any) -> None:
    async def act(reach: Reach) -> list[decision.Outcome]:
        workload = _find(reach, target)
        outcomes = await reach.hands.unacknowledge(workload, by=reach.by, now=time.time())
        if not outcomes:
            raise click.ClickException(f"{workload.ref.short} is not acknowledged")
        return outcomes

    _do(act, given)


def _acks(**given: Any) -> None:
    logs.set_up("default", "warning")

    async def read() -> list[dict[str, Any]]:
        async with _reach(given["kubeconfig"], given["context"], given["namespace"], dry_run=True) as reach:
            return [found for workload in reach.mirror.workloads({}) if (found := _ack_of(workload)) is not None]

    rows = _wait_for(read())
    if given["output"] in ("json", "yaml"):
        show.data(rows, given["output"])
    elif not rows:
        show.sentence("nothing is acknowledged here")
    else:
        columns = {"namespace": "NAMESPACE", "workload": "WORKLOAD", "until": "UNTIL", "by": "BY", "reason": "REASON GIVEN"}
        show.table(list(columns.values()), [[row[key] or "" for key in columns] for row in rows])


def _ack_of(workload: cluster.Workload) -> dict[str, Any] | None:
    said = {**workload.annotations, **workload.marks}
    until = marks.ack_until(said)
    if until is None:
        return None
    by = said.get(names.ACK_BY) or said.get(names.ACK_BY_ALIAS)
    return {
        "namespace": workload.ref.namespace, "workload": workload.ref.short, "until": until, "by": by, "reason": said.get(names.ACK_REASON),
    }


# ---- freezing -------------------------------------------------------------------------------------------------------------------


def _annotate_lease(until: str | None, because: str | None, given: dict[str, Any]) -> None:
    """Freezes until then, in the name of whoever the API server says we are; None ends a freeze."""
    environ = settings.environment()

    async def annotate() -> None:
        access = config.load_access(kubeconfig=given["kubeconfig"], context=given["context"], environment=environ)
        place = given["namespace"] or environ.get("POD_NAMESPACE") or access.namespace or "default"
        async with kube.Api(access) as api:
            leadership = lease.Leadership(
                api, namespace=place, name=names.LEASE, identity=names.FIELD_MANAGER, utcnow=lambda: datetime.now(UTC)
            )
            by = f" (user:{await api.who_am_i() or 'unknown'})"
            await leadership.annotate({names.FROZEN_UNTIL: until, names.FROZEN_BECAUSE: because and because + by})

    _wait_for(annotate())


def _freeze(duration: str, reason: str, **given: Any) -> None:
    try:
        seconds = units.parse_duration(duration)
    except ValueError as problem:
        raise click.UsageError(f"--for: {problem}") from None
    if not 0 < seconds <= MAX_FREEZE:
        raise click.UsageError(f"--for: a freeze lasts more than nothing and at most {units.humane(MAX_FREEZE)}")
    until = units.rfc3339(time.time() + seconds)
    _annotate_lease(until, reason, given)
    show.sentence(f"frozen until {until}: nothing is paused until then; resuming works")


def _unfreeze(**given: Any) -> None:
    _annotate_lease(None, None, given)
    show.sentence("no longer frozen")


def _command(name: str, callback: Callable[..., None], params: list[click.Parameter], help_text: str) -> click.Command:
    return click.Command(name, callback=callback, params=params, help=help_text, context_settings=flags.CONTEXT)


reason_option = click.Option(["--reason"], default="by hand", show_default=True, help="Why, for the others who read it.")
pause = _command("pause", _pause, _options(
    reason_option, click.Option(["--force"], is_flag=True, help="Although it is acknowledged or opted out."), dry_run=True,
), "Pause a workload now, whether idle or not. The way back is written in the same request: fallow resume KIND/NAME.")
resume = _command("resume", _resume, _options(
    click.Option(["--replicas"], type=click.IntRange(1), default=None, help="Bring back so many, where the record of the size is lost."),
    dry_run=True,
), "Bring a paused workload back as it was. Needs a kubeconfig and nothing else.")
ack = _command("ack", _ack, _options(
    click.Option(["--hours"], type=click.FloatRange(0, MAX_ACK_HOURS, min_open=True), default=None, help="Keep it for so many hours."),
    click.Option(["--until"], default=None, metavar="TIME", help="Keep it until then, e.g. 2026-11-20T18:00:00Z."), reason_option,
), "Keep a workload although it is idle: it is not paused until the acknowledgement ends.")
unack = _command("unack", _unack, _options(), "End an acknowledgement. If the workload is idle, its owner is told again first.")
acks = _command("acks", _acks, _options(target=False), "List acknowledgements in a namespace.")
freeze = _command("freeze", _freeze, _options(
    click.Option(["--for", "duration"], default="2h", show_default=True, metavar="DURATION", help="How long, e.g. 30m, 2h, 1d."),
    reason_option, target=False,
), "Pause nothing for a while, anywhere. -n is the namespace of the daemon's Lease. Resuming always works.")
unfreeze = _command("unfreeze", _unfreeze, _options(target=False), "End a freeze. -n is the namespace of the daemon's Lease.")
