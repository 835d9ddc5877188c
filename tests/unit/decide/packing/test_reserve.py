"""Promised places: nobody else is sent there, until the pod is seen or the promise is too old."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.decide.packing import examples

from fallow.decide.packing import place, policies, reserve
from fallow.decide.packing.state import Placement

NOW = 1_800_000_000.0


def desk(gpus: int = 1) -> tuple[reserve.Reservations, place.Packer]:
    nodes = examples.cluster(examples.node(gpus=gpus))
    packer = place.Packer(nodes, policies.prepare("BestFit", nodes, []), examples.in_row(nodes))
    return reserve.Reservations(packer), packer


@pytest.mark.accepts("packing", 19)
def test_of_two_pods_within_ten_milliseconds_only_one_is_steered_to_the_last_share() -> None:
    promises, packer = desk()
    packer.state.add(examples.pod(milli=500), Placement(0, (0,), 500))
    assert promises.promise("first", examples.pod(milli=400), NOW) == Placement(0, (0,), 400)
    assert promises.promise("second", examples.pod(milli=400), NOW + 0.01) is None


def test_asked_again_a_pod_is_told_the_same_place() -> None:
    promises, packer = desk()
    places = [promises.promise("a", examples.pod(milli=300), NOW + second) for second in range(3)]
    assert places == [Placement(0, (0,), 300)] * 3
    assert packer.state.allocated == 300


@pytest.mark.parametrize(("seconds", "is_free"), [(29.9, False), (30.0, True)])
def test_a_promise_that_is_too_old_is_given_back(seconds: float, is_free: bool) -> None:
    promises, _ = desk()
    promises.promise("first", examples.pod(), NOW)
    assert (promises.promise("second", examples.pod(), NOW + seconds) is not None) == is_free


def test_a_pod_that_is_seen_bound_counts_where_it_is() -> None:
    promises, packer = desk(gpus=2)
    promised = promises.promise("a", examples.pod(), NOW)
    assert promised == Placement(0, (0,), 1000)
    assert promises.settle("a")
    packer.state.add(examples.pod(), Placement(0, (1,), 1000))  # the kubelet took another GPU
    assert packer.state.gpu[0].tolist() == [1000, 0]
    assert not promises.settle("a")


@given(steps=st.lists(st.tuples(st.integers(0, 4), st.sampled_from((100, 400, 1000)), st.booleans(), st.floats(0, 20)), max_size=30))
def test_what_is_promised_is_what_is_taken_and_in_the_end_all_is_free(steps: list[tuple[int, int, bool, float]]) -> None:
    promises, packer = desk(gpus=2)
    now, empty = NOW, packer.state.gpu.copy()
    for pod, milli, settles, seconds in steps:
        now += seconds
        if settles:
            promises.settle(str(pod))
        else:
            promises.promise(str(pod), examples.pod(milli=milli), now)
        assert 0 <= packer.state.allocated <= 2000
    promises.expire(now + reserve.PROMISED_FOR)
    assert len(promises) == 0
    assert np.array_equal(packer.state.gpu, empty)
