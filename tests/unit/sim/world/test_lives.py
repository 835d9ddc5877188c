"""Lives: what each kind of workload wants of its GPUs, hour by hour."""

import numpy as np
import pytest

from fallow.model.units import HOUR
from fallow.sim import cast
from fallow.sim.world import lives

DAY = lives.LifeSpan(cast.MONDAY, 60.0, 1440)


def draw(life: str, seed: int = 0, pods: int = 1, gpus: int = 1, span: lives.LifeSpan = DAY) -> lives.Percents:
    return lives.draw(life, span, pods, gpus, np.random.default_rng(seed))


def busy_hours(rows: lives.Percents) -> float:
    return float((rows >= lives.ACTIVE).mean() * 24)


@pytest.mark.parametrize("life", lives.LIVES)
def test_the_same_seed_gives_the_same_life_and_another_seed_another(life: str) -> None:
    once, again = draw(life, 3, 2, 4), draw(life, 3, 2, 4)
    assert once.shape == (8, 1440)
    assert (once == again).all()
    assert once.max() <= 100
    if life != "held":
        assert any((draw(life, seed, 2, 4) != once).any() for seed in range(4, 8))


@pytest.mark.parametrize(
    ("life", "least", "most"),
    [
        ("training", 10, 24), ("inference", 0.5, 24), ("notebook", 0.3, 6), ("batch", 24, 24), ("held", 0, 0),
        ("flapping", 2, 12),
    ],
)
def test_each_life_is_busy_for_as_long_as_its_kind_is(life: str, least: float, most: float) -> None:
    hours = np.mean([busy_hours(draw(life, seed)) for seed in range(40)])
    assert least <= hours <= most


def test_a_service_sleeps_at_night_and_a_notebook_is_left_open() -> None:
    hour = DAY.hours()
    served = np.stack([draw("inference", seed)[0] >= lives.ACTIVE for seed in range(60)])
    assert served[:, (hour >= 12) & (hour < 15)].mean() > 3 * served[:, (hour >= 0) & (hour < 4)].mean()
    typed = np.stack([draw("notebook", seed)[0] >= lives.ACTIVE for seed in range(60)])
    assert not typed[:, (hour >= 21) | (hour < 6)].any()


def test_training_stalls_but_not_for_long_until_it_ends_unnoticed() -> None:
    stalls = [run for seed in range(30) for run in _quiet_runs(draw("training", seed)[0])]
    assert stalls
    inner = [length for length, is_last in stalls if not is_last]
    assert max(inner) * 60 <= HOUR
    assert any(is_last and length * 60 > HOUR for length, is_last in stalls)


def _quiet_runs(row: lives.Percents) -> list[tuple[int, bool]]:
    edges = np.flatnonzero(np.diff(np.concatenate([[0], (row < lives.ACTIVE).astype(np.int8), [0]])))
    return [(int(end - begin), end == len(row)) for begin, end in zip(edges[::2], edges[1::2], strict=True)]


def test_the_leader_of_a_group_does_little_while_its_workers_work() -> None:
    rows = draw("group", 1, pods=3, gpus=2)
    assert rows[:2].max() <= 3
    assert rows[2:].max() > 50


def test_the_gpus_of_one_workload_are_quiet_at_the_same_time() -> None:
    rows = draw("training", 5, pods=2, gpus=4) >= lives.ACTIVE
    assert (rows == rows[0]).all()
