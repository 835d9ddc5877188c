"""Many questions to Prometheus about one instant, a few at a time.

In: questions; out: for each key a SeriesReading (answers to several questions with one key are joined), what was lost.
Invariant: if a required question fails, or is answered only in part, there is no evidence at all (NoEvidence, and
nothing else, is raised); a failing optional question only removes itself.
"""

import asyncio
import logging
from collections.abc import Iterable
from typing import NamedTuple

import msgspec
import numpy as np

from fallow.clients import errors
from fallow.clients.prometheus import client
from fallow.model import usage
from fallow.model.units import Instant, Seconds
from fallow.observe.usage import labels, readings
from fallow.observe.usage.readings import SeriesReading, Topic

log = logging.getLogger(__name__)

_AT_ONCE = 2  # they end as soon: a server has few cores for us, and counts the time that they wait for each other
_MOST_REMARKS = 100


class Question(NamedTuple):
    key: Topic
    promql: str
    book: labels.LabelBook
    signal: str  # what is lost without an answer
    required: bool = False


class Settled(NamedTuple):
    """What was read, and what was not and why; both, where some series could be read and others not."""

    reading: SeriesReading | None
    lost: usage.LostSignal | None = None


class NoEvidence(Exception):
    """Nothing can be said in this cycle."""

    def __init__(self, reason: str, because: str) -> None:
        super().__init__(because)
        self.trouble = usage.SourceTrouble(reason, because)


class Answers(NamedTuple):
    readings: dict[Topic, SeriesReading]
    lost: tuple[usage.LostSignal, ...]


class Asker:
    def __init__(self, prometheus: client.Prometheus, budget: Seconds) -> None:
        self._prometheus = prometheus
        self._budget = budget
        self._remarks: set[str] = set()

    async def ask(self, questions: Iterable[Question], at: Instant) -> Answers:
        """Raises NoEvidence."""
        slots = asyncio.Semaphore(_AT_ONCE)
        failed: NoEvidence | None = None
        tasks: list[tuple[Question, asyncio.Task[Settled]]] = []
        try:
            async with asyncio.timeout(self._budget), asyncio.TaskGroup() as group:
                tasks = [(question, group.create_task(self._settle(question, at, slots))) for question in questions]
        except* NoEvidence as several:
            failed = next(error for error in several.exceptions if isinstance(error, NoEvidence))
        except* TimeoutError:
            failed = NoEvidence("SourceError", f"{self._who} did not answer within {self._budget:.0f}s")
        if failed:
            raise failed
        return _collect((question, task.result()) for question, task in tasks)

    async def _settle(self, question: Question, at: Instant, slots: asyncio.Semaphore) -> Settled:
        try:
            async with slots:
                answer = await self._prometheus.query(question.promql, at, row=msgspec.Raw)
                self._pass_on(answer.infos)
                if answer.partial:
                    because = "; ".join(answer.warnings) or "it says so itself"
                    raise NoEvidence("PartialResponse", f"{self._who} answered only in part: {because}")
                return Settled(self._read(answer, question.book), _name_histograms(question, answer.histograms))
        except errors.ClientError as error:
            reason = "BadResponse" if isinstance(error, errors.BadAnswer) else "SourceError"
            failure = NoEvidence(reason, str(error))
        except NoEvidence as partial:
            failure = partial
        if question.required:
            raise failure
        return Settled(None, usage.LostSignal(question.signal, str(failure)))

    @property
    def _who(self) -> str:
        return f"Prometheus at {self._prometheus.address}"

    def _read(
        self, answer: client.QueryAnswer[client.InstantSeries[msgspec.Raw]], book: labels.LabelBook
    ) -> SeriesReading:
        try:
            values = np.array([float(series.value.value) for series in answer.rows])
            numbers = np.array(book.number([series.metric for series in answer.rows]), dtype=np.int64)
        except (ValueError, msgspec.MsgspecError):
            raise errors.BadAnswer(f"{self._who} answered with values or labels that cannot be read") from None
        return SeriesReading(numbers, values)

    def _pass_on(self, infos: tuple[str, ...]) -> None:
        """Each remark once."""
        for info in infos:
            if info not in self._remarks and len(self._remarks) < _MOST_REMARKS:
                self._remarks.add(info)
                log.info("%s remarks: %s", self._who, info)


def _name_histograms(question: Question, count: int) -> usage.LostSignal | None:
    because = f"{count} series of it are native histograms, which are no numbers"
    return usage.LostSignal(question.signal, because) if count else None


def _collect(settled: Iterable[tuple[Question, Settled]]) -> Answers:
    parts: dict[Topic, list[SeriesReading]] = {}
    lost: dict[usage.LostSignal, None] = {}  # an ordered set: several questions about one signal often fail alike
    for question, result in settled:
        if result.lost is not None:
            lost[result.lost] = None
        if result.reading is not None:
            parts.setdefault(question.key, []).append(result.reading)
    return Answers({key: readings.join(some) for key, some in parts.items()}, tuple(lost))
