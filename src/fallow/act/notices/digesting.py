"""A digest as Slack and mail show it, and as plain text: the same lines in the same order.

In: a Digest, the letterhead. Out: lines; Slack's JSON; a Draft. What comes from the cluster is escaped.
"""

from collections.abc import Iterator
from html import escape

from fallow.act.notices import letter, slack
from fallow.act.notices.facts import Letterhead
from fallow.model.digest import Digest, DigestAck, IdlePlace
from fallow.model.units import many

Section = tuple[str, list[str]]  # a heading and what stands below it
_MOST_ACKS = 10
_LONGEST_LINE = 500  # characters
_NO_BOOKS = "no books are kept: idle counts from the verdict on, at list prices"
_NOT_YET = "not worked out yet: that is done every hour"
_UNSEEN = "not known: the cluster could not be seen when this was made"


def headline(made: Digest) -> str:
    days = f"{made.since[:10]} to {made.until[:10]}"
    held = f"{_hours(made.idle.gpu_hours)} held idle{_cost(made, made.idle)}"
    return f"{made.cluster}, {days}: {held}"


def sections(made: Digest) -> list[Section]:
    top = len(made.workloads)
    no_books = () if made.source == "books" else (_NO_BOOKS,)
    found: list[Section] = [
        ("What was done", list(_tell_counts(made))), ("Given back", [_tell_savings(made)]),
        ("Most idle, by namespace", [_tell_place(made, each) for each in made.namespaces]),
        (f"Most idle, {many(top, 'workload')}", [_tell_place(made, each) for each in made.workloads]),
        ("Kept on purpose", list(_tell_acks(made))),
        ("How well it was seen", [*_tell_health(made), *no_books]),
    ]
    return [(heading, [_tame(line) for line in said]) for heading, said in found]


def _tame(line: str) -> str:
    """One line, and no long one: by an acknowledgement's reason a tenant would write the rest of the digest, or make
    it too long to be taken."""
    shown = line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE - 1]}…"
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in shown)


def write_text(made: Digest) -> str:
    """For a terminal, a log and the plain part of a letter."""
    lines = [headline(made)]
    for heading, said in sections(made):
        lines += ["", heading, *(f"  {line}" for line in said or ["nothing"])]
    return "\n".join(lines)


def write_slack(made: Digest, head: Letterhead) -> slack.Message:
    fields = [
        {"title": heading, "value": slack.escape("\n".join(said or ["nothing"])), "short": False}
        for heading, said in sections(made)
    ]
    link = f"<{head.public_url.rstrip('/')}/|Dashboard>" if head.public_url else ""
    attachment = {
        "color": "#777777", "title": "GPU digest", "fallback": slack.escape(headline(made)), "fields": fields,
        "text": " ".join(filter(None, (slack.escape(headline(made)), link))), "footer": slack.FOOTER,
    }
    return {"text": "", "attachments": [attachment]}


def write_letter(made: Digest, head: Letterhead) -> letter.Draft:
    parts = [f"<p>{escape(headline(made))}</p>"]
    for heading, said in sections(made):
        items = "".join(f"<li>{escape(line)}</li>" for line in said or ["nothing"])
        parts.append(f'<p style="margin:16px 0 4px"><b>{escape(heading)}</b></p><ul style="margin:0">{items}</ul>')
    if head.public_url:
        parts.append(f'<p><a href="{escape(head.public_url)}">Dashboard</a></p>')
    return letter.Draft(f"GPU digest: {headline(made)}", write_text(made), letter.wrap(head, "".join(parts)))


def _tell_counts(made: Digest) -> Iterator[str]:
    counts = made.counts
    if made.savings.mode == "dry-run":
        yield f"{many(counts.would_pause, 'workload')} would have been paused: this is a dry run"
    else:
        notices, undone = many(counts.notices, "notice"), f"{counts.regretted} undone within 15 minutes"
        yield f"{notices}, {many(counts.paused, 'pause')}, {undone}, {many(counts.resumed, 'resume')}"
    if counts.kept or counts.failed:
        yield f"{many(counts.kept, 'acknowledgement')} given, {many(counts.failed, 'act')} failed or refused"


def _tell_savings(made: Digest) -> str:
    saved = made.savings
    if saved.gpu_hours is None:
        return _UNSEEN if made.source == "audit" else _NOT_YET
    given, pauses = _hours(saved.gpu_hours), many(saved.pauses, "pause")
    if saved.mode == "dry-run":
        wrong = f"; {saved.wrong} of them would have been mistakes" if saved.wrong else ""
        return f"{given} would have been, by {pauses}{_tell_worth(made, 'worth')}{wrong}"
    if saved.taken_gpu_hours is None:
        return f"{given} by {pauses}{_tell_worth(made, 'worth')}"
    known = "" if saved.until is None else f" (worked out until {saved.until[11:16]} UTC)"
    taken = f"{known}; {_hours(saved.taken_gpu_hours)} of these were taken by others"
    return f"{given} by {pauses}{taken}{_tell_worth(made, 'saved') if saved.taken_gpu_hours else ''}"


def _tell_worth(made: Digest, word: str) -> str:
    saved = made.savings
    unpriced = f" and {_hours(saved.unpriced_gpu_hours)} without a known price" if saved.unpriced_gpu_hours else ""
    return f", {word} {_money(made, saved.cost)}{unpriced}" if saved.cost is not None else ""


def _tell_place(made: Digest, place: IdlePlace) -> str:
    where = place.namespace if place.name is None else f"{place.namespace}: {place.kind}/{place.name}"
    kept = f", {_hours(place.kept_gpu_hours)} of these kept" if place.kept_gpu_hours else ""
    return f"{where}, {_hours(place.gpu_hours)}{_cost(made, place)}{kept}"


def _tell_acks(made: Digest) -> Iterator[str]:
    if made.acks is None:
        yield _UNSEEN
        return
    yield from (_tell_ack(made, each) for each in made.acks[:_MOST_ACKS])
    if (rest := len(made.acks) - _MOST_ACKS) > 0:
        yield f"and {many(rest, 'more acknowledgement')}"


def _tell_ack(made: Digest, ack: DigestAck) -> str:
    why = f": {ack.reason}" if ack.reason else ""
    spent = f"{_hours(ack.gpu_hours)} idle{f' ({_money(made, ack.cost)})' if ack.cost is not None else ''}"
    return f"{ack.namespace}: {ack.kind}/{ack.name}, {spent}, until {ack.until} by {ack.by}{why}"


def _tell_health(made: Digest) -> Iterator[str]:
    health = made.health
    known = "nothing is known of it" if health.known_share is None else f"{health.known_share:.0%} of it could be told"
    yield f"{health.seen_share:.0%} of the time was seen, and {known}"
    if health.no_decision:
        yield f"{many(health.no_decision, 'time')} no decision was possible"
    if health.trouble:
        yield f"now: {health.trouble}"


def _hours(hours: float) -> str:
    return f"{hours:,.1f} GPU-hours"


def _money(made: Digest, amount: float | None) -> str:
    return f"{amount:,.2f} {made.currency}" if amount is not None else ""


def _cost(made: Digest, place: IdlePlace) -> str:
    if place.cost is None:
        return ""
    unpriced = f", {_hours(place.unpriced_gpu_hours)} have no price" if place.unpriced_gpu_hours else ""
    return f" ({_money(made, place.cost)}{unpriced})"
