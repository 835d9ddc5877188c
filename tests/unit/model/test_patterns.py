"""Regular expressions of people: RE2 only, whole strings, and a reason where one is wrong."""

import pytest

from fallow.model import patterns


def test_a_pattern_is_matched_as_a_whole_and_remembers_its_text() -> None:
    found = patterns.compile_pattern("ml-.*|web")
    assert found.pattern == "ml-.*|web"
    assert [bool(found.fullmatch(text)) for text in ("ml-1", "web", "web2", "a-ml-1")] == [True, True, False, False]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("(", r"missing \)"), ("a{2,1}", "repetition"), ("(?=a)", "perl operator|invalid"),
        ("\ud800", "^it is not valid Unicode$"),
    ],
    ids=["open", "repetition", "lookahead", "surrogate"],
)
def test_what_is_no_expression_has_a_reason(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=f"(?i){why}"):
        patterns.compile_pattern(text)
