"""What past runs tell of the next one, with the error they had; and whether room is worth making."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fallow.decide import runs as predicting
from fallow.model.runs import LEAST_USE, SHORTEST, Foretold, PastRun, Preemption, Task

MONDAY = 1_794_787_200.0  # 00:00 UTC


def task(owner: str = "ml/train", at: float = 0.0, **more: object) -> Task:
    facts = {"namespace": "ml", "work_class": "training", "gpus": 1, **more}
    return Task(owner=owner, begins_at=MONDAY + 60 * at, **facts)  # type: ignore[arg-type]


def past(owners: dict[str, float], times: int = 20, noise: float = 0.05, seed: int = 1) -> list[PastRun]:
    """Each owner's runs last about as long as the last one did, one after the other."""
    chance, found = random.Random(seed), []
    for owner, minutes in owners.items():
        at = 0.0
        for _ in range(times):
            lasted = minutes * (1 + chance.uniform(-noise, noise))
            found.append(PastRun(task=task(owner, at), minutes=lasted, use=min(1.0, minutes / 1000)))
            at += 300
    return found


OWNERS = {"ml/short": 12.0, "ml/middle": 90.0, "ml/long": 280.0}


@pytest.mark.parametrize("owner", OWNERS)
def test_a_workload_runs_as_long_as_it_usually_does_and_the_error_is_beside_it(owner: str) -> None:
    found = predicting.past_minutes(past(OWNERS)).predict(task(owner, 9999))
    assert found is not None
    assert found.by is Foretold.owner
    assert found.value == pytest.approx(OWNERS[owner], rel=0.05)
    assert found.error < 10 < found.rival
    assert found.samples == 60


def test_of_few_runs_nothing_is_foretold() -> None:
    assert predicting.past_minutes(past({"a": 10.0, "b": 99.0}, times=14)).predict(task("a")) is None


def test_what_is_no_better_than_the_median_of_all_is_not_shown() -> None:
    """Owners who have nothing to do with how long something runs."""
    chance = random.Random(3)
    lasted = [chance.choice([5.0, 5.0, 5.0, 500.0]) for _ in range(300)]
    found = [PastRun(task=task(f"o{n % 20}", 30 * n), minutes=minutes) for n, minutes in enumerate(lasted)]
    model = predicting.past_minutes(found)
    error, rival = model.errors[Foretold.owner]
    assert error >= rival
    assert model.predict(task("o1", 1e5)) is None


def test_who_has_no_past_is_as_its_like_drawn_to_its_class() -> None:
    known = [
        PastRun(task=task(f"new-{n}", 20 * n, namespace="lab" if n % 2 else "web"), minutes=100.0 if n % 2 else 20.0)
        for n in range(100)
    ]
    found = predicting.past_minutes(known).predict(task("another", 9999, namespace="lab"))
    assert found is not None
    assert found.by is Foretold.group
    assert 90 < found.value < 100  # fifty of its like against a class that means 60


def test_who_is_like_nobody_lies_on_the_line_through_all() -> None:
    known = [PastRun(task=task(f"o{n}", 40 * n, namespace=f"n{n}", gpus=1 + n % 8), minutes=30.0 * (1 + n % 8))
             for n in range(200)]
    found = predicting.past_minutes(known).predict(task("x", 9999, namespace="n-new", gpus=6))
    assert found is not None
    assert found.by is Foretold.features
    assert found.value == pytest.approx(180, rel=0.1)
    assert found.error < found.rival


def test_runs_that_had_not_ended_foretell_nothing() -> None:
    """All at once: each began before any other had ended."""
    found = [PastRun(task=task(f"o{n % 3}", n / 100), minutes=60.0 + n % 3) for n in range(90)]
    model = predicting.past_minutes(found)
    assert model.errors == {}
    assert model.predict(task("o1", 1e5)) is None


def test_use_that_was_not_measured_is_no_run_without_use() -> None:
    unmeasured = [PastRun(task=each.task, minutes=each.minutes) for each in past(OWNERS)]
    assert predicting.past_use(unmeasured).predict(task("ml/long")) is None
    found = predicting.past_use([*unmeasured, *past(OWNERS)]).predict(task("ml/long", 9999))
    assert found is not None
    assert found.value == pytest.approx(0.28)


