"""For the idle story: its eyes, hands and books. In: the Groundwork. Out: the story, and how the loop runs it."""

from fallow import loop
from fallow.account import tally
from fallow.stories import idle
from fallow.wiring.ground import IDLE, Groundwork


def make(ground: Groundwork) -> idle.IdleStory:
    source, mandate = "scrape" if ground.scraping else "prometheus", ground.options.mandate
    return idle.IdleStory(
        options=ground.options, eyes=ground.eyes, hands=ground.hands, note=ground.note, kept=ground.kept,
        traces=ground.traces, books=tally.Books(ground.metrics, dry_run=not mandate.acting, source=source),
    )


def as_told(story: idle.IdleStory, ground: Groundwork) -> loop.Story:
    pace = ground.options.loop
    return loop.Story(
        name=IDLE, interval=pace.interval, budget=pace.budget, tick=story.tick, look=story.look, fail=story.fail
    )
