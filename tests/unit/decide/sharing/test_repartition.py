"""A node is cut anew: in the order of the steps, by what is seen alone, killed anywhere, and never left cordoned by us
without a reason."""

from __future__ import annotations

import re
import subprocess
from typing import Any

import hypothesis
import msgspec
import pytest
import yaml
from hypothesis import strategies as st
from tests import ROOT
from tests.unit.decide.sharing.stage import SEVEN, START, Stage, config, gpu_pod

from fallow import names
from fallow.decide import sharing
from fallow.model import cluster, partition
from fallow.model.partition import PatchNode, RepartitionReason, RepartitionStep, WriteKey
from fallow.model.policies.sharing import Disruption, SharingMode
from fallow.model.seen import ABSENT, Known, Unseen
from fallow.model.sharing import NodeTaint

MIG = {"nvidia.com/mig-1g.5gb": 56}


def steps_of(stage: Stage) -> list[str]:
    """In the order in which they were written on the node."""
    written = [str(each.record.step) for each in stage.written if isinstance(each, PatchNode)]
    return [step for place, step in enumerate(written) if place == 0 or written[place - 1] != step]


def test_the_way_from_whole_gpus_to_seven_parts_each() -> None:
    stage = Stage(config(**SEVEN))
    ended = stage.run()
    assert ended is not None
    assert (ended.phase, ended.reason, stage.offers, stage.cordoned) == ("Ready", "Ready", MIG, False)
    assert steps_of(stage) == ["Cordoning", "Draining", "Labelling", "Verifying", "Uncordoning", "Ready"]
    assert stage.labels[names.MIG_CONFIG] == "all-1g.5gb"
    assert stage.configs["cut"].has_finalizer
    assert stage.tick() is not None
    assert stage.turns[0].writes == ()


@pytest.mark.accepts("packing", 11)
def test_a_running_pod_is_waited_for_and_only_then_labels_change() -> None:
    stage = Stage(config(**SEVEN))
    owner = cluster.Owner("apps", "v1", "ReplicaSet", "llm", "u-llm")  # one that could be evicted
    stage.pods = [msgspec.structs.replace(gpu_pod("busy"), owner=owner)]
    for _ in range(100):
        stage.tick()
    assert (stage.cordoned, stage.evicted, names.MIG_CONFIG in stage.labels) == (True, [], False)
    [turn] = stage.turns
    assert (turn.step, turn.because) == ("Draining", "waits for 1 pod to end, such as ml/busy")
    stage.pods = []
    stage.run()
    assert (stage.labels[names.MIG_CONFIG], stage.cordoned) == ("all-1g.5gb", False)


def test_evict_asks_the_api_for_those_who_may_go() -> None:
    stage = Stage(config(**SEVEN, disruption=Disruption.evict))
    owned = [
        gpu_pod("plain"), gpu_pod("marked", annotations={names.KARPENTER_DO_NOT_DISRUPT: "true"}),
        gpu_pod("unsafe", annotations={names.SAFE_TO_EVICT: "false"}), gpu_pod("leaving", terminating=True),
        gpu_pod("elsewhere", node="gpu-2"), gpu_pod("none", resources={}),
    ]
    owner = cluster.Owner("apps", "v1", "ReplicaSet", "llm", "u-llm")
    stage.pods = [*(msgspec.structs.replace(each, owner=owner) for each in owned), gpu_pod("nobody-makes-it-again")]
    for _ in range(4):
        stage.tick()
    assert set(stage.evicted) == {"plain"}


def test_a_drain_that_takes_too_long_changes_nothing_and_frees_the_node() -> None:
    stage = Stage(config(**SEVEN, drain_timeout=60.0))
    stage.pods = [gpu_pod("busy")]
    ended = stage.run()
    assert ended is not None
    assert (ended.phase, ended.reason, stage.cordoned) == ("Failed", "DrainTimeout", False)
    assert names.MIG_CONFIG not in stage.labels
    assert stage.events == []


@pytest.mark.accepts("packing", 12)
def test_a_failure_brings_the_old_label_back_and_then_the_node() -> None:
    stage = Stage(config(**SEVEN), answers=("success", "failed", "silence"))
    stage.labels[names.MIG_CONFIG] = "all-balanced"
    stage.heed()
    before = dict(stage.offers)
    for _ in range(12):
        stage.tick()
    assert (stage.labels[names.MIG_CONFIG], stage.cordoned) == ("all-balanced", True)  # not before it is true again
    stage.settle("success")
    ended = stage.run()
    assert ended is not None
    assert (ended.phase, ended.reason, stage.cordoned, stage.offers) == ("Failed", "StateFailed", False, before)
    assert stage.events == []
    assert stage.tick(seconds=7200) is not None
    assert stage.run().reason == "StateFailed"  # type: ignore[union-attr]  # not tried again by itself


