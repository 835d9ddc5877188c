"""`fallow cost` and what belongs to it, over a real ledger and a real daemon: what is printed adds up, machines get
their answer alone, and what is wrong is one sentence with a code."""

import asyncio
import contextlib
import csv
import fcntl
import io
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests import ROOT, cost_scenes, documents
from tests.builders import NOW
from tests.cost_scenes import TODAY, YESTERDAY
from tests.unit.doors.api.serving import serving
from tests.unit.doors.api.test_reads import MANDATE, make_world

from fallow import __version__
from fallow.account import saving_books
from fallow.doors.answers import cost_hours
from fallow.doors.answers.cost_books import CostBooks
from fallow.doors.cli import cost_source, main
from fallow.model.cost import DAY, UNIT, SpendState
from fallow.model.units import rfc3339

FROM, TO = ("--from", rfc3339(YESTERDAY)), ("--to", rfc3339(TODAY))
CLEAN = dict.fromkeys(("KUBECONFIG", "PROMETHEUS_URL", "POD_NAMESPACE", "FALLOW_DAEMON_URL"), "")


def run(*words: str, program: Any = None, **environ: str) -> Result:
    made = CliRunner(env={**CLEAN, "HOME": "/nonexistent", **environ}).invoke(program or main.fallow, words)
    assert made.exception is None or isinstance(made.exception, SystemExit), made.output
    return made


async def run_beside(*words: str, **environ: str) -> Result:
    return await asyncio.to_thread(run, *words, **environ)


@pytest.fixture
async def store(tmp_path: Path, monkeypatch) -> str:
    """The day of docs/cost-model.md, and the same a week before; as if it were the day after."""
    monkeypatch.setattr(cost_source.time, "time", lambda: float(TODAY))
    path = tmp_path / "ledger.sqlite"
    some = [*cost_scenes.example(), *cost_scenes.example(YESTERDAY - 8 * DAY)]
    async with cost_scenes.opened(some, path):
        pass
    return str(path)


# ---- reports ---------------------------------------------------------------------------------------------------------


@pytest.mark.accepts("cost", 23)
def test_json_stands_alone_and_its_rows_come_to_its_total(store):
    done = run("cost", "report", "--format", "json", *FROM, *TO, "--cost-store", store)
    page = json.loads(done.stdout, parse_float=Decimal)
    assert (done.exit_code, done.stderr) == (0, "")
    assert sum(row["cost"] for row in page["rows"]) + page["platform"]["cost"] + page["rest"] == page["total"]
    assert set(page) >= {"window", "currency", "basis", "rows", "platform", "total", "unpricedGpuHours", "stalePrices"}
    assert page["total"] == Decimal("786.48")


@pytest.mark.accepts("cost", 23)
def test_a_longer_time_costs_more_and_another_namespace_is_another(store):
    def total(*words: str) -> Decimal:
        done = run("cost", "--format", "json", "--cost-store", store, *words)
        return json.loads(done.stdout, parse_float=Decimal)["total"]

    assert total("--namespace", "red", "--last", "7d") == Decimal("163.85")
    assert total("--namespace", "red", "--last", "14d") == Decimal("327.70")
    assert total("--namespace", "red", "--last", "14h") != total("--namespace", "red", "--last", "1d")
    assert total("--team", "blue", "--last", "1d") == Decimal("98.31")
    assert total("--namespace", "nobody") == 0


@pytest.mark.accepts("cost", 23)
async def test_a_week_differs_from_a_day_of_the_same_namespace(tmp_path, monkeypatch):
    monkeypatch.setattr(cost_source.time, "time", lambda: float(TODAY))
    path, of = tmp_path / "ledger.sqlite", cost_scenes.key("x", "y")
    async with cost_scenes.opened(cost_scenes.held("GPU-0", TODAY - 5 * DAY, TODAY, of, rate=UNIT), path):
        pass
    for last, said in (("7d", "120.00"), ("1d", "24.00"), ("90m", "1.50")):
        asked = ("--namespace", "x", "--last", last, "--format", "json", "--cost-store", str(path))
        done = await run_beside("cost", *asked)
        assert json.loads(done.stdout, parse_float=Decimal)["total"] == Decimal(said)


