"""The flags about the books themselves: where they are kept, how often they are written, for how long they are kept.

In: flag texts, the environment. Out: CostStoreSettings. Two places at once, a database's address where a path is meant,
or a file that cannot be read is a usage error, before anything is contacted.
Invariant: an address that may have a password in it is a Secret, and no sentence repeats it.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from fallow import names
from fallow.model.cost import DAY, CostRetention
from fallow.model.secret import Secret
from fallow.model.units import MINUTE, Seconds
from fallow.settings import readers as read
from fallow.settings.flags import Flag, group
from fallow.settings.readers import UsageError

COST_STORE: Final = "Where the books are"
DSN: Final = "FALLOW_COST_DSN"
FILE, SPOOL = "costs.sqlite", "costs.spool"
_LEAST_INTERVAL: Final[Seconds] = 1.0
_MOST_INTERVAL: Final[Seconds] = 10 * MINUTE
_ADDRESS: Final = re.compile(r"://|\b(host|dbname|user|password)\s*=")
_LABEL: Final = re.compile(r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


def _path(text: str) -> str:
    if _ADDRESS.search(text):
        raise ValueError(f"this is the address of a database, not a path: name it by --cost-store-dsn-file or {DSN}")
    if not text.strip():
        raise ValueError("no path is given")
    return text


def _interval(text: str) -> Seconds:
    seconds = read.duration(text)
    if not _LEAST_INTERVAL <= seconds <= _MOST_INTERVAL:
        raise ValueError(f"{text!r} is not between 1s and 10m")
    return seconds


def _labels(text: str) -> tuple[str, ...]:
    found = read.name_list(text)
    if strange := [each for each in found if not _LABEL.fullmatch(each)]:
        raise ValueError(f"{strange[0]!r} is not the key of a label")
    return found


FLAGS: tuple[Flag, ...] = group(
    COST_STORE,
    Flag("--cost-store", "PATH", f"SQLite file of the books; default: {FILE} in --state-dir, else memory only.", _path),
    Flag("--cost-store-dsn-file", "FILE",
         f"File with the address of a PostgreSQL that has the books instead, or in the variable {DSN}: "
         "postgresql://USER:PASSWORD@HOST/DATABASE."),
    Flag("--cost-spool", "PATH",
         f"File in which up to a day of costs waits while the store is away; default: {SPOOL} beside --cost-store, or "
         "in --state-dir.", _path),
    Flag("--cost-tracking-interval", "DURATION", "How often the books are written; they are exact to the second.",
         _interval, "60s"),
    Flag("--cost-retention-intervals-days", "DAYS", "Days for which single intervals are kept.", read.whole_number(2),
         "90"),
    Flag("--cost-retention-hours-days", "DAYS", "Days for which sums of hours are kept; sums of days stay for ever.",
         read.whole_number(2), "365"),
    Flag("--cost-attribution-labels", "A,B",
         "Labels by which costs can be grouped, besides team, project, experiment-id, cost-center and user.", _labels,
         names.NAME_LABEL),
)


class CostStoreSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`path` None: in memory, unless there is a `dsn`. `spool` None: what cannot be written waits in memory."""

    path: str | None = None
    dsn: Secret[str] | None = None
    spool: str | None = None
    interval: Seconds = 60.0
    retention: CostRetention = CostRetention()
    labels: tuple[str, ...] = (names.NAME_LABEL,)


def read_cost_store(values: Mapping[str, Any], environ: Mapping[str, str]) -> CostStoreSettings:
    dsn, path, kept_in = _read_dsn(values, environ), values["cost_store"], values["state_dir"]
    if dsn is not None and path is not None:
        raise UsageError(f"--cost-store and a database (--cost-store-dsn-file, {DSN}) are two places: give one of them")
    if path is None and kept_in is not None and dsn is None:
        path = str(Path(kept_in, FILE))
    days, hours = values["cost_retention_intervals_days"], values["cost_retention_hours_days"]
    if hours < days:
        raise UsageError("--cost-retention-hours-days is less than --cost-retention-intervals-days: sums stay longer")
    return CostStoreSettings(
        path=path, dsn=dsn, spool=values["cost_spool"] or _find_spool(path, kept_in),
        interval=values["cost_tracking_interval"], labels=values["cost_attribution_labels"],
        retention=CostRetention(intervals=days * DAY, hours=hours * DAY),
    )


def _find_spool(path: str | None, kept_in: str | None) -> str | None:
    if path is not None:
        return str(Path(path).with_name(SPOOL))
    return None if kept_in is None else str(Path(kept_in, SPOOL))


def _read_dsn(values: Mapping[str, Any], environ: Mapping[str, str]) -> Secret[str] | None:
    path = values["cost_store_dsn_file"]
    if path is None:
        return Secret(environ[DSN].strip()) if environ.get(DSN, "").strip() else None
    try:
        text = Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as problem:
        because = problem.strerror if isinstance(problem, OSError) else "it is no text"
        raise UsageError(f"--cost-store-dsn-file: {path} cannot be read: {because}") from None
    if not text:
        raise UsageError(f"--cost-store-dsn-file: {path} is empty")
    return Secret(text)