@pytest.mark.accepts("packing", 12)
@pytest.mark.parametrize("answer", ["failed", "silence"])
def test_a_way_back_that_fails_leaves_it_cordoned_with_an_event_until_it_is_back(answer: str) -> None:
    stage = Stage(config(**SEVEN), answers=("failed", answer))
    ended = stage.run()
    assert ended is not None
    assert (ended.phase, ended.reason, stage.cordoned) == ("Failed", "RepartitionFailed", True)
    assert stage.events == ["RepartitionFailed"]
    assert stage.labels[names.MIG_CONFIG] == "all-disabled"  # no MIG before: removing the label would not undo it
    assert stage.record is not None
    assert stage.record.is_stuck
    stage.settle("success")
    stage.run()
    assert (stage.cordoned, stage.record.is_stuck, stage.events) == (False, False, ["RepartitionFailed"])


def test_who_uncordons_a_node_that_is_stuck_takes_it_off_our_hands() -> None:
    stage = Stage(config(**SEVEN), answers=("failed", "failed"))
    stage.run()
    assert stage.record is not None
    assert stage.record.is_stuck
    stage.cordoned = False
    stage.run()
    assert (stage.record.cordoned_by_us, stage.record.is_stuck, stage.cordoned) == (False, False, False)


def test_old_labels_that_somebody_wrote_before_us_are_not_waited_for_for_ever() -> None:
    stage = until(Stage(config(**SEVEN), answers=("silence", "silence")), "Verifying")
    stage.change(mode=SharingMode.audit)
    until(stage, "RollingBack")
    stage.labels[names.MIG_CONFIG] = names.MIG_DISABLED
    ended = stage.run()
    assert ended is not None
    assert (ended.reason, stage.events) == ("RepartitionFailed", ["RepartitionFailed"])


def test_silence_and_wrong_counts_end_in_time() -> None:
    stage = Stage(config(**SEVEN), answers=("silence", "success"))
    assert stage.run().reason == "VerifyTimeout"  # type: ignore[union-attr]
    assert START + 600 < stage.now < START + 800
    wrong = Stage(config(**SEVEN), nvidia_com__gpu_x="y")
    wrong.labels[names.GPU_COUNT] = "4"  # it says four and advertises eight
    assert wrong.run().reason == "VerifyTimeout"  # type: ignore[union-attr]
    assert wrong.cordoned is False


def test_a_reboot_is_given_its_time() -> None:
    stage = Stage(config(**SEVEN), answers=("rebooting",))
    for _ in range(150):
        stage.tick()
    assert stage.turns[0].step == "Verifying"
    stage.settle("success")
    assert stage.run().reason == "Ready"  # type: ignore[union-attr]


@pytest.mark.parametrize(("fields", "key", "offers"), [
    ({"slicing_replicas": 4}, "fallow-timeslicing-4", {"nvidia.com/gpu.shared": 32}),
    ({"mps_clients": 16}, "fallow-mps-16", {"nvidia.com/gpu.shared": 128}),
    ({"mig": True, "profiles": ("1g.5gb",) * 7, "slicing_replicas": 2}, None, {"nvidia.com/mig-1g.5gb.shared": 112}),
])
def test_sharing_writes_its_document_before_its_label(
    fields: dict[str, Any], key: str | None, offers: dict[str, int]
) -> None:
    stage = Stage(config(**fields))
    assert stage.run().reason == "Ready"  # type: ignore[union-attr]
    assert stage.offers == offers
    made = stage.labels[names.PLUGIN_CONFIG]
    assert key is None or made == key
    assert stage.plugin_keys["default"] == {"version": "v1"}
    places = [place for place, each in enumerate(stage.written)
              if isinstance(each, WriteKey) or (isinstance(each, PatchNode) and names.PLUGIN_CONFIG in each.labels)]
    assert isinstance(stage.written[places[0]], WriteKey)
    document = stage.plugin_keys[made]
    [way] = document["sharing"].values()
    assert (document["version"], document["flags"], way["renameByDefault"], way["failRequestsGreaterThanOne"]) == (
        "v1", {"migStrategy": "mixed"}, True, True,
    )
    back = config(uid="c-2", name="whole")  # all false: exclusive
    stage.configs, stage.now = {"whole": back}, stage.now + 7200
    assert stage.run().reason == "Ready"  # type: ignore[union-attr]
    assert stage.offers == {names.GPU: 8}


