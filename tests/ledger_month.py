"""A month of a small cluster: who really held which GPU at which second, and what somebody who looks at it is shown.

In: a seed. Out: a Month: looks with their faults, the cluster and its measurements as the books see them at each look,
and the truth as intervals. It has whole GPUs, MIG, MPS and GPUs in turns, prices that change, spot, a node without a
price, one that comes and goes, labels of pods and namespaces that change, idle times that are known late, pods that
come and go between two looks, hours in which nobody looks.
Invariant: no line of account/ is used. The truth has a number for every second of every part of every GPU, and its
intervals are the runs of equal ones, cut at midnight.
What a look decides (whose labels, that work goes on) changes at looks that are not lost; all else at any second.
Which GPU of several a pod is on matters to no sum but to what is rounded: there the world fills the first free one, as
the books do, and nobody comes and goes unseen.
"""

from __future__ import annotations

import functools
import itertools
import math
import random
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

import msgspec
import numpy as np

from fallow.model import cluster, decision, usage
from fallow.model.cost import (
    DAY,
    HOUR,
    WHOLE,
    CapacityType,
    CostKey,
    Dims,
    Interval,
    NodeBill,
    Rate,
    Sharing,
    Slice,
    SpendState,
)
from fallow.model.seen import Register
from tests import builders
from tests.ledgers import FREE, HELD, MIDNIGHT, UNKNOWN, USED, Ints

BEGIN, DAYS = MIDNIGHT, 30
END = BEGIN + DAYS * DAY
INTERVAL = HOUR  # how often somebody should look; three times as long without a look and nobody knows
PATIENCE = 3 * INTERVAL
IDLE_AFTER = 1800
RESTART = 45  # seconds until somebody who was killed looks again
SOON = 300  # a pod has measurements at a look so soon after it was bound
GPU = "nvidia.com/gpu"
NAMESPACES = {"vision": "seeing", "chat": "talking", "lab": ""}  # and the team that their labels say
RENAMED = ("chat", "speaking")


class Machine(msgspec.Struct):
    """A node. `lanes`: what each of its parts is asked for by, its GPU and its share. `prices`: from when on, nano an
    hour of a GPU. `shorts`: pods come and go there unseen."""

    name: str
    product: str
    model: str
    capacity: CapacityType
    sharing: Sharing
    lanes: list[tuple[str, int, Fraction]]
    prices: list[tuple[int, int | None]]
    labels: dict[str, str] = {}
    most: int = 100  # parts that pods hold for long
    shorts: bool = False
    begin: int = BEGIN
    end: int = END + DAY

    @property
    def gpus(self) -> int:
        return max(gpu for _, gpu, _ in self.lanes) + 1


class Life(msgspec.Struct):
    """A pod. `idle`, `blind`: from when to when it did nothing, or was not measured. `stays`: its object is left after
    its end; else its going is told."""

    name: str
    namespace: str
    team: str
    machine: Machine
    lanes: list[int]
    begin: int
    end: int
    is_measured: bool
    stays: bool = False
    is_short: bool = False
    idle: list[tuple[int, int]] = []
    blind: list[tuple[int, int]] = []
    teams: list[tuple[int, str]] = []  # from when on its own label says another one

    @property
    def uid(self) -> str:
        return f"uid-{self.name}"


class Look(msgspec.Struct):
    """`fault`: what becomes of who looks: "" nothing, "dies" (it may have written before), "blind" (nobody is there).
    `is_away`: the store is."""

    at: int
    fault: str = ""
    is_away: bool = False
    is_calm: bool = True  # what a look decides may change here


def whole(count: int) -> list[tuple[str, int, Fraction]]:
    return [(GPU, gpu, Fraction(1)) for gpu in range(count)]


def turns(count: int) -> list[tuple[str, int, Fraction]]:
    return [(GPU, 0, Fraction(1, count))] * count


