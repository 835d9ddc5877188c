"""Timelines: a small pretend cluster, the real controller over sockets, and sentences about what happens when.

    story.deployment("ml/llm", gpus=2, replicas=3, busy="07:00-08:00")
    await story.at("08:45").sees("IdleNoticeSent llm")
    await story.until("12:30").sees_nothing()

What is seen are the Events that the product writes on the objects: `Reason name: note`. A check sees what happened
since the last one. The cluster begins at 06:00, is looked at every five minutes, and stands still between two checks.
"""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fallow import names
from fallow.model import units
from fallow.model.units import HOUR, MINUTE, Instant, parse_instant
from fallow.sim import stage
from fallow.sim.servers import store
from fallow.sim.world import nouns, world
from fallow.sim.world.lives import LifeSpan

DAY = "2026-11-16"
START = parse_instant(f"{DAY}T06:00:00Z")
SPAN = LifeSpan(START, MINUTE, 24 * 60)
QUIET = stage.make_policy("everything", "30m", grace="10m")
# In a cluster of a few workloads every pause is a large part of it.
UNBRAKED = {
    "max_percent_per_hour": "100", "max_actions_per_cycle": "100", "max_actions_per_namespace": "100",
    "freeze_jump": "100",
}
_DOINGS = frozenset({names.Event.NOTICE_SENT, names.Event.SCALED_TO_ZERO, names.Event.SUSPENDED, names.Event.RESUMED})


def clock(text: str) -> Instant:
    """`08:30` of the day, `+1 08:30` of the next."""
    days, _, time = text.rpartition(" ")
    return parse_instant(f"{DAY}T{time}:00Z") + (units.DAY if days else 0.0)


class Story:
    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder
        self._parts: list[nouns.Part] = []
        self._lives: list[np.ndarray[Any, Any]] = []
        self._plots: list[tuple[Instant, Callable[[], None]]] = []
        self._stack = contextlib.AsyncExitStack()
        self._stage: stage.Stage | None = None
        self._checked: set[str] = set()  # Events, by what they say and how often
        self.flags = dict(UNBRAKED)
        self.policies: Sequence[dict[str, Any]] = (QUIET,)
        self.nodes: list[nouns.SimNode] = [
            nouns.SimNode("gpu-1"), nouns.SimNode("gpu-2"), nouns.SimNode("gpu-3"), nouns.SimNode("gpu-4")
        ]

    # ---- who is there ------------------------------------------------------------------------------------------------

    def deployment(self, name: str, *, gpus: int = 1, replicas: int = 1, busy: str = "", owner: str = "absent") -> None:
        self.workload("Deployment", name, gpus=gpus, replicas=replicas, busy=busy, owner=owner)

    def workload(
        self, kind: str, name: str, *, gpus: int = 1, replicas: int = 1, busy: str = "", owner: str = "absent",
        group_size: int = 1,
    ) -> None:
        """`busy`: `07:00-08:00, 09:10-09:20`."""
        namespace, _, short = name.partition("/")
        part = nouns.Part(namespace, short, kind, replicas=replicas, gpus=gpus, owner=owner, group_size=group_size)
        row = np.zeros(SPAN.columns, np.uint8)
        for stretch in filter(None, busy.split(",")):
            first, last = (int((clock(text.strip()) - START) // MINUTE) for text in stretch.split("-"))
            row[first:last] = 80
        self._parts.append(part)
        self._lives.append(np.repeat(row[None, :], part.seats, axis=0))

    # ---- what happens ------------------------------------------------------------------------------------------------

    @property
    def stage(self) -> stage.Stage:
        assert self._stage is not None, "the story has not begun"
        return self._stage

    async def begin(self) -> stage.Stage:
        if self._stage is None:
            made = world.World(self.nodes, self._parts, np.concatenate(self._lives), SPAN, start_seconds=60.0)
            opened = stage.open_stage(made, self._folder, flags=self.flags, policies=self.policies)
            self._stage = await self._stack.enter_async_context(opened)
        return self._stage

    async def end(self) -> None:
        await self._stack.aclose()
        if self._stage is not None:
            assert self._stage.broken == []

    def at(self, text: str) -> Moment:
        return Moment(self, clock(text))

    until = at

    async def go_on(self, until: Instant) -> None:
        on = await self.begin()
        while on.world.now + on.interval <= until:
            await on.step()

    # ---- what people do ----------------------------------------------------------------------------------------------

    def key(self, kind: str, name: str) -> store.Key:
        part = next(part for part in self._parts if (part.kind, f"{part.namespace}/{part.name}") == (kind, name))
        workload = next(one for one in self.stage.world.workloads if one.part is part)
        return store.Key(workload.view.ref.group, kind, part.namespace, part.name)

    def object(self, name: str, kind: str = "Deployment") -> dict[str, Any]:
        return self.stage.store.get(self.key(kind, name)).object

    def annotate(self, name: str, kind: str = "Deployment", **marks: str | None) -> None:
        """`ack_until="..."`, as with kubectl annotate."""
        said = {f"{names.GROUP}/{key.replace('_', '-')}": value for key, value in marks.items()}
        self.patch(name, {"metadata": {"annotations": said}}, kind)

    def patch(self, name: str, patch: dict[str, Any], kind: str = "Deployment") -> None:
        self.stage.store.patch(self.key(kind, name), patch, store.Writer(manager="kubectl-edit"))

    def acknowledge(self, name: str, hours: float, kind: str = "Deployment") -> None:
        self.annotate(name, kind, ack_until=units.rfc3339(self.stage.world.now + hours * HOUR), ack_by="ada")

    # ---- what is seen ------------------------------------------------------------------------------------------------

    def happened(self) -> list[str]:
        """The Events since the last check, and those that were said again."""
        told = []
        for entry in self.stage.store.entries("events.k8s.io", "Event") + self.stage.store.entries("", "Event"):
            event = entry.object
            times = (event.get("series") or {}).get("count", 1)
            about, note = event.get("regarding") or event["involvedObject"], event.get("note") or event["message"]
            told.append(f"{event['reason']} {about['name']}: {note} #{event['metadata']['name']}/{times}")
        new = [line for line in told if line not in self._checked]
        self._checked |= set(told)
        return new


class Moment:
    """A time of the day; a check goes on until then."""

    def __init__(self, story: Story, when: Instant) -> None:
        self._story, self._when = story, when

    async def sees(self, *expected: str) -> None:
        await self._story.go_on(self._when)
        happened = self._story.happened()
        for text in expected:
            assert any(text in line for line in happened), f"{text!r} is not in {happened}"

    async def sees_nothing(self) -> None:
        """No notice, no pause, no resume."""
        await self._story.go_on(self._when)
        done = [line for line in self._story.happened() if line.partition(" ")[0] in _DOINGS]
        assert done == []
