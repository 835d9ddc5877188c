"""Messages as mail: plain text and HTML with the same words. Tables and text only, nothing fetched from anywhere.

In: NoticeFacts. Out: subject, text, HTML. Links open the page with a time chosen; the press there is the act, for
scanners of mail follow every link.
"""

from collections.abc import Sequence
from html import escape

import msgspec

from fallow import names
from fallow.act.notices.facts import Letterhead, NoticeFacts
from fallow.model import units

_INK, _FAINT, _RULE, _STRAW, _GREEN, _GOLD = "#20241C", "#626859", "#DDD9CA", "#F7E8C1", "#1F4D37", "#E2B04A"
_FONT = "font-family:Helvetica,Arial,sans-serif;font-size:14px;line-height:20px"


class Draft(msgspec.Struct, frozen=True):
    subject: str
    text: str
    html: str


def notice(facts: NoticeFacts) -> Draft:
    when = f", pause at {units.clock_time(facts.pauses_at)} UTC" if facts.pauses_at is not None else ""
    span = "idle" if facts.idle_for is None else f"no work for {units.spoken(facts.idle_for)}"
    subject = f"{facts.ref.name}: {span}{when}"
    back = "To bring it back".replace(" ", "\N{NO-BREAK SPACE}")
    way = (back, "one press on the same page" if facts.page else facts.resume_command)
    rows = table([*_facts_of(facts), way, *_notes_of(facts)])
    html = f"{_lead(facts)}{_buttons(facts)}{rows}{_code(facts.keep_command)}{_foot()}"
    return Draft(subject, _plain(facts), wrap(facts.head, html))


def paused(facts: NoticeFacts, what: str) -> Draft:
    subject = f"{facts.ref.name} is paused"
    back = f"Bring it back: {facts.resume_command}"
    link = f'<p><a href="{escape(facts.page)}">Bring it back</a></p>' if facts.page else ""
    body = f'<p style="margin:0 0 16px">{escape(what)}</p>{link}{_code(facts.resume_command)}'
    return Draft(subject, f"{what}\n\n  {back}\n", wrap(facts.head, body))


def bundle(several: Sequence[NoticeFacts]) -> Draft:
    gpus = sum(facts.finding.gpus for facts in several)
    subject = f"{len(several)} workloads are idle, {gpus} GPUs"
    lines = [f"  {facts.ref.namespace}/{facts.ref.name}: {facts.headline} {facts.upcoming}" for facts in several]
    rows = "".join(
        _row(f"{facts.ref.namespace}/{facts.ref.name}", f"{facts.headline} {facts.upcoming}") for facts in several
    )
    keep = f"\nKeep one: {several[0].keep_command}\n"
    return Draft(subject, "\n".join([f"{subject}.", "", *lines, keep]), wrap(several[0].head, _table(rows)))


def _facts_of(facts: NoticeFacts) -> list[tuple[str, str]]:
    ref = facts.ref
    where = f"{ref.kind} {ref.name} in {ref.namespace}"
    price = "" if facts.per_hour is None else f", {facts.money(facts.per_hour)} an hour"
    if facts.per_hour is not None and facts.idle_for is not None:
        price += f", {facts.money(facts.per_hour * facts.idle_for / units.HOUR)} so far"
    return [
        ("Where", where + (f", cluster {facts.head.cluster_name}" if facts.head.cluster_name else "")),
        ("Holds", f"{facts.holds}{price}"), ("Measured", facts.measured), ("A pause", facts.pause),
    ]


def _notes_of(facts: NoticeFacts) -> list[tuple[str, str]]:
    return [("Note", note) for note in facts.notes]


def _plain(facts: NoticeFacts) -> str:
    keep = [f"{facts.page}?keep={facts.offers[0].hours}h"] if facts.page and facts.offers else []
    ways = [("Keep it", way) for way in (*keep, facts.keep_command)]
    back = [("Let it be", "nothing to do"), ("Back", facts.resume_command)]
    known = [*_facts_of(facts), *_notes_of(facts)]
    lines = [facts.headline, facts.upcoming, ""]
    lines += (f"  {label:<10} {said}" for label, said in (*ways, *back))
    return "\n".join([*lines, "", *(f"  {label:<10} {said}" for label, said in known), ""])


