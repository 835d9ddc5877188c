"""Which processes hold GPU memory and do nothing: one observation of each process at each poll, and a streak of them.

In: the devices as the driver read them, samples of what their processes used, facts of the kernel, two clocks.
Out: every device with its processes judged; how many samples were garbage. ProcessHistory remembers each (UUID, PID,
start time): a streak of zeros, when it began (monotonic clock), when the process last worked (wall clock) and the stamp
of the last sample that was used.
Invariant: only zeros that were really read, IDLE_POLLS of them in a row, make a process idle. Whatever failed, is
garbage, contradicts the device or cannot be measured is unknown: it never adds to a streak, and the process says
nothing of its idleness at that poll.
"""

import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

import msgspec

from fallow.model.processes import Device, Fact, Holder, Judged, KeptProcess, Key, Process, Sample, Samples, Type
from fallow.model.units import Instant, Seconds

HIDDEN_PERCENT: Final = 5  # more than this on a device is work, not the noise of a counter
GARBAGE_ABOVE: Final = 100  # percent
MOST_AHEAD: Final = 10.0  # seconds: a stamp further ahead is no time
LATEST_ARRIVAL: Final = 10.0  # seconds: no sample shows up later than this after its stamp
SAMPLING: Final = 1.0  # seconds between two samples of a slow driver: sooner after work, no sample is no zero
CLOCK_STEP: Final = 1.0  # seconds: the wall clock was set back, not slewed
MPS_SERVER: Final = "nvidia-cuda-mps-server"
_MPS_SERVER_NAMES: Final = frozenset({MPS_SERVER, MPS_SERVER[:15]})  # the kernel cuts names at 15 bytes

Facts: TypeAlias = Mapping[int, Fact]  # by PID; one without is not visible


class Rules(msgspec.Struct, frozen=True):
    """What counts as idle. `only_visible`: processes that the kernel does not show us are not ours to report."""

    idle_polls: int = 2
    threshold: float = 0.0  # percent of SM up to which a reading counts as zero
    stale_after: Seconds = 30.0
    poll_interval: Seconds = 5.0
    include_graphics: bool = False
    only_visible: bool = False


class Observation(enum.Enum):
    busy = "busy"
    zero = "zero"
    none = "none"  # it cannot be idle: it holds no memory, or it is the server of others
    unknown = "unknown"


class Life(msgspec.Struct, gc=False, kw_only=True):
    """What is remembered of a process on a device. Both times without a name are of the monotonic clock."""

    stamp: int  # microseconds: samples up to here are used up
    listed: Seconds
    known: Seconds  # the last observation that was not unknown
    streak: int = 0
    first_zero: Seconds = 0.0
    last_active: Instant | None = None
    is_restored: bool = False  # from before a restart, and not observed since


class Use(msgspec.Struct, gc=False):
    """What the samples of one poll say of one process; `sm` None: all of them were garbage."""

    sm: int | None = None
    stamp: int = 0
    active: int = 0  # the newest stamp with work of any engine


