"""Label selectors: each operator, what is absent and what is empty."""

from typing import Any

import pytest

from fallow.model import selectors

LABELS = {"team": "ml", "size": "12"}
EXPRESSIONS = [
    ("team", "In", ("ml", "web"), True), ("team", "In", ("web",), False), ("other", "In", ("ml",), False),
    ("team", "NotIn", ("web",), True), ("team", "NotIn", ("ml",), False), ("other", "NotIn", ("ml",), True),
    ("team", "Exists", (), True), ("other", "Exists", (), False),
    ("team", "DoesNotExist", (), False), ("other", "DoesNotExist", (), True),
    ("size", "Gt", ("11",), True), ("size", "Gt", ("12",), False), ("size", "Lt", ("13",), True),
    ("size", "Lt", ("12",), False),
    ("team", "Gt", ("1",), False), ("size", "Gt", ("x",), False), ("size", "Gt", ("1", "2"), False),
    ("other", "Lt", ("1",), False),
    ("team", "Like", ("ml",), False),
]


@pytest.mark.parametrize(("key", "operator", "values", "is_met"), EXPRESSIONS)
def test_an_expression_holds_as_kubernetes_reads_it(
    key: str, operator: str, values: tuple[str, ...], is_met: bool
) -> None:
    assert selectors.holds(LABELS, key, operator, values) is is_met
    assert selectors.Selector(match_expressions=((key, operator, values),)).matches(LABELS) is is_met


@pytest.mark.parametrize(
    ("body", "is_meant"),
    [
        ({}, True),
        ({"matchLabels": None, "matchExpressions": None}, True),
        ({"matchLabels": {"team": "ml"}}, True),
        ({"matchLabels": {"team": "ml", "other": "x"}}, False),
        ({"matchLabels": {"team": "ml"}, "matchExpressions": [{"key": "size", "operator": "Exists"}]}, True),
        (
            {
                "matchLabels": {"team": "ml"},
                "matchExpressions": [{"key": "size", "operator": "NotIn", "values": ["12"]}],
            },
            False,
        ),
    ],
)
def test_a_selector_of_an_object_means_what_all_its_parts_mean(body: dict[str, Any], is_meant: bool) -> None:
    read = selectors.read(body)
    assert read is not None
    assert read.matches(LABELS) is is_meant


def test_no_selector_is_not_an_empty_one() -> None:
    assert selectors.read(None) is None
    assert selectors.read({}) == selectors.Selector()
