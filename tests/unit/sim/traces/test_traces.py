"""Traces: what is read, what is left out by name and number, and that nothing is guessed."""

import gzip
import random
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.clients import loopback

from fallow.clients import errors
from fallow.clients.prometheus import auth, client
from fallow.model.units import MINUTE
from fallow.sim.traces import history, published
from fallow.sim.world.lives import NONE, LifeSpan
from fallow.sim.world.nouns import Part, SimState

T0 = 1_662_858_720
HEADER = "pod,timestamp,duty_percent,memory_used_bytes"


def write(folder: Path, *lines: str, name: str = "t.csv") -> Path:
    path = folder / name
    path.write_text("\n".join(lines) + "\n")
    return path


def row(pod: str, step: int, duty: Any) -> str:
    return f"{pod},{T0 + 57 * step},{duty},1"


def read(folder: Path, *lines: str) -> published.Trace:
    return published.read_gentd26(write(folder, HEADER, *lines))


# ---- GenTD26 ---------------------------------------------------------------------------------------------------------


def test_samples_stand_in_columns_as_far_apart_as_most_are(tmp_path: Path) -> None:
    trace = read(
        tmp_path, *(row("a", step, step) for step in range(5)), *(row("b", step, 0.99) for step in range(2, 4))
    )
    assert trace.span == LifeSpan(float(T0), 57.0, 5)
    assert trace.percents.tolist() == [[0, 1, 2, 3, 4], [NONE, NONE, 0, 0, NONE]]
    a, b = trace.parts
    assert (a.arrives_at, a.ends_at) == (None, None)
    assert (b.arrives_at, b.ends_at) == (T0 + 2 * 57, T0 + 4 * 57)
    assert not any(trace.report.left_out.values())


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("a,yesterday,5,1", "timestamp is no whole number"),
        ("a,,5,1", "timestamp is no whole number"),
        (row("a", 9, "much"), "duty is no percentage"),
        (row("a", 9, -1), "duty is no percentage"),
        (row("a", 9, 250), "duty is no percentage"),
        (row("a", 9, "nan"), "duty is no percentage"),
        (row("", 9, 5), "no pod"),
        ("a,1662859233", "too few fields"),
        ("a,99999999999,5,1", "timestamp is a month away from the rest"),
    ],
)
def test_a_row_that_cannot_be_read_is_named_and_counted_and_changes_nothing(
    tmp_path: Path, line: str, why: str
) -> None:
    good = [row("a", step, 7) for step in range(12) if step != 9]
    trace = read(tmp_path, *good[:3], line, *good[3:])
    assert trace.report.left_out[why] == 1
    assert f"line 5: {why}" in trace.report.examples
    assert trace.report.rows == 12
    assert trace.percents.tolist() == [[7] * 9 + [NONE] + [7] * 2]
    assert trace.report.left_out["missing: not known"] == 1


def test_gaps_blanks_and_contradictions_are_not_known(tmp_path: Path) -> None:
    told = [(0, 9), (1, ""), (3, 9), (4, 9), (4, 9), (5, 1), (5, 90), (6, 9)]
    trace = read(tmp_path, *(row("a", step, duty) for step, duty in told))
    assert trace.percents.tolist() == [[9, NONE, NONE, 9, 9, NONE, 9]]
    left = trace.report.left_out
    assert (
        left["told twice"], left["told twice, differently: not known"], left["without a duty: not known"]
    ) == (1, 1, 1)
    assert left["missing: not known"] == 1


@settings(max_examples=30)
@given(seed=st.integers(0, 10**6))
def test_the_order_of_the_rows_does_not_matter(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    lines = [row(pod, step, (step * 7) % 100) for pod in "abc" for step in range(20)]
    shuffled = random.Random(seed).sample(lines, len(lines))
    tmp_path = tmp_path_factory.mktemp("order")
    straight, mixed = read(tmp_path, *lines), read(tmp_path, *shuffled)
    rows = {part.name: values.tolist() for part, values in zip(mixed.parts, mixed.percents, strict=True)}
    assert rows == {part.name: values.tolist() for part, values in zip(straight.parts, straight.percents, strict=True)}
    assert mixed.report.left_out["out of order: put in place"] > 0


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"time,value\n1,2\n", "the trace t.csv.gz has no column 'pod'"),
        (b"", "the trace t.csv.gz has no column 'pod'"),
        (HEADER.encode() + b"\n", "the trace t.csv.gz holds no sample that can be used"),
    ],
    ids=["other columns", "empty", "no rows"],
)
def test_a_file_that_is_no_such_trace_is_refused_in_a_sentence(tmp_path: Path, content: bytes, sentence: str) -> None:
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(content))
    with pytest.raises(published.TraceError, match=sentence):
        published.read_gentd26(path)


