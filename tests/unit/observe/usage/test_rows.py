"""Whose series is it? Labels in every dialect, to pods and GPUs of this cluster."""

import json
import math
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.observe.usage import gpu_pods
from tests.unit.observe.usage.gpu_pods import node, nodes, pod

from fallow.model import cluster
from fallow.model.usage import Signal
from fallow.observe.usage import labels, queries, rows, trust

FOREIGN = labels.foreign(honor_labels=False)
HONORED = labels.foreign(honor_labels=True)


def raw(**given: str) -> msgspec.Raw:
    return msgspec.Raw(json.dumps(given, sort_keys=True).encode())


def read(dialect: labels.Dialect, **given: str) -> labels.Facts:
    book = labels.LabelBook(dialect, [], labels.LabelRoom())
    (number,) = book.number([raw(**given)])
    return book.facts[number]


def layout(
    *series: dict[str, str], pods: tuple[cluster.Pod, ...], on: dict[str, cluster.Node] | None = None,
    dialect: labels.Dialect = FOREIGN, known: trust.KnownExporters | None = None,
    current: tuple[int, ...] | None = None,
) -> rows.RowLayout:
    """Without `known` whoever says anything is believed."""
    facts = [read(dialect, **one) for one in series]
    return rows.RowLayout(gpu_pods.held(pods, on, known=known), facts, range(len(facts)), current=current)


def held(seen: rows.RowLayout) -> set[tuple[int, str]]:
    return set(zip(seen.pod.tolist(), seen.gpu, strict=True))


# ---- labels into facts ----

ALL_PODS = {"workload_pod": "w", "exported_pod": "e", "pod": "p", "pod_name": "n"}


@pytest.mark.parametrize("missing", range(5))
def test_the_first_pod_label_that_says_something_counts(missing: int) -> None:
    given = {name: "" if index < missing else value for index, (name, value) in enumerate(ALL_PODS.items())}
    facts = read(FOREIGN, **given, exported_namespace="", namespace="ns")
    assert (facts.pod, facts.namespace) == (["w", "e", "p", "n", ""][missing], "ns")
    assert facts.sure == (missing < 2)


def test_honoured_labels_are_the_plain_ones() -> None:
    assert read(HONORED, **ALL_PODS, namespace="ns", exported_namespace="x").pod == "p"
    assert read(HONORED, exported_pod="e").pod == ""


def test_of_our_own_exporter_only_workload_labels_count() -> None:
    assert read(labels.OWN, pod="exporter", exported_pod="e").pod == ""
    assert read(labels.OWN, pod="exporter", workload_pod="w", workload_namespace="ns").pod == "w"


GPUS = [
    ({"UUID": "GPU-1", "gpu": "3", "Hostname": "N"}, ("GPU-1", "n/3", "", False)),
    ({"uuid": "GPU-1", "gi": ""}, ("GPU-1", "", "", False)),
    ({"device_uuid": "GPU-1"}, ("GPU-1", "", "", False)),
    ({"device": "nvidia3", "hostname": "n"}, ("", "n/3", "", False)),
    ({"gpu": "3", "instance": "n:9400"}, ("", "n/3", "", False)),
    ({"UUID": "GPU-1", "GPU_I_ID": "7", "GPU_I_PROFILE": "1g.10gb"}, ("GPU-1", "", "7", True)),
    ({"uuid": "GPU-1", "gi": "7"}, ("GPU-1", "", "7", True)),
    ({"UUID": "MIG-1"}, ("MIG-1", "", "", True)),
    ({}, ("", "", "", False)),
]


@pytest.mark.parametrize(
    ("given", "expected"), GPUS, ids=lambda value: ",".join(value) if isinstance(value, dict) else ""
)
def test_gpus_in_every_dialect(given: dict[str, str], expected: tuple[Any, ...]) -> None:
    facts = read(FOREIGN, **given)
    assert (facts.uuid, facts.spot, facts.instance, facts.mig) == expected


