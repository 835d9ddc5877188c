"""What GPUs cost, and whose that was: the nouns of the books.

A Slice is one part of one GPU at one instant; an Interval is a Slice that lasted. Money is a whole number of nano units
of the ledger's one currency (10^-9), a share a whole number of micro-GPUs, a time a whole UTC second: what adds up on
paper adds up here. A rate that is not known is None and never 0; a use that was not measured is None and never 0.
Invariant: at every second the slices of one GPU, with what nobody holds, are WHOLE micro-GPUs.
"""

import hashlib
from collections.abc import Iterator, Mapping
from decimal import Decimal
from enum import StrEnum
from typing import Final, TypeAlias

import msgspec

from fallow.model.units import Seconds

Nano: TypeAlias = int  # money: currency x 10^-9
Micro: TypeAlias = int  # of a GPU, or of a use between 0 and 1
Second: TypeAlias = int  # UTC, since the epoch

WHOLE: Final[Micro] = 1_000_000
UNIT: Final[Nano] = 1_000_000_000  # of the currency
# A rate of a million units an hour is no GPU's, in any money: beyond it sums might not fit into 64 bits.
MOST_RATE: Final[Nano] = 1_000_000 * UNIT
MOST_LETTERS: Final = 253
HOUR: Final[Second] = 3600
DAY: Final[Second] = 86400
GPU_HOUR: Final = WHOLE * HOUR  # micro-GPU-seconds

# Keys of a report that no label can be: they begin and end as Kubernetes lets no name begin.
NONE: Final = "__none__"
OTHER: Final = "__other__"
IDLE: Final = "__idle__"
UNALLOCATED: Final = "__unallocated__"
UNUSED_COMMITMENT: Final = "__unused_commitment__"
PLATFORM: Final = "__platform__"
PAYER: Final = "__payer__/"  # before a dimension, among the labels of Dims: what its namespace says of it instead


class Sharing(StrEnum):
    """By what a GPU is divided; idle: nobody has this part."""

    exclusive = "exclusive"
    mig = "mig"
    mps = "mps"
    timeslicing = "timeslicing"
    hami = "hami"
    kai = "kai"
    dra = "dra"
    idle = "idle"


class SpendState(StrEnum):
    """What a GPU-second is. `used` divides by use: the part that worked, and the part that was held and did not."""

    used = "used"
    held_idle = "held_idle"
    unallocated = "unallocated"
    use_unknown = "use_unknown"


# The five parts of all that is paid for, as people are told of them: by pages, commands, digests and documents alike.
# Programs know them by these keys.
PART_WORDS: Final = {
    "used": "used", "allocated_unused": "held, not used", "held_idle": "held idle", "use_unknown": "cannot tell",
    "unallocated": "nobody held it",
}


class CapacityType(StrEnum):
    on_demand = "on-demand"
    spot = "spot"
    reserved = "reserved"
    unknown = "unknown"


class PriceUnit(StrEnum):
    node_hour = "node_hour"
    gpu_hour = "gpu_hour"


class Dims(msgspec.Struct, frozen=True, gc=False, cache_hash=True):
    """Whom people want it attributed to; "" = nobody said. `labels`: sorted pairs, those that are kept; and what the
    namespace says, by the dimension behind PAYER."""

    team: str = ""
    project: str = ""
    experiment_id: str = ""
    cost_center: str = ""
    user: str = ""
    labels: tuple[tuple[str, str], ...] = ()


MOST_LABEL_SETS: Final = 10_000
ESTIMATE: Final = "~"  # how the id of a price ends that was taken for one which nobody knows


def soften(dims: Dims) -> Dims:
    """The first step of folding: without what is another for every run or person. Whose it is stays."""
    if dims == Dims():
        return dims
    return Dims(dims.team, dims.project, OTHER, dims.cost_center, OTHER, ((OTHER, OTHER), *_list_paid(dims)))


def _list_paid(dims: Dims) -> Iterator[tuple[str, str]]:
    return (pair for pair in dims.labels if pair[0].startswith(PAYER))


def fold(dims: Dims) -> Dims:
    """What is left of a set of labels beyond the most there may be: who pays, for tenants who make up labels must not
    make a budget blind; and a team that is a key of ours, for no label begins so."""
    if dims == Dims():
        return dims
    team = dims.team if dims.team.startswith("__") else OTHER
    return Dims(team, OTHER, OTHER, OTHER, OTHER, ((OTHER, OTHER), *_list_paid(dims)))


