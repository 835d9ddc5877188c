"""What Prometheus measured, as evidence for the brain.

In: who holds GPUs, the windows that the rules ask for, the instant. Out: one Usage per window, or the reason why
nothing can be said; exact idle times; the same anew for a few pods (source.Source).
Invariant: never raises for what the server does. A primary signal that cannot be asked for ends the cycle
(Evidence.trouble); any other is missing and named in lost_signals. Nothing that was measured is kept from one cycle to
the next but what labels mean, how often jobs are scraped, the lowest power of a day, and idle times while a GPU stays
idle.
"""

import contextlib
import logging
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec
import numpy as np

from fallow.clients import errors
from fallow.clients.prometheus import client
from fallow.model import cluster, gpus, usage
from fallow.model.seen import Input
from fallow.model.units import DAY, Instant, Seconds
from fallow.model.usage import Signal
from fallow.observe.usage import (
    asking,
    columns,
    device_use,
    floors,
    hours,
    inquiry,
    labels,
    paces,
    past,
    queries,
    readings,
    rows,
    spans,
    sparing,
)
from fallow.observe.usage.readings import INSTANT, NOTHING, Numbers, Topic, What

log = logging.getLogger(__name__)

_PODS_PER_QUERY = 500
_NEARLY_ALL = 0.8
_PODS_DRAWN = 32
_HIGHEST_RATIO = 1.05
_TOO_MANY_GONE = 10_000  # label sets of series that are no more, before all are read anew

T = TypeVar("T")