@pytest.mark.parametrize(
    ("target", "host"),
    [
        ("10.0.0.1:9400", "10.0.0.1"),
        ("Node-1:9400", "node-1"),
        ("[fd00::1]:9400", "fd00::1"),
        ("fd00::1", "fd00::1"),
        ("node", "node"),
        ("", ""),
    ],
)
def test_the_port_of_a_target_is_no_part_of_its_name(target: str, host: str) -> None:
    assert read(FOREIGN, instance=target).host == host


def test_the_same_labels_have_the_same_number_and_forms_are_noticed() -> None:
    facts, room = list[labels.Facts](), labels.LabelRoom()
    foreign, own = labels.LabelBook(FOREIGN, facts, room), labels.LabelBook(labels.OWN, facts, room)
    first = foreign.number([raw(pod="a", UUID="1"), raw(exported_pod="b", uuid="2")])
    assert foreign.number([raw(exported_pod="b", uuid="2"), raw(pod="a", UUID="1")]) == first[::-1]
    assert own.number([raw(pod="a", UUID="1")])[0] not in first
    assert (foreign.pod_labels, foreign.uuid_labels) == ({"pod", "exported_pod"}, {"UUID", "uuid"})


@given(
    st.dictionaries(
        st.sampled_from(
            sorted({*ALL_PODS, "UUID", "uuid", "gpu", "device", "Hostname", "instance", "GPU_I_ID", "job", "modelName"})
        ),
        st.text(),
    )
)
def test_no_label_is_ever_too_odd(given_labels: dict[str, str]) -> None:
    seen = layout(given_labels, pods=(pod("llm"),))
    assert len(seen.gpu) <= 1


# ---- facts into rows ----

LLM = {"exported_pod": "llm", "exported_namespace": "ml", "UUID": "GPU-1"}
PLACE = nodes(node("gpu-1", hostname="host-1", addresses=("10.0.0.1",)), node("gpu-2", addresses=("10.0.0.2",)))

FITS = {
    "no node label": ({}, True), "name": ({"Hostname": "gpu-1"}, True), "other case": ({"Hostname": "GPU-1"}, True),
    "hostname label": ({"node": "host-1"}, True), "address": ({"kubernetes_node": "10.0.0.1"}, True),
    "one of two": ({"Hostname": "dcgm-exporter-x", "node": "gpu-1"}, True),
    "the target is the node": ({"Hostname": "dcgm-exporter-x", "instance": "10.0.0.1:9400"}, True),
    "the target is the exporter": ({"instance": "172.16.5.9:9400"}, True),
    "another node": ({"Hostname": "gpu-2"}, False), "a node of another cluster": ({"Hostname": "gpu-77"}, False),
    "the target is another node": ({"instance": "10.0.0.2:9400"}, False),
}


@pytest.mark.parametrize("name", FITS)
def test_a_series_counts_only_for_a_pod_on_its_node(name: str) -> None:
    given, fits = FITS[name]
    seen = layout({**LLM, **given}, pods=(pod("llm", node="gpu-1"),), on=PLACE)
    assert held(seen) == ({(0, "GPU-1")} if fits else set())


def test_a_pod_that_is_not_there_gets_no_row() -> None:
    seen = layout({**LLM, "Hostname": "gpu-1"}, pods=(pod("other"), pod("llm", namespace="elsewhere")))
    assert held(seen) == set()
    assert (seen.unallocated, seen.per_node) == (1, {"gpu-1": 1})


def test_the_exporters_own_pod_means_unallocated() -> None:
    exporter = {"pod": "dcgm-exporter-x", "namespace": "gpu-operator", "Hostname": "gpu-1"}
    seen = layout(
        {**exporter, "UUID": "GPU-1"}, {**exporter, **LLM, "UUID": "GPU-2"},
        {**exporter, "UUID": "GPU-3", "Hostname": "gpu-77"}, pods=(pod("llm"),),
    )
    assert held(seen) == {(0, "GPU-2")}
    assert (seen.unallocated, seen.per_node) == (1, {"gpu-1": 2}), "GPU-3 is on no node of ours"