def _lead(facts: NoticeFacts) -> str:
    """What was measured is marked, and when it ends is bold."""
    measured = "" if facts.idle_for is None else escape(f"no work for {units.spoken(facts.idle_for)}")
    headline, upcoming = escape(facts.headline), escape(facts.upcoming)
    marked = measured if measured and measured in headline else headline
    headline = headline.replace(marked, f'<span style="background:{_STRAW}">{marked}</span>', 1)
    if facts.pauses_at is not None:
        when = f"{units.clock_time(facts.pauses_at)} UTC"
        upcoming = upcoming.replace(when, f"<b>{when}</b>", 1)
    return f'<p style="margin:0 0 16px;font:22px/30px Georgia,serif;color:{_INK}">{headline} {upcoming}</p>'


def _buttons(facts: NoticeFacts) -> str:
    if not facts.page:
        return ""
    cells = "".join(_button(facts, index) for index in range(len(facts.offers)))
    note = "Opens the page and asks once more. Doing nothing lets it rest."
    return f'<table role="presentation" cellpadding="0" cellspacing="0"><tr>{cells}</tr></table>' \
           f'<p style="color:{_FAINT};font-size:13px;margin:8px 0 16px">{note} ' \
           f'<a href="{escape(facts.page)}" style="color:{_GREEN}">See the evidence</a></p>'


def _button(facts: NoticeFacts, index: int) -> str:
    offer = facts.offers[index]
    cost = facts.money(offer.cost)
    look = f"background:{_GREEN};color:#FDFCF8" if index == 0 else f"color:{_INK};border:1px solid {_GREEN}"
    small = f'<br><span style="font-size:12px">{escape(cost)} if idle</span>' if cost else ""
    link = escape(f"{facts.page}?keep={offer.hours}h")
    style = f"display:block;padding:10px 18px;border-radius:5px;text-decoration:none;{look}"
    return f'<td style="padding-right:8px"><a href="{link}" style="{style}"><b>Keep {offer.hours} h</b>{small}</a></td>'


def _table(rows: str) -> str:
    return f'<table cellpadding="0" cellspacing="0" style="border-top:1px solid {_RULE};margin-top:16px">{rows}</table>'


def _row(label: str, said: str) -> str:
    return f'<tr><td style="padding:5px 16px 5px 0;color:{_FAINT};vertical-align:top">{escape(label)}</td>' \
           f'<td style="padding:5px 0">{escape(said)}</td></tr>'


def table(rows: Sequence[tuple[str, str]]) -> str:
    return _table("".join(_row(label, said) for label, said in rows))


def _code(command: str) -> str:
    look = "background:#F6F4EC;border-radius:5px;padding:8px 12px;margin:16px 0 0;font-size:13px;white-space:pre-wrap"
    return f'<pre style="{look}">{escape(command)}</pre>'


def _foot() -> str:
    said = f"One mail per idle time, and one more if it is paused. The annotation {names.NOTIFY} says who is told."
    return f'<p style="color:{_FAINT};font-size:12px;margin:16px 0 0">{said}</p>'


def wrap(head: Letterhead, body: str) -> str:
    name = f"fallow{f' · {escape(head.cluster_name)}' if head.cluster_name else ''}"
    squares = "".join(f'<span style="color:{colour}">&#9632;</span>' for colour in (_GREEN, _GOLD))
    top = f'<p style="color:{_FAINT};margin:0 0 12px">{squares} {name}</p>'
    return f'<!doctype html><html lang="en"><body style="margin:0;background:#ECE9DD;padding:24px 0">' \
           f'<table role="presentation" width="600" align="center" cellpadding="0" cellspacing="0" ' \
           f'style="background:#FFFFFF;{_FONT};color:{_INK}"><tr><td style="padding:28px">{top}{body}</td></tr>' \
           "</table></body></html>"
