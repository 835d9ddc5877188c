"""Who needs a node, how many, of which pool: demand, packing, tiers, stock-outs, limits."""

from typing import Any

import msgspec
import pytest
from tests.unit.decide.scaling.stage import (
    GPU,
    NOW,
    ON_DEMAND,
    RESERVED,
    SHARED,
    SPOT,
    daemon,
    first,
    fits,
    groups_of,
    grown,
    look,
    node,
    pod,
    pods,
    policy,
    pool,
    sight,
)

from fallow import names
from fallow.decide import scaling
from fallow.decide.scaling import tiers
from fallow.decide.scaling.templates import NodeTemplate
from fallow.model import scaling_status, units
from fallow.model.classes import WorkClass
from fallow.model.machines import CloudMachine, MachineGroup, MachineShape, MachineState, WantOfMachines
from fallow.model.policies.scaling import NodeDriver, NodePool, PoolSharing, PoolTaint, ScalingMode
from fallow.model.policies.sharing import Strategy
from fallow.model.scaling import (
    DrainKind,
    DriversSeen,
    InFlight,
    NodeToleration,
    ScaledPod,
    ScalingMemory,
    ScalingSight,
    SpendLimit,
    StockOut,
    WaitHold,
)
from fallow.model.scaling_plan import Blocked, Brake, GrowReason
from fallow.model.seen import ABSENT, Known, Register, Unseen
from fallow.settings.cost import CostSettings
from fallow.wiring.scaling import ShippedPrices

THREE = (pool("cheap", SPOT, price=3.0), pool("plain", ON_DEMAND), pool("paid", RESERVED, price=0.0))


def status(
    *, in_flight: tuple[InFlight, ...] = (), stockouts: tuple[StockOut, ...] = (), **more: float
) -> dict[str, Any]:
    """As it is read back after a restart."""
    return {
        "inFlight": scaling_status.write_in_flight(in_flight), "stockouts": scaling_status.write_stockouts(stockouts),
        **{key: units.rfc3339(at) for key, at in more.items()},
    }


def coming(count: int = 1, since: float = NOW - 100, in_pool: str = "main", tier: Any = ON_DEMAND) -> InFlight:
    return InFlight(pool=in_pool, tier=tier, count=count, base=0, token=f"t-{since}", since=since)


@pytest.mark.accepts("scaling", 3)
@pytest.mark.parametrize(("gpus", "nodes"), [(8, 1), (1, 8), (4, 2), (3, 3)])
def test_pods_are_packed_not_counted(gpus: int, nodes: int) -> None:
    assert grown(look(sight(policy(pool(gpus=gpus)), *pods(8)))) == {"main": nodes}


@pytest.mark.accepts("scaling", 3)
def test_shares_of_a_gpu_are_packed_as_shares() -> None:
    shared = [pod(f"s{number}", asks={"cpu": 100, SHARED: 1}) for number in range(16)]
    cut = pool(gpus=4, sharing=PoolSharing(Strategy.timeslicing, 4))
    assert grown(look(sight(policy(cut), *shared))) == {"main": 1}
    assert grown(look(sight(policy(cut), *shared, pod("s16", asks={SHARED: 1})))) == {"main": 2}
    assert grown(look(sight(policy(pool(gpus=4)), *shared))) == {}


def test_instances_of_mig_are_packed_by_their_profile() -> None:
    profile = names.MIG_PREFIX + "3g.40gb"
    cut = pool(gpus=2, sharing=PoolSharing(Strategy.mig, 1, ("3g.40gb", "2g.20gb", "2g.20gb")))
    three = [pod(f"m{number}", asks={profile: 1}) for number in range(3)]
    assert grown(look(sight(policy(cut), *three))) == {"main": 2}
    assert fits(look(sight(policy(cut), pod("m", asks={names.MIG_PREFIX + "7g.80gb": 1})))) == {"m": "NoPoolFits"}


@pytest.mark.accepts("scaling", 4)
def test_a_pod_that_fits_no_pool_grows_nothing_however_long_it_waits() -> None:
    made = look(sight(None, pod("big", 16, waits_since=NOW - 1e6)))
    assert grown(made) == {}
    assert fits(made) == {"big": "NoPoolFits"}
    assert Blocked.NoPoolFits in first(made).blocked
    assert first(made).acts


@pytest.mark.accepts("scaling", 5)
@pytest.mark.parametrize("change", [*({"held": hold} for hold in WaitHold), {"is_going": True}], ids=str)
def test_who_is_held_is_nobodys_demand(change: dict[str, Any]) -> None:
    made = look(sight(None, pod("a", 1, waits_since=NOW - 1e6, **change)))
    assert grown(made) == {}
    assert fits(made) == {"a": "Held"}


@pytest.mark.parametrize(("free", "verdicts"), [
    (3, ["FitsNow"] * 3), (1, ["FitsNow", "NeedsNode", "NeedsNode"]), (0, ["NeedsNode"] * 3),
])
def test_what_is_there_is_given_once(free: int, verdicts: list[str]) -> None:
    made = look(sight(None, node("n1"), pod("x", 8 - free, "n1"), *pods(3)))
    assert list(fits(made).values()) == verdicts


@pytest.mark.parametrize("change", [
    {"is_ready": False}, {"is_cordoned": True}, {"is_going": True}, {"is_broken": True},
    {"taints": (PoolTaint("team", "x", "NoSchedule"),)},
], ids=str)
def test_nobody_fits_where_the_scheduler_may_not_go(change: dict[str, Any]) -> None:
    full = pod("x", 8, "n2")
    assert fits(look(sight(None, node("n1", **change), node("n2"), full, pod("a", 1))))["a"] == "NeedsNode"