def test_models_come_from_labels_or_from_the_node() -> None:
    on = nodes(node(product="NVIDIA-A100"))
    seen = layout(
        {**LLM, "modelName": "NVIDIA H100"}, {**LLM, "UUID": "GPU-2", "model": "T4"}, {**LLM, "UUID": "GPU-3"},
        pods=(pod("llm"),), on=on,
    )
    assert seen.model == ("NVIDIA H100", "T4", "NVIDIA-A100")


def test_what_one_series_of_a_board_calls_it_holds_for_all_of_them() -> None:
    """Our exporter's series of pods do not say the model, those of devices do."""
    whole = {"workload_pod": "llm", "workload_namespace": "ml", "uuid": "GPU-1"}
    seen = layout(
        whole, {**whole, "uuid": "GPU-2", "gi": "3"}, {"uuid": "GPU-1", "model": "NVIDIA H100"},
        {"uuid": "GPU-2", "model": "NVIDIA A100"}, pods=(pod("llm"),), on=nodes(node(product="NVIDIA-H100-SHARED")),
        dialect=labels.OWN,
    )
    assert dict(zip(seen.gpu, seen.model, strict=True)) == {"GPU-1": "NVIDIA H100", "GPU-2/3": "NVIDIA A100"}


def test_one_gpu_has_one_name_whoever_speaks_of_it() -> None:
    by_place = {"pod": "llm", "namespace": "ml", "Hostname": "gpu-1", "gpu": "0"}
    seen = layout(
        by_place, {"workload_pod": "llm", "workload_namespace": "ml", "uuid": "GPU-1", "gpu": "0", "node": "gpu-1"},
        pods=(pod("llm"),),
    )
    assert held(seen) == {(0, "GPU-1")}, "two rows for one GPU could hide that another one is missing"
    assert held(layout(by_place, pods=(pod("llm"),))) == {(0, "gpu-1/0")}


def column(seen: rows.RowLayout, edges: rows.Edges, *values: float) -> dict[int, float]:
    spread = edges.spread(np.array(values), len(seen.gpu))
    return dict(zip(seen.pod.tolist(), spread.tolist(), strict=True))


SHARED = {
    "label of the node": (pod("a"), nodes(node(shared=True))),
    "resource of the pod": (pod("a", resources={"nvidia.com/gpu.shared": 1}), nodes()),
}


@pytest.mark.parametrize("name", SHARED)
def test_a_shared_gpu_is_measured_by_all_series_of_it(name: str) -> None:
    holder, on = SHARED[name]
    of = {"exported_namespace": "ml", "UUID": "GPU-1"}
    seen = layout(
        {**of, "exported_pod": "a"}, {**of, "exported_pod": "gone"}, {"UUID": "GPU-1"}, pods=(holder,), on=on
    )
    assert seen.shared.tolist() == [True]
    assert column(seen, seen.own, 0.1, 0.9, 0.5) == {0: 0.1}
    assert column(seen, seen.device, 0.1, 0.9, 0.5) == {0: 0.9}


def test_a_gpu_in_two_hands_is_not_shared_unless_somebody_says_so() -> None:
    seen = layout(LLM, {**LLM, "exported_pod": "other"}, pods=(pod("llm"), pod("other")))
    assert seen.shared.tolist() == [False, False]
    assert column(seen, seen.device, 0.1, 0.9) == {0: 0.1, 1: 0.9}


# ---- claims that nobody makes any more ----

BACK = {**LLM, "UUID": "GPU-2"}  # where the pod of that name runs since it came back
CLAIMS: dict[str, tuple[tuple[dict[str, str], ...], tuple[int, ...], set[tuple[int, str]]]] = {
    "came back on another GPU": ((LLM, BACK), (1,), {(0, "GPU-2")}),
    "both are said now": ((LLM, BACK), (0, 1), {(0, "GPU-1"), (0, "GPU-2")}),
    "neither is said now": ((LLM, BACK), (), {(0, "GPU-1"), (0, "GPU-2")}),
    "nothing is too much": ((LLM,), (), {(0, "GPU-1")}),
    "its old GPU is another's now": ((LLM, {**LLM, "exported_pod": "other"}), (1,), {(1, "GPU-1")}),
}


