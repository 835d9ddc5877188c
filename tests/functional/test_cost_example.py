"""The example of docs/cost-model.md, to the digit: a day of one node, looked at every minute.

Nothing here knows the table: it is read from the document.
"""

import re
from fractions import Fraction

import msgspec
import pytest

from fallow.account.intervals import Batch
from fallow.account.ledger import Ledger
from fallow.model import cost
from fallow.model.cluster import Departure
from fallow.model.cost import (
    UNIT,
    WHOLE,
    Amounts,
    BookedBatch,
    CostBatch,
    CostFilter,
    CostQuery,
    SpendState,
)
from tests import ROOT
from tests.unit.account.paper import DAY0, Scene, held_rows

HOUR = 3600
COLUMNS = ("hours", "cost", "used", "held, not used", "held idle", "cannot tell", "nobody held it")


def read_table() -> dict[str, dict[str, Fraction]]:
    page = (ROOT / "docs" / "cost-model.md").read_text()
    rows = [line.strip("|").split("|") for line in page.splitlines() if line.startswith("| ") and "USD" not in line]
    table = {}
    for cells in rows:
        name, *values = (cell.strip().strip("*") for cell in cells)
        if name in ("red, 00–06", "red, 06–10", "blue", "green", "sum") or name.startswith("nobody"):
            numbers = (re.findall(r"[\d.]+", value.rpartition("=")[2]) for value in values)
            table[name] = {
                column: Fraction(found[0]) if found else Fraction(0)
                for column, found in zip(COLUMNS, numbers, strict=True)
            }
    return table


class Day(Scene):
    def __init__(self) -> None:
        super().__init__()
        self.batches: list[Batch] = []


@pytest.fixture(scope="module")
def day() -> Day:
    """Red ends its work at 6:00 and is paused at 10:00; blue's exporter is down from 12:00 to 18:00."""
    scene = Day()
    per_gpu = 32_770_000_000 // 8
    turns = {"nvidia.com/gpu.replicas": "4"}
    # One GPU in turns, seven as they are: as two nodes, since the plugin divides all GPUs of a node alike.
    scene.node("big", 7, per_gpu)
    scene.node("turns", 4, per_gpu, shared=True, labels=turns)
    world = scene.world
    red = world.pod("red", node="big", resources={"nvidia.com/gpu": 4}, labels={"team": "red"}, bound_at=float(DAY0))
    blue = world.pod("blue", node="big", labels={"team": "blue"}, bound_at=float(DAY0))
    world.pod("green", node="turns", resources={"nvidia.com/gpu": 3}, labels={"team": "green"}, bound_at=float(DAY0))
    pods = list(world.pods)
    for now in range(DAY0, DAY0 + 24 * HOUR + 1, 60):
        hour = (now - DAY0) / HOUR
        idle_since = float(DAY0 + 6 * HOUR) if hour >= 6.5 else None  # the rule asks for half an hour
        busy = 0.5 if hour < 6 else 0.0
        rows = [(red, f"GPU-{at}", idle_since, busy) for at in range(4)] if hour < 10 else []
        if not 12 <= hour < 18:
            rows.append((blue if hour < 10 else 0, "GPU-4", None, 0.8))
        seen = pods if hour < 10 else pods[1:]
        gone = [Departure(pods[0], float(DAY0 + 10 * HOUR))] if hour == 10 else []
        if now % HOUR == 0 and now > DAY0:
            settle_use(scene, now - HOUR)
        scene.batches.append(scene.look(now, seen, gone, rows=held_rows(rows)))
    return scene


def settle_use(scene: Scene, hour: int) -> None:
    """What Prometheus says of the hour that ended: red works until six."""
    for uid, holdings in scene.books.holdings.items():
        for holding in holdings:
            if uid.startswith("uid-red"):
                scene.book.measure(holding, hour, 500_000 if hour < DAY0 + 6 * HOUR else 0, is_final=True)
            elif uid.startswith("uid-blue") and not DAY0 + 12 * HOUR <= hour < DAY0 + 18 * HOUR:
                scene.book.measure(holding, hour, 800_000, is_final=True)


def measure(scene: Scene, **of: object) -> dict[str, Fraction]:
    paper, used = scene.paper, scene.paper.used(**of)
    return {
        "hours": paper.hours(**of), "cost": paper.cost(**of), "used": used,
        "held, not used": paper.cost(**of, state=SpendState.used) - used,
        "held idle": paper.cost(**of, state=SpendState.held_idle),
        "cannot tell": paper.cost(**of, state=SpendState.use_unknown),
        "nobody held it": paper.cost(**of, state=SpendState.unallocated),
    }