def test_selectors_affinity_and_taints_count_on_nodes_and_on_templates() -> None:
    tainted = pool(taints=(PoolTaint("gpu", "", "NoSchedule"),), labels={"zone": "a"})
    bears = (NodeToleration("gpu", "Exists"),)
    want_b = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}]}]
    want_a = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]}
    made = look(sight(
        policy(tainted), pod("plain", 1), pod("fine", 1, tolerations=bears),
        pod("there", 1, tolerations=bears, node_selector={"zone": "a"}, affinity=want_a),
        pod("elsewhere", 1, tolerations=bears, affinity=want_b),
    ))
    assert fits(made) == {"plain": "NoPoolFits", "fine": "NeedsNode", "there": "NeedsNode", "elsewhere": "NoPoolFits"}


def test_a_node_on_its_way_is_counted_once_until_it_shows_its_gpus() -> None:
    rule = policy(status=status(in_flight=(coming(),)))
    nine = look(sight(rule, *pods(9)))
    assert sorted(fits(nine).values()) == ["FitsInFlight"] * 8 + ["NeedsNode"]
    assert grown(nine) == {"main": 1}
    blank = node("new", created_at=NOW - 20, has={"cpu": 96_000, "memory": 800_000})
    assert fits(look(sight(rule, blank, *pods(8)))) == fits(look(sight(rule, *pods(8))))
    assert first(look(sight(rule, blank))).in_flight == rule_in_flight(rule)
    there = look(sight(rule, node("new", created_at=NOW - 20), *pods(8)))
    assert first(there).in_flight == ()
    assert first(there).arrived == rule_in_flight(rule)
    assert set(fits(there).values()) == {"FitsNow"}


@pytest.mark.accepts("scaling", 9)
def test_a_machine_that_was_asked_for_before_is_not_taken_for_the_one_that_was_asked_for_later() -> None:
    """Growths a cycle apart: the first came and is forgotten, and its node is younger than the second growth."""
    rule = policy(status=status(in_flight=(coming(since=NOW - 150),)))
    first_one = node("n1", created_at=NOW - 30, provider_id="pretend:///a/n1")
    asked = {"machines": {rule.name: Known((_machine("n1", NOW - 180),))}}
    made = first(look(sight(rule, first_one, *pods(9), **asked)))
    assert made.in_flight == rule_in_flight(rule)
    assert made.grows == ()


def test_a_later_growth_is_kept_while_an_older_one_is_open_so_that_its_machine_is_not_the_olders() -> None:
    rule = policy(status=status(in_flight=(coming(since=NOW - 400), coming(since=NOW - 300))))
    second = node("n2", created_at=NOW - 120, provider_id="pretend:///a/n2")
    machines = Known((_machine("n1", NOW - 399), _machine("n2", NOW - 299)))
    made = first(look(sight(rule, second, machines={rule.name: machines})))
    assert made.in_flight == rule_in_flight(rule)
    assert made.arrived == ()


def _machine(name: str, launched_at: float) -> CloudMachine:
    return CloudMachine(
        id=name, group="g", state=MachineState.running, provider_id=f"pretend:///a/{name}", launched_at=launched_at
    )


def rule_in_flight(rule: Any) -> tuple[InFlight, ...]:
    return scaling_status.read(rule.status).in_flight


@pytest.mark.parametrize(("wait", "reason"), [(119, None), (120, None), (121, "PendingPods"), (301, "QueueSlow")])
def test_a_pod_waits_before_a_node_is_added(wait: float, reason: str | None) -> None:
    grows = first(look(sight(None, pod("a", 1, waits_since=NOW - wait)))).grows
    assert [str(each.reason) for each in grows] == ([reason] if reason else [])


@pytest.mark.parametrize(("count", "reasons"), [(10, []), (11, [GrowReason.QueueLong])])
def test_a_long_queue_waits_for_nothing(count: int, reasons: list[GrowReason]) -> None:
    assert [each.reason for each in first(look(sight(None, *pods(count, waits_since=NOW)))).grows] == reasons


@pytest.mark.parametrize(("ago", "rests"), [(179, True), (180, False), (-100, True), (-1e6, False)])
def test_growth_rests_after_growth(ago: float, rests: bool) -> None:
    assert (grown(look(sight(policy(status=status(lastScaleUpTime=NOW - ago)), *pods(8)))) == {}) is rests


# ---- tiers -----------------------------------------------------------------------------------------------------------


@pytest.mark.accepts("scaling", 6)
@pytest.mark.parametrize(("spot", "plain", "next_one"), [
    (0, 0, "cheap"), (6, 4, "plain"), (6, 5, "cheap"), (5, 4, "cheap"), (1, 0, "plain"),
])
def test_spot_is_open_below_its_share(spot: int, plain: int, next_one: str) -> None:
    nodes = [node(f"s{number}", tier=SPOT, pool="cheap") for number in range(spot)]
    nodes += [node(f"o{number}", pool="plain") for number in range(plain)]
    full = [pod(f"full-{each.name}", 8, each.name) for each in nodes]
    assert grown(look(sight(policy(*THREE), *nodes, *full, pod("a", 1)))) == {next_one: 1}


@pytest.mark.parametrize(("share", "is_open"), [(0.0, False), (0.3, True), (1.0, True)])
def test_a_share_of_none_or_all_is_meant_so(share: float, is_open: bool) -> None:
    nodes = [node("s0", tier=SPOT, pool="cheap")] if share == 1.0 else []
    full = [pod("full", 8, each.name) for each in nodes]
    made = look(sight(policy(*THREE, spot_share=share), *nodes, *full, pod("a", 1)))
    assert grown(made) == {"cheap" if is_open else "plain": 1}


@pytest.mark.accepts("scaling", 7)
def test_the_order_of_tiers_is_the_policys() -> None:
    assert grown(look(sight(policy(*THREE, tiers=(RESERVED, SPOT, ON_DEMAND)), *pods(8)))) == {"paid": 1}
    small = (*THREE[:2], msgspec.structs.replace(THREE[2], most=1))
    made = grown(look(sight(policy(*small, tiers=(RESERVED, SPOT, ON_DEMAND)), *pods(32))))
    assert made == {"paid": 1, "cheap": 2, "plain": 1}