@pytest.mark.parametrize("name", CLAIMS)
def test_a_pod_that_came_back_is_not_given_the_gpus_it_had_before(name: str) -> None:
    series, current, rows_left = CLAIMS[name]
    seen = layout(*series, pods=(pod("llm"), pod("other")), current=current)
    assert held(seen) == rows_left
    assert set(seen.own.rows.tolist()) == set(range(len(seen.gpu)))


# ---- whom to believe ----

OWN_SERIES = {"workload_pod": "llm", "workload_namespace": "ml", "uuid": "GPU-1"}
KNOWN = gpu_pods.exporters("gpu-operator/idle-x gpu-1 10.1.0.5", "gpu-operator/idle-y gpu-2 10.1.0.6")
TARGETS = {
    "by its labels": ({"namespace": "gpu-operator", "pod": "idle-x"}, True, ""),
    "by its address": ({"instance": "10.1.0.5:9835"}, True, ""),
    "a tenant's pod": ({"namespace": "evil", "pod": "forger", "instance": "10.1.0.99:1"}, False, "evil/forger"),
    "a tenant's pod by another's address": ({"namespace": "evil", "instance": "10.1.0.5:1"}, False, "evil"),
    "a tenant's pod under another's labels": (
        {"namespace": "gpu-operator", "pod": "idle-x", "instance": "10.1.9.9:1"}, False, "ml/llm"
    ),
    "another node's exporter": ({"namespace": "gpu-operator", "pod": "idle-y"}, False, "gpu-operator/idle-y"),
    "no such pod": ({"namespace": "gpu-operator", "pod": "idle-z"}, False, "gpu-operator/idle-z"),
    "a tenant's pod by older labels": (
        {"namespace": "gpu-operator", "pod": "idle-x", "kubernetes_namespace": "evil", "kubernetes_pod_name": "forger"},
        False, "evil/forger",
    ),
    "nobody can tell": ({"instance": "10.1.0.77:9835"}, False, "10.1.0.77:9835"),
}


@pytest.mark.accepts("idle", 47)
@pytest.mark.parametrize("name", TARGETS)
def test_what_could_acquit_counts_only_from_a_believed_exporter_of_the_node(name: str) -> None:
    target, counts, named = TARGETS[name]
    pods = (pod("llm", ip="10.1.9.9"),)
    seen = layout({**OWN_SERIES, **target}, pods=pods, on=PLACE, known=KNOWN, dialect=labels.OWN)
    assert held(seen) == ({(0, "GPU-1")} if counts else set())
    assert [(one.who, one.is_untrusted) for one in seen.ignored] == (
        [] if counts else [(f"UntrustedExporter {named}", True)]
    )


def test_kernels_are_believed_like_processes() -> None:
    said = {"pod": "llm", "namespace": "ml", "device_uuid": "GPU-1"}
    for address, counts in (("10.1.0.5:9394", True), ("10.1.0.77:9394", False)):
        seen = layout(
            {**said, "instance": address}, pods=(pod("llm"),), on=PLACE, known=KNOWN, dialect=labels.kernels(False)
        )
        assert bool(held(seen)) is counts


def test_what_hami_hands_out_in_parts_is_shared() -> None:
    said = {"namespace": "ml", "device_uuid": "GPU-1"}
    seen = layout(
        {**said, "pod": "llm"}, {**said, "pod": "other"}, {**said, "pod": "llm", "device_uuid": "GPU-2"},
        pods=(pod("llm"), pod("other")), dialect=labels.kernels(False),
    )
    assert dict(zip(zip(seen.pod.tolist(), seen.gpu, strict=True), seen.shared.tolist(), strict=True)) == {
        (0, "GPU-1"): True, (1, "GPU-1"): True, (0, "GPU-2"): False
    }


def test_why_an_exporter_cannot_be_seen_is_said() -> None:
    known = gpu_pods.exporters(unseen="only pods in ml are seen")
    said = {**OWN_SERIES, "namespace": "gpu-operator", "pod": "idle-x"}
    seen = layout(said, pods=(pod("llm"),), known=known, dialect=labels.OWN)
    assert "only pods in ml are seen" in seen.ignored[0].because


