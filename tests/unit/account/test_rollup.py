"""The arithmetic of the ledger by itself: what is packed comes back, and sums of any size are exact."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.ledgers import MIDNIGHT, lasting, part_of

from fallow.account import rollup
from fallow.model.cost import HOUR, WHOLE, Interval

USES = st.lists(st.lists(st.none() | st.integers(0, WHOLE), max_size=24), max_size=5)
ENERGIES = st.lists(st.lists(st.none() | st.integers(0, rollup.MOST_ENERGY), max_size=24), max_size=5)


def trimmed(hours):
    while hours and hours[-1] is None:
        hours = hours[:-1]
    return tuple(hours)


@given(USES, ENERGIES)
def test_what_is_packed_comes_back_without_unmeasured_hours_at_its_end(uses, energies):
    for rows, (packed, odd), unpack in (
        (uses, rollup.pack_use(uses), rollup.unpack_use),
        (energies, rollup.pack_energy(energies), rollup.unpack_energy),
    ):
        assert ([unpack(one) for one in packed], odd) == ([trimmed(one) for one in rows], [])


@given(USES, st.integers(0, 4), st.sampled_from([-1, WHOLE + 1, 2**24, 2**70, -(2**70)]))
def test_what_no_use_can_be_is_found_and_the_others_are_packed(uses, at, value):
    rows = [*uses[:at], [5, value], *uses[at:]]
    at = rows.index([5, value])
    packed, odd = rollup.pack_use(rows)
    assert odd == [at]
    assert [rollup.unpack_use(one) for number, one in enumerate(packed) if number != at] == [
        trimmed(one) for one in uses
    ]


@given(USES.filter(lambda rows: len(rows) > 1))
def test_what_was_measured_stays_measured(rows):
    mine, other = rollup.pack_use(rows[:2])[0]
    found = rollup.unpack_use(rollup.fill_use(mine, other))
    length = max(map(len, rows[:2]))
    first, second = ([*one, *[None] * (length - len(one))] for one in rows[:2])
    assert found == trimmed([its if one is None else one for one, its in zip(first, second, strict=True)])


def test_the_mean_use_is_that_of_the_measured_seconds():
    begin, end = MIDNIGHT + 1800, MIDNIGHT + 3 * HOUR
    packed, _ = rollup.pack_use([[WHOLE, None, 0], [], [None], [300_000]])
    assert rollup.mean_uses([begin] * 4, [end] * 4, packed) == [WHOLE // 3, None, None, 300_000]


@given(
    rate=st.integers(0, 10**15), begin=st.integers(0, 86_000), length=st.integers(1, 400),
    window=st.tuples(st.integers(0, 86_400), st.integers(0, 86_400)).map(sorted),
)
def test_a_cost_is_that_of_the_noun_for_any_rate(rate, begin, length, window):
    """The noun counts with numbers of any size, the columns with 64 bits."""
    one: Interval = lasting(part_of(rate=rate), MIDNIGHT + begin, MIDNIGHT + begin + length)
    first, last = (MIDNIGHT + edge for edge in window)
    spans = rollup.SpanColumns(
        *(np.array([value], np.int64) for value in (one.t0, one.t1, WHOLE, 0, rate, 7, 0)), [None], [None]
    )
    found = rollup.sum_up(spans, [(first, last)] if first < last else [])
    assert sum(found.amounts[:, 0].tolist()) == one.cost(first, last)


@pytest.mark.accepts("cost", 4)
@given(
    rate=st.integers(0, 10**13), use=st.integers(0, WHOLE), energy=st.integers(0, rollup.MOST_ENERGY),
    begin=st.integers(0, 2 * HOUR), steps=st.lists(st.integers(1, HOUR), min_size=4, max_size=6),
)
def test_windows_side_by_side_add_up_in_cost_and_use_and_energy(rate, use, energy, begin, steps):
    edges = [begin, *(begin + passed for passed in itertools.accumulate(steps))]
    hours = (edges[-1] - 1) // HOUR - begin // HOUR + 1
    spans = rollup.SpanColumns(
        *(np.array([value], np.int64) for value in (begin, edges[-1], WHOLE, rollup.USED, rate, 7, 0)),
        rollup.pack_use([[use] * hours])[0], rollup.pack_energy([[energy] * hours])[0],
    )
    asked = edges[1:-1]
    whole = rollup.sum_up(spans, [(asked[0], asked[-1])])
    parts = rollup.sum_up(spans, list(itertools.pairwise(asked)))
    assert whole.amounts.sum(axis=0).tolist() == parts.amounts.sum(axis=0).tolist()


@pytest.mark.accepts("cost", 4)
@pytest.mark.parametrize(("rate", "seconds", "said"), [
    (1, 1800, 0), (3, 1800, 2), (5, 1800, 2), (7, 1800, 4), (1, 1799, 0), (1, 1801, 1), (9, 200, 0), (27, 200, 2),
])
def test_a_cost_that_lies_in_the_middle_is_rounded_to_even_by_the_noun_and_by_the_columns(rate, seconds, said):
    one: Interval = lasting(part_of(rate=rate), MIDNIGHT, MIDNIGHT + seconds)
    columns = (np.array([value], np.int64) for value in (one.t0, one.t1, WHOLE, 0, rate, 7, 0))
    found = rollup.sum_up(rollup.SpanColumns(*columns, [None], [None]), [(one.t0, one.t1)])
    assert (one.cost(one.t0, one.t1), sum(found.amounts[:, 0].tolist())) == (said, said)


def test_sums_that_do_not_fit_into_64_bits_are_exact():
    ones = np.zeros(5, np.int64)
    amounts = np.full((5, 5), 2**62 + 1, np.int64)
    ((_, _, _, values),) = rollup.group_exactly(ones, ones, ones, amounts)
    assert values == [5 * (2**62 + 1)] * 5