class CostKey(msgspec.Struct, frozen=True, kw_only=True, gc=False, cache_hash=True):
    """All that a report may group by and that stays the same within an interval. "" = there is none."""

    cluster: str
    node: str
    instance_type: str = ""
    region: str = ""
    capacity_type: CapacityType = CapacityType.unknown
    gpu_model: str = ""
    sharing: Sharing = Sharing.exclusive
    namespace: str = ""
    owner_kind: str = ""
    owner_name: str = ""
    workload_type: str = ""  # training, inference, notebook, batch
    dims: Dims = Dims()


class Rate(msgspec.Struct, frozen=True, gc=False):
    """What a whole GPU costs an hour, by which row of the price book. `estimated`: of another region, or by its model
    alone; `stale`: older than prices may be."""

    nano: Nano
    price_id: str
    estimated: bool = False
    stale: bool = False


class NodeRates(msgspec.Struct, frozen=True):
    """What a whole GPU of each node costs an hour, by the price book; a node that is not in it has no price."""

    currency: str
    by_node: Mapping[str, Decimal] = {}


class NodeBill(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a node is to who bills it, and what one of its GPUs costs. `rate` None: not known. `since`: from when on
    that price holds, where it is known. `gpus`: by how many the node's price was divided; None = those it shows."""

    rate: Rate | None = None
    since: Second | None = None
    gpus: int | None = None
    instance_type: str = ""
    region: str = ""
    capacity_type: CapacityType = CapacityType.unknown
    gpu_model: str = ""


class Slice(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One part of one GPU, at one instant. `slot`: which part; "" = all of it. `rate_nano`: of this share, an hour."""

    gpu: str  # its UUID, or a name of our own on its node
    slot: str
    share: Micro
    key: CostKey
    state: SpendState
    rate_nano: Nano | None = None
    price_id: str = ""
    pod_uid: str = ""
    pod_name: str = ""
    ack_id: str = ""  # of the acknowledgement that keeps it while it is idle


class IntervalRef(msgspec.Struct, frozen=True, gc=False):
    """Which interval: this part, in these hands, from this second on."""

    gpu: str
    slot: str
    pod_uid: str
    t0: Second

    @property
    def id(self) -> str:
        """The same for the same part in the same hands from the same second on, whoever writes it."""
        said = "\n".join((self.gpu, self.slot, self.pod_uid, str(self.t0)))
        return hashlib.blake2b(said.encode(), digest_size=16).hexdigest()


class Interval(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A Slice from t0 until before t1, within one UTC day. `use`, `energy_mj`: for each hour of the clock that it
    touches, the first one first; None = not measured. An open one goes on; `gap_filled`: partly unwatched."""

    slice: Slice
    t0: Second
    t1: Second
    is_open: bool = False
    gap_filled: bool = False
    use: tuple[Micro | None, ...] = ()
    energy_mj: tuple[int | None, ...] = ()

    @property
    def ref(self) -> IntervalRef:
        return IntervalRef(self.slice.gpu, self.slice.slot, self.slice.pod_uid, self.t0)

    @property
    def id(self) -> str:
        return self.ref.id

    def cost_until(self, until: Second) -> Nano | None:
        """From t0 on, half to even: what lies between two instants is the difference, so that windows add up."""
        if self.slice.rate_nano is None:
            return None
        return cost_of(self.slice.rate_nano, min(max(until, self.t0), self.t1) - self.t0)

    def cost(self, begin: Second, end: Second) -> Nano | None:
        last, first = self.cost_until(end), self.cost_until(begin)
        return None if last is None or first is None else last - first


def cost_of(rate_nano: Nano, seconds: Second) -> Nano:
    """Of a rate an hour, half to even."""
    whole, rest = divmod(rate_nano * seconds, HOUR)
    return whole + (rest * 2 > HOUR or (rest * 2 == HOUR and whole % 2 == 1))


def as_booked(text: str) -> str:
    """As the ledger has what tenants may write as they like (whom a pod says to belong to, until when it is
    acknowledged): PostgreSQL takes no NUL and would refuse everybody's batch for one, and no name has more letters."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}")[:MOST_LETTERS]


def as_foreign(text: str) -> str:
    """The same of a name that is no key of ours: those begin with two underscores (`__idle__`)."""
    return as_booked(f"_{text.lstrip('_')}" if text.startswith("__") else text)


def divide(total: int, weights: tuple[int, ...]) -> tuple[int, ...]:
    """Whole parts in the proportion of the weights that sum to the total: the largest remainders get what is left."""
    of = sum(weights)
    if of <= 0:
        raise ValueError("there is nothing to divide by")
    parts = [total * weight // of for weight in weights]
    by_rest = sorted(range(len(weights)), key=lambda index: (-(total * weights[index] % of), index))
    for index in by_rest[: total - sum(parts)]:
        parts[index] += 1
    return tuple(parts)


# ---- questions to the ledger ---------------------------------------------------------------------------------------


class DimensionName(StrEnum):
    """What a report may group and filter by, as people type it."""

    cluster = "cluster"
    namespace = "namespace"
    pod = "pod"
    controller_kind = "controllerKind"
    controller = "controller"
    node = "node"
    instance = "instance"
    model = "model"
    capacity = "capacity"
    sharing = "sharing"
    workload_class = "class"
    team = "team"
    project = "project"
    experiment = "experiment"
    cost_center = "costcenter"
    user = "user"
    label = "label"


class Dimension(msgspec.Struct, frozen=True):
    """`label`: the key, where the name is `label`. `payer`: as budgets count, for whom what an administrator wrote on
    the namespace wins over what a tenant wrote on the pod. `vouched`: of that only what an administrator wrote."""

    name: DimensionName
    label: str = ""
    payer: bool = False
    vouched: bool = False

    def __str__(self) -> str:
        return f"label:{self.label}" if self.label else str(self.name)


def read_dimension(text: str) -> Dimension:
    """`namespace`, `label:app`. ValueError says what there is."""
    name, colon, label = text.strip().partition(":")
    if name == DimensionName.label:
        if not label:
            raise ValueError(f"{text!r} names no label; write label:KEY")
        return Dimension(DimensionName.label, label)
    if colon or name not in set(DimensionName):
        raise ValueError(f"{text!r} is nothing to group by; there are {', '.join(DimensionName)}:KEY")
    return Dimension(DimensionName(name))


class CostStep(StrEnum):
    hour = "hour"
    day = "day"
    week = "week"
    month = "month"


class CostFilter(msgspec.Struct, frozen=True):
    """Only what has one of these values there."""

    on: Dimension
    values: frozenset[str]


class CostQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Of [begin, end), grouped; filters must all fit. `step`: a sum for each piece of the calendar of `zone`, or for
    each so many seconds from the begin on; None: one for all of the window."""

    begin: Second
    end: Second
    by: tuple[Dimension, ...] = ()
    where: tuple[CostFilter, ...] = ()
    step: CostStep | Second | None = None
    zone: str = "UTC"


class Amounts(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """`use_cost`: of `cost`, what was used. `unpriced`: of `gpu_micro_seconds`, those without a rate."""

    cost: Nano = 0
    use_cost: Nano = 0
    gpu_micro_seconds: int = 0
    unpriced: int = 0
    energy_mj: int = 0

    def __add__(self, other: "Amounts") -> "Amounts":
        return Amounts(
            cost=self.cost + other.cost, use_cost=self.use_cost + other.use_cost,
            gpu_micro_seconds=self.gpu_micro_seconds + other.gpu_micro_seconds,
            unpriced=self.unpriced + other.unpriced, energy_mj=self.energy_mj + other.energy_mj,
        )


class _SumOfPiece(msgspec.Struct, frozen=True, kw_only=True):
    """Of one piece of the window."""

    begin: Second
    end: Second
    parts: dict[SpendState, Amounts]

    @property
    def total(self) -> Amounts:
        return sum(self.parts.values(), Amounts())

    @property
    def held(self) -> Amounts:
        """Without what nobody held."""
        return sum((each for state, each in self.parts.items() if state is not SpendState.unallocated), Amounts())


class CostSum(_SumOfPiece, frozen=True, kw_only=True):
    """One group. `key`: a value for each dimension asked for."""

    key: tuple[str, ...]


class KeySum(_SumOfPiece, frozen=True, kw_only=True):
    """All that is known of one key."""

    key: CostKey


# ---- what is written down ------------------------------------------------------------------------------------------


class BookedPrice(msgspec.Struct, frozen=True, kw_only=True):
    """The row of the price book that an interval names. `price_per_hour`: decimal digits, as they were given."""

    price_id: str
    provider: str = ""
    region: str = ""
    zone: str = ""
    instance_type: str = ""
    gpu_model: str = ""
    gpus: int | None = None
    capacity_type: CapacityType = CapacityType.unknown
    unit: PriceUnit = PriceUnit.node_hour
    price_per_hour: str = ""
    currency: str = ""
    valid_from: Second | None = None
    valid_to: Second | None = None
    source: str = ""
    retrieved_at: Second | None = None

    @property
    def is_estimated(self) -> bool:
        """By its region or model it was not quite the price of what it was booked for."""
        return self.price_id.endswith(ESTIMATE)

    def is_stale(self, at: Second, longest: Seconds) -> bool:
        """Also one of which nobody knows how old it is."""
        return self.retrieved_at is None or at - self.retrieved_at > longest


class DemandHour(msgspec.Struct, frozen=True):
    """GPUs in use and waited for, of a policy that scales nodes: the mean of the hour that began then."""

    policy: str
    hour: Second
    gpus: float


DEMAND_KEPT: Final[Second] = 28 * DAY


class SavingKind(StrEnum):
    spot = "spot"
    sharing = "sharing"
    autoscaling = "autoscaling"
    waste = "waste"


MEASURED_SAVINGS: Final = (SavingKind.waste, SavingKind.spot, SavingKind.sharing)  # always; of nodes where some went


class BookedSaving(msgspec.Struct, frozen=True, kw_only=True):
    """What something would have cost and did not. `id`: the same for the same saving, so that it stands once.
    `details`: JSON, with the method. `realised`: somebody else had it, or its node went; else it is freed capacity."""

    id: str
    at: Second
    namespace: str
    kind: SavingKind
    saved: Nano
    baseline: Nano
    actual: Nano
    details: str = "{}"
    realised: bool = False
    is_dry_run: bool = False


class BudgetReading(msgspec.Struct, frozen=True, kw_only=True):
    """How far one budget was used, at one time. `used_micro`: of 1, as a share is."""

    at: Second
    budget: str
    namespace: str = ""
    team: str = ""
    limit: Nano
    spend: Nano
    used_micro: int
    status: str


class BookedAlert(msgspec.Struct, frozen=True, kw_only=True):
    """Of one alert of a budget in one of its periods, on one channel. `delivery`: JSON."""

    budget_uid: str
    period_start: Second
    alert: str
    channel: str
    state: str
    fired_at: Second | None = None
    resolved_at: Second | None = None
    delivery: str = "{}"


class CostBatch(msgspec.Struct, frozen=True, kw_only=True):
    """What one look adds to the ledger, whole or not at all. `removed` goes before `intervals` come, so that one that
    was cut into two is removed and both parts of it are given. `at`: when it was looked; whatever is open in the ledger
    after this batch was there until then, without being written again. 0: nothing is said of others."""

    at: Second = 0
    intervals: tuple[Interval, ...] = ()
    removed: tuple[IntervalRef, ...] = ()
    shared: tuple[str, ...] = ()  # uids of those of their pods that we made share a GPU
    prices: tuple[BookedPrice, ...] = ()
    savings: tuple[BookedSaving, ...] = ()
    removed_savings: tuple[str, ...] = ()


class BookedBatch(msgspec.Struct, frozen=True):
    """What became of a batch. `refused`: a sentence for each interval that was not written; the others were.
    `is_spooled`: the database is away, and it waits in a file. `unwritten`: why not even that, and whoever has it is to
    keep it; "" = it is written, or waits."""

    refused: tuple[str, ...] = ()
    is_spooled: bool = False
    unwritten: str = ""


class CostRetention(msgspec.Struct, frozen=True):
    """For how long; days are kept for ever."""

    intervals: Second = 90 * DAY
    hours: Second = 365 * DAY


class LedgerMeta(msgspec.Struct, frozen=True, kw_only=True):
    """`rolled_until`: up to there hours are summed up. `seen_until`: up to there we looked. Intervals before
    `intervals_from` and hours before `hours_from` were forgotten."""

    schema_version: int
    currency: str
    epoch: int
    rolled_until: Second = 0
    seen_until: Second = 0
    intervals_from: Second = 0
    hours_from: Second = 0