def test_who_names_a_prometheus_hears_the_same_for_the_books_need_none(store):
    named = ("--prometheus-url", "http://127.0.0.1:9")
    for words in (("cost", "--last", "7d"), ("cost", "report", "--last", "7d"), ("cost", "roi"), ("cost", "prices")):
        plain = run(*words, "--cost-store", store)
        for program in (main.fallow, main.gpu_autoscaler):
            done = run(*words, *named, "--cost-store", store, program=program)
            assert (done.exit_code, done.output) == (0, plain.output)
        assert run(*words, "--cost-store", store, PROMETHEUS_URL=named[1]).output == plain.output
    assert run("cost", *named, "roi", "--cost-store", store).exit_code == 0  # and wherever it stands
    wrong = run("cost", "--prometheus-url", "banana", "--cost-store", store)
    assert (wrong.exit_code, "'banana' is not an address" in wrong.stderr) == (2, True)


@pytest.mark.parametrize("command", ["budget", "override", "lift", "export"])
def test_every_command_about_costs_takes_a_prometheus(command):
    done = run("cost", command, "--prometheus-url", "http://127.0.0.1:9", "--help")
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize("form", ["table", "detailed"])
def test_printed_rows_come_to_the_printed_total(store, form):
    done = run("cost", "--last", "1d", "--format", form, "--cost-store", store)
    rows = {line.split()[0]: line.split() for line in done.output.splitlines() if line[:1] in "rbg(T" and line}
    costs = {name: Decimal(rows[name][2].replace(",", "")) for name in ("red", "blue", "green", "(platform)", "TOTAL")}
    total = costs.pop("TOTAL")
    assert sum(costs.values()) == total == Decimal("786.48")
    heads = next(line.split() for line in done.output.splitlines() if line.startswith("NAMESPACE "))
    assert heads == ["NAMESPACE", "GPU_HOURS", "COST", "USED", "IDLE", "HELD_IDLE", "UNPRICED"]


def test_the_summary_says_where_the_money_went(store):
    done = run("cost", "--last", "1d", "--cost-store", store, "--roi")
    assert done.exit_code == 0, done.output
    assert "COST       786.48 USD for 192.0 GPU-hours" in done.output
    assert "used 108.14; held, not used 63.90; held idle 65.54; cannot tell 98.31; nobody held it 450.59" in done.output
    assert "IDLE MOST  red paid most for GPUs that did nothing: 65.54 of its 163.85\n" in done.output
    one = run("cost", "--last", "1d", "--cost-store", store, "-n", "red").output
    assert "HELD IDLE  65.54 of these 163.85 were paid for GPUs that did nothing\n" in one
    assert "(platform)" not in one  # who asks for one does not hear that the rest is 0
    assert "ROI        no ratio: we cost nothing" in done.output
    week = run("cost", "--last", "7d", "--cost-store", store).output
    assert "BY DAY     " in week
    assert "on the time before" not in week  # for part of which no books were kept


def test_days_before_the_books_are_a_gap_and_since_when_books_are_kept_is_said(store):
    """What was before is drawn as not known, and not as nothing."""
    [drawn] = [line for line in run("cost", "--last", "30d", "--cost-store", store).output.splitlines()
               if line.startswith("BY DAY")]
    assert re.match(r"BY DAY     ·+[▁▂▃▄▅▆▇█]+  most on one day: ", drawn), drawn
    since = r"; books are kept since 2026-11-\d\d 00:00 UTC, of the days before nothing is known$"
    assert re.search(since, drawn), drawn


def test_a_report_by_anything_as_table_and_csv(store):
    table = run("cost", "report", *FROM, *TO, "--by", "team,model", "--cost-store", store)
    heads = next(line.split() for line in table.output.splitlines() if line.startswith("KEY"))
    assert heads == ["KEY", "GPU_HOURS", "COST", "SHARE%", "USE%", "ALLOCATED_UNUSED", "HELD_IDLE", "KWH"]
    assert "red/A100-40GB" in table.output
    done = run("cost", "report", *FROM, *TO, "--basis", "use", "--format", "csv", "--cost-store", store)
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    total = Decimal(rows.pop()["COST"])
    assert sum(Decimal(row["COST"]) for row in rows) == total == Decimal("786.48")
    assert rows[-1]["KEY"] == "(not used)"