@pytest.mark.parametrize(("about", "may"), [
    ({"work": WorkClass.batch}, True), ({"work": WorkClass.batch, "spot_ok": False}, False),
    ({"work": WorkClass.training}, False), ({"work": WorkClass.training, "spot_ok": True}, True),
    ({"work": WorkClass.inference, "replicas": 1}, False), ({"work": WorkClass.inference}, False),
    ({"work": WorkClass.inference, "replicas": 1, "spot_ok": True}, True),
    ({"work": WorkClass.inference, "replicas": 2}, True), ({"work": WorkClass.notebook}, True),
], ids=str)
def test_who_may_be_interrupted(about: dict[str, Any], may: bool) -> None:
    assert grown(look(sight(policy(*THREE), pod("a", 1, **about)))) == {"cheap" if may else "plain": 1}


def test_inside_a_tier_priority_then_price_of_what_is_placed_then_name() -> None:
    def take(*pools: NodePool, count: int = 1) -> dict[str, int]:
        return grown(look(sight(policy(*pools), *pods(count))))

    assert take(pool("a", priority=0, price=1.0), pool("b", priority=1, price=9.0)) == {"b": 1}
    large, small = pool("large", price=8.0), pool("small", price=1.5, gpus=1)
    assert take(large, small) == {"small": 1}
    assert take(large, small, count=8) == {"large": 1}
    assert take(pool("b"), pool("a")) == {"a": 1}
    assert take(pool("a", price=None), pool("b", price=99.0)) == {"b": 1}


ARTICLE = {
    "p3.2xlarge": (1, 16, 3.06), "p3.8xlarge": (4, 64, 12.24), "p4d.24xlarge": (8, 320, 32.77),
    "g4dn.xlarge": (1, 16, 0.526),
}
IN_FULL = {
    name: MachineShape(instance_type=name, gpus=gpus, gpu_memory=memory * 1024 // gpus, price=price,
                       has={"cpu": 8000, "memory": 32_000, GPU: gpus})
    for name, (gpus, memory, price) in ARTICLE.items()
}
# No cloud says how much memory GPUs have; the price book knows of which model they are.
SHIPPED = ShippedPrices(CostSettings(), lambda: NOW)
AS_SHIPPED = {
    name: msgspec.structs.replace(shape, price=SHIPPED.of_type(name, ON_DEMAND))
    for name in ARTICLE if (shape := SHIPPED.shape_of(name)) is not None
}


@pytest.mark.accepts("scaling", 22)
@pytest.mark.parametrize("shapes", [IN_FULL, AS_SHIPPED], ids=["in full", "by the price book"])
def test_the_articles_scores_choose_the_articles_machines(shapes: dict[str, MachineShape]) -> None:
    by_name = {name: name.replace(".", "-") for name in ARTICLE}
    pools = [pool(by_name[name], instance_types=(name,), gpus=None, price=None) for name in ARTICLE]
    best = {WorkClass.inference: "g4dn-xlarge", WorkClass.training: "p4d-24xlarge", WorkClass.batch: "p4d-24xlarge"}
    for work, chosen in best.items():
        seen = sight(policy(*pools), pod("a", 1, work=work), shapes=Register(shapes))
        made = scaling.plan(
            seen, ScalingMemory(), NOW, terms=scaling.ScalingTerms(score=scaling.InstanceScore.article)
        )
        assert grown(made) == {chosen: 1}
    assert tiers.score(NodeTemplate(pool=pools[0], has=None), WorkClass.batch) == -1.0


@pytest.mark.accepts("scaling", 22)
@pytest.mark.parametrize(("work", "scored"), [
    (WorkClass.inference, 2.384), (WorkClass.training, 624.96), (WorkClass.batch, 78.12),
], ids=str)
def test_the_articles_score_by_hand(work: WorkClass, scored: float) -> None:
    # A p4d.24xlarge: 8 GPUs of 40 GiB at 32.77 an hour, so 4.096 by GPU.
    eight = NodeTemplate(pool=pool("a"), has=None, gpus=8, gpu_memory=40 * 1024, price=32.77)
    assert tiers.score(eight, work) == pytest.approx(scored, rel=1e-3)


# ---- stock-outs ------------------------------------------------------------------------------------------------------


@pytest.mark.accepts("scaling", 8)
def test_what_is_out_of_stock_is_shut_twice_as_long_each_time_even_after_a_restart() -> None:
    """Asked for whenever it is open, and told each time that there is none; until one comes."""
    alone, now, shut, lasted = pool("main", SPOT, zones=("zone-a",)), NOW, (), list[float]()
    for _ in range(6):
        rule = policy(alone, status=status(stockouts=shut))
        (grow,) = first(look(sight(rule, *pods(8)), now=now)).grows
        rule = policy(alone, status=status(stockouts=shut, in_flight=(coming(since=now, tier=grow.tier),)))
        want = WantOfMachines(group="group-main", zone="zone-a", at=now + 5)
        made = first(look(sight(rule, *pods(8), wants=(want,)), now=now + 30))
        assert made.grows == ()
        shut, now = made.stockouts, made.stockouts[0].until
        lasted.append(now - made.late[0].since - 30)
    assert lasted == [300, 600, 1200, 2400, 3600, 3600]
    rule = policy(alone, status=status(stockouts=shut, in_flight=(coming(since=now, tier=SPOT),)))
    came = node("new", tier=SPOT, created_at=now + 60)
    assert first(look(sight(rule, came), now=now + 90)).stockouts == ()


@pytest.mark.accepts("scaling", 8)
def test_the_next_choice_is_tried_while_one_is_shut() -> None:
    pools = (pool("a", SPOT, zones=("zone-a",)), pool("b", SPOT, zones=("zone-b",), price=9.0), pool("c"))
    open_all = first(look(sight(policy(*pools), pod("x", 1)))).grows[0]
    assert open_all.pool.name == "a"
    assert [(each.pool.name, each.count) for each in open_all.others] == [("b", 1), ("c", 1)]
    shut = scaling.note_shortage((), pool="a", tier=SPOT, zone="zone-a", now=NOW)
    for later, chosen in ((0, "b"), (299, "b"), (300, "a")):
        made = look(sight(policy(*pools, status=status(stockouts=shut)), pod("x", 1)), now=NOW + later)
        assert grown(made) == {chosen: 1}


