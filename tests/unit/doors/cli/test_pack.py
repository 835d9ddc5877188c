"""`fallow pack`: what is typed, what is shown, and how what is missing or odd is said. Traces are small ones."""

import asyncio
import csv
import gzip
import io
import json
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from click.testing import CliRunner, Result
from tests import ROOT
from tests.unit.observe.cluster import pretend

from fallow import names
from fallow.clients.kubernetes import api as kube
from fallow.decide import packing
from fallow.decide.packing import fragments
from fallow.doors.answers import layouts
from fallow.doors.answers import subjects as telling
from fallow.doors.cli import main, pack
from fallow.model import owner_use
from fallow.model.policies import nodeconfig_crd, sharing_crd
from fallow.model.policies.sharing import SharingMode, Strategy
from fallow.model.sharing import OwnerUse
from fallow.sim import packs, shelf
from fallow.sim.traces import openb
from fallow.wiring import reach, subjects

NODES = [
    "sn,cpu_milli,memory_mib,gpu,model",
    *(f"n{number},64000,262144,{['2,P100', '4,T4'][number % 2]}" for number in range(48))
]
HEADER = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time"
KINDS = ["8000,8192,1,1000,", "4000,4096,1,460,", "2000,4096,1,300,T4", "16000,8192,2,1000,", "4000,8192,0,0,"]
PODS = [HEADER, *(f"p{number},{KINDS[number % 5]},LS,Running,{number},," for number in range(240))]


def write(path: Path, *lines: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "\n".join(lines) + "\n"
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path / "openb/openb_node_list_gpu_node.csv", *NODES)
    write(tmp_path / "openb/openb_pod_list_default.csv.gz", *PODS)
    write(tmp_path / "openb/openb_pod_list_other.csv.gz", *PODS[:121])
    rng = np.random.default_rng(1)
    for name, pods in (("default", 240), ("other", 120)):
        rows = [*range(pods), *rng.integers(pods, size=360 - pods).tolist()]
        lines = [line for seed in (42, 43) for line in (
            f"{seed},pods,{','.join(map(str, rng.permutation(rows)))}",
            f"{seed},nodeperm,{','.join(map(str, rng.permutation(48)))}"
        )]
        write(tmp_path / f"openb/orders/{name}.csv.gz", *lines)
    header = ",".join(["workload", "sc_policy", "tune", "seed", "total_gpus", *map(str, range(131))])
    curve = ",".join(str(min(percent, 90)) for percent in range(131))
    write(
        tmp_path / "openb/published_allocation_curves.csv.gz", header,
        f"openb_pod_list_default,06-FGD,1.3,42,144,{curve}",
    )
    return tmp_path


def run(root: Path, *words: str, **env: str) -> Result:
    clean = dict.fromkeys(("KUBECONFIG", "PROMETHEUS_URL"))
    return CliRunner(env={**clean, "FALLOW_TRACES": str(root), **env}).invoke(main.fallow, ["pack", *words])


def read_csv(done: Result) -> list[dict[str, str]]:
    assert done.exit_code == 0, done.output
    return list(csv.DictReader(io.StringIO(done.stdout)))


# ---- simulate -------------------------------------------------------------------------------------------------------


def test_simulate_shows_the_curve_the_bound_and_the_published_one(root: Path) -> None:
    done = run(root, "simulate", "--policy", "FGD", "--policy", "spp")
    assert done.exit_code == 0, done.output
    assert "trace openb, seed 42, the published order: 48 nodes, 144 GPUs" in done.output
    published, bound = "C  FGD (published): 90.00 at 100", "D  what no packer could exceed: "
    for text in ("% of the cluster's GPUs asked for so far", "A  FGD: ", "B  SPP: ", published, bound):
        assert text in done.output
    assert " ".join(pack.COLUMNS).split() in [line.split() for line in done.output.splitlines()]


