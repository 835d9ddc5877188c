"""Messages as Slack shows them: the old form as gpu-pruner's documents print it, and blocks below it.

In: NoticeFacts. Out: Slack's JSON. What comes from the cluster is escaped, so that nobody's name mentions a channel.
Invariant: no button stands there twice. By a webhook those that do something are in the old form, as its contract has
it; by a bot they are blocks. "Why", which only opens the page, is a block always: the old form has no links.
"""

from collections.abc import Sequence
from typing import Any

from fallow.act.notices.facts import NoticeFacts
from fallow.model import units

CALLBACK = "ack_idle_gpu"
WHY = "why"  # the id of the button that only opens the page
FOOTER = "gpu-pruner"
Message = dict[str, Any]


def escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def notice(facts: NoticeFacts, mentions: Sequence[str], *, by_bot: bool = False) -> Message:
    ref, reason = facts.ref, _idle_minutes(facts)
    fields = [
        _field("Resource", f"`{ref.kind}: {escape(ref.name)}`"), _field("Namespace", escape(ref.namespace)),
        _field("Reason", reason), _field("Action", _deadline(facts)), _field("GPUs", escape(facts.holds)),
        *([_field("Cost per day", facts.per_day)] if facts.per_day else []),
        _field("Details", _details(facts), short=False),
    ]
    actions = [
        _button("ack", f"Keep {offer.hours}h", f"{ref.kind}:{ref.namespace}:{ref.name}:{offer.hours}")
        for offer in facts.offers
    ]
    made = _message(facts, mentions, "Idle GPU Detected", "warning", fields, fallback=facts.headline)
    return _with_buttons(made, facts, actions, by_bot=by_bot)


def paused(facts: NoticeFacts, what: str, mentions: Sequence[str], *, by_bot: bool = False) -> Message:
    ref = facts.ref
    resume = _button("resume", "Resume", f"{ref.kind}:{ref.namespace}:{ref.name}:resume")
    what = f"{what} `{facts.resume_command}`" if facts.resume_command not in what else what
    fields = [_field("Details", escape(what), short=False)]
    made = _message(facts, mentions, "Paused", "#9DB3D2", fields, fallback=what)
    return _with_buttons(made, facts, [resume], by_bot=by_bot)


def kept(said: str, *, by: str) -> Message:
    """In place of the notice, once a button was pressed."""
    attachment = {"color": "good", "title": escape(said), "text": f"by {escape(by)}", "footer": FOOTER}
    return {"replace_original": True, "text": "", "attachments": [attachment]}


def bundle(several: Sequence[NoticeFacts], mentions: Sequence[str]) -> Message:
    """One message instead of many. Every workload is named: who is not named was not told."""
    first, gpus = several[0], sum(facts.finding.gpus for facts in several)
    rows = sorted(several, key=lambda facts: (facts.ref.namespace, facts.ref.name))
    link = f" <{first.head.public_url.rstrip('/')}/workloads|All of them>" if first.head.public_url else ""
    headline = f"{len(several)} workloads are idle"
    made = _message(first, mentions, headline, "#777777", [], fallback=headline)
    keep = f"Keep one: `{escape(first.keep_command)}`"
    made["attachments"][0]["text"] = "\n".join([f"{gpus} GPUs.{link}", *map(_line, rows), keep])
    return made


def _line(facts: NoticeFacts) -> str:
    when = "" if facts.pauses_at is None else f", pause at {units.clock_time(facts.pauses_at)} UTC at the earliest"
    return escape(f"• {facts.ref.namespace}: {facts.ref.kind}/{facts.ref.name}, {facts.holds}{when}")


def _idle_minutes(facts: NoticeFacts) -> str:
    if facts.idle_for is None:
        return escape(facts.finding.because)
    minutes = int(facts.idle_for // units.MINUTE)  # whole ones, as the headline counts them
    return f"GPU idle for {'at least ' if facts.finding.at_least else ''}{units.many(minutes, 'minute')}"


def _deadline(facts: NoticeFacts) -> str:
    if facts.pauses_at is None:
        return facts.upcoming
    left = max(0.0, facts.pauses_at - facts.now)
    amount = f"{left:.0f} seconds" if left < units.MINUTE else f"{left / units.MINUTE:.0f} minutes"
    return f"You have {amount} to acknowledge before scale-down"


def _details(facts: NoticeFacts) -> str:
    link = f" <{facts.page}|Evidence>" if facts.page else ""
    notes = "".join(f"\n{escape(note)}" for note in facts.notes)
    return f"{escape(facts.headline)} A pause {facts.pause}.{link}\n`{escape(facts.keep_command)}`{notes}"


def _field(title: str, value: str, *, short: bool = True) -> Message:
    return {"title": title, "value": value, "short": short}


def _button(name: str, text: str, value: str) -> Message:
    return {"type": "button", "name": name, "text": text, "value": value}


def _with_buttons(message: Message, facts: NoticeFacts, actions: list[Message], *, by_bot: bool) -> Message:
    """None where nobody listens: who pressed one would believe that something came of it."""
    if not facts.head.has_buttons:
        return message
    [old] = message["attachments"]
    blocks = [_block(each) for each in actions] if by_bot else []
    if facts.page:
        blocks.append({"type": "button", "action_id": WHY, "text": _plain_text("Why"), "url": facts.page})
    below = [{"color": old["color"], "blocks": [{"type": "actions", "elements": blocks}]}] if blocks else []
    return {**message, "attachments": [{**old, "actions": [] if by_bot else actions}, *below]}


def _block(button: Message) -> Message:
    """The same as a block: there it has an id, which no other in the message has."""
    last = button["value"].rpartition(":")[2]
    number = f"_{last}" if last.isdigit() else ""
    return {
        "type": "button", "action_id": f"{button['name']}{number}", "text": _plain_text(button["text"]),
        "value": button["value"],
    }


def _plain_text(text: str) -> Message:
    return {"type": "plain_text", "text": text}


def _message(
    facts: NoticeFacts, mentions: Sequence[str], title: str, color: str, fields: list[Message], *, fallback: str
) -> Message:
    attachment = {
        "callback_id": CALLBACK, "color": color, "title": title, "fallback": escape(fallback), "fields": fields,
        "actions": [], "footer": FOOTER, "ts": int(facts.now),
    }
    return {"text": " ".join(mentions), "attachments": [attachment]}
