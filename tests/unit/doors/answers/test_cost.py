"""Reports, days, savings and acknowledgements as answers, of a real ledger: what is printed adds up."""

import json
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from tests import cost_scenes
from tests.builders import NOW
from tests.cost_scenes import TODAY, YESTERDAY

from fallow.account.reports import Basis
from fallow.doors.answers import allocation, cost_books, cost_budgets, cost_hours
from fallow.doors.answers import cost as telling
from fallow.doors.answers.allocation import AllocationAsk
from fallow.doors.answers.cost_books import AttributionAsk, CostBooks, SpendAsk
from fallow.doors.cli import cost_pages
from fallow.model import cost, gpus, units
from fallow.model.cost import DAY, HOUR, PAYER, WHOLE, BudgetReading, CostFilter, SpendState
from fallow.model.energy import EnergyTerms
from fallow.model.policies import budget_crd
from fallow.model.price_book import PriceBook
from fallow.model.price_table import PriceRow
from fallow.model.seen import Known
from fallow.model.windows import TimeSpan
from fallow.observe.prices import PricesSeen
from fallow.stories.prices import PricesTurn
from fallow.wiring.billing import NodeBilling

DAY_BEFORE = TimeSpan(YESTERDAY, TODAY)
NAMESPACE, TEAM = cost_books.NAMESPACE, cost_books.TEAM


def exact(page) -> dict:
    """As a program reads it that cares for cents."""
    return json.loads(msgspec.json.encode(page), parse_float=Decimal)


@pytest.mark.accepts("cost", 23)
@pytest.mark.parametrize("basis", Basis)
@pytest.mark.parametrize("rolled", [0, TODAY], ids=["intervals", "rolled-up"])
async def test_rows_and_platform_and_rest_are_the_total_to_the_cent(basis, rolled):
    async with cost_scenes.opened(cost_scenes.example(), roll=rolled) as ledger:
        page = exact(await cost_books.read_report(CostBooks(ledger=ledger), SpendAsk(span=DAY_BEFORE, basis=basis)))
    rows = sum(row["cost"] for row in page["rows"])
    assert rows + page["platform"]["cost"] + page["rest"] == page["total"] == Decimal("786.48")
    parts = ("used", "allocatedUnused", "heldIdle", "useUnknown")
    for row in page["rows"]:
        paid = row["used"] if basis is Basis.use else sum(row[part] for part in parts)
        assert row["cost"] == paid
    assert page["rows"][0]["key"] == ("red" if basis is Basis.allocation else "blue")


async def test_a_row_says_what_it_was():
    async with cost_scenes.opened(cost_scenes.example()) as ledger:
        page = await cost_books.read_report(CostBooks(ledger=ledger), SpendAsk(span=DAY_BEFORE, by=(TEAM,)))
    red, blue, green = page.rows
    assert (red.cost, red.used, red.allocated_unused, red.held_idle) == (163.85, 49.16, 49.15, 65.54)
    assert (blue.gpu_hours, blue.kwh, green.use) == (24.0, 6.0, None)
    assert red.use == pytest.approx(0.3, abs=0.001)
    assert (page.platform.cost, page.platform.parts[0].key) == (450.59, "__unallocated__")
    assert (page.currency, page.as_of, page.basis) == ("USD", "2026-11-15T00:00:00Z", "allocation")


