"""Is this address this very machine? Nobody on the way to it can read along, and nobody else can come from it.

In: a host, by name or number, as it stands in an address. Out: yes or no. The one rule, for tokens that are shown, for
doors that are opened without a login, and for secrets that may go without TLS.
Invariant: a name other than localhost is resolved by somebody else, and so is never this machine.
"""


def is_here(host: str) -> bool:
    import ipaddress  # here and not above: --help does without it

    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.rstrip(".").lower() == "localhost"