class ProcessHistory:
    """What is remembered of processes: from one poll to the next, and over a restart by export() and restore()."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        # Seen at one poll, unknown for STALE_AFTER, seen again at the next: only more than that is too long.
        self.patience = rules.stale_after + rules.poll_interval
        self._lives: dict[str, dict[Key, Life]] = {}
        self._supported: dict[str, bool] = {}
        self._offset: Seconds | None = None  # of the wall clock from the monotonic one

    def since(self, device: Device, facts: Facts, now: Instant, monotonic: Seconds) -> int | None:
        """The stamp after which samples of this device are wanted; None: no processes, or they cannot be told apart."""
        self._follow_clock(now, monotonic)
        if not device.holders or device.is_lost or _is_opaque(device):
            return None
        return min(self._find(device.uuid, holder.pid, facts, now, monotonic).stamp for holder in device.holders)

    def judge(
        self, devices: Iterable[Device], samples: Mapping[str, Samples], facts: Facts, now: Instant, monotonic: Seconds
    ) -> tuple[list[Judged], dict[str, int]]:
        """Devices that are there, judged, and reasons for which samples were thrown away."""
        self._follow_clock(now, monotonic)
        present = [device for device in devices if not device.is_lost]
        here = {device.uuid for device in present}
        self._lives = {uuid: lives for uuid, lives in self._lives.items() if uuid in here}
        self._supported = {uuid: is_known for uuid, is_known in self._supported.items() if uuid in here}
        discarded: dict[str, int] = {}
        judged = [
            self._judge_device(device, samples.get(device.uuid), facts, discarded, now, monotonic) for device in present
        ]
        return judged, discarded

    def export(self, monotonic: Seconds) -> list[KeptProcess]:
        """Without a start time a PID cannot be told from its next owner, so that is not kept; nor is a stale streak."""
        return [
            KeptProcess(
                uuid=uuid, pid=pid, start=start, streak=life.streak if monotonic - life.known <= self.patience else 0,
                first_zero=life.first_zero, known=life.known, last_active=life.last_active, stamp=life.stamp,
            )
            for uuid, lives in self._lives.items() for (pid, start), life in lives.items() if start
        ]

    def restore(self, kept: Iterable[KeptProcess], monotonic: Seconds) -> None:
        """What the same boot kept, before the first poll. A streak goes on if a zero comes first, and soon."""
        for each in kept:
            if each.first_zero <= each.known <= monotonic or not each.streak:
                self._lives.setdefault(each.uuid, {})[each.pid, each.start] = Life(
                    stamp=each.stamp, listed=monotonic, known=each.known, streak=each.streak,
                    first_zero=each.first_zero, last_active=each.last_active, is_restored=True,
                )

    # ---- what is remembered -----------------------------------------------------------------------------------------

    def _find(self, uuid: str, pid: int, facts: Facts, now: Instant, monotonic: Seconds) -> Life:
        fact = facts.get(pid, _HIDDEN)
        lives = self._lives.setdefault(uuid, {})
        life = lives.get((pid, fact.start))
        if life is None:
            for key in [key for key in lives if key[0] == pid]:  # a PID has one owner: the one before has ended
                del lives[key]
            # Never from 0: the driver would answer with all it has, and old work would look like new.
            began = max(now - self._rules.poll_interval, min(fact.started_at or 0.0, now))
            life = lives[pid, fact.start] = Life(stamp=_micros(began), listed=monotonic, known=monotonic)
        return life

    def _forget_processes(self, uuid: str, monotonic: Seconds) -> None:
        """After a good list: who is not in it has ended. Without a start time its PID may have a new owner already."""
        lives = self._lives.get(uuid, {})
        unlisted = {key: monotonic - life.listed for key, life in lives.items() if life.listed != monotonic}
        for key in [key for key, seconds in unlisted.items() if not key[1] or seconds > self.patience]:
            del lives[key]

    def _follow_clock(self, now: Instant, monotonic: Seconds) -> None:
        """Stamps are of the wall clock. If that is set back, new samples would look old, and work like silence."""
        offset, before = now - monotonic, self._offset
        self._offset = offset
        if before is not None and offset >= before - CLOCK_STEP:
            return
        back, latest = 0 if before is None else _micros(before - offset), _micros(now - self._rules.poll_interval)
        for life in (life for lives in self._lives.values() for life in lives.values()):
            life.stamp = max(0, min(life.stamp - back, latest))  # the latest: it was set back just before a restart

    # ---- one device -------------------------------------------------------------------------------------------------

    def _judge_device(
        self, device: Device, samples: Samples | None, facts: Facts, discarded: dict[str, int], now: Instant,
        monotonic: Seconds,
    ) -> Judged:
        supported = self._learn_support(device, samples)
        if device.holders is None:
            return Judged(device, None, None, supported)
        lives = [self._find(device.uuid, holder.pid, facts, now, monotonic) for holder in device.holders]
        sms = self._read_use(device, samples, lives, discarded, now)
        observations = self._observe(device, sms, facts)
        processes = []
        for holder, life, sm, observation in zip(device.holders, lives, sms, observations, strict=True):
            self._note(life, observation, monotonic)
            fact = facts.get(holder.pid, _HIDDEN)
            if fact.start or not self._rules.only_visible:
                processes.append(self._describe(holder, fact, life, sm, observation, monotonic))
        self._forget_processes(device.uuid, monotonic)
        return Judged(device, processes, _sum_idle(processes), supported)

    def _learn_support(self, device: Device, samples: Samples | None) -> bool | None:
        if device.is_mig or (samples is not None and not samples.is_supported):
            self._supported[device.uuid] = False
        elif samples is not None and samples.found is not None:
            self._supported[device.uuid] = True
        return self._supported.get(device.uuid)

    def _read_use(
        self, device: Device, samples: Samples | None, lives: Sequence[Life], discarded: dict[str, int], now: Instant
    ) -> list[int | None]:
        """Percent of SM per process, in the order of the device's holders; None: not known."""
        holders = device.holders or []
        if _is_opaque(device) or samples is None or samples.found is None or not samples.is_supported:
            return [None] * len(holders)
        by_pid = {holder.pid: life for holder, life in zip(holders, lives, strict=True)}
        uses = _sift(samples.found, by_pid, self._rules.threshold, discarded, now)
        used_up = _micros(now - LATEST_ARRIVAL)
        for life in lives:
            life.stamp = max(life.stamp, used_up)
        for pid, use in uses.items():
            life = by_pid[pid]
            life.stamp = max(life.stamp, use.stamp)
            if use.active:
                life.last_active = min(use.active / 1e6, now)
        return [
            uses[holder.pid].sm if holder.pid in uses else None if _just_worked(life, now) else 0
            for holder, life in zip(holders, lives, strict=True)
        ]

    def _observe(self, device: Device, sms: Sequence[int | None], facts: Facts) -> Iterator[Observation]:
        holders = device.holders or []
        servers = [facts.get(holder.pid, _HIDDEN).name in _MPS_SERVER_NAMES for holder in holders]
        has_server, load = any(servers), device.utilization
        is_hidden = self._hides_activity(load, sms)
        is_quiet = load is not None and load <= HIDDEN_PERCENT
        for holder, sm, is_server in zip(holders, sms, servers, strict=True):
            if sm is None:
                yield Observation.unknown
            elif sm > self._rules.threshold:
                yield Observation.busy
            elif is_server or holder.memory == 0:
                yield Observation.none
            elif is_hidden or ((holder.is_mps or has_server) and not is_quiet):
                yield Observation.unknown  # the work of clients may be booked on the server, or on nobody
            else:
                yield Observation.zero

    def _hides_activity(self, load: int | None, sms: Sequence[int | None]) -> bool:
        """The device works, and nobody on it does by more than the threshold, nor accounts for it below that."""
        if load is None or any(sm > self._rules.threshold for sm in sms if sm is not None):
            return False
        return load > HIDDEN_PERCENT + sum(sm for sm in sms if sm is not None)

    # ---- one process ------------------------------------------------------------------------------------------------

    def _note(self, life: Life, observation: Observation, monotonic: Seconds) -> None:
        was_restored, unseen_for = life.is_restored, monotonic - (life.listed if life.is_restored else life.known)
        life.listed, life.is_restored = monotonic, False
        if observation is Observation.unknown:
            life.streak = 0 if was_restored else life.streak  # nobody knows what it did while we were away
            return
        if observation is not Observation.zero or unseen_for > self.patience:
            life.streak = 0
        if observation is Observation.zero:
            life.first_zero = life.first_zero if life.streak else monotonic
            life.streak += 1
        life.known = monotonic

    def _describe(
        self, holder: Holder, fact: Fact, life: Life, sm: int | None, observation: Observation, monotonic: Seconds
    ) -> Process:
        kind = _type_of(holder, fact)
        is_unknown = observation is Observation.unknown
        is_idle = observation is Observation.zero and life.streak >= self._rules.idle_polls
        return Process(  # in the order of its fields, which is faster
            pid=holder.pid, start=fact.start, name=fact.name, type=kind, memory=holder.memory,
            sm=None if is_unknown else sm, is_unknown=is_unknown,
            idle_seconds=None if is_unknown else max(0.0, monotonic - life.first_zero) if is_idle else 0.0,
            idle_memory=None if is_unknown or holder.memory is None else holder.memory if is_idle else 0,
            last_active=life.last_active,
            in_seed=kind is not Type.mps_server and (kind is not Type.graphics or self._rules.include_graphics),
            instances=holder.instances,
        )


