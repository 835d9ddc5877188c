"""Label selectors of Kubernetes: which labels are meant. The one evaluator, of policies, budgets and node affinities.

In: a LabelSelector as objects carry it, or one expression of a selector term. Out: whether labels are meant by it.
Invariant: an absent selector is None and chooses nothing, an empty one chooses everything, an unknown operator nothing.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

_MOST_DIGITS: Final = 19  # of a number that the scheduler reads

class Selector(msgspec.Struct, frozen=True):
    """A LabelSelector; empty selects all."""

    match_labels: Mapping[str, str] = {}
    match_expressions: tuple[tuple[str, str, tuple[str, ...]], ...] = ()  # key, In|NotIn|Exists|DoesNotExist, values

    def matches(self, labels: Mapping[str, str]) -> bool:
        for key, value in self.match_labels.items():  # of thousands in a cycle, hundreds in a second
            if labels.get(key) != value:
                return False
        return not self.match_expressions or all(holds(labels, *each) for each in self.match_expressions)


def read(body: Mapping[str, Any] | None) -> Selector | None:
    """A LabelSelector as an object carries it; None stays None."""
    if body is None:
        return None
    expressions = body.get("matchExpressions") or ()
    return Selector(
        body.get("matchLabels") or {},
        tuple((one["key"], one["operator"], tuple(one.get("values") or ())) for one in expressions),
    )


def holds(labels: Mapping[str, str], key: str, operator: object, values: Sequence[str]) -> bool:
    """One expression; Gt and Lt, which compare whole numbers, are only of node affinities."""
    value = labels.get(key)
    match operator:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt" if value is not None and len(values) == 1:
            asked = str(values[0])
            if all(text.isdecimal() and len(text) <= _MOST_DIGITS for text in (value, asked)):
                return int(value) > int(asked) if operator == "Gt" else int(value) < int(asked)
    return False


def accepts(terms: Any, name: str, labels: Mapping[str, str]) -> bool:
    """Is that node one of a required node affinity? None requires nothing; an empty term accepts nothing."""
    if terms is None:
        return True
    return isinstance(terms, list) and any(_term_holds(term, name, labels) for term in terms)


def _term_holds(term: Any, name: str, labels: Mapping[str, str]) -> bool:
    if not isinstance(term, Mapping):
        return False
    asked = [(labels, one) for one in term.get("matchExpressions") or []]
    asked += [({"metadata.name": name}, one) for one in term.get("matchFields") or []]
    return bool(asked) and all(
        isinstance(one, Mapping) and holds(of, one.get("key", ""), one.get("operator"), one.get("values") or [])
        for of, one in asked
    )
