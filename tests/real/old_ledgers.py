"""Ledgers as earlier versions left them on PostgreSQL: their tables, word for word, and rows that were written then.

The text is what those versions ran, and stands here by itself: a change of today's migrations must not change what is
out there already. It is never brought up to date.
"""

from __future__ import annotations

from tests.real.ledger_places import ServerPlace

_ROLLED = (
    "(bucket BIGINT NOT NULL, key_id BIGINT NOT NULL, state BIGINT NOT NULL, cost_nano BIGINT NOT NULL,"
    " use_cost_nano BIGINT NOT NULL, gpu_micro_seconds BIGINT NOT NULL, unpriced_gpu_micro_seconds BIGINT NOT NULL,"
    " energy_mj BIGINT NOT NULL, PRIMARY KEY (bucket, key_id, state))"
)
TABLES = {
    "ledger_meta":
        "(one BIGINT PRIMARY KEY CHECK (one = 1), schema_version BIGINT NOT NULL, writer_epoch BIGINT NOT NULL,"
        " writer TEXT NOT NULL, currency TEXT NOT NULL, rolled_until BIGINT NOT NULL, seen_until BIGINT NOT NULL,"
        " intervals_from BIGINT NOT NULL, hours_from BIGINT NOT NULL, generation BIGINT NOT NULL,"
        " total_nano TEXT NOT NULL, spooled TEXT NOT NULL)",
    "cost_dims":
        "(dims_id BIGINT PRIMARY KEY, digest TEXT NOT NULL UNIQUE, team TEXT NOT NULL, project TEXT NOT NULL,"
        ' experiment_id TEXT NOT NULL, cost_center TEXT NOT NULL, "user" TEXT NOT NULL, labels TEXT NOT NULL)',
    "cost_keys":
        "(key_id BIGINT PRIMARY KEY, digest TEXT NOT NULL UNIQUE, cluster TEXT NOT NULL, node TEXT NOT NULL,"
        " instance_type TEXT NOT NULL, region TEXT NOT NULL, capacity_type TEXT NOT NULL, gpu_model TEXT NOT NULL,"
        " sharing_mode TEXT NOT NULL, namespace TEXT NOT NULL, owner_kind TEXT NOT NULL, owner_name TEXT NOT NULL,"
        " workload_type TEXT NOT NULL, dims_id BIGINT NOT NULL)",
    "cost_parts":
        "(part_id BIGINT PRIMARY KEY, gpu_uuid TEXT NOT NULL, slot TEXT NOT NULL, UNIQUE (gpu_uuid, slot))",
    "cost_pods": "(pod_id BIGINT PRIMARY KEY, pod_uid TEXT NOT NULL UNIQUE, pod_name TEXT NOT NULL)",
    "cost_prices":
        "(price_no BIGINT PRIMARY KEY, price_id TEXT NOT NULL UNIQUE, provider TEXT, region TEXT, zone TEXT,"
        " instance_type TEXT, gpu_model TEXT, gpus BIGINT, capacity_type TEXT, unit TEXT, price_per_hour TEXT,"
        " currency TEXT, valid_from BIGINT, valid_to BIGINT, source TEXT, retrieved_at BIGINT)",
    "cost_intervals":
        "(day BIGINT NOT NULL, part_id BIGINT NOT NULL, t0 BIGINT NOT NULL, t1 BIGINT NOT NULL,"
        " is_open BIGINT NOT NULL, key_id BIGINT NOT NULL, pod_id BIGINT NOT NULL, share_micro BIGINT NOT NULL,"
        " state BIGINT NOT NULL, price_no BIGINT, rate_nano BIGINT, use_micro BIGINT, use_hours BYTEA,"
        " energy_hours BYTEA, ack_id TEXT, gap_filled BIGINT NOT NULL, PRIMARY KEY (day, part_id, t0))",
    "cost_hourly": _ROLLED,
    "cost_daily": _ROLLED,
    "ledger_savings":
        "(saving_id TEXT PRIMARY KEY, at BIGINT NOT NULL, namespace TEXT NOT NULL, kind TEXT NOT NULL,"
        " saved_nano BIGINT NOT NULL, baseline_nano BIGINT NOT NULL, actual_nano BIGINT NOT NULL,"
        " details TEXT NOT NULL, realised BIGINT NOT NULL, is_dry_run BIGINT NOT NULL)",
    "ledger_budgets":
        "(budget TEXT NOT NULL, at BIGINT NOT NULL, namespace TEXT NOT NULL, team TEXT NOT NULL,"
        " limit_nano BIGINT NOT NULL, spend_nano BIGINT NOT NULL, used_micro BIGINT NOT NULL, status TEXT NOT NULL,"
        " PRIMARY KEY (budget, at))",
    "budget_alerts":
        "(budget_uid TEXT NOT NULL, period_start BIGINT NOT NULL, alert_name TEXT NOT NULL, channel TEXT NOT NULL,"
        " state TEXT NOT NULL, fired_at BIGINT, resolved_at BIGINT, delivery TEXT NOT NULL,"
        " PRIMARY KEY (budget_uid, period_start, alert_name, channel))",
}
# A view of that time: whoever changes a table has to change it although a view stands on it.
_VIEW = (
    "CREATE VIEW cost_data AS SELECT p.pod_name, i.* FROM cost_intervals i JOIN cost_pods p ON p.pod_id = i.pod_id"
)
_CHUNKS = (
    "SELECT create_hypertable('cost_intervals', 't0', chunk_time_interval => 86400, create_default_indexes => FALSE)"
)
STEPS = {2: "ALTER TABLE cost_pods ADD COLUMN is_shared BIGINT NOT NULL DEFAULT 0"}  # what made it of the one before


def make_old(place: ServerPlace, version: int, rows_of: ServerPlace) -> None:
    """A ledger of that version in an empty place, with the rows that another one has."""
    for name, columns in TABLES.items():
        place.run(f"CREATE TABLE {name} {columns}")
    place.run("CREATE INDEX ledger_savings_by_time ON ledger_savings (at)")
    if place.run("SELECT 1 FROM pg_extension WHERE extname = 'timescaledb'"):
        place.run(_CHUNKS)
    for step in range(2, version + 1):
        place.run(STEPS[step])
    ((source,),) = rows_of.run("SELECT current_schema()")
    for name in TABLES:
        columns = ", ".join(columns_of(place, name))
        place.run(f"INSERT INTO {name} ({columns}) SELECT {columns} FROM {source}.{name}")
    place.run(_VIEW)
    place.run(f"UPDATE ledger_meta SET schema_version = {version}")


def columns_of(place: ServerPlace, table: str) -> list[str]:
    asked = (
        "SELECT column_name FROM information_schema.columns WHERE table_schema = current_schema()"
        f" AND table_name = '{table}' ORDER BY ordinal_position"
    )
    return [f'"{name}"' for (name,) in place.run(asked)]
