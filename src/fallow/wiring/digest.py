"""For the digest: when it is due, to whom it goes.

In: the Groundwork, the audit. Out: a Story; none without a schedule.
"""

from fallow import loop
from fallow.account import audit, digest
from fallow.stories import digest as digests
from fallow.wiring.ground import Groundwork

DIGEST = "digest"  # the name of the story


def make_stories(ground: Groundwork, kept: audit.Audit) -> list[loop.Story]:
    options, wanted = ground.options, ground.options.telling.digest
    if wanted.schedule is None:
        return []
    ask = digest.DigestAsk(
        since=0.0, until=0.0, top=wanted.top, cluster_name=options.telling.cluster_name,
        is_dry=not options.mandate.acting, interval=options.loop.interval,
    )
    story = digests.DigestStory(
        schedule=wanted.schedule, ask=ask, channels=wanted.channels, kept=kept, latest=ground.latest,
        wires=ground.wires, head=ground.head, metrics=ground.metrics, recall=lambda: ground.leadership.annotations,
        note=ground.note, booked=ground.booked,
    )
    return [loop.Story(
        name=DIGEST, interval=digests.INTERVAL, budget=2 * digests.INTERVAL, tick=story.tick, look=story.look,
        fail=story.fail,
    )]
