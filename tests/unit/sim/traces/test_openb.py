"""openb: what is read, what is left out by name and number, and that orders find their rows whatever was left out."""

import gzip
from pathlib import Path

import pytest
from benchmarks import flows

from fallow.decide import packing
from fallow.sim import cast
from fallow.sim.traces import openb, published

NODES = "sn,cpu_milli,memory_mib,gpu,model"
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time"


def write(path: Path, *lines: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "\n".join(lines) + "\n"
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def make(root: Path, nodes: list[str], pods: list[str], orders: list[str] | None = None) -> Path:
    write(root / "openb/openb_node_list_gpu_node.csv", NODES, *nodes)
    write(root / "openb/openb_pod_list_small.csv.gz", PODS, *pods)
    if orders is not None:
        write(root / "openb/orders/small.csv.gz", *orders)
    return root


# ---- nodes and pods --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("n2,much,1,1,T4", "CPU, memory or GPUs are no whole number"),
        ("n2,1,1,none,T4", "CPU, memory or GPUs are no whole number"),
        ("n2,1,1,,T4", "CPU, memory or GPUs are no whole number"), ("n2,-1,1,1,T4", "has what no machine has"),
        ("n2,1,1,-1,T4", "has what no machine has"), ("n2,1,1,5000,T4", "has what no machine has"),
        (",1,1,1,T4", "no name"),
        ("n2,1", "too few fields"),
    ],
)
def test_a_node_that_cannot_be_believed_is_named_and_counted(tmp_path: Path, line: str, why: str) -> None:
    nodes, report = openb.read_nodes(write(tmp_path / "n.csv", NODES, "n1,1000,10,2,T4", line, "n3,2000,20,0,T4"))
    assert nodes == {0: packing.PackingNode("n1", "T4", 1000, 10, 2), 2: packing.PackingNode("n3", "", 2000, 20, 0)}
    assert (report.rows, report.left_out) == (3, {why: 1})
    assert report.examples[0].startswith("line 3: ")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("p2,1,1,1,x,,BE,,0,,", "CPU, memory or GPUs are no whole number"),
        ("p2,1,1,1,,,BE,,0,,", "CPU, memory or GPUs are no whole number"),
        ("p2,1,1,-1,1000,,BE,,0,,", "asks for what no machine has"),
        ("p2,-5,1,1,1000,,BE,,0,,", "asks for what no machine has"),
        ("p2,1,99999999999999,1,1000,,BE,,0,,", "asks for what no machine has"),
        ("p2,1,1,1,0,,BE,,0,,", "asks for what no machine has"),
        ("p2,1,1,0,500,,BE,,0,,", "asks for what no machine has"),
        ("p2,1,1,2,500,,BE,,0,,", "asks for what no machine has"),
        ("p2,1,1,1,500,,BE,,soon,,", "a time is no number"), ("p2,1,1,1,500,,BE,,0,nan,", "a time is no number"),
        ("p2,1,1", "too few fields"),
    ],
)
def test_a_pod_that_cannot_be_believed_is_named_and_counted(tmp_path: Path, line: str, why: str) -> None:
    first, last = "p1,1,1,1,460,,LS,Running,0,7200,0", "p3,1,1,4,1500,V100M16|T4,BE,Running,100,,0"
    pods, report = openb.read_pods(write(tmp_path / "p.csv", PODS, first, line, last))
    assert pods == {
        0: openb.AskingPod(packing.PackingPod("p1", 1, 1, 1, 460), "LS", 0.0, 7200.0),
        2: openb.AskingPod(packing.PackingPod("p3", 1, 1, 4, 1000, ("V100M16", "T4")), "BE", 100.0, None),
    }
    assert (report.rows, report.left_out) == (3, {why: 1})


def test_a_list_without_models_and_times_is_read_too(tmp_path: Path) -> None:
    path = write(tmp_path / "p.csv", "name,cpu_milli,memory_mib,num_gpu,gpu_milli", "p1,12000,16384,0,0")
    pods, _ = openb.read_pods(path)
    assert pods == {0: openb.AskingPod(packing.PackingPod("p1", 12000, 16384))}


@pytest.mark.parametrize("column", ["cpu_milli", "num_gpu", "gpu_milli"])
def test_a_column_that_is_missing_is_named(tmp_path: Path, column: str) -> None:
    path = write(tmp_path / "p.csv", PODS.replace(column, "other"), "p1,1,1,1,460,,LS,Running,0,7200,0")
    with pytest.raises(published.TraceError, match=rf"the trace p\.csv has no column '{column}'"):
        openb.read_pods(path)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    make(tmp_path, ["n1,1,1,1,T4"], ["p1,1,1,1,460,,LS,,0,,"])
    (tmp_path / "openb/openb_pod_list_small.csv.gz").write_bytes(b"no gzip")
    with pytest.raises(published.TraceError, match=r"openb_pod_list_small\.csv\.gz cannot be read"):
        openb.read(tmp_path, "small")


