"""Small clusters and pods for the tests of the packing engine, by hand and by chance."""

import msgspec
import numpy as np
from hypothesis import strategies as st

from fallow.decide import packing
from fallow.decide.packing import policies, prices
from fallow.decide.packing.room import Ints, Nodes, PackingNode, PackingPod

MODELS = ("A100", "T4", "V100")
SIZES = (50, 250, 300, 460, 500, 700, 1000)
DETERMINED = ("FirstFit", "BestFit", "WorstFit", "DotProd", "GPUClustering", "GPUPacking", "FGD", "SPP", "Balanced")


def node(
    name: str = "n", model: str = "T4", cpu: int = 64_000, memory: int = 262_144, gpus: int = 4, pods: int = 1 << 40
) -> PackingNode:
    return PackingNode(name, model, cpu, memory, gpus, pods)


def cluster(*rows: PackingNode) -> Nodes:
    return Nodes([msgspec.structs.replace(row, name=f"{row.name}-{i}") for i, row in enumerate(rows)])


def pod(
    gpus: int = 1, milli: int = 1000, cpu: int = 4_000, memory: int = 8_192, models: tuple[str, ...] = (),
    name: str = "p",
) -> PackingPod:
    return PackingPod(name, cpu, memory, gpus, milli if gpus else 0, models)


def in_row(nodes: Nodes) -> Ints:
    return np.arange(len(nodes))


def make_policy(name: str, nodes: Nodes, sample: list[PackingPod], seed: int = 0) -> packing.PackingPolicy:
    """SPP and Balanced at prices drawn by the seed: their choice must hold at any prices, and drawing is faster."""
    if name not in policies.PRICED:
        return packing.prepare(name, nodes, sample, seed)
    rng, groups = np.random.default_rng(seed), nodes.groups
    nu = np.cumsum(rng.exponential(0.002, (len(groups), 1001)), axis=1)
    drawn = prices.Prices(groups, rng.uniform(0, 0.05, len(groups)), rng.uniform(0, 2, len(groups)), nu)
    return packing.prepare(name, nodes, sample, seed, known=drawn)


nodes_by_chance = st.lists(
    st.builds(
        PackingNode, name=st.just("n"), model=st.sampled_from(MODELS), cpu=st.sampled_from((8_000, 16_000, 96_000)),
        memory=st.sampled_from((16_384, 131_072)), gpus=st.sampled_from((0, 1, 2, 4, 8)),
        pods=st.sampled_from((3, 110)),
    ),
    min_size=1, max_size=6,
).map(lambda rows: cluster(*rows))


@st.composite
def pods_by_chance(draw: st.DrawFn) -> PackingPod:
    gpus = draw(st.sampled_from((0, 1, 1, 1, 2, 4)))
    milli = 0 if not gpus else 1000 if gpus > 1 else draw(st.sampled_from(SIZES))
    models = draw(st.sampled_from(((), (), (), ("T4",), ("A100", "V100"), ("Nowhere",))))
    cpu, memory = draw(st.sampled_from((0, 500, 4_000, 12_000))), draw(st.sampled_from((0, 4_096, 30_000)))
    return PackingPod("p", cpu, memory, gpus, milli, models)


# A story: pods come (an index of a pod), and now and then one that came before leaves (True).
stories = st.lists(
    st.tuples(pods_by_chance(), st.sampled_from((False, False, False, True)), st.integers(0, 99)),
    min_size=1, max_size=25,
)