def test_simulate_speaks_csv_json_and_yaml_of_the_same(root: Path) -> None:
    rows = read_csv(run(root, "simulate", "--policy", "BestFit", "-o", "csv"))
    assert list(rows[0]) == list(pack.COLUMNS)
    data = json.loads(run(root, "simulate", "--policy", "BestFit", "-o", "json").stdout)
    (result,) = data["results"]
    arrived = [point["arrived"] for point in result["points"]]
    assert arrived == [int(row["ARRIVED %"]) for row in rows] == list(packs.POINTS)
    assert {"idleGpus", "fragmented"} <= result["points"][0].keys()
    assert [point["allocated"] for point in result["points"]] == [float(row["ALLOCATED %"]) for row in rows]
    assert result["curve"]["100"] == result["points"][3]["allocated"]
    assert data["published"]["FGD"][100] == 90.0
    as_yaml = yaml.safe_load(run(root, "simulate", "--policy", "BestFit", "-o", "yaml").stdout)
    assert as_yaml["results"][0]["points"] == result["points"]


@pytest.mark.parametrize("policy", packing.POLICIES)
def test_every_policy_can_be_simulated_and_stays_below_the_bound(root: Path, policy: str) -> None:
    for row in read_csv(run(root, "simulate", "--policy", policy.upper(), "-o", "csv")):
        assert row["POLICY"].startswith(policy)
        # the bound is at k %, the share a mean around it
        assert 0 <= float(row["ALLOCATED %"]) <= min(100.0, float(row["BOUND %"]) + 2)
        assert float(row["IDLE GPUS"]) == pytest.approx((100 - float(row["ALLOCATED %"])) * 1.44, abs=0.51)


def test_the_same_seed_gives_the_same_and_another_is_drawn(root: Path) -> None:
    first, again, other = (
        run(root, "simulate", "--policy", "Random", "--seed", seed, "-o", "json").stdout for seed in ("7", "7", "8")
    )
    assert "drawn: no order is stored for it" in json.loads(first)["scene"]
    curves = [json.loads(each)["results"][0]["curve"] for each in (first, again, other)]
    assert curves[0] == curves[1] != curves[2]


def test_the_picture_is_written(root: Path, tmp_path: Path) -> None:
    picture = tmp_path / "curve.svg"
    done = run(root, "simulate", "--policy", "FGD", "--svg", str(picture))
    assert f"written: {picture}" in done.output
    assert ET.fromstring(picture.read_text()).tag.endswith("svg")
    assert "FGD (published)" in picture.read_text()
    assert run(root, "simulate", "--policy", "FGD", "--svg", "no/such/folder/x.svg").exit_code == 2


def test_without_a_solver_fgd_decides_and_it_is_said(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "highspy", None)  # as where it cannot be loaded
    done = run(root, "simulate", "--policy", "SPP")
    assert done.exit_code == 0, done.output
    assert "SPP could not be prepared (NoSolver): FGD decided instead" in done.output
    assert "the bound is not known: NoSolver" in done.output
    data = json.loads(run(root, "simulate", "--policy", "SPP", "-o", "json").stdout)
    (result,) = data["results"]
    assert (data["boundUnknown"], result["fallback"], result["decidedBy"]) == ("NoSolver", "NoSolver", "FGD")
    assert {point["bound"] for point in result["points"]} == {None}


# ---- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["simulate", "plan", "defrag", "compare"])
def test_traces_that_are_missing_are_a_sentence_and_exit_3(tmp_path: Path, root: Path, verb: str) -> None:
    for where, words in ((tmp_path / "nowhere", ["--trace", "openb"]), (root, ["--trace", "no-such"])):
        done = run(where, verb, *words)
        assert done.exit_code == 3, done.output
        (sentence,) = done.output.splitlines()
        assert sentence.startswith("Error: --trace: no trace ")
    assert "the names are sample, sample-pods, openb, openb-other" in sentence


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["simulate", "--policy", "best"], "'best' is not one of"),
        (["simulate", "--trace", "openb", "--cluster"], "exclude each other"),
        (["plan", "--kubeconfig", "x"], "are for --cluster"), (["plan", "-o", "policy"], "is for --cluster"),
        (["simulate", "--seed", "-1"], "--seed"),
        (["defrag", "--budget", "-1"], "--budget"), (["simulate", "-o", "wide"], "'wide' is not one of"),
        (["sort"], "there is no command 'sort'"),
    ],
)
def test_bad_words_are_usage_errors(root: Path, words: list[str], says: str) -> None:
    done = run(root, *words)
    assert done.exit_code == 2
    assert says in done.output


