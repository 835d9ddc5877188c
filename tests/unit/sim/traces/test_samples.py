"""The traces that are shipped: as the generator makes them, small, and read without a row left out."""

import pytest

from fallow.sim.traces import openb, published, samples


def test_what_is_shipped_is_what_the_generator_makes() -> None:
    made = samples.make()
    assert {path.name: path.read_bytes() for path in samples.FOLDER.iterdir()} == made, "run the module samples"
    assert sum(map(len, made.values())) < 80_000
    assert samples.make(8)[samples.DUTY] != made[samples.DUTY]


def test_what_gpus_did_is_read_with_whose_they_are() -> None:
    trace = published.read_gentd26(samples.FOLDER / samples.DUTY)
    assert (len(trace.parts), trace.span.step, trace.span.columns) == (30, 120.0, 720)
    assert dict(trace.report.left_out) == {"missing: not known": 90, "out of order: put in place": 0,
                                           "without a duty: not known": 0}
    assert {(part.namespace, part.class_) for part in trace.parts} == {
        ("team-search", "inference"), ("team-vision", "notebook"), ("team-speech", "training"), ("team-ads", "batch"),
        ("team-maps", "notebook"),
    }


@pytest.mark.parametrize(("read", "file", "count"), [
    (openb.read_nodes, samples.NODES, 48), (openb.read_pods, samples.PODS, 300),
])
def test_nodes_and_pods_are_all_believed(read: object, file: str, count: int) -> None:
    assert callable(read)
    found, report = read(samples.FOLDER / file)
    assert (len(found), report.rows, dict(report.left_out)) == (count, count, {})