@pytest.mark.parametrize("in_cost", [False, True])
async def test_energy_stands_beside_money_and_is_added_only_where_that_is_asked_for(in_cost):
    """Blue burned 6 kWh, a GPU that nobody held 1: at 0.305 a kWh and 400 g of CO2."""
    free = cost_scenes.free("GPU-9", YESTERDAY, YESTERDAY + HOUR, energy=3_600_000_000, rate=None)
    terms = EnergyTerms(price=Decimal("0.305"), grams=Decimal(400), in_cost=in_cost)
    async with cost_scenes.opened([*cost_scenes.example(), *free]) as ledger:
        books = CostBooks(ledger=ledger, energy=terms)
        page = exact(await cost_books.read_report(books, SpendAsk(span=DAY_BEFORE)))
        hours = await cost_hours.read_hours(books, DAY_BEFORE)
        silent = await cost_books.read_report(CostBooks(ledger=ledger), SpendAsk(span=DAY_BEFORE))
    blue = next(row for row in page["rows"] if row["key"] == "blue")
    assert (blue["energyCost"], blue["co2Kg"]) == (Decimal("1.83"), Decimal("2.4"))
    burned = sum(row["energyCost"] for row in page["rows"]) + page["platform"]["energyCost"]
    assert burned == page["held"]["energyCost"] + page["platform"]["energyCost"] == Decimal("2.14")  # 2.135
    more = burned if in_cost else 0
    assert page["total"] == Decimal("786.48") + more
    assert sum(row["cost"] for row in page["rows"]) + page["platform"]["cost"] == page["total"]
    assert page["isEnergyInCost"] is in_cost
    assert sum(Decimal(row.energy_cost) for row in hours.items) == Decimal("2.135")
    assert sum(Decimal(row.cost) for row in hours.items) == Decimal("786.48") + (Decimal("2.135") if in_cost else 0)
    assert sum(Decimal(row.energy_co2_kg) for row in hours.items) == Decimal("2.8")
    charges = list(cost_hours.make_focus(hours.items))
    assert sum(Decimal(each["x_EnergyCost"]) for each in charges) == Decimal("2.135")
    assert (silent.rows[0].energy_cost, silent.platform.co2_kg) == (None, None)


async def test_of_a_charge_whose_payer_changed_within_the_hour_every_column_is_of_both():
    """What only says whose budget it is stands in no column."""
    before, after = (cost_scenes.key("red", "x", labels=((f"{PAYER}team", team),)) for team in ("a", "b"))
    half = YESTERDAY + HOUR // 2
    some = [*cost_scenes.held("GPU-9", YESTERDAY, half, before, use=0.5),
            *cost_scenes.held("GPU-9", half, YESTERDAY + HOUR, after, use=0.25)]
    async with cost_scenes.opened(some) as ledger:
        hours = await cost_hours.read_hours(CostBooks(ledger=ledger), DAY_BEFORE)
    (charge,) = cost_hours.make_focus(hours.items)
    assert Decimal(charge["BilledCost"]) == Decimal("4.09625")
    assert Decimal(charge["x_UsedCost"]) == Decimal("4.09625") * Decimal("0.375")
    assert Decimal(charge["x_UsedCost"]) + Decimal(charge["x_AllocatedUnusedCost"]) == Decimal(charge["BilledCost"])


@pytest.mark.parametrize(("capacity", "category"), [
    ("on-demand", "Standard"), ("unknown", "Standard"), ("spot", "Dynamic"), ("reserved", "Committed"),
])
async def test_a_charge_says_as_focus_does_how_it_is_priced_and_of_when_and_whose_it_is(capacity, category):
    key = cost_scenes.key("red", "x", capacity_type=cost.CapacityType(capacity))
    some = cost_scenes.held("GPU-9", YESTERDAY, YESTERDAY + HOUR, key, use=0.5)
    async with cost_scenes.opened(some) as ledger:
        (charge,) = cost_hours.make_focus((await cost_hours.read_hours(CostBooks(ledger=ledger), DAY_BEFORE)).items)
    assert (charge["PricingCategory"], charge["ChargeCategory"], charge["ServiceCategory"]) == (
        category, "Usage", "Compute"
    )
    assert (charge["SubAccountId"], charge["PricingUnit"], charge["PricingQuantity"]) == ("red", "GPU-Hours", "1")
    assert charge["ChargePeriodStart"][:7] + "-01T00:00:00Z" == charge["BillingPeriodStart"]
    assert charge["BillingPeriodStart"] < charge["ChargePeriodEnd"] <= charge["BillingPeriodEnd"]


