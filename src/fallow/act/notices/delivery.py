"""Telling an owner, through the channels of the rule; what was delivered, and only that, is then written on the object.

In: a decision to warn. Out: an Outcome that names every channel that failed. So far Events are the one channel.
Invariant: a notice that was not delivered leaves no mark, so that no grace begins that nobody was told of.
"""

from collections.abc import Callable

from fallow import names
from fallow.act import events, marking, sending
from fallow.act.notices import text
from fallow.clients import errors
from fallow.model import decision, kinds
from fallow.model.decision import Outcome, Status
from fallow.model.policies import idle
from fallow.model.units import Instant


async def warn(
    writer: sending.PatchWriter, announcer: events.Announcer, warn: decision.Warn, now: Instant, *,
    clock: Callable[[], Instant], compat: bool,
) -> Outcome:
    """`now`: of the cycle. The grace begins when the notice was delivered, which may be minutes later: `clock`."""
    workload = warn.finding.workload
    if writer.is_dry:
        return Outcome(warn, Status.dry_run, now, f"would tell the owner of {workload.ref}")
    note = text.notice_note(warn, kinds.of(workload), now)
    tried = [await _deliver(announcer, warn, channel, note, now) for channel in warn.channels]
    failures = [failure for failure in tried if failure]
    if len(failures) == len(warn.channels) or (failures and warn.finding.rule.notice.require_all):
        because = "the notice was not delivered: " + ("; ".join(failures) or "no channel is configured")
        await announcer.announce(workload.ref, names.Event.NOTICE_FAILED, because, now)
        return Outcome(warn, Status.failed, now, because)
    changes = marking.with_aliases(marking.notice_changes(warn, clock()), compat)
    await writer.send(sending.annotate(workload.marks_ref, changes, resource_version=workload.marks_version))
    return Outcome(warn, Status.done, now, "; ".join([note, *failures]), after=changes)


async def _deliver(
    announcer: events.Announcer, warn: decision.Warn, channel: idle.Channel, note: str, now: Instant
) -> str | None:
    """None, or why not."""
    if channel.type != "event":
        return f"channel type {channel.type} is not available yet"
    try:
        await announcer.publish(warn.finding.workload.ref, names.Event.NOTICE_SENT, note, now)
    except errors.ClientError as problem:
        return f"channel {channel.name}: {problem}"
    return None
