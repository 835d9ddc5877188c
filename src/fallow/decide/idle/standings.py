"""Where we stand with every idle workload: courtesy's answer, and what the whole cluster takes away from it again.

In: a Sight, what was remembered, the freeze, the workloads whose marks are put in order. Out: Standings.
Freeze, confirmation and our own marks can only take a step away, never add one. Courtesy's answers are kept with the
arrangement and asked for again when their grounds change or their time is over; so are the names of episodes.
"""

import functools
from collections.abc import Collection, Mapping

import msgspec
import numpy as np

from fallow.decide.idle import arrange, brakes, courtesy, judge
from fallow.decide.idle.courtesy import Standing
from fallow.model import kinds
from fallow.model.decision import Memory, Reason, Step
from fallow.model.long_memory import Freeze
from fallow.model.seen import Absent


class Standings(msgspec.Struct, frozen=True):
    """Of the idle ones, by workload; and who takes which step, as far as this goes."""

    by_workload: Mapping[int, Standing]
    confirmed: Mapping[str, int]  # UID -> cycles in a row it was found idle
    withdrawn: list[int]  # their notices no longer count
    announced: list[int]  # their idleness is news
    warned: list[int]
    pausable: list[int]
    odd: Mapping[int, str]  # idle ones that could not be considered, and what went wrong


def find(sight: judge.Sight, memory: Memory, freeze: Freeze | None, written: Collection[int]) -> Standings:
    needed, uids = sight.mandate.brakes.confirm_cycles, sight.arranged.uids
    asked, odd = _ask_all(sight, memory)
    counts = {index: memory.confirmed.get(uids[index], 0) + 1 for index in asked}
    steps = {index: one for index, one in asked.items() if one.warns or one.pauses}
    waiting = dict.fromkeys(written, "its marks are put in order first")
    early = {count: f"found idle in {count} of {needed} cycles in a row" for count in range(1, needed)}
    unconfirmed = {index: early[count] for index, count in counts.items() if count in early}
    if isinstance(sight.snapshot.policies, Absent) and sight.mandate.use_policies:
        waiting |= dict.fromkeys(steps, gone) if (gone := brakes.why_not_by_flags(memory.long, sight.now)) else {}
    final = asked | (_freeze_all(steps, freeze) if freeze else _hold_back(steps, unconfirmed | waiting))
    return Standings(
        by_workload=final,
        confirmed={uids[index]: count for index, count in counts.items()},
        withdrawn=[  # a notice or a pause rewrites the marks itself
            index for index in sorted(sight.arranged.noticed.difference(written)) if index in asked
            and asked[index].is_void and not final[index].warns and not final[index].pauses
        ],
        announced=[] if freeze else _find_news(sight, asked, memory.announced, unconfirmed),
        warned=[index for index, standing in final.items() if standing.warns],
        pausable=[index for index, standing in final.items() if standing.pauses], odd=odd,
    )


def _ask_all(sight: judge.Sight, memory: Memory) -> tuple[dict[int, Standing], dict[int, str]]:
    """From what was answered before, while neither its grounds nor the clock can have changed it."""
    special, answers, now = _find_special(sight, memory), sight.arranged.answers, sight.now
    found, odd = dict[int, Standing](), dict[int, str]()
    for index in np.flatnonzero(sight.code == judge.IDLE).tolist():
        known, grounds = answers.get(index), _find_grounds(sight, memory, index) if index in special else None
        if known is None or not known.at <= now < known.standing.until or known.grounds != grounds:
            plain, known = grounds or find_times(sight, index), None
            with arrange.SetAside(odd, index):
                standing = courtesy.consider(make_case(sight, index, plain), now)
                known = answers[index] = courtesy.Answered(standing, now, grounds)
        if known is not None:
            found[index] = known.standing
    return found, odd


def _find_special(sight: judge.Sight, memory: Memory) -> set[int]:
    """Those whose standing rests on more than the objects: on how long they are idle, or on what was remembered."""
    pretended = () if sight.mandate.acting else (*memory.would_be_pending, *memory.would_be_paused)
    index_of = sight.arranged.index_of
    return {index_of[uid] for uid in (*memory.refused, *pretended) if uid in index_of} | sight.arranged.noticed


def _find_grounds(sight: judge.Sight, memory: Memory, index: int) -> courtesy.Grounds:
    uid, is_dry = sight.arranged.uids[index], not sight.mandate.acting
    return msgspec.structs.replace(
        find_times(sight, index), pretended_notice=memory.would_be_pending.get(uid) if is_dry else None,
        pretended_pause=memory.would_be_paused.get(uid) if is_dry else None, refused=memory.refused.get(uid),
    )


def find_times(sight: judge.Sight, index: int) -> courtesy.Grounds:
    since, at_least = float(sight.idle_since[index]), bool(sight.at_least[index])
    return courtesy.Grounds(since, at_least, bool(sight.looked_back[index]))


def make_case(sight: judge.Sight, index: int, grounds: courtesy.Grounds) -> courtesy.Case:
    subject, ruling = sight.arranged.subject(index), sight.arranged.ruling(index)
    return courtesy.Case(
        subject=subject, workload=subject.workload, kind=kinds.of(subject.workload), ruling=ruling, rule=ruling.rule,
        scope=sight.mandate.scope, grounds=grounds,
    )


def _freeze_all(steps: Mapping[int, Standing], freeze: Freeze) -> dict[int, Standing]:
    return dict.fromkeys(steps, Standing(skip=Reason.Frozen, because=str(freeze)))


def _hold_back(steps: Mapping[int, Standing], reasons: Mapping[int, str]) -> dict[int, Standing]:
    return {index: _confirm(why, steps[index].next_action) for index, why in reasons.items() if index in steps}


@functools.lru_cache(maxsize=64)
def _confirm(because: str, step: Step | None) -> Standing:
    """One and the same for the thousands who wait for it."""
    return Standing(skip=Reason.Confirming, because=because, next_action=step)


def _find_news(
    sight: judge.Sight, asked: Mapping[int, Standing], announced: Mapping[str, str], unconfirmed: Collection[int]
) -> list[int]:
    """Where the begin is vague it moves with the clock: then it is the same episode as long as it was not active."""
    uids = sight.arranged.uids
    fitting = [index for index, standing in asked.items() if standing.is_announced and index not in unconfirmed]
    before = [announced.get(uids[index]) for index in fitting]
    is_vague: list[bool] = sight.at_least[fitting].tolist()
    return [
        index for index, known, vague in zip(fitting, before, is_vague, strict=True)
        if known is None or not (vague or known == episode_of(sight, index))
    ]


def episode_of(sight: judge.Sight, index: int) -> str:
    since, episodes = float(sight.idle_since[index]), sight.arranged.episodes
    known = episodes.get(index)
    if known is None or known.since != since:
        known = episodes[index] = courtesy.make_episode(sight.arranged.uids[index], since)
    return known.name