# ---- orders ----------------------------------------------------------------------------------------------------------

THREE = ["n1,1,1,1,T4", "n2,1,1,1,T4", "n3,1,1,1,T4"]
FOUR = [f"p{number},1,1,1,1000,,LS,,{10 * number},," for number in range(4)]


def test_orders_name_rows_whatever_was_left_out(tmp_path: Path) -> None:
    nodes, pods = [THREE[0], "n2,x,1,1,T4", THREE[2]], [*FOUR[:2], "p2,1,1,1,none,,LS,,0,,", FOUR[3]]
    trace = openb.read(make(tmp_path, nodes, pods, ["42,pods,3,2,0,3", "42,nodeperm,2,0,1"]), "small")
    run = trace.arrive(42)
    assert [pod.name for pod in run.pods] == ["p3", "p0", "p3"]
    assert run.order.tolist() == [1, 0]
    assert run.origin == "seed 42, the published order; 1 arrivals of pods that were left out"


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("42,nodeperm,0,1", "does not rank each node once"), ("42,nodeperm,0,1,1", "does not rank each node once"),
        ("42,nodeperm,0,1,x", "a row is no whole number"), ("x,nodeperm,0,1,2", "the seed is no whole number"),
        ("42", "too few fields"),
        ("", "too few fields"),
    ],
    ids=["too few", "twice", "no number", "no seed", "bare", "blank"],
)
def test_a_broken_order_is_left_out_and_one_is_drawn(tmp_path: Path, line: str, why: str) -> None:
    trace = openb.read(make(tmp_path, THREE, FOUR, ["42,pods,0,1,2,3", line]), "small")
    assert not trace.orders
    assert trace.reports["orders"].left_out == {why: 1, "only half of an order": 1}
    assert trace.arrive(42).origin == "seed 42, drawn: no order is stored for it"


@pytest.mark.parametrize("row", [-1, 4])
def test_an_order_of_pods_that_are_not_there_is_left_out(tmp_path: Path, row: int) -> None:
    trace = openb.read(make(tmp_path, THREE, FOUR, [f"42,pods,0,{row}", "42,nodeperm,0,1,2"]), "small")
    assert not trace.orders
    assert trace.reports["orders"].left_out["names rows that the pod list does not have"] == 1


def test_a_drawn_order_is_the_same_for_the_same_seed_and_fills_the_cluster(tmp_path: Path) -> None:
    trace = openb.read(make(tmp_path, ["n1,1,1,8,T4", *THREE[1:]], FOUR), "small")
    first, again, other = trace.arrive(7), trace.arrive(7), trace.arrive(8)
    assert first.pods == again.pods
    assert sorted(first.order.tolist()) == [0, 1, 2]
    assert {pod.name for pod in first.pods} == {"p0", "p1", "p2", "p3"}
    assert sum(pod.gpus for pod in first.pods) == 13  # 130 % of ten
    assert first.pods != other.pods or first.order.tolist() != other.order.tolist()


def test_pods_without_gpus_fill_nothing_and_end(tmp_path: Path) -> None:
    trace = openb.read(make(tmp_path, THREE, ["p1,1,1,0,0,,LS,,0,,"]), "small")
    assert len(trace.arrive(1).pods) == 1
    assert openb.read(make(tmp_path, [], []), "small").arrive(1).pods == ()


def test_life_is_lived_in_order_and_left_after_it(tmp_path: Path) -> None:
    pods = ["a,1,1,1,1000,,LS,,50,60,", "b,1,1,1,1000,,LS,,0,50,", "c,1,1,1,1000,,LS,,20,20,", "d,1,1,1,1000,,LS,,60,,"]
    flow = flows.live(openb.read(make(tmp_path, THREE, pods), "small"))
    assert [pod.name for pod in flow.pods] == ["b", "c", "a", "d"]
    assert (flow.departures, flow.begun) == ({2: [0, 1], 3: [2]}, 0)


