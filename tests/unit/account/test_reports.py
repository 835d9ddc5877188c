"""What the ledger's sums say to people: every cent once."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as some

from fallow.account import reports
from fallow.account.reports import Basis, ReportAsk
from fallow.model import cost
from fallow.model.cost import Amounts, CostSum, SpendState

TEAM = cost.read_dimension("team")
HOUR = cost.WHOLE * cost.HOUR


def ask(**more: object) -> ReportAsk:
    return ReportAsk(by=(TEAM,), begin=0, end=cost.DAY, currency="USD", **more)  # type: ignore[arg-type]


def dollars(amount: str) -> int:
    return int(Decimal(amount) * cost.UNIT)


def group(key: str, **states: tuple[str, str]) -> CostSum:
    """State -> (cost, of it used), an hour of a GPU for each dollar."""
    parts = {
        SpendState(state): Amounts(
            cost=dollars(paid), use_cost=dollars(used), gpu_micro_seconds=int(Decimal(paid) * HOUR)
        )
        for state, (paid, used) in states.items()
    }
    return CostSum(key=(key,), begin=0, end=cost.DAY, parts=parts)


EXAMPLE = (  # of docs/cost-model.md
    group("red", used=("98.31", "49.155"), held_idle=("65.54", "0")),
    group("blue", used=("73.7325", "58.986"), use_unknown=("24.5775", "0")),
    group("green", use_unknown=("73.7325", "0")),
    group(cost.UNALLOCATED, unallocated=("450.5875", "0")),
)


def test_the_example_of_the_cost_model_as_people_read_it() -> None:
    made = reports.make_report(EXAMPLE, ask())
    assert made.total == Decimal("786.48")
    assert [(row.key, row.cost) for row in made.rows] == [
        (("red",), Decimal("163.85")), (("blue",), Decimal("98.31")), (("green",), Decimal("73.73"))
    ]
    assert made.rows[0].held_idle == Decimal("65.54")
    assert [row.cost for row in made.platform] == [Decimal("450.59")]
    assert made.rest == 0


@pytest.mark.accepts("cost", 11)
def test_both_bases_come_to_the_same_total() -> None:
    held, used = (reports.make_report(EXAMPLE, ask(basis=basis)) for basis in Basis)
    assert held.total == used.total
    assert sum(row.cost for row in used.rows) + used.platform[0].cost + used.rest == used.total
    assert [row.cost for row in used.rows] == [row.used for row in used.rows]
    assert [row.key[0] for row in used.rows] == ["blue", "red", "green"]  # who used most pays most


def test_what_has_no_price_is_hours_and_no_money() -> None:
    unpriced = CostSum(key=("red",), begin=0, end=1, parts={
        SpendState.used: Amounts(gpu_micro_seconds=3 * HOUR, unpriced=3 * HOUR)
    })
    made = reports.make_report([unpriced], ask())
    assert (made.total, made.unpriced_gpu_hours, made.rows[0].per_gpu_hour) == (0, 3.0, None)
    assert made.rows[0].share is None


def test_the_smallest_rows_are_one_row_and_are_compared_as_one() -> None:
    before = (group("red", used=("100", "0")), group("blue", used=("50", "0")), group("green", used=("50", "0")))
    made = reports.make_report(EXAMPLE, ask(most=1), before)
    assert [row.key for row in made.rows] == [("red",), (cost.OTHER,)]
    assert made.rows[1].cost == Decimal("172.04")
    assert made.rows[1].change == pytest.approx(172.0425 / 100 - 1)


amounts = some.integers(0, 10**13)
parts = some.fixed_dictionaries({state: some.tuples(amounts, some.integers(0, 1_000_000)) for state in SpendState})


@given(some.lists(parts, min_size=1, max_size=8))
def test_a_column_comes_to_the_same_by_whatever_it_is_grouped(groups: list[dict[SpendState, tuple[int, int]]]) -> None:
    found = []
    for keys in (lambda number: f"t{number}", lambda number: f"t{number % 2}", lambda number: "all"):
        sums = [
            CostSum(key=(keys(number),), begin=0, end=1, parts={
                state: Amounts(cost=paid, use_cost=paid * use // 1_000_000 if state is SpendState.used else 0)
                for state, (paid, use) in each.items()
            })
            for number, each in enumerate(groups)
        ]
        held = reports.make_report(sums, ask()).held
        found.append((held.cost, held.used, held.allocated_unused, held.held_idle, held.use_unknown))
    assert found == [found[0]] * 3


@pytest.mark.accepts("cost", 23)
@given(some.lists(parts, min_size=1, max_size=8), some.sampled_from(Basis), some.none() | some.integers(1, 4))
def test_every_cent_is_in_exactly_one_row_and_one_column(
    groups: list[dict[SpendState, tuple[int, int]]], basis: Basis, most: int | None
) -> None:
    sums = [
        CostSum(key=(f"t{number}",), begin=0, end=1, parts={
            state: Amounts(cost=paid, use_cost=paid * use // 1_000_000 if state is SpendState.used else 0)
            for state, (paid, use) in each.items()
        })
        for number, each in enumerate(groups)
    ]
    made = reports.make_report(sums, ask(basis=basis, most=most))
    assert sum(row.cost for row in (*made.rows, *made.platform)) + made.rest == made.total
    exact = Decimal(sum(each.total.cost for each in sums)) / cost.UNIT
    assert abs(made.total - exact) <= Decimal("0.005")
    for row in made.rows:
        cells = row.used + row.allocated_unused + row.held_idle + row.use_unknown
        assert row.cost == (cells if basis is Basis.allocation else row.used)
        assert min(row.used, row.allocated_unused, row.held_idle, row.use_unknown) >= 0
    for column in ("cost", "used", "allocated_unused", "held_idle", "use_unknown"):
        assert sum(getattr(row, column) for row in made.rows) == getattr(made.held, column)
    if basis is Basis.allocation:
        assert made.rest == 0