def test_a_pool_of_two_zones_is_open_while_one_is() -> None:
    both = pool("a", SPOT, zones=("zone-a", "zone-b"))
    one = scaling.note_shortage((), pool="a", tier=SPOT, zone="zone-a", now=NOW)
    two = scaling.note_shortage(one, pool="a", tier=SPOT, zone="zone-b", now=NOW)
    for shut, chosen in ((one, "a"), (two, "c")):
        assert grown(look(sight(policy(both, pool("c"), status=status(stockouts=shut)), pod("x", 1)))) == {chosen: 1}


def test_a_want_that_the_cloud_tells_later_sends_us_to_the_next_pool_at_once() -> None:
    pools = (pool("a", SPOT), pool("b"))
    asked = coming(since=NOW - 30, in_pool="a", tier=SPOT)
    rule = policy(*pools, status=status(in_flight=(asked,), lastScaleUpTime=NOW - 30))
    want = WantOfMachines(group="group-a", zone="zone-a", at=NOW - 10)
    made = look(sight(rule, *pods(8), wants=(want,)))
    assert grown(made) == {"b": 1}
    assert [(each.pool, each.zone, each.failures) for each in first(made).stockouts] == [("a", "zone-a", 1)]
    assert first(made).in_flight == ()
    assert [each.count for each in first(made).late] == [1]


def test_a_want_shuts_the_whole_pool_whichever_zone_and_type_it_names() -> None:
    """A group chooses among them itself: what it did not get, it got nowhere."""
    broad = pool("a", SPOT, zones=("zone-a", "zone-b"), instance_types=("big", "bigger"))
    asked = coming(since=NOW - 30, in_pool="a", tier=SPOT), coming(since=NOW - 20, in_pool="a", tier=SPOT)
    rule = policy(broad, pool("b"), status=status(in_flight=asked, lastScaleUpTime=NOW - 30))
    want = WantOfMachines(group="group-a", zone="zone-a", instance_type="big", at=NOW - 10)
    made = look(sight(rule, *pods(8), wants=(want,)))
    assert grown(made) == {"b": 1}
    assert [(each.zone, each.instance_type, each.failures) for each in first(made).stockouts] == [("", "", 1)]


def test_a_want_is_not_said_of_machines_that_have_started() -> None:
    """One zone had none, and the group took two of three from another: one is asked for elsewhere."""
    rule = policy(pool("main", SPOT), pool("b"), status=status(in_flight=(coming(count=3, since=NOW - 60, tier=SPOT),)))
    want = WantOfMachines(group="group-main", zone="zone-a", at=NOW - 50)
    there = Known((machine("i-1", 40), machine("i-2", 40)))
    made = first(look(sight(rule, *pods(24), wants=(want,), machines={"default": there})))
    assert [(each.pool.name, each.count) for each in made.grows] == [("b", 1)]
    assert ([each.count for each in made.in_flight], [each.count for each in made.late]) == ([2], [1])
    again = policy(*rule.pools, status=status(in_flight=made.in_flight, stockouts=made.stockouts))
    next_one = first(look(sight(again, *pods(16), wants=(want,), machines={"default": there})))
    assert (next_one.in_flight, next_one.late, next_one.grows) == (made.in_flight, (), ())


@pytest.mark.parametrize(("target", "alive", "asked", "there"), [
    (5, 5, 0, 5), (5, 3, 0, 3), (5, 3, 1, 4), (5, 3, 4, 5), (2, 3, 0, 2),
], ids=["as-it-is-to-be", "raised-in-vain", "one-awaited", "never-above-the-target", "one-too-many"])
def test_growth_goes_on_from_what_is_there_and_awaited(target: int, alive: int, asked: int, there: int) -> None:
    nodes = [node(f"n{number}") for number in range(alive)]
    machines = Known(tuple(
        machine(f"n{number}", 86_400, state=MachineState.running, provider_id=f"cloud://n{number}")
        for number in range(alive)
    ))
    rule = policy(status=status(in_flight=(coming(count=asked),) if asked else ()))
    groups = {"default": Known((MachineGroup(id="group-main", most=100, target=target),))}
    made = first(look(sight(rule, *nodes, groups=groups, machines={"default": machines})))
    assert made.there == {"group-main": there}
    blind = first(look(sight(rule, *nodes, groups=groups, machines={"default": Unseen("timeout")})))
    assert blind.there == {"group-main": target}


# ---- where to go on --------------------------------------------------------------------------------------------------


def go_on(rule: Any, *things: Any, **more: Any) -> list[tuple[str, int]]:
    (grow,) = first(look(sight(rule, *things, **more))).grows
    return [(each.pool.name, each.count) for each in grow.others]


def test_another_pool_is_asked_for_as_many_nodes_as_do_there() -> None:
    small, large = pool("small", gpus=1, price=1.0), pool("large", price=9.0)
    assert go_on(policy(small, large), *pods(8)) == [("large", 1)]
    cheap = msgspec.structs.replace(large, price=2.0)
    assert go_on(policy(small, cheap), *pods(8)) == [("small", 8)]
    assert go_on(policy(small, pool("none", price=9.0, most=0)), *pods(8)) == []
    assert go_on(policy(msgspec.structs.replace(small, most=7), cheap), *pods(8)) == []
    assert go_on(policy(small, cheap, most=7), *pods(8)) == []


@pytest.mark.parametrize(("about", "others"), [
    ({}, [("cheap", 2)]), ({"spot": False}, []), ({"spot_share": 0.0}, []), ({"spot_share": 0.4}, []),
], ids=str)
def test_another_pool_is_not_on_spot_where_that_is_not_open(about: dict[str, Any], others: Any) -> None:
    tried = policy(pool("plain"), pool("cheap", SPOT), tiers=(ON_DEMAND, SPOT), **{"spot_share": 1.0, **about})
    assert go_on(tried, *pods(2, 8)) == others