_HIDDEN: Final = Fact(0)


def _is_opaque(device: Device) -> bool:
    """On MIG, or perhaps on it, processes are not told apart; without a UUID nobody knows on which device a Life is."""
    return device.is_mig is not False or not device.uuid


def _just_worked(life: Life, now: Instant) -> bool:
    return life.last_active is not None and 0 <= now - life.last_active < SAMPLING


def _micros(seconds: float) -> int:
    return int(seconds * 1e6)


def _sift(
    found: Iterable[Sample], lives: Mapping[int, Life], threshold: float, discarded: dict[str, int], now: Instant
) -> dict[int, Use]:
    """What new samples of listed processes say. A garbage value is thrown away, never taken for the highest."""
    latest = _micros(now + MOST_AHEAD)
    uses: dict[int, Use] = {}
    for sample in found:
        life = lives.get(sample.pid)
        if life is None or 0 < sample.stamp <= life.stamp:
            continue
        use = uses.get(sample.pid)
        if use is None:
            use = uses[sample.pid] = Use()
        if not 0 < sample.stamp <= latest:
            discarded["stamp"] = discarded.get("stamp", 0) + 1
            continue
        use.stamp = max(use.stamp, sample.stamp)
        if not 0 <= sample.sm <= GARBAGE_ABOVE:
            discarded["utilization"] = discarded.get("utilization", 0) + 1
            continue
        use.sm = sample.sm if use.sm is None else max(use.sm, sample.sm)
        engines = (sample.sm, sample.memory, sample.encoder, sample.decoder, sample.jpeg, sample.ofa)
        if any(threshold < percent <= GARBAGE_ABOVE for percent in engines):
            use.active = max(use.active, sample.stamp)
    return uses


def _sum_idle(processes: Sequence[Process]) -> int | None:
    """What idle processes of the seed's series hold; None if nothing is known of any of them."""
    counted = [process for process in processes if process.in_seed]
    if counted and all(process.is_unknown for process in counted):
        return None
    return sum(process.idle_memory or 0 for process in counted)


def _type_of(holder: Holder, fact: Fact) -> Type:
    if fact.name in _MPS_SERVER_NAMES:
        return Type.mps_server
    if holder.is_mps:
        return Type.mps_client
    if holder.is_graphics:
        return Type.both if holder.is_compute else Type.graphics
    return Type.compute