def test_what_is_shown_for_sharing_by_hand_is_what_would_be_written() -> None:
    text = (ROOT / "examples" / "sharing" / "time-slicing.yaml").read_text()
    shown = yaml.safe_load(yaml.safe_load(text)["data"]["shared"])
    stage = Stage(config(slicing_replicas=4))
    assert stage.run().reason == "Ready"  # type: ignore[union-attr]
    assert stage.plugin_keys[stage.labels[names.PLUGIN_CONFIG]] == shown


def test_mps_by_hand_has_only_commands_that_there_are_and_no_privileges() -> None:
    text = (ROOT / "examples" / "sharing" / "mps-daemonset.yaml").read_text()
    _, daemons = yaml.safe_load_all(text)
    [container] = daemons["spec"]["template"]["spec"]["containers"]
    typed = {word for word in container["args"][0].split() if re.fullmatch(r'"?[sg]et_default_\w+"?', word)}
    assert {word.strip('"') for word in typed} == {
        "set_default_active_thread_percentage", "set_default_device_pinned_mem_limit",
        "get_default_active_thread_percentage"}
    assert not container["securityContext"].get("privileged")
    done = subprocess.run(["sh", "-n"], input=container["args"][0], text=True, check=False)
    assert done.returncode == 0


def test_instances_that_are_kept_are_shared_as_they_are() -> None:
    stage = Stage(config(mig=True, slicing_replicas=2))
    stage.labels[names.MIG_CONFIG] = "all-balanced"
    stage.heed()
    for replicas in (2, 3):  # from what is shared already, too
        stage.change(slicing_replicas=replicas)
        stage.now += 7200
        assert stage.run().reason == "Ready"  # type: ignore[union-attr]
        assert stage.offers == {
            f"nvidia.com/mig-{name}.shared": 8 * each * replicas
            for name, each in (("1g.5gb", 2), ("2g.10gb", 1), ("3g.20gb", 1))
        }
        assert stage.tick().because == "the node is as asked for"  # type: ignore[union-attr]
    stage.change(slicing_replicas=None)
    stage.now += 7200
    assert stage.run().reason == "Ready"  # type: ignore[union-attr]
    assert stage.offers == {"nvidia.com/mig-1g.5gb": 16, "nvidia.com/mig-2g.10gb": 8, "nvidia.com/mig-3g.20gb": 8}


def test_whole_gpus_that_are_kept_are_shared_whole() -> None:
    stage = Stage(config(mig=True, slicing_replicas=2))
    assert stage.run().reason == "Ready"  # type: ignore[union-attr]
    assert stage.offers == {names.GPU_SHARED: 16}


@pytest.mark.parametrize(("fields", "label", "offers"), [
    ({"mig_config": "their-own"}, None, {names.GPU: 8}),
    ({}, "their-own", {}),  # the plugin is away
    ({}, "their-own", {names.GPU: 8}),
    ({}, "their-own", {names.GPU: 4, "nvidia.com/mig-1g.5gb": 28}),
    ({}, "their-own", {"nvidia.com/mig-1g.5gb": 29}),
    ({}, "their-own", {"nvidia.com/mig-1g.5gb.shared": 112}),  # by a key that is not ours
])
def test_instances_that_nobody_knows_are_not_shared(
    fields: dict[str, Any], label: str | None, offers: dict[str, int]
) -> None:
    stage = Stage(config(mig=True, slicing_replicas=2, **fields))
    if label:
        stage.labels[names.MIG_CONFIG] = label
    stage.offers = offers
    [turn] = sharing.plan_nodes(stage.sights(), stage.now)
    assert (turn.reason, turn.writes, "name them in migProfiles" in turn.because) == ("GpuUnknown", (), True)


def test_a_plugin_that_ignores_its_label_is_found_out() -> None:
    stage = Stage(config(slicing_replicas=4))
    stage.plugin_is_deaf = True
    assert stage.run().reason == "VerifyTimeout"  # type: ignore[union-attr]
    assert (stage.cordoned, names.PLUGIN_CONFIG in stage.labels) == (False, False)