def test_with_six_of_ten_on_spot_no_other_pool_is() -> None:
    nodes = [node(f"s{number}", tier=SPOT, pool="cheap") for number in range(6)]
    nodes += [node(f"o{number}", pool="plain") for number in range(4)]
    full = [pod(f"full-{each.name}", 8, each.name) for each in nodes]
    assert go_on(policy(*THREE), *nodes, *full, pod("a", 1)) == [("paid", 1)]


@pytest.mark.parametrize(("limit", "others"), [
    ({"closed": frozenset({SPOT})}, ["dear"]), ({"most_spot_nodes": 1}, ["dear"]), ({}, ["mixed", "dear"]),
], ids=str)
def test_a_budget_binds_another_pool_that_mixes(limit: dict[str, Any], others: list[str]) -> None:
    rule = policy(pool("plain"), pool("mixed", price=8.5, spot_share=0.5), pool("dear", price=9.0))
    groups = tuple(msgspec.structs.replace(each, mixes=each.id == "group-mixed") for each in groups_of(rule))
    two = pods(2, 8)
    limits = Known((SpendLimit(budget="b", pods=frozenset(each.id.uid for each in two), **limit),))
    made = go_on(rule, *two, groups={"default": Known(groups)}, limits=limits)
    assert [name for name, _ in made] == others


def test_a_node_that_is_never_ready_goes_and_the_next_choice_comes() -> None:
    pools = (pool("a", SPOT), pool("b"))
    asked = coming(count=3, since=NOW - 901, in_pool="a", tier=SPOT)
    rule = policy(*pools, status=status(in_flight=(asked,), lastScaleUpTime=NOW - 901))
    dead = node("dead", pool="a", tier=SPOT, is_ready=False, created_at=NOW - 800, use=None)
    stray = CloudMachine(id="i-1", group="group-a", state=MachineState.running, provider_id="cloud://i-1",
                         launched_at=NOW - 850)
    old = msgspec.structs.replace(stray, id="i-0", provider_id="cloud://i-0", launched_at=NOW - 5000)
    its = msgspec.structs.replace(stray, id="dead", provider_id="cloud://dead")
    made = first(look(sight(rule, dead, *pods(8), machines={"default": Known((its, old, stray))})))
    assert [(each.node, each.kind) for each in made.releases] == [("dead", DrainKind.failed)]
    assert made.strays == (stray,)
    assert [(each.pool.name, each.count) for each in made.grows] == [("b", 1)]
    assert made.stockouts[0].failures == 1
    blind = first(look(sight(rule, dead, *pods(8), machines={"default": Unseen("timeout")})))
    assert blind.strays == ()
    kept = msgspec.structs.replace(dead, kept="people say so")
    assert first(look(sight(rule, kept, *pods(8)))).releases == ()


def machine(name: str, since: float, **more: Any) -> CloudMachine:
    return CloudMachine(**{
        "id": name, "group": "group-main", "state": MachineState.pending, "provider_id": f"cloud://{name}",
        "launched_at": NOW - since, **more,
    })


def test_a_machine_that_its_group_started_by_itself_comes_like_one_that_was_asked_for() -> None:
    """As in place of one that was taken back; what it is for is found in the status after a restart, too."""
    there = {"default": Known((machine("i-1", 60),))}
    made = first(look(sight(policy(), *pods(8), machines=there)))
    assert made.grows == ()
    assert [(each.machine, each.since, each.base) for each in made.in_flight] == [("i-1", NOW - 60, 0)]
    again = policy(status=status(in_flight=made.in_flight))
    assert first(look(sight(again, *pods(8), machines=there))).in_flight == made.in_flight
    assert grown(look(sight(again, *pods(9), machines=there))) == {"main": 1}
    there = {"default": Known((machine("i-1", 60, state=MachineState.running),))}
    joined = node("renamed", provider_id="cloud://i-1", created_at=NOW - 5)
    assert first(look(sight(again, joined, machines=there))).in_flight == ()


def test_two_that_were_asked_for_and_one_that_was_not_are_three() -> None:
    """Whichever joins first, the others are still on their way."""
    rule = policy(status=status(in_flight=(coming(count=2, since=NOW - 100),)))
    every = tuple(machine(f"i-{number}", 100 - 20 * number) for number in range(3))
    made = first(look(sight(rule, *pods(24), machines={"default": Known(every)})))
    assert (made.grows, [(each.machine, each.count) for each in made.in_flight]) == ((), [("", 2), ("i-2", 1)])
    rule = policy(status=status(in_flight=made.in_flight))
    for first_there in range(3):
        joined = node("new", provider_id=f"cloud://i-{first_there}", created_at=NOW - 1)
        tenants = [pod(f"t{number}", 1, "new") for number in range(8)]
        seen = sight(rule, joined, *tenants, *pods(16), machines={"default": Known(every)})
        assert grown(look(seen)) == {}


def test_a_stray_is_told_to_go_until_its_cloud_has_it_no_more() -> None:
    """A cloud that did not listen the first time is told again, also after a restart."""
    late = InFlight(pool="main", tier=ON_DEMAND, count=1, base=0, token="found-i-1", since=NOW - 901, machine="i-1")
    one = machine("i-1", 901)
    rule = policy(status=status(in_flight=(late,)))
    for _ in range(3):
        made = first(look(sight(rule, machines={"default": Known((one,))})))
        assert made.strays == (one,)
        assert [(each.machine, each.is_late) for each in made.in_flight] == [("i-1", True)]
        rule = policy(status=status(in_flight=made.in_flight))
    assert grown(look(sight(rule, *pods(8), machines={"default": Known((one,))}))) == {"main": 1}
    blind = first(look(sight(rule, machines={"default": Unseen("timeout")})))
    assert (blind.strays, len(blind.in_flight)) == ((), 1)
    after_all = first(look(sight(rule, node("a", provider_id="cloud://i-1"), machines={"default": Known((one,))})))
    assert after_all.strays == ()
    gone = first(look(sight(rule, machines={"default": Known((machine("i-1", 901, state=MachineState.gone),))})))
    assert (gone.strays, gone.in_flight) == ((), ())


