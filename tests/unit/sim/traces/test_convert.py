"""Published traces become the same traces as ours: GenTD26 and Helios as their authors lay them out."""

import csv
import datetime
import gzip
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result
from tests.unit.sim import folder

from fallow.doors.cli import main
from fallow.sim.traces import convert, published

JOBS = "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue"
SIZES = ["date,vcA,vcB,vcC,total", "2020-05-01,16,8,0,24", "2020-05-02,24,8,0,32"]


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


def run(*words: str) -> Result:
    return CliRunner().invoke(main.fallow, ["trace", "convert", *words])


def test_gentd26_as_published_is_the_trace_that_we_read(tmp_path: Path) -> None:
    ours = folder.find(published.GENTD26)
    with gzip.open(ours, "rt", newline="") as file:
        rows = [(row["pod"], row["timestamp"], row["duty_percent"]) for row in csv.DictReader(file)]
    lines = (f"{at}.0,{duty},{pod}" for pod, at, duty in rows)
    duty, to = write(tmp_path / "duty.csv", "timestamp_anon,value,container_ip", *lines), tmp_path / "made.csv.gz"
    done = run("gentd26", str(duty), "-o", str(to))
    assert done.exit_code == 0, done.output
    assert done.output == f"written: {to}, from {len(rows)} rows\n"
    made, known = published.read_gentd26(to), published.read_gentd26(ours)
    bare = tuple(msgspec.structs.replace(part, memory=None) for part in known.parts)  # what is published has none
    assert (made.span, made.parts, dict(made.report.left_out)) == (known.span, bare, dict(known.report.left_out))
    assert (made.percents == known.percents).all()


def test_rows_without_a_container_or_a_time_are_named(tmp_path: Path) -> None:
    rows = ["1.0,5,a", "2.0,5,NULL", "soon,5,a", "nan,5,a"]
    duty = write(tmp_path / "duty.csv", "timestamp_anon,value,container_ip", *rows)
    done = run("gentd26", str(duty), "-o", str(tmp_path / "made.csv"))
    assert (tmp_path / "made.csv").read_text() == "pod,timestamp,duty_percent\na,1,5\n"
    assert "4 rows; 1 no container, 2 timestamp is no number" in done.output


def test_helios_counts_who_runs_and_who_waits_minute_by_minute(tmp_path: Path) -> None:
    jobs = write(
        tmp_path / "log.csv", JOBS,
        "1,u,vcA,8,1,1,COMPLETED,2020-04-30 23:00:00,2020-04-30 23:30:00,2020-05-01 00:02:00,1,1",
        "2,u,vcA,4,1,1,COMPLETED,2020-05-01 00:01:00,2020-05-01 00:03:00,2020-05-09 00:00:00,1,1",
        "3,u,vcB,2,1,1,CANCELLED,2020-05-01 00:00:00,,2020-05-01 00:02:00,0,0",
        "4,u,vcC,2,1,1,COMPLETED,2020-05-01 00:00:00,2020-05-01 00:00:00,2020-05-01 00:02:00,0,0",
        "5,u,vcA,x,1,1,COMPLETED,2020-05-01 00:00:00,2020-05-01 00:00:00,2020-05-01 00:02:00,0,0",
    )
    report = published.TraceReport()
    lines = list(convert.helios(jobs, write(tmp_path / "n.csv", *SIZES), datetime.date(2020, 5, 1), 2, report))
    assert lines[:6] == [
        "vc,time,total_gpu,running_gpu,pending_gpu", "vcA,2020-05-01 00:00:00,16,8,0", "vcA,2020-05-01 00:01:00,16,8,4",
        "vcA,2020-05-01 00:02:00,16,0,4", "vcA,2020-05-01 00:03:00,16,4,0", "vcA,2020-05-01 00:04:00,16,4,0",
    ]
    assert lines[2880:2883] == [
        "vcA,2020-05-02 23:59:00,24,4,0", "vcB,2020-05-01 00:00:00,8,0,2", "vcB,2020-05-01 00:01:00,8,0,2"
    ]
    assert (len(lines), dict(report.left_out)) == (1 + 2 * 2880, {"GPUs are no whole number": 1})
    demands, read = published.read_helios(write(tmp_path / "made.csv", *lines))
    assert [(one.name, one.total, one.wanted[:4].tolist()) for one in demands] == [
        ("vcA", 24, [8, 12, 4, 4]), ("vcB", 8, [2, 2, 0, 0])
    ]
    assert not any(read.left_out.values())


@pytest.mark.parametrize(("words", "why"), [
    (["gentd26", "{duty}", "-o", "{duty}"], "is there already"),
    (["gentd26", "{duty}", "-o", "/no/such/folder/x.csv"], "cannot be written: No such file"),
    (["gentd26", "{sizes}", "-o", "{new}"], "has no column 'container_ip'"),
    (["gentd26", "/no/such.csv", "-o", "{new}"], "cannot be read: No such file"),
    (["helios", "{log}", "{sizes}", "--start", "2020-05-02", "-o", "{new}"], "tells of 1 of the 31 days"),
    (["helios", "{log}", "{sizes}", "--start", "May", "-o", "{new}"], "--start"),
])
def test_what_cannot_be_converted_is_said_and_leaves_nothing(tmp_path: Path, words: list[str], why: str) -> None:
    files = {
        "duty": write(tmp_path / "duty.csv", "timestamp_anon,value,container_ip", "1,5,a"),
        "sizes": write(tmp_path / "n.csv", *SIZES), "log": write(tmp_path / "log.csv", JOBS),
        "new": tmp_path / "new.csv",
    }
    done = run(*(word.format_map(files) for word in words))
    assert done.exit_code == 2
    assert why in done.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["duty.csv", "log.csv", "n.csv"]
