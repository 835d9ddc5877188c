"""The cluster on one page, as data: numbers that agree, prices that are known or not, what comes next."""

import msgspec
import pytest
from tests import builders
from tests.builders import HOUR, MINUTE, NOW, World

from fallow import settings
from fallow.decide.idle import plan as brain
from fallow.doors.answers import rows as telling
from fallow.doors.answers import status as statuses
from fallow.doors.answers import workloads as rows
from fallow.doors.cli import pages
from fallow.model import bills, cluster, decision, long_memory, price_book, shares, usage
from fallow.model.seen import Register, Unseen
from fallow.stories import idle as stories
from fallow.wiring import daemon

T4 = "Tesla-T4"
NOBODY = daemon.DaemonSeen("default")


def look_at(world, mandate=None, *, measured=None, lost=(), url="http://prometheus", **said):
    mandate = mandate or builders.mandate(acting=False)
    seen = world.snapshot(**said)
    per_node = dict.fromkeys(world.nodes, 8) if measured is None else measured
    evidence = msgspec.structs.replace(seen.evidence, gpus_per_node=per_node, lost_signals=lost)
    seen = msgspec.structs.replace(seen, evidence=evidence)
    options = settings.read_flags({"prometheus_url": url}, {})
    options = msgspec.structs.replace(options, mandate=mandate)
    return stories.Look(seen, brain.make_plan(seen, mandate, decision.Memory(), world.now), options)


def page_of(world, *asked, book=price_book.LIST, found=NOBODY, **more):
    look = look_at(world, **more)
    return statuses.status(look, rows.view(look.plan, *asked), found, book)


def cost_of(world, index, **more):
    look = look_at(world)
    return telling.make_bill(rows.count(look.plan, index), price_book.LIST, **more).per_hour


def node(world, name, gpus, **said):
    world.node(name, **said)
    world.nodes[name] = msgspec.structs.replace(world.nodes[name], gpus=gpus)


def test_capacity_is_what_nodes_offer_and_free_is_what_nobody_took_on_ready_ones():
    world = World()
    node(world, "node-1", 8)
    node(world, "node-2", 4, ready=False)
    node(world, "cpu", 0)
    world.workload("ml/llm", gpus=[builders.idle(), builders.busy()])
    page = page_of(world)
    assert (page.cluster.nodes, page.cluster.gpus, page.cluster.free) == (2, 12, 6)
    assert (page.gpus, page.active_gpus, page.idle_gpus, page.unknown_gpus) == (2, 1, 1, 0)


MIG = {"product": "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb", "labels": {"nvidia.com/gpu.count": "16"}}


@pytest.mark.parametrize(
    ("of_node", "offers", "physical"),
    [
        ({}, {}, 16), ({"shared": True, "labels": {"nvidia.com/gpu.replicas": "4"}}, {}, 4), (MIG, {}, 3),
        ({"product": "NVIDIA-A100-SXM4-80GB", "labels": {"nvidia.com/gpu.count": "8"}},
         {"nvidia.com/mig-3g.40gb": 16}, 8),
    ],
    ids=["whole", "sliced", "all are cut", "cut in two"],
)
def test_boards_are_counted_beside_what_they_are_offered_as_by_the_one_rule(of_node, offers, physical):
    world = World()
    node(world, "node-1", 16, **of_node)
    world.nodes["node-1"] = msgspec.structs.replace(world.nodes["node-1"], offers=offers)
    found = page_of(world).cluster
    assert (found.physical, found.gpus) == (physical, 16)
    assert shares.count_physical(world.nodes["node-1"]) == physical


@pytest.mark.parametrize(("product", "says"), [
    ("NVIDIA-A100-SXM4-80GB", "16 GPUs on node-1"), ("NVIDIA-A100-SXM4-80GB-MIG-1g.10gb", "3 GPUs on node-1"),
])
def test_a_node_without_measurements_is_counted_in_boards(product, says):
    world = World()
    node(world, "node-1", 16, product=product)
    assert page_of(world, measured={}).problems[0].because.startswith(says)