def listing(*rows: PriceRow) -> NodeBilling:
    billing = NodeBilling(region="", clock=lambda: NOW)
    billing.take(PricesTurn(NOW, PricesSeen(at=NOW, book=Known(PriceBook(given=rows, shipped=())))))
    return billing


def list_price(per_hour: str, **said: Any) -> PriceRow:
    """Of 8 GPUs."""
    return PriceRow(
        instance_type="p4d.24xlarge", region="us-east-1", gpus=8, price=Decimal(per_hour), source="list",
        retrieved_at=NOW, **said,
    )


SPOT, RESERVED = cost.CapacityType.spot, cost.CapacityType.reserved


async def find_charge(
    billing: NodeBilling, *some: Any, energy: EnergyTerms | None = None, **said: Any
) -> dict[str, Any]:
    """What FOCUS says of a quarter of a GPU that was held for an hour."""
    held = some or cost_scenes.held(
        "GPU-9", YESTERDAY, YESTERDAY + HOUR, cost_scenes.key("red", "x", **said), use=0.5, share=WHOLE // 4
    )
    async with cost_scenes.opened(held) as ledger:
        books = CostBooks(ledger=ledger, list_price=billing.find_on_demand, energy=energy or EnergyTerms())
        (found,) = cost_hours.make_focus((await cost_hours.read_hours(books, DAY_BEFORE)).items)
    assert found["BilledCost"] == found["EffectiveCost"] == found["ContractedCost"]
    return found


@pytest.mark.parametrize("capacity", [SPOT, RESERVED, cost.CapacityType.on_demand])
async def test_what_a_charge_would_have_cost_on_demand_is_its_list_cost(capacity):
    """A quarter of a GPU, of 8 for 40 an hour: 1.25. It was paid at 4.09625 a GPU."""
    found = await find_charge(listing(list_price("40")), capacity_type=capacity)
    assert (found["ListCost"], found["x_IsListCostKnown"]) == ("1.25", "true")
    assert found["ContractedCost"] == "1.0240625"


async def test_the_list_price_is_that_of_the_hour():
    change = float(YESTERDAY + HOUR)
    billing = listing(list_price("32", valid_to=change), list_price("48", valid_from=change))
    key = cost_scenes.key("red", "x", capacity_type=SPOT)
    async with cost_scenes.opened(cost_scenes.held("GPU-9", YESTERDAY, YESTERDAY + 2 * HOUR, key)) as ledger:
        books = CostBooks(ledger=ledger, list_price=billing.find_on_demand)
        found = list(cost_hours.make_focus((await cost_hours.read_hours(books, DAY_BEFORE)).items))
    assert [one["ListCost"] for one in found] == ["4", "6"]


@pytest.mark.parametrize("billing", [
    listing(), NodeBilling(region="", clock=lambda: NOW), listing(list_price("9", capacity_type=SPOT)),
    listing(list_price("40", valid_from=NOW)),
], ids=["no row", "no book", "spot alone", "later"])
async def test_where_no_list_price_is_known_the_list_cost_is_what_was_paid_and_that_is_said(billing):
    found = await find_charge(billing, capacity_type=SPOT)
    assert (found["ListCost"], found["x_IsListCostKnown"]) == (found["BilledCost"], "false")


async def test_no_discount_is_made_up_for_hours_without_a_price_or_of_machines_that_never_ran():
    billing = listing(list_price("40"))
    of = cost_scenes.key("red", "x", capacity_type=SPOT)
    free = await find_charge(billing, *cost_scenes.held("GPU-9", YESTERDAY, YESTERDAY + HOUR, of, rate=None))
    assert (free["BilledCost"], free["ListCost"], free["x_UnpricedGpuHours"]) == ("0", "0", "1")
    of = cost_scenes.key(cost.UNUSED_COMMITMENT, capacity_type=RESERVED)
    never = await find_charge(billing, *cost_scenes.held("GPU-9", YESTERDAY, YESTERDAY + HOUR, of))
    assert (never["ListCost"], never["x_IsListCostKnown"]) == (never["BilledCost"], "false")


