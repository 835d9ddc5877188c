"""The books of a real daemon, over a real API server and a real Prometheus: what the API says, what stands in the file,
and what a node costs by its annotation are one figure, to the second, also after kill -9; a budget that is spent tells
somebody once."""

from __future__ import annotations

import asyncio
import datetime
import json
import pathlib
import sqlite3
from collections import defaultdict
from collections.abc import Callable
from typing import Any, TypeAlias

import psycopg
import pytest
from aiohttp import web

from fallow import names
from fallow.model.policies import attribution_crd, budget_crd
from tests.real import build, databases, history, product
from tests.real import cluster as clusters
from tests.real import conftest as real
from tests.unit.clients import loopback

GPUS = 4
PER_HOUR = 7200  # of the node: half a dollar a second for each of its GPUs
NANO_A_SECOND = PER_HOUR * 10**9 // 3600
VERSION = "gpuautoscaler.io/v1alpha1"


class Accountant(product.Product):
    """Sees all namespaces: of a node of which it sees a part, nobody can say what is idle."""

    @property
    def flags(self) -> list[str]:
        return ["--kubeconfig", str(self.kubeconfig), "-r", "dry-run"]


class Scene:
    """A node with a price, its daemon, and the file of its books."""

    def __init__(self, cluster: clusters.Cluster, prometheus: history.PrometheusWorld, folder: pathlib.Path) -> None:
        self.cluster, self.stage, self.folder = cluster, product.Stage(cluster, prometheus), folder
        self.node = f"priced-{cluster.namespace}"
        self.api, self.allocation = product.free_port(), product.free_port()

    async def prepare(self) -> Accountant:
        await self.cluster.apply_crds(budget_crd.define(), attribution_crd.define())
        await self.cluster.make_namespace(self.stage.system)
        made = await self.cluster.gpu_node(self.node, GPUS)
        await self.cluster.patch(made, {"metadata": {"annotations": {names.PRICE_PER_HOUR: str(PER_HOUR)}}})
        await self.stage.workload("quiet")
        await self.stage.workload("busy", gpus=2, busy=0.5)
        await self.stage.prometheus.start()
        rights = await self.cluster.service_account("books", product.ALL_RIGHTS, namespace=self.stage.system)
        return Accountant(self.stage, rights, self.folder, f"system:serviceaccount:{self.stage.system}:books")

    async def start(self, accountant: Accountant) -> product.Daemon:
        daemon = await accountant.start(
            "--cost", "true", "--cost-tracking-interval", "1s", "--state-dir", str(self.folder / "state"),
            "--dashboard-addr", f"127.0.0.1:{self.api}", "--cost-api-port", str(self.allocation),
            env={"POD_NAME": "books-0"},
        )
        await daemon.until(daemon.is_ready)
        return daemon

    async def read(self, daemon: product.Daemon, path: str, port: int | None = None) -> Any:
        daemon.url = f"http://127.0.0.1:{port or self.api}"
        status, text = await daemon.get(path)
        assert status == 200, text
        return json.loads(text)

    @property
    def books(self) -> Books:
        path = self.folder / "state" / "costs.sqlite"
        if not path.exists():
            return Books(None, self.node)
        on = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        try:
            on.execute("BEGIN")
            return Books(lambda sql: on.execute(sql).fetchall(), self.node)
        except sqlite3.OperationalError:  # it is being made
            return Books(None, self.node)
        finally:
            on.close()

    async def until_written(self, daemon: product.Daemon, at: float) -> None:
        """The books are written beyond that instant."""

        async def is_written() -> bool:
            return self.books.seen_until > at

        await daemon.until(is_written)