def test_what_is_not_seen_is_not_counted_as_free():
    world = World()
    node(world, "node-1", 8)
    world.workload("ml/llm")
    unseen = page_of(world, nodes=Register(world.nodes, Unseen("may not be listed"))).cluster
    assert (unseen.nodes, unseen.gpus, unseen.free) == (None, None, None)
    some = builders.mandate(scope=msgspec.structs.replace(builders.mandate().scope, watch_namespaces=("ml",)))
    assert page_of(world, mandate=some).cluster.free is None


def test_money_is_of_idle_gpus_whose_price_is_known():
    world = World()
    node(world, "node-1", 8, product=T4)
    world.workload("ml/known", gpus=[builders.idle(model=T4), builders.idle(model=T4)])
    world.workload("ml/unknown", gpus=[builders.idle(model="NVIDIA H100 80GB HBM3")])
    world.workload("ml/busy", gpus=[builders.busy(model=T4)])
    cost = page_of(world).idle_cost
    assert (cost.per_hour, cost.currency, cost.unpriced_gpus) == (1.05, "USD", 1)
    given = page_of(world, book={**price_book.LIST, **price_book.read_prices(["H100-80GB-HBM3=2.00"])}).idle_cost
    assert (given.per_hour, given.unpriced_gpus) == (3.05, 0)


def test_what_idle_gpus_of_workloads_cost_that_are_not_idle_as_a_whole_is_said_apart():
    """The list of idle workloads has only the others, and is to add up."""
    world = World()
    node(world, "node-1", 8, product=T4)
    world.workload("ml/known", gpus=[builders.idle(model=T4)])
    world.workload("ml/half", gpus=[builders.idle(model=T4), builders.idle(model=T4), builders.busy(model=T4)])
    page = page_of(world)
    cost = page.idle_cost
    assert [(row.name, row.cost.per_hour) for row in page.top] == [("known", 0.526)]
    assert (cost.per_hour, cost.partly_per_hour, cost.partly_gpus, cost.partly_workloads) == (1.58, 1.05, 2, 1)
    assert pages._tell_money(cost) == (
        "idle GPUs cost $1.58 an hour at list price; $1.05 an hour of it for 2 GPUs of 1 workload that is not idle as "
        "a whole"
    )


def test_a_price_that_nobody_knows_is_none():
    world = World()
    world.workload("ml/llm", gpus=[builders.idle(model="NVIDIA H100 80GB HBM3")])
    cost = page_of(world).idle_cost
    assert (cost.per_hour, cost.unpriced_gpus) == (None, 1)
    assert page_of(world).top[0].cost is None


A100 = "NVIDIA A100-SXM4-80GB"
_FOUR = {"shared": True, "labels": {"nvidia.com/gpu.replicas": "4"}}


@pytest.mark.parametrize(
    ("pod", "of_node", "cost"),
    [
        ({"resources": {"nvidia.com/mig-1g.10gb": 1}}, {"product": A100}, 0.7314),  # a seventh of 5.12
        ({"resources": {"nvidia.com/mig-3g.40gb": 1}}, {"product": A100}, 2.56),  # half of the memory
        ({}, {"product": f"{A100}-MIG-1g.10gb"}, 0.7314),
        ({}, _FOUR, 1.28), ({"resources": {"nvidia.com/gpu.shared": 1}}, _FOUR, 1.28),
        ({"annotations": {"gpu-fraction": "0.5"}, "resources": {"nvidia.com/gpu.shared": 1}}, {}, 2.56),
        ({"claimed": 1, "resources": {}}, {}, None), ({}, {"shared": True}, None),
        ({"resources": {"nvidia.com/gpu.shared": 1}}, {}, None),
    ],
    ids=[
        "mig", "half the memory", "mig node", "slice", "shared", "fraction", "claimed", "by how many?",
        "shared by how many?",
    ],
)
def test_a_part_of_a_gpu_costs_its_share_wherever_that_is_told(pod, of_node, cost):
    world = World()
    node(world, "node-1", 8, **of_node)
    index = world.workload("ml/llm", gpus=[builders.idle(model=A100)], pod=pod)
    look, page = look_at(world), page_of(world)
    row = telling.make_row(rows.count(look.plan, index), look.snapshot, NOW)
    assert cost_of(world, index, of_all=True) == row.per_hour == cost
    # as notices and books tell it
    assert bills.make(look.plan.findings[index].holdings, price_book.LIST).per_hour == cost
    if row.idle_instances:
        assert row.idle_per_hour == cost
        assert page.idle_cost.per_hour == (cost if cost is None else round(cost, 2))
        assert page.idle_cost.unpriced_gpus == (1 if cost is None else 0)