def test_what_energy_costs_is_a_column_beside_money_and_in_it_only_if_asked_for(store):
    words = ("cost", "report", *FROM, *TO, "--cost-store", store, "--cost-energy-price-per-kwh", "0.5")
    table = run(*words, "--cost-energy-gco2-per-kwh", "400").output
    assert next(line.split() for line in table.splitlines() if line.startswith("KEY"))[-2:] == ["ENERGY_COST", "CO2_KG"]
    assert next(line.split() for line in table.splitlines() if line.startswith("blue"))[-2:] == ["3.00", "2.40"]
    assert next(line.split() for line in table.splitlines() if line.startswith("TOTAL"))[2] == "786.48"
    charged = run(*words, "--cost-energy-include-in-cost", "true").output
    assert "with what energy cost" in charged
    assert next(line.split() for line in charged.splitlines() if line.startswith("TOTAL"))[2] == "789.48"
    rows = list(csv.DictReader(io.StringIO(run(*words, "--format", "csv").stdout)))
    assert [(row["KEY"], row["ENERGY_COST"], row["CO2_KG"]) for row in rows if row["KEY"] in ("blue", "TOTAL")] == [
        ("blue", "3.0", ""), ("TOTAL", "3.0", ""),
    ]
    asked = run("cost", "report", "--cost-energy-price-per-kwh", "0.5", "--daemon-url", "http://127.0.0.1:1")
    assert (asked.exit_code, "they go with --cost-store" in asked.output) == (2, True)


def test_a_label_that_is_a_formula_is_text_in_a_spreadsheet_and_obeyed_by_no_terminal(tmp_path, monkeypatch):
    monkeypatch.setattr(cost_source.time, "time", lambda: float(TODAY))

    async def fill() -> None:
        odd = cost_scenes.key("red", "x", team="=cmd|'/c calc'!A0\x1b[31m")
        async with cost_scenes.opened(cost_scenes.held("GPU-0", YESTERDAY, TODAY, odd), tmp_path / "l.sqlite"):
            pass

    asyncio.run(fill())
    store = ("--cost-store", str(tmp_path / "l.sqlite"), "--by", "team")
    rows = list(csv.DictReader(io.StringIO(run("cost", "report", "--format", "csv", *store).stdout)))
    assert rows[0]["KEY"].startswith("'=cmd|")
    assert "\x1b" not in run("cost", "report", *store).output


async def test_roi_is_told_with_its_method(tmp_path, monkeypatch):
    from tests.unit.account import test_counterfactuals as scene

    monkeypatch.setattr(cost_source.time, "time", lambda: float(TODAY))
    some = [*scene.before(), *cost_scenes.held("GPU-0", scene.AT, TODAY, scene.BLUE), *scene.elsewhere()]
    async with cost_scenes.opened(some, tmp_path / "l.sqlite") as ledger:
        await ledger.write(await saving_books.find_savings(
            ledger, [scene.pause()], YESTERDAY, TODAY, lambda key, at: None), 1)
    words = ("cost", "roi", "--last", "30d", "--cost-store", str(tmp_path / "l.sqlite"))
    done = await run_beside(*words, "--cost-roi-monthly-investment", "10")
    [waste] = [line.split() for line in done.output.splitlines() if line.startswith("waste")]
    assert waste[:5] == ["waste", "16.38", "0.00", "16.38", "100.0%"]
    assert "ROI        +64%: 16.38 saved against 10.00 that we cost" in done.output
    page = json.loads((await run_beside(*words, "--format", "json")).stdout)
    assert page["lines"][0]["method"].startswith("share x price")
    assert page["roi"]["ratio"] is None


def test_prices_say_where_they_are_from(store):
    done = run("cost", "prices", "--cost-store", store)
    assert "p4d.24xlarge  us-east-1  on-demand  32.77" in done.output
    assert "list price" in done.output


PAGES = (ROOT / "docs" / "operators" / "cost.md", ROOT / "README.md")
COMMANDS = [
    command for page in PAGES for block in documents.blocks(page) for command in block.commands
    if command.words[0] in documents.OURS and (page.name == "cost.md" or command.words[1] == "cost")
]


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_every_command_of_the_page_answers(store, command):
    program, *words = command.words
    program_of = {"fallow": main.fallow, "gpu-autoscaler": main.gpu_autoscaler}
    done = run(*words, "--cost-store", store, program=program_of[program])
    assert done.exit_code == 0, done.output
    assert done.stdout