SEEN_UNTIL = "SELECT seen_until FROM ledger_meta"
ROWS = (
    "SELECT part.gpu_uuid, part.slot, i.t0, CASE WHEN i.is_open = 1 AND i.t1 < {until} THEN {until} ELSE i.t1 END,"
    " i.share_micro, i.rate_nano, pod.pod_name, key.namespace FROM cost_intervals i"
    " JOIN cost_parts part USING (part_id) JOIN cost_pods pod USING (pod_id) JOIN cost_keys key USING (key_id)"
    " WHERE key.node = '{node}' ORDER BY i.t0"
)
Run: TypeAlias = Callable[[str], list[tuple[Any, ...]]]


class Books:
    """The tables themselves, by SQL: no line of the product reads them for us. `run`: at one instant."""

    def __init__(self, run: Run | None, node: str) -> None:
        self.seen_until: int = run(SEEN_UNTIL)[0][0] if run else 0
        self.rows = run(ROWS.format(until=self.seen_until, node=node)) if run and self.seen_until else []

    @property
    def begin(self) -> int:
        return min(row[2] for row in self.rows)

    def cost(self, **of: str) -> int:
        """In nano, of rows whose hourly rate is a whole number a second."""
        return sum(rate // 3600 * (t1 - t0) for _, _, t0, t1, _, rate, pod, namespace in self.rows
                   if of.get("pod", pod) == pod and of.get("namespace", namespace) == namespace)

    def shares(self) -> set[int]:
        """Of each GPU, the sum of all its parts at every second."""
        found: dict[tuple[str, int], int] = defaultdict(int)
        for gpu, _, t0, t1, share, *_ in self.rows:
            for second in range(t0, t1):
                found[gpu, second] += share
        gpus, seconds = {row[0] for row in self.rows}, range(self.begin, self.seen_until)
        return {found[each] for each in {(gpu, second) for gpu in gpus for second in seconds} | found.keys()}


def stamp(pod: clusters.Object, of: str) -> float:
    """When it was bound, or when its container ended."""
    if of == "bound":
        (bound,) = (each for each in pod["status"]["conditions"] if each["type"] == "PodScheduled")
        text = bound["lastTransitionTime"]
    else:
        text = pod["status"]["containerStatuses"][0]["state"]["terminated"]["finishedAt"]
    return datetime.datetime.fromisoformat(text).timestamp()


async def begin_pod(scene: Scene, name: str) -> clusters.Object:
    template = clusters.pod_template(name, 1)
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name, "team": "vision"}},
           "spec": template["spec"]}
    await scene.cluster.run(pod, 1)
    return (await scene.cluster.pods(f"app={name}"))[0]


async def end_pod(scene: Scene, pod: clusters.Object) -> clusters.Object:
    """A second ago: whoever looked since saw it running."""
    before = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=1)
    now = before.strftime("%Y-%m-%dT%H:%M:%SZ")
    status = dict(pod["status"], phase="Succeeded")
    begun = status["containerStatuses"][0]["state"]["running"]["startedAt"]
    status["containerStatuses"][0]["state"] = {
        "terminated": {"exitCode": 0, "reason": "Completed", "startedAt": begun, "finishedAt": now}
    }
    status["containerStatuses"][0]["ready"] = False
    return await scene.cluster.patch(pod, {"status": status}, part="status")


async def make_budget(scene: Scene, url: str) -> None:
    await scene.cluster.create({
        "apiVersion": VERSION, "kind": "CostBudget", "metadata": {"name": scene.cluster.namespace}, "spec": {
            "scope": {"type": "namespace", "namespaces": [scene.cluster.namespace]},
            "budget": {"amount": 2, "period": "month"},
            "alerts": [{"threshold": 100, "channels": [{"type": "webhook", "config": {"url": url}}]}],
        },
    })