def test_an_exporter_that_is_gone_was_one_while_it_was_there() -> None:
    known = gpu_pods.exporters("gpu-operator/idle-new gpu-1 10.1.0.8", before=KNOWN.known)
    said = {**OWN_SERIES, "namespace": "gpu-operator", "pod": "idle-x"}
    assert held(layout(said, pods=(pod("llm"),), on=PLACE, known=known, dialect=labels.OWN)) == {(0, "GPU-1")}
    by_address = {**OWN_SERIES, "instance": "10.1.0.5:9835"}
    assert held(layout(by_address, pods=(pod("llm"),), on=PLACE, known=known, dialect=labels.OWN)) == set()


REAL = {**LLM, "UUID": "GPU-2", "namespace": "gpu-operator", "pod": "dcgm-x"}


@pytest.mark.accepts("idle", 47)
@pytest.mark.parametrize("forged", [
    {**LLM, "namespace": "evil", "pod": "forger"}, {**LLM, "instance": "10.1.9.9:1"},
    {"UUID": "GPU-2", "pod": "forger", "namespace": "evil"},
    {"UUID": "GPU-1", "pod": "llm", "namespace": "ml", "kubernetes_namespace": "evil", "kubernetes_pod_name": "forger"},
], ids=["its labels", "its address", "nameless", "older labels"])
def test_a_tenants_devices_count_only_where_nobody_else_shows_any(forged: dict[str, str]) -> None:
    pods = (pod("llm", resources={"nvidia.com/gpu": 2}), pod("tenant", namespace="evil", ip="10.1.9.9"))
    alone = layout(forged, pods=pods, on=PLACE, known=KNOWN)
    beside = layout(forged, REAL, pods=pods, on=PLACE, known=KNOWN)
    assert held(beside) == {(0, "GPU-2")}
    assert not beside.borrows.any()
    assert alone.ignored == ()


def test_older_labels_make_nobody_believed() -> None:
    """A page may hold them where Prometheus does not set them."""
    said = {"kubernetes_namespace": "gpu-operator", "kubernetes_pod_name": "idle-x", "instance": "10.1.0.77:1"}
    assert held(layout({**OWN_SERIES, **said}, pods=(pod("llm"),), on=PLACE, known=KNOWN, dialect=labels.OWN)) == set()
    seen = layout({**LLM, **said}, REAL, pods=(pod("llm"),), on=PLACE, known=KNOWN)
    assert np.isnan(seen.vouched(np.zeros(2))).tolist() == [True, False]


def test_a_hostname_that_is_the_exporters_own_pod_hides_nothing() -> None:
    """NVIDIA's plain manifest runs without the host's network."""
    for target in (
        {"namespace": "default", "pod": "dcgm-exporter-x"}, {"instance": "10.1.0.5:9400"},
    ):
        called = "dcgm-exporter-x" if "pod" in target else "idle-x"
        seen = layout({**LLM, "Hostname": called, **target}, pods=(pod("llm"),), on=PLACE, known=KNOWN)
        assert held(seen) == {(0, "GPU-1")}
    other = layout({**LLM, "Hostname": "gpu-77", "namespace": "d", "pod": "dcgm"}, pods=(pod("llm"),), on=PLACE)
    assert held(other) == set()


def test_labels_that_cannot_be_read_say_nothing_and_are_counted() -> None:
    book = labels.LabelBook(FOREIGN, [], labels.LabelRoom())
    odd = [msgspec.Raw(text) for text in (b'{"UUID": 5}', b'["UUID"]', b'{"UUID": "\xff"}')]
    book.number([raw(UUID="GPU-1"), *odd, raw(UUID="GPU-\0")])
    assert [facts.uuid for facts in book.facts] == ["GPU-1", "", "", "", ""]
    assert book.unreadable == 4