@pytest.mark.accepts("cost", 1)
async def test_ten_hours_of_a_dollar_are_ten_dollars_everywhere(tmp_path):
    begin = YESTERDAY + 1800
    pod = cost_scenes.held("GPU-0", begin, begin + 10 * 3600, cost_scenes.key("ml", "x"), rate=UNIT)
    path = tmp_path / "l.sqlite"
    async with cost_scenes.opened(pod, path, roll=TODAY) as ledger, serving(
        make_world(), MANDATE, books=CostBooks(ledger=ledger)
    ) as client:
        window = f"{YESTERDAY},{TODAY}"
        page = await client.get(f"/api/v1/cost/report?window={window}")
        [found] = (await client.get(f"/allocation?window={window}&aggregate=namespace"))["data"]
        steps = (await client.get(f"/allocation?window={window}&aggregate=namespace&step=7h"))["data"]
    assert (page["total"], found["ml"]["totalCost"], found["ml"]["gpuHours"]) == (10.0, 10.0, 10.0)
    assert sum(Decimal(str(one["totalCost"])) for each in steps for one in each.values()) == 10  # acceptance 4
    given = (*FROM, *TO, "--cost-store", str(path))
    for form, column in (("csv", "cost"), ("focus", "BilledCost")):
        done = await run_beside("cost", "export", "--format", form, *given)
        assert sum(Decimal(row[column]) for row in csv.DictReader(io.StringIO(done.stdout))) == 10
    [total] = [line for line in (await run_beside("cost", "report", *given)).output.splitlines() if line[:5] == "TOTAL"]
    assert total.split()[1:3] == ["10.0", "10.00"]


@pytest.mark.parametrize(("words", "columns"), [
    ("cost report --by team,model", 80), ("cost report --basis use", 80), ("cost prices", 80), ("cost roi", 80),
    ("cost", 80), ("cost --format detailed", 80), ("cost report", 40), ("cost", 40),
])
def test_a_page_fits_its_terminal(store, words, columns):
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environ = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "TERM": "xterm-256color", "COLUMNS": str(columns),
               "PYTHONIOENCODING": "utf-8"}
    call = "from fallow.doors.cli import enter; enter.fallow()"
    process = subprocess.Popen([sys.executable, "-c", call, *words.split(), "--cost-store", store], stdout=follower,
                               stderr=follower, env=environ)
    os.close(follower)
    said = b""
    with contextlib.suppress(OSError):  # Linux says so when the other end is closed
        while more := os.read(leader, 65536):
            said += more
    os.close(leader)
    assert process.wait(60) == 0, said.decode()
    lines = re.sub(r"\x1b\[[0-9;]*m", "", said.decode()).splitlines()
    assert [line for line in lines if len(line) > columns and store not in line] == []


# ---- who answers -----------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def daemon(intervals: Any = None):
    some = cost_scenes.example() if intervals is None else intervals
    async with cost_scenes.opened(some) as ledger, serving(
        make_world(), MANDATE, books=CostBooks(ledger=ledger)
    ) as client:
        yield client


async def test_a_daemon_answers_as_the_ledger_does(store):
    async with daemon() as client:
        words = ("cost", "report", "--format", "json", *FROM, *TO)
        heard = await run_beside(*words, "--daemon-url", client.url)
        shown = await run_beside("cost", "--last", "2d", "--daemon-url", client.url)
        prices = await run_beside("cost", "prices", "--format", "json", "--daemon-url", client.url)
        roi = await run_beside("cost", "roi", FALLOW_DAEMON_URL=client.url)
        read = json.loads((await run_beside(*words, "--cost-store", store)).stdout)
    told = json.loads(heard.stdout)
    assert {**told, "stalePrices": []} == {**read, "stalePrices": []}
    assert shown.output.startswith(f"As the daemon at {client.url} saw it")
    assert json.loads(prices.stdout)["items"][0]["priceId"] == "p4d"
    assert "Nothing was saved" in roi.output