async def test_where_energy_is_in_the_cost_it_is_in_the_list_cost():
    some = cost_scenes.held(
        "GPU-9", YESTERDAY, YESTERDAY + HOUR, cost_scenes.key("red", "x", capacity_type=SPOT), energy=3_600_000_000
    )
    terms = EnergyTerms(price=Decimal("0.3"), in_cost=True)
    found = await find_charge(listing(list_price("40")), *some, energy=terms)
    assert (found["ListCost"], found["BilledCost"]) == ("5.3", "4.39625")


async def test_a_price_that_is_too_old_and_was_used_is_named():
    old = cost_scenes.price(retrieved_at=TODAY - 100 * DAY)
    unused = cost_scenes.price("never", retrieved_at=0)
    async with cost_scenes.opened(cost_scenes.example(), prices=(old, unused)) as ledger:
        page = await cost_books.read_report(CostBooks(ledger=ledger), SpendAsk(span=DAY_BEFORE))
        young = await cost_books.read_report(CostBooks(ledger=ledger, max_age=200 * DAY), SpendAsk(span=DAY_BEFORE))
    assert [(one.price_id, one.age_days) for one in page.stale_prices] == [("p4d", 100.0)]
    assert young.stale_prices == ()


async def test_what_has_no_price_is_hours():
    some = [*cost_scenes.held("GPU-9", YESTERDAY, TODAY, cost_scenes.key("red", "x"), rate=None)]
    async with cost_scenes.opened(some, prices=()) as ledger:
        books = CostBooks(ledger=ledger)
        page = await cost_books.read_report(books, SpendAsk(span=DAY_BEFORE))
    assert (page.total, page.unpriced_gpu_hours) == (0.0, 24.0)
    assert (page.rows[0].share, page.rows[0].per_gpu_hour) == (None, None)


async def test_two_periods_are_compared():
    both = [*cost_scenes.example(YESTERDAY - DAY), *cost_scenes.example()]
    both += cost_scenes.held("GPU-9", YESTERDAY, TODAY, cost_scenes.key("red", "more"))
    async with cost_scenes.opened(both) as ledger:
        page = await cost_books.read_report(CostBooks(ledger=ledger), SpendAsk(span=DAY_BEFORE, compares=True))
    assert page.before == 786.48
    assert {row.key: row.change for row in page.rows}["blue"] == 0.0
    assert page.rows[0].change == pytest.approx(98.31 / 163.85, abs=1e-4)


async def test_days_by_group_are_the_report_again():
    both = [*cost_scenes.example(YESTERDAY - DAY), *cost_scenes.example()]
    span = TimeSpan(YESTERDAY - DAY, TODAY)
    async with cost_scenes.opened(both) as ledger:
        books = CostBooks(ledger=ledger)
        page = await cost_books.read_series(books, SpendAsk(span=span, most=1))
    assert page.starts == ("2026-11-13T00:00:00Z", "2026-11-14T00:00:00Z")
    assert page.total == (786.48, 786.48)
    assert [(one.key, one.costs) for one in page.series] == [("red", (163.85, 163.85)), ("__other__", (172.04, 172.04))]
    assert (page.held_idle, page.platform) == ((65.54, 65.54), (450.59, 450.59))


async def test_the_cost_of_an_acknowledgement_is_what_was_booked_while_it_held():
    open_one = cost_scenes.held("GPU-9", TODAY, TODAY + HOUR, cost_scenes.key("blue", "lab"), SpendState.held_idle,
                                ack="ack-2", is_open=True)
    async with cost_scenes.opened([*cost_scenes.example(), *open_one], at=TODAY + 2 * HOUR) as ledger:
        page = await cost_books.read_acks(CostBooks(ledger=ledger), TODAY + 2 * HOUR)
    first, second = page.items
    assert (first.ack_id, first.is_open, first.name, first.cost) == ("ack-2", True, "lab", 8.19)
    assert (second.ack_id, second.cost, second.gpu_hours) == ("ack-1", 65.54, 16.0)
    assert second.sentence == "this acknowledgement has cost 65.54 USD"
    assert page.total == 73.73


