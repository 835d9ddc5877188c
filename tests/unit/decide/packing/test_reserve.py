"""Promised places: nobody else is sent there, until the pod is seen or the promise is too old."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.decide.packing import examples

from fallow.decide import packing
from fallow.decide.packing import reserve
from fallow.decide.packing.room import Placement

NOW = 1_800_000_000.0


def make_reservations(gpus: int = 1) -> tuple[reserve.Reservations, packing.Packer]:
    nodes = examples.cluster(examples.node(gpus=gpus))
    packer = packing.Packer(nodes, packing.prepare("BestFit", nodes, []), examples.in_row(nodes))
    return reserve.Reservations(packer), packer


@pytest.mark.accepts("packing", 19)
def test_of_two_pods_within_ten_milliseconds_only_one_is_steered_to_the_last_share() -> None:
    promises, packer = make_reservations()
    packer.room.add(examples.pod(milli=500), Placement(0, (0,), 500))
    assert promises.promise("first", examples.pod(milli=400), NOW) == Placement(0, (0,), 400)
    assert promises.promise("second", examples.pod(milli=400), NOW + 0.01) is None


def test_asked_again_a_pod_is_told_the_same_place() -> None:
    promises, packer = make_reservations()
    places = [promises.promise("a", examples.pod(milli=300), NOW + second) for second in range(3)]
    assert places == [Placement(0, (0,), 300)] * 3
    assert packer.room.allocated == 300


@pytest.mark.parametrize(("seconds", "is_free"), [(29.9, False), (30.0, True)])
def test_a_promise_that_is_too_old_is_given_back(seconds: float, is_free: bool) -> None:
    promises, _ = make_reservations()
    promises.promise("first", examples.pod(), NOW)
    assert (promises.promise("second", examples.pod(), NOW + seconds) is not None) == is_free


def test_a_pod_that_is_seen_bound_counts_where_it_is() -> None:
    promises, packer = make_reservations(gpus=2)
    promised = promises.promise("a", examples.pod(), NOW)
    assert promised == Placement(0, (0,), 1000)
    assert promises.settle("a")
    packer.room.add(examples.pod(), Placement(0, (1,), 1000))  # the kubelet took another GPU
    assert packer.room.gpu[0].tolist() == [1000, 0]
    assert not promises.settle("a")


STEP = st.tuples(st.integers(0, 4), st.sampled_from((100, 400, 1000)), st.booleans(), st.floats(0, 20))


@given(steps=st.lists(STEP, max_size=30))
def test_what_is_promised_is_what_is_taken_and_in_the_end_all_is_free(
    steps: list[tuple[int, int, bool, float]]
) -> None:
    promises, packer = make_reservations(gpus=2)
    now, empty = NOW, packer.room.gpu.copy()
    for pod, milli, settles, seconds in steps:
        now += seconds
        if settles:
            promises.settle(str(pod))
        else:
            promises.promise(str(pod), examples.pod(milli=milli), now)
        assert 0 <= packer.room.allocated <= 2000
    promises.expire(now + reserve.PROMISED_FOR)
    assert len(promises) == 0
    assert np.array_equal(packer.room.gpu, empty)