async def test_a_daemon_without_books_is_no_source():
    async with serving(make_world(), MANDATE) as client:
        done = await run_beside("cost", "--daemon-url", client.url)
    assert done.exit_code == 4
    assert "answers: costs are not kept here: start fallow with --cost true" in done.output
    assert "--cost-store" in done.output


@pytest.mark.parametrize(("words", "code", "says"), [
    (("cost",), 4, "Name a daemon that keeps books"),
    (("cost", "--cost-store", "/nowhere/ledger"), 4, "there is no ledger at /nowhere/ledger"),
    (("cost", "--daemon-url", "http://127.0.0.1:1"), 4, "does not answer"),
    (("cost", "--last", "7"), 2, "--last: '7' is no window"), (("cost", "--last", "banana"), 2, "is no window"),
    (("cost", "roi", "--last", "today"), 2, "--last: 'today' is no window such as 30m, 12h, 7d or 2w"),
    (("cost", "--last", "0d"), 2, "no length"), (("cost", "--format", "xml"), 2, "'xml' is not one of"),
    (("cost", "--daemon-url", "nonsense"), 2, "is no address"), (("cost", "banana"), 2, "banana"),
    (("cost", "--namespace", "red", "report"), 2, "options of `cost report` stand behind it"),
    (("cost", "report", "--by", "wheel"), 2, "--by: 'wheel' is nothing to group by"),
    (("cost", "report", "--to", "2026-11-01"), 2, "--to goes with --from"),
    (("cost", "report", "--from", "2026-11-02", "--to", "2026-11-01"), 2, "ends before it begins"),
    (("cost", "report", "--from", "2026-11-01", "--last", "3d"), 2, "say either --last, or --from and --to"),
    (("cost", "report", "--basis", "mood"), 2, "'mood' is not one of"),
    (("cost", "roi", "--cost-store", "x", "--cost-roi-monthly-investment", "much"), 2, "is no amount"),
    (("cost", "export", "--format", "parquet"), 2, "cannot go to standard output"),
    (("cost", "export", "--out", "/nowhere/x.csv", "--cost-store", "/x"), 2, "cannot be written"),
    (("cost", "export", "--out", "/tmp", "--cost-store", "/x"), 2, "/tmp cannot be written: Is a directory"),
])
def test_what_is_wrong_is_one_sentence_with_its_code(words, code, says):
    done = run(*words)
    assert done.exit_code == code, done.output
    [sentence] = [line for line in done.output.splitlines() if line.startswith("Error:")]
    assert says in sentence


def test_no_password_of_a_dsn_is_shown():
    done = run("cost", "--cost-store", "postgresql://fallow:s3cret@127.0.0.1:1/costs")
    assert done.exit_code == 4, done.output
    assert "s3cret" not in done.output


def test_a_ledger_is_only_read(store):
    before = Path(store).read_bytes()
    assert run("cost", "--cost-store", store).exit_code == 0
    assert Path(store).read_bytes() == before


# ---- exports ---------------------------------------------------------------------------------------------------------


def test_an_export_has_every_hour_and_comes_to_the_total(store, tmp_path):
    out = tmp_path / "costs.csv"
    done = run("cost", "export", *FROM, *TO, "--out", str(out), "--cost-store", store)
    rows = list(csv.DictReader(io.StringIO(out.read_text())))
    assert done.exit_code == 0, done.output
    assert sum(Decimal(row["cost"]) for row in rows) == Decimal("786.48")
    assert {row["bucket"] for row in rows} == {rfc3339(YESTERDAY + 3600 * hour) for hour in range(24)}
    assert {row["state"] for row in rows} == {str(state) for state in SpendState}
    assert f"{len(rows):,} rows of 1d are in" in done.output
    assert set(rows[0]) >= {"bucket", "cluster", "namespace", "owner_kind", "owner_name", "node", "gpu_model",
                            "capacity_type", "sharing_mode", "workload_type", "team", "labels", "state", "cost"}


NAMED = (  # as docs/spec/cost.md names them
    "BilledCost EffectiveCost ListCost ContractedCost BillingCurrency BillingAccountId BillingAccountName "
    "BillingPeriodStart BillingPeriodEnd ChargePeriodStart ChargePeriodEnd ChargeCategory ChargeClass "
    "ChargeDescription ChargeFrequency ConsumedQuantity ConsumedUnit PricingQuantity PricingUnit PricingCategory "
    "ProviderName PublisherName InvoiceIssuerName ServiceCategory ServiceName RegionId ResourceId ResourceName "
    "ResourceType SkuId SubAccountId Tags"
)