def test_a_flow_asks_for_so_much_of_the_cluster_all_the_time(tmp_path: Path) -> None:
    pods = ["short,1,1,1,500,,LS,,0,60,", "long,1,1,1,1000,,LS,,0,6000,", "bare,1,1,0,0,,LS,,0,600,"]
    trace = openb.read(make(tmp_path, [f"n{i},1,1,8,T4" for i in range(60)], pods), "small")
    flow = flows.draw(trace, 3, 1.2, 4_000)
    assert len(flow.pods) == flow.begun + 4_000
    assert {pod.name for pod in flow.pods} == {"short", "long", "bare"}
    assert sum(pod.name == "long" for pod in flow.pods[: flow.begun]) > 0.85 * flow.begun  # as it would be met
    asked, wanted = 0, list[int]()
    for number, pod in enumerate(flow.pods):
        asked += pod.gpus * pod.milli - sum(
            flow.pods[gone].gpus * flow.pods[gone].milli for gone in flow.departures.get(number, ())
        )
        wanted.append(asked)
    assert sum(wanted[flow.begun :]) / 4_000 == pytest.approx(1.2 * 480_000, rel=0.1)
    assert all(number < before for before, numbers in flow.departures.items() for number in numbers)
    again = flows.draw(trace, 3, 1.2, 4_000)
    assert (again.pods, again.departures) == (flow.pods, flow.departures)


@pytest.mark.parametrize(
    "pods", [["p1,1,1,1,1000,,LS,,0,,"], ["p1,1,1,0,0,,LS,,0,60,"]], ids=["nobody-left", "nobody-held-a-gpu"]
)
def test_there_is_no_flow_of_pods_that_hold_no_gpu_for_a_time(tmp_path: Path, pods: list[str]) -> None:
    with pytest.raises(published.TraceError, match="does not tell for how long its pods held GPUs"):
        flows.draw(openb.read(make(tmp_path, THREE, pods), "small"), 1, 1.0, 10)


def test_a_trace_that_does_not_tell_times_says_so(tmp_path: Path) -> None:
    trace = openb.read(make(tmp_path, THREE, ["p1,1,1,1,1000,,LS,,,,"]), "small")
    with pytest.raises(published.TraceError, match="does not tell when its pods came and went"):
        flows.live(trace)


# ---- the folder ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["no-such", "../small", "", "*"])
def test_a_trace_that_is_not_there_is_said_with_those_that_are(tmp_path: Path, name: str) -> None:
    with pytest.raises(openb.NoTrace, match="there are small"):
        openb.read(make(tmp_path, THREE, FOUR), name)


def test_a_folder_without_traces_says_what_to_set(tmp_path: Path) -> None:
    for nowhere in (tmp_path / "nowhere", None):
        with pytest.raises(openb.NoTrace, match="set FALLOW_TRACES"):
            openb.read(nowhere, "default")
    assert (openb.find_names(None), openb.read_published(None)[0]) == ([], {})


def test_published_curves_are_found_by_our_names(tmp_path: Path) -> None:
    odd = {3: "", 4: "much", 5: "101"}
    cells = [odd.get(percent, str(percent)) for percent in range(131)]
    header = ",".join(["workload", "sc_policy", "tune", "seed", "total_gpus", *map(str, range(131))])
    rows = [f"openb_pod_list_small,{policy},1.3,{seed},6212," + ",".join(cells) for policy, seed in
            [("03-GpuClustering", "42"), ("09-Mystery", "42"), ("06-FGD", "x")]]
    write(tmp_path / "openb/published_allocation_curves.csv.gz", header, *rows)
    curves, report = openb.read_published(tmp_path)
    assert list(curves) == [("small", "GPUClustering", 42)]
    curve = curves["small", "GPUClustering", 42]
    assert (len(curve), curve[2], curve[3:6], curve[100]) == (131, 2.0, (None, None, None), 100.0)
    assert report.left_out["a policy that is not known"] == report.left_out["the seed is no whole number"] == 1
    assert report.left_out["allocated is no percentage"] == 2 + 30  # those above 100 too
    assert openb.read_published(tmp_path / "nowhere")[0] == {}


def test_pods_live_in_a_world_all_at_once(tmp_path: Path) -> None:
    pods = [
        "a,1,1,4,1000,V100M16,BE,,0,7200,", "b,1,1,0,0,,BE,,0,1,", "c,1,1,1,1000,,LS,,9000,,", "d,1,1,1,1000,,LS,,,,"
    ]
    trace = openb.read(make(tmp_path, ["n1,1,1,8,V100M16"], pods), "small")
    world = cast.make_openb_world(trace.nodes.values(), trace.pods.values(), hours=1)
    lives = [(one.part.name, one.part.class_, one.part.gpus, one.part.model) for one in world.workloads]
    assert lives == [("a", "training", 4, "V100-16GB"), ("c", "inference", 1, ""), ("d", "inference", 1, "")]