async def test_an_acknowledged_part_that_is_used_again_costs_until_then():
    """What follows it on its part ends it, though nobody closed it."""
    kept = cost_scenes.held("GPU-9", TODAY, TODAY + HOUR, cost_scenes.key("blue", "lab"), SpendState.held_idle,
                            ack="ack-2", is_open=True)
    after = cost_scenes.held("GPU-9", TODAY + HOUR, TODAY + 2 * HOUR, cost_scenes.key("blue", "lab"), is_open=True)
    async with cost_scenes.opened([*kept, *after], at=TODAY + 5 * HOUR) as ledger:
        page = await cost_books.read_acks(CostBooks(ledger=ledger), TODAY + 5 * HOUR)
    assert [one.gpu_hours for one in page.items] == [1.0]


async def test_the_summary_is_one_page():
    going_on = cost_scenes.held("GPU-9", TODAY, TODAY + HOUR, cost_scenes.key("blue", "lab"), is_open=True)
    unknown = cost_scenes.held("GPU-8", TODAY, TODAY + HOUR, cost_scenes.key("blue", "odd"), rate=None, is_open=True)
    some = [*cost_scenes.example(), *going_on, *unknown]
    async with cost_scenes.opened(some, at=int(NOW) - 60) as ledger:
        page = await cost_books.read_summary(CostBooks(ledger=ledger), NOW)
    hours = (int(NOW) - 60 - TODAY) / HOUR
    assert (page.per_hour, page.unpriced_gpus, page.lag_seconds) == (4.1, 1.0, 60.0)
    assert page.today == pytest.approx(4.09625 * hours, abs=0.01)
    assert page.month_to_date == pytest.approx(786.48 + page.today, abs=0.01)
    so_far = int(NOW) - 60 - (TODAY - 14 * DAY)
    assert page.projected == pytest.approx(page.month_to_date * 30 * DAY / so_far, abs=0.02)
    assert page.week.held_idle == 65.54
    assert sum(page.week.days) == pytest.approx(page.week.total)
    assert page.trouble is None


@pytest.mark.accepts("cost", 7)
async def test_prices_say_which_are_used_and_what_has_none():
    nameless = gpus.normalise("NVIDIA-Foo-9000")
    running = [
        *cost_scenes.held("GPU-9", TODAY, TODAY + HOUR, cost_scenes.key("blue", "lab"), is_open=True),
        *cost_scenes.held("GPU-8", TODAY, TODAY + HOUR, cost_scenes.key("blue", "odd", gpu_model=nameless),
                          rate=None, is_open=True),
        *cost_scenes.held("GPU-7", TODAY, TODAY + HOUR, cost_scenes.key("blue", "new", gpu_model="H100-80GB"),
                          rate=None, is_open=True),
    ]
    old = cost_scenes.price("old", retrieved_at=0, instance_type="g5.xlarge")
    async with cost_scenes.opened(running, prices=(cost_scenes.price(), old), at=TODAY + HOUR) as ledger:
        page = await cost_books.read_prices(CostBooks(ledger=ledger), NOW)
    assert [(one.price_id, one.is_used, one.is_stale) for one in page.items] == [
        ("p4d", True, False), ("old", False, True)]
    assert [(one.gpu_model, one.is_model_known, one.gpus) for one in page.unpriced] == [
        ("FOO-9000", False, 1.0), ("H100-80GB", True, 1.0)]
    said = cost_pages.draw_prices("", page)
    assert "1.0 GPUs FOO-9000 (no model that we know) on 1 nodes" in said
    assert "1.0 GPUs H100-80GB on 1 nodes" in said


async def test_budgets_are_told_as_they_were_read_last():
    def reading(at, spend, name="ml"):
        return BudgetReading(at=at, budget=name, limit=100 * cost.UNIT, spend=spend * cost.UNIT,
                             used_micro=spend * 10_000, status="ok")

    async with cost_scenes.opened([]) as ledger:
        await ledger.write_budgets([reading(TODAY, 40), reading(TODAY + 60, 81), reading(TODAY, 90, "lab")], [], 1)
        page = await cost_budgets.read_budgets(CostBooks(ledger=ledger), TODAY + 120)
    assert [(one.budget, one.spend, one.percentage_used) for one in page.items] == [
        ("lab", 90.0, 90.0), ("ml", 81.0, 81.0)]