def test_focus_has_its_columns_and_the_same_money(store, tmp_path):
    out = tmp_path / "focus.csv"
    done = run("cost", "export", "--format", "focus", *FROM, *TO, "--out", str(out), "--cost-store", store)
    rows = list(csv.DictReader(io.StringIO(out.read_text())))
    assert done.exit_code == 0, done.output
    columns = list(rows[0])
    assert [name for name in columns if not name.startswith("x_")] == NAMED.split()
    assert tuple(columns) == cost_hours.FOCUS
    assert sum(Decimal(row["BilledCost"]) for row in rows) == Decimal("786.48")
    for row in rows:
        parts = ("UsedCost", "AllocatedUnusedCost", "HeldIdleCost", "UseUnknownCost", "UnallocatedCost")
        assert sum(Decimal(row[f"x_{part}"]) for part in parts) == Decimal(row["BilledCost"])
        same = {row[name] for name in ("BilledCost", "EffectiveCost", "ContractedCost", "ListCost")}
        assert (same, row["x_IsListCostKnown"]) == ({row["BilledCost"]}, "false")  # a ledger keeps no list prices
        assert (row["ChargeCategory"], row["PricingUnit"], row["PricingCategory"]) == ("Usage", "GPU-Hours", "Standard")
        assert (row["BillingPeriodStart"], row["BillingPeriodEnd"]) == ("2026-11-01T00:00:00Z", "2026-12-01T00:00:00Z")
    [red] = [row for row in rows if row["SubAccountId"] == "red" and row["ChargePeriodStart"] == rfc3339(YESTERDAY)]
    assert (red["ResourceId"], red["ConsumedQuantity"]) == ("main/red/Deployment/train", "4")
    assert json.loads(red["Tags"]) == {"app": "x", "team": "red"}


def test_what_is_no_file_is_written_to_and_stays_what_it_is(store, tmp_path):
    """As root, `--out /dev/null` would else take it from everybody."""
    pipe, link = tmp_path / "pipe", tmp_path / "link.csv"
    os.mkfifo(pipe)
    end = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)  # so that nobody waits for the other
    done = run("cost", "export", *FROM, *TO, "--out", str(pipe), "--cost-store", store)
    said = os.read(end, 1000).decode()
    os.close(end)
    assert (done.exit_code, pipe.is_fifo(), said.startswith("bucket,bucket_end")) == (0, True, True), done.output
    link.symlink_to("kept.csv")
    assert run("cost", "export", *FROM, *TO, "--out", str(link), "--cost-store", store).exit_code == 0
    assert link.is_symlink()
    assert (tmp_path / "kept.csv").read_text().startswith("bucket")
    assert sorted(each.name for each in tmp_path.iterdir() if "csv" in each.name) == ["kept.csv", "link.csv"]


def test_json_is_a_list_and_parquet_is_read_back(store, tmp_path):
    found = json.loads(run("cost", "export", "--format", "json", *FROM, *TO, "--cost-store", store).stdout)
    assert sum(Decimal(row["cost"]) for row in found) == Decimal("786.48")
    duckdb = pytest.importorskip("duckdb")
    out = tmp_path / "it's.parquet"
    done = run("cost", "export", "--format", "parquet", *FROM, *TO, "--out", str(out), "--cost-store", store)
    assert done.exit_code == 0, done.output
    on = duckdb.connect()
    [(total, count, first)] = on.execute("SELECT sum(cost), count(*), min(bucket) FROM read_parquet(?)",
                                         [str(out)]).fetchall()
    on.close()
    assert (total, count, int(first.timestamp()) % 3600) == (Decimal("786.48"), len(found), 0)


def test_without_duckdb_a_sentence_says_what_helps(store, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "duckdb", None)
    done = run("cost", "export", "--format", "parquet", "--out", str(tmp_path / "x"), "--cost-store", store)
    assert (done.exit_code, "fallow[export]" in done.output) == (1, True)
    assert list(tmp_path.glob("*x")) == []


