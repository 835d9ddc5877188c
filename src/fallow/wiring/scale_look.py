"""One look at nodes that come and go, for who asks what would be added and let go. Nothing is written anywhere.

In: settings. Out: the cycle's sight and plan, as a daemon would make them; since when nobody needs a node, what the
demand of the last weeks was, and what budgets forbid, only a daemon knows. No cloud is asked: what it has of
machines is not seen.
"""

import asyncio
import time
from collections.abc import Callable

from fallow import settings
from fallow.clients.kubernetes import api as kube
from fallow.decide import scaling as deciding
from fallow.model.policies import idle
from fallow.model.scaling import ScalingMemory
from fallow.model.units import Instant
from fallow.observe.cluster import snapshot
from fallow.observe.scaling import sight
from fallow.observe.usage.device_use import DeviceUse
from fallow.stories.scaling import ScalingCycle
from fallow.wiring import daemon, helping, scaling


async def look(options: settings.Settings, tell: Callable[[str], None] | None = None) -> ScalingCycle:
    """Raises what the API server does; what the measurements lack is in the plan."""
    with helping.say_what_to_do(helping.OF_A_LOOK):
        async with daemon.assemble(options, time.time, tell=tell) as made, kube.Api(made.access) as api:
            prices = scaling.ShippedPrices(options.cost, time.time)
            eyes = sight.ScalingEyes(api, sight.ScalingSources(
                use=lambda now: _measure(made.eyes, options.mandate.rule, now),
                why_kept=lambda now: scaling.find_kept(made.seen, options.mandate, now),
                price_of=prices.of_node, price_of_type=prices.of_type, shape_of_type=prices.shape_of,
                currency=options.cost.currency, patience=2 * options.loop.budget,
            ))
            await asyncio.gather(made.seen.list_all(time.time()), eyes.list_once())
            now = time.time()
            seen = await eyes.look(now)
            terms = scaling.make_terms(options.scaling)
            return ScalingCycle(plan=deciding.plan(seen, ScalingMemory(), now, terms=terms), sight=seen)


async def _measure(eyes: snapshot.Eyes, rule: idle.Rule, now: Instant) -> DeviceUse:
    """How often exporters are scraped, without which no mean counts, only a look at all of them tells."""
    await eyes.take_snapshot((rule,), now)
    return await eyes.read_use(now)