def between(scene: Scene, begin: int, end: int) -> Scene:
    """The same ledger, cut to some hours."""
    cut = Scene()
    cut.paper.at = DAY0 + end * HOUR
    replace = msgspec.structs.replace
    for each in scene.paper.intervals:
        t0, t1 = max(each.t0, DAY0 + begin * HOUR), min(each.t1, DAY0 + end * HOUR)
        if t0 < t1:
            first = t0 // HOUR - each.t0 // HOUR
            cut.paper.rows[f"{each.id}{t0}"] = replace(each, t0=t0, t1=t1, is_open=False, use=each.use[first:])
    return cut


ROWS = [
    ("red, 00–06", {"team": "red"}, (0, 6)), ("red, 06–10", {"team": "red"}, (6, 24)),
    ("blue", {"team": "blue"}, (0, 24)), ("green", {"team": "green"}, (0, 24)),
    ("nobody: the fourth slot", {"node": "turns", "state": SpendState.unallocated}, (0, 24)),
    ("sum", {}, (0, 24)),
]


@pytest.mark.accepts("cost", 1)
@pytest.mark.parametrize(("row", "of", "hours"), ROWS)
def test_a_row_of_the_table(day, row, of, hours):
    found = between(day, *hours)
    said = read_table()[row]
    if "state" in of:
        assert found.paper.cost(**of) == said["cost"] == said["nobody held it"]
        assert found.paper.hours(**of) == said["hours"]
    else:
        assert measure(found, **of) == said


def test_what_nobody_held_on_the_big_node(day):
    table = read_table()
    free = day.paper.cost(node="big", state=SpendState.unallocated)
    assert free == table["nobody: red's 4 after 10:00"]["cost"] + table["nobody: the two others"]["cost"]


def test_it_was_written_seldom(day):
    """1441 looks at ten holdings; some for each hour that begins or is measured, and no more."""
    assert day.paper.written < 24 * 2 * 12 + 100
    assert len(day.paper.rows) < 60


# ---- the same out of the ledger --------------------------------------------------------------------------------------


@pytest.mark.accepts("cost", 1, 6)
@pytest.mark.parametrize("rolls", [False, True], ids=["from-intervals", "rolled-up"])
async def test_the_ledger_has_the_table_wherever_it_is(day, new_place, rolls):
    """Written look by look; summed by its own questions."""
    kept = new_place().ledger()
    await kept.open()
    for batch in day.batches:
        if batch.intervals or batch.removed or batch is day.batches[-1]:
            written = CostBatch(at=batch.at, intervals=batch.intervals, removed=batch.removed)
            assert await kept.write(written, 1) == BookedBatch()
        if rolls and batch.at % (5 * HOUR) == 0:
            await kept.roll_up(batch.at - 2 * HOUR, 1)
    if rolls:
        assert await kept.roll_up(DAY0 + 24 * HOUR, 1) == DAY0 + 24 * HOUR
    try:
        for row, of, hours in ROWS:
            found, said = await ask(kept, of, hours), read_table()[row]
            assert found == (said if "state" not in of else {name: said[name] for name in found}), row
    finally:
        await kept.close()


async def ask(kept: Ledger, of: dict[str, str], hours: tuple[int, int]) -> dict[str, Fraction]:
    where = tuple(
        CostFilter(cost.read_dimension(name), frozenset({value})) for name, value in of.items() if name != "state"
    )
    begin, end = (DAY0 + hour * HOUR for hour in hours)
    sums = await kept.sums(CostQuery(begin=begin, end=end, where=where))
    parts = sums[0].parts
    if "state" in of:
        mine = parts[SpendState(of["state"])]
        return {"hours": Fraction(mine.gpu_micro_seconds, HOUR * WHOLE), "cost": money(mine.cost)}
    used, spent = parts.get(SpendState.used, Amounts()), sums[0].total
    return {
        "hours": Fraction(spent.gpu_micro_seconds, HOUR * WHOLE), "cost": money(spent.cost),
        "used": money(used.use_cost), "held, not used": money(used.cost - used.use_cost),
        **{name: money(parts.get(state, Amounts()).cost) for name, state in (
            ("held idle", SpendState.held_idle), ("cannot tell", SpendState.use_unknown),
            ("nobody held it", SpendState.unallocated),
        )},
    }


def money(nano: int) -> Fraction:
    return Fraction(nano, UNIT)