@given(st.lists(st.tuples(st.integers(0, 4), st.floats(0, 1e6), st.floats(0, 1e5), st.floats(0, 1)), max_size=80))
def test_what_is_foretold_is_within_bounds(rows: list[tuple[int, float, float, float]]) -> None:
    known = [PastRun(task=task(f"o{owner}", at), minutes=lasted, use=use) for owner, at, lasted, use in rows]
    minutes = predicting.past_minutes(known).predict(task("o1", 2e6))
    use = predicting.past_use(known).predict(task("o2", 2e6))
    assert minutes is None or (minutes.value >= SHORTEST and minutes.error < minutes.rival)
    assert use is None or LEAST_USE <= use.value <= 1


@pytest.mark.parametrize(("age", "rest"), [(0, 20.0), (15, 10.0), (29, 1.0), (31, None)])
def test_what_remains_is_what_those_that_ran_as_long_still_had(age: float, rest: float | None) -> None:
    known = [PastRun(task=task("a"), minutes=minutes) for minutes in (10.0, 20.0, 30.0)]
    known.append(PastRun(task=task("other"), minutes=1e4))
    assert predicting.expect_rest(known, task("a"), age) == rest


@pytest.mark.accepts("packing", 22)
@pytest.mark.parametrize(("changes", "reason"), [
    ({}, Preemption.WorthIt),
    ({"incoming": 30.0}, Preemption.NotShortEnough),
    ({"remaining": None}, Preemption.RestUnknown),
    ({"incoming": None}, Preemption.DurationUnknown),
    ({"fixed": "somebody keeps it"}, Preemption.NotMovable),
    ({"running_priority": None}, Preemption.PriorityUnknown),
    ({"incoming_priority": 100}, Preemption.PriorityNotHigher),
    ({"incoming_priority": 99}, Preemption.PriorityNotHigher),
], ids=lambda value: str(value))
def test_room_is_made_for_who_is_more_important_and_short(changes: dict[str, object], reason: Preemption) -> None:
    facts = {"running_priority": 100, "incoming_priority": 200, "fixed": "", "remaining": 100.0,
             "incoming": 29.0, **changes}
    advice = predicting.advise_preemption(**facts)  # type: ignore[arg-type]
    assert advice.reason is reason
    assert advice.is_yes == (reason is Preemption.WorthIt)
    assert advice.because


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("hostile", [
    {"minutes": NAN}, {"minutes": INF}, {"minutes": -INF}, {"minutes": -5.0}, {"minutes": 1e300}, {"use": NAN},
    {"use": 1e300}, {"use": -1.0}, {"at": NAN}, {"at": INF}, {"at": -1e18}, {"at": 1e18}, {"gpus": 10**400},
    {"memory_gib": INF}, {"cores": NAN},
], ids=str)
def test_a_run_that_cannot_be_true_spoils_nothing_for_the_others(hostile: dict[str, float]) -> None:
    told = {key: hostile[key] for key in ("at", "gpus", "memory_gib", "cores") if key in hostile}
    measured = {"minutes": 12.0, "use": 0.5} | {key: hostile[key] for key in ("minutes", "use") if key in hostile}
    odd = [PastRun(task=task("evil/x", **told), **measured)] * 50  # type: ignore[arg-type]
    honest = past(OWNERS)
    plain, mixed = predicting.RunPast(honest), predicting.RunPast([*odd, *honest, *odd])
    for owner in (*OWNERS, "ml/new"):
        assert mixed.foretell(task(owner, 9999), 5.0) == plain.foretell(task(owner, 9999), 5.0)
    assert mixed.foretell(task("evil/x", 9999), 5.0).own == 0


@given(st.lists(st.tuples(st.floats(), st.floats() | st.none(), st.floats(), st.integers()), min_size=30, max_size=60))
def test_whatever_stands_in_the_books_nothing_raises_and_figures_are_figures(
    rows: list[tuple[float, float | None, float, int]]
) -> None:
    found = [
        PastRun(task=Task(owner=f"o{n % 3}", namespace="ml", work_class="batch", gpus=gpus, begins_at=at),
                minutes=minutes, use=use)
        for n, (minutes, use, at, gpus) in enumerate(rows)
    ]
    said = predicting.RunPast([*found, *past(OWNERS)]).foretell(task("o1", 9999), 3.0)
    for each in (said.minutes, said.use, said.rest):
        assert each is None or (abs(each.value) < 1e12 and each.error <= each.rival)