def test_odd_rows_are_named_and_counted_and_the_rest_is_played(root: Path) -> None:
    odd = [
        "x1,1,1,-1,1000,,LS,,0,,", "x2,1,1,one,1000,,LS,,0,,", "big,900000,1,8,1000,,LS,,0,,",
        "alien,1,1,1,1000,Z9,LS,,0,,",
    ]
    write(root / "openb/openb_pod_list_odd.csv.gz", *PODS, *odd)
    done = run(root, "simulate", "--trace", "openb-odd", "--policy", "FGD")
    assert done.exit_code == 0, done.output
    assert "pods: 244 rows; 1 CPU, memory or GPUs are no whole number, 1 asks for what no machine has" in done.output
    assert "pods: line 242: pod x1 asks for -1 GPUs of 1000 milli each; a GPU has 1000" in done.output
    assert "drawn: no order is stored for it" in done.output
    assert "FGD: never to be placed: " in done.output
    assert "LargerThanAnyNode" in done.output
    assert "UnknownModel" in done.output


@pytest.mark.parametrize("nodes", [NODES[:1], [NODES[0], "n1,64000,262144,0,"]], ids=["no nodes", "no GPUs"])
@pytest.mark.parametrize("verb", ["simulate", "plan", "defrag"])
def test_a_cluster_without_gpus_is_said(root: Path, nodes: list[str], verb: str) -> None:
    write(root / "openb/openb_node_list_gpu_node.csv", *nodes)
    done = run(root, verb)
    assert done.exit_code == 1
    assert done.output.startswith("Error: there is no GPU to pack: trace openb, ")


def test_pods_that_want_no_gpu_make_no_curve_and_that_is_said(root: Path) -> None:
    write(root / "openb/openb_pod_list_plain.csv.gz", HEADER, "p,1,1,0,0,,LS,,0,,")
    done = run(root, "simulate", "--trace", "openb-plain")
    assert done.exit_code == 0, done.output
    assert "what arrived never asked for about 80 to 130 % of the GPUs: there is nothing to compare" in done.output
    assert "Auto could not be prepared (NothingToPrice): FGD decided instead" in done.output


def test_a_column_that_is_missing_is_named(root: Path) -> None:
    write(root / "openb/openb_pod_list_default.csv.gz", HEADER.replace("gpu_milli", "share"))
    for verb in ("simulate", "compare"):
        done = run(root, verb)
        assert done.exit_code == 2
        assert "has no column 'gpu_milli'" in done.output


# ---- plan, defrag, compare ------------------------------------------------------------------------------------------


def test_plan_rehearses_and_says_who_wins_by_how_much(root: Path) -> None:
    data = json.loads(run(root, "plan", "-o", "json").stdout)
    assert set(data["shares"]) == set(packing.CANDIDATES)
    assert data["policy"] in data["shares"]
    assert data["asOf"].endswith("Z")
    rows = read_csv(run(root, "plan", "-o", "csv"))
    assert {row["POLICY"]: float(row["ALLOCATED %"]) for row in rows} == pytest.approx(data["shares"], abs=0.006)
    done = run(root, "plan")
    assert f"Auto, as of {data['asOf'][:10]}" in done.output
    assert data["because"] in done.output


def test_defrag_lists_moves_with_their_gain_up_to_the_budget(root: Path) -> None:
    data = json.loads(run(root, "defrag", "--policy", "WorstFit", "--seed", "43", "-o", "json").stdout)
    assert data["moves"]
    gain = sum(move["gainGpus"] for move in data["moves"])
    assert data["allocatedAfter"] >= data["allocatedBefore"]
    if not data["direct"]:
        assert data["allocatedAfter"] - data["allocatedBefore"] == pytest.approx(100 * gain / 144, abs=0.02)
    assert all(move["from"] != move["to"] and move["placedOn"] == move["from"] for move in data["moves"])
    few = read_csv(run(root, "defrag", "--policy", "WorstFit", "--seed", "43", "--budget", "1", "-o", "csv"))
    assert [row["MOVE"] for row in few] == [data["moves"][0]["pod"]]
    done = run(root, "defrag", "--policy", "WorstFit", "--seed", "43", "--budget", "0")
    assert "moves: 0 (budget 0)" in done.output


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("columns", "fits"), [(80, False), (120, True)])
def test_the_comparison_leaves_columns_out_where_a_terminal_is_narrow(
    monkeypatch: pytest.MonkeyPatch, columns: int, fits: bool
) -> None:
    row = ["openb-gpushare100", "Auto", "Balanced", 93.36, 1019, 1117.8, 99.96, 6.6, 15474]
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("LINES", "24")  # without it rich takes a dumb terminal for 80 columns
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr("sys.stdout", out := Terminal())
    pack._show_table(pack.COMPARISON, [row])
    assert max(map(len, out.getvalue().splitlines())) <= columns
    assert ("PODS/S" in out.getvalue()) is fits
    assert {"openb-gpushare100", "Auto", "93.36", "1,117.80", "6.60"} <= set(out.getvalue().split())