def test_where_there_are_no_books_nothing_of_an_export_is_written():
    done = run("cost", "export", "--cost-store", "/nowhere/ledger")
    assert (done.exit_code, done.stdout) == (4, "")


def test_of_whom_nothing_is_booked_no_sum_is_shown(store):
    done = run("cost", "--last", "7d", "-n", "nobody", "--cost-store", store)
    assert done.exit_code == 0, done.output
    assert "UTC, namespace nobody. To see what there is: fallow cost report" in " ".join(done.output.split())
    assert "0.00" not in done.output


def test_a_file_that_is_there_stays_where_the_export_fails(tmp_path):
    out = tmp_path / "costs.csv"
    out.write_text("of yesterday")
    assert run("cost", "export", "--out", str(out), "--cost-store", "/nowhere/x").exit_code == 4
    assert out.read_text() == "of yesterday"
    assert [path.name for path in tmp_path.iterdir()] == ["costs.csv"]


async def test_an_export_through_a_daemon_is_the_same(store, tmp_path):
    words = ("cost", "export", *FROM, *TO)
    async with daemon() as client:
        heard = await run_beside(*words, "--daemon-url", client.url)
        read = await run_beside(*words, "--cost-store", store)
    assert heard.stdout == read.stdout


# ---- report, version, gpu-autoscaler ---------------------------------------------------------------------------------


async def test_a_report_names_what_is_wasted_and_what_it_costs():
    small = cost_scenes.held("GPU-9", int(NOW) - 3600 * 5, int(NOW), cost_scenes.key("web", "small"), use=0.05)
    async with daemon([*small]) as client:
        done = await run_beside("report", "--daemon-url", client.url)
        page = json.loads((await run_beside("report", "--format", "json", "--daemon-url", client.url)).stdout)["waste"]
    assert done.exit_code == 0, done.output
    kinds = {line["name"]: line["kindOfWaste"] for line in page["lines"]}
    assert (kinds["quiet"], kinds["small"]) == ("idle", "smallUse")
    assert page["wasted"] == pytest.approx(5 * 4.09625 * 0.95, abs=0.01)
    assert "Idle GPUs cost" in done.output
    assert "these workloads did not use 19.46 USD of the last 7d" in done.output


async def test_the_report_is_complete_with_books_and_without():
    async with daemon() as client:
        done = await run_beside("report", "--daemon-url", client.url)
        page = json.loads((await run_beside("report", "--format", "json", "--daemon-url", client.url)).stdout)
        flat = (await run_beside("report", "--format", "csv", "--daemon-url", client.url)).stdout
    assert done.exit_code == 0, done.output
    for heading in ("GPU REPORT", "WASTE", "COST OF 7d", "SAVINGS OF 7d", "ROI"):
        assert heading in done.output
    assert (page["cost"]["total"], page["costProblem"]) == (786.48, None)
    assert "cost,total,cost,786.48" in flat
    async with serving(make_world(), MANDATE) as client:
        done = await run_beside("report", "--daemon-url", client.url)
    assert done.exit_code == 0
    assert "costs are not kept here" in " ".join(done.output.split())


@pytest.mark.parametrize("program", [main.fallow, main.gpu_autoscaler])
def test_version_says_more_than_one(program):
    assert run("version", program=program).output.startswith(f"fallow {__version__} (Python 3.")
    told = json.loads(run("version", "-o", "json", program=program).stdout)
    assert (told["version"], told["apiVersion"]) == (__version__, "gpuautoscaler.io/v1alpha1")


@pytest.mark.parametrize("words", [
    "status", "optimize", "cost --namespace ml-team --last 7d", "cost report --format table",
    "cost report --format json", "cost roi --last 30d", "report", "version",
])
def test_gpu_autoscaler_has_the_commands_of_its_document(words):
    done = run(*words.split(), "--help", program=main.gpu_autoscaler)
    assert done.exit_code == 0, done.output
    assert done.output.startswith("Usage:")


def test_gpu_autoscaler_has_nothing_else_and_says_what_is_meant():
    done = run("cots", program=main.gpu_autoscaler)
    assert (done.exit_code, "there is no command 'cots'" in done.output) == (2, True)
    assert run("prune", program=main.gpu_autoscaler).exit_code == 2
