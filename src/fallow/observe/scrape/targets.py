"""Which exporters are there? Found by their pods' labels, or named by address.

In: an Api, selectors, addresses. Out: `ScrapeTarget`s: where to ask, and what to call it.
A target's name is that of its node (and of the exporter's label and namespace), not of its pod: the next pod of the
same DaemonSet goes on where the last one ended, and its series stay the same series.
Invariant: a pod that does not run, is going, or has no address is no target; one that cannot be listed is a problem and
not an absence. A pod outside the namespaces of exporters is named and never asked.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final, NamedTuple, Self

import msgspec
import yarl

from fallow import names
from fallow.clients import errors
from fallow.clients.kubernetes import api as kube
from fallow.observe.cluster import following, objects, pods
from fallow.observe.usage import trust

DCGM_PORT, OWN_PORT = 9400, 9835
NAMED: Final = "scrape-target"  # the job of those that were given by address
OWN_EXPORTER: Final = names.NODE_EXPORTER
SELECTORS: Final = (
    f"{names.NAME_LABEL} in ({names.DCGM_EXPORTER}, {OWN_EXPORTER})",
    f"app={names.DCGM_APP}",
)
_PORT_NAMES = ("metrics", "gpu-metrics")


class ScrapeTarget(NamedTuple):
    url: str
    job: str
    instance: str  # its node, or host and port
    node: str = ""  # "" = not known
    namespace: str = ""
    pod: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """What its series are known by."""
        return self.job, self.instance


class _Port(msgspec.Struct, rename="camel"):
    container_port: int
    name: str = ""


class _ExporterContainer(msgspec.Struct):
    ports: list[_Port] | None = None


class _ExporterSpec(msgspec.Struct, rename="camel"):
    containers: list[_ExporterContainer]
    node_name: str = ""


class _ExporterStatus(msgspec.Struct, rename="camel"):
    phase: str = ""
    pod_ip: str = msgspec.field(default="", name="podIP")


class ExporterItem(msgspec.Struct):
    metadata: objects.Meta
    spec: _ExporterSpec
    status: _ExporterStatus = msgspec.field(default_factory=_ExporterStatus)


def read_pod(item: ExporterItem) -> ScrapeTarget | None:
    meta, address = item.metadata, item.status.pod_ip
    if item.status.phase != "Running" or meta.deletion_timestamp is not None or not address:
        return None
    labels = meta.labels or {}
    called = labels.get(names.NAME_LABEL) or labels.get("app") or "exporter"
    host = f"[{address}]" if ":" in address else address
    url = f"http://{host}:{_find_port(item.spec.containers, called)}/metrics"
    node = item.spec.node_name
    return ScrapeTarget(url, f"{meta.namespace}/{called}", node or host, node, meta.namespace, meta.name)


def _find_port(containers: Iterable[_ExporterContainer], called: str) -> int:
    for port in (port for container in containers for port in container.ports or ()):
        if port.name in _PORT_NAMES:
            return port.container_port
    return OWN_PORT if called == OWN_EXPORTER else DCGM_PORT


def read_address(url: str) -> ScrapeTarget:
    """A target that was named. Without a path it is /metrics that is meant."""
    parsed = yarl.URL(url)
    url = str(parsed if parsed.path.strip("/") else parsed.with_path("/metrics"))
    return ScrapeTarget(url, NAMED, parsed.authority)


class Finder:
    """Keeps looking for exporters (`follows`), or looks once. An async context manager: leaving it ends all watches."""

    def __init__(
        self, api: kube.Api, belief: trust.Belief, *, selectors: Sequence[tuple[str, str]] = (),
        addresses: Sequence[str] = (), namespaces: Collection[str] = (), follows: bool = False,
    ) -> None:
        """`selectors`: (namespace or "", label selector), instead of our own: a namespace that is named so is one to
        believe; `namespaces`: where we may list pods."""
        self._belief = belief
        self._named_namespaces = frozenset(namespace for namespace, _ in selectors if namespace)
        own = [(namespace, selector) for namespace in sorted(namespaces) or [""] for selector in SELECTORS]
        self._named = tuple(map(read_address, addresses))
        self._starter = following.Starter()
        self._starter.stays = follows
        self._followings = [
            following.Area(api, (namespace,)).follow(
                kube.PODS, ExporterItem, read_pod, label_selector=selector, field_selector=pods.ALIVE
            )
            for namespace, selector in selectors or own
        ]

    async def __aenter__(self) -> Self:
        await self._starter.__aenter__()
        return self

    async def __aexit__(self, *why: Any) -> None:
        await self._starter.__aexit__(*why)

    async def begin(self) -> None:
        """Returns when everything was listed once, or has a problem."""
        await self._starter.begin(self._followings)

    @property
    def targets(self) -> tuple[ScrapeTarget, ...]:
        """Every exporter that is believed once, however many selectors find it."""
        self._starter.check()
        found = [target for target in self._found if self.believes(target.namespace)]
        return tuple({target.url: target for target in (*found, *self._named)}.values())

    @property
    def strangers(self) -> tuple[ScrapeTarget, ...]:
        """Those that call themselves exporters where none are looked for."""
        return tuple({target.url: target for target in self._found if not self.believes(target.namespace)}.values())

    @property
    def _found(self) -> list[ScrapeTarget]:
        return [target for each in self._followings for target in each.store.values()]

    def believes(self, namespace: str) -> bool:
        return namespace in self._named_namespaces or self._belief.holds_for(namespace)

    @property
    def problem(self) -> errors.ClientError | None:
        return next((problem for each in self._followings for problem in each.problems), None)
