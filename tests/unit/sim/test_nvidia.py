"""NVIDIA's programs as they are pretended: what stands on the node between a label and what it asks for."""

from __future__ import annotations

from typing import Any

import pytest

from fallow import names
from fallow.sim import nvidia

MIXED = {"version": "v1", "flags": {"migStrategy": "mixed"}}


def share(way: str, replicas: int, *, renames: bool = True) -> dict[str, Any]:
    resources = [{"name": names.GPU, "replicas": replicas}]
    return {**MIXED, "sharing": {way: {"renameByDefault": renames, "resources": resources}}}


class Bench:
    """A node with two GPUs, and everything that was written on it."""

    def __init__(self, *answers: str, **plugin: Any) -> None:
        self.programs = nvidia.NvidiaNode(2, "NVIDIA-A100-SXM4-80GB", answers=answers)
        self.labels: dict[str, str] = {}
        self.plugin, self.mig = dict(plugin), dict[str, Any]()
        self.offers: dict[str, int] = {names.GPU: 2}

    def play(self, **labels: str | None) -> list[tuple[str | None, dict[str, int]]]:
        """The state and what is offered, after each write."""
        self._put({f"nvidia.com/{key.replace('__', '-').replace('_', '.')}": text for key, text in labels.items()})
        seen = []
        while (written := self.programs.heed(self.labels, self.plugin, self.mig)) is not None:
            self._put(written.labels)
            self.offers = dict(written.offers) if written.offers is not None else self.offers
            seen.append((self.labels.get(names.MIG_CONFIG_STATE), self.offers))
        return seen

    def _put(self, labels: Any) -> None:
        self.labels = {key: text for key, text in {**self.labels, **labels}.items() if text is not None}


def test_while_it_cuts_there_are_no_gpus_and_success_is_said_before_they_are_back() -> None:
    bench = Bench()
    cut = {names.GPU: 0, "nvidia.com/mig-1g.10gb": 14}
    assert bench.play(mig_config="all-1g.10gb") == [
        ("pending", {names.GPU: 2}), ("pending", {names.GPU: 0}), ("success", {names.GPU: 0}), ("success", cut),
        ("success", cut),
    ]
    assert (bench.labels[names.GPU_COUNT], bench.labels[names.GPU_REPLICAS]) == ("2", "0")
    assert bench.labels["nvidia.com/mig-1g.10gb.count"] == "14"
    assert bench.play(mig_config=None) == []  # whoever takes the label off changes nothing


def test_what_is_there_already_is_success_at_once_and_what_nobody_knows_failed() -> None:
    bench = Bench()
    assert {state for state, _ in bench.play(mig_config="all-disabled")} == {"success"}
    assert bench.play(mig_config="of-nobody") == [("failed", {names.GPU: 2})]


def test_after_a_failure_the_old_layout_is_offered_and_the_next_label_heeded() -> None:
    bench = Bench("failed", "success")
    assert bench.play(mig_config="all-1g.10gb")[-1] == ("failed", {names.GPU: 2})
    assert [state for state, _ in bench.play(mig_config="all-disabled")][:2] == ["pending", "pending"]
    assert bench.offers == {names.GPU: 2}


@pytest.mark.parametrize("answer", [nvidia.SILENCE, nvidia.REBOOTING])
def test_until_it_comes_to_an_end_nothing_is_offered(answer: str) -> None:
    bench = Bench(answer)
    bench.play(mig_config="all-1g.10gb")
    assert bench.offers == {names.GPU: 0}
    bench.programs.settle("success", {})
    assert bench.play()[-1] == ("success", {names.GPU: 0, "nvidia.com/mig-1g.10gb": 14})


@pytest.mark.parametrize(
    ("way", "named", "capable"), [("timeSlicing", "time-slicing", "false"), ("mps", "mps", "true")]
)
def test_a_key_that_is_not_there_changes_nothing_until_it_is(way: str, named: str, capable: str) -> None:
    bench = Bench(default=MIXED)
    assert bench.play(device__plugin_config="four") == []
    bench.plugin["four"] = share(way, 4)
    bench.play()
    assert bench.offers == {names.GPU: 0, names.GPU_SHARED: 8}
    told = (bench.labels[names.GPU_REPLICAS], bench.labels[names.GPU_SHARING], bench.labels[names.MPS_CAPABLE])
    assert told == ("4", named, capable)
    bench.plugin["four"] = share(way, 8)  # the same key with another content
    assert bench.play() == []


def test_what_is_not_renamed_says_so_in_the_product() -> None:
    bench = Bench(any=share("timeSlicing", 3, renames=False))
    bench.play(device__plugin_config="any")
    assert (bench.offers, bench.labels[names.GPU_PRODUCT]) == ({names.GPU: 6}, "NVIDIA-A100-SXM4-80GB-SHARED")