def test_a_layout_that_mig_parted_does_not_know_is_written_for_it() -> None:
    stage = Stage(config(mig=True, profiles=("3g.20gb", "1g.5gb", "1g.5gb")))
    assert stage.run().reason == "Ready"  # type: ignore[union-attr]
    name = stage.labels[names.MIG_CONFIG]
    assert name.startswith("fallow-")
    assert stage.mig_keys[name] == [
        {"devices": "all", "mig-enabled": True, "mig-devices": {"1g.5gb": 2, "3g.20gb": 1}},
    ]
    assert stage.offers == {"nvidia.com/mig-1g.5gb": 16, "nvidia.com/mig-3g.20gb": 8}
    unread = Stage(config(mig=True, profiles=("3g.20gb", "1g.5gb", "1g.5gb")), answers=("failed", "success"))
    assert unread.run().reason == "ConfigMapNotUsed"  # type: ignore[union-attr]


# ---- what does not begin ---------------------------------------------------------------------------------------------


@pytest.mark.accepts("packing", 14)
@pytest.mark.parametrize("profiles", [("4g.20gb", "4g.20gb"), ("3g.20gb", "3g.20gb", "1g.5gb"), ("1g.10gb",) * 5])
def test_an_illegal_layout_touches_nothing(profiles: tuple[str, ...]) -> None:
    stage = Stage(config(mig=True, profiles=profiles))
    ended = stage.run()
    assert ended is not None
    assert (ended.phase, ended.reason, stage.written) == ("Failed", "IllegalLayout", [])
    assert "is no legal layout of A100-40GB" in ended.because


@pytest.mark.parametrize(("prepare", "reason"), [
    (lambda stage: stage.change(mode=SharingMode.audit), "Audit"),
    (lambda stage: stage.change(invalid=("spec.x: no",)), "InvalidConfig"),
    (lambda stage: setattr(stage, "is_ready", False), "NodeNotReady"),
    (lambda stage: setattr(stage, "is_there", False), "NodeGone"),
    (lambda stage: setattr(stage, "pods_seen", Unseen("forbidden")), "NotSeen"),
    (lambda stage: stage.waiting.append(gpu_pod("next", node="")), "PodWaits"),
    (lambda stage: stage.labels.pop(names.GPU_COUNT), "GpuUnknown"),
    (lambda stage: stage.labels.update({names.GPU_PRODUCT: "L4"}), "IllegalLayout"),
    (lambda stage: stage.change(mig=False, mps_clients=4) or stage.labels.pop(names.MPS_CAPABLE), "MpsUnsupported"),
    (lambda stage: stage.labels.update({names.GPU_PRODUCT: "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb"}), "GpuUnknown"),
    (lambda stage: stage.change(mig=False, profiles=(), slicing_replicas=4) or setattr(
        stage, "plugin_keys", {"any": {"version": "v1"}}), "OnlyKey"),
])
def test_what_speaks_against_it_is_said_and_nothing_is_touched(prepare: Any, reason: str) -> None:
    stage = Stage(config(**SEVEN))
    prepare(stage)
    ended = stage.run()
    assert ended is not None
    assert (ended.reason, stage.written, stage.cordoned) == (reason, [], False)
    assert ended.because


def test_a_pod_that_waits_for_something_else_is_no_reason_to_wait() -> None:
    stage = Stage(config(**SEVEN))
    stage.waiting = [
        gpu_pod("part", node="", resources={"nvidia.com/mig-1g.5gb": 1}),
        gpu_pod("many", node="", resources={names.GPU: 9}),
        gpu_pod("else", node="", node_selector={"pool": "b"}),
    ]
    assert stage.run().reason == "Ready"  # type: ignore[union-attr]


@pytest.mark.parametrize("later", [3600, -30 * 86_400], ids=["an hour", "the clock was set back"])
def test_an_hour_between_two_changes_of_a_node(later: float) -> None:
    stage = Stage(config(**SEVEN))
    stage.run()
    stage.change(profiles=("7g.40gb",))
    stage.tick()
    assert stage.turns[0].reason == "TooSoon"
    stage.now += later
    stage.tick()
    assert stage.cordoned


