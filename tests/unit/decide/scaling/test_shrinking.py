"""Which nodes may go, in which order, how many at a time; and why all others stay."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from tests.unit.decide.scaling.stage import (
    DAEMON,
    GPU,
    NOW,
    RESERVED,
    SPOT,
    daemon,
    first,
    fits,
    groups_of,
    grown,
    long_unneeded,
    look,
    node,
    pod,
    policy,
    pool,
    released,
    sight,
    stays,
)

from fallow.decide import scaling
from fallow.model import units
from fallow.model.machines import CloudMachine, MachineState
from fallow.model.policies.scaling import DisruptionWindow, NodeLimit, ShrinkOrder
from fallow.model.scaling import DrainKind, DrainRecord, ScaledNode, ScaledPod, ScalingMemory, ScalingSight, SpotRecord
from fallow.model.scaling_plan import Brake
from fallow.model.schedule import Schedule
from fallow.model.seen import ABSENT, Known, Unseen

ALL = NodeLimit(1000)


def three(*more: Any, rule: Any = None, **about: Any) -> ScalingSight:
    """Two nodes at work, and n2, on which only a daemon runs."""
    nodes = [node(f"n{number}", **(about.get(f"n{number}", {}))) for number in range(3)]
    busy = [pod(f"b{number}", 8, f"n{number}") for number in range(2)]
    return sight(rule, *nodes, *busy, daemon("d", "n2"), *more, **about.get("sight", {}))


RIPE = long_unneeded(node("n0"), node("n1"), node("n2"))


@pytest.mark.accepts("scaling", 10)
def test_exactly_the_one_that_was_empty_for_long_goes() -> None:
    made = look(three())
    assert released(made) == []
    assert made.memory.unneeded == {"uid-n2": NOW}
    assert released(look(three(), made.memory, NOW + 599)) == []
    later = look(three(), made.memory, NOW + 600)
    assert released(later) == ["n2"]
    assert first(later).releases[0].kind is DrainKind.empty
    assert first(later).desired == 2


def test_a_node_whose_machine_is_of_no_group_of_the_policy_stays() -> None:
    """Of another group with the same type of machine: nobody could remove it once it is empty."""
    def listed(*names_of: str, **more: Any) -> dict[str, Any]:
        made = (CloudMachine(**{
            "id": each, "group": "group-main", "state": MachineState.running, "provider_id": f"cloud://{each}", **more,
        }) for each in names_of)
        return {"sight": {"machines": {"default": Known(tuple(made))}}}

    assert released(look(three(**listed("n0", "n1", "n2")), RIPE)) == ["n2"]
    for machines in (listed("n0", "n1"), listed("n0", "n1", "n2", state=MachineState.gone)):
        other = look(three(**machines), RIPE)
        assert released(other) == []
        assert stays(other)["n2"] == "NotOurs"


@pytest.mark.parametrize(
    ("later", "lasts"), [(30.0, True), (150.0, True), (151.0, False), (7200.0, False), (-31.0, False)]
)
def test_what_nobody_looked_at_did_not_last(later: float, lasts: bool) -> None:
    """A lost Lease, cycles that failed, a clock that was set: who was busy meanwhile is not known."""
    memory = look(three(), long_unneeded(node("n2"), busy={"default": NOW - 400})).memory
    bridged = scaling.bridge(memory, NOW + later, 150.0)
    assert bool(bridged.unneeded) is lasts
    assert bool(memory.unneeded)
    assert scaling.bridge(long_unneeded(node("n2")), NOW, 150.0).unneeded, "as it comes from nowhere"
    full = msgspec.structs.replace(memory, busy={"default": NOW}, failures={"default": (2, NOW)})
    assert bool(scaling.bridge(full, NOW + later, 150.0).busy) is lasts
    assert scaling.bridge(full, NOW + later, 150.0).failures == {"default": (2, NOW)}


@pytest.mark.accepts("scaling", 10)
@pytest.mark.parametrize("key", ["lastScaleUpTime", "lastScaleDownTime"])
@pytest.mark.parametrize(("ago", "goes"), [(599, False), (600, True), (-1000, False)])
def test_the_rest_counts_from_what_was_done(key: str, ago: float, goes: bool) -> None:
    rule = policy(status={key: units.rfc3339(NOW - ago)})
    assert (released(look(three(rule=rule), RIPE)) == ["n2"]) is goes


def test_who_came_meanwhile_begins_anew() -> None:
    made = look(three(pod("new", 1, "n2")), RIPE)
    assert stays(made)["n2"] == "Busy"
    assert made.memory.unneeded == {}


@pytest.mark.accepts("scaling", 1)
def test_nothing_goes_while_nothing_is_measured() -> None:
    made = look(three(sight={"measured": "Prometheus is away"}), RIPE)
    assert released(made) == []
    assert stays(made)["n2"] == "UseUnknown"
    assert "Prometheus is away" in first(made).because
    partly = look(three(n0={"use": None}), RIPE)
    assert released(partly) == []
    assert first(partly).use is None


@pytest.mark.parametrize("about", [
    {"kept": "karpenter.sh/do-not-disrupt"}, {"is_cordoned": True}, {"tier": RESERVED}, {"pool": ""},
    {"prewarmed_until": NOW + 1}, {"rests_until": NOW + 1}, {"is_broken": True}, {"is_going": True},
    {"warned_at": NOW}, {"spot": SpotRecord(1, "default", NOW, NOW + 120, True)}, {"is_ready": False},
    {"drain": DrainRecord(1, "default", NOW, DrainKind.empty, "nobody", True)},
], ids=lambda about: next(iter(about)))
def test_who_is_spoken_for_stays(about: dict[str, Any]) -> None:
    made = look(three(n2=about), RIPE)
    assert "n2" not in released(made)
    assert "n2" in stays(made)


def test_what_consolidation_emptied_goes_although_it_is_cordoned() -> None:
    assert released(look(three(n2={"is_cordoned": True, "is_emptied": True}), RIPE)) == ["n2"]


@pytest.mark.accepts("scaling", 7)
def test_reserved_nodes_go_last_and_only_where_they_may() -> None:
    rule = policy(pool(releases_reserved=True), disruption=ALL)
    idle = [node("n0", tier=RESERVED, price=99.0), node("n1")]
    memory = long_unneeded(*idle)
    busy = [node("n2"), pod("b", 8, "n2")]
    assert released(look(sight(rule, *idle, *busy), memory)) == ["n1"]
    assert released(look(sight(rule, idle[0], *busy), memory)) == ["n0"]
    assert released(look(sight(policy(disruption=ALL), idle[0], *busy), memory)) == []


# ---- squatted --------------------------------------------------------------------------------------------------------


@pytest.mark.accepts("scaling", 14)
def test_a_gpu_node_that_only_serves_as_a_cpu_node_is_released() -> None:
    squatter = pod("web", 0, "n2")
    plain = node("cpu", gpus=0)
    made = look(three(squatter, plain), RIPE)
    assert released(made) == ["n2"]
    assert first(made).releases[0].kind is DrainKind.squatted
    assert first(made).releases[0].moves == ((squatter.id, "cpu"),)


@pytest.mark.accepts("scaling", 14)
def test_a_squatter_that_fits_nowhere_keeps_its_node() -> None:
    large = pod("web", 0, "n2", asks={"cpu": 96_000})
    made = look(three(large, node("cpu", gpus=0, has={"cpu": 4000, "memory": 4000})), RIPE)
    assert stays(made)["n2"] == "NoRoomElsewhere"
    assert released(made) == []
    fixed = look(three(pod("web", 0, "n2", fixed="nobody makes it again"), node("cpu", gpus=0)), RIPE)
    assert stays(fixed)["n2"] == "Unmovable"


def test_one_gpu_node_does_not_squat_for_another() -> None:
    """Two of them, and no other home: at most one goes, to the one that stays."""
    nodes = [node("n0"), node("n1")]
    squatters = [pod("a", 0, "n0"), pod("b", 0, "n1")]
    assert released(look(sight(policy(disruption=ALL), *nodes, *squatters), long_unneeded(*nodes))) == ["n1"]


# ---- under-used ------------------------------------------------------------------------------------------------------


def quiet(use: float | None, *more: Any, count: int = 2, **about: Any) -> ScalingSight:
    """n0 has room for 4, n1 holds a pod of 2 and is used so much."""
    there = [node("n0", use=0.9), pod("a", 4, "n0"), node("n1", use=use), pod("b", count, "n1", **about)]
    return sight(policy(shrink_below=0.2), *there, *more)


@pytest.mark.parametrize(("use", "goes"), [(0.0, True), (0.19, True), (0.2, False), (0.9, False)])
def test_an_under_used_node_goes_where_its_pods_fit_elsewhere(use: float, goes: bool) -> None:
    made = look(quiet(use), long_unneeded(node("n1")))
    assert (released(made) == ["n1"]) is goes
    if goes:
        assert [(each.name, where) for each, where in first(made).releases[0].moves] == [("b", "n0")]


@pytest.mark.parametrize(("seen", "stay"), [
    (quiet(0.1, count=5), "NoRoomElsewhere"), (quiet(0.1, fixed="somebody keeps it"), "Unmovable"),
    (quiet(0.1, unclear="asks by a claim"), "Unmovable"), (quiet(0.1, is_going=True), "Needed"),
    (quiet(0.1, node_selector={"zone": "b"}), "NoRoomElsewhere"),
], ids=["large", "fixed", "unclear", "going", "selective"])
def test_an_under_used_node_stays_where_they_do_not(seen: ScalingSight, stay: str) -> None:
    made = look(seen, long_unneeded(node("n1")))
    assert released(made) == []
    assert stays(made)["n1"] == stay


def test_nodes_go_together_only_if_there_is_room_for_all() -> None:
    """Two pods of 3, and one hole of 4."""
    nodes = [node("n0", use=0.9), node("n1", use=0.1), node("n2", use=0.1)]
    there = [pod("a", 4, "n0"), pod("b", 3, "n1"), pod("c", 3, "n2")]
    made = look(sight(policy(disruption=ALL), *nodes, *there), long_unneeded(*nodes))
    assert len(released(made)) == 1


def test_an_under_used_node_that_takes_others_in_stays() -> None:
    nodes = [node("n1", use=0.1), node("n2", use=0.1)]
    there = [pod("b", 3, "n1"), pod("c", 3, "n2")]
    made = look(sight(policy(disruption=ALL), *nodes, *there), long_unneeded(*nodes))
    assert released(made) == ["n1"]
    assert stays(made) == {"n1": "Releasing", "n2": "Needed"}


# ---- order and count -------------------------------------------------------------------------------------------------


def idle(count: int, busy: int = 0, **about: Any) -> list[ScaledNode | ScaledPod]:
    made: list[ScaledNode | ScaledPod] = [node(f"n{number:02}", **about) for number in range(count)]
    for number in range(busy):
        made += [node(f"m{number:02}"), pod(f"x{number}", 8, f"m{number:02}")]
    return made


def go(things: list[Any], **about: Any) -> list[str]:
    nodes = [each for each in things if isinstance(each, ScaledNode)]
    return released(look(sight(policy(**about), *things), long_unneeded(*nodes)))


@pytest.mark.parametrize(("empty", "busy", "limit", "count"), [
    (1, 0, ALL, 1), (4, 0, ALL, 1), (4, 1, ALL, 1), (10, 0, ALL, 2), (3, 12, ALL, 3), (10, 15, ALL, 5),
    (10, 15, NodeLimit(2), 2), (10, 15, NodeLimit(percent=10), 3), (10, 15, NodeLimit(0), 0),
])
def test_few_go_at_a_time_and_one_always(empty: int, busy: int, limit: NodeLimit, count: int) -> None:
    assert len(go(idle(empty, busy), disruption=limit)) == count


def test_nodes_that_are_away_anyway_count_against_the_budget() -> None:
    things = [*idle(10, 8), node("z1", is_ready=False), node("z2", is_going=True)]
    assert len(go(things, disruption=NodeLimit(3))) == 1
    assert len(go(things, disruption=NodeLimit(2))) == 0


@pytest.mark.parametrize("about", [{"least": 10}, {"pools": (pool(least=10),)}], ids=["policy", "pool"])
def test_nothing_goes_below_the_minimum(about: dict[str, Any]) -> None:
    assert go(idle(10), disruption=ALL, **about) == []
    assert len(go(idle(11), disruption=ALL, **about)) == 1


def test_kinds_then_price_then_use() -> None:
    plain = node("cpu", gpus=0)
    nodes = [
        node("empty-cheap", price=1.0), node("empty-dear", price=9.0), node("empty-unknown", price=None),
        node("squatted", price=99.0), node("used-less", price=50.0, use=0.01), node("used", price=50.0, use=0.1),
    ]
    guests = [pod("s", 0, "squatted"), pod("u", 1, "used-less"), pod("v", 1, "used")]
    homes = [each for number in range(24) for each in (node(f"m{number}", use=0.9), pod(f"x{number}", 6, f"m{number}"))]
    gone = go([plain, *nodes, *guests, *homes], disruption=ALL)
    assert gone == ["empty-dear", "empty-cheap", "empty-unknown", "squatted", "used-less", "used"]


def test_of_nodes_that_cost_the_same_by_the_gpu_the_one_that_saves_most_goes_first() -> None:
    small = [node(f"a{number}", gpus=1, price=1.0) for number in range(2)]
    things = [*small, node("z", gpus=8, price=8.0), node("m", use=0.9), pod("x", 8, "m")]
    assert go(things, disruption=ALL) == ["z"]


def test_spot_first_where_people_want_it() -> None:
    things = [node("dear", price=99.0), node("spot", price=1.0, tier=SPOT), node("m", use=0.9), pod("x", 8, "m")]
    assert go(things, disruption=ALL) == ["dear"]
    assert go(things, disruption=ALL, shrink_order=ShrinkOrder.spot_first) == ["spot"]


def test_a_window_of_calm_lets_nothing_go() -> None:
    at = Schedule("* * * * *", "UTC")
    frozen = DisruptionWindow(at, 3600.0, NodeLimit(0))
    made = look(sight(policy(windows=(frozen,)), *idle(5, 5)), long_unneeded(*map(node, ["n00", "n01"])))
    assert released(made) == []
    assert Brake.Window in first(made).brakes
    assert go(idle(10, 15), windows=(DisruptionWindow(at, 3600.0, NodeLimit(1)),), disruption=ALL) == ["n00"]


# ---- who waits -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("waiting", "goes"), [
    (pod("w", 8, node_selector={"pool": "x"}, waits_since=NOW), True), (pod("w", 64), True),
    (pod("w", 0), True), (pod("w", 1, unclear="asks by a claim"), False),
    (pod("w", 1, unclear="asks by a claim", node_selector={"pool": "of another policy"}), True),
], ids=["fits-no-pool", "too-large", "without-gpus", "unclear", "unclear-and-elsewhere"])
def test_only_who_needs_a_node_or_might_keeps_nodes(waiting: ScaledPod, goes: bool) -> None:
    assert (released(look(three(waiting), RIPE)) == ["n2"]) is goes


def test_demand_elsewhere_in_the_policy_keeps_all_nodes() -> None:
    other = pool("other", labels={"kind": "other"})
    waiting = pod("w", 8, node_selector={"kind": "other"}, waits_since=NOW)
    made = look(three(waiting, rule=policy(pool(), other)), RIPE)
    assert fits(made) == {"w": "NeedsNode"}
    assert stays(made)["n2"] == "DemandWaits"


@pytest.mark.accepts("scaling", 13)
def test_who_waits_and_fits_a_node_that_is_drained_stops_that_and_grows_nothing() -> None:
    drain = DrainRecord(1, "default", NOW - 60, DrainKind.empty, "nobody", True)
    leaving = {"drain": drain, "is_cordoned": True}
    made = look(three(pod("w", 8), n2=leaving), RIPE)
    assert first(made).wanted == {"n2": "ml/w"}
    assert fits(made) == {"w": "FitsInFlight"}
    assert grown(made) == {}
    gone = look(three(pod("w", 8), n2={**leaving, "drain": msgspec.structs.replace(drain, removing=NOW)}), RIPE)
    assert first(gone).wanted == {}
    assert grown(gone) == {"main": 1}


@pytest.mark.parametrize("kind", [DrainKind.under_used, DrainKind.squatted])
def test_who_is_to_leave_a_drained_node_has_a_place_when_it_leaves_not_only_when_that_began(kind: DrainKind) -> None:
    """A budget refuses for minutes: meanwhile others take the place, or are about to."""
    asks = 2 if kind is DrainKind.under_used else 0
    gone = node("n0", drain=DrainRecord(1, "default", NOW - 60, kind, "hardly used", True), is_cordoned=True)
    home, guest = node("n1", has={"cpu": 10_000, "memory": 10_000, GPU: 8}), pod("a", asks, "n0")

    def find(*others: Any) -> list[str]:
        return list(first(look(sight(policy(), gone, home, guest, *others))).stuck)

    assert find() == []
    assert find(pod("b", 6, "n1")) == []
    assert find(pod("b", 8, "n1", asks={"cpu": 9_500, GPU: 7})) == ["n0"]
    assert find(pod("w", 8, asks={"cpu": 9_500, GPU: 7}, waits_since=NOW)) == ["n0"], "who waits has it first"
    assert find(pod("b", 8, "n1", asks={"cpu": 9_500, GPU: 7}), node("n2")) == []
    leaves = msgspec.structs.replace(guest, is_going=True)
    assert list(first(look(sight(policy(), gone, home, leaves, pod("b", 8, "n1")))).stuck) == []


def test_one_drain_after_the_other() -> None:
    drain = DrainRecord(1, "default", NOW - 60, DrainKind.empty, "nobody", True)
    things = [*idle(4, 6), node("z", drain=drain, is_cordoned=True)]
    assert go(things, disruption=ALL) == []


# ---- the measurements jump -------------------------------------------------------------------------------------------


@pytest.mark.accepts("scaling", 16)
def test_all_idle_at_once_is_no_measurement() -> None:
    def see(use: float) -> ScalingSight:
        nodes = [node(f"n{number}", use=use) for number in range(6)]
        return sight(policy(disruption=ALL), *nodes, *(pod(f"p{number}", 2, f"n{number}") for number in range(6)))

    memory = look(see(0.9)).memory
    made = look(see(0.0), memory, NOW + 30)
    assert Brake.MetricsJump in first(made).brakes
    assert made.memory.unneeded == {}
    for cycle, halted in ((1, True), (2, True), (3, False)):
        made = look(see(0.0), made.memory, NOW + 30 + 30 * cycle)
        assert (Brake.MetricsJump in first(made).brakes) is halted
        assert released(made) == []
    assert released(look(see(0.0), made.memory, NOW + 30 + 90 + 599)) == []
    blind = look(msgspec.structs.replace(see(0.0), measured="away"), memory, NOW + 30)
    assert Brake.MetricsJump in first(look(see(0.0), blind.memory, NOW + 60)).brakes


# ---- whatever is hidden ----------------------------------------------------------------------------------------------

HIDDEN = some.sampled_from(["pods", "nodes", "policies", "drivers", "groups", "measured", "use", "memory", "machines"])


@some.composite
def clusters(draw: some.DrawFn) -> tuple[ScalingSight, ScalingMemory]:
    rule = policy(
        pool(most=draw(some.integers(0, 5))), pool("cheap", SPOT, price=3.0), disruption=ALL,
        most=draw(some.integers(0, 8)),
    )
    things: list[ScaledNode | ScaledPod] = []
    for number in range(draw(some.integers(0, 6))):
        name = f"n{number}"
        things.append(node(
            name, use=draw(some.sampled_from([0.0, 0.1, 0.5, None])), pool=draw(some.sampled_from(["main", "cheap"])),
            tier=draw(some.sampled_from([SPOT, RESERVED])), is_ready=draw(some.booleans()) or number % 3 > 0,
        ))
        for place, gpus in enumerate(draw(some.lists(some.integers(0, 3), max_size=2))):
            fixed = draw(some.sampled_from(["", "", "", "kept"]))
            things.append(pod(f"{name}-{place}", gpus, name, fixed=fixed))
    things += [pod(f"w{place}", gpus, spot_ok=draw(some.sampled_from([None, True, False])))
               for place, gpus in enumerate(draw(some.lists(some.integers(1, 9), max_size=3)))]
    memory = long_unneeded(*[each for each in things if isinstance(each, ScaledNode)])
    return sight(rule, *things, drivers=ABSENT), memory


def hide(seen: ScalingSight, what: str) -> ScalingSight:
    blind = Unseen("hidden")
    if what in ("pods", "nodes", "policies", "drivers"):
        return msgspec.structs.replace(seen, **{what: blind})
    if what in ("groups", "machines"):
        return msgspec.structs.replace(seen, **{what: {"default": blind}})
    if what == "measured":
        return msgspec.structs.replace(seen, measured="hidden")
    if what == "use" and isinstance(seen.nodes, Known):
        nodes = tuple(msgspec.structs.replace(each, use=None) for each in seen.nodes.value)
        return msgspec.structs.replace(seen, nodes=Known(nodes))
    return seen


@settings(max_examples=150)
@given(cluster=clusters(), what=HIDDEN)
def test_who_sees_less_removes_no_more(cluster: tuple[ScalingSight, ScalingMemory], what: str) -> None:
    seen, memory = cluster
    before = set(released(look(seen, memory)))
    after = set(released(look(hide(seen, what), ScalingMemory() if what == "memory" else memory)))
    assert after <= before
    assert not after


@settings(max_examples=150)
@given(cluster=clusters())
def test_no_limit_is_passed_and_nobody_is_left_without_a_place(cluster: tuple[ScalingSight, ScalingMemory]) -> None:
    seen, memory = cluster
    made = first(look(seen, memory))
    nodes = seen.nodes.value if isinstance(seen.nodes, Known) else ()
    assert made.nodes + sum(each.count for each in made.grows) <= max(made.policy.most, len(nodes))
    for rule in made.policy.pools:
        there = sum(each.pool == rule.name for each in nodes)
        added = sum(each.count for each in made.grows if each.pool.name == rule.name)
        assert there + added <= max(rule.most, there)
    gone = {each.node for each in made.releases}
    pods = seen.pods.value if isinstance(seen.pods, Known) else ()
    for release in made.releases:
        left = {each.id for each in pods if each.node == release.node}
        assert {who for who, _ in release.moves} == left
        assert not {where for _, where in release.moves} & gone
        assert not any(each.fixed for each in pods if each.node == release.node)


@settings(max_examples=80)
@given(cluster=clusters(), change=some.sampled_from([
    {"fixed": "somebody keeps it"}, {"spot_ok": True}, {"unclear": "odd"}, {"asks": {"nvidia.com/gpu": 10**15}},
    {"node_selector": {"x": "y"}}, {"priority": 10**9}, {"grace": 1e9}, {"owner": DAEMON},
]))
def test_a_tenants_words_release_no_node_of_others(
    cluster: tuple[ScalingSight, ScalingMemory], change: dict[str, Any]
) -> None:
    """Whatever one that waits says of itself."""
    seen, memory = cluster
    others = sight(None, policies=seen.policies, groups={"default": Known(groups_of(policy(pool(), pool("cheap"))))})
    assert others.policies == seen.policies
    before = set(released(look(seen, memory)))
    mine = pod("mine", 1, **change)
    pods = (*(seen.pods.value if isinstance(seen.pods, Known) else ()), mine)
    made = look(msgspec.structs.replace(seen, pods=Known(pods)), memory)
    assert set(released(made)) <= before
    rule = first(made).policy
    assert first(made).nodes + sum(grown(made).values()) <= max(rule.most, first(made).nodes)