def test_labels_are_kept_up_to_a_bound_in_bytes() -> None:
    """Whatever a tenant writes into labels: what is beyond is not read, and counted."""
    room = labels.LabelRoom(40_000)
    book = labels.LabelBook(FOREIGN, [], room)
    long = [raw(UUID=f"GPU-{number}", junk="j" * 9_000) for number in range(5)]
    numbers = book.number([raw(UUID="GPU-x", junk="j" * 17_000), *long])
    assert [facts.uuid for facts in book.facts] == ["", "GPU-0", "GPU-1", "GPU-2", "GPU-3", ""]
    assert (book.unreadable, room.is_full) == (2, True)
    assert book.number([*long, raw(UUID="GPU-x", junk="j" * 17_000)]) == [*numbers[1:], numbers[0]]
    assert sum(map(len, book._numbers)) == 6 * 32, "long label sets are known by their digest"


def test_an_unshared_gpu_is_not_measured_by_series_of_others() -> None:
    seen = layout(LLM, {**LLM, "exported_pod": "gone"}, {"UUID": "GPU-1"}, pods=(pod("llm"),))
    assert not seen.shared.any()
    assert column(seen, seen.device, 0.1, 0.9, 0.5) == {0: 0.5}, "a series that names nobody is the device's"
    assert [(one.name, board) for one, board in seen.borrowed_boards()] == [("llm", "GPU-1")]


# ---- reservations ----

RESERVED = {"exported_pod": "gpu-reservation-1", "exported_namespace": "kai-resource-reservation", "UUID": "GPU-1"}
RESERVATION = pod("gpu-reservation-1", namespace="kai-resource-reservation", labels={"runai-gpu-group": "g1"})

CONSUMERS = {
    "one": ((pod("a", labels={"runai-gpu-group": "g1"}),), {1}),
    "two": ((pod("a", labels={"runai-gpu-group": "g1"}), pod("b", labels={"runai-gpu-group": "g1"})), {1, 2}),
    "of several groups": ((pod("a", labels={"runai-gpu-group/g1": "g1", "runai-gpu-group/g2": "g2"}),), {1}),
    "another group": ((pod("a", labels={"runai-gpu-group": "g2"}),), {0}),
    "another node": ((pod("a", node="gpu-2", labels={"runai-gpu-group": "g1"}),), {0}), "nobody": ((), {0}),
}


@pytest.mark.parametrize("name", CONSUMERS)
def test_reservations_are_looked_through(name: str) -> None:
    consumers, holders = CONSUMERS[name]
    seen = layout(RESERVED, pods=(RESERVATION, *consumers))
    assert set(seen.pod.tolist()) == holders
    assert seen.shared.all()


# ---- readings ----

METRICS = {metric.name: metric for metric in (*queries.PRIMARIES, *queries.OTHERS)}


@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)
@given(value=st.floats() | st.sampled_from([2147483632.0, 2147483636.0, 9223372036854775792.0, 140737488355328.0]))
def test_nothing_unbelievable_becomes_a_reading(metric: queries.GpuMetric, value: float) -> None:
    believed = float(queries.believe(np.array([value]), metric)[0])
    if math.isnan(value) or value < 0 or value > metric.top:
        assert math.isnan(believed)
    else:
        assert 0 <= believed <= metric.cap
        assert (believed > 0) == (value > 0) or value < 1e-300


@pytest.mark.parametrize(
    ("name", "read_as", "value"),
    [
        ("DCGM_FI_DEV_GPU_UTIL", 0.37, 37.0),
        ("DCGM_FI_DEV_GPU_UTIL", 1.0, 103.0),
        ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 1.0, 1.04),
        ("DCGM_FI_DEV_ENC_UTIL", 4.0, 4.0),
    ],
)
def test_units(name: str, read_as: float, value: float) -> None:
    assert queries.believe(np.array([value]), METRICS[name])[0] == pytest.approx(read_as)


def test_every_signal_has_its_series() -> None:
    assert {metric.signal for metric in METRICS.values()} | {Signal.requests} == set(Signal)


@pytest.mark.parametrize(("seconds", "text"), [(1800.0, "1800s"), (90.5, "90500ms")])
def test_windows_in_promql(seconds: float, text: str) -> None:
    assert queries.span(seconds) == text
