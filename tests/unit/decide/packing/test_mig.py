"""MIG: which layouts are legal, and where an instance goes."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fallow.decide.packing import mig
from fallow.model import gpus

CUT = tuple(model for model in gpus.MODELS if model.mig)
SEVEN = [model for model in CUT if model.mig and model.mig.memory == 8]
A100, A30, T4 = (model for name in ("A100-40GB", "A30", "T4") if (model := gpus.find(name)))


def of(table: gpus.Mig, *names: str) -> list[gpus.Profile]:
    return [profile for name in names if (profile := table.find(name))]


def kinds(table: gpus.Mig, *, double: bool) -> list[gpus.Profile]:
    """Without media extensions, which double every layout that has a 1g."""
    plain = (profile for profile in table.profiles if not profile.name.endswith("+me"))
    return [profile for profile in plain if double or (profile.compute, profile.memory) != (1, 2)]


# ---- layouts --------------------------------------------------------------------------------------------------------


Placed: TypeAlias = tuple[gpus.Profile, int]  # at which memory slice it begins
Layout: TypeAlias = tuple[Placed, ...]


def list_layouts(table: gpus.Mig, profiles: Sequence[gpus.Profile]) -> list[Layout]:
    """All placed layouts of these profiles to which nothing can be added."""
    found = {frozenset(placed) for placed in _grow((), table, profiles, 0)}
    whole = [layout for layout in found if not any(True for _ in _additions(layout, table, profiles))]
    from_left = [tuple(sorted(layout, key=lambda placed: placed[1])) for layout in whole]
    return sorted(from_left, key=lambda layout: [(start, profile.name) for profile, start in layout])


def _grow(layout: Layout, table: gpus.Mig, profiles: Sequence[gpus.Profile], begin: int) -> Iterator[Layout]:
    """From the left, so that every layout is met once."""
    yield layout
    for profile, start in _additions(frozenset(layout), table, profiles):
        if start >= begin:
            yield from _grow((*layout, (profile, start)), table, profiles, start + profile.memory)


def _additions(layout: frozenset[Placed], table: gpus.Mig, profiles: Sequence[gpus.Profile]) -> Iterator[Placed]:
    free, counts = mig.empty(table), Counter(profile for profile, _ in layout)
    for placed in layout:
        free = free.take(*placed)
    for profile in profiles:
        if counts[profile] < profile.most:
            yield from ((profile, start) for start in profile.starts if free.has_room(profile, start))


@pytest.mark.parametrize("model", SEVEN, ids=lambda model: model.name)
@pytest.mark.parametrize(
    ("double", "placed", "multisets"), [(False, 19, 14), (True, 78, 38)], ids=["usual", "double memory"]
)
def test_there_are_as_many_layouts_as_nvidia_counts(
    model: gpus.Model, double: bool, placed: int, multisets: int
) -> None:
    _count(list_layouts(model.mig, kinds(model.mig, double=double)), placed, multisets)


def test_and_on_an_a30() -> None:
    _count(list_layouts(A30.mig, kinds(A30.mig, double=True)), 5, 4)


def _count(layouts: Sequence[tuple[Placed, ...]], placed: int, multisets: int) -> None:
    assert len(layouts) == len(set(layouts)) == placed
    assert len({tuple(sorted(profile.name for profile, _ in layout)) for layout in layouts}) == multisets


@pytest.mark.parametrize("model", CUT, ids=lambda model: model.name)
def test_every_layout_that_is_listed_is_legal_and_full(model: gpus.Model) -> None:
    for layout in list_layouts(model.mig, model.mig.profiles):
        names = [profile.name for profile, _ in layout]
        assert mig.judge(names, model) is None
        free = mig.empty(model.mig)
        for placed in layout:
            free = free.take(*placed)
        may = [profile for profile in model.mig.profiles if names.count(profile.name) < profile.most]
        assert not [each for each in may if any(free.has_room(each, start) for start in each.starts)]


@pytest.mark.accepts("packing", 14)
@pytest.mark.parametrize(
    ("layout", "because"),
    [
        (
            ["4g.20gb", "4g.20gb"],
            "[4g.20gb,4g.20gb] is no legal layout of A100-40GB: 4g.20gb stands 2 times, 1 at most",
        ),
        (
            ["3g.20gb", "3g.20gb", "1g.5gb"],
            "[3g.20gb,3g.20gb,1g.5gb] is no legal layout of A100-40GB: it takes 9 memory slices of 8",
        ),
        (["7g.40gb", "1g.5gb"], "[7g.40gb,1g.5gb] is no legal layout of A100-40GB: it takes 8 compute slices of 7"),
        (["1g.5gb"] * 8, "1g.5gb stands 8 times, 7 at most"),
        (["1g.5gb+me", "1g.5gb+me"], "1g.5gb+me stands 2 times, 1 at most"),
        (["1g.10gb", "9g.90gb"], "it has no profile 9g.90gb; there are 1g.5gb, 1g.5gb+me, 1g.10gb"),
    ],
    ids=["two 4g", "no slice left", "no compute left", "eight", "media twice", "unknown"],
)
def test_an_illegal_layout_is_refused_in_a_sentence(layout: list[str], because: str) -> None:
    verdict = mig.judge(layout, A100)
    assert isinstance(verdict, mig.IllegalLayout)
    assert because in verdict.because


@pytest.mark.parametrize(
    "layout",
    [[], ["7g.40gb"], ["3g.20gb", "3g.20gb"], ["1g.5gb"] * 7, ["1g.10gb"] * 4, ["2g.10gb", "4g.20gb", "1g.5gb+me"]],
    ids=lambda layout: " ".join(layout) or "nothing",
)
def test_a_legal_layout_is_accepted_in_any_order(layout: list[str]) -> None:
    assert mig.judge(layout, A100) is None
    assert mig.judge(layout[::-1], A100) is None


def test_a_model_without_mig_has_no_layout() -> None:
    verdict = mig.judge(["1g.5gb"], T4)
    assert verdict is not None
    assert verdict.because == "[1g.5gb] cannot be laid out: no MIG profiles of T4 are known"


def test_starts_bind_where_sums_would_not() -> None:
    """A catalogue that a driver may tell us: three memory slices, but both profiles want to begin at 0."""
    first, other = gpus.Profile("1g.1gb", 1, 1, (0,), 2, None, None), gpus.Profile("1g.2gb", 1, 2, (0,), 1, None, None)
    odd = gpus.Model("odd", 3, 100, mig=gpus.Mig(3, 3, (), (first, other)))
    assert mig.judge(["1g.1gb"], odd) is None
    verdict = mig.judge(["1g.1gb", "1g.2gb"], odd)
    assert verdict is not None
    assert "no starts leave every instance memory slices of its own" in verdict.because


# ---- where an instance goes -----------------------------------------------------------------------------------------


@pytest.mark.accepts("packing", 16)
@pytest.mark.parametrize(
    ("profile", "starts"),
    [("1g.5gb", [6, 5, 4, 3, 2, 1, 0]), ("2g.10gb", [4, 2, 0]), ("3g.20gb", [4, 0]), ("7g.40gb", [0])]
)
@pytest.mark.parametrize("without", ["", "+me"], ids=["all profiles", "without media"])
def test_on_an_empty_a100_instances_are_packed_from_the_right(profile: str, starts: list[int], without: str) -> None:
    demand = {each.name: 1 for each in A100.mig.profiles if not without or without not in each.name}
    assert _fill(A100.mig, profile, mig.SliceScores(A100.mig, demand)) == starts
    assert _fill(A100.mig, profile, mig.SliceScores(A100.mig)) == starts


def _fill(table: gpus.Mig, name: str, board: mig.SliceScores) -> list[int]:
    free, starts, (profile,) = mig.empty(table), list[int](), of(table, name)
    while spot := board.place([free], profile):
        starts.append(spot.start)
        free = free.take(profile, spot.start)
    return starts


def test_the_gpu_that_is_broken_already_is_used_before_a_whole_one() -> None:
    (small,) = of(A100.mig, "1g.5gb")
    whole = mig.empty(A100.mig)
    used = whole.take(small, 6)
    assert mig.SliceScores(A100.mig).place([whole, used], small) == mig.Spot(1, 5)


def test_among_equals_the_tie_order_decides() -> None:
    (small,) = of(A100.mig, "1g.5gb")
    gpus_free, board = [mig.empty(A100.mig)] * 3, mig.SliceScores(A100.mig)
    assert board.place(gpus_free, small) == mig.Spot(0, 6)
    assert board.place(gpus_free, small, [2, 1, 0]) == mig.Spot(2, 6)


def test_demand_moves_the_choice() -> None:
    """Where only 3g is wanted, a half that is broken already costs nothing; where 4g is wanted, its start 0 is kept."""
    (small, two) = of(A100.mig, "1g.5gb", "2g.10gb")
    board = mig.SliceScores(A100.mig, {"4g.20gb": 5, "7g.40gb": 0, "no such profile": 9})
    assert board.place([mig.empty(A100.mig)], two) == mig.Spot(0, 4)
    half = mig.empty(A100.mig).take(small, 0)
    spot = mig.SliceScores(A100.mig, {"3g.20gb": 1}).place([half], small)
    assert spot == mig.Spot(0, 3)


def test_no_room_is_none() -> None:
    (large,) = of(A100.mig, "7g.40gb")
    board = mig.SliceScores(A100.mig)
    assert board.place([], large) is None
    assert board.place([mig.empty(A100.mig).take(large, 0)], large) is None


@given(st.sampled_from(CUT), st.lists(st.tuples(st.integers(0, 6), st.booleans()), max_size=30))
def test_slices_are_never_overfilled_and_leaving_restores_them_exactly(
    model: gpus.Model, steps: list[tuple[int, bool]]
) -> None:
    """Whatever comes and goes: what stands is disjoint, and the room is that of what stands."""
    board, gpus_free = mig.SliceScores(model.mig), [mig.empty(model.mig)] * 2
    standing: list[tuple[int, gpus.Profile, int]] = []
    for number, leaves in steps:
        profile = model.mig.profiles[number % len(model.mig.profiles)]
        if leaves and standing:
            gpu, gone, start = standing.pop(number % len(standing))
            gpus_free[gpu] = gpus_free[gpu].give(gone, start)
        elif spot := board.place(gpus_free, profile):
            before = gpus_free[spot.gpu]
            gpus_free[spot.gpu] = before.take(profile, spot.start)
            assert gpus_free[spot.gpu].give(profile, spot.start) == before
            standing.append((spot.gpu, profile, spot.start))
        for gpu, free in enumerate(gpus_free):
            here = [(each, start) for where, each, start in standing if where == gpu]
            taken = [slice_ for each, start in here for slice_ in range(start, start + each.memory)]
            assert len(taken) == len(set(taken))
            assert free.mask == ((1 << model.mig.memory) - 1) & ~sum(1 << slice_ for slice_ in taken)
            assert 0 <= free.compute == model.mig.compute - sum(each.compute for each, _ in here)


@given(st.sampled_from(CUT), st.data())
def test_the_table_is_what_the_formula_says(model: gpus.Model, data: st.DataObject) -> None:
    demand = {profile.name: data.draw(st.integers(0, 5), profile.name) for profile in model.mig.profiles}
    free = mig.Slices(
        data.draw(st.integers(0, (1 << model.mig.memory) - 1)), data.draw(st.integers(0, model.mig.compute))
    )
    weights = demand if any(demand.values()) else dict.fromkeys(demand, 1)
    usable = {each.name: each.memory * _most(free, each, each.starts, each.most) for each in model.mig.profiles}
    expected = sum(weights[name] * (free.mask.bit_count() - slices) for name, slices in usable.items())
    assert mig.SliceScores(model.mig, demand).fragmentation(free) == expected


def _most(free: mig.Slices, profile: gpus.Profile, starts: Sequence[int], most: int) -> int:
    """Every choice tried."""
    choices = [start for start in starts if most and free.has_room(profile, start)]
    rest = {start: [other for other in choices if other > start] for start in choices}
    found = (1 + _most(free.take(profile, start), profile, rest[start], most - 1) for start in choices)
    return max(found, default=0)


@pytest.mark.parametrize("start", [7, 1, -2])
def test_a_spotthat_does_not_exist_is_refused(start: int) -> None:
    (two,) = of(A100.mig, "2g.10gb")
    with pytest.raises(ValueError, match=r"2g\.10gb does not fit at memory slice"):
        mig.empty(A100.mig).take(two, start)
    with pytest.raises(ValueError, match=r"does not stand at memory slice 0"):
        mig.empty(A100.mig).give(two, 0)
