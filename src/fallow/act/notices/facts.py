"""What a message about one workload says, worded once: the same sentences in mail, Slack, Teams and on the page.

In: a finding and the instant. Out: NoticeFacts, plain text without markup; each channel lays it out and escapes it.
Invariant: what was measured comes first, then what happens, then how to stop it or bring it back. Money only where a
price is known.
"""

from urllib import parse

import msgspec

from fallow.act.notices import text
from fallow.model import cluster, decision, kinds, units
from fallow.model.policies import idle
from fallow.model.units import DAY, HOUR, Instant, Seconds


class Letterhead(msgspec.Struct, frozen=True):
    """Where messages come from: the cluster's name, and the dashboard's address, where there are such."""

    cluster_name: str = ""
    public_url: str = ""
    currency: str = "USD"
    has_buttons: bool = False  # somebody listens when one is pressed in Slack

    def money(self, amount: float) -> str:
        sign = "$" if self.currency == "USD" else ""
        return f"{sign}{amount:,.2f}{'' if sign else f' {self.currency}'}"

    def page_of(self, ref: cluster.Ref) -> str | None:
        if not self.public_url:
            return None
        path = "/".join(parse.quote(part, safe="") for part in (ref.namespace, ref.kind, ref.name))
        return f"{self.public_url.rstrip('/')}/w/{path}"


class KeepOffer(msgspec.Struct, frozen=True):
    """One button: so many hours, until when, and what that costs if it stays idle."""

    hours: int
    until: Instant
    cost: float | None


class NoticeFacts(msgspec.Struct, frozen=True, kw_only=True):
    finding: decision.Finding
    head: Letterhead
    now: Instant
    idle_for: Seconds | None
    headline: str  # what was measured
    upcoming: str  # what happens, when
    pauses_at: Instant | None
    holds: str  # "4 × A100-80GB"
    per_hour: float | None
    offers: tuple[KeepOffer, ...]
    measured: str
    pause: str  # what one does
    keep_command: str
    resume_command: str
    page: str | None
    notes: tuple[str, ...]  # what its owner should know before
    proof: decision.Proof  # for programs

    @property
    def ref(self) -> cluster.Ref:
        return self.finding.workload.ref

    def money(self, amount: float | None) -> str | None:
        return None if amount is None else self.head.money(amount)

    @property
    def per_day(self) -> str | None:
        return self.money(None if self.per_hour is None else self.per_hour * DAY / HOUR)


def gather(
    finding: decision.Finding, now: Instant, *, head: Letterhead, pauses_at: Instant | None = None,
    per_hour: float | None = None, kept_for: float | None = None, proof: decision.Proof = decision.UNPROVEN,
) -> NoticeFacts:
    """`kept_for`: what its last acknowledgement has cost."""
    ref, kind = finding.workload.ref, kinds.of(finding.workload)
    idle_for = None if finding.idle_since is None else now - finding.idle_since
    typed = f"{kinds.typed(ref)} -n {ref.namespace}"
    return NoticeFacts(
        finding=finding, head=head, now=now, idle_for=idle_for, headline=_headline(finding, idle_for),
        upcoming=_upcoming(pauses_at, kind, now), pauses_at=pauses_at, holds=_holds(finding), per_hour=per_hour,
        offers=tuple(_offer(hours, now, per_hour) for hours in offered_hours(finding.rule.consent)),
        measured=_measured(finding), pause=_pause(kind), keep_command=f"fallow ack {typed}",
        resume_command=f"fallow resume {typed}", page=head.page_of(ref),
        proof=proof,
        notes=(
            *(text.warnings(finding.workload, kind, finding.rule) if kind else ()),
            *([] if kept_for is None else [f"Its last acknowledgement has cost {head.money(kept_for)}."]),
        ),
    )


def offered_hours(consent: idle.Consent) -> tuple[int, ...]:
    """The hours on the buttons: those of the policy that its cap allows, or the cap itself."""
    allowed = tuple(hours for hours in consent.buttons if hours * HOUR <= consent.max_ack)
    return allowed or tuple(hours for hours in (int(consent.max_ack // HOUR),) if hours)


def _offer(hours: int, now: Instant, per_hour: float | None) -> KeepOffer:
    return KeepOffer(hours, now + hours * HOUR, None if per_hour is None else per_hour * hours)


def _headline(finding: decision.Finding, idle_for: Seconds | None) -> str:
    name, gpus = finding.workload.ref.name, finding.gpus
    where = "its GPU" if gpus == 1 else f"any of its {gpus} GPUs"
    if finding.verdict is not decision.Verdict.idle or idle_for is None:
        return f"{name}: {finding.because}."
    span = f"{'at least ' if finding.at_least else ''}{units.spoken(idle_for)}"
    never = f"{name} has not worked on {where} since it started, {span} ago."
    return never if finding.never_used else f"{name} has done no work for {span} on {where}."


def _upcoming(pauses_at: Instant | None, kind: kinds.Kind | None, now: Instant) -> str:
    if pauses_at is None or kind is None:
        return "Nothing will be done to it."
    wait = f", in {units.spoken(pauses_at - now)}," if pauses_at > now else ""
    return f"It will be {kind.verb} at {units.clock_time(pauses_at)} UTC at the earliest{wait} unless you keep it."


def _holds(finding: decision.Finding) -> str:
    return f"{finding.gpus} × {' or '.join(finding.models) or 'GPU'}"


def _measured(finding: decision.Finding) -> str:
    since = "" if finding.idle_since is None else f" since {units.clock_time(finding.idle_since)} UTC"
    covered = "" if finding.coverage is None else f", {finding.coverage:.0%} of the last "
    window = f"{units.spoken(finding.window)} covered" if covered else ""
    return f"below {finding.rule.activity:.0%}{since}{covered}{window}"


def _pause(kind: kinds.Kind | None) -> str:
    verbs = {"scaled to 0": "sets its replicas to 0", "suspended": "suspends it", "stopped": "stops it"}
    return f"{verbs[kind.verb]}; nothing is deleted" if kind else "is not possible"
