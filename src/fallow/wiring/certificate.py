"""For the admission webhook's certificate: the story with its hands. In: the Groundwork. Out: a Story for the loop."""

from __future__ import annotations

from fallow import loop
from fallow.act import certificates
from fallow.stories import certificate
from fallow.wiring.ground import Groundwork

CERTIFICATE = "certificate"  # the name of the story


def make_stories(ground: Groundwork) -> list[loop.Story]:
    """None where something else makes it."""
    if not ground.options.enforcement.makes_certificate:
        return []
    story = certificate.CertificateStory(certificates.CertificateKeeper(ground.api, ground.namespace).look)
    return [loop.Story(
        name=CERTIFICATE, interval=certificate.INTERVAL, budget=certificate.INTERVAL, tick=story.tick, look=story.look,
        fail=story.fail, is_vital=False,
    )]
