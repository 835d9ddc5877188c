"""What a removed node saves: until as much is added again, and nothing for what we had added ourselves."""

import pytest

from fallow.account import audit, saving_books
from fallow.model import cluster
from fallow.model.history import AuditEntry, CameBy, Happened
from fallow.model.units import HOUR


def removed(at: float, node: str, pool: str = "a", policy: str = "p") -> AuditEntry:
    ref = cluster.Ref("", "v1", "Node", "", node, node)
    return entry(Happened.node_removed, at, pool, policy, gpus=8, ref=ref)


def added(at: float, gpus: int | None, pool: str = "a", policy: str = "p") -> AuditEntry:
    return entry(Happened.nodes_added, at, pool, policy, gpus=gpus)


def entry(
    type_: Happened, at: float, pool: str, policy: str, *, gpus: int | None, ref: cluster.Ref | None = None
) -> AuditEntry:
    return AuditEntry(
        at=at * HOUR, type=type_, sentence="", actor="", source=CameBy.cycle, ref=ref, policy=policy, detail=pool,
        gpus=gpus, per_hour=10.0,
    )


CASES = {
    "gone-until-now": ([removed(1, "x")], {"x": 10}),
    "until-its-pool-grows": ([removed(1, "x"), added(4, 8)], {"x": 4}),
    "until-another-pool-of-the-policy-grows": ([removed(1, "x"), added(4, 8, pool="b")], {"x": 4}),
    "another-policy-is-no-matter": ([removed(1, "x"), added(4, 8, policy="q")], {"x": 10}),
    "only-as-many-as-come-the-last-first": ([removed(1, "x"), removed(2, "y"), added(4, 8)], {"x": 10, "y": 4}),
    "unknown-many-stand-for-all": ([removed(1, "x"), removed(2, "y"), added(4, None)], {"x": 4, "y": 4}),
    "what-we-added-ourselves-saves-nothing": (
        [added(1, 16), removed(2, "x"), removed(3, "y"), removed(4, "z")], {"z": 10},
    ),
    "a-burst-that-passes": ([removed(1, "x"), added(4, 16), removed(6, "y"), removed(7, "z")], {"x": 4, "z": 10}),
    "unknown-many-may-be-all-that-go": ([added(1, None), removed(2, "x")], {}),
}


@pytest.mark.parametrize(("entries", "until"), CASES.values(), ids=CASES.keys())
def test_a_removed_node_saves_until_as_much_is_added(entries: list[AuditEntry], until: dict[str, int]) -> None:
    for given in (entries, entries[::-1]):
        found = saving_books.find_removed(given, 10 * HOUR)
        assert {each.node: each.until / HOUR for each in found} == until


async def test_what_was_added_long_before_it_went_saves_nothing_however_late_it_is_looked_at() -> None:
    """Savings of two days are made anew each hour: an addition must not be forgotten before its removal is."""
    kept = audit.Audit(None)
    await kept.open()
    for each in (added(12, 8), removed(36, "x"), removed(40, "y")):
        await kept.enter(each)
    for begin in (0, 24, 36):
        found = await saving_books.read_removed(kept, begin * HOUR, 60 * HOUR)
        assert [each.node for each in found] == ["y"]
    assert await saving_books.read_removed(kept, 48 * HOUR, 60 * HOUR) == []
    await kept.close()
