"""From looks to intervals: exact to the second, whatever was looked at when; never more, nor less, than the GPUs."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.account.paper import DAY0, Scene, bill, held_rows

from fallow.account import pieces
from fallow.account.timeline import Face, Gpu, Ground, Holding
from fallow.model.cluster import Departure, RegisteredGpu
from fallow.model.cost import WHOLE, CostKey, Rate, SpendState
from fallow.model.seen import Register, Unseen

HOUR, DAY = 3600, 86400


@pytest.mark.accepts("cost", 1)
@pytest.mark.parametrize("every", [60, 600, 4 * HOUR], ids=["minutes", "ten-minutes", "hours"])
@pytest.mark.parametrize("restarts", [False, True], ids=["runs", "restarts"])
def test_ten_hours_on_a_dollar_gpu_are_ten_dollars(every, restarts):
    scene = Scene()
    scene.node("n", 1)
    scene.look(DAY0)
    begin, end = DAY0 + 1000, DAY0 + 1000 + 10 * HOUR
    scene.world.pod("p", node="n", bound_at=float(begin), started_at=None)
    pod = scene.world.pods[0]
    for now in range(DAY0 + every, end + 3 * every, every):
        if restarts and now % (3 * every) == 0:
            scene.restart()
        pods = [pod] if begin <= now < end else []
        gone = [Departure(pod, float(end))] if now - every < end <= now else []
        scene.look(now, pods, gone)
    assert scene.paper.cost(pod="p") == 10
    assert {sum for second, sum in scene.paper.seconds("n#0").items()} == {WHOLE}


@pytest.mark.accepts("cost", 2)
def test_seven_instances_of_a_seven_dollar_gpu_are_a_dollar_each():
    scene = Scene()
    scene.node("n", 0, 7_000_000_000, offers={"nvidia.com/mig-1g.5gb": 7})
    for at in range(7):
        scene.world.pod(f"p{at}", node="n", resources={"nvidia.com/mig-1g.5gb": 1}, bound_at=float(DAY0))
    scene.look(DAY0)
    scene.look(DAY0 + HOUR)
    assert [scene.paper.cost(pod=f"p{at}") for at in range(7)] == [1] * 7
    assert scene.paper.cost(state=SpendState.unallocated) == 0


@pytest.mark.accepts("cost", 2)
def test_of_a_gpu_that_is_not_cut_to_its_end_the_uncut_part_is_nobodys():
    scene = Scene()
    scene.node("n", 0, 7_000_000_000, offers={"nvidia.com/mig-1g.5gb": 2})
    scene.world.pod("p", node="n", resources={"nvidia.com/mig-1g.5gb": 1}, bound_at=float(DAY0))
    scene.look(DAY0)
    scene.look(DAY0 + HOUR)
    assert (scene.paper.cost(pod="p"), scene.paper.cost(state=SpendState.unallocated)) == (1, 6)


@pytest.mark.accepts("cost", 3)
@pytest.mark.parametrize("shares", [(333_333, 333_333, 333_334), (333_333, 333_333, 1)], ids=["all", "with a rest"])
def test_parts_that_lie_nowhere_come_to_the_rate_of_their_gpu_to_the_last_nano(shares):
    key = CostKey(cluster="c", node="n")
    gpu = Gpu("GPU-0", DAY0, Ground(key, Rate(10_000_000_001, "p")))
    for at, share in enumerate(shares):
        name = f"p{at}"
        gpu.holdings.append(Holding(gpu.name, str(at), name, name, DAY0, Face(key, SpendState.used, share)))
    made = pieces.make(gpu, DAY0, DAY0 + HOUR)
    assert sum(each.slice.share for each in made) == WHOLE
    assert sum(each.slice.rate_nano for each in made) == 10_000_000_001


@pytest.mark.accepts("cost", 2)
def test_a_four_and_a_three_share_their_gpu_and_slots_that_nobody_holds_are_unallocated():
    scene = Scene()
    scene.node("cut", 0, 7_000_000_000, offers={"nvidia.com/mig-4g.20gb": 1, "nvidia.com/mig-3g.20gb": 1})
    scene.node("turns", 4, 7_000_000_000, shared=True, labels={"nvidia.com/gpu.replicas": "4"})
    for size in (4, 3):
        scene.world.pod(f"{size}g", node="cut", resources={f"nvidia.com/mig-{size}g.20gb": 1}, bound_at=float(DAY0))
    for at in range(3):
        scene.world.pod(f"slice{at}", node="turns", bound_at=float(DAY0))
    scene.look(DAY0)
    scene.look(DAY0 + HOUR)
    assert scene.paper.cost(pod="4g") + scene.paper.cost(pod="3g") == 7
    assert scene.paper.cost(pod="4g") > scene.paper.cost(pod="3g")
    assert sum(scene.paper.cost(pod=f"slice{at}") for at in range(3)) == pytest.approx(5.25)
    assert scene.paper.cost(state=SpendState.unallocated) == pytest.approx(1.75)
    assert {each.slice.key.sharing for each in scene.paper.intervals} == {"mig", "timeslicing", "idle"}


@pytest.mark.accepts("cost", 2)
@pytest.mark.parametrize("by", ["timeslicing", "mps"])
@pytest.mark.parametrize("replicas", [2, 3, 7, 10])
def test_a_replica_is_one_of_as_many_as_there_are(replicas, by):
    """All but one are held; a share that were the same on every node would not come to the GPU."""
    scene, labels = Scene(), {"nvidia.com/gpu.replicas": str(replicas), "nvidia.com/gpu.sharing-strategy": by}
    scene.node("n", replicas, replicas * 10**9, shared=True, labels=labels)
    for at in range(1, replicas):
        scene.world.pod(f"p{at}", node="n", bound_at=float(DAY0))
    scene.look(DAY0)
    scene.look(DAY0 + HOUR)
    assert [scene.paper.cost(pod=f"p{at}") for at in range(1, replicas)] == [1] * (replicas - 1)
    assert scene.paper.cost(state=SpendState.unallocated) == 1
    assert {each.slice.key.sharing for each in scene.paper.intervals} == {by, "idle"}


def test_who_came_and_went_between_two_looks_is_booked_to_the_second_and_late_news_are_put_where_they_belong():
    scene = Scene()
    scene.node("n", 1)
    for name, begin in (("a", 10), ("b", 200), ("c", 300)):
        scene.world.pod(name, node="n", bound_at=float(DAY0 + begin))
    a, b, c = scene.world.pods
    scene.look(DAY0, [])
    scene.look(DAY0 + 120, [a])
    scene.look(DAY0 + 180, [a])  # that it ended at 130 is heard later
    scene.look(DAY0 + 360, [c], [Departure(b, float(DAY0 + 250)), Departure(a, float(DAY0 + 130))])
    held = [each for each in scene.paper.intervals if each.slice.pod_uid]
    spans = {each.slice.pod_name: (each.t0 - DAY0, each.t1 - DAY0) for each in held}
    assert spans == {"a": (10, 130), "b": (200, 250), "c": (300, 360)}
    assert set(scene.paper.seconds("n#0").values()) == {WHOLE}


@pytest.mark.parametrize("late", [0, 1, 60], ids=["the-same-second", "a-second", "a-look"])
def test_who_is_bound_after_the_clock_of_a_look_was_read_is_booked_from_then_on_by_the_next(late):
    """The clock is read before the pods; nothing else need change until the next look."""
    scene = Scene()
    scene.node("n", 1)
    scene.world.pod("a", node="n", bound_at=DAY0 + late + 0.5)
    same = tuple(scene.world.pods)
    for at in (0, 60, 120):
        scene.look(DAY0 + at, same)
    assert (scene.paper.hours(pod="a") * 3600, scene.paper.hours() * 3600) == (120 - late, 120)
    assert scene.books.odd == []


@pytest.mark.parametrize("restarts", [False, True], ids=["", "restarted"])
def test_who_ends_after_the_clock_of_a_look_was_read_ends_there_and_whoever_follows_begins_there(restarts):
    scene = Scene()
    scene.node("n", 1)
    scene.world.pod("a", node="n", bound_at=float(DAY0))
    (first,) = scene.world.pods
    scene.look(DAY0)
    gone = Departure(first, DAY0 + 61.7, DAY0 + 61.8)
    brief = msgspec.structs.replace(first, name="b", uid="b", bound_at=DAY0 + 61.9)
    second = msgspec.structs.replace(first, name="c", uid="c", bound_at=DAY0 + 63.2)
    scene.look(DAY0 + 60, [brief], [gone])
    scene.look(DAY0 + 61, [brief])
    if restarts:
        scene.restart()
    scene.look(DAY0 + 120, [second], [Departure(brief, DAY0 + 62.4, DAY0 + 62.5)])
    assert [scene.paper.hours(pod=name) * 3600 for name in "abc"] == [61, 1, 120 - 63]
    assert scene.paper.seconds("n#0") == dict.fromkeys(range(DAY0, DAY0 + 120), WHOLE)
    assert scene.books.odd == []


def test_a_date_of_a_wrong_clock_is_believed_for_one_look():
    """Else whoever is bound tomorrow, by the clock of his node, would be free until then."""
    scene = Scene()
    scene.node("n", 2)
    scene.world.pod("a", node="n", bound_at=float(DAY0 + 86_400))
    scene.world.pod("b", node="n", bound_at=float(DAY0))
    staying, leaving = scene.world.pods
    scene.look(DAY0)
    scene.look(DAY0 + 60, [staying], [Departure(leaving, DAY0 + 9999.0)])
    scene.look(DAY0 + 120, [staying])
    scene.look(DAY0 + 180, [staying])
    assert [scene.paper.hours(pod=name) * 3600 for name in "ab"] == [120, 120]
    assert scene.paper.hours() * 3600 == 2 * 180


def test_a_pod_of_which_nobody_heard_the_end_ends_where_it_was_seen_last():
    scene = Scene()
    scene.node("n", 1)
    scene.world.pod("a", node="n", bound_at=float(DAY0))
    for now in (0, 60, 120):
        scene.look(DAY0 + now)
    scene.look(DAY0 + 180, [])
    assert scene.paper.hours(pod="a") * HOUR == 120
    scene.look(DAY0 + 240, [], [Departure(scene.world.pods[0])])
    assert scene.paper.hours(pod="a") * HOUR == 120


def test_an_interval_ends_at_midnight_and_goes_on_as_another():
    scene = Scene(DAY0 + 86000)
    scene.node("n", 1)
    scene.world.pod("a", node="n", bound_at=float(DAY0 + 86000))
    for now in range(DAY0 + 86000, DAY0 + 87000, 60):
        scene.look(now)
    found = sorted((each.t0 - DAY0, each.t1 - DAY0, each.is_open) for each in scene.paper.intervals)
    assert found == [(86000, 86400, False), (86400, 86960, True)]


def test_idleness_that_is_known_an_hour_late_shortens_what_was_written():
    scene = Scene()
    scene.node("n", 1)
    scene.world.pod("a", node="n", bound_at=float(DAY0))
    for now in range(DAY0, DAY0 + HOUR + 1260, 60):  # written anew when the hour began
        scene.look(now, rows=held_rows([(0, "GPU-1", None, 0.5)]))
    scene.look(now + 60, rows=held_rows([(0, "GPU-1", float(DAY0 + HOUR - 540), 0.0)]))
    assert scene.paper.hours(state=SpendState.held_idle) * HOUR == 540 + 1260
    assert set(scene.paper.seconds("GPU-1").values()) == {WHOLE}


def test_looks_on_the_full_hour_write_no_hour_that_has_not_begun():
    scene = Scene(patience=DAY)
    scene.node("n", 1)
    scene.world.pod("a", node="n", bound_at=float(DAY0))
    for hour in range(26):
        scene.look(DAY0 + hour * HOUR, rows=held_rows([(0, "GPU-1", None, 0.5)]))
    found = sorted(scene.paper.intervals, key=lambda each: each.t0)
    assert [(each.t0 - DAY0, each.t1 - DAY0, each.use) for each in found] == [
        (0, DAY, (500_000,) * 24), (DAY, DAY + HOUR, (500_000,))
    ]


def test_a_node_that_is_lost_in_the_first_look_of_a_day_leaves_no_interval_longer_than_a_day():
    scene = Scene(DAY0 + DAY - 600)
    scene.node("n", 1)
    scene.world.pod("a", node="n", bound_at=float(DAY0 + DAY - 600))
    scene.look(DAY0 + DAY - 60)
    scene.look(DAY0 + DAY + 60, [], nodes=Register({}))
    assert sorted((each.t0 - DAY0, each.t1 - DAY0) for each in scene.paper.intervals) == [
        (DAY - 60, DAY), (DAY, DAY + 60)
    ]


@pytest.mark.accepts("cost", 5)
def test_a_gpu_that_went_before_a_restart_does_not_come_back():
    scene = Scene()
    scene.node("n", 2)
    scene.look(DAY0)
    scene.look(DAY0 + 60, nodes=Register({}))
    scene.restart()
    for now in range(DAY0 + 120, DAY0 + 2 * HOUR, 60):  # an hour begins, with which all that is there is written anew
        scene.look(now, nodes=Register({}))
    assert scene.paper.hours() * HOUR == 120


@pytest.mark.accepts("cost", 5)
def test_after_a_restart_parts_of_a_gpu_keep_their_rates_to_the_nano_also_those_that_ended():
    """A seventh is no whole number of micro-GPUs: of its share nobody can tell the rate of the GPU."""
    plain, killed = Scene(), Scene()
    for scene in (plain, killed):
        scene.node("n", 0, 4_096_250_011, offers={"nvidia.com/mig-1g.5gb": 7})
        for at in range(4):
            scene.world.pod(f"p{at}", node="n", resources={"nvidia.com/mig-1g.5gb": 1}, bound_at=float(DAY0 + 5 + at))
        for now in range(0, 1200, 60):
            if scene is killed and now == 600:
                scene.book.settle(DAY0 + 400)
                scene.restart()
            heard = {1: 480, 2: 660}  # of its end; of the second one late, so that all since is made anew
            gone = [Departure(scene.world.pods[at], float(DAY0 + 450 + at)) for at in heard if heard[at] == now]
            pods = [pod for at, pod in enumerate(scene.world.pods) if now < heard.get(at, 1200)]
            scene.look(DAY0 + now, pods, gone)
    assert sorted(map(str, killed.paper.intervals)) == sorted(map(str, plain.paper.intervals))


def test_a_price_that_changes_between_two_looks_changes_there_and_one_learned_late_prices_no_past():
    scene = Scene()
    scene.node("n", 1, None)
    scene.world.pod("a", node="n", bound_at=float(DAY0))
    scene.look(DAY0)
    scene.bills["n"] = bill(1_000_000_000, "first", since=DAY0 - 10**6)
    scene.look(DAY0 + 60)
    scene.bills["n"] = bill(2_000_000_000, "second", since=DAY0 + 90)
    scene.look(DAY0 + 120)
    found = sorted((each.t0 - DAY0, each.t1 - DAY0, each.slice.rate_nano, each.slice.price_id) for each in
                   scene.paper.intervals)
    assert found == [(0, 60, None, ""), (60, 90, 10**9, "first"), (90, 120, 2 * 10**9, "second")]


def test_a_clock_that_is_set_back_shortens_nothing():
    scene = Scene()
    scene.node("n", 1)
    scene.world.pod("a", node="n", bound_at=float(DAY0))
    for now in (0, 600, 300, 330, 660):
        scene.look(DAY0 + now)
    assert scene.paper.hours(pod="a") * HOUR == 660
    assert set(scene.paper.seconds("n#0").values()) == {WHOLE}
    for now, pods in ((500, None), (510, [])):  # of whom nobody heard went after we last saw him, by the furthest clock
        scene.look(DAY0 + now, pods)
    assert scene.paper.hours(pod="a") * HOUR == 660


def test_who_turns_idle_and_back_while_the_clock_stands_still_is_booked_without_a_gap():
    scene = Scene()
    scene.node("n", 1)
    scene.world.pod("a", node="n", bound_at=float(DAY0))
    for now, since in ((0, None), (60, None), (30, float(DAY0 + 60)), (45, None), (120, None)):
        scene.look(DAY0 + now, rows=held_rows([(0, "GPU-1", since, 0.5)]))
    assert scene.paper.hours(pod="a", state=SpendState.used) * HOUR == 120
    assert set(scene.paper.seconds("GPU-1").values()) == {WHOLE}


def test_a_node_that_is_not_seen_leaves_all_as_it_is_and_one_that_is_gone_ends_its_gpus():
    scene = Scene()
    scene.node("n", 2)
    scene.world.pod("a", node="n", bound_at=float(DAY0))
    scene.look(DAY0)
    blind = Register({}, Unseen("nodes may not be listed"))
    scene.look(DAY0 + 60, nodes=blind)
    assert scene.paper.hours(pod="a") * HOUR == 60
    assert scene.paper.hours(state=SpendState.unallocated) * HOUR == 60
    scene.look(DAY0 + 120, nodes=Register({}))
    scene.look(DAY0 + 180, nodes=Register({}))
    assert scene.paper.hours() * HOUR == 240
    assert not [each for each in scene.paper.rows.values() if each.is_open]


def test_a_pod_whose_node_went_with_it_ends_when_it_ended():
    scene = Scene()
    scene.node("n", 1)
    scene.world.pod("a", node="n", bound_at=float(DAY0))
    scene.look(DAY0)
    del scene.world.nodes["n"]
    scene.look(DAY0 + 60, [], [Departure(scene.world.pods[0], DAY0 + 20.0)])
    scene.look(DAY0 + 120, [])
    assert (scene.paper.hours(pod="a") * HOUR, scene.paper.hours() * HOUR) == (20, 60)


@pytest.mark.parametrize("restarts", [False, True], ids=["runs", "restarts"])
@pytest.mark.parametrize("together", [0, 1, 3], ids=["at-once", "a-look-together", "three-looks-together"])
def test_a_node_that_gets_another_name_takes_its_gpus_along_and_nothing_is_booked_twice(together, restarts):
    scene, boards = Scene(), (RegisteredGpu("GPU-1", 80_000), RegisteredGpu("GPU-2", 80_000))
    scene.node("old", 2, boards=boards)
    scene.world.pod("a", node="old", bound_at=float(DAY0))
    scene.world.pod("b", node="new", bound_at=float(DAY0 + 60))
    a, b = scene.world.pods
    scene.look(DAY0, [a])
    scene.node("new", 2, boards=boards)
    for at in range(1, 12):
        if at == 1 + together:
            del scene.world.nodes["old"]
        if restarts:
            scene.restart()
        there = [a, b] if at <= together else [b]
        rows = held_rows([(there.index(b), "GPU-2", None, 0.5)]) if at > 5 else None  # by then it is measured
        scene.look(DAY0 + 60 * at, there, [Departure(a, DAY0 + 60.0 * at)] if at == 1 + together else [], rows=rows)
    for node, begin, end in (("old", 0, 60 * (1 + together)), ("new", 60, 660)):
        assert scene.paper.hours(node=node) * HOUR == 2 * (end - begin)
    for gpu in {each.slice.gpu for each in scene.paper.intervals}:
        assert set(scene.paper.seconds(gpu).values()) == {WHOLE}
    assert scene.paper.hours(pod="b") * HOUR == 600
    assert {each.slice.gpu for each in scene.paper.intervals if each.is_open and each.slice.pod_name} == {"GPU-2"}


@pytest.mark.parametrize("is_measured", [False, True], ids=["they-say-so", "it-is-measured-so"])
def test_two_nodes_that_say_they_have_the_same_gpu_have_one_each(is_measured):
    """Machines that were cloned. Both are paid for."""
    scene, boards = Scene(), () if is_measured else (RegisteredGpu("GPU-1", 80_000),)
    for name, node in (("a", "one"), ("b", "two")):
        scene.node(node, 1, boards=boards)
        scene.world.pod(name, node=node, bound_at=float(DAY0))
    rows = held_rows([(0, "GPU-1", None, 0.5), (1, "GPU-1", None, 0.5)])
    for at in (0, 60, 120):
        scene.look(DAY0 + at, rows=rows)
    assert [scene.paper.hours(pod=name, node=node) * HOUR for name, node in (("a", "one"), ("b", "two"))] == [120, 120]
    assert scene.books.odd == ["GPU-1 on two is said to be of several pods or nodes, or is one too many"]


def test_a_pod_on_a_node_that_nobody_ever_saw_makes_nothing_unallocated():
    scene = Scene()
    scene.world.pod("a", node="dark", resources={"nvidia.com/gpu": 2}, bound_at=float(DAY0))
    blind = Register({}, Unseen("nodes may not be listed"))
    scene.look(DAY0, nodes=blind)
    scene.look(DAY0 + 60, nodes=blind)
    assert scene.paper.hours() * HOUR == 120 == scene.paper.hours(pod="a") * HOUR
    assert {each.slice.rate_nano for each in scene.paper.intervals} == {None}


def test_who_sees_only_some_namespaces_calls_nothing_unallocated():
    scene = Scene()
    scene.node("n", 2)
    scene.world.pod("a", node="n", bound_at=float(DAY0))
    scene.look(DAY0, sees_all=False)
    scene.look(DAY0 + 60, sees_all=False)
    assert scene.paper.hours() * HOUR == 60


def test_a_gap_that_nobody_watched_costs_and_is_neither_use_nor_idleness():
    scene = Scene()
    scene.node("n", 1)
    scene.world.pod("a", node="n", bound_at=float(DAY0))
    idle = held_rows([(0, "GPU-1", float(DAY0), 0.0)])
    scene.look(DAY0, rows=idle)
    scene.look(DAY0 + 60, rows=idle)
    scene.look(DAY0 + 1000, rows=idle)
    scene.look(DAY0 + 1060, rows=held_rows([(0, "GPU-1", float(DAY0), 0.0)]))
    found = sorted((each.t0 - DAY0, each.t1 - DAY0, each.slice.state, each.gap_filled) for each in
                   scene.paper.intervals)
    assert found == [
        (0, 60, SpendState.held_idle, False), (60, 1000, SpendState.use_unknown, True),
        (1000, 1060, SpendState.held_idle, False),
    ]


def test_a_restart_between_two_looks_changes_nothing():
    plain, killed = Scene(), Scene()
    for scene in (plain, killed):
        scene.node("n", 0, 7_000_000_000, offers={"nvidia.com/mig-1g.5gb": 7})
        scene.world.pod("a", node="n", resources={"nvidia.com/mig-1g.5gb": 2}, bound_at=float(DAY0 + 5))
        for now in range(0, 1200, 60):
            if scene is killed and now % 180 == 0:
                scene.restart()
            scene.look(DAY0 + now, rows=None)
    assert killed.paper.rows.keys() == plain.paper.rows.keys()
    assert sorted(map(str, killed.paper.intervals)) == sorted(map(str, plain.paper.intervals))


def test_two_pods_that_claim_one_whole_gpu_never_come_to_more_than_it_and_that_is_said():
    scene = Scene()
    scene.node("n", 1)
    for name in "ab":
        scene.world.pod(name, node="n", bound_at=float(DAY0))
    scene.look(DAY0)
    scene.look(DAY0 + 60)
    assert scene.paper.hours(pod="a") == scene.paper.hours(pod="b") == scene.paper.hours() / 2
    assert scene.books.odd == ["pods hold more than the 1 GPUs of n"]


def test_a_gpu_gets_its_name_when_somebody_measures_it_as_far_back_as_nothing_is_settled():
    scene = Scene()
    scene.node("n", 2)
    scene.world.pod("a", node="n", bound_at=float(DAY0))
    scene.look(DAY0)
    scene.look(DAY0 + 120, rows=held_rows([(0, "GPU-x", None, 0.5)]))
    mine = {each.slice.gpu for each in scene.paper.intervals if each.slice.pod_name == "a"}
    assert mine == {"GPU-x"}
    assert scene.paper.hours() * HOUR == 240
    scene.world.pod("b", node="n", bound_at=float(DAY0 + 130))
    scene.look(DAY0 + 180, rows=held_rows([(0, "GPU-x", None, 0.5), (1, "GPU-y", None, 0.5)]))
    scene.look(DAY0 + 240, rows=held_rows([(0, "GPU-y", None, 0.5), (1, "GPU-x", None, 0.5)]))  # they say so now
    assert scene.paper.hours() * HOUR == 480
    for gpu in ("GPU-x", "GPU-y"):
        assert set(scene.paper.seconds(gpu).values()) == {WHOLE}


def test_a_node_that_is_cut_otherwise_is_divided_so_from_then_on():
    scene = Scene()
    scene.node("n", 1)
    scene.world.pod("a", node="n", bound_at=float(DAY0))
    scene.look(DAY0)
    scene.node("n", 4, shared=True, labels={"nvidia.com/gpu.replicas": "4"})
    scene.look(DAY0 + 60)
    scene.look(DAY0 + 120)
    assert scene.paper.hours(pod="a") * HOUR == 60 + 15
    assert scene.paper.hours() * HOUR == 120


def test_labels_of_pod_workload_and_namespace_in_this_order_and_a_change_begins_another_interval():
    scene = Scene(own=("fallow-system",))
    scene.node("n", 4)
    scene.world.namespace("ml", labels={"team": "space", "project": "apollo"})
    scene.world.workload("ml/llm", labels={"team": "owner", "user": "ada"},
                         pod={"node": "n", "labels": {"user": "eve", "secret": "x"}, "bound_at": float(DAY0)})
    scene.world.pod("ours", node="n", namespace="fallow-system", bound_at=float(DAY0))
    scene.look(DAY0)
    first = next(each.slice.key for each in scene.paper.intervals if each.slice.pod_name == "llm-0")
    assert (first.dims.team, first.dims.project, first.dims.user) == ("owner", "apollo", "eve")
    assert (first.owner_kind, first.owner_name, first.workload_type) == ("Deployment", "llm", "batch")
    assert "secret" not in dict(first.dims.labels)
    assert scene.paper.hours(team="__platform__") == 0
    scene.world.pods[0] = msgspec.structs.replace(scene.world.pods[0], labels={"team": "new"})
    scene.look(DAY0 + 60)
    scene.look(DAY0 + 120)
    assert scene.paper.hours(team="owner") * HOUR == 60 == scene.paper.hours(team="new") * HOUR
    assert scene.paper.hours(team="__platform__") * HOUR == 120


def test_who_found_no_room_gets_it_when_the_end_of_another_is_heard_of():
    scene = Scene()
    scene.node("n", 1)
    for name, begin in (("a", 0), ("b", 100)):
        scene.world.pod(name, node="n", bound_at=float(DAY0 + begin))
    a, b = scene.world.pods
    scene.look(DAY0, [a])
    scene.look(DAY0 + 120, [a, b])  # that the first has ended is not known yet
    assert scene.books.odd != []
    scene.look(DAY0 + 180, [b], [Departure(a, float(DAY0 + 100))])
    assert (scene.paper.hours(pod="a") * HOUR, scene.paper.hours(pod="b") * HOUR) == (100, 80)
    assert scene.books.odd == []


# ---- any history, second by second -----------------------------------------------------------------------------------

SPAN = 1800
KINDS = {
    "whole": ({"nvidia.com/gpu": 2}, {}, "nvidia.com/gpu", 2),
    "turns": ({"nvidia.com/gpu": 6}, {"nvidia.com/gpu.replicas": "3"}, "nvidia.com/gpu", 6),
    "mig": ({"nvidia.com/mig-1g.5gb": 8, "nvidia.com/mig-3g.20gb": 2}, {"nvidia.com/gpu.count": "2"},
            "nvidia.com/mig-1g.5gb", 8),
}
lives = st.lists(
    st.tuples(st.integers(0, SPAN - 10), st.integers(1, SPAN), st.integers(0, 40), st.integers(0, 40)), max_size=14
)


@pytest.mark.accepts("cost", 3)
@given(kind=st.sampled_from(sorted(KINDS)), lives=lives, looks=st.sets(st.integers(1, SPAN - 1), max_size=12),
       prices=st.lists(st.tuples(st.integers(1, SPAN // 3 - 1), st.integers(1, 10**10)), max_size=3),
       restart=st.none() | st.integers(0, 11), rolls=st.booleans())
def test_any_history_adds_up_at_every_second(kind, lives, looks, prices, restart, rolls):
    """The oracle: second by second, who holds by what was really so. Ends and beginnings are heard of late."""
    offers, labels, resource, most = KINDS[kind]
    scene = Scene(patience=SPAN)
    scene.node("n", 0, 10**9, offers=offers, labels=labels, shared=kind == "turns")
    pods, truth = [], {}
    for at, (begin, lasts, late_begin, late_end) in enumerate(sorted(lives)):
        end = min(SPAN, begin + lasts)
        if sum(one[0] < end and begin < one[1] for one in truth.values()) >= most:
            continue  # no scheduler would bind it
        scene.world.pod(f"p{at}", node="n", resources={resource: 1}, bound_at=float(DAY0 + begin))
        pods.append((scene.world.pods[-1], begin, end, late_begin, late_end))
        truth[f"p{at}"] = (begin, end)
    rates, tariff = sorted({3 * since: nano for since, nano in prices}.items()), [10**9] * SPAN
    for since, nano in rates:
        tariff[since:] = [nano] * (SPAN - since)
    last = -1
    for number, now in enumerate([0, *sorted(looks), SPAN + 50]):
        if number == restart:
            scene.restart()
            truth = {}  # of those who went meanwhile only the last sight is known
        for since, nano in rates:
            if last < since <= now:
                scene.bills["n"] = bill(nano, f"since{since}", since=DAY0 + since)
                soon = min(now, since + 1)
                scene.look(DAY0 + soon, _alive(pods, soon), _gone(pods, last, soon))
                last = soon
        scene.look(DAY0 + now, _alive(pods, now), _gone(pods, last, now))
        if rolls and number % 4 == 3:
            scene.book.settle(DAY0 + max(0, now - 100))
        last = now
    total = 0
    for gpu in {each.slice.gpu for each in scene.paper.intervals}:
        sums = scene.paper.seconds(gpu)
        assert set(sums.values()) == {WHOLE}
        assert len(sums) == SPAN + 50
        total += len(sums)
    assert total == 2 * (SPAN + 50)
    for name, (begin, end) in truth.items():
        mine = [each for each in scene.paper.intervals if each.slice.pod_name == name]
        spans = sorted((each.t0 - DAY0, each.t1 - DAY0) for each in mine)
        assert sum(b - a for a, b in spans) == end - begin
        assert not spans or (spans[0][0], spans[-1][1]) == (begin, end)
    exact = sum((each.slice.rate_nano or 0) * (each.t1 - each.t0) for each in scene.paper.intervals)
    assert exact == 2 * (sum(tariff) + 50 * tariff[-1])


def _alive(pods, now):
    """As the mirror has them: one that began is heard of a little later, and so is the end."""
    return [pod for pod, begin, end, late_begin, late_end in pods if begin + late_begin <= now < end + late_end]


def _gone(pods, last, now):
    return [
        Departure(pod, float(DAY0 + end)) for pod, begin, end, late_begin, late_end in pods
        if last < max(end + late_end, begin + late_begin) <= now and end + late_end <= now
    ]


@pytest.mark.accepts("cost", 3)
@given(lives=lives, looks=st.sets(st.integers(1, SPAN - 1), max_size=12), restart=st.none() | st.integers(0, 11),
       names=st.lists(st.integers(0, 3), min_size=14, max_size=14), delays=st.lists(st.integers(0, 900), min_size=14),
       settles=st.booleans())
def test_any_history_adds_up_whenever_gpus_get_their_names(lives, looks, restart, names, delays, settles):
    """Names come late, and may be wrong: two pods on one GPU, or more GPUs than there are. Then pods that contradict
    each other may share seconds; the GPUs add up all the same, and nobody holds before he was bound or after his end.
    """
    scene = Scene(patience=SPAN)
    scene.node("n", 3)
    pods, truth = [], {}
    for at, (begin, lasts, _, late_end) in enumerate(sorted(lives)):
        end = min(SPAN, begin + lasts)
        if sum(one[0] < end and begin < one[1] for one in truth.values()) >= 3:
            continue
        scene.world.pod(f"p{at}", node="n", bound_at=float(DAY0 + begin))
        pods.append((scene.world.pods[-1], begin, end, 0, late_end))
        truth[f"p{at}"] = (begin, end)
    last = -1
    for number, now in enumerate([0, *sorted(looks), SPAN + 50]):
        if number == restart:
            scene.restart()
            truth = {}
        alive = _alive(pods, now)
        began = {pod.uid: begin for pod, begin, *_ in pods}
        told = [
            (at, f"GPU-{names[int(pod.name[1:])]}", None, 0.5) for at, pod in enumerate(alive)
            if began[pod.uid] + delays[int(pod.name[1:]) % len(delays)] <= now
        ] if delays else []
        scene.look(DAY0 + now, alive, _gone(pods, last, now), rows=held_rows(told))
        if settles and number % 4 == 3:
            scene.book.settle(DAY0 + max(0, now - 100))
        last = now
    total = 0
    for gpu in {each.slice.gpu for each in scene.paper.intervals}:
        sums = scene.paper.seconds(gpu)
        assert set(sums.values()) == {WHOLE}
        total += len(sums)
    assert total == 3 * (SPAN + 50)
    for name, (begin, end) in truth.items():
        mine = [each for each in scene.paper.intervals if each.slice.pod_name == name]
        assert 0 < scene.paper.hours(pod=name) * HOUR <= end - begin
        assert (min(each.t0 for each in mine), max(each.t1 for each in mine)) == (DAY0 + begin, DAY0 + end)