def test_one_node_at_a_time_in_a_pool_and_the_older_config_rules() -> None:
    stage = Stage(config(**SEVEN))
    node = stage.node()
    pools = ((2, "a100"), (3, "b"))
    others = [msgspec.structs.replace(node, name=f"gpu-{number}", pool=pool) for number, pool in pools]
    configs = [config(**SEVEN, has_finalizer=True, name=f"c{number}", uid=f"u{number}", node=f"gpu-{number}",
                      created_at=9.0 - number) for number in (1, 2, 3)]
    twice = config(**SEVEN, name="younger", uid="y", node="gpu-2", created_at=99.0)
    sights = msgspec.structs.replace(
        stage.sights(), nodes=Known((node, *others)), configs=Known((*configs, twice))
    )
    turns = {turn.config: turn for turn in sharing.plan_nodes(sights, START)}
    assert {name: str(turn.reason) for name, turn in turns.items()} == {
        "c1": "OtherChange", "c2": "Running", "c3": "Running", "younger": "DuplicateNode",
    }
    assert [len(turns[name].writes) for name in ("c1", "c2", "c3", "younger")] == [0, 1, 1, 0]
    assert sharing.plan_nodes(msgspec.structs.replace(sights, nodes=Unseen("no")), START) == ()
    assert sharing.plan_nodes(msgspec.structs.replace(sights, configs=ABSENT), START) == ()


# ---- others, and the end ---------------------------------------------------------------------------------------------


def until(stage: Stage, step: str) -> Stage:
    for _ in range(50):
        if stage.record is not None and stage.record.step == step:
            return stage
        stage.tick()
    raise AssertionError(f"never came to {step}")


@pytest.mark.parametrize("step", ["Cordoning", "Draining", "Labelling", "Verifying"])
def test_who_changes_a_label_meanwhile_has_the_last_word(step: str) -> None:
    stage = until(Stage(config(**SEVEN), answers=("silence",)), step)
    stage.labels[names.MIG_CONFIG] = "all-3g.20gb"
    ended = stage.run()
    assert ended is not None
    assert (ended.reason, stage.cordoned, stage.labels[names.MIG_CONFIG]) == ("ChangedByOther", False, "all-3g.20gb")


@pytest.mark.parametrize("step", ["Cordoning", "Draining", "Labelling"])
def test_who_uncordons_it_before_it_is_changed_stops_it(step: str) -> None:
    stage = until(Stage(config(**SEVEN)), step)
    stage.cordoned = False
    assert stage.run().reason == "ChangedByOther"  # type: ignore[union-attr]
    assert names.MIG_CONFIG not in stage.labels


@pytest.mark.parametrize("was_cordoned", [False, True])
def test_the_way_back_waits_for_pods_that_came_when_somebody_uncordoned_it(was_cordoned: bool) -> None:
    stage = Stage(config(**SEVEN), answers=("silence", "success"))
    stage.cordoned = was_cordoned
    until(stage, "Verifying")
    stage.cordoned, stage.pods = False, [gpu_pod("came", resources={"nvidia.com/mig-1g.5gb": 1})]
    for _ in range(100):
        stage.tick()
    [turn] = stage.turns
    assert (turn.step, turn.because) == ("RollingBack", "its old layout waits for 1 pod to end, such as ml/came")
    assert (stage.labels[names.MIG_CONFIG], stage.cordoned) == ("all-1g.5gb", False)  # open, as somebody wanted it
    stage.pods, stage.pods_seen = [], Unseen("timed out")
    stage.tick()
    assert stage.turns[0].because == "its old layout waits: pods are not seen: timed out"
    stage.pods_seen = None
    stage.tick()
    assert (stage.labels[names.MIG_CONFIG], stage.cordoned) == ("all-1g.5gb", True)  # before anybody else comes
    ended = stage.run()
    assert ended is not None
    assert (ended.reason, stage.cordoned, stage.offers) == ("VerifyTimeout", False, {names.GPU: 8})


def test_a_node_that_was_cordoned_before_stays_so() -> None:
    stage = Stage(config(**SEVEN))
    stage.cordoned = True
    assert stage.run().reason == "Ready"  # type: ignore[union-attr]
    assert stage.cordoned