@pytest.mark.parametrize("about", [{"provider_id": ""}, {"pool": "", "gpus": None, "has": {"cpu": 1000}}])
def test_what_may_be_a_node_is_no_stray(about: dict[str, Any]) -> None:
    """One that does not say which machine it is, and one that no policy means."""
    rule = policy(status=status(in_flight=(coming(since=NOW - 901),)))
    there = node("odd", created_at=NOW - 500, **{"provider_id": "cloud://i-1", **about})
    made = first(look(sight(rule, there, machines={"default": Known((machine("i-1", 901),))})))
    assert made.strays == ()


# ---- limits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("about", "limits", "count"), [
    ({}, {"most": 2}, 2), ({"most": 1}, {}, 1), ({"most": 3}, {"most": 2}, 2), ({"most": 0}, {}, 0),
])
def test_limits_cut_from_the_end(about: dict[str, Any], limits: dict[str, Any], count: int) -> None:
    waiting = [pod(f"p{number}", 8, priority=number) for number in range(5)]
    grows = first(look(sight(policy(pool(**about), **limits), *waiting))).grows
    assert sum(each.count for each in grows) == count
    assert {each.name for grow in grows for each in grow.pods} == {f"p{4 - number}" for number in range(count)}


def test_the_clouds_own_limit_binds_too() -> None:
    rule = policy()
    small = (MachineGroup(id="group-main", most=1, target=0),)
    assert grown(look(sight(rule, *pods(32), groups={"default": Known(small)}))) == {"main": 1}


def test_nodes_on_their_way_count_for_every_limit() -> None:
    rule = policy(most=2, status=status(in_flight=(coming(count=2),)))
    assert grown(look(sight(rule, *pods(64)))) == {}


@pytest.mark.parametrize(("limit", "chosen"), [
    ({"closed": frozenset({SPOT})}, {"plain": 1}), ({"closed": frozenset({ON_DEMAND})}, {"cheap": 1}),
    ({"prefers_on_demand": True}, {"plain": 1}), ({"most_spot_nodes": 0}, {"plain": 1}),
    ({"most_spot_nodes": 1}, {"cheap": 1}), ({"closed": frozenset({SPOT, ON_DEMAND})}, {}),
], ids=["no-spot", "no-on-demand", "prefers-on-demand", "spot-0", "spot-1", "neither"])
def test_a_budget_closes_tiers_for_its_pods_alone(limit: dict[str, Any], chosen: dict[str, int]) -> None:
    rule = policy(*THREE[:2])
    limits = Known((SpendLimit(budget="b", pods=frozenset({"uid-a"}), **limit),))
    assert grown(look(sight(rule, pod("a", 1), limits=limits))) == chosen
    assert grown(look(sight(rule, pod("other", 1), limits=limits))) == {"cheap": 1}


def test_a_group_without_nodes_is_known_by_its_cloud_and_by_the_book_of_its_machines() -> None:
    """What a group's cloud leaves open, such as how many GPUs its machines have, is known of the type."""
    bare = pool(gpus=None, price=None)
    blank = MachineShape(instance_type="m8")
    seen = MachineGroup(id="group-main", most=9, target=0, instance_types=("m8",), shape=blank)
    for shapes, fit, count in (
        ({}, "NoPoolFits", {}), ({"m8": 8}, "NeedsNode", {"main": 2}), ({"m4": 8}, "NoPoolFits", {}),
    ):
        known = {kind: MachineShape(instance_type=kind, gpus=gpus) for kind, gpus in shapes.items()}
        made = look(sight(policy(bare), *pods(9), groups={"default": Known((seen,))}, shapes=Register(known)))
        assert (set(fits(made).values()), grown(made)) == ({fit}, count)
    full = msgspec.structs.replace(seen, shape=MachineShape(instance_type="m8", gpus=4))
    book = Register({"m8": MachineShape(instance_type="m8", gpus=8)})
    assert grown(look(sight(policy(bare), *pods(8), groups={"default": Known((full,))}, shapes=book))) == {"main": 2}


# ---- use -------------------------------------------------------------------------------------------------------------


def hot(*more: Any, use: float | None = 0.9, **about: Any) -> ScalingSight:
    return sight(policy(), node("n1", use=use), pod("x", 8, "n1"), *more, **about)


@pytest.mark.accepts("scaling", 2)
@pytest.mark.parametrize("use", [0.21, 0.5, 0.79, 0.8])
def test_use_between_the_thresholds_is_left_alone(use: float) -> None:
    made = look(hot(use=use), ScalingMemory(busy={"default": NOW - 1e6}, unneeded={"uid-n1": NOW - 1e6}))
    assert grown(made) == {}
    assert first(made).releases == ()


def test_hot_gpus_add_one_node_after_five_minutes() -> None:
    made = look(hot())
    assert grown(made) == {}
    assert made.memory.busy == {"default": NOW}
    assert grown(look(hot(), made.memory, NOW + 299)) == {}
    assert grown(look(hot(), made.memory, NOW + 300)) == {"main": 1}
    assert look(hot(use=0.7), made.memory, NOW + 300).memory.busy == {}
    assert grown(look(hot(use=None), made.memory, NOW + 300)) == {}
    assert grown(look(hot(measured="Prometheus is away"), made.memory, NOW + 300)) == {}
    assert grown(look(hot(node("n2", use=0.9)), made.memory, NOW + 300)) == {}