def budget(scope: dict, **status) -> dict:
    start, end = units.rfc3339(YESTERDAY), units.rfc3339(YESTERDAY + 30 * DAY)
    said = {"period": {"start": start, "end": end}, "currentSpend": "262.16", "percentageUsed": 52.43,
            "budgetStatus": "ok", "lastUpdated": units.rfc3339(TODAY), "projectedMonthlySpend": "612.00", **status}
    spec = {"scope": scope, "budget": {"amount": 500}}
    return {"metadata": {"name": "ml", "uid": "u-1"}, "spec": spec, "status": said}


async def tell_budget(given: dict):
    known = budget_crd.parse(given)
    async with cost_scenes.opened(cost_scenes.example(), at=TODAY + HOUR) as ledger:
        books = CostBooks(ledger=ledger, budgets=lambda: (known,))
        [told] = (await cost_budgets.read_budgets(books, TODAY + 2 * HOUR)).items
    return told


async def test_a_budget_of_the_cluster_is_told_with_how_it_was_spent():
    fired = {"alertName": "half", "timestamp": units.rfc3339(TODAY), "threshold": 50.0, "acknowledged": False}
    override = {"until": units.rfc3339(TODAY + DAY), "by": "ana", "reason": "deadline", "cost": "12.50"}
    told = await tell_budget(budget({"type": "team", "teams": ["red", "blue"]}, alertsFired=[fired], override=override))
    assert (told.budget, told.scope) == ("ml", "team red, blue")
    assert (told.limit, told.spend, told.projected) == (500, 262.16, 612)
    assert [(one.at, one.spend) for one in told.burn] == [
        (units.rfc3339(YESTERDAY), 0.0), (units.rfc3339(TODAY), 262.16), (units.rfc3339(TODAY + HOUR), 262.16)]
    assert [(one.alert, one.threshold, one.is_seen) for one in told.alerts] == [("half", 50.0, False)]
    assert told.override is not None
    assert (told.override.by, told.override.cost, told.mode, told.is_enforced) == ("ana", 12.5, "alert", False)


@pytest.mark.parametrize(("scope", "status"), [
    ({"type": "namespace", "namespaceSelector": {"matchLabels": {"a": "b"}}}, {}),
    ({"type": "cluster"}, {"period": {"start": "soon"}}), ({"type": "cluster"}, {"period": None}),
], ids=["nobody-known-is-meant", "no-end", "no-period"])
async def test_what_is_not_known_of_a_budget_is_not_drawn(scope, status):
    """A selector whose namespaces nobody has found yet means nobody, and not everybody."""
    told = await tell_budget(budget(scope, **status))
    assert (told.burn, told.spend) == ((), 262.16)


async def test_a_budget_that_nobody_has_read_yet_is_there_without_figures():
    told = await tell_budget({**budget({"type": "cluster"}), "status": {}})
    assert (told.limit, told.spend, told.percentage_used, told.period, told.burn) == (500.0, None, None, None, ())
    assert told.problems == ("its status is old: is a leader running?",)


async def test_an_attribution_is_what_its_scope_cost_by_what_it_tracks():
    asks = (
        AttributionAsk(name="ml", by=(cost.read_dimension("label:app"),), seconds=DAY,
                       where=(CostFilter(NAMESPACE, frozenset({"red"})),)),
        AttributionAsk(name="broken", by=(), where=(), seconds=DAY, problem="InvalidScope"),
    )
    async with cost_scenes.opened(cost_scenes.example()) as ledger:
        page = await cost_books.read_attributions(CostBooks(ledger=ledger, attributions=lambda: asks), TODAY)
    broken, found = page.items
    assert (broken.problem, broken.groups, found.problem) == ("InvalidScope", (), None)
    assert [(one.key, one.cost, one.use_cost, one.idle_cost) for one in found.groups] == [("x", 163.85, 49.16, 114.69)]


