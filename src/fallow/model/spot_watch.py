"""What the watch of a spot node is told, and what it hears.

In: nothing. Out: two tuples. They are no Structs, because that library alone is a third of the watch's memory.
"""

from typing import NamedTuple

from fallow.model.units import Instant, Seconds


class WatchOptions(NamedTuple):
    """`cloud`: aws, gcp, azure, or auto. `host`, `port`: of the metrics; port 0: nowhere. `aws`, `gcp`, `azure`: base
    addresses of their metadata. `server`: the API server's."""

    node: str
    cloud: str = "auto"
    interval: Seconds = 5.0
    host: str = "127.0.0.1"
    port: int = 9837
    aws: str = "http://169.254.169.254"
    gcp: str = "http://metadata.google.internal"
    azure: str = "http://169.254.169.254"
    server: str = ""
    token_file: str = ""
    authority_file: str = ""
    log_format: str = "default"
    log_level: str = "info"


class TakenBack(NamedTuple):
    """The cloud takes this very machine back. `ends_at` None: it may, soon."""

    ends_at: Instant | None