def test_a_whole_gpu_has_the_price_of_its_model():
    world = World()
    index = world.workload("ml/llm", gpus=[builders.idle(model="NVIDIA A100-SXM4-80GB")])
    assert cost_of(world, index) == 5.12


def test_gpus_of_several_models_cost_what_each_of_them_costs():
    world = World()
    index = world.workload("ml/mixed", gpus=[
        builders.idle(model="NVIDIA A100-SXM4-80GB"), builders.idle(model=T4), builders.busy(model=T4),
    ])
    assert cost_of(world, index) == 5.646  # 5.12 and 0.526
    assert cost_of(world, index, of_all=True) == 6.172


def test_the_models_without_a_price_are_named_the_most_first():
    world = World()
    a100, h100, odd = "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3", "NVIDIA X1"
    index = world.workload("ml/mixed", gpus=[builders.idle(model=model) for model in (a100, h100, h100, odd)])
    world.workload("ml/other", gpus=[builders.idle(model=odd)] * 3)
    found = page_of(world).idle_cost
    assert (found.per_hour, found.unpriced_gpus) == (5.12, 6)
    assert [(each.model, each.gpus) for each in found.unpriced] == [("X1", 4), ("H100-80GB", 2)]
    assert cost_of(world, index) is None  # not of all of them


@pytest.mark.parametrize(("model", "first"), [("NVIDIA X1", "wide"), ("NVIDIA A100-SXM4-80GB", "dear")])
def test_the_top_have_cost_most_and_without_prices_they_have_the_most_idle_gpu_hours(model, first):
    world = World()
    for number in range(7):
        world.workload(f"ml/w{number}", gpus=[builders.idle(for_=(number + 1) * HOUR, model="NVIDIA X1")])
    world.workload("ml/wide", gpus=[builders.idle(for_=2 * HOUR, model="NVIDIA X1")] * 8)
    world.workload("ml/dear", gpus=[builders.idle(for_=HOUR, model=model)])
    others = ["wide", "w6", "w5", "w4", "w3"]
    assert [row.name for row in page_of(world).top] == (others if first == "wide" else [first, *others[:4]])


def test_what_comes_next_is_told_in_its_order():
    world, polite = World(), builders.rule(notice=builders.notice(10 * MINUTE))
    world.workload("ml/noticed", annotations=builders.pending_marks(NOW - 2 * MINUTE))
    world.workload("ml/fresh")
    world.workload("ml/kept", annotations={"gpuautoscaler.io/ack-until": "2026-11-15T20:00:00Z"})
    mandate = builders.mandate(polite, acting=False)
    page = page_of(world, mandate=mandate, freeze=None)
    assert [(step.what, step.at, step.workload.name) for step in page.next] == [
        ("notice", "2026-11-15T12:00:00Z", "fresh"), ("pause", "2026-11-15T12:08:00Z", "noticed"),
        ("ackEnds", "2026-11-15T20:00:00Z", "kept"),
    ]
    frozen = page_of(world, mandate=mandate, freeze=long_memory.Freeze(NOW + HOUR, "demo day"))
    assert [(step.at, step.because) for step in frozen.next if step.what == "freezeEnds"] == [
        ("2026-11-15T13:00:00Z", "demo day")
    ]


