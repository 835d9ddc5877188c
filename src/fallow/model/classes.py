"""Which class of work somebody's pods do: training, inference, notebook or batch; and what told it.

In: WorkFacts: what people wrote, the kinds that own it, what its containers run, how it was seen to behave, what it
asks for. Out: a ClassFound: the class, its source, and events about words that nobody understands.
The first source that answers wins: label, owner, pattern, observed, resources, default.
Invariant: what is unknown never answers; a word that is not understood is skipped and said.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final

import msgspec

from fallow import names
from fallow.model import patterns, units
from fallow.model.patterns import Pattern
from fallow.model.seen import ABSENT, Input, Known
from fallow.model.units import Seconds


class WorkClass(StrEnum):
    training = "training"
    inference = "inference"
    notebook = "notebook"
    batch = "batch"


class ClassSource(StrEnum):
    label = "label"
    owner = "owner"
    pattern = "pattern"
    observed = "observed"
    resources = "resources"
    default = "default"


WORDS: Final[Mapping[str, WorkClass]] = {
    **{str(each): each for each in WorkClass},
    "serving": WorkClass.inference, "development": WorkClass.notebook, "dev": WorkClass.notebook,
}
# In the order in which they are tried on a container.
BUILT_IN: Final[Mapping[WorkClass, tuple[str, ...]]] = {
    WorkClass.training: ("pytorch.*train", "tensorflow.*fit", "horovod", "distributed.*training", "torchrun",
                         "deepspeed"),
    WorkClass.inference: ("serving", "inference", "predict", "api.*server", "vllm", "triton", "sglang",
                          "text-generation"),
    WorkClass.notebook: ("jupyter", "notebook", r"\blab\b"),
}
MUCH_MEMORY: Final = 32 * 1024**3  # bytes; whoever asks for more trains
_LONGEST: Final = 16_384  # characters of one container that are looked at: a script in its arguments may be any size
_WATCHED: Final[Seconds] = units.DAY
_COVERED: Final = 0.8


class PodEvent(msgspec.Struct, frozen=True):
    """One to be written on a pod or its owner: `reason` is one of names.Event."""

    reason: str
    message: str


class ContainerText(msgspec.Struct, frozen=True):
    """What one container runs."""

    image: str = ""
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """Without the registry and the folders of its image: gitlab.example.com is no notebook."""
        return " ".join((self.image.rpartition("/")[2], *self.command, *self.args))[:_LONGEST]


class Behaviour(msgspec.Struct, frozen=True, kw_only=True):
    """How an owner's GPUs were used: over how long, of which share of that there are samples, as ratios 0 to 1."""

    seconds: Seconds
    coverage: float
    mean: float
    deviation: float
    idle: float  # share of the samples that were idle


class WorkFacts(msgspec.Struct, frozen=True, kw_only=True):
    """`said`: labels and annotations of the pod, its top owner and its namespace, in this order. `owned`: what the kind
    of its top owner tells (kinds.find_class). `gpus`, `memory`: over all containers; of the largest, in bytes; None:
    not known."""

    said: tuple[Mapping[str, str], ...] = ()
    owned: str | None = None
    containers: tuple[ContainerText, ...] = ()
    behaviour: Input[Behaviour] = ABSENT
    gpus: int | None = None
    memory: int | None = None


class ClassFound(msgspec.Struct, frozen=True):
    work: WorkClass
    source: ClassSource
    events: tuple[PodEvent, ...] = ()


class Patterns:
    """What tells the class of a container by what it runs. Further ones, by class, are tried first."""

    def __init__(self, further: Mapping[WorkClass, tuple[str, ...]] | None = None) -> None:
        """Raises ValueError with the expression that is wrong."""
        of_people = {each: further[each] for each in WorkClass if each in further} if further else {}
        self._tried: tuple[tuple[WorkClass, Pattern], ...] = tuple(
            (each, patterns.compile_any(texts)) for table in (of_people, BUILT_IN) for each, texts in table.items()
        )

    def find(self, containers: Iterable[ContainerText]) -> WorkClass | None:
        """The first container that any of them fits decides."""
        for container in containers:
            text = container.text
            for work, pattern in self._tried:
                if pattern.search(text):
                    return work
        return None


def classify(facts: WorkFacts, known: Patterns | None = None) -> ClassFound:
    """`known`: None where nobody knows what its containers run."""
    spoken, events = _find_spoken(facts.said)
    if spoken is not None:
        return ClassFound(spoken, ClassSource.label, events)
    if facts.owned is not None:
        return ClassFound(WorkClass(facts.owned), ClassSource.owner, events)
    if known is not None and (run := known.find(facts.containers)):
        return ClassFound(run, ClassSource.pattern, events)
    if isinstance(facts.behaviour, Known) and (behaved := _judge_behaviour(facts.behaviour.value)):
        return ClassFound(behaved, ClassSource.observed, events)
    if (facts.gpus or 0) > 1 or (facts.memory or 0) > MUCH_MEMORY:
        return ClassFound(WorkClass.training, ClassSource.resources, events)
    return ClassFound(WorkClass.batch, ClassSource.default, events)


def _find_spoken(said: Iterable[Mapping[str, str]]) -> tuple[WorkClass | None, tuple[PodEvent, ...]]:
    events: list[PodEvent] = []
    for each in said:
        word, conflict = read_key(each, names.WORKLOAD_TYPE)
        events += conflict
        if word is None:
            continue
        if word.lower() in WORDS:
            return WORDS[word.lower()], tuple(dict.fromkeys(events))
        known = ", ".join(WORDS)
        events.append(PodEvent(
            names.Event.UNKNOWN_WORKLOAD_TYPE, f"{names.WORKLOAD_TYPE}: {word[:64]!r} is none of {known}; it is ignored"
        ))
    return None, tuple(dict.fromkeys(events))


def read_key(said: Mapping[str, str], key: str) -> tuple[str | None, tuple[PodEvent, ...]]:
    """A key of ours, or of the seed's spelling. Where both stand there and differ ours wins, and that is said."""
    alias = key.replace(names.GROUP, names.SEED_GROUP, 1)
    ours, theirs = said.get(key), said.get(alias)
    if ours is not None and theirs is not None and ours != theirs:
        message = f"{key} is {ours[:64]!r} and {alias} is {theirs[:64]!r}: {key} counts"
        return ours, (PodEvent(names.Event.CONFLICTING_ANNOTATION, message),)
    return (theirs if ours is None else ours), ()


def _judge_behaviour(seen: Behaviour) -> WorkClass | None:
    if seen.seconds < _WATCHED or seen.coverage < _COVERED:
        return None
    if seen.mean >= 0.6:
        return WorkClass.training
    if 0.10 <= seen.mean <= 0.30 and seen.deviation < seen.mean / 2:
        return WorkClass.inference
    return WorkClass.notebook if seen.mean < 0.15 and seen.idle >= 0.5 else None
