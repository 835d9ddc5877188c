"""IdlePolicy: what people may write, what we make of it, and that definition, document and code say the same."""

import re
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from tests import ROOT

from fallow.model import selectors, units, usage
from fallow.model.long_memory import Freeze
from fallow.model.policies import idle, idle_crd

CRD_FILE = ROOT / "deploy" / "base" / "10-crd.yaml"
EXAMPLES = [
    *sorted((ROOT / "examples" / "policies").glob("*.yaml")), ROOT / "deploy" / "acting" / "example-policy.yaml",
]
NOW = 1_800_000_000.0


def written(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "p", "uid": "u-1", "generation": 3}, "spec": spec}


def parse(**spec: Any) -> idle.IdlePolicy:
    return idle_crd.parse(written(**spec))


# ---- reading ---------------------------------------------------------------------------------------------------------


def test_an_empty_policy_has_the_defaults_of_a_policy_not_of_the_flags():
    read = parse()
    event = idle.Channel(name="event", type="event")
    assert read.invalid == ()
    assert (read.name, read.uid, read.generation, read.priority) == ("p", "u-1", 3, 0)
    assert read.rule == idle.Rule(name="p", notice=idle.Notice(required=True, channels=(event,)))
    assert read.rule.notice != idle.Rule().notice
    assert read.rule.action.type is idle.ActionType.report


def test_every_field_reaches_its_place():
    spec = {
        "priority": 7,
        "namespaceSelector": {"matchLabels": {"team": "ml"}},
        "workloadSelector": {"matchExpressions": [{"key": "tier", "operator": "In", "values": ["a", "b"]}]},
        "podSelector": {"matchExpressions": [{"key": "gpu", "operator": "Exists"}]},
        "namespaces": ["team-.*"],
        "gpuModels": ["NVIDIA A10G"],
        "kinds": ["Deployment", "Rollout.argoproj.io"],
        "classes": ["training"],
        "windows": {"goneIdle": "1h30m", "neverUsed": "2d", "grace": "0"},
        "thresholds": {
            "activity": "0.05", "coverage": "0.9", "maxSampleAge": "90s", "idleGpuFraction": ".5", "powerWatts": 80,
            "powerFloor": "auto",
        },
        "signals": {"disable": ["power", "requests"]},
        "notice": {
            "required": False, "grace": "10m", "requireAll": True,
            "channels": [{"name": "team", "type": "event"}],
        },
        "consent": {
            "maxAck": "72h", "buttons": [4, 8, 24], "allowOptOut": False, "immunity": "2h", "slackUsers": [],
            "slackGroups": [],
        },
        "action": {
            "type": "pause", "pressure": "only", "gitops": "report", "kserveMethod": "stop", "respectPDB": True,
            "allowKnativeRollout": True, "lookPast": ["App.example.com"],
            "hook": {"timeout": "5s", "onFailure": "continue"},
        },
        "limits": {"maxActionsPerCycle": 2, "maxPercentPerHour": 5},
        "schedule": {
            "active": [{"days": ["mon", "sun"], "start": "22:30", "end": "06:00", "timeZone": "Europe/Berlin"}],
            "freeze": [{"days": ["sat"]}],
        },
        "regret": {"autoWiden": False, "threshold": "0.2"},
    }
    read = parse(**spec)
    assert read.invalid == ()
    assert read.priority == 7
    assert read.namespace_selector == selectors.Selector(match_labels={"team": "ml"})
    assert read.workload_selector.match_expressions == (("tier", "In", ("a", "b")),)
    assert read.pod_selector.match_expressions == (("gpu", "Exists", ()),)
    assert read.classes == {"training"}
    assert read.rule == idle.Rule(
        name="p", gone_idle=5400.0, never_used=2 * units.DAY, grace=0.0, activity=0.05, coverage=0.9,
        max_sample_age=90.0,
        idle_gpu_fraction=0.5, power_watts=80, power_floor=True, disabled_signals=frozenset({"power", "requests"}),
        kinds=frozenset({"Deployment", "Rollout.argoproj.io"}),
        notice=idle.Notice(False, 600.0, True, (idle.Channel("team", "event"),)),
        consent=idle.Consent(72 * units.HOUR, False, 7200.0),
        action=idle.Action(
            type=idle.ActionType.pause, pressure="only", gitops="report", kserve_method="stop", respect_pdb=True,
            allow_knative_rollout=True, look_past=frozenset({"App.example.com"}), hook=idle.Hook(5.0, "continue"),
        ),
        max_actions_per_cycle=2, max_percent_per_hour=5,
        active_slots=(idle.Slot(frozenset({0, 6}), 1350, 360, "Europe/Berlin"),),
        freeze_slots=(idle.Slot(frozenset({5}), 0, 1440, "UTC"),),
    )
    known = {field.encode_name for field in msgspec.structs.fields(idle_crd.IdlePolicySpec)}
    assert set(spec) == known, "a new field belongs into this test"


