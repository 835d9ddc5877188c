"""The exporter's environment: defaults, what is forgiven with a warning, what is a usage error."""

import msgspec
import pytest

from fallow import settings
from fallow.settings import exporter


def test_an_empty_environment_gives_the_defaults_without_a_warning():
    assert exporter.read({}) == (exporter.Options(), [])


def test_the_table_and_the_record_name_the_same_things_and_the_same_defaults():
    assert {variable.field for variable in exporter.VARIABLES} == set(exporter.Options.__struct_fields__)
    shown = {variable.name: variable.default for variable in exporter.VARIABLES if variable.default}
    assert exporter.read(shown) == (exporter.Options(), [])
    bare = {variable.field for variable in exporter.VARIABLES if not variable.default}
    assert all(getattr(exporter.Options(), field) in ("", None, frozenset()) for field in bare)


@pytest.mark.accepts("exporter", 17)
@pytest.mark.parametrize("text", ["0", "0s", "-5s", "abc", "5", "5 s", "9" * 400 + "s", "2600000h", "nan", "∞"])
def test_an_interval_that_is_none_is_said_and_becomes_five_seconds(text):
    options, warnings = exporter.read({"POLL_INTERVAL": text})
    assert options.poll_interval == 5.0
    assert len(warnings) == 1
    assert warnings[0].startswith("POLL_INTERVAL: ")
    assert warnings[0].endswith("polling every 5s")


@pytest.mark.parametrize(
    ("text", "seconds", "is_warned"),
    [("5s", 5.0, False), ("1m30s", 90.0, False), ("+2s", 2.0, False), ("1.5s", 1.5, False), ("250ms", 0.25, False),
     ("100ms", 0.1, False), ("99ms", 0.1, True), ("1ns", 0.1, True)],
)
def test_an_interval_is_a_duration_of_at_least_a_tenth_of_a_second(text, seconds, is_warned):
    options, warnings = exporter.read({"POLL_INTERVAL": text})
    assert options.poll_interval == seconds
    assert bool(warnings) is is_warned


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        pytest.param("HTTP_PORT", "99999", marks=pytest.mark.accepts("exporter", 17)),
        ("HTTP_PORT", "0"), ("HTTP_PORT", "-1"), ("HTTP_PORT", "http"), ("HTTP_PORT", "tcp://10.0.0.1:80"),
        ("HTTP_PORT", "9" * 5000),
        ("HTTP_PORT", "٩٨٣٥"),
        ("IDLE_POLLS", "0"), ("IDLE_POLLS", "2.5"), ("IDLE_THRESHOLD_PERCENT", "101"),
        ("IDLE_THRESHOLD_PERCENT", "nan"),
        ("STALE_AFTER", "-1s"), ("STALE_AFTER", "soon"), ("STATE_MAX_GAP", "5"), ("SCOPE", "cluster"),
        ("INCLUDE_GRAPHICS", "maybe"),
        ("ATTRIBUTION", "on"), ("MAX_PROCESSES_PER_GPU", "-1"), ("REQUIRE_DRIVER", "2"),
        ("BIND_ADDRESS", "example.com"),
        ("LOG_LEVEL", "loud"), ("LOG_FORMAT", "xml"),
    ],
    ids=lambda value: value[:20],
)
def test_what_cannot_be_read_is_a_sentence_that_names_the_variable(variable, text):
    with pytest.raises(settings.UsageError) as refused:
        exporter.read({variable: text})
    assert str(refused.value).startswith(f"{variable}: ")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("variable", "text", "value"),
    [
        ("HTTP_PORT", "1", 1), ("HTTP_PORT", "65535", 65535), ("IDLE_POLLS", "1", 1),
        ("IDLE_THRESHOLD_PERCENT", "2.5", 2.5),
        ("SCOPE", "pod", "pod"), ("INCLUDE_GRAPHICS", "TRUE", True), ("ATTRIBUTION", "off", "off"),
        ("STATE_DIR", "/var/lib/x", "/var/lib/x"),
        ("GPU_RESOURCE_NAMES", " a.com/gpu, ,b.com/gpu,", frozenset({"a.com/gpu", "b.com/gpu"})),
        ("MAX_PROCESSES_PER_GPU", "0", 0),
        ("BIND_ADDRESS", "[::]", "::"), ("LOG_LEVEL", "WARN", "warning"), ("STALE_AFTER", "0", 0.0),
        ("HTTP_PORT", " 80 ", 80),
        ("NODE_NAME", "n1", "n1"),
    ],
)
def test_what_can_be_read_is_read(variable, text, value):
    options, warnings = exporter.read({variable: text})
    assert (getattr(options, variable.lower()), warnings) == (value, [])


@pytest.mark.parametrize("variable", [variable.name for variable in exporter.VARIABLES])
def test_an_empty_variable_is_not_set(variable):
    assert exporter.read({variable: "  "}) == (exporter.Options(), [])


def test_constant_labels_are_those_that_are_set():
    assert exporter.Options().constant_labels == {}
    named = msgspec.structs.replace(exporter.Options(), node_name="n1", pod_namespace="monitoring")
    assert named.constant_labels == {"node": "n1", "namespace": "monitoring"}