class PrometheusSource:
    """Asks a Prometheus-compatible server."""

    def __init__(
        self, prometheus: client.Prometheus, *, honor_labels: bool = False, expected_interval: Seconds | None = None,
        lookback: Seconds = DAY, budget: Seconds = 120.0, only_verdicts: bool = False,
    ) -> None:
        """`only_verdicts`: whoever asks tells no more of a busy GPU than that it is, and comes only once. Then nothing
        is asked about those that their peaks alone show at work, and less of the past."""
        self._prometheus = prometheus
        self._asker = asking.Asker(prometheus, budget)
        self._honor_labels = honor_labels
        self._expected_interval = expected_interval
        self._lookback = lookback
        self._layouts = rows.Layouts()
        self._intervals: dict[Seconds, dict[str, Seconds]] = {}
        self._paces = paces.Paces()
        self._only_verdicts = only_verdicts
        self._most_samples = past.MOST_SAMPLES_ONCE if only_verdicts else past.MOST_SAMPLES
        self._scraped: dict[Seconds, dict[str, Seconds]] = {}  # by window and job, seconds between scrapes
        self._floors = floors.Floors()
        self._found_idle = past.IdleTimes()
        self._open_books()

    def _open_books(self) -> None:
        self._books = inquiry.LabelBooks(self._honor_labels)
        self._inquiry = inquiry.Inquiry(self._prometheus, self._books)
        self._jobs = labels.Jobs()
        self._layouts.forget()

    @property
    def clock(self) -> Input[Instant]:
        return self._prometheus.clock

    async def evidence(
        self, held: rows.Holders, windows: frozenset[Seconds], now: Instant, *, with_floors: bool = True,
        strictest: usage.Strictest | None = None,
    ) -> usage.Evidence:
        self._forget_gone()
        try:
            answers, left_out, spared = await self._ask_all(windows, held, now, strictest)
            layouts = self._lay_out(answers.readings, held, windows)
            await self._learn_paces(layouts, now)
            self._learn_intervals(answers.readings, layouts)
            if self._floors.are_due(now) and (with_floors or any(map(_has_unrated, layouts.values()))):
                answers = await self._learn_floors(answers, held, now)
            seen = self._compose(answers, held, layouts, now)
            dropped = [pod for layout in layouts.values() for pod in layout.dropped]
            covers = []
            if strictest and left_out:
                covers = self._about_left_out(seen, left_out, held, strictest, dropped, spared)
            closer = [*covers, *self._about_lowest(seen, held, strictest.busy if strictest else math.inf)]
            return await self._look_closer(seen, answers, closer, held) if closer else seen
        except asking.NoEvidence as nothing:
            return columns.no_evidence(now, nothing.trouble)

    async def _ask_all(
        self, windows: frozenset[Seconds], held: rows.Holders, now: Instant, strictest: usage.Strictest | None
    ) -> tuple[asking.Answers, list[queries.GpuMetric], bool]:
        """And the primaries of whose completeness nothing was asked (sparing.py); and whether that of none was asked
        where a GPU works. Raises NoEvidence."""
        if strictest is None:
            return await self._ask(self._inquiry.about(windows), now), [], False
        answers = await self._ask(self._inquiry.about_peaks(windows), now)
        exported = sparing.find_exported(answers.readings, windows)
        leads = sparing.find_leads(exported)
        quiet = await self._find_quiet(answers, held, windows, now, strictest.busy)
        foci: Iterable[inquiry.Focus | None] = (None,) if quiet is None else self._focus_on_some(quiet, held)
        covers = [
            one for focus in foci for metric in leads for one in self._inquiry.about_cover(metric, windows, focus)
        ]
        left_out = [metric for metric in exported if metric not in leads]
        return await self._ask_more(answers, covers, now), left_out, quiet is not None

    async def _find_quiet(
        self, peaks: asking.Answers, held: rows.Holders, windows: frozenset[Seconds], now: Instant, busy: float
    ) -> usage.Bools | None:
        """The pods with a GPU that its peaks alone do not show at work, if nothing more is told of the others; None:
        all. How often jobs are scraped is then told by their targets: those who are quiet may all be thin.
        """
        if not self._only_verdicts or columns.stands_still(peaks.readings, windows):
            return None
        layouts = self._lay_out(peaks.readings, held, windows)
        if not await self._learn_scrapes(layouts, now):
            return None
        some = np.array([pod.node not in held.nodes for pod in held.pods], dtype=np.bool_)
        self._learn_intervals(peaks.readings, layouts)
        seen = self._compose(peaks, held, layouts, now)
        for window, layout in layouts.items():
            some[layout.pod[~sparing.find_working(seen.usage[window], busy)]] = True
            some[list(layout.crowded)] = True
        return some

    async def _learn_scrapes(self, layouts: Mapping[Seconds, rows.RowLayout], now: Instant) -> bool:
        """How often over each window; whether that is known of every job. Raises NoEvidence."""
        if self._expected_interval is not None:
            return True
        jobs = frozenset[str]().union(*(layout.vouched_jobs for layout in layouts.values()))
        found = (await self._asker.ask(self._inquiry.about_scrapes_within(jobs, layouts), now)).readings
        targets = self._books.targets.facts
        self._scraped = {one: paces.within(found, layout, targets, one) for one, layout in layouts.items()}
        return all(self._scraped[window].keys() >= layout.vouched_jobs for window, layout in layouts.items())

    async def _ask_more(
        self, answers: asking.Answers, questions: Iterable[asking.Question], now: Instant
    ) -> asking.Answers:
        more = await self._asker.ask(questions, now)
        self._jobs.catch_up(self._books.facts)
        return asking.Answers({**answers.readings, **more.readings}, tuple(dict.fromkeys((*answers.lost, *more.lost))))

    def _about_left_out(
        self, seen: usage.Evidence, left_out: Sequence[queries.GpuMetric], held: rows.Holders,
        strictest: usage.Strictest, dropped: Sequence[int], spared: bool,
    ) -> list[asking.Question]:
        """What was left out, of the rows of which it could change the verdict.

        `dropped`: pods with a claim that seems to be made no more; what was left out may still make it. `spared`:
        nothing is asked about those that work.
        """
        some = np.zeros(len(held.pods), np.bool_)
        some[dropped] = True
        for one in seen.usage.values():
            is_open = sparing.find_open(one, left_out, strictest, seen.at)
            some[one.pod[is_open & ~sparing.find_working(one, strictest.busy) if spared else is_open]] = True
        return [
            one for focus in self._focus_on_some(some, held) for metric in left_out
            for one in self._inquiry.about_cover(metric, frozenset(seen.usage), focus)
        ]

    def _about_lowest(self, seen: usage.Evidence, held: rows.Holders, busy: float) -> list[asking.Question]:
        """Of signals that may have samples which are none."""
        questions: list[asking.Question] = []
        for metric in (*queries.PRIMARIES, *queries.OTHERS):
            some = np.zeros(len(held.pods), np.bool_)
            for one in seen.usage.values():
                some[one.pod[sparing.find_doubtful(one, metric.signal, busy)]] = True
            for focus in self._focus_on_some(some, held):
                questions += self._inquiry.about_lowest(metric, frozenset(seen.usage), focus)
        return questions

    def _focus_on_some(self, some: usage.Bools, held: rows.Holders) -> Iterable[inquiry.Focus | None]:
        return self._focus_on([held.pods[index] for index in np.flatnonzero(some).tolist()], held)

    async def _look_closer(
        self, seen: usage.Evidence, answers: asking.Answers, questions: Sequence[asking.Question], held: rows.Holders
    ) -> usage.Evidence:
        """With the answers to these as well. Raises NoEvidence."""
        answers = await self._ask_more(answers, questions, seen.at)
        layouts = self._lay_out(answers.readings, held, frozenset(seen.usage))
        self._learn_intervals(answers.readings, layouts)
        return self._compose(answers, held, layouts, seen.at)

    def _lay_out(
        self, found: readings.Readings, held: rows.Holders, windows: frozenset[Seconds]
    ) -> dict[Seconds, rows.RowLayout]:
        layouts, current = {}, self._current_of(found)
        for window in windows:
            series = self._series_of(found, window)
            layouts[window] = self._layouts.lay_out(window, held, self._books.facts, series, current)
        return layouts

    def _learn_intervals(self, found: readings.Readings, layouts: Mapping[Seconds, rows.RowLayout]) -> None:
        for window, layout in layouts.items():
            learned = columns.learn_intervals(found, self._jobs, layout, window, self._paces.by_job)
            scraped = self._scraped.get(window, {})
            learned = {job: min(seconds, scraped.get(job, seconds)) for job, seconds in learned.items()}
            self._intervals[window] = learned
            self._paces.meet(learned, window)

    async def _learn_floors(self, answers: asking.Answers, held: rows.Holders, now: Instant) -> asking.Answers:
        """A day of power is a lot to read: only where a rule, a model without a rating or the energy of a GPU in parts
        needs it."""
        learned = await self._asker.ask(self._inquiry.about_floors(), now)
        self._jobs.catch_up(self._books.facts)  # a day has series that the window has not
        has_believed = self._has_believed
        self._floors.learn(
            learned.readings, self._books.facts, None, now,
            lambda facts: rows.counts(facts, held.witness(facts), has_believed),
        )
        return answers._replace(lost=(*answers.lost, *learned.lost))

    async def _ask(self, questions: Iterable[asking.Question], now: Instant) -> asking.Answers:
        answers = await self._asker.ask(questions, now)
        self._jobs.catch_up(self._books.facts)
        if not readings.has_gpus(answers.readings):
            raise asking.NoEvidence("NoData", f"Prometheus at {self._prometheus.address} has no series of any GPU")
        return answers

    @property
    def _has_believed(self) -> bool:
        return any(layout.has_believed for layout in self._layouts.current.values())

    async def _learn_paces(self, layouts: Mapping[Seconds, rows.RowLayout], now: Instant) -> None:
        """How often jobs are scraped of late; in every cycle, lest one be judged by what it was. Raises NoEvidence."""
        if not layouts or self._expected_interval is not None:
            return
        longest = layouts[max(layouts)]
        is_due = self._paces.are_due(longest.vouched_jobs, now)
        found = (await self._asker.ask(self._inquiry.about_scrapes(longest.vouched_jobs, is_due), now)).readings
        late = paces.by_targets(found, longest, self._books.targets.facts)
        if not late.keys() >= longest.vouched_jobs:  # of some only their series tell it
            found = (await self._asker.ask(self._inquiry.about_paces(is_due), now)).readings
            self._jobs.catch_up(self._books.facts)
            late = paces.by_series(found, longest, self._books.facts) | late
        self._paces.learn(late, now)

    def _series_of(self, found: readings.Readings, window: Seconds) -> tuple[int, ...]:
        return readings.series_of(found, len(self._books.facts), {window, INSTANT})

    def _current_of(self, found: readings.Readings) -> tuple[int, ...]:
        return readings.current_of(found, len(self._books.facts))

    def _compose(
        self, answers: asking.Answers, held: rows.Holders, layouts: Mapping[Seconds, rows.RowLayout], now: Instant
    ) -> usage.Evidence:
        down = [self._books.targets.facts[number] for number in answers.readings.get(Topic(What.down), NOTHING).series]
        measured = columns.Measured(
            readings=answers.readings, facts=self._books.facts, serving=self._books.serving.facts, jobs=self._jobs,
            expected_interval=self._expected_interval, intervals=self._intervals,
            down=frozenset((one.job, one.target) for one in down), floors=self._floors.watts, lost=answers.lost,
            unreadable=self._books.unreadable,
        )
        return columns.build_evidence(measured, held, layouts, now)

    def _forget_gone(self) -> None:
        seen = max((len(layout.series) for layout in self._layouts.current.values()), default=0)
        too_many = len(self._books) > 2 * seen + _TOO_MANY_GONE
        if self._layouts.current and (too_many or self._books.room.is_full):
            self._open_books()

    async def again(self, held: rows.Holders, windows: frozenset[Seconds], now: Instant) -> usage.Evidence:
        questions = [one for focus in self._focus(held.pods) for one in self._inquiry.about(windows, focus)]
        try:
            answers = await self._ask(questions, now)
            facts, found = self._books.facts, answers.readings
            current, has_believed = self._current_of(found), self._has_believed
            layouts = {
                window: rows.RowLayout(
                    held, facts, self._series_of(found, window), current=current, has_believed=has_believed
                )
                for window in windows
            }
            for window, layout in layouts.items():  # these few may all be thin: how often jobs are scraped all show
                learned = columns.learn_intervals(found, self._jobs, layout, window, self._paces.by_job)
                before = self._intervals.setdefault(window, {})
                before |= {job: min(seconds, before.get(job, math.inf)) for job, seconds in learned.items()}
            seen = self._compose(answers, held, layouts, now)
            if doubts := self._about_lowest(seen, held, math.inf):
                seen = self._compose(await self._ask_more(answers, doubts, now), held, layouts, now)
            mended = {one.window: await self._mend(one, held, layouts[one.window], now) for one in seen.usage.values()}
        except asking.NoEvidence as nothing:
            return columns.no_evidence(now, nothing.trouble)
        return msgspec.structs.replace(seen, usage=mended)

    async def _mend(
        self, seen: usage.Usage, held: rows.Holders, layout: rows.RowLayout, now: Instant
    ) -> usage.Usage:
        """With all samples of windows that several series measured one after the other. Raises NoEvidence."""
        looker = _Looker(past.copy_of(seen), held, now, math.inf)
        at = np.flatnonzero(looker.counted.thin & (looker.cover >= 0))
        await self._search(looker, at, np.full(len(at), np.nan), seen.window, layout)
        return looker.result

    def _focus_on(self, pods: Sequence[cluster.Pod], held: rows.Holders) -> Iterable[inquiry.Focus | None]:
        """Nearly all are asked for in one question, without their names: those cost more than the few others do."""
        is_nearly_all = len(pods) > max(_NEARLY_ALL * len(held.pods), _PODS_PER_QUERY)
        return (None,) if is_nearly_all else self._focus(pods)

    def _focus(self, pods: Sequence[cluster.Pod]) -> Iterator[inquiry.Focus]:
        """Batches of pods, with the boards on which other names speak of their GPUs."""
        boards: dict[tuple[str, str], set[str]] = {}
        for layout in self._layouts.current.values():
            for pod, board in layout.borrowed_boards():
                boards.setdefault((pod.namespace, pod.name), set()).add(board)
        for some in _batches(pods):
            uuids = {uuid for pod in some for uuid in boards.get((pod.namespace, pod.name), ())}
            yield inquiry.Focus(tuple(sorted({pod.name for pod in some})), tuple(sorted(uuids)))

    async def look_back(
        self, seen: usage.Usage, wanted: usage.Candidates, held: rows.Holders, now: Instant, threshold: float
    ) -> usage.Usage:
        looker = _Looker(past.copy_of(seen), held, now, threshold)
        known, unknown = self._found_idle.recall(seen, wanted.rows, held.pods, threshold, looker.counted, now)
        past.fill_known(looker.result, known)
        broken = {row for row, found in known.items() if found.observed_since > now - seen.window}
        thin = [row for row in known if looker.counted.thin[row] and row not in broken]
        layout = self._layouts.current.get(seen.window)
        if layout is None:
            return looker.result
        try:
            await self._look_up(looker, wanted, np.array(unknown, dtype=np.int64), layout)
            await self._search(looker, np.array(thin, dtype=np.int64), np.full(len(thin), np.nan), seen.window, layout)
        except asking.NoEvidence as nothing:
            log.warning("exact idle times could not be looked up: %s", nothing)
        self._found_idle.forget_before(now - self._lookback)
        return looker.result

    @property
    def prometheus(self) -> client.Prometheus:
        """For who asks, rarely, what nothing is decided by."""
        return self._prometheus

    async def read_hour(self, held: rows.Holders, hour: Instant, now: Instant) -> tuple[usage.HourReading, ...]:
        try:
            answers = await self._asker.ask(hours.ask(self._prometheus, self._books, hour, now), now)
        except asking.NoEvidence as nothing:
            raise errors.BadAnswer(str(nothing)) from nothing
        self._jobs.catch_up(self._books.facts)
        if self._floors.are_due(now) and hours.is_any_shared(held):
            with contextlib.suppress(asking.NoEvidence):  # the hour counts all the same
                await self._learn_floors(answers, held, now)
        return hours.fold(
            answers.readings, self._books.facts, held, has_believed=self._has_believed, floors=self._floors.watts
        )

    async def read_use(self, held: rows.Holders, now: Instant) -> device_use.DeviceUse:
        try:
            answers = await self._asker.ask(device_use.ask(self._prometheus, self._books), now)
        except asking.NoEvidence as nothing:
            raise errors.BadAnswer(str(nothing)) from nothing
        self._jobs.catch_up(self._books.facts)
        paced = self._paces.by_job
        return device_use.fold(
            answers.readings, self._books.facts, held, lambda job: self._expected_interval or paced.get(job),
            has_believed=self._has_believed,
        )

    async def draw(
        self, held: rows.Holders, pods: Sequence[cluster.Pod], gpus: Collection[str], span: usage.DrawnSpan,
        now: Instant,
    ) -> Mapping[str, usage.Floats]:
        drawn = dict[str, usage.Floats]()
        book = labels.LabelBook(labels.foreign(self._honor_labels), [], labels.LabelRoom())
        focus = next(self._focus(pods[:_PODS_DRAWN]), inquiry.Focus((), ()))
        promql = self._inquiry.about_activity_of(focus, span.step)
        asked = self._prometheus.query_range(promql, span.start, span.end, span.step, row=msgspec.Raw, now=now)
        answer = await asked
        numbers = book.number([series.metric for series in answer.rows])
        for number, series in zip(numbers, answer.rows, strict=True):
            facts = book.facts[number]
            board = facts.uuid or facts.spot
            gpu = f"{board}/{facts.instance}" if facts.instance else board
            if gpu in gpus and rows.counts(facts, held.witness(facts), self._has_believed):
                values = _place_points(series.values, span)
                drawn[gpu] = np.fmax(drawn[gpu], values) if gpu in drawn else values
        return drawn

    async def _look_up(
        self, looker: "_Looker", wanted: usage.Candidates, at: Numbers, layout: rows.RowLayout
    ) -> None:
        """Of these rows, all that can be known. Raises NoEvidence."""
        result, kernels = looker.result, past.read_kernels(looker.result, looker.speakers)
        warned = np.full(result.rows, np.nan)
        warned[wanted.rows] = wanted.warned
        asked, others = at[looker.cover[at] >= 0], at[looker.cover[at] < 0]
        result.last_active[others] = result.observed_since[others] = kernels[others]
        if len(asked):
            lookback = past.afford(result, asked, looker.speakers, self._lookback, self._most_samples)
            search = await self._search(looker, asked, warned[asked], lookback, layout)
            past.fill_found(result, search, kernels, looker.now)
            if lookback < self._lookback:
                some = past.choose_some(
                    result, search, looker.speakers, looker.held.pods, lookback, self._lookback, self._most_samples
                )
                search = await self._search(looker, some, warned[some], self._lookback, layout)
                past.fill_found(result, search, kernels, looker.now)
        self._found_idle.keep(result, at, looker.held.pods, looker.threshold, looker.counted, looker.now)

    async def _search(
        self, looker: "_Looker", at: Numbers, warned: usage.Floats, lookback: Seconds, layout: rows.RowLayout
    ) -> spans.Search:
        """Ask until nothing is left to ask; the samples of the window are then in the result. Raises NoEvidence."""
        wanted = past.want(looker.result, at, warned, looker.counted, looker.held.pods, looker.now)
        search = spans.Search(wanted, lookback)
        translator = past.Translator(looker.result, looker.held, self._books.facts, layout)
        while parts := search.questions():
            numbered = [(number, stretch, at[places]) for number, (stretch, places) in enumerate(parts)]
            questions = [one for part in numbered for one in self._about_stretch(looker, *part)]
            found = (await self._asker.ask(questions, looker.now)).readings
            translator.meet(found)
            search.take([looker.read(found, number, some, translator) for number, _, some in numbered])
        past.fill_counts(looker.result, search, looker.cover)
        return search

    def _about_stretch(
        self, looker: "_Looker", number: int, stretch: spans.Stretch, at: Numbers
    ) -> Iterator[asking.Question]:
        """How many samples; and of what is older than the window also whether there was activity."""
        pods = [looker.held.pods[pod] for pod in sorted(set(looker.result.pod[at].tolist()))]
        by_cover = {queries.PRIMARIES[cover] for cover in set(looker.cover[at].tolist())}
        speaking = [
            metric for metric, speaks in looker.speakers.items()
            if metric.signal is not Signal.last_kernel and stretch.far > looker.result.window and speaks[at].any()
        ]
        for focus in self._focus_on(pods, looker.held):
            for metric in by_cover:
                yield self._inquiry.about_samples(metric, focus, stretch, number)
            for metric in speaking:
                yield self._inquiry.about_activity(metric, focus, stretch, looker.threshold, number)


