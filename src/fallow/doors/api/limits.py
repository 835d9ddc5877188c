"""How often somebody may, and what is remembered for a while: both within bounds, whoever asks.

In: a key, and now (of a monotonic clock). Out: yes or no; what is remembered.
Invariant: memory is bounded. Of too many, those that were least lately heard of are forgotten first.
"""

import ipaddress
from collections import OrderedDict, deque
from collections.abc import Hashable
from typing import Generic, TypeVar

from fallow.model.units import MINUTE, Seconds

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Limiter:
    """At most so many within a span for each key."""

    def __init__(self, most: int, span: Seconds = MINUTE, *, keys: int = 10_000) -> None:
        self._most, self._span, self._keys = most, span, keys
        self._times: OrderedDict[str, deque[float]] = OrderedDict()

    def take(self, key: str, now: float) -> bool:
        times = self._times.setdefault(key, deque())
        self._times.move_to_end(key)
        while times and now - times[0] >= self._span:
            times.popleft()
        if len(self._times) > self._keys:
            self._times.popitem(last=False)
        if len(times) >= self._most:
            return False
        times.append(now)
        return True


class Remembered(Generic[K, V]):
    """Values for a span after they were put, and no longer."""

    def __init__(self, span: Seconds, most: int = 10_000) -> None:
        self._span, self._most = span, most
        self._values: OrderedDict[K, tuple[float, V]] = OrderedDict()

    def get(self, key: K, now: float) -> V | None:
        found = self._values.get(key)
        return found[1] if found is not None and now - found[0] < self._span else None

    def put(self, key: K, value: V, now: float) -> None:
        self._values[key] = now, value
        self._values.move_to_end(key)
        if len(self._values) > self._most:
            self._values.popitem(last=False)


def neighbourhood(address: str) -> str:
    """Whom we count as one: an IPv4 address; of IPv6 the /64, which one household has to itself."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped:
            return str(found.ipv4_mapped)
        return str(ipaddress.ip_network((found, 64), strict=False))
    return address
