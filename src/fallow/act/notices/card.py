"""Messages as Teams shows them: the body and actions of an adaptive card. In: NoticeFacts. Out: elements of the card.

Plain text blocks: Teams reads a little Markdown in them, so what comes from the cluster loses what would mark it up.
"""

from collections.abc import Sequence
from typing import Any

from fallow.act.notices.facts import NoticeFacts

Element = dict[str, Any]


def notice(facts: NoticeFacts) -> tuple[list[Element], list[Element]]:
    ref, where = facts.ref, f" in cluster {facts.head.cluster_name}" if facts.head.cluster_name else ""
    rows = [("Where", f"{ref.kind} {ref.name} in {ref.namespace}{where}"), ("Holds", facts.holds)]
    rows += [("Cost per day", facts.per_day)] if facts.per_day else []
    rows += [("A pause", facts.pause), ("Keep it", facts.keep_command)]
    body = [_text(f"{facts.headline} {facts.upcoming}", weight="Bolder"), _table(rows)]
    return body + [_text(note, isSubtle=True) for note in facts.notes], _links(facts)


def paused(facts: NoticeFacts, what: str) -> tuple[list[Element], list[Element]]:
    page = [_open("Bring it back", facts.page)] if facts.page else []
    return [_text(what, weight="Bolder"), _table([("Bring it back", facts.resume_command)])], page


def bundle(several: Sequence[NoticeFacts]) -> tuple[list[Element], list[Element]]:
    rows = [(f"{facts.ref.namespace}/{facts.ref.name}", facts.upcoming) for facts in several]
    return [_text(f"{len(several)} workloads are idle", weight="Bolder"), _table(rows)], []


def plain(text: str) -> str:
    return "".join(f"\\{char}" if char in "*_[]`~#" else char for char in text)


def _links(facts: NoticeFacts) -> list[Element]:
    if not facts.page:
        return []
    return [*(_open(f"Keep {offer.hours} h", f"{facts.page}?keep={offer.hours}h") for offer in facts.offers),
            _open("Evidence", facts.page)]


def _open(title: str, url: str) -> Element:
    return {"type": "Action.OpenUrl", "title": title, "url": url}


def _text(text: str, **more: Any) -> Element:
    return {"type": "TextBlock", "text": plain(text), "wrap": True, **more}


def _table(rows: Sequence[tuple[str, str]]) -> Element:
    return {"type": "FactSet", "facts": [{"title": title, "value": plain(value)} for title, value in rows]}