def test_a_node_that_was_added_for_hot_gpus_and_that_nobody_came_to_is_not_added_again() -> None:
    """At as many GPUs. With more, with fewer, or where somebody had come, it is another day; a restart is none."""
    long = ScalingMemory(busy={"default": NOW - 600})
    (grow,) = first(look(hot(), long)).grows
    assert grow.held == 8
    tried = policy(status={"fullAtGPUs": grow.held})
    quiet = first(look(sight(tried, node("n1", use=0.9), pod("x", 8, "n1")), long))
    assert (quiet.grows, quiet.full_at) == ((), 8)
    assert "nobody came" in quiet.because
    empty = first(look(sight(tried, node("n1", use=0.9), node("n2", use=0.0), pod("x", 8, "n1")), long))
    assert empty.full_at == 8
    came = sight(tried, node("n1", use=0.9), node("n2", use=0.0), pod("x", 8, "n1"), pod("y", 1, "n2"))
    used = first(look(came, long))
    assert used.full_at is None
    more = sight(tried, node("n1", use=0.9), node("n2", use=0.9), pod("x", 8, "n1"), pod("y", 8, "n2"))
    assert [each.held for each in first(look(more, long)).grows] == [16]
    fewer = sight(tried, node("n1", gpus=4, use=0.9), pod("x", 4, "n1"))
    assert [each.held for each in first(look(fewer, long)).grows] == [4]
    assert grown(look(sight(tried, node("n1", use=0.9), pod("x", 8, "n1"), *pods(8)), long)) == {"main": 1}


def test_a_cloud_that_kept_failing_is_left_alone_after_a_restart_too() -> None:
    told = {"providerFailures": 5, "lastProviderFailureTime": units.rfc3339(NOW - 60)}
    memory = scaling.recall(ScalingMemory(), [policy(status=told)])
    made = first(look(sight(policy(status=told), *pods(8)), memory))
    assert (made.grows, list(made.brakes)) == ((), [Brake.ProviderFailing])
    assert grown(look(sight(policy(status=told), *pods(8)), memory, NOW + 181)) == {"main": 1}
    fresher = ScalingMemory(failures={"default": (1, NOW)})
    assert scaling.recall(fresher, [policy(status=told)]) == fresher


@pytest.mark.accepts("scaling", 1)
def test_pods_are_served_while_nothing_is_measured() -> None:
    made = look(sight(None, node("n1", use=None), pod("x", 8, "n1"), *pods(8), measured="Prometheus is away"))
    assert grown(made) == {"main": 1}
    assert first(made).use is None


# ---- who drives ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("driver", "there", "found", "grows"), [
    (NodeDriver.auto, ABSENT, NodeDriver.direct, True),
    (NodeDriver.auto, Known(DriversSeen()), NodeDriver.direct, True),
    (NodeDriver.auto, Known(DriversSeen(karpenter=True, cluster_autoscaler=True)), NodeDriver.karpenter, False),
    (NodeDriver.auto, Known(DriversSeen(cluster_autoscaler=True)), NodeDriver.cluster_autoscaler, False),
    (NodeDriver.direct, Known(DriversSeen(karpenter=True)), NodeDriver.direct, True),
    (NodeDriver.direct, Unseen("forbidden"), NodeDriver.direct, True),
    (NodeDriver.auto, Unseen("forbidden"), NodeDriver.auto, False),
])
def test_an_autoscaler_that_is_there_does_the_work(driver: Any, there: Any, found: Any, grows: bool) -> None:
    made = first(look(sight(policy(driver=driver), *pods(8), drivers=there)))
    assert made.driver is found
    assert bool(made.grows) is grows
    assert (Blocked.Unseen in made.blocked) is (found is NodeDriver.auto)


def test_a_group_that_another_autoscaler_owns_is_left_alone() -> None:
    rule = policy(driver=NodeDriver.direct)
    owned = (msgspec.structs.replace(groups_of(rule)[0], owner="cluster-autoscaler"),)
    for seen in (
        sight(rule, *pods(8), groups={"default": Known(owned)}),
        sight(rule, node("n1", driver_pool="gpu"), *pods(9)),
    ):
        made = first(look(seen))
        assert made.blocked.keys() == {Blocked.OwnedByOtherAutoscaler}
        assert (made.grows, made.releases, made.acts) == ((), (), False)


def test_of_two_policies_that_overlap_the_older_rules() -> None:
    old, young = policy(name="old", created_at=1.0), policy(name="young", created_at=2.0)
    seen = sight(None, *pods(8), policies=Known((young, old)),
                 groups={name: Known(groups_of(old)) for name in ("old", "young")})
    made = {each.policy.name: each for each in look(seen).policies}
    assert made["old"].grows
    assert made["young"].blocked.keys() == {Blocked.Overlap}
    apart = (policy(name="a", node_selector={"team": "a"}), policy(name="b", node_selector={"team": "b"}))
    assert all(not each.blocked for each in look(sight(None, policies=Known(apart), groups={
        each.name: Known(groups_of(each)) for each in apart
    })).policies)


@pytest.mark.parametrize(("groups", "acts", "advises"), [
    (Unseen("timeout"), False, True), (ABSENT, False, True), (Known(()), False, False),
    (Known((MachineGroup(id="group-main", error="gone"),)), False, False),
], ids=["unseen", "absent", "none", "bad"])
def test_without_a_cloud_there_is_only_advice(groups: Any, acts: bool, advises: bool) -> None:
    made = first(look(sight(policy(), *pods(8), groups={"default": groups})))
    assert made.acts is acts
    assert bool(made.grows) is advises


@pytest.mark.accepts("scaling", 25)
def test_what_is_recommended_is_what_would_be_done() -> None:
    acting = first(look(sight(policy(), *pods(8))))
    advice = first(look(sight(policy(mode=ScalingMode.recommend), *pods(8))))
    assert (acting.acts, advice.acts) == (True, False)
    assert [(each.pool, each.count, each.because) for each in advice.grows] == [
        (each.pool, each.count, each.because) for each in acting.grows
    ]


@pytest.mark.accepts("scaling", 15)
def test_half_of_the_nodes_unready_halts_all() -> None:
    nodes = [node(f"n{number}", is_ready=number < 5) for number in range(10)]
    memory = ScalingMemory(unneeded={each.uid: NOW - 1e6 for each in nodes})
    made = first(look(sight(None, *nodes, *pods(80)), memory))
    assert Brake.TooManyUnready in made.brakes
    assert (made.grows, made.releases) == ((), ())
    few = first(look(sight(None, *nodes[2:8], *pods(80)), memory))
    assert not few.brakes
    assert few.grows


