"""One look at what every GPU pod's GPUs do now, and how full the cluster is. Nothing is written anywhere."""

import time

import msgspec

from fallow import settings
from fallow.clients.kubernetes import config
from fallow.decide import packing
from fallow.model import cluster
from fallow.model.units import Instant
from fallow.observe.cluster import hosts
from fallow.observe.usage import pod_use
from fallow.observe.usage.pod_use import GpuNow
from fallow.wiring import daemon, optimizing, reach


class PodsNow(msgspec.Struct, frozen=True, kw_only=True):
    """`pods`: those that hold GPUs. `room`: of the whole cluster."""

    pods: tuple[cluster.Pod, ...]
    uses: tuple[GpuNow, ...]
    room: packing.ClusterRoom
    at: Instant


async def look(options: settings.Settings, asked: settings.PrometheusSettings) -> PodsNow:
    """Raises what the API server and Prometheus do."""
    now = time.time()
    async with reach.open_api(options.kubeconfig, options.context) as (api, _):
        seen = await hosts.look(api)
    words = optimizing.make_words(options, asked)
    access = config.load_access(kubeconfig=options.kubeconfig, context=options.context, environment=options.environment)
    async with daemon.make_prometheus(options, asked, access) as prometheus:
        uses = await pod_use.read(prometheus, words, now)
    holding = tuple(
        pod for pod in seen.pods if pod.node and (pod.resources or pod.claims) and not pod.has_ended
    )
    return PodsNow(pods=holding, uses=uses, room=packing.measure_room(seen, now), at=now)