def test_money_is_rounded_half_to_even_as_the_ledger_rounds():
    found = [telling.money(nano) for nano in (5_000_000, 15_000_000, 5_000_001, 0, 12_345_000_000)]
    assert found == [0.0, 0.02, 0.01, 0.0, 12.34]


@pytest.mark.accepts("cost", 23)
def test_savings_add_up_to_the_cent_in_every_line_and_column() -> None:
    """Each amount rounded for itself would be off by a cent: 0.336 is 0.34 thrice, and 1.008 is 1.01."""
    rows = [
        cost.BookedSaving(id=kind, at=0, namespace="red", kind=kind, baseline=cost.UNIT * 1004 // 1000,
                          actual=cost.UNIT * 668 // 1000, saved=cost.UNIT * 336 // 1000, realised=True)
        for kind in list(cost.SavingKind)[:3]
    ]
    page = exact(telling.show_savings(rows, span=DAY_BEFORE, seen_until=TODAY, currency="USD", own=0, invested=0))
    for column in ("baseline", "actual", "saved"):
        assert sum(line[column] for line in page["lines"]) == page[column]
    assert all(line["baseline"] - line["actual"] == line["saved"] for line in page["lines"])
    assert (page["baseline"], page["saved"]) == (Decimal("3.01"), Decimal("1.01"))


async def test_what_has_no_price_is_told_beside_a_cost_of_nothing():
    some = cost_scenes.held("GPU-0", YESTERDAY, YESTERDAY + HOUR, cost_scenes.key("dark", "x"), rate=None)
    async with cost_scenes.opened(some) as ledger:
        asked = AllocationAsk(span=TimeSpan(YESTERDAY, TODAY), by=(cost.read_dimension("namespace"),))
        page = await allocation.read_allocations(CostBooks(ledger=ledger), asked)
    dark = page.data[0]["dark"]
    assert (dark.gpu_hours, dark.unpriced_gpu_hours, dark.total_cost) == (1.0, 1.0, 0.0)


async def test_a_price_that_was_taken_for_one_that_nobody_knows_is_told():
    guess = cost.BookedPrice(price_id=f"g{cost.ESTIMATE}", instance_type="p4d.24xlarge", retrieved_at=YESTERDAY)
    some = cost_scenes.held("GPU-0", YESTERDAY, YESTERDAY + HOUR, cost_scenes.key("red", "x"), price=guess.price_id)
    async with cost_scenes.opened(some, prices=(guess,)) as ledger:
        page = await cost_books.read_report(CostBooks(ledger=ledger), SpendAsk(span=DAY_BEFORE, by=(NAMESPACE,)))
        [shown] = (await cost_books.read_prices(CostBooks(ledger=ledger), TODAY)).items
    assert [one.price_id for one in page.estimated_prices] == [guess.price_id]
    assert page.stale_prices == ()
    assert (shown.is_estimated, shown.is_stale) == (True, False)
    assert "estimated prices were used, of p4d.24xlarge" in cost_pages.draw_report("whose", page)


async def test_more_allocations_than_anybody_reads_are_refused(monkeypatch):
    monkeypatch.setattr(allocation, "MOST_ALLOCATIONS", 3)
    asked = AllocationAsk(span=DAY_BEFORE, by=(NAMESPACE,), step=HOUR)
    async with cost_scenes.opened(cost_scenes.example()) as ledger:
        with pytest.raises(ValueError, match="allocations are more than 3; ask for longer steps, or aggregate them"):
            await allocation.read_allocations(CostBooks(ledger=ledger), asked)


@pytest.mark.parametrize(("written", "booked"), [("llm", "llm"), ("__idle__", "_idle__"), ("a\0b", "a\ufffdb")])
def test_whom_a_pod_says_to_belong_to_is_no_name_of_ours(written, booked):
    assert cost.as_foreign(written) == booked