class _Looker:
    """What one look at the past needs."""

    def __init__(self, result: usage.Usage, held: rows.Holders, now: Instant, threshold: float) -> None:
        self.result, self.held, self.now, self.threshold = result, held, now, threshold
        self.speakers = past.find_speakers(result)
        self.counted = past.count_window(result, self.speakers)
        self.cover = past.choose_cover(result, self.speakers)

    def read(self, found: readings.Readings, number: int, at: Numbers, translator: past.Translator) -> spans.Answer:
        return past.read_answer(found, number, at, self.speakers, self.cover, self.threshold, translator)


def _has_unrated(layout: rows.RowLayout) -> bool:
    """Is there a GPU whose rated power is not known? What it draws at rest then tells when it works."""
    return any(gpus.find(model) is None for model in set(layout.model))


def _batches(items: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), _PODS_PER_QUERY):
        yield items[start : start + _PODS_PER_QUERY]


def _place_points(samples: Iterable[client.TextSample], span: usage.DrawnSpan) -> usage.Floats:
    """At their places; what is no believable ratio is none."""
    values = np.full(span.points, np.nan)
    for sample in samples:
        place, value = round((sample.at - span.start) / span.step), _read_ratio(sample.value)
        if 0 <= place < span.points and 0.0 <= value <= _HIGHEST_RATIO:
            values[place] = min(value, 1.0)
    return values


def _read_ratio(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
