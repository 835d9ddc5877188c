"""Whose cost is meant, as people write it: the part that CostBudget and CostAttribution share, and how amounts of money
and percentages are written.

In: what stands under `spec.scope`. Out: a SpendScope. An amount is read as the decimal text of the JSON: objects are
decoded by `decode`, which makes no float.
"""

from collections.abc import Mapping
from decimal import Decimal
from typing import Annotated, Any, ClassVar

import msgspec

from fallow.model import selectors
from fallow.model.policies import budget, crd
from fallow.model.policies.crd import one_of

MOST_DIGITS = 15  # that a JSON number keeps on its way through the API server
MOST_AMOUNT = 10**MOST_DIGITS - 1
LEAST_AMOUNT = Decimal("0.000001")
MOST_NAMES = 256
_DECODER = msgspec.json.Decoder(float_hook=Decimal)
# What the API server has is a float. It has so few digits if some power of ten makes a whole number of them of it from
# which it comes back; powers up to 10^22 and whole numbers below 2^53 are exact. (Its text would be of unknown length.)
_POWERS = ", ".join(f"1e{power}" for power in range(21))
_FEW_DIGITS = f"[{_POWERS}].exists(p, self * p < 1e{MOST_DIGITS} && double(int(self * p + 0.5)) / p == self)"
_DIGITS = f"it has more than {MOST_DIGITS} significant digits"


def decode(body: bytes | msgspec.Raw) -> Any:
    """JSON whose numbers are whole ones or Decimals."""
    return _DECODER.decode(body)


def write(number: Decimal) -> bytes:
    """As JSON has it, without a zero that nobody needs: 50000.0 is 50000."""
    return f"{number.normalize():f}".encode() if number.is_finite() else b"null"


def as_decimal(value: Any) -> Decimal | None:
    """A number of a decoded object; None where it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return None
    made = Decimal(str(value))
    return made if made.is_finite() else None


def show(value: Any) -> str:
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _check_amount(value: Any) -> None:
    number = as_decimal(value)
    if number is None:
        raise ValueError(f"{show(value)} is not a number such as 50000 or 1999.50, without quotes")
    if not LEAST_AMOUNT <= number <= MOST_AMOUNT:
        raise ValueError(f"{show(value)} is not more than 0 and less than 10^{MOST_DIGITS}")
    if len(number.normalize().as_tuple().digits) > MOST_DIGITS:
        raise ValueError(f"{show(value)}: {_DIGITS}")


def percent(most: int) -> crd.Form:
    def check(value: Any) -> None:
        number = as_decimal(value)
        if number is None or not 0 <= number <= most:
            raise ValueError(f"{show(value)} is not a percentage from 0 to {most}, a number without quotes or %")

    return crd.Form({"type": "number", "minimum": 0, "maximum": most}, check)


_AMOUNT_SCHEMA: Mapping[str, Any] = {
    "type": "number", "minimum": 0, "maximum": MOST_AMOUNT,
    "x-kubernetes-validations": [
        {"rule": f"self >= {LEAST_AMOUNT:f}", "message": "it is not more than 0"},
        {"rule": _FEW_DIGITS, "message": _DIGITS},
    ],
}
Amount = Annotated[Any, crd.Form(_AMOUNT_SCHEMA, _check_amount)]
Money = Annotated[str, crd.text(r"-?[0-9]+(\.[0-9]+)?", 40, "an amount of money, as decimal text")]
Namespaces = Annotated[tuple[crd.Name, ...], {"maxItems": MOST_NAMES}]
FilledLabel = Annotated[str, crd.text(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?", 63, "a label value")]
Teams = Annotated[tuple[FilledLabel, ...], {"maxItems": MOST_NAMES}]
TypeOfScope = Annotated[str, one_of(*budget.ScopeType)]


def _needs(type_: str, *fields: tuple[str, str], said: str) -> crd.Law:
    """`fields`: as the API server calls each, and its name here."""
    cel = " || ".join(f"has(self.{wire})" for wire, _ in fields)
    return crd.Law(
        f"!has(self.type) || self.type != '{type_}' || {cel}", f"a scope of type {type_} needs {said}",
        lambda scope: scope.type != type_ or any(getattr(scope, name) not in (None, (), {}, "") for _, name in fields),
        fields[0][0],
    )


class ScopeSpec(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    type: Annotated[TypeOfScope | None, "By what is chosen; the selector of that name is then needed."] = None
    namespace_selector: Annotated[
        crd.SelectorSpec | None, "Labels of namespaces, as they are now; what a namespace cost stays with it."
    ] = None
    namespaces: Annotated[Namespaces, "Names of namespaces."] = ()
    teams: Annotated[Teams, "Values of the label team: of pods, their topmost owners or their namespaces."] = ()
    labels: Annotated[Mapping[str, FilledLabel], "Labels, found as teams are; all must fit."] = {}
    experiment_id: Annotated[FilledLabel | None, "Value of the label experiment-id."] = msgspec.field(
        default=None, name="experimentID"
    )

    laws: ClassVar[tuple[crd.Law, ...]] = (
        _needs("namespace", ("namespaceSelector", "namespace_selector"), ("namespaces", "namespaces"),
               said="namespaceSelector or namespaces"),
        _needs("team", ("teams", "teams"), said="teams"), _needs("label", ("labels", "labels"), said="labels"),
        _needs("experiment", ("experimentID", "experiment_id"), said="experimentID"),
    )


class BudgetScopeSpec(ScopeSpec, frozen=True, rename="camel", kw_only=True):
    """As above; what it is by must be said."""

    laws: ClassVar[tuple[crd.Law, ...]] = (
        crd.Law("has(self.type)", "is missing", lambda scope: scope.type is not None, "type"), *ScopeSpec.laws,
    )


def make(spec: ScopeSpec) -> budget.SpendScope:
    chosen = spec.namespace_selector
    return budget.SpendScope(
        type=budget.ScopeType(spec.type or "cluster"), namespaces=spec.namespaces, teams=spec.teams,
        namespace_selector=None if chosen is None else make_selector(chosen),
        labels=tuple(sorted(spec.labels.items())), experiment=spec.experiment_id or "",
    )


def make_selector(spec: crd.SelectorSpec) -> selectors.Selector:
    expressions = tuple((one.key, one.operator, one.values) for one in spec.match_expressions)
    return selectors.Selector(match_labels=spec.match_labels, match_expressions=expressions)