@pytest.mark.parametrize("step", ["Cordoning", "Draining", "Labelling", "Verifying", "Uncordoning"])
@pytest.mark.parametrize("how", ["deleted", "forced", "audit", "other"])
def test_a_config_withdrawn_in_mid_change_gives_the_old_layout_back(step: str, how: str) -> None:
    stage = until(Stage(config(**SEVEN), answers=("silence" if step == "Verifying" else "success",)), step)
    if how == "deleted":
        stage.delete()
    elif how == "forced":
        stage.configs.clear()
    else:
        stage.change(**({"mode": SharingMode.audit} if how == "audit" else {"profiles": ("7g.40gb",)}))
    stage.run()
    assert stage.cordoned is False
    assert (how == "deleted") <= (stage.configs == {})
    assert stage.record is not None
    assert not stage.record.is_running
    is_done = step == "Uncordoning"  # it was there already
    assert (stage.offers == MIG) is is_done
    assert is_done or stage.record.reason is RepartitionReason.Withdrawn


def test_nothing_begins_while_we_are_held_and_afterwards_it_does() -> None:
    stage = Stage(config(**SEVEN))
    stage.held = "--sharing is not act"
    turn = stage.run(most=5)
    assert turn is not None
    assert (turn.reason, turn.step, turn.because) == ("NotActing", "Planned", (
        "would change nvidia.com/mig.config from none to all-1g.5gb: --sharing is not act"
    ))
    assert stage.written == []
    stage.held = ""
    assert stage.run().reason == "Ready"  # type: ignore[union-attr]


@pytest.mark.parametrize("step", ["Cordoning", "Draining", "Labelling", "Verifying", "Uncordoning"])
def test_one_that_is_held_before_its_labels_turns_back_and_later_goes_to_its_end(step: str) -> None:
    stage = until(Stage(config(**SEVEN)), step)
    stage.held = "frozen"
    stage.run()
    assert not stage.cordoned
    assert (stage.offers == MIG) is (step in ("Verifying", "Uncordoning"))
    stage.held = ""
    stage.now += 3601
    assert stage.run().reason == "Ready"  # type: ignore[union-attr]
    assert stage.offers == MIG


def test_a_node_that_is_being_emptied_is_not_cut_meanwhile() -> None:
    stage = Stage(config(**SEVEN))
    stage.labels[names.CONSOLIDATION] = names.BEING_EMPTIED
    turn = stage.tick()
    assert turn is not None
    assert (turn.reason, turn.because) == ("OtherChange", "gpu-1 is being emptied")


@pytest.mark.parametrize("key", [names.SCALE_DOWN, names.SPOT_INTERRUPTION])
def test_a_node_that_is_to_leave_is_not_cut_meanwhile(key: str) -> None:
    """Its drain would be undone for it, the cordon with it, and the change would end by that."""
    stage = Stage(config(**SEVEN))
    stage.cordoned, stage.taints = True, (NodeTaint(key, "", "NoSchedule"),)
    turn = stage.tick()
    assert turn is not None
    assert (turn.reason, turn.because, turn.writes) == ("OtherChange", "gpu-1 is to leave", ())
    stage.cordoned, stage.taints = False, ()
    assert stage.run().reason == "Ready"  # type: ignore[union-attr]


def test_a_node_that_is_gone_lets_its_config_go() -> None:
    stage = until(Stage(config(**SEVEN)), "Draining")
    stage.delete()
    assert "cut" in stage.configs
    stage.is_there = False
    stage.run()
    assert stage.configs == {}


def test_a_record_that_nobody_can_read_is_left_alone() -> None:
    stage = Stage(config(**SEVEN))
    node = msgspec.structs.replace(stage.node(), unreadable="it is no record")
    [turn] = sharing.plan_nodes(msgspec.structs.replace(stage.sights(), nodes=Known((node,))), START)
    assert (turn.reason, turn.writes) == ("RecordUnreadable", ())


def test_the_record_comes_back_as_it_was_and_odd_ones_are_refused() -> None:
    stage = until(Stage(config(**SEVEN)), "Verifying")
    assert stage.annotation is not None
    assert partition.write(partition.read(stage.annotation)) == stage.annotation
    keys = set(msgspec.json.decode(stage.annotation))
    assert {"config", "uid", "from", "to", "step", "since", "cordonedByUs"} <= keys
    dances, timeless = stage.annotation.replace("Verifying", "Dancing"), stage.annotation.replace("Z", "")
    for odd in ("", "{}", "[]", dances, timeless, "{\"x\":" * 40_000):
        with pytest.raises(ValueError):
            partition.read(odd)


