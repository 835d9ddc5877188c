"""Metrics as Prometheus reads them."""


from prometheus_client import parser

from fallow import telemetry

FORGED = 'llm\n2026-01-01T00:00:00Z ERROR fallow: forged\r\x1b[31m\u2028\x85{"level":"error"}'


def samples(metrics: telemetry.Telemetry) -> dict[tuple[str, ...], float]:
    """Read back, by name and label values in the order they are written."""
    families = parser.text_string_to_metric_families(metrics.text().decode())
    return {(sample.name, *sample.labels.values()): sample.value for family in families for sample in family.samples}


def test_what_has_no_labels_is_there_from_the_first_scrape():
    found = {name for name, *_ in samples(telemetry.Telemetry())}
    for metric in telemetry.METRICS:
        if not metric.labels and not metric.is_late:
            assert (f"{metric.name}_count" if metric.type == "histogram" else metric.name) in found, metric.name


def test_the_process_tells_of_itself():
    found = samples(telemetry.Telemetry())
    assert found[("process_resident_memory_bytes",)] > 1e6
    assert found[("process_open_fds",)] > 2
    assert found[("process_cpu_seconds_total",)] > 0
    assert found[("process_start_time_seconds",)] > 1.6e9


def test_names_and_types_are_those_of_the_table():
    metrics = telemetry.Telemetry()
    for metric in telemetry.METRICS:
        if metric.is_late:
            assert f"{metric.name} " not in metrics.text().decode()  # not known is not 0
            metrics.set(metric.name, 1)
    text = metrics.text().decode()
    for metric in telemetry.METRICS:
        assert f"# TYPE {metric.name} {metric.type}\n" in text
        assert metric.name.endswith("_total") == (metric.type == "counter")


def test_a_gauge_that_is_replaced_forgets_what_is_gone():
    metrics = telemetry.Telemetry()
    metrics.replace("fallow_idle_paused_workloads", {("Deployment",): 2, ("Job",): 1})
    metrics.replace("fallow_idle_paused_workloads", {("Job",): 3})
    assert {key[1:]: value for key, value in samples(metrics).items() if key[0] == "fallow_idle_paused_workloads"} == {
        ("Job",): 3
    }


def test_workloads_past_the_bound_share_one_series(monkeypatch):
    monkeypatch.setattr(telemetry, "MOST_WORKLOAD_SERIES", 2)
    metrics = telemetry.Telemetry()
    for name in ("a", "b", "c", "d", "a"):
        metrics.add_for_workload("gpu_pruner_scales_total", 1, ("Deployment", "ml", name))
    found = {key[1:]: value for key, value in samples(metrics).items() if key[0] == "gpu_pruner_scales_total"}
    assert found == {("Deployment", "a", "ml"): 2, ("Deployment", "b", "ml"): 1, ("_other", "_other", "_other"): 2}


def test_a_label_cannot_forge_a_sample():
    metrics = telemetry.Telemetry()
    metrics.add_for_workload("gpu_pruner_scales_total", 1, ("Deployment", "ml", 'x"} 5\ngpu_pruner_idle_gpus 99\n'))
    assert samples(metrics)[("gpu_pruner_idle_gpus",)] == 0


def test_what_is_costly_is_written_when_somebody_asks():
    metrics = telemetry.Telemetry()
    asked = []
    metrics.before_scrape(lambda: asked.append(1))
    assert asked == []
    metrics.text()
    assert asked == [1]