def test_a_provider_that_fails_is_left_alone_for_longer_each_time() -> None:
    memory = ScalingMemory()
    for count, minutes in ((1, 0), (2, 0), (3, 1), (4, 2), (5, 4), (6, 8), (7, 16), (8, 30), (9, 30)):
        memory = scaling.note_failure(memory, "default", NOW)
        for later, halted in ((minutes * 60 - 1, True), (minutes * 60, False)):
            made = first(look(sight(None, *pods(8)), memory, NOW + later)) if later >= 0 else None
            assert made is None or (Brake.ProviderFailing in made.brakes) is halted, count
    assert grown(look(sight(None, *pods(8)), scaling.clear_failures(memory, "default"))) == {"main": 1}


def test_a_provider_that_does_not_say_what_it_has_fails_too_until_it_does() -> None:
    """What it failed to do before is not forgotten because it answers a look."""
    blind = sight(None, *pods(8), groups={"default": Unseen("timeout")})
    memory = ScalingMemory(failures={"default": (2, NOW)})
    for count in (1, 2, 3, 4):
        memory = scaling.note_looks(memory, blind, NOW)
        assert (Brake.ProviderFailing in first(look(blind, memory)).brakes) is (count >= 3)
    assert "failed 4 times" in first(look(blind, memory)).brakes[Brake.ProviderFailing]
    memory = scaling.note_looks(memory, sight(None), NOW)
    assert grown(look(sight(None, *pods(8)), memory)) == {"main": 1}
    assert Brake.ProviderFailing in first(look(sight(None), scaling.note_failure(memory, "default", NOW))).brakes


# ---- templates -------------------------------------------------------------------------------------------------------


def test_a_node_that_lives_tells_more_than_the_spec() -> None:
    """A spec that promises more than nodes have would grow again and again for the same pod."""
    promising = policy(pool(gpus=8))
    assert grown(look(sight(promising, pod("a", 8)))) == {"main": 1}
    small = node("n1", gpus=4)
    assert fits(look(sight(promising, small, pod("x", 4, "n1"), pod("a", 8))))["a"] == "NoPoolFits"


def test_what_belongs_to_every_node_is_not_free_on_a_new_one() -> None:
    there = node("n1", has={"cpu": 10_000, "memory": 10_000, GPU: 8})
    full = pod("x", 8, "n1", asks={GPU: 8})
    asks = {"cpu": 10_000, GPU: 1}
    assert fits(look(sight(None, there, full, pod("a", asks=asks))))["a"] == "NeedsNode"
    made = look(sight(None, there, full, daemon("d", "n1"), pod("a", asks=asks)))
    assert fits(made)["a"] == "NoPoolFits"


def test_nothing_is_known_to_fit_a_pool_of_which_nothing_is_known() -> None:
    made = look(sight(policy(pool(gpus=None)), pod("a", 1)))
    assert fits(made) == {"a": "NoPoolFits"}
    assert "is not known" in made.pods[0].because


# ---- spot replacement ------------------------------------------------------------------------------------------------


def interrupted(*more: Any, **about: Any) -> ScalingSight:
    rule = policy(*THREE[:2], pool("other", SPOT, price=4.0), **about)
    ends = node("s1", tier=SPOT, pool="cheap", warned_at=NOW, ends_at=NOW + 120)
    return sight(rule, ends, pod("a", 2, "s1"), pod("b", 2, "s1"), daemon("d", "s1"), *more)


@pytest.mark.accepts("scaling", 17)
def test_a_replacement_is_asked_for_whatever_rests_or_brakes() -> None:
    """The same tier, another pool."""
    resting, failing = status(lastScaleUpTime=NOW - 1), ScalingMemory(failures={"default": (5, NOW)})
    made = look(interrupted(status=resting), failing)
    assert Brake.ProviderFailing in first(made).brakes
    assert [(each.pool.name, each.count, each.reason) for each in first(made).grows] == [
        ("other", 1, GrowReason.SpotReplacement)
    ]


def test_no_replacement_where_pods_fit_elsewhere_or_one_is_on_its_way() -> None:
    assert grown(look(interrupted(node("n2", pool="plain")))) == {}
    asked = coming(in_pool="other", tier=SPOT, since=NOW - 5)
    assert grown(look(interrupted(status=status(in_flight=(asked,))))) == {}


def test_who_may_not_be_interrupted_again_gets_another_tier() -> None:
    rule = policy(*THREE[:2])
    ends = node("s1", tier=SPOT, pool="cheap", warned_at=NOW, ends_at=NOW + 120)
    train = pod("a", 2, "s1", work=WorkClass.training)
    assert grown(look(sight(rule, ends, train))) == {"plain": 1}
    assert grown(look(sight(policy(THREE[0]), ends, pod("a", 2, "s1")))) == {"cheap": 1}


def test_an_alarm_that_is_long_over_is_none() -> None:
    later = NOW + 120 + 600
    assert grown(look(interrupted(), now=later)) == {}


def test_the_same_sight_gives_the_same_plan_kept_or_not() -> None:
    kept = scaling.KeptSight()
    nodes = [node(f"n{number}", use=0.1) for number in range(6)]
    running = [pod(f"r{number}", 2, f"n{number}") for number in range(6)]
    seen = sight(policy(), *nodes, *running, *pods(3, 8))
    memory = ScalingMemory()
    for step, changed in enumerate((seen, seen, *(_without(seen, gone) for gone in range(3)), seen)):
        quick = scaling.plan(changed, memory, NOW + 30 * step, kept=kept)
        assert quick == scaling.plan(changed, memory, NOW + 30 * step)
        memory = quick.memory


def _without(seen: ScalingSight, gone: int) -> ScalingSight:
    assert isinstance(seen.pods, Known)
    left: tuple[ScaledPod, ...] = tuple(each for each in seen.pods.value if each.id.name != f"r{gone}")
    return msgspec.structs.replace(seen, pods=Known(left))
