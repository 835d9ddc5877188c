"""Kubernetes quantities, exactly."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fallow.model import quantities


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0), ("4", 4), ("250m", Fraction(1, 4)), ("1.5", Fraction(3, 2)), (".5", Fraction(1, 2)), ("2.", 2),
        ("64Gi", 64 * 2**30),
        ("1Ki", 1024), ("129e6", 129_000_000), ("1E3", 1000), ("12E", 12 * 10**18), ("1Ei", 2**60), ("5k", 5000),
        ("3M", 3_000_000),
        ("100n", Fraction(1, 10**7)), ("7u", Fraction(7, 10**6)), ("1e-3", Fraction(1, 1000)), ("+1", 1), ("-1", -1),
    ],
)
def test_what_is_written_is_what_is_meant(text: str, value: Fraction) -> None:
    assert quantities.parse(text) == value


@pytest.mark.parametrize(
    "text", ["", "Gi", "1 Gi", "1gi", "much", "1.2.3", "1e", "0x10", "1e999", "٣", "1Gi\n", "nan", "inf", "--1"]
)
def test_what_cannot_be_read_is_refused_in_a_sentence(text: str) -> None:
    with pytest.raises(ValueError, match="is not a quantity such as 250m, 4 or 64Gi"):
        quantities.parse(text)


def test_what_is_asked_is_rounded_up_and_what_there_is_down() -> None:
    assert (quantities.parse_milli("1u"), quantities.parse_milli("1u", up=False)) == (1, 0)
    assert (quantities.parse_mebi("1"), quantities.parse_mebi("1", up=False)) == (1, 0)
    assert quantities.parse_milli("3920m") == quantities.parse_milli("3.92", up=False) == 3920


@given(st.integers(0, 10**12))
def test_whole_numbers_come_back(number: int) -> None:
    assert quantities.parse(str(number)) == number
    assert quantities.parse_milli(f"{number}m") == number
    assert quantities.parse_mebi(f"{number}Mi") == quantities.parse_mebi(f"{number}Mi", up=False) == number
