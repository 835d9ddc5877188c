"""Which proxy leads to a server: HTTPS_PROXY, HTTP_PROXY and NO_PROXY as kubectl reads them, once for all clients.

In: an address and the environment. Out: the proxy's address, which may hold a password. Loopback addresses need none.
"""

import ipaddress
from collections.abc import Mapping
from urllib import parse


def find_proxy(server: str, environment: Mapping[str, str]) -> str:
    """The proxy for this server; empty for none."""
    parts = parse.urlsplit(server)
    name = f"{parts.scheme}_proxy"
    address = environment.get(name.upper()) or environment.get(name) or ""
    exempt = environment.get("NO_PROXY") or environment.get("no_proxy") or ""
    host = parts.hostname or ""
    rules = ["localhost", "127.0.0.0/8", "::1", *exempt.split(",")]
    if not address or any(_is_exempt(host, rule.strip().lower()) for rule in rules):
        return ""
    return address if "://" in address else f"http://{address}"


def _is_exempt(host: str, rule: str) -> bool:
    if not rule:
        return False
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(rule, strict=False)
    except ValueError:
        return rule == "*" or host == rule.lstrip("*.") or host.endswith("." + rule.lstrip("*."))