async def kubectl(scene: Scene, *words: str) -> str:
    program = str(build.find("kubectl"))
    ran = await asyncio.create_subprocess_exec(
        program, *words, "--kubeconfig", str(scene.cluster.kubeconfig), stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await ran.communicate()
    assert ran.returncode == 0, out.decode()
    return out.decode()


async def read_status(scene: Scene) -> dict[str, Any]:
    found = await scene.cluster.get(VERSION, "CostBudget", scene.cluster.namespace)
    status: dict[str, Any] = found.get("status") or {}
    return status


def check_whole(books: Books) -> None:
    """Every second of every GPU is booked once, and the node costs what its annotation says."""
    assert len({row[0] for row in books.rows}) == GPUS
    assert books.shares() == {1_000_000}
    assert books.cost() == NANO_A_SECOND * (books.seen_until - books.begin)


def check_span(books: Books, pod: clusters.Object, end: float) -> None:
    """It costs what its GPU does from when it was bound to its end. Who plays the kubelet here dates the binding anew,
    a little later: the books have it as the scheduler wrote it."""
    name, made = pod["metadata"]["name"], pod["metadata"]["creationTimestamp"]
    begin = min(row[2] for row in books.rows if row[6] == name)
    assert datetime.datetime.fromisoformat(made).timestamp() <= begin <= stamp(pod, "bound")
    assert books.cost(pod=name) * GPUS // NANO_A_SECOND == end - begin


@pytest.mark.accepts("cost", 5)
async def test_the_books_of_a_real_daemon_are_the_bill_of_its_node(
    cluster: clusters.Cluster, prometheus: history.PrometheusWorld, folder: pathlib.Path
) -> None:
    scene = Scene(cluster, prometheus, folder)
    accountant = await scene.prepare()
    async with loopback.serve(lambda asked: web.Response(text="ok")) as inbox:
        try:
            await make_budget(scene, f"{inbox.url}/spent")
            await check_life_and_death(scene, accountant, inbox)
        finally:
            await accountant.close()


async def test_a_database_that_is_away_stops_nothing_but_the_books(
    cluster: clusters.Cluster, prometheus: history.PrometheusWorld, folder: pathlib.Path
) -> None:
    """It starts, it is ready, it judges; the books say that they wait, and no word has the password."""
    scene = Scene(cluster, prometheus, folder)
    accountant = await scene.prepare()
    dsn = f"postgresql://fallow:hunter2@127.0.0.1:{product.free_port()}/costs"
    try:
        daemon = await accountant.start(
            "--cost", "true", "--cost-tracking-interval", "1s", "--dashboard-addr", f"127.0.0.1:{scene.api}",
            "--cost-spool", str(folder / "spool"), env={"POD_NAME": "books-0", "FALLOW_COST_DSN": dsn},
        )
        await daemon.until(daemon.is_ready)
        await daemon.until(lambda: says(daemon, "the books wait: "))
        await daemon.more_cycles(2)
        assert await daemon.is_ready()
        daemon.url = f"http://127.0.0.1:{scene.api}"
        assert (await daemon.get("/api/v1/cost/summary"))[0] == 503
        assert (await daemon.get("/api/v1/workloads"))[0] == 200
        assert "hunter2" not in daemon.log
    finally:
        await accountant.close()


class ServerScene(Scene):
    """The same with its books on a server of its own."""

    server: databases.Server

    @property
    def books(self) -> Books:
        with psycopg.connect(self.server.dsn()) as on:
            on.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            try:
                return Books(lambda sql: on.execute(sql.encode()).fetchall(), self.node)
            except psycopg.errors.UndefinedTable:  # it is being made
                return Books(None, self.node)

    async def start(self, accountant: Accountant) -> product.Daemon:
        daemon = await accountant.start(
            "--cost", "true", "--cost-tracking-interval", "1s", "--dashboard-addr", f"127.0.0.1:{self.api}",
            "--cost-api-port", str(self.allocation), "--cost-spool", str(self.folder / "spool"),
            env={"POD_NAME": "books-0", "FALLOW_COST_DSN": self.server.dsn()},
        )
        await daemon.until(daemon.is_ready)
        return daemon


@pytest.mark.accepts("cost", 6, 25)
async def test_a_database_that_stops_and_starts_again_has_the_bill_of_all_that_time(
    cluster: clusters.Cluster, prometheus: history.PrometheusWorld, folder: pathlib.Path
) -> None:
    """Pods come and go while PostgreSQL is down; what waited is written once, to the second."""
    real.need("postgresql-server")
    scene = ServerScene(cluster, prometheus, folder)
    accountant = await scene.prepare()
    with databases.postgres() as scene.server:
        try:
            await check_stop_and_start(scene, accountant)
        finally:
            await accountant.close()


async def check_stop_and_start(scene: ServerScene, accountant: Accountant) -> None:
    daemon = await scene.start(accountant)
    first = await begin_pod(scene, "first")
    await scene.until_written(daemon, stamp(first, "bound") + 2)
    await asyncio.to_thread(scene.server.stop)
    await daemon.until(lambda: says(daemon, "costs cannot be written, and wait in the spool"))
    first, second = await end_pod(scene, first), await begin_pod(scene, "second")
    await daemon.until(lambda: is_past(stamp(second, "bound") + 2))
    second, third = await end_pod(scene, second), await begin_pod(scene, "third")
    await daemon.more_cycles(1)
    assert (scene.folder / "spool").stat().st_size > 0
    await asyncio.to_thread(scene.server.start)
    await daemon.until(lambda: says(daemon, "costs are written again"))
    await scene.until_written(daemon, stamp(third, "bound") + 2)
    books = scene.books
    check_whole(books)
    for pod, end in ((first, stamp(first, "ended")), (second, stamp(second, "ended")), (third, books.seen_until)):
        check_span(books, pod, end)
    await check_report(scene, daemon)
    assert (scene.folder / "spool").stat().st_size == 0


@pytest.mark.accepts("cost", 1, 25)
async def test_no_word_of_a_tenant_stops_the_books_or_hides_what_it_holds(
    cluster: clusters.Cluster, prometheus: history.PrometheusWorld, folder: pathlib.Path
) -> None:
    """A pod that says to belong to what no database can spell, and holds its GPU by an init container alone."""
    real.need("postgresql-server")
    scene = ServerScene(cluster, prometheus, folder)
    accountant = await scene.prepare()
    with databases.postgres() as scene.server:
        try:
            daemon = await scene.start(accountant)
            first = await begin_pod(scene, "first")
            await scene.until_written(daemon, stamp(first, "bound") + 2)
            first, odd = await end_pod(scene, first), await begin_odd_pod(scene)
            await scene.until_written(daemon, stamp(odd, "bound") + 2)
            books = scene.books
            check_whole(books)
            check_span(books, odd, books.seen_until)
        finally:
            await accountant.close()


async def begin_odd_pod(scene: Scene) -> clusters.Object:
    spec = clusters.pod_template("odd", 1)["spec"]
    held = {**spec["containers"][0], "name": "first"}
    main = {key: value for key, value in spec["containers"][0].items() if key != "resources"}
    nobody = {"apiVersion": "nobody.example/v1", "kind": "K\0<b>", "name": "=1+1\0" + "x" * 900, "uid": "\0",
              "controller": True}
    marks = {names.ACK_UNTIL: "2036-01-01T00:00:00Z\0", "gpu-fraction": "1e-999999999999"}
    await scene.cluster.run({
        "apiVersion": "v1", "kind": "Pod", "spec": {**spec, "containers": [main], "initContainers": [held]},
        "metadata": {"name": "odd", "labels": {"app": "odd"}, "annotations": marks, "ownerReferences": [nobody]},
    }, 1)
    return (await scene.cluster.pods("app=odd"))[0]


async def is_past(at: float) -> bool:
    return datetime.datetime.now(datetime.UTC).timestamp() > at


async def says(daemon: product.Daemon, words: str) -> bool:
    return words in daemon.log


async def check_life_and_death(scene: Scene, accountant: Accountant, inbox: loopback.Loopback) -> None:
    daemon = await scene.start(accountant)
    first, second = await begin_pod(scene, "first"), None
    await scene.until_written(daemon, stamp(first, "bound") + 2)
    first = await end_pod(scene, first)
    second = await begin_pod(scene, "second")
    await scene.until_written(daemon, stamp(second, "bound") + 2)
    check_whole(scene.books)
    await check_report(scene, daemon)
    await check_rows(scene, daemon)
    await check_budget(scene, daemon, inbox)

    await daemon.kill()
    before = scene.books
    second = await end_pod(scene, second)  # while nobody looks
    daemon = await scene.start(accountant)
    await scene.until_written(daemon, before.seen_until + 3)
    after = scene.books
    check_whole(after)
    assert after.begin == before.begin
    for pod in (first, second):  # to the second, also of the one that ended while nobody looked
        check_span(after, pod, stamp(pod, "ended"))
    await check_report(scene, daemon)
    assert len(inbox.asked) == 1, "a restart tells nobody again"


async def check_report(scene: Scene, daemon: product.Daemon) -> None:
    """The same by namespace over the API, as OpenCost, and by SQL."""
    books = scene.books
    window = f"{books.begin},{books.seen_until}"
    report = await scene.read(daemon, f"/api/v1/cost/report?window={window}&filter=node:%22{scene.node}%22")
    rows = {row["key"][0] if isinstance(row["key"], list) else row["key"]: row["cost"] for row in report["rows"]}
    mine = books.cost(namespace=scene.cluster.namespace)
    assert rows[scene.cluster.namespace] == pytest.approx(mine / 10**9, abs=1e-9)
    found = await scene.read(
        daemon, f"/allocation?window={window}&aggregate=namespace&filter=node:%22{scene.node}%22", scene.allocation
    )
    assert found["data"][0][scene.cluster.namespace]["totalCost"] == pytest.approx(mine / 10**9, abs=1e-9)


async def check_rows(scene: Scene, daemon: product.Daemon) -> None:
    """A workload costs what its node does, wherever it is shown."""
    page = await scene.read(daemon, f"/api/v1/workloads?namespace={scene.cluster.namespace}")
    shown = {row["name"]: (row["perHour"], row["currency"], row["isList"]) for row in page["items"]}
    assert shown["quiet"] == (PER_HOUR / GPUS, "USD", False)
    assert shown["busy"] == (2 * PER_HOUR / GPUS, "USD", False)


async def check_budget(scene: Scene, daemon: product.Daemon, inbox: loopback.Loopback) -> None:
    async def is_told() -> bool:
        return bool(inbox.asked) and (await read_status(scene)).get("budgetStatus") == "exceeded"

    await daemon.until(is_told)
    said = json.loads(inbox.asked[0].body)
    assert (said["event"], said["budget"], said["amount"]) == ("fired", scene.cluster.namespace, "2")
    status = await read_status(scene)
    assert float(status["currentSpend"]) >= 2
    assert [each["alertName"] for each in status["alertsFired"]] == ["at-100"]
    table = await kubectl(scene, "get", "costbudgets", scene.cluster.namespace)
    name, amount, spend, *rest = table.splitlines()[1].split()
    assert (name, amount, "exceeded" in rest) == (scene.cluster.namespace, "2", True)
    assert float(status["currentSpend"]) <= float(spend) <= scene.books.cost(namespace=name) / 10**9
    page = await scene.read(daemon, "/api/v1/cost/budgets")
    [mine] = [each for each in page["items"] if each["budget"] == scene.cluster.namespace]
    assert (mine["status"], mine["limit"], [each["alert"] for each in mine["alerts"]]) == ("exceeded", 2.0, ["at-100"])
    assert mine["burn"][-1]["spend"] >= 2  # the ledger's own, since the period began