class Month:
    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self.looks = self._plan_looks()
        self.machines = self._make_machines()
        self.lives = list[Life]()
        for machine in self.machines:
            self._live(machine)
        self._pods = dict[tuple[str, str, bool], cluster.Pod]()
        self._spans = dict[tuple[str, int], dict[SpendState, int]]()
        self._renamed_at = next(look.at for look in self.looks if look.at > BEGIN + 10 * DAY and look.is_calm)
        self._by_uid = {life.uid: life for life in self.lives}
        for life in self.lives:
            self._work(life)

    # ---- when somebody looks ----

    def _plan_looks(self) -> list[Look]:
        found, now = [Look(BEGIN)], BEGIN
        while now < END + 4 * HOUR:
            now += self._chance.randrange(2700, INTERVAL)
            dies = BEGIN + HOUR < now < END and self._chance.random() < 0.05
            found.append(Look(now, "dies" if dies else "", is_calm=not dies))
            if dies:
                now += RESTART
                found.append(Look(now, is_calm=False))
        for day, hours in ((4, 3), (11, 9), (17, 20), (23, 1)):  # the store is away
            for look in found:
                if 0 <= look.at - BEGIN - day * DAY - 5 * HOUR <= hours * HOUR:
                    look.is_away, look.fault = True, ""
        self._plan_blind(found, BEGIN + 20 * DAY)
        return found

    def _plan_blind(self, looks: list[Look], since: int) -> None:
        """Killed while the store is away: until it is back nobody knows where to go on."""
        first = next(at for at, look in enumerate(looks) if look.at > since and not look.fault)
        looks[first].is_away = True
        for look in looks[first:]:
            if look.at <= looks[first].at + 2 * PATIENCE:
                look.is_away, look.is_calm = True, False
                look.fault = "" if look is looks[first] else "blind"
        back = next(look for look in looks[first:] if not look.is_away)
        back.fault, back.is_calm = "", False

    @functools.cached_property
    def gaps(self) -> list[tuple[int, int]]:
        """In which nobody looked for longer than patience is."""
        seen = [look for look in self.looks if look.fault != "blind"]
        return [(one.at, after.at) for one, after in itertools.pairwise(seen) if after.at - one.at > PATIENCE]

    # ---- who is there ----

    def _make_machines(self) -> list[Machine]:
        chance, demand, spot = self._chance, CapacityType.on_demand, CapacityType.spot
        later, turn = BEGIN + 9 * DAY + 12 * HOUR + 17, {"nvidia.com/gpu.replicas": "4"}
        a100, a30 = ("NVIDIA-A100-SXM4-40GB", "A100-40GB"), ("NVIDIA-A30", "A30")
        hours = range(BEGIN + 5000, END, 5 * HOUR + 1234)
        tariff = [(BEGIN, 1_234_567_891), *((since, chance.randrange(10**9, 4 * 10**9)) for since in hours)]
        a30_lanes = [("nvidia.com/mig-1g.6gb", 0, Fraction(1, 4))] * 2 + [("nvidia.com/mig-2g.12gb", 0, Fraction(1, 2))]
        calm = [look.at for look in self.looks if look.is_calm]
        come, gone = (next(at for at in calm if at > BEGIN + day * DAY) for day in (3, 16))
        return [
            Machine("big", *a100, demand, Sharing.exclusive, whole(4),
                    [(BEGIN, 4_096_250_001), (later, 3_999_999_999)]),
            Machine("spot", *a100, spot, Sharing.exclusive, whole(2), tariff),
            Machine("cut", *a100, demand, Sharing.mig, [("nvidia.com/mig-1g.5gb", 0, Fraction(1, 7))] * 7,
                    [(BEGIN, 7 * 585_178_573), (later + DAY, 7 * 600_000_001)]),
            Machine("a30", *a30, demand, Sharing.mig, a30_lanes, [(BEGIN, 4 * 411_111_111)]),
            Machine("turns", *a100, demand, Sharing.timeslicing, turns(4), [(BEGIN, 4 * 1_000_000_007)], turn, 2, True),
            Machine("mps", *a100, spot, Sharing.mps, turns(4), [(at, nano * 4) for at, nano in tariff],
                    turn | {"nvidia.com/gpu.sharing-strategy": "mps"}, 2, True),
            Machine("unpriced", "NVIDIA-Foo-9000", "Foo-9000", demand, Sharing.exclusive, whole(2),
                    [(BEGIN, None), (calm[len(calm) // 3], 2_000_000_003)]),
            Machine("brief", *a100, spot, Sharing.exclusive, whole(2), tariff, begin=come - 100, end=gone),
        ]

    def _live(self, machine: Machine) -> None:
        """Fills its parts, the first free one first."""
        chance, taken = self._chance, list[Life]()
        # By its measurements the books learn what each GPU is called.
        first = [lane for lane in range(len(machine.lanes)) if lane == 0 or machine.sharing is Sharing.exclusive]
        taken.append(self._begin(machine, first, machine.begin))
        taken[0].is_measured = True
        for before, look in itertools.pairwise(self.looks):
            begin = chance.randrange(max(before.at + 1, look.at - SOON), look.at + 1)
            if look.fault == "blind" or not machine.begin <= begin < machine.end - HOUR:
                continue
            busy = {lane for one in taken if one.end > begin for lane in one.lanes}
            free = [lane for lane in range(len(machine.lanes)) if lane not in busy]
            if free and len(busy) < machine.most and chance.random() < 0.12:
                wanted = machine.lanes[chance.choice(free)][0]
                fit = [lane for lane in free if machine.lanes[lane][0] == wanted]
                count = chance.choice((1, 1, 2, 4)) if machine.sharing is Sharing.exclusive else 1
                taken.append(self._begin(machine, fit[:count], begin))
            has_room = look.is_calm and before.is_calm and look.at - before.at > 900
            if machine.shorts and has_room and chance.random() < 0.05:
                began = chance.randrange(before.at + 1, look.at - 400)
                self.lives.append(self._begin(machine, [3], began, chance.randrange(began + 1, look.at - 310)))
        self.lives += taken

    def _begin(self, machine: Machine, lanes: list[int], begin: int, end: int | None = None) -> Life:
        chance = self._chance
        lasts = math.floor(chance.paretovariate(1.1) * 6 * HOUR) + chance.randrange(HOUR)
        until = end or min(machine.end, begin + lasts)
        namespace = chance.choice(list(NAMESPACES))
        life = Life(
            f"{machine.name}-{len(self.lives)}-{begin}", namespace, chance.choice(("", "red", "blue")), machine, lanes,
            begin, until, is_measured=end is None and chance.random() < 0.85, is_short=end is not None,
        )
        at = next((at for at, look in enumerate(self.looks) if look.at >= until), len(self.looks) - 1)
        around = self.looks[max(0, at - 1) : at + 2]
        life.stays = end is None and (chance.random() < 0.3 or not all(one.is_calm for one in around))
        return life

    def _work(self, life: Life) -> None:
        """Idle times end at a look, and so do those in which it is not measured; they begin so, too."""
        calm = [look.at for look in self.looks if look.is_calm and life.begin < look.at < life.end]
        chance, now = self._chance, life.begin
        while life.is_measured and (later := [at for at in calm if at > now + 2 * HOUR]) and chance.random() < 0.8:
            begin, end = chance.choice(later[:3]), chance.choice(later[:8])
            if begin >= end:
                continue
            if chance.random() < 0.25:
                life.blind.append((begin, end))
            else:
                life.idle.append((chance.randrange(begin - HOUR, begin), end))
            now = end
        life.idle = [span for span in life.idle if self._is_noticed(*span, life.end)]
        if not life.is_short and calm[1:] and chance.random() < 0.2:
            life.teams.append((chance.choice(calm[1:]), "green"))

    def _is_noticed(self, begin: int, end: int, life_end: int) -> bool:
        """A look that is not lost shows it, long enough after it began."""
        until = min(end, life_end)
        return any(not look.fault and begin + IDLE_AFTER <= look.at < until for look in self.looks)

    # ---- what is shown at a look ----

    @functools.lru_cache(4)  # noqa: B019  # the eyes and the cycle ask for the same look
    def pods_at(self, now: int) -> tuple[cluster.Pod, ...]:
        found = []
        for life in self.lives:
            is_left = life.stays and life.end <= now < life.end + 6 * HOUR
            if not life.is_short and life.begin <= now and (now < life.end or is_left):
                found.append(self._pod(life, now))
        return tuple(found)

    def departures(self, after: int, until: int) -> tuple[cluster.Departure, ...]:
        gone = (life for life in self.lives if after < life.end <= until and not life.stays)
        return tuple(cluster.Departure(self._pod(life, life.begin), float(life.end)) for life in gone)

    def _pod(self, life: Life, now: int) -> cluster.Pod:
        team = next((team for since, team in reversed(life.teams) if since <= now), life.team)
        has_ended, world = life.end <= now, builders.World(float(now))
        if known := self._pods.get((life.uid, team, has_ended)):
            return known
        world.pod(
            life.name, uid=life.uid, namespace=life.namespace, node=life.machine.name,
            labels={"team": team} if team else {},
            resources={life.machine.lanes[life.lanes[0]][0]: len(life.lanes)}, bound_at=float(life.begin),
            created_at=float(life.begin - 5), phase="Succeeded" if has_ended else "Running",
            ended_at=float(life.end) if has_ended else None,
        )
        return self._pods.setdefault((life.uid, team, has_ended), world.pods[0])

    def nodes_at(self, now: int) -> dict[str, cluster.Node]:
        found = {}
        for one in self.machines:
            if one.begin <= now < one.end:
                offers: dict[str, int] = defaultdict(int)
                for resource, _, _ in one.lanes:
                    offers[resource] += 1
                found[one.name] = cluster.Node(
                    name=one.name, hostname=one.name, addresses=(), ready=True, gpu_product=one.product,
                    shared=bool(one.labels), labels=one.labels, gpus=len(one.lanes), offers=dict(offers),
                    created_at=float(one.begin),
                )
        return found

    def bill(self, name: str, now: int) -> NodeBill:
        one = next(one for one in self.machines if one.name == name)
        since, nano = [price for price in one.prices if price[0] <= now][-1]
        rate = None if nano is None else Rate(nano, f"{name}@{since}")
        return NodeBill(
            rate=rate, since=since, gpus=one.gpus, instance_type=name, region="eu", capacity_type=one.capacity,
            gpu_model=one.model,
        )

    def namespaces_at(self, now: int) -> dict[str, cluster.Namespace]:
        teams = {name: self._space_team(name, now) for name in NAMESPACES}
        return {name: cluster.Namespace(name, {"team": team} if team else {}, {}) for name, team in teams.items()}

    def _space_team(self, name: str, now: int) -> str:
        return RENAMED[1] if name == RENAMED[0] and now >= self._renamed_at else NAMESPACES[name]

    def rows_at(self, now: int, pods: Sequence[cluster.Pod]) -> decision.HeldRows:
        """A GPU is said to be idle only when it was so for long enough."""
        by_uid, rows = self._by_uid, list[tuple[int, str, float, float]]()
        for index, pod in enumerate(pods):
            life = by_uid[pod.uid]
            if pod.has_ended or not life.is_measured or any(begin <= now < end for begin, end in life.blind):
                continue
            idle = next((begin for begin, end in life.idle if begin + IDLE_AFTER <= now < end), math.nan)
            boards = sorted({self._board(life, lane) for lane in life.lanes})
            rows += [(index, gpu, float(idle), 0.25) for gpu in boards]
        columns: Any = list(zip(*rows, strict=True)) or [(), (), (), ()]
        nothing = np.zeros(len(rows), np.bool_)
        return decision.HeldRows(
            pod=np.array(columns[0], np.int32), gpu=tuple(columns[1]), mig=nothing, shared=nothing,
            idle_since=np.array(columns[2], np.float64), use=np.array(columns[3], np.float64),
        )

    def _board(self, life: Life, lane: int) -> str:
        return f"GPU-{life.machine.name}-{life.machine.lanes[lane][1]}"

    def read_hour(self, hour: int) -> tuple[usage.HourReading, ...]:
        found = []
        for life in self.lives:
            if life.is_measured and life.begin < hour + HOUR and life.end > hour:
                for lane in life.lanes:
                    use, share = self._use(life, hour) / WHOLE, float(life.machine.lanes[lane][2])
                    is_part = life.machine.sharing in (Sharing.timeslicing, Sharing.mps)
                    is_whole = life.machine.sharing is Sharing.exclusive
                    found.append(usage.HourReading(
                        node=life.machine.name, namespace=life.namespace, pod=life.name, gpu=self._board(life, lane),
                        **{"own_use": use * share} if is_part else {"use": use},
                        energy_mj=use * WHOLE * 1000 if is_whole else None,
                    ))
        return tuple(found)

    def _use(self, life: Life, hour: int) -> int:
        return zlib.crc32(f"{life.uid}/{hour}".encode()) % 400_000

    # ---- the truth ----

    def truth(self) -> Iterator[Interval]:
        for machine in self.machines:
            for gpu in range(machine.gpus):
                yield from self._truth_of(machine, gpu)

    def _truth_of(self, machine: Machine, gpu: int) -> Iterator[Interval]:
        """Every second of its parts: who has it and how, as a number; at which price, as another."""
        begin, end = machine.begin, min(machine.end, END)
        prices = np.zeros(end - begin, np.int32)
        for number, (since, _) in enumerate(machine.prices):
            prices[max(0, since - begin) :] = number
        lanes = [lane for lane, (_, on, _) in enumerate(machine.lanes) if on == gpu]
        shares = _divide([machine.lanes[lane][2] for lane in lanes])
        free = np.full(end - begin, WHOLE, np.int32)
        for lane, share in zip(lanes, shares, strict=True):
            kinds, held = list[tuple[Life, str, str, SpendState]](), np.full(end - begin, -1, np.int32)
            for life in self.lives:
                if life.machine is machine and lane in life.lanes:
                    for first, last, team, payer, state in self._stretches(life):
                        if not kinds or kinds[-1] != (life, team, payer, state):
                            kinds.append((life, team, payer, state))
                        held[max(0, first - begin) : max(0, last - begin)] = len(kinds) - 1
            free[held >= 0] -= share
            runs = [
                (kinds[kind][0], self._held(machine, gpu, lane, share, kinds[kind], price), first, last)
                for first, last, kind, price in _runs(begin, held, prices) if kind >= 0
            ]
            yield from self._measure(runs)
        for first, last, share, price in _runs(begin, free, prices):
            if share:
                yield Interval(slice=self._free(machine, gpu, share, price), t0=first, t1=last)

    def _stretches(self, life: Life) -> Iterator[tuple[int, int, str, str, SpendState]]:
        """In which it is in one state and one team's, and its namespace's another's, maybe, who pays."""
        spaces = [self._renamed_at] if life.namespace == RENAMED[0] else []
        cuts = {life.begin, life.end, *spaces, *(since for since, _ in life.teams)}
        cuts |= {cut for span in (*life.idle, *life.blind, *self.gaps) for cut in span}
        inside = sorted(cut for cut in cuts if life.begin <= cut <= life.end)
        for first, last in itertools.pairwise(inside):
            own = next((team for since, team in reversed(life.teams) if since <= first), life.team)
            payer = self._space_team(life.namespace, first)
            yield first, last, own or payer, payer, self._state(life, first)

    def _state(self, life: Life, at: int) -> SpendState:
        # Who came shortly before the look that ended a gap was measured in that look, which tells of that time, too.
        gaps = [gap for gap in self.gaps if gap[1] - life.begin > SOON]
        if not life.is_measured or any(begin <= at < end for begin, end in (*life.blind, *gaps)):
            return UNKNOWN
        return HELD if any(begin <= at < end for begin, end in life.idle) else USED

    def _rate(self, machine: Machine, price: int, part: Fraction) -> int | None:
        nano = machine.prices[price][1]
        return None if nano is None else round(nano * part)

    def _held(
        self, machine: Machine, gpu: int, lane: int, share: int, kind: tuple[Life, str, str, SpendState], price: int
    ) -> Slice:
        life, team, _, state = kind
        dims = Dims(team=team, labels=(("team", team),) if team else ())
        return Slice(
            gpu=f"{machine.name}/{gpu}", slot=str(lane), share=share, state=state, pod_uid=life.uid, pod_name=life.name,
            rate_nano=self._rate(machine, price, machine.lanes[lane][2]), key=_key(
                machine, machine.sharing, namespace=life.namespace, owner_kind="Pod", owner_name=life.name, dims=dims,
            ),
        )

    def _free(self, machine: Machine, gpu: int, share: int, price: int) -> Slice:
        """A whole number of the smallest parts that it is divided into."""
        smallest = math.lcm(*(part.denominator for _, _, part in machine.lanes))
        part = Fraction(round(Fraction(share, WHOLE) * smallest), smallest)
        return Slice(
            gpu=f"{machine.name}/{gpu}", slot="rest", share=share, state=FREE, key=_key(machine, Sharing.idle),
            rate_nano=self._rate(machine, price, part),
        )

    def _measure(self, runs: list[tuple[Life, Slice, int, int]]) -> Iterator[Interval]:
        burned = self._burn(runs)
        for at, (life, what, t0, t1) in enumerate(runs):
            hours = range(t0 // HOUR * HOUR, t1, HOUR)
            energy = () if life.machine.sharing is not Sharing.exclusive or not life.is_measured else tuple(
                burned[at, hour] for hour in hours
            )
            yield Interval(
                slice=what, t0=t0, t1=t1, use=tuple(self._use_in(life, what, hour) for hour in hours), energy_mj=energy
            )

    def _use_in(self, life: Life, what: Slice, hour: int) -> int | None:
        """What was measured of an hour was done in the part of it that was not idle."""
        if what.state is not USED:
            return 0 if what.state is HELD else None
        spans = self._seconds(life, hour)
        return min(WHOLE, self._use(life, hour) * (spans[USED] + spans[HELD]) // spans[USED])

    def _seconds(self, life: Life, hour: int) -> dict[SpendState, int]:
        if (life.uid, hour) not in self._spans:
            found = {USED: 0, HELD: 0, UNKNOWN: 0}
            for first, last, _, _, state in self._stretches(life):
                found[state] += max(0, min(last, hour + HOUR) - max(first, hour))
            self._spans[life.uid, hour] = found
        return self._spans[life.uid, hour]

    def _burn(self, runs: list[tuple[Life, Slice, int, int]]) -> dict[tuple[int, int], int]:
        """What a pod burned in an hour, by the seconds that each of its runs has of it; the largest rests get the
        rest."""
        weights = defaultdict[tuple[str, int], dict[int, int]](dict)
        for at, (life, _, t0, t1) in enumerate(runs):
            for hour in range(t0 // HOUR * HOUR, t1, HOUR):
                weights[life.uid, hour][at] = min(t1, hour + HOUR) - max(t0, hour)
        lives, found = {life.uid: life for life, *_ in runs}, dict[tuple[int, int], int]()
        for (uid, hour), of in weights.items():
            energy, seconds = self._use(lives[uid], hour) * 1000, sum(of.values())
            exact = {at: Fraction(energy * one, seconds) for at, one in of.items()}
            left = energy - sum(math.floor(one) for one in exact.values())
            first = sorted(exact, key=lambda at: (math.floor(exact[at]) - exact[at], at))[:left]
            found |= {(at, hour): math.floor(one) + (at in first) for at, one in exact.items()}
        return found


def _key(machine: Machine, sharing: Sharing, **more: Any) -> CostKey:
    return CostKey(
        cluster="c1", node=machine.name, instance_type=machine.name, region="eu", capacity_type=machine.capacity,
        gpu_model=machine.model, sharing=sharing, **more,
    )


def _divide(parts: Sequence[Fraction]) -> list[int]:
    """Whole micro-GPUs that come to a GPU: the first ones get what is left."""
    floors = [math.floor(part * WHOLE) for part in parts]
    return [one + (at < WHOLE - sum(floors)) for at, one in enumerate(floors)]


def _runs(begin: int, kinds: Ints, prices: Ints) -> Iterator[tuple[int, int, int, int]]:
    """Stretches of one kind at one price within one day: from, until, which, price."""
    changes = np.flatnonzero((kinds[1:] != kinds[:-1]) | (prices[1:] != prices[:-1])) + 1
    midnights = np.arange(-begin % DAY, len(kinds), DAY)
    cuts = np.unique(np.concatenate(([0], changes, midnights, [len(kinds)])))
    for first, last in itertools.pairwise(cuts.tolist()):
        yield begin + first, begin + last, int(kinds[first]), int(prices[first])


def registers(month: Month, now: int) -> Mapping[str, Register[Any]]:
    return {"nodes": Register(month.nodes_at(now)), "namespaces": Register(month.namespaces_at(now))}


def facts_of(intervals: Iterable[Interval], until: int) -> list[tuple[Any, ...]]:
    """All that reports are made of, without the names of GPUs and slots, of which nobody tells the books."""
    return sorted(
        (what.key.node, what.pod_name, one.t0, min(one.t1, until), what.share, what.state, str(what.rate_nano),
         what.key.dims.team, one.use if what.state is USED else (), one.energy_mj if any(one.energy_mj) else ())
        for one in intervals if (what := one.slice)
    )
