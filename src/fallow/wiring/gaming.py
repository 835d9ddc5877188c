"""For who keeps GPUs busy only to be left alone: by whom they are measured. In: the Groundwork. Out: a Story."""

from fallow import loop
from fallow.observe.scrape import source
from fallow.observe.usage import burning
from fallow.stories import gaming
from fallow.wiring.ground import Groundwork

GAMING = "gaming"  # the name of the story


def make_story(ground: Groundwork) -> loop.Story:
    asked = None if isinstance(ground.usage, source.ScrapeSource) else ground.usage.prometheus
    story = gaming.GamingStory(
        latest=ground.latest, metrics=ground.metrics,
        measure=None if asked is None else lambda gpus, now: burning.read(asked, gpus, now),
    )
    return loop.Story(
        name=GAMING, interval=gaming.FIRST, budget=gaming.FIRST, tick=story.tick, look=story.look, fail=story.fail
    )


def find_suspects(looping: loop.Loop) -> gaming.GamingTurn | None:
    """As they were last looked for."""
    found = looping.latest(GAMING)
    return found if isinstance(found, gaming.GamingTurn) else None
