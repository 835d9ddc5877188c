"""How many nodes: never more than one above what no packing can do without, for mixes as people ask for them."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from tests.unit.decide.scaling.stage import GPU, grown, look, pod, policy, pool, sight

MIX = some.lists(
    some.tuples(some.integers(1, 8), some.integers(500, 48_000), some.integers(1000, 400_000)), min_size=1, max_size=50
)


def find_bound(asked: list[tuple[int, int, int]]) -> int:
    """By sums, and by GPUs alone as Martello and Toth bound it."""
    least = max(math.ceil(sum(each[at] for each in asked) / has) for at, has in enumerate((8, 96_000, 800_000)))
    gpus = [each[0] for each in asked]
    for cut in range(1, 5):
        middle = [count for count in gpus if 4 < count <= 8 - cut]
        small = sum(count for count in gpus if cut <= count <= 4)
        beside = math.ceil(max(0, small - (8 * len(middle) - sum(middle))) / 8)
        least = max(least, sum(count > 8 - cut for count in gpus) + len(middle) + beside)
    return least


@settings(max_examples=60, deadline=None)
@given(asked=MIX)
def test_at_most_one_node_more_than_any_packing_needs(asked: list[tuple[int, int, int]]) -> None:
    waiting = [
        pod(f"p{at}", asks={GPU: gpus, "cpu": cpu, "memory": memory}) for at, (gpus, cpu, memory) in enumerate(asked)
    ]
    made = look(sight(policy(pool(gpus=8, cpu=96, memory=800_000)), *waiting))
    assert find_bound(asked) <= sum(grown(made).values()) <= find_bound(asked) + 1


def plant(seed: int) -> tuple[int, list[tuple[int, int, int]]]:
    """Nodes that are full to the last byte, each cut into a few pods: how many, and what the pods ask for."""
    rng, asked, nodes = np.random.default_rng(seed), list[tuple[int, int, int]](), 0
    while True:
        pieces = int(rng.integers(3, 5))
        if len(asked) + pieces > 50:
            return nodes, asked
        cuts = [rng.choice(np.arange(1, has), pieces - 1, replace=False) for has in (8, 96_000, 800_000)]
        ends = [np.diff([0, *np.sort(cut), has]).tolist() for cut, has in zip(cuts, (8, 96_000, 800_000), strict=True)]
        asked += list(zip(*ends, strict=True))
        nodes += 1


@pytest.mark.parametrize("seed", range(40))
def test_at_most_one_more_where_the_least_leaves_nothing_free(seed: int) -> None:
    least, asked = plant(seed)
    waiting = [
        pod(f"p{at:02}", asks={GPU: gpus, "cpu": cpu, "memory": memory}) for at, (gpus, cpu, memory) in enumerate(asked)
    ]
    made = look(sight(policy(pool(gpus=8, cpu=96, memory=800_000)), *waiting))
    placed = [name for each in made.policies for grow in each.grows for name in grow.pods]
    assert len(placed) == len(set(placed)) == len(waiting)
    assert least <= sum(grown(made).values()) <= least + 1