def test_never_used_follows_gone_idle_when_not_given():
    assert parse(windows={"goneIdle": "2h"}).rule.never_used == 2 * units.HOUR


@pytest.mark.parametrize(
    ("text", "hit"),
    [("team-a", True), ("team-", False), ("my-team-a", False), ("team-a\n", False)],
    ids=["whole", "prefix-only", "inside", "line-break"],
)
def test_expressions_match_whole_names(text, hit):
    (pattern,) = parse(namespaces=["team-.+"]).namespaces
    assert bool(pattern.fullmatch(text)) is hit


def test_expressions_know_letters_beyond_ascii():
    (pattern,) = parse(gpuModels=["Größe .x"]).gpu_models
    assert pattern.fullmatch("Größe éx")


BAD = {
    "no-unit": (
        {"windows": {"goneIdle": "30"}}, "spec.windows.goneIdle: '30' is not a duration such as 90s, 30m, 1h30m or 7d"
    ),
    "number-for-duration": (
        {"notice": {"grace": 300}}, "spec.notice.grace: 300 is not a duration such as 90s, 30m, 1h30m or 7d"
    ),
    "window-too-short": ({"windows": {"neverUsed": "59s"}}, "spec.windows.neverUsed: '59s' is not between 1m and 366d"),
    "for-ever": ({"consent": {"maxAck": "99999d"}}, "spec.consent.maxAck: '99999d' is not between 0s and 366d"),
    "ratio-as-number": (
        {"thresholds": {"activity": 0.01}}, "spec.thresholds.activity: 0.01 is not a ratio between 0 and 1 in quotes"
    ),
    "ratio-above-one": ({"thresholds": {"coverage": "1.5"}}, "spec.thresholds.coverage: '1.5' is not a ratio"),
    "no-gpu-need-be-idle": (
        {"thresholds": {"idleGpuFraction": "0.0"}}, "spec.thresholds.idleGpuFraction: '0.0' is not above 0"
    ),
    "bare-off": (
        {"action": {"pressure": False}}, "spec.action.pressure: False is not one of off, only; write 'off' in quotes"
    ),
    "unknown-action": (
        {"action": {"type": "delete"}}, "spec.action.type: 'delete' is not one of report, notify, pause"
    ),
    "text-for-flag": ({"action": {"respectPDB": "yes"}}, "spec.action.respectPDB: 'yes' is not true or false"),
    "flag-for-number": (
        {"limits": {"maxActionsPerCycle": True}}, "spec.limits.maxActionsPerCycle: True is not a whole number from 1"
    ),
    "typo": ({"windows": {"goneidle": "1h"}}, "spec.windows.goneidle: there is no such field; did you mean goneIdle?"),
    "stranger": ({"xyzzy": 1}, "spec.xyzzy: there is no such field"),
    "open-bracket": (
        {"namespaces": ["ok", "("]}, "spec.namespaces[1]: '(' is not a regular expression (RE2): missing )"
    ),
    "look-ahead": ({"gpuModels": ["(?=x)"]}, "spec.gpuModels[0]: '(?=x)' is not a regular expression (RE2)"),
    "no-list": ({"namespaces": "team-a"}, "spec.namespaces: is not a list"),
    "primary-signal": (
        {"signals": {"disable": ["sm_active"]}}, "spec.signals.disable[0]: 'sm_active' is not one of tensor, dram"
    ),
    "small-kind": ({"kinds": ["deployment"]}, "spec.kinds[0]: 'deployment' is not a kind such as Deployment"),
    "class": ({"classes": ["gaming"]}, "spec.classes[0]: 'gaming' is not one of training, inference, notebook, batch"),
    "folder-for-zone": (
        {"schedule": {"active": [{"timeZone": "America"}]}},
        "spec.schedule.active[0].timeZone: 'America' is not a known"
    ),
    "zone-outside": (
        {"schedule": {"active": [{"timeZone": "../UTC"}]}}, "spec.schedule.active[0].timeZone: '../UTC' is not an IANA"
    ),
    "clock": (
        {"schedule": {"freeze": [{"start": "8:30"}]}},
        "spec.schedule.freeze[0].start: '8:30' is not a time of day such as '08:30'"
    ),
    "start-at-24": (
        {"schedule": {"freeze": [{"start": "24:00"}]}}, "spec.schedule.freeze[0].start: '24:00' is not a time of day"
    ),
    "empty-slot": (
        {"schedule": {"freeze": [{"start": "08:00", "end": "08:00"}]}},
        "spec.schedule.freeze[0]: start and end are the same"
    ),
    "no-days": ({"schedule": {"freeze": [{"days": []}]}}, "spec.schedule.freeze[0].days: has 0 entries, not 1 to 7"),
    "in-what": (
        {"podSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}},
        "spec.podSelector.matchExpressions[0]: In and"
    ),
    "no-key": (
        {"podSelector": {"matchExpressions": [{"operator": "Exists"}]}},
        "spec.podSelector.matchExpressions[0].key: is missing"
    ),
    "no-type": ({"notice": {"channels": [{"name": "a"}]}}, "spec.notice.channels[0].type: is missing"),
    "two-of-a-name": (
        {"notice": {"channels": [{"name": "a", "type": "event"}, {"name": "a", "type": "event"}]}},
        "spec.notice: two channels have",
    ),
    "configured-event": (
        {"notice": {"channels": [{"name": "a", "type": "event", "config": {"x": "y"}}]}},
        "spec.notice.channels[0]: a channel of type",
    ),
    "long-text": (
        {"consent": {"slackUsers": ["U" * 4097]}},
        "spec.consent.slackUsers[0]: is not a string of at most 4096 characters"
    ),
    "too-many": ({"consent": {"buttons": [1, 2, 3, 4, 5, 6]}}, "spec.consent.buttons: has 6 entries, not 0 to 5"),
    "slack-without-an-address": (
        {"notice": {"channels": [{"name": "a", "type": "slack", "config": {"channel": "#ml"}}]}},
        "spec.notice.channels[0]: slack needs bot_token or webhook_url",
    ),
    "a-setting-of-another-type": (
        {"notice": {"channels": [{"name": "a", "type": "email", "config": {"url": "x"}}]}},
        "spec.notice.channels[0]: email knows no url; it knows to",
    ),
    "widening": ({"regret": {"autoWiden": "yes"}}, "spec.regret.autoWiden"),
    "regret": ({"regret": {"threshold": "1.3"}}, "spec.regret.threshold"),
    "section-as-text": ({"windows": "30m"}, "spec.windows: is not a set of fields"),
}


@pytest.mark.parametrize(("spec", "sentence"), BAD.values(), ids=BAD)
def test_what_is_wrong_is_said_with_its_field_and_nothing_is_done(spec, sentence):
    read = parse(**{**spec, "action": {"type": "pause", **spec.get("action", {})}})
    assert len(read.invalid) == 1, read.invalid
    assert read.invalid[0].startswith(sentence)
    assert read.rule.action == idle.Action(), "an invalid policy only reports"


def test_all_faults_are_said_at_once():
    read = parse(windows={"goneIdle": "x", "grace": "y"}, priority="high")
    assert [fault.split(":")[0] for fault in read.invalid] == [
        "spec.priority", "spec.windows.goneIdle", "spec.windows.grace"
    ]


@pytest.mark.parametrize("spec", [None, "", [], 3], ids=["absent", "text", "list", "number"])
def test_a_policy_without_a_spec_shields_everything(spec):
    read = idle_crd.parse({"metadata": {"name": "p"}, "spec": spec})
    assert len(read.invalid) == 1
    assert read.invalid[0].startswith("spec: is ")
    assert read.priority > idle_crd.HIGHEST_PRIORITY


def test_a_broken_policy_selects_more_and_ranks_higher_never_less():
    """Half of `namespaces` would leave the other half to a lower policy that may pause it."""
    read = parse(namespaces=["prod", "("], gpuModels=["A100"], priority="1000")
    assert read.namespaces == ()
    assert len(read.gpu_models) == 1
    assert read.priority > idle_crd.HIGHEST_PRIORITY


def test_secrets_are_not_repeated():
    secret = "xoxb-very-secret"
    channels = [
        {"name": "a", "type": "slack", "config": {"bot_token": [secret]}, "configSecretRefs": {"webhook_url": secret}}
    ]
    read = parse(notice={"channels": channels})
    assert len(read.invalid) == 2
    assert not any(secret in said for said in read.invalid)
    assert secret not in repr(read)
    assert secret not in repr(parse(notice={"channels": [
        {"name": "a", "type": "slack", "config": {"bot_token": secret, "channel": "#ml"}},
    ]}))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
SECTIONS = {field.encode_name: field for field in msgspec.structs.fields(idle_crd.IdlePolicySpec)}


@st.composite
def specs(draw: st.DrawFn) -> dict[str, Any]:
    """Real field names down to the second level, with anything in them."""
    spec: dict[str, Any] = {}
    for name in draw(st.lists(st.sampled_from(sorted(SECTIONS)), max_size=4, unique=True)):
        default = SECTIONS[name].default
        if isinstance(default, msgspec.Struct) and draw(st.booleans()):
            keys = sorted(field.encode_name for field in msgspec.structs.fields(type(default)))
            spec[name] = draw(st.dictionaries(st.sampled_from(keys), JSON, max_size=3))
        else:
            spec[name] = draw(JSON)
    return spec


@given(spec=specs() | JSON, metadata=JSON)
@example(spec={"a\nb": None, "podSelector": {"matchLabels": {"c\nd": 3}}}, metadata=None)
def test_nothing_that_can_be_written_raises_and_nothing_invalid_acts(spec, metadata):
    read = idle_crd.parse({"metadata": metadata, "spec": spec})
    assert isinstance(read, idle.IdlePolicy)
    if read.invalid:
        assert read.rule.action == idle.Action()
        assert all(fault.startswith("spec") and "\n" not in fault for fault in read.invalid)


@given(text=st.from_regex(r"([0-9]{1,3}(\.[0-9])?(s|m|h|d|ms|us|µs|ns)){1,3}|0|[0-9a-z.]{0,5}", fullmatch=True))
def test_the_pattern_for_durations_says_what_our_reader_says(text):
    pattern = _leaf("consent", "maxAck")["pattern"]
    try:
        units.parse_duration(text)
    except ValueError:
        assert not re.search(pattern, text)
    else:
        assert re.search(pattern, text)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_is_valid(example):
    read = idle_crd.parse(yaml.safe_load(example.read_text()))
    assert read.invalid == ()
    assert read.name == example.stem


# ---- the definition --------------------------------------------------------------------------------------------------


def _schema() -> dict[str, Any]:
    (version,) = idle_crd.define()["spec"]["versions"]
    return version["schema"]["openAPIV3Schema"]


def _leaf(*path: str) -> dict[str, Any]:
    schema = _schema()["properties"]["spec"]
    for name in path:
        schema = schema["properties"][name]
    return schema


def _walk(schema: dict[str, Any], path: str):
    yield path, schema
    for name, inner in schema.get("properties", {}).items():
        yield from _walk(inner, f"{path}.{name}" if path else name)
    if "items" in schema:
        yield from _walk(schema["items"], f"{path}[]")


def test_the_definition_in_deploy_is_the_one_of_the_code():
    assert yaml.safe_load(CRD_FILE.read_text()) == idle_crd.define(), "run `make docs`"


def test_the_definition_has_the_names_and_columns_people_know():
    crd = idle_crd.define()
    (version,) = crd["spec"]["versions"]
    assert crd["metadata"]["name"] == "idlepolicies.gpuautoscaler.io"
    assert (
        crd["spec"]["scope"], crd["spec"]["names"]["shortNames"], version["name"]
    ) == ("Cluster", ["idp"], "v1alpha1")
    assert [
        column["name"] for column in version["additionalPrinterColumns"]
    ] == ["Priority", "Action", "Idle", "Paused", "Age"]
    assert version["subresources"] == {"status": {}}


def test_every_field_is_described():
    found = {path for path, schema in _walk(_schema(), "") if not path.endswith("[]") and "description" not in schema}
    undescribed = sorted(found - {"", "spec", "status"})
    assert undescribed == []


def test_a_caller_may_change_its_copy_of_the_definition():
    idle_crd.define()["spec"]["versions"][0]["schema"][
        "openAPIV3Schema"
    ]["properties"]["spec"]["properties"]["windows"].clear()
    assert _leaf("windows", "goneIdle")["default"] == "30m"


def test_what_has_no_fixed_default_gets_none_from_the_api_server():
    fields = [
        ("windows", "neverUsed"), ("thresholds", "powerWatts"), ("limits", "maxPercentPerHour"), ("kinds",),
        ("schedule", "active")
    ]
    for path in fields:
        assert "default" not in _leaf(*path), path


# ---- the document ----------------------------------------------------------------------------------------------------


def _documented() -> dict[str, str]:
    """Rows of the tables in docs/operators/policies.md whose first cell is a field: name -> default, both as written
    between backquotes."""
    page = (ROOT / "docs" / "operators" / "policies.md").read_text()
    rows = re.findall(r"^\| `([\w.\[\]]+)` \| (.+?) \|", page, re.M)
    return {name: default.strip().strip("`") for name, default in rows if not name.startswith("status.")}


def _default_text(schema: dict[str, Any]) -> str:
    default = schema.get("default")
    if default is None:
        return "none"
    if isinstance(default, list):
        return f"[{', '.join(map(str, default))}]"
    return str(default).lower() if isinstance(default, bool) else str(default)


def _expected() -> dict[str, str]:
    leaves = {}
    for path, schema in _walk(_schema()["properties"]["spec"], ""):
        is_selector = schema.get("properties", {}).get("matchLabels") is not None
        if path and (is_selector or "properties" not in schema) and "atch" not in path and not path.endswith("[]"):
            leaves[path] = "[event]" if path == "notice.channels" else _default_text(schema)
    return leaves


def test_the_document_lists_every_field_with_its_default():
    assert _documented() == _expected()


# ---- the answer ------------------------------------------------------------------------------------------------------


def _status(of: idle.IdlePolicy, previous: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    tally = idle.Tally(
        matched_workloads=4, idle_workloads=None, idle_gpus=8, paused_workloads=1, acknowledged_workloads=0
    )
    tally = msgspec.structs.replace(tally, **changes.pop("tally", {}))
    around = {"trouble": None, "freeze": None, "now": NOW} | changes
    return idle_crd.status(of, tally, previous=previous or {}, **around)["status"]


def _conditions(status: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {one["type"]: (one["status"], one["reason"]) for one in status["conditions"]}


def test_the_status_says_what_is_known_and_clears_what_is_not():
    status = _status(parse())
    assert (status["matchedWorkloads"], status["idleGPUs"], status["observedGeneration"]) == (4, 8, 3)
    assert status["acknowledgedWorkloads"] == 0
    assert status["idleWorkloads"] is None, "null in a merge patch removes the old number"
    assert status["effectiveGoneIdle"] is None
    assert status["lastEvaluationTime"] == units.rfc3339(NOW)
    assert _conditions(status) == {
        "Ready": ("True", "Valid"), "DataHealthy": ("True", "Measured"), "Frozen": ("False", "NotFrozen")
    }


def test_the_status_of_a_broken_policy_names_the_fault():
    status = _status(parse(windows={"goneIdle": "30"}))
    ready = status["conditions"][0]
    assert (ready["type"], ready["status"]) == ("Ready", "False")
    assert "spec.windows.goneIdle: '30' is not a duration" in ready["message"]


@pytest.mark.parametrize(
    ("until", "holds"), [(NOW + 60, "True"), (NOW - 60, "False"), (None, "False")], ids=["held", "over", "never"]
)
def test_the_status_tells_a_freeze_while_it_lasts(until, holds):
    freeze = None if until is None else Freeze(until, "a jump")
    assert _conditions(_status(parse(), freeze=freeze))["Frozen"][0] == holds


def test_the_status_tells_that_the_source_is_down():
    trouble = usage.SourceTrouble("NoData", "no GPU series at all")
    assert _conditions(_status(parse(), trouble=trouble))["DataHealthy"] == ("False", "NoData")


def test_a_condition_keeps_its_time_while_it_holds():
    first = _status(parse())
    later = _status(parse(windows={"goneIdle": "30"}), previous=first, now=NOW + 600)
    assert [
        one["lastTransitionTime"] for one in later["conditions"]
    ] == [units.rfc3339(at) for at in (NOW + 600, NOW, NOW)]


def test_only_the_soonest_next_actions_are_told():
    actions = tuple(idle.NextAction("Deployment", "ml", f"d{n}", NOW + 100 - n) for n in range(30))
    written = _status(parse(), tally={"next_actions": actions})["nextActions"]
    assert [one["name"] for one in written] == [f"d{n}" for n in range(29, 9, -1)]
    assert written[0]["at"] == units.rfc3339(NOW + 71)