def test_compare_tells_gains_against_fgd_and_the_distance_to_the_bound(root: Path) -> None:
    rows = read_csv(
        run(root, "compare", "--policy", "SPP", "--policy", "BestFit", "--seed", "42", "--seed", "43", "-o", "csv")
    )
    assert [(row["TRACE"], row["POLICY"]) for row in rows] == [
        (t, p) for t in ("openb", "openb-other") for p in ("SPP", "BestFit")
    ]
    trace = openb.read(root, "default")
    for row, policy in zip(rows[:2], ("SPP", "BestFit"), strict=True):
        alone = {name: [_play(trace, name, seed) for seed in (42, 43)] for name in (policy, "FGD")}
        ours, fgd = (sum(values) / 2 for values in alone.values())
        assert float(row["ALLOCATED %"]) == pytest.approx(ours, abs=0.006)
        assert float(row["GAIN ON FGD"]) == pytest.approx((ours - fgd) * 1.44, abs=0.06)
        assert float(row["TO BOUND"]) == pytest.approx(float(row["BOUND %"]) - float(row["ALLOCATED %"]), abs=0.011)
    data = json.loads(run(root, "compare", "--trace", "openb-other", "-o", "json").stdout)
    assert [row["policy"] for row in data["rows"]] == list(pack.COMPARED)
    assert data["rows"][0]["gainGpus"] == 0


def stand_still() -> float:
    return 0.0


def _play(trace: openb.OpenbTrace, policy: str, seed: int) -> float:
    share = packs.play(packs.of_trace(trace, seed), policy, seed, cpu=lambda: 0.0, points=[100]).points[0].allocated
    assert share is not None
    return share


def test_one_core_and_several_tell_the_same(root: Path) -> None:
    files = shelf.find_pods("openb", root)
    one, two = (
        packs.compare([files], ["FGD", "SPP"], [42], cpu=stand_still, workers=workers) for workers in (1, 2)
    )
    assert one == two


# ---- the live cluster -----------------------------------------------------------------------------------------------


@pytest.fixture
async def server() -> Any:
    kinds = (
        "v1 configmaps ConfigMap", "coordination.k8s.io/v1 leases Lease",
        f"{names.GROUP}/v1alpha1 gpunodeconfigs GPUNodeConfig -",
    )
    async with pretend.Server(*kinds) as running:
        running.put("namespaces", pretend.made("kube-system", namespace=None, kind="Namespace"))
        status = {"allocatable": {"cpu": "16", "memory": "64Gi", "pods": "110", "nvidia.com/gpu": "2"},
                  "conditions": [{"type": "Ready", "status": "True"}]}
        for name in ("n1", "n2"):
            labels = {"nvidia.com/gpu.product": "NVIDIA-L4"}
            running.put("nodes", pretend.made(name, namespace=None, kind="Node", labels=labels, status=status))
        running.put_all(pretend.deployed("llm", 3))
        for name, node in (("llm-2", "n2"),):
            running.kinds["pods"].objects[f"Pod-{name}"]["spec"]["nodeName"] = node
        running.put("pods", pretend.pod("pair", gpus=2, node=""))
        running.put("pods", pretend.pod("one", node=""))
        running.put("pods", pretend.pod("picky", node="", spec={"nodeSelector": {"pool": "a"}}))
        yield running


