"""One spot node's watch: look whether its cloud takes it back, and note that on the node, once.

In: the clouds' metadata, the node's annotations. Out: two annotations, when it was heard and when the machine ends; and
whether this watch sees at all (`is_up`). A recommendation has no end; an interruption after it adds one.
Invariant: what cannot be reached or read is no notice. The same notice is written once, also after a restart, and
nothing is ever taken back: whoever acts on it knows how long to believe it.
"""

import logging
from collections.abc import Callable, Mapping

from fallow import names
from fallow.clients import errors, metadata, node_marks
from fallow.model import units
from fallow.model.spot_watch import TakenBack
from fallow.model.units import MINUTE, Instant, Seconds

log = logging.getLogger("fallow.spot")

_BELIEVED: Seconds = 10 * MINUTE  # after its end: an older one was a false alarm, and this is another notice


class SpotWatch:
    """`clouds`: those it may be, by name; the first that answers is it."""

    def __init__(
        self, clouds: Mapping[str, metadata.Metadata], marks: node_marks.NodeMarks, *, interval: Seconds,
        clock: Callable[[], Instant],
    ) -> None:
        self._clouds, self._marks, self._interval, self._clock = clouds, marks, interval, clock
        self._cloud = next(iter(clouds.values())) if len(clouds) == 1 else None
        self._noted: TakenBack | None = None  # it stands on the node
        self.is_up = False
        self._last_trouble = ""

    def poll(self) -> None:
        try:
            heard = self._find_cloud().look(self._clock(), self._interval)
            if heard is None:
                self._noted = None
            elif not self._is_noted(heard):
                self._note(heard, self._clock())
                self._noted = heard
        except errors.ClientError as problem:
            self._complain(str(problem))
        else:
            self.is_up, self._last_trouble = True, ""

    def _complain(self, trouble: str) -> None:
        """Once for each trouble: it may last for days."""
        self.is_up = False
        if trouble != self._last_trouble:
            log.warning("%s", trouble)
            self._last_trouble = trouble

    def _find_cloud(self) -> metadata.Metadata:
        troubles = []
        for name, each in () if self._cloud else self._clouds.items():
            try:
                if each.is_here():
                    log.info("this machine is one of %s", name)
                    self._cloud = each
                    break
            except errors.ClientError as problem:
                troubles.append(str(problem))
        if self._cloud is None:
            raise errors.Unreachable(f"no cloud answers as its own: {'; '.join(troubles)}")
        return self._cloud

    def _is_noted(self, heard: TakenBack) -> bool:
        """While it is heard again and again it is one notice; that it ends after all is another."""
        return self._noted is not None and (self._noted.ends_at is not None or heard.ends_at is None)

    def _note(self, heard: TakenBack, now: Instant) -> None:
        there = self._marks.read()
        ends_at = units.read_instant(there.annotations.get(names.SPOT_TERMINATION))
        is_ended = ends_at is not None and ends_at < now - _BELIEVED
        notes = {} if names.SPOT_WARNING in there.annotations and not is_ended else {
            names.SPOT_WARNING: units.rfc3339(now)}
        if heard.ends_at is not None and (ends_at is None or is_ended):
            notes[names.SPOT_TERMINATION] = units.rfc3339(heard.ends_at)
        if notes:
            self._marks.write(there.uid, notes)
            end = "perhaps, soon" if heard.ends_at is None else f"at {units.rfc3339(heard.ends_at)}"
            log.warning("the cloud takes this machine back, %s", end)