def test_what_is_wrong_with_the_data_is_named_with_what_helps():
    world = World()
    node(world, "node-1", 8)
    node(world, "silent", 8)
    world.workload("ml/stale", gpus=[builders.idle(age=HOUR)])
    untrusted = cluster.Missing("UntrustedExporter team/x", "not believed", is_untrusted=True)
    missing = (untrusted, cluster.Missing("rollouts", "403"))
    lost = (usage.LostSignal("tensor", "422"),)
    page = page_of(world, measured={"node-1": 8}, lost=lost, missing=missing)
    assert [problem.what for problem in page.problems] == [
        "1 node without measurements", "Stale", "signal tensor", "not seen: UntrustedExporter team/x",
        "not seen: rollouts",
    ]
    helps = [problem.helps for problem in page.problems]
    assert "spec.nodeName=silent" in helps[0]
    assert helps[1] == (
        "See whether Prometheus still scrapes the exporter, and whether remote write lags. "
        "More: fallow why Deployment/stale -n ml"
    )
    assert "--exporter-namespaces" in helps[3]


@pytest.mark.parametrize(
    ("url", "reason", "says"),
    [
        (None, "WarmingUp", "say where Prometheus is (--prometheus-url or PROMETHEUS_URL)"),
        ("http://p", "SourceError", "kubectl -n monitoring port-forward"),
        ("http://p", "NoData", "scrape dcgm-exporter"),
    ],
    ids=["no-prometheus", "unreachable", "empty"],
)
def test_without_measurements_it_says_what_to_do(url, reason, says):
    world = World()
    world.workload("ml/llm")
    world.trouble = usage.SourceTrouble(reason, "nothing is measured")
    page = page_of(world, url=url)
    assert (page.source.reason, page.source.because) == (reason, "nothing is measured")
    assert says in page.problems[0].helps
    assert page.idle_cost.per_hour == 0


def test_namespaces_share_what_is_held():
    world = World()
    world.workload("ml/llm", gpus=[builders.idle(), builders.busy(), builders.idle(age=HOUR)])
    world.workload("web/chat", gpus=[builders.idle()] * 2)
    shares = page_of(world).namespaces
    assert [(of.namespace, of.gpus, of.idle_gpus, of.active_gpus, of.unknown_gpus) for of in shares] == [
        ("web", 2, 2, 0, 0), ("ml", 3, 1, 1, 1),
    ]


def test_what_was_not_asked_for_is_not_counted():
    world = World()
    world.workload("ml/llm", gpus=[builders.idle()])
    world.workload("web/chat", gpus=[builders.idle()] * 2)
    marks = builders.paused_marks(NOW - HOUR)
    world.workload("web/paused", pods=[], body={"spec": {"replicas": 0}}, annotations=marks)
    page = page_of(world, builders.pattern("ml"))
    assert (page.workloads, page.pods, page.gpus, page.idle_gpus, page.paused) == (1, 1, 1, 1, ())
    assert [of.namespace for of in page.namespaces] == ["ml"]
    assert {row.namespace for row in page.top} == {step.workload.namespace for step in page.next} == {"ml"}
    assert [row.name for row in page_of(world).paused] == ["paused"]


@pytest.mark.parametrize(
    ("found", "running", "says"),
    [
        (NOBODY, False, "no daemon is seen"),
        (daemon.DaemonSeen("sys", "pod-1", NOW - 2), True, "a daemon runs in sys, whose own flags are not known here"),
        (daemon.DaemonSeen("sys", "pod-1", NOW - HOUR), False, "was last heard of at 2026-11-15T11:00:00Z"),
        (daemon.DaemonSeen("sys", leases=("a", "b")), None, "daemons may run in a, b"),
        (daemon.DaemonSeen("sys", unseen="may not be listed"), None, "cannot be seen (may not be listed)"),
    ],
    ids=["none", "runs", "dead", "several", "unseen"],
)
def test_the_first_line_says_whose_rules_these_are(found, running, says):
    world = World()
    world.workload("ml/llm")
    rules = page_of(world, found=found).rules
    assert rules.sentence.startswith("By the flags given (there is no IdlePolicy); ")
    assert says in rules.sentence
    assert (rules.policies, rules.daemon.running) == (0, running)


def test_policies_that_cannot_be_seen_are_not_none():
    world = World()
    world.workload("ml/llm")
    rules = page_of(world, policies=Unseen("403")).rules
    assert rules.policies is None
    assert "IdlePolicies cannot be seen: 403" in rules.sentence