@pytest.fixture
def kubeconfig(server: pretend.Server, tmp_path: Path) -> Path:
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump({
        "apiVersion": "v1", "kind": "Config", "current-context": "test", "users": [{"name": "test", "user": {}}],
        "clusters": [{"name": "test", "cluster": {"server": f"http://127.0.0.1:{server.url[1]}"}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test", "namespace": "ml"}}],
    }))
    return path


@pytest.fixture
def ask(kubeconfig: Path, tmp_path: Path) -> Any:
    async def ask(*words: str) -> Result:
        return await asyncio.to_thread(
            run, tmp_path / "no-traces-needed", *words, "--cluster", KUBECONFIG=str(kubeconfig)
        )

    return ask


async def test_plan_of_a_live_cluster_says_how_it_stands_and_where_who_waits_would_go(
    server: pretend.Server, ask: Any
) -> None:
    data = json.loads((await ask("plan", "-o", "json")).stdout)
    assert (data["gpus"], data["allocatedGpus"]) == (4, 3.0)
    assert data["boundPercent"] == 100.0
    waits = {each["pod"]: (each["node"], each["why"]) for each in data["waiting"]}
    assert waits == {
        "ml/picky": (None, "cannot tell: selects nodes by other labels than the GPU's product"),
        "ml/pair": (None, "NoRoom"), "ml/one": ("n2", ""),
    }
    assert sum(data["freeGpusByCause"].values()) == pytest.approx(1, abs=0.02)
    shown = await ask("plan")
    assert "3.0 of 4 GPUs are allocated" in shown.output
    assert "usable: it fits here" in shown.output
    assert shown.exit_code == 0
    assert not any(verb not in ("list", "get") for verb, _, _ in server.requests)


async def test_plan_offers_the_objects_to_apply_and_they_only_audit(server: pretend.Server, ask: Any) -> None:
    empty = {**server.kinds["nodes"].objects["Node-n2"], "metadata": {"name": "n3", "labels": {}, "uid": "n3"}}
    server.put("nodes", empty)
    shown = await ask("plan", "-o", "policy")
    policy, config = yaml.safe_load_all(shown.stdout)
    assert "# 5 pods ask for exactly one whole GPU" in shown.stdout
    made, cut = sharing_crd.parse(policy), nodeconfig_crd.parse(config)
    assert (made.invalid, made.mode, made.strategy) == ((), SharingMode.audit, Strategy.auto)
    assert (cut.invalid, cut.mode, cut.node, cut.slicing_replicas) == ((), SharingMode.audit, "n3", 4)
    assert not any(verb not in ("list", "get") for verb, _, _ in server.requests)


def tell_use(server: pretend.Server, mean: float, p95: float, peak: int) -> None:
    """As a daemon does: of the owner of all three pods."""
    uid = next(iter(server.kinds["deployments"].objects.values()))["metadata"]["uid"]
    table = owner_use.write({uid: OwnerUse(coverage=1.0, mean=mean, p95=p95, peak_memory=peak)}, time.time())
    server.put("configmaps", {
        **pretend.made(names.OWNER_USE, namespace="gpu-system", kind="ConfigMap"), "data": {owner_use.KEY: table},
    })
    lease = pretend.made(names.LEASE, namespace="gpu-system", kind="Lease", version="coordination.k8s.io/v1")
    server.put("leases", lease)
    server.put("namespaces", pretend.made("ml", namespace=None, kind="Namespace"))
    for node in server.kinds["nodes"].objects.values():
        node["metadata"]["labels"][names.GPU_MEMORY] = "24000"


async def test_plan_and_explain_say_how_many_could_share_a_gpu_where_that_is_measured(
    server: pretend.Server, ask: Any, kubeconfig: Path
) -> None:
    async def explain() -> str:
        async with reach.open_api(str(kubeconfig), None) as (api, _):
            seen = await subjects.read(api, kube.NODES, "n1", time.time())
        assert isinstance(seen, subjects.NodeSubject)
        told = telling.tell_node(seen, time.time())
        return next(each.sentence for each in told.lines if each.about == "could share")

    unknown = json.loads((await ask("plan", "-o", "json")).stdout)["sharing"]
    assert (unknown["replicas"], unknown["notKnown"].startswith("no daemon tells")) == (None, True)
    assert (await explain()).startswith("not known: no daemon tells")
    tell_use(server, mean=0.3, p95=0.7, peak=4000)
    told = json.loads((await ask("plan", "-o", "json")).stdout)["sharing"]
    assert (told["replicas"], told["mpsClients"], told["largestNeedMib"]) == (4, 1, 4800)
    assert told["could"] == ["ml/llm-0", "ml/llm-1", "ml/llm-2"]
    shown = " ".join((await ask("plan")).output.split())
    assert "Who could share a GPU: 4 could take turns on a GPU; each is given up to 4,800 MiB" in shown
    said = await explain()
    assert said.startswith("4 could take turns on a GPU; ")
    assert said.endswith("2 pods: ml/llm-0, ml/llm-1")
    tell_use(server, mean=0.7, p95=0.9, peak=4000)
    assert await explain() == "nobody; too busy or too large for that: 2 pods: ml/llm-0, ml/llm-1"


async def test_the_node_that_is_offered_shares_its_gpus_by_as_many_as_were_advised(
    server: pretend.Server, ask: Any
) -> None:
    empty = {**server.kinds["nodes"].objects["Node-n2"], "metadata": {"name": "n3", "labels": {}, "uid": "n3"}}
    server.put("nodes", empty)
    tell_use(server, mean=0.1, p95=0.9, peak=9000)
    shown = (await ask("plan", "-o", "policy")).stdout
    _, config = yaml.safe_load_all(shown)
    assert (config["metadata"]["name"], config["spec"]["timeSlicingReplicas"]) == ("n3", 2)
    assert "# How many could share a GPU there: 2 could take turns on a GPU; each is given up to 10,800 MiB" in shown


async def test_plan_offers_no_node_where_one_shares_and_no_policy_where_nobody_asks_for_one_gpu(
    server: pretend.Server, ask: Any
) -> None:
    labels = {"nvidia.com/gpu.replicas": "4", "nvidia.com/gpu.sharing-strategy": "time-slicing"}
    shared = {**server.kinds["nodes"].objects["Node-n2"], "metadata": {"name": "n3", "labels": labels, "uid": "n3"}}
    server.put("nodes", shared)
    assert [each["kind"] for each in yaml.safe_load_all((await ask("plan", "-o", "policy")).stdout)] == [
        names.SHARING_POLICY_KIND
    ]
    server.kinds["pods"].objects.clear()
    refused = await ask("plan", "-o", "policy")
    assert (refused.exit_code, "nobody to share one" in refused.output) == (1, True)


async def test_a_live_cluster_is_simulated_with_pods_like_its_own(ask: Any) -> None:
    done = await ask("simulate", "--policy", "FGD", "-o", "json")
    data = json.loads(done.stdout)
    assert data["scene"].startswith("the cluster: 2 nodes, 4 GPUs, ")
    assert data["published"] == {}
    assert data["results"][0]["points"]


async def test_defrag_of_a_live_cluster_needs_no_move_where_there_is_room(ask: Any) -> None:
    data = json.loads((await ask("defrag", "-o", "json")).stdout)
    assert data["direct"] == [{"pod": "ml/one", "node": "n2"}]
    assert (data["moves"], data["allocatedBefore"], data["allocatedAfter"]) == ([], 75.0, 100.0)


async def test_a_cluster_that_may_not_be_read_is_one_sentence(server: pretend.Server, ask: Any) -> None:
    server.forbidden.add(("list", "pods"))
    done = await ask("plan")
    assert done.exit_code == 1
    assert "cannot list resource" in done.output


def test_a_kubeconfig_that_is_not_there_is_a_usage_error(tmp_path: Path) -> None:
    done = run(tmp_path, "plan", "--cluster", KUBECONFIG="/nonexistent/kubeconfig")
    assert done.exit_code == 2
    assert "/nonexistent/kubeconfig" in done.output


# ---- the document ---------------------------------------------------------------------------------------------------

DOCUMENT = ROOT / "docs" / "packing.md"


def test_every_cause_is_explained() -> None:
    assert set(layouts.CAUSES) == {str(cause) for cause in fragments.Cause}


def test_the_document_names_what_there_is() -> None:
    text = DOCUMENT.read_text()
    for policy in packing.POLICIES:
        assert policy in text
    for column in {*pack.COLUMNS, *pack.COMPARISON}:
        assert column in text
    for command in pack.pack.commands:
        assert f"fallow pack {command}" in text
    for line in text.splitlines():
        if line.startswith("fallow pack "):
            words = line.partition("#")[0].split()[2:]
            pack.pack.commands[words[0]].make_context(words[0], words[1:])  # raises on an option that is not there


def test_state_is_what_the_scene_says(root: Path) -> None:
    scene = packs.of_trace(openb.read(root, "default"), 42)
    result = packs.play(scene, "FGD", 0, cpu=lambda: 0.0)
    whole = packs.find_room(scene, result.curve, 1000)
    assert isinstance(whole, packing.Room)
    assert whole.allocated == result.curve.room.allocated
    assert (whole.gpu == result.curve.room.gpu).all()
    assert result.pods_per_second is None