def test_a_clock_that_was_set_back_does_not_make_it_wait_for_ever() -> None:
    stage = until(Stage(config(**SEVEN), answers=("silence", "success")), "Verifying")
    stage.now -= 86_400
    stage.run()
    assert (stage.cordoned, stage.record and stage.record.reason) == (False, RepartitionReason.VerifyTimeout)


# ---- killed anywhere -------------------------------------------------------------------------------------------------

HAPPENINGS = st.sampled_from([
    "nothing", "nothing", "nothing", "pod comes", "pod goes", "label edited", "uncordoned", "deleted",
    "forced", "audit", "spec", "not ready", "ready", "clock back", "clock ahead", "blind", "sees", "settles", "fails",
    "node goes",
])


def happen(stage: Stage, what: str) -> None:
    match what:
        case "pod comes":
            stage.pods = [] if stage.cordoned else [gpu_pod("busy")]
        case "pod goes":
            stage.pods = []
        case "label edited":
            stage.labels[names.MIG_CONFIG] = "all-balanced"
        case "uncordoned":
            stage.cordoned = False
        case "deleted":
            stage.delete()
        case "forced":
            stage.configs.clear()
        case "audit":
            stage.change(mode=SharingMode.audit)
        case "spec":
            stage.change(profiles=("7g.40gb",))
        case "not ready" | "ready":
            stage.is_ready = what == "ready"
        case "clock back" | "clock ahead":
            stage.now += 5000 * (1 if what == "clock ahead" else -1)
        case "blind" | "sees":
            stage.pods_seen = Unseen("timed out") if what == "blind" else None
        case "settles" | "fails":
            stage.settle("success" if what == "settles" else "failed")
        case "node goes":
            stage.is_there = False


@pytest.mark.accepts("packing", 13)
@hypothesis.given(
    st.lists(st.tuples(HAPPENINGS, st.sampled_from([0, 1, 1, None])), min_size=8, max_size=30),
    st.lists(st.sampled_from(["success", "failed", "silence", "rebooting"]), max_size=4), st.booleans(),
)
def test_killed_between_any_two_writes_it_goes_on_and_no_node_stays_cordoned_by_us_without_a_reason(
    played: list[tuple[str, int | None]], answers: list[str], slices: bool
) -> None:
    fields = {"slicing_replicas": 4} if slices else SEVEN
    stage = Stage(config(**fields), answers=tuple(answers))
    stage.heed()
    for what, writes in played:
        happen(stage, what)
        stage.tick(seconds=30.0, writes=writes)
        assert_cordoned_for_a_reason(stage)
    stage.pods, stage.pods_seen, stage.is_ready = [], None, True
    stage.run(seconds=60.0)
    assert_cordoned_for_a_reason(stage)
    record = stage.record
    assert not stage.is_there or record is None or not record.is_running
    if record is not None and record.is_stuck and stage.is_there:
        assert "RepartitionFailed" in stage.events
        stage.settle("success")
        stage.run(seconds=60.0)
        assert not (stage.cordoned and stage.record and stage.record.is_stuck) or stage.offers != {names.GPU: 8}


def assert_cordoned_for_a_reason(stage: Stage) -> None:
    """Nobody but us cordons it here."""
    if stage.cordoned and stage.is_there:
        assert stage.record is not None
        assert stage.record.cordoned_by_us
        assert stage.record.is_running or stage.record.reason is RepartitionReason.RepartitionFailed


@pytest.mark.accepts("packing", 13)
@pytest.mark.parametrize("answers", [("success",), ("failed", "success"), ("failed", "failed")])
def test_killed_before_every_single_write_the_end_is_the_same(answers: tuple[str, ...]) -> None:
    calm = Stage(config(**SEVEN), answers=answers)
    calm.run()
    for place in range(len(calm.written)):
        stage = Stage(config(**SEVEN), answers=answers)
        for _ in range(40):
            left = max(0, place - len(stage.written)) if len(stage.written) <= place else None
            stage.tick(writes=left)
            if left == 0:
                break
        stage.run()
        assert (stage.offers, stage.cordoned, stage.record and stage.record.reason) == (
            calm.offers, calm.cordoned, calm.record and calm.record.reason,
        )
        assert steps_of(stage) == steps_of(calm)


def test_every_step_is_one_of_the_seven_or_an_end() -> None:
    assert [str(each) for each in RepartitionStep] == [
        "Planned", "Cordoning", "Draining", "Labelling", "Verifying", "Uncordoning", "RollingBack", "Ready", "Failed",
    ]
