"""Traces by name and by file: which is meant, what it becomes, what is said of it, and what is not there."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from tests import builders

from fallow.sim import backtest, cast, shelf
from fallow.sim.traces import published
from fallow.sim.world.nouns import SimState

T0 = 1_662_858_720
DUTY = [
    "pod,timestamp,duty_percent",
    *(f"p{pod},{T0 + 57 * step},{(step // 60) % 2 * 50}" for pod in range(3) for step in range(500)),
]
DEMAND = [
    ",".join(published.HELIOS_COLUMNS),
    *(
        f"{name},2020-05-01 {minute // 60:02}:{minute % 60:02}:00,16,{8 + minute // 60},2"
        for name in ("vcA", "vcB") for minute in range(300)
    ),
]
NODES = [
    "sn,cpu_milli,memory_mib,gpu,model", *(f"n{number},64000,262144,8,V100M16" for number in range(6)),
    "n9,64000,262144,2,T4",
]
PODS = [
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos",
    *(f"whole{number},1000,1024,1,1000,,LS" for number in range(20)),
    *(f"share{number},1000,1024,1,250,,BE" for number in range(8)),
    "large,1000,1024,8,1000,V100M16,BE", "plain,1000,1024,0,0,,BE",
]


def write(path: Path, lines: list[str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "\n".join(lines).encode() + b"\n"
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


@pytest.fixture
def there(tmp_path: Path) -> Path:
    write(tmp_path / "duty_x.csv.gz", DUTY)
    write(tmp_path / "demand_y.csv", DEMAND)
    write(tmp_path / "notes.csv", ["something,else"])
    write(tmp_path / "openb/openb_node_list_gpu_node.csv", NODES)
    write(tmp_path / "openb/openb_pod_list_default.csv.gz", PODS)
    write(tmp_path / "openb/openb_pod_list_cpu0.csv.gz", PODS[:-1])
    return tmp_path


def open_past(
    name: str, where: Path | None, nodes: int | None = None, seed: int = 3, hours: float = 4.0
) -> shelf.PastWorld:
    return shelf.open_past(shelf.find(name, where), where, seed=seed, hours=hours, nodes=nodes)


@pytest.mark.parametrize(("name", "file"), [
    ("gentd26", "duty_x.csv.gz"), ("helios", "demand_y.csv"), ("openb", "openb/openb_pod_list_default.csv.gz"),
    ("openb-cpu0", "openb/openb_pod_list_cpu0.csv.gz"),
])
def test_a_trace_has_one_name(there: Path, name: str, file: str) -> None:
    assert shelf.find(name, there) == there / file
    known = shelf.list_traces(there)
    assert [each.name for each in known.values() if each.path == there / file] == [name]
    assert known[name].about.endswith(f"({Path(file).name})")


def test_what_is_shipped_is_there_without_a_folder() -> None:
    assert list(shelf.list_traces(None)) == ["sample", "sample-pods"]
    past = open_past("sample", None)
    assert past.summary.startswith("30 pods over 1d from sample.csv.gz: ")
    assert past.notes == ("all of it is made up: it shows how the commands work, and proves nothing",)
    assert {one.part.class_ for one in past.make_world().workloads} == {"inference", "notebook", "training", "batch"}
    assert shelf.find_pods("sample-pods", None).nodes.is_file()


def test_packing_takes_what_tells_of_pods_and_says_which_do(there: Path) -> None:
    files = shelf.find_pods("openb-cpu0", there)
    assert (files.name, files.mix) == ("openb-cpu0", "cpu0")
    assert shelf.find_pods(str(files.pods), None).name == "openb_pod_list_cpu0"
    with pytest.raises(published.TraceError, match="gentd26 tells of no pods that ask for GPUs"):
        shelf.find_pods("gentd26", there)


def test_a_file_is_itself_and_the_usual_one_of_a_kind_goes_first(there: Path) -> None:
    path = write(there / "elsewhere/mine.csv", DUTY)
    assert shelf.find(str(path), there) == path
    assert shelf.find("gentd26", there) == there / "duty_x.csv.gz"
    usual = write(there / "gentd26_gpu_a.csv", DUTY)
    assert shelf.find("gentd26", there) == usual
    assert shelf.find("duty_x", there) == there / "duty_x.csv.gz"


@pytest.mark.parametrize(("name", "sentence"), [
    (
        "nothing",
        r"no trace nothing: it is no file, and the names are sample, sample-pods, helios, gentd26, openb-cpu0, openb$",
    ),
    ("duty", "no trace duty"), ("../duty_x", "no trace"), ("", "no trace"),
])
def test_what_is_not_there_says_what_is(there: Path, name: str, sentence: str) -> None:
    with pytest.raises(shelf.NoTrace, match=sentence):
        shelf.find(name, there)


def test_a_folder_that_is_not_there_or_empty_is_said(tmp_path: Path) -> None:
    with pytest.raises(shelf.NoTrace, match=r"sample-pods; there is no folder .*none \(FALLOW_TRACES\)$"):
        shelf.find("gentd26", tmp_path / "none")
    with pytest.raises(shelf.NoTrace, match=r"the names are sample, sample-pods$"):
        shelf.find("gentd26", tmp_path)


def test_without_a_folder_there_are_files_and_what_is_made_up(there: Path) -> None:
    with pytest.raises(shelf.NoTrace, match="sample-pods; set FALLOW_TRACES to a folder with more"):
        shelf.find("gentd26", None)
    duty, pods = there / "duty_x.csv.gz", there / "openb" / "openb_pod_list_cpu0.csv.gz"
    assert shelf.find(str(duty), None) == duty
    assert shelf.open_past(pods, None, seed=0, hours=1, nodes=None).summary.startswith("7 of 7 nodes")
    (there / "openb" / "openb_node_list_gpu_node.csv").unlink()
    with pytest.raises(shelf.NoTrace, match="is not beside it"):
        shelf.open_past(pods, None, seed=0, hours=1, nodes=None)
    assert shelf.open_real_lives(None) == (None, "FALLOW_TRACES is not set")


@pytest.mark.parametrize("content", [["something,else", "1,2"], [""], NODES], ids=["other", "empty", "nodes"])
def test_a_file_of_no_known_kind_is_refused(tmp_path: Path, content: list[str]) -> None:
    path = write(tmp_path / "gentd26_gpu_a.csv", content)
    with pytest.raises(published.TraceError, match="of no kind that is known: its first line must name pod"):
        shelf.open_past(path, tmp_path, seed=0, hours=1, nodes=None)


def test_a_list_of_pods_without_its_nodes_is_not_there(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.csv", PODS)
    with pytest.raises(shelf.NoTrace, match=r"its list of nodes, openb_node_list_gpu_node\.csv, is neither beside it"):
        shelf.open_past(path, tmp_path / "none", seed=0, hours=1, nodes=None)
    write(tmp_path / "openb_node_list_gpu_node.csv", NODES)
    assert shelf.open_past(
        path, tmp_path / "none", seed=0, hours=1, nodes=None
    ).summary.startswith("7 of 7 nodes and 29 of 30 pods")


@pytest.mark.parametrize(("name", "told", "note"), [
    ("gentd26", "3 pods over 7h55m from duty_x.csv.gz: 1500 rows", "real: who was there"),
    (
        "helios", "2 of 2 virtual clusters with 32 GPUs in all, the first 4h of demand_y.csv: 600 rows",
        "made up: the jobs",
    ),
    (
        "openb", "7 of 7 nodes and 29 of 30 pods (1 ask for no GPU) of openb_pod_list_default.csv.gz",
        "openb has no utilisation",
    ),
])
def test_each_becomes_a_world_that_says_what_is_real(there: Path, name: str, told: str, note: str) -> None:
    past = open_past(name, there)
    assert past.summary.startswith(told)
    assert note in past.notes[0]
    world = past.make_world()
    result = backtest.run(world, builders.mandate(builders.rule()))
    assert result.total.gpu_hours > 0
    assert {one.state for one in world.workloads} & {SimState.running, SimState.paused, SimState.finished}
    again = past.make_world()
    assert (again.wanted == past.make_world().wanted).all()
    assert backtest.run(again, builders.mandate(builders.rule())).total == result.total


def test_helios_asks_for_what_was_asked_for_and_no_longer_than_it_lasts(there: Path) -> None:
    world = open_past("helios", there, hours=100.0).make_world()
    assert world.span.columns == 300
    assert [sum(node.gpus for node in world.nodes.values()), len(world.nodes)] == [32, 4]
    world.advance(3600 * 2 + 600)
    asked = sum(
        one.part.seats for one in world.workloads if one.state in (
            SimState.running, SimState.starting, SimState.waiting
        )
    )
    assert asked == 2 * (8 + 2 + 2)


def test_a_part_of_openb_is_chosen_by_the_seed_and_filled(there: Path) -> None:
    world = open_past("openb", there, nodes=3).make_world()
    assert len(world.nodes) == 3
    gpus = sum(node.gpus for node in world.nodes.values())
    assert sum(one.part.seats for one in world.workloads if one.part.mode == "whole") <= gpus
    assert {
        name for seed in range(9) for name in open_past("openb", there, nodes=3, seed=seed).make_world().nodes
    } >= {"n0", "n5", "n9"}
    alone = [list(open_past("openb", there, nodes=1, seed=seed).make_world().nodes.values()) for seed in range(4)]
    assert all(len(nodes) == 1 for nodes in alone)


def test_rows_left_out_are_named_and_counted(there: Path) -> None:
    write(there / "duty_x.csv.gz", [*DUTY, "p0,soon,5", f"p1,{T0},900"])
    past = open_past("gentd26", there)
    assert "1 duty is no percentage, 1 timestamp is no whole number" in past.summary
    examples = "line 1502: timestamp is no whole number; line 1503: duty is no percentage"
    assert past.notes[-1] == f"left out, for example: {examples}"
    write(there / "openb/openb_pod_list_default.csv.gz", [*PODS, "odd,1,1,x,1,,"])
    past = open_past("openb", there)
    assert past.notes[-1].startswith("left out, for example: pods, line 32: ")


# ---- real lives ------------------------------------------------------------------------------------------------------


def test_real_lives_are_cut_where_the_trace_is_there(there: Path, tmp_path: Path) -> None:
    real, why = shelf.open_real_lives(there)
    assert why == "3 pods of duty_x.csv.gz, 1500 rows"
    assert real is not None
    made = cast.make_world(seed=2, nodes=4, hours=6, real=real)
    plain = cast.make_world(seed=2, nodes=4, hours=6)
    assert [one.part for one in made.workloads] == [one.part for one in plain.workloads]
    for one in made.workloads:
        values = set(made.wanted[one.seats].ravel().tolist())
        assert (values <= {0, 50}) or one.part.life not in cast.REAL
    assert (made.wanted == cast.make_world(seed=2, nodes=4, hours=6, real=real).wanted).all()


@pytest.mark.parametrize(("lines", "sentence"), [
    (None, "there is no GenTD26 trace in"), (DUTY[:1], "holds no sample"),
    (["pod,timestamp,duty_percent", "a,1,5", "b,9999,5"], "tells of no GPU"),
], ids=["no file", "empty", "only short"])
def test_without_real_lives_it_says_why(tmp_path: Path, lines: list[str] | None, sentence: str) -> None:
    if lines is not None:
        write(tmp_path / "t.csv", lines)
    real, why = shelf.open_real_lives(tmp_path)
    assert real is None
    assert sentence in why