@pytest.mark.parametrize("damage", ["cut", "not gzip", "not there"])
def test_a_file_that_cannot_be_read_is_refused_in_a_sentence(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "t.csv.gz"
    whole = gzip.compress("\n".join([HEADER, *(row("a", step, 5) for step in range(500))]).encode())
    if damage != "not there":
        path.write_bytes(whole[: len(whole) // 2] if damage == "cut" else b"hello")
    with pytest.raises(published.TraceError, match=r"the trace t\.csv\.gz cannot be read: "):
        published.read_gentd26(path)


def test_pods_of_one_gpu_share_nodes_and_larger_ones_have_their_own(tmp_path: Path) -> None:
    small = read(tmp_path, *(row(f"p{number}", step, 5) for number in range(19) for step in range(3)))
    assert [node.gpus for node in published.to_world(small).nodes.values()] == [8, 8, 3]
    large = msgspec.structs.replace(
        small, parts=(
            Part("a", "b", gpus=2), *(Part("a", f"c{number}") for number in range(17))
        ), percents=small.percents
    )
    assert [node.gpus for node in published.to_world(large).nodes.values()] == [2] + [1] * 17
    assert all(one.state is SimState.running for one in published.to_world(large).workloads)


def test_lives_are_cut_from_whole_days_only_and_go_on_from_the_beginning(tmp_path: Path) -> None:
    lines = [row("day", step, step % 100) for step in range(200)] + [row("short", step, 1) for step in range(20)]
    trace = read(tmp_path, *lines)
    assert published.whole_days(trace) == [0]
    span = LifeSpan(0.0, 57.0, 400)
    cut = published.cut_lives(trace, span, 2, 3, np.random.default_rng(1))
    assert cut.shape == (6, 400)
    assert (cut == cut[0]).all()
    assert (np.diff(cut[0].astype(int)) % 100 == 1).all()
    assert (cut == published.cut_lives(trace, span, 2, 3, np.random.default_rng(1))).all()
    slow = published.cut_lives(trace, LifeSpan(0.0, 114.0, 50), 1, 1, np.random.default_rng(2))
    assert (np.diff(slow[0].astype(int)) % 100 == 2).all()


# ---- Helios ----------------------------------------------------------------------------------------------------------


def stands(part: Any, at: float) -> bool:
    return part.arrives_at <= at and (part.ends_at is None or at < part.ends_at)


def test_demand_rises_and_falls_as_it_was_told_and_unknown_minutes_change_nothing(tmp_path: Path) -> None:
    wanted = [10, 10, 12, 12, None, 4, 4, 0, 3]
    lines = [f"vcA,2020-05-01 00:{minute:02}:00,16,{gpus},0" for minute, gpus in enumerate(wanted) if gpus is not None]
    lines.append("vcA,2020-05-01 00:09:00,16,-4,0")
    demands, left = published.read_helios(write(tmp_path, "vc,time,total_gpu,running_gpu,pending_gpu", *lines))
    (demand,) = demands
    assert (demand.total, demand.wanted.tolist()) == (16, [-1 if gpus is None else gpus for gpus in wanted])
    assert left.left_out == {"missing: not known": 1, "GPUs are no whole number": 1}
    parts = published.demand_parts(demand, LifeSpan(0.0, MINUTE, 9))
    level = [sum(part.gpus for part in parts if stands(part, minute * MINUTE)) for minute in range(9)]
    assert level == [10, 10, 12, 12, 12, 4, 4, 0, 3]


@pytest.mark.parametrize(("line", "why"), [
    ("vcA,today,16,1,0", "time is no time"), ("vcA,,16,1,0", "time is no time"),
    ("vcA,2020-05-01 00:09:00,16,x,0", "GPUs are no whole number"),
    (",2020-05-01 00:09:00,16,1,0", "no virtual cluster"),
    ("vcA,2020-05-01 00:09:00,999999,1,0", "more GPUs than any cluster has"),
    ("vcA,2020-05-01 00:00:00,16,1,0", "told twice"),
], ids=["word", "no time", "word for GPUs", "no name", "too many", "twice"])
def test_a_row_of_demand_that_cannot_be_read_is_named_and_counted(tmp_path: Path, line: str, why: str) -> None:
    path = write(tmp_path, ",".join(published.HELIOS_COLUMNS), "vcA,2020-05-01 00:00:00,16,8,0", line)
    demands, left = published.read_helios(path)
    assert [(one.name, one.wanted.tolist()) for one in demands] == [("vcA", [8])]
    assert left.left_out[why] == 1
    assert left.examples == [f"line 3: {why}"]


def test_demand_without_a_minute_is_refused(tmp_path: Path) -> None:
    with pytest.raises(published.TraceError, match="holds no minute that can be used"):
        published.read_helios(write(tmp_path, ",".join(published.HELIOS_COLUMNS), "vcA,never,16,8,0"))


def test_virtual_clusters_are_chosen_by_the_seed_until_the_nodes_are_full() -> None:
    demands = [published.Demand(f"vc{gpus}", gpus, 0, np.zeros(3, np.int64)) for gpus in (64, 48, 16, 40)]
    assert published.choose_demands(demands, None) == demands
    for seed in range(5):
        chosen = published.choose_demands(demands, 10, seed=seed)
        assert 0 < sum(one.total for one in chosen) <= 80
        assert [one.name for one in chosen] == [one.name for one in published.choose_demands(demands, 10, seed=seed)]
    assert [one.name for one in published.choose_demands(demands, 1)] == ["vc16"]


# ---- the user's own Prometheus ---------------------------------------------------------------------------------------


def matrix(
    asked: loopback.Asked, series: dict[str, list[tuple[dict[str, str], dict[int, str]]]], **more: Any
) -> web.Response:
    """Each metric's series: labels, and the value of some minutes."""
    metric = next((name for name in series if name in asked.form["query"]), "")
    start, end = float(asked.form["start"]), float(asked.form["end"])
    result = [
        {
            "metric": labels,
            "values": [
                [T0 + 60 * minute, value] for minute, value in values.items() if start <= T0 + 60 * minute <= end
            ],
        }
        for labels, values in series.get(metric, [])
    ]
    answer = {
        "status": "success", "data": {"resultType": "matrix", "result": [each for each in result if each["values"]]},
        **more,
    }
    return web.json_response(answer)


async def look(answer: loopback.Answer, minutes: int = 600) -> tuple[published.Trace, loopback.Loopback]:
    async with loopback.serve(answer) as server, client.Prometheus(
        server.url, login=auth.Login(method="none"), backoff=0.001
    ) as asked:
        return await history.read_history(asked, T0, T0 + minutes * 60, now=T0 + minutes * 60), server


VECTOR = {"status": "success", "data": {"resultType": "vector", "result": []}}
GPU = {"UUID": "GPU-1", "exported_pod": "a", "exported_namespace": "ml", "Hostname": "n1", "modelName": "Tesla T4"}


async def test_history_is_read_page_by_page_and_the_highest_primary_counts() -> None:
    engine = [
        (GPU, {0: "0.5", 1: "0", 400: "0.009", 401: "NaN", 402: "7"}), ({"UUID": "GPU-2", "pod": "exporter"}, {0: "1"})
    ]
    util = [(GPU, {1: "30", 400: "0"}), ({**GPU, "UUID": "GPU-9"}, {1: "0", 3: "100"})]
    series = {"DCGM_FI_PROF_GR_ENGINE_ACTIVE": engine, "DCGM_FI_DEV_GPU_UTIL": util}
    trace, server = await look(lambda asked: matrix(asked, series))
    (part,) = trace.parts
    assert (part.namespace, part.name, part.gpus, part.class_, part.model) == ("ml", "a", 2, "training", "Tesla T4")
    first, second = trace.percents
    assert (first[0], first[1], first[400], first[401], first[402], first[2]) == (50, 30, 0, NONE, NONE, NONE)
    assert second[3] == 100
    assert trace.report.left_out == {"of a GPU that no pod holds": 1, "no believable reading: not known": 2}
    assert {asked.path for asked in server.asked} == {"/api/v1/query_range"}
    assert len(server.asked) == 2 * 5  # two pages of six hours for five primaries
    assert all((float(asked.form["end"]) - float(asked.form["start"])) / 60 < 11_000 for asked in server.asked)


async def test_a_name_that_comes_back_on_other_gpus_holds_no_more_what_it_left() -> None:
    of = [{**GPU, "UUID": f"GPU-{number}"} for number in range(4)]
    engine = [
        (of[0], {**dict.fromkeys(range(10), "0"), **dict.fromkeys(range(20, 30), "0")}),  # not measured for ten minutes
        (of[1], dict.fromkeys(range(30), "0.5")), (of[2], dict.fromkeys(range(31, 40), "1")),
        (of[1], dict.fromkeys(range(50, 60), "0.2")), (of[3], {}),
    ]
    trace, _ = await look(lambda asked: matrix(asked, {"DCGM_FI_PROF_GR_ENGINE_ACTIVE": engine}), minutes=60)
    told = [(part.name, part.gpus, part.arrives_at, part.ends_at) for part in trace.parts]
    assert told == [
        ("a", 2, None, T0 + 1800), ("a#2", 1, T0 + 31 * 60, T0 + 2400), ("a#3", 1, T0 + 3000, None)
    ]
    assert [int((row != NONE).sum()) for row in trace.percents] == [20, 30, 9, 10]
    assert trace.percents[3][55] == 20
    published.to_world(trace)  # each has a place of its own


async def test_where_labels_are_honoured_a_plain_pod_is_the_holder_and_mig_has_no_device_utilisation() -> None:
    mig = {"UUID": "GPU-1", "GPU_I_ID": "3", "pod": "a", "namespace": "ml"}
    series = {"DCGM_FI_PROF_GR_ENGINE_ACTIVE": [(mig, {5: "0"})], "DCGM_FI_DEV_GPU_UTIL": [(mig, {5: "90", 6: "90"})]}
    trace, _ = await look(lambda asked: matrix(asked, series), minutes=10)
    assert trace.percents.tolist() == [[NONE] * 5 + [0] + [NONE] * 4]
    assert (trace.parts[0].arrives_at, trace.parts[0].ends_at) == (T0 + 300, T0 + 360)


@pytest.mark.parametrize(
    ("answer", "error", "sentence"),
    [
        (lambda asked: matrix(asked, {}), published.TraceError, "holds no series"),
        (lambda asked: matrix(asked, {}, warnings=["a store is away"]), published.TraceError, "only a part of"),
        (lambda asked: web.Response(status=500, text="no"), errors.ServerFault, "answered 500"),
        (lambda asked: web.Response(text="<html>"), errors.BadAnswer, "web page"),
        (lambda asked: web.json_response(VECTOR), errors.BadAnswer, "instead of a matrix"),
    ],
    ids=["nothing", "partial", "500", "a page", "a vector"],
)
async def test_an_answer_that_is_no_history_is_refused(answer: Any, error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        await look(answer)


async def test_too_many_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MOST_ROWS", 3)
    series = {"DCGM_FI_PROF_GR_ENGINE_ACTIVE": [({**GPU, "UUID": f"GPU-{number}"}, {0: "0"}) for number in range(4)]}
    with pytest.raises(published.TraceError, match="more than 3 GPUs in pods' hands: ask for a shorter one"):
        await look(lambda asked: matrix(asked, series))


async def test_an_empty_range_is_refused() -> None:
    with pytest.raises(published.TraceError, match="end must come after its start"):
        await look(lambda asked: matrix(asked, {}), minutes=0)


def test_a_report_says_what_it_left_out() -> None:
    report = published.TraceReport(rows=3)
    report.leave_out("told twice", 7)
    assert str(report) == "3 rows; 1 told twice"
    assert msgspec.json.decode(msgspec.json.encode(report))["examples"] == ["line 7: told twice"]
