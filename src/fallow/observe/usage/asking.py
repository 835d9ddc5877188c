"""Many questions to Prometheus about one instant, a few at a time.

In: questions; out: for each key a Reading (numbers of series and their values), and what was lost. Answers to several questions with the
same key are joined. Invariant: if a required question fails, or is answered only in part, there is no evidence at all (NoEvidence,
and nothing else, is raised); a failing optional question only removes itself.
"""

import asyncio
import logging
from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

import msgspec
import numpy as np

from fallow.clients import errors
from fallow.clients.prometheus import client
from fallow.model import usage
from fallow.model.units import Instant, Seconds
from fallow.observe.usage import labels, rows

log = logging.getLogger(__name__)

_AT_ONCE = 4
_INFOS_TOLD = 100

Key: TypeAlias = tuple[str, str, Seconds]  # what is asked, of which metric, over which window


class Question(NamedTuple):
    key: Key
    promql: str
    book: labels.Book
    signal: str  # what is lost without an answer
    required: bool = False


class Reading(NamedTuple):
    series: rows.Numbers
    values: usage.Floats

    def by_series(self, known: int) -> usage.Floats:
        """Values at their series' numbers; nan for all others."""
        dense = np.full(known, np.nan)
        dense[self.series] = self.values
        return dense


NOTHING = Reading(np.zeros(0, dtype=np.int64), np.zeros(0))


class NoEvidence(Exception):
    """Nothing can be said in this cycle."""

    def __init__(self, reason: str, because: str) -> None:
        super().__init__(because)
        self.trouble = usage.SourceTrouble(reason, because)


class Answers(NamedTuple):
    readings: dict[Key, Reading]
    lost: tuple[str, ...]


class Asker:
    def __init__(self, prometheus: client.Prometheus, budget: Seconds) -> None:
        self._prometheus = prometheus
        self._budget = budget
        self._told: set[str] = set()

    async def ask(self, questions: Iterable[Question], at: Instant) -> Answers:
        """Raises NoEvidence."""
        slots = asyncio.Semaphore(_AT_ONCE)
        failed: NoEvidence | None = None
        tasks: list[tuple[Question, asyncio.Task[Reading | str]]] = []
        try:
            async with asyncio.timeout(self._budget), asyncio.TaskGroup() as group:
                tasks = [(question, group.create_task(self._settle(question, at, slots))) for question in questions]
        except* NoEvidence as several:
            failed = next(error for error in several.exceptions if isinstance(error, NoEvidence))
        except* TimeoutError:
            failed = NoEvidence("SourceError", f"Prometheus at {self._prometheus.address} did not answer within {self._budget:.0f}s")
        if failed:
            raise failed
        return _collect((question, task.result()) for question, task in tasks)

    async def _settle(self, question: Question, at: Instant, slots: asyncio.Semaphore) -> Reading | str:
        """The reading, or a sentence on why it is lost."""
        try:
            async with slots:
                answer = await self._prometheus.query(question.promql, at, row=msgspec.Raw)
                self._tell(answer.infos)
                if answer.partial:
                    because = "; ".join(answer.warnings) or "it says so itself"
                    raise NoEvidence("PartialResponse", f"Prometheus at {self._prometheus.address} answered only in part: {because}")
                return self._read(answer, question.book)
        except errors.ClientError as error:
            reason = "BadResponse" if isinstance(error, errors.BadAnswer) else "SourceError"
            failure = NoEvidence(reason, str(error))
        except NoEvidence as partial:
            failure = partial
        if question.required:
            raise failure
        return f"{question.signal}: {failure}"

    def _read(self, answer: client.QueryAnswer[client.InstantSeries[msgspec.Raw]], book: labels.Book) -> Reading:
        try:
            values = np.array([float(series.value.value) for series in answer.rows])
            numbers = np.array(book.number([series.metric for series in answer.rows]), dtype=np.int64)
        except (ValueError, msgspec.MsgspecError):
            raise errors.BadAnswer(f"Prometheus at {self._prometheus.address} answered with values or labels that cannot be read") from None
        return Reading(numbers, values)

    def _tell(self, infos: tuple[str, ...]) -> None:
        for info in infos:
            if info not in self._told and len(self._told) < _INFOS_TOLD:
                self._told.add(info)
                log.info("Prometheus at %s remarks: %s", self._prometheus.address, info)


def _collect(settled: Iterable[tuple[Question, Reading | str]]) -> Answers:
    parts: dict[Key, list[Reading]] = {}
    lost: dict[str, None] = {}  # an ordered set: several questions about one signal often fail alike
    for question, result in settled:
        if isinstance(result, str):
            lost[result] = None
        else:
            parts.setdefault(question.key, []).append(result)
    return Answers({key: _join(readings) for key, readings in parts.items()}, tuple(lost))


def _join(readings: list[Reading]) -> Reading:
    if len(readings) == 1:
        return readings[0]
    return Reading(np.concatenate([reading.series for reading in readings]), np.concatenate([reading.values for reading in readings]))
