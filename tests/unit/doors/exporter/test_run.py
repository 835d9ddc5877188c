"""The exporter as a whole: polls, health, a driver that comes, goes, fails and hangs, signals, restarts; in this
process and as its own."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

import msgspec
import pytest
from click.testing import CliRunner
from prometheus_client import parser
from tests.fakes.nvml import fake

from fallow import __version__
from fallow.clients import errors
from fallow.decide.node import health
from fallow.doors.cli import exporter as command
from fallow.doors.cli import main
from fallow.doors.exporter import expose, run
from fallow.model import processes
from fallow.observe.node import attribution
from fallow.settings.exporter import Options
from fallow.stories import node

DEVICE_SERIES = ("gpu_idle_device_", "gpu_idle_process_", "gpu_idle_memory_", "gpu_idle_mig_", "gpu_idle_pod_")


class Clock:
    """The real one, and what a test adds to it."""

    def __init__(self, real):
        self.ahead = 0.0
        self._real = real

    def __call__(self):
        return self._real() + self.ahead


class Script:
    """A driver that does as the test says."""

    def __init__(self):
        self.why_down = self.defect = None
        self.answers = threading.Event()
        self.answers.set()
        self.reads = self.closes = 0
        self.sm = 0

    def open(self):
        self._obey()

    def close(self):
        self.closes += 1

    def read(self):
        self.reads += 1
        self.answers.wait(30)
        self._obey()
        holder = processes.Holder(42, 1 << 30, is_compute=True)
        device = processes.Device(
            index=0, uuid="GPU-0", model="A100", is_mig=False, utilization=self.sm, memory_used=1 << 30,
            holders=[holder],
        )
        return processes.Reading("550.1", [device])

    def read_samples(self, uuid, since):
        self._obey()
        return processes.Samples([processes.Sample(42, int(time.time() * 1e6), self.sm)] if self.sm else [])

    def _obey(self):
        if self.defect:
            raise self.defect
        if self.why_down:
            raise self.why_down


class Table:
    """One process, as the kernel shows it."""

    def __init__(self, boot="boot-1"):
        self.boot = boot

    def start_of(self, pid):
        return 7

    def started_at(self, start):
        return 1.0

    def name_of(self, pid, start):
        return "python"

    def cgroup_of(self, pid, start):
        return "0::/kubepods/pod11111111-2222-3333-4444-555555555555/" + "c" * 64

    def boot_id(self):
        return self.boot

    def keep_only(self, alive):
        pass


class Stage:
    """An Exporter with a scripted driver, whose answers are taken as a scraper would."""

    def __init__(self, tmp_path, environment=None, boot="boot-1", **options):
        self.options = Options(**{
            "poll_interval": 5.0, "pod_resources_socket": str(tmp_path / "none.sock"),
            "pod_logs_dir": str(tmp_path / "none"), **options,
        })
        self.driver = Script()
        self.clock, self.monotonic = Clock(time.time), Clock(time.monotonic)
        owners = attribution.Attribution(self.options, environment or {})
        self.exporter = run.NodeExporter(self.options, self.driver, Table(boot), owners, self.clock, self.monotonic)
        self.routes = self.exporter.routes()

    def ask(self, path, accept=""):
        answer = self.routes[path].answer(accept)
        return answer.status, answer.body.decode()

    def scrape(self):
        return parse(self.ask("/metrics")[1])

    def pass_time(self, seconds):
        self.clock.ahead += seconds
        self.monotonic.ahead += seconds

    async def poll(self, times=1):
        for _ in range(times):
            await self.exporter.poll()
            self.pass_time(5)

    async def close(self):
        self.exporter.story.save()
        await self.exporter.story.close()


def parse(text):
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in parser.text_string_to_metric_families(text) for sample in family.samples
    }


def value_of(series, name, **labels):
    found = [value for (each, has), value in series.items() if each == name and labels.items() <= dict(has).items()]
    return found[0] if found else None


def device_series(series):
    return {name for name, _ in series if name.startswith(DEVICE_SERIES)}


@pytest.fixture
def stage(tmp_path):
    return Stage(tmp_path)


# ---- polls and scrapes ---------------------------------------------------------------------------------------------


async def test_two_quiet_polls_are_seen_in_the_next_scrape(stage):
    await stage.poll()
    assert value_of(stage.scrape(), "gpu_idle_process_idle_seconds") == 0
    await stage.poll()
    series = stage.scrape()
    assert value_of(
        series, "gpu_idle_process_idle_seconds", gpu="0", pid="42", process="python"
    ) == pytest.approx(5, abs=2)
    assert value_of(series, "gpu_idle_memory_total_bytes") == 1 << 30
    assert value_of(series, "gpu_idle_exporter_polls_total", result="ok") == 2
    assert value_of(series, "gpu_idle_exporter_nvml_up") == 1
    assert value_of(series, "gpu_idle_exporter_poll_duration_seconds") < 5
    assert value_of(series, "gpu_idle_process_info", pod_uid="11111111-2222-3333-4444-555555555555") == 1


async def test_a_scrape_sees_the_last_complete_poll_while_the_next_is_under_way(stage):
    await stage.poll()
    before = stage.ask("/metrics")
    stage.driver.answers.clear()
    polling = asyncio.create_task(stage.exporter.poll())
    async with asyncio.timeout(10):
        while stage.driver.reads < 2:  # noqa: ASYNC110 - another thread counts it
            await asyncio.sleep(0.005)
    assert stage.ask("/metrics") == before
    stage.driver.answers.set()
    await polling
    assert stage.ask("/metrics") != before


@pytest.mark.parametrize(
    ("late", "next_turn"),
    [(0.0, 5.0), (0.1, 5.0), (4.999, 5.0), (5.0, 10.0), (5.1, 10.0), (12.0, 15.0), (100.0, 105.0)],
)
def test_what_is_late_is_left_out(late, next_turn):
    assert run.find_next_turn(1000.0, 1000.0 + late, 5.0) == 1000.0 + next_turn


@pytest.mark.accepts("exporter", 22)
async def test_without_a_kubelet_the_seeds_series_are_the_same_and_the_sources_say_so(tmp_path):
    without, off = Stage(tmp_path), Stage(tmp_path, attribution="off")
    for each in (without, off):
        each.driver.sm = 30
        await each.poll()
    seed = {metric.name for metric in expose.METRICS[:10]}
    assert {key: value for key, value in without.scrape().items() if key[0] in seed} == {
        key: value for key, value in off.scrape().items() if key[0] in seed
    }
    assert value_of(without.scrape(), "gpu_idle_process_compute_utilization_percent") == 30
    for source in ("pod_resources", "api", "logs"):
        assert value_of(without.scrape(), "gpu_idle_exporter_attribution_up", source=source) == 0
    assert not any(name.startswith("gpu_idle_pod_gpu") for name, _ in without.scrape())
    assert value_of(off.scrape(), "gpu_idle_exporter_attribution_up") is None


async def test_a_silent_kubelet_holds_up_no_poll(tmp_path):
    path = tmp_path / "silent.sock"
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(path))
        silent.listen()
        stage = Stage(tmp_path, pod_resources_socket=str(path))
        async with asyncio.timeout(3):
            await stage.poll(3)
        assert value_of(stage.scrape(), "gpu_idle_exporter_polls_total", result="ok") == 3
        await stage.close()


# ---- health --------------------------------------------------------------------------------------------------------


async def test_before_the_first_poll_it_is_well_and_not_ready(stage):
    assert stage.ask("/healthz") == (200, "ok\n")
    assert stage.ask("/readyz") == (503, "the driver does not answer\n")
    assert value_of(stage.scrape(), "gpu_idle_exporter_nvml_up") == 0


@pytest.mark.accepts("exporter", 15)
async def test_without_a_driver_it_waits_and_when_one_comes_series_follow(stage, caplog):
    stage.driver.why_down = errors.DriverDown("there is no driver library")
    await stage.poll()
    series = stage.scrape()
    assert value_of(series, "gpu_idle_exporter_nvml_up") == 0
    assert not device_series(series)
    assert stage.ask("/healthz") == (200, "ok\n")
    assert stage.ask("/readyz")[0] == 503
    stage.pass_time(3600)
    assert stage.ask("/healthz") == (200, "ok\n")
    assert "there is no driver library" in caplog.text
    stage.driver.why_down = None
    await stage.poll()
    assert value_of(stage.scrape(), "gpu_idle_exporter_nvml_up") == 1
    assert "gpu_idle_process_memory_used_bytes" in device_series(stage.scrape())
    assert stage.ask("/readyz") == (200, "ok\n")


@pytest.mark.accepts("exporter", 14)
async def test_when_the_devices_cannot_be_counted_there_are_none_and_after_half_a_minute_it_is_unwell(stage):
    await stage.poll()
    stage.driver.why_down = errors.DriverDown("cannot count", 999)
    await stage.poll()
    series = stage.scrape()
    assert not device_series(series)
    assert value_of(series, "gpu_idle_exporter_nvml_up") == 0
    assert value_of(series, "gpu_idle_exporter_nvml_errors_total", error="Unknown") == 1
    assert stage.ask("/healthz")[0] == 200
    stage.pass_time(26)
    status, why = stage.ask("/healthz")
    assert (status, why.startswith("no poll succeeded for")) == (503, True)
    stage.driver.why_down = None
    await stage.poll()
    assert stage.ask("/healthz") == (200, "ok\n")


@pytest.mark.accepts("exporter", 27)
async def test_a_call_that_hangs_makes_it_unwell_and_what_was_said_before_is_not_told_for_ever(stage):
    await stage.poll()
    stage.driver.answers.clear()
    polling = asyncio.create_task(stage.exporter.poll())
    async with asyncio.timeout(10):
        while stage.driver.reads < 2:  # noqa: ASYNC110 - another thread counts it
            await asyncio.sleep(0.005)
    assert device_series(stage.scrape())
    assert stage.ask("/healthz")[0] == 200
    stage.pass_time(31)
    assert stage.ask("/healthz")[0] == stage.ask("/readyz")[0] == 503
    assert not device_series(stage.scrape())
    assert value_of(stage.scrape(), "gpu_idle_exporter_nvml_up") == 0
    assert value_of(stage.scrape(), "gpu_idle_exporter_polls_total", result="ok") == 1
    stage.driver.answers.set()
    await polling
    assert device_series(stage.scrape())


async def test_versions_that_do_not_match_need_a_restart(stage):
    stage.driver.why_down = errors.DriverDown("mismatch", 18)
    await stage.poll(2)  # the second is before the next attempt: no news
    status, why = stage.ask("/healthz")
    assert (status, "restart" in why) == (503, True)


async def test_a_defect_spoils_one_poll_and_not_the_loop(stage, caplog):
    stage.driver.defect = RuntimeError("a defect")
    await stage.poll()
    assert value_of(stage.scrape(), "gpu_idle_exporter_polls_total", result="error") == 1
    assert "a poll failed by a defect" in caplog.text
    stage.driver.defect = None
    await stage.poll()
    assert value_of(stage.scrape(), "gpu_idle_exporter_polls_total", result="ok") == 1


async def test_a_defect_after_good_polls_withholds_what_they_found(stage):
    await stage.poll()
    stage.driver.defect = RuntimeError("a defect")
    await stage.poll()
    assert not device_series(stage.scrape())
    assert value_of(stage.scrape(), "gpu_idle_exporter_nvml_up") == 0


async def test_a_loop_that_dies_says_so_and_tells_nothing_more_of_the_driver(tmp_path, monkeypatch, caplog):
    stage = Stage(tmp_path, state_dir=str(tmp_path))
    # it is only asked when the state is saved
    monkeypatch.setattr(stage.exporter.story._table, "boot_id", lambda: 1 // 0)
    stage.pass_time(node.SAVE_EVERY)
    looping = asyncio.create_task(run._poll(stage.exporter, is_driver_required=False))
    async with asyncio.timeout(10):
        while not stage.exporter.story.health.died:  # noqa: ASYNC110 - nothing tells us
            await asyncio.sleep(0.005)
    assert stage.ask("/healthz") == (503, "the loop ended: ZeroDivisionError\n")
    assert not device_series(stage.scrape())
    assert "the loop ended by a defect" in caplog.text
    looping.cancel()


@pytest.mark.parametrize(("interval", "patience"), [(1.0, 30.0), (5.0, 30.0), (10.0, 30.0), (60.0, 180.0)])
def test_patience_is_three_intervals_or_half_a_minute(interval, patience):
    state = health.ExporterHealth(interval)
    state.began = 0.0
    state.end(processes.Result.partial, [], 0.0)
    assert state.why_unwell(patience) == state.why_not_ready(patience) == ""
    assert state.why_unwell(patience + 1)
    assert state.why_not_ready(patience + 1)
    state.died = "KeyError"
    assert "KeyError" in state.why_unwell(0.0)


# ---- remembering ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("boot", "idle"), [("boot-1", 25.0), ("boot-2", 0.0)], ids=["same boot", "other boot"])
@pytest.mark.accepts("exporter", 23)
async def test_idle_time_goes_on_over_a_restart(tmp_path, boot, idle):
    before = Stage(tmp_path, state_dir=str(tmp_path / "state"))
    await before.poll(2)
    await before.close()
    after = Stage(tmp_path, state_dir=str(tmp_path / "state"), boot=boot)
    after.pass_time(10 + 15)
    after.exporter.story.restore()
    await after.poll()
    assert value_of(after.scrape(), "gpu_idle_process_idle_seconds") == pytest.approx(idle, abs=2)


async def test_a_state_that_cannot_be_read_or_written_is_said_and_nothing_else(tmp_path, caplog):
    (tmp_path / "state.json").write_text("{")
    damaged = Stage(tmp_path, state_dir=str(tmp_path))
    damaged.exporter.story.restore()
    assert "damaged" in caplog.text
    (tmp_path / "file").write_text("")
    unwritable = Stage(tmp_path, state_dir=str(tmp_path / "file"))
    unwritable.exporter.story.restore()
    await unwritable.poll()
    await unwritable.close()
    assert "idle times will not survive a restart" in caplog.text


async def test_who_saw_nothing_leaves_the_file_alone(tmp_path):
    before = Stage(tmp_path, state_dir=str(tmp_path))
    await before.poll(2)
    before.exporter.story.save()
    kept = (tmp_path / "state.json").read_bytes()
    blind = Stage(tmp_path, state_dir=str(tmp_path))
    blind.driver.why_down = errors.DriverDown("gone")
    blind.exporter.story.restore()
    await blind.poll()
    await blind.close()
    assert (tmp_path / "state.json").read_bytes() == kept


# ---- as a process --------------------------------------------------------------------------------------------------

PROGRAM = "from fallow.doors.cli.exporter import gpu_idle_exporter as command; command()"


def find_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def write_proc(root, *pids):
    for pid in pids:
        (root / str(pid)).mkdir(parents=True, exist_ok=True)
        (root / str(pid) / "stat").write_text(f"{pid} (py (thon) x) S {' '.join('0' for _ in range(18))} {pid}00 0 0\n")
        (root / str(pid) / "comm").write_text("python\n")
    (root / "sys/kernel/random").mkdir(parents=True, exist_ok=True)
    (root / "sys/kernel/random/boot_id").write_text("11111111-2222-3333-4444-555555555555\n")


class Program:
    """The command, with the pretend driver library beneath it."""

    def __init__(self, tmp_path, state, *arguments, **environment):
        self.state, self.port = tmp_path / "nvml.state", find_port()
        if state is not None:
            state.write(self.state)
        library = fake.library()
        write_proc(tmp_path / "proc", 42, 43)
        own = {
            "NVML_LIBRARY": str(library), "FAKE_NVML_STATE": str(self.state), "HTTP_PORT": str(self.port),
            "BIND_ADDRESS": "127.0.0.1",
            "POLL_INTERVAL": "100ms", "HOST_PROC": str(tmp_path / "proc"), "ATTRIBUTION": "off", **environment,
        }
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *arguments], env=own, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def ask(self, path):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.code, refused.read().decode()

    def until(self, is_true):
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                series = parse(self.ask("/metrics")[1])
                if is_true(series):
                    return series
            assert self.process.poll() is None, self.process.communicate()[1]
            time.sleep(0.02)
        raise AssertionError("it did not come true in time")

    def end(self, number=signal.SIGTERM):
        began = time.monotonic()
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=10)
        return self.process.returncode, time.monotonic() - began, out, err


BUSY = fake.State([fake.Device(utilization=0, processes=[fake.Process(42), fake.Process(43, sm=55)]), fake.Device()])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_polls_answers_and_ends_when_it_is_told_to(tmp_path, number):
    with Program(tmp_path, BUSY, NODE_NAME="n1", STATE_DIR=str(tmp_path / "state")) as program:
        program.until(
            lambda series: value_of(series, "gpu_idle_process_compute_utilization_percent", pid="43", node="n1") == 55
        )
        series = program.until(lambda series: (value_of(series, "gpu_idle_process_idle_seconds", pid="42") or 0) > 0)
        assert all(("node", "n1") in labels for _, labels in series)
        assert program.ask("/healthz") == program.ask("/readyz") == (200, "ok\n")
        assert program.ask("/")[0] == 404
        code, took, out, err = program.end(number)
    assert (code, out) == (0, "")
    assert took < 5
    assert "Traceback" not in err
    assert "polling every 0.1s" in err
    assert msgspec.json.decode((tmp_path / "state" / "state.json").read_bytes())["processes"]


@pytest.mark.accepts("exporter", 27)
def test_a_driver_that_hangs_keeps_neither_answers_nor_the_end(tmp_path):
    with Program(tmp_path, BUSY) as program:
        program.until(device_series)
        hanging = fake.State(BUSY.devices, delays=[fake.Delay("nvmlDeviceGetUtilizationRates", 60_000)])
        hanging.write(program.state)
        polls = []  # counted in each answer: when ten in a row are the same, the call hangs

        def stands_still(series):
            polls.append(value_of(series, "gpu_idle_exporter_polls_total", result="ok"))
            return polls[-10:] == polls[-1:] * 10

        program.until(stands_still)
        code, took, _, err = program.end()
    assert (code, took < 5) == (0, True), err


@pytest.mark.accepts("exporter", 15)
def test_a_driver_that_appears_is_found_without_a_restart(tmp_path):
    with Program(tmp_path, None) as program:
        series = program.until(lambda series: value_of(series, "gpu_idle_exporter_polls_total", result="error"))
        assert value_of(series, "gpu_idle_exporter_nvml_up") == 0
        assert not device_series(series)
        assert (program.ask("/healthz")[0], program.ask("/readyz")[0]) == (200, 503)
        BUSY.write(program.state)
        program.until(lambda series: value_of(series, "gpu_idle_process_memory_used_bytes", pid="42"))


def test_a_driver_that_is_required_and_not_there_ends_it(tmp_path):
    with Program(tmp_path, None, REQUIRE_DRIVER="true") as program:
        _, err = program.process.communicate(timeout=20)
    assert program.process.returncode == 1
    assert "REQUIRE_DRIVER: " in err


@pytest.mark.accepts("exporter", 17)
def test_a_wrong_port_ends_it_with_2_and_a_wrong_interval_is_only_said(tmp_path):
    with Program(tmp_path, BUSY, HTTP_PORT="99999") as program:
        _, err = program.process.communicate(timeout=20)
    assert (program.process.returncode, "HTTP_PORT: '99999'" in err) == (2, True)
    with Program(tmp_path, BUSY, POLL_INTERVAL="-5s") as program:
        program.until(device_series)
        assert "polling every 5s" in program.end()[3]


@pytest.mark.parametrize(
    ("environment", "says"),
    [({"WEB_CONFIG_FILE": "/nothing/there.yaml"}, "WEB_CONFIG_FILE: "),
     ({"BIND_ADDRESS": "192.0.2.1"}, "HTTP_PORT: cannot listen on 192.0.2.1")],
)
def test_what_cannot_be_served_ends_it_with_2(tmp_path, environment, says):
    with Program(tmp_path, BUSY, **environment) as program:
        _, err = program.process.communicate(timeout=20)
    assert (program.process.returncode, says in err, "Traceback" in err) == (2, True, False)


def test_once_prints_and_ends(tmp_path):
    with Program(tmp_path, BUSY, "--once", IDLE_POLLS="3", STATE_DIR=str(tmp_path / "state")) as program:
        out, err = program.process.communicate(timeout=20)
    series = parse(out)
    assert program.process.returncode == 0, err
    assert value_of(series, "gpu_idle_exporter_polls_total", result="ok") == 3
    assert value_of(series, "gpu_idle_process_idle_seconds", pid="42") >= 0.2
    assert not (tmp_path / "state").exists()


def test_once_without_a_driver_prints_what_it_has_and_fails(tmp_path):
    with Program(tmp_path, None, "--once") as program:
        out, err = program.process.communicate(timeout=20)
    assert program.process.returncode == 1
    assert value_of(parse(out), "gpu_idle_exporter_nvml_up") == 0
    assert "no answer from the driver" in err


@pytest.mark.accepts("exporter", 13)
def test_a_lost_gpu_is_gone_at_the_next_scrape_and_the_others_go_on(tmp_path):
    with Program(tmp_path, BUSY) as program:
        program.until(lambda series: value_of(series, "gpu_idle_device_info", gpu="1"))
        fake.State([fake.Device(lost=True), fake.Device()]).write(program.state)
        series = program.until(lambda series: value_of(series, "gpu_idle_device_lost", uuid=fake.uuid_of(0)))
        assert {
            name for name, labels in series if ("gpu", "0") in labels and not name.endswith("errors_total")
        } == {"gpu_idle_device_lost"}
        assert value_of(series, "gpu_idle_device_temperature_celsius", gpu="1") == 41


# ---- the command ---------------------------------------------------------------------------------------------------


def test_help_names_every_variable_and_version_the_version():
    shown = CliRunner().invoke(command.gpu_idle_exporter, ["--help"])
    assert shown.exit_code == 0
    for variable in command.environment.VARIABLES:
        assert variable.name in shown.output
    assert "--fake" not in shown.output
    assert "--fake" in CliRunner().invoke(main.fallow, ["exporter", "--help"]).output
    assert CliRunner().invoke(command.gpu_idle_exporter, ["--version"]).output == f"gpu-idle-exporter {__version__}\n"


@pytest.mark.parametrize("gpus", ["0", "65", "x"])
def test_so_many_gpus_cannot_be_pretended(gpus):
    assert CliRunner().invoke(main.fallow, ["exporter", "--fake", gpus]).exit_code == 2


def test_pretend_gpus_need_no_driver(tmp_path):
    own = {"PATH": os.environ["PATH"], "POLL_INTERVAL": "100ms", "ATTRIBUTION": "off"}
    program = "from fallow.doors.cli.main import fallow; fallow(['exporter', '--fake', '9', '--once'])"
    done = subprocess.run([sys.executable, "-c", program], env=own, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    assert {
        dict(labels)["gpu"] for name, labels in parse(done.stdout) if name == "gpu_idle_device_info"
    } == {str(n) for n in range(9)}


def test_the_exporter_loads_nothing_heavy():
    heavy = (
        "numpy", "aiohttp", "starlette", "uvicorn", "rich", "prometheus_client", "yaml", "bcrypt", "cryptography",
        "kubernetes", "re2",
    )
    program = (
        "import sys; from fallow.doors.cli import exporter; from fallow.doors.exporter import run; "
        "from fallow.clients.nvml import driver; from fallow.observe.node import attribution; "
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )
    assert subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.strip() == "[]"
