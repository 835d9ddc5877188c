"""The tables of the ledger, and how one version of them becomes the next.

All that a report groups by stands once, in `cost_keys` (with `cost_dims`); part, pod and price stand once too, and an
interval names them by number. An interval's id is the hash of gpu, slot, pod and t0; (day, part, t0) is the same key
without 16 bytes for each row, for on one part only one may begin at a time.
`day`: since the epoch, that of t0; an interval lies within it, so that a window reads whole days and no index.
Codes of `state` are the order of SpendState.
"""

from typing import Final

from fallow.account.schema import SqlDialect

VERSION: Final = 2

_AMOUNTS: Final = (
    "cost_nano {int} NOT NULL, use_cost_nano {int} NOT NULL, gpu_micro_seconds {int} NOT NULL,"
    " unpriced_gpu_micro_seconds {int} NOT NULL, energy_mj {int} NOT NULL"
)
_ROLLED: Final = (
    "CREATE TABLE {name} (bucket {int} NOT NULL, key_id {int} NOT NULL, state {int} NOT NULL, "
    + _AMOUNTS
    + ", PRIMARY KEY (bucket, key_id, state)){narrow}"
)
_FIRST: Final = (
    "CREATE TABLE ledger_meta (one {int} PRIMARY KEY CHECK (one = 1), schema_version {int} NOT NULL,"
    " writer_epoch {int} NOT NULL, writer TEXT NOT NULL, currency TEXT NOT NULL, rolled_until {int} NOT NULL,"
    " seen_until {int} NOT NULL, intervals_from {int} NOT NULL, hours_from {int} NOT NULL,"
    " generation {int} NOT NULL, total_nano TEXT NOT NULL, spooled TEXT NOT NULL)",
    "CREATE TABLE cost_dims (dims_id {int} PRIMARY KEY, digest TEXT NOT NULL UNIQUE, team TEXT NOT NULL,"
    ' project TEXT NOT NULL, experiment_id TEXT NOT NULL, cost_center TEXT NOT NULL, "user" TEXT NOT NULL,'
    " labels TEXT NOT NULL)",
    "CREATE TABLE cost_keys (key_id {int} PRIMARY KEY, digest TEXT NOT NULL UNIQUE, cluster TEXT NOT NULL,"
    " node TEXT NOT NULL, instance_type TEXT NOT NULL, region TEXT NOT NULL, capacity_type TEXT NOT NULL,"
    " gpu_model TEXT NOT NULL, sharing_mode TEXT NOT NULL, namespace TEXT NOT NULL, owner_kind TEXT NOT NULL,"
    " owner_name TEXT NOT NULL, workload_type TEXT NOT NULL, dims_id {int} NOT NULL)",
    "CREATE TABLE cost_parts (part_id {int} PRIMARY KEY, gpu_uuid TEXT NOT NULL, slot TEXT NOT NULL,"
    " UNIQUE (gpu_uuid, slot))",
    "CREATE TABLE cost_pods (pod_id {int} PRIMARY KEY, pod_uid TEXT NOT NULL UNIQUE, pod_name TEXT NOT NULL)",
    "CREATE TABLE cost_prices (price_no {int} PRIMARY KEY, price_id TEXT NOT NULL UNIQUE, provider TEXT, region TEXT,"
    " zone TEXT, instance_type TEXT, gpu_model TEXT, gpus {int}, capacity_type TEXT, unit TEXT, price_per_hour TEXT,"
    " currency TEXT, valid_from {int}, valid_to {int}, source TEXT, retrieved_at {int})",
    "CREATE TABLE cost_intervals (day {int} NOT NULL, part_id {int} NOT NULL, t0 {int} NOT NULL, t1 {int} NOT NULL,"
    " is_open {int} NOT NULL, key_id {int} NOT NULL, pod_id {int} NOT NULL, share_micro {int} NOT NULL,"
    " state {int} NOT NULL, price_no {int}, rate_nano {int}, use_micro {int}, use_hours {bytes},"
    " energy_hours {bytes}, ack_id TEXT, gap_filled {int} NOT NULL, PRIMARY KEY (day, part_id, t0)){narrow}",
    _ROLLED.replace("{name}", "cost_hourly"),
    _ROLLED.replace("{name}", "cost_daily"),
    "CREATE TABLE ledger_savings (saving_id TEXT PRIMARY KEY, at {int} NOT NULL, namespace TEXT NOT NULL,"
    " kind TEXT NOT NULL, saved_nano {int} NOT NULL, baseline_nano {int} NOT NULL, actual_nano {int} NOT NULL,"
    " details TEXT NOT NULL, realised {int} NOT NULL, is_dry_run {int} NOT NULL)",
    "CREATE INDEX ledger_savings_by_time ON ledger_savings (at)",
    "CREATE TABLE ledger_budgets (budget TEXT NOT NULL, at {int} NOT NULL, namespace TEXT NOT NULL, team TEXT NOT NULL,"
    " limit_nano {int} NOT NULL, spend_nano {int} NOT NULL, used_micro {int} NOT NULL, status TEXT NOT NULL,"
    " PRIMARY KEY (budget, at)){narrow}",
    "CREATE TABLE budget_alerts (budget_uid TEXT NOT NULL, period_start {int} NOT NULL, alert_name TEXT NOT NULL,"
    " channel TEXT NOT NULL, state TEXT NOT NULL, fired_at {int}, resolved_at {int}, delivery TEXT NOT NULL,"
    " PRIMARY KEY (budget_uid, period_start, alert_name, channel)){narrow}",
    "INSERT INTO ledger_meta VALUES (1, 1, 0, '', '', 0, 0, 0, 0, 0, '0', '')",
)
# Of each pod: did we make it share a GPU?
_SHARED: Final = ("ALTER TABLE cost_pods ADD COLUMN is_shared {int} NOT NULL DEFAULT 0",)
MIGRATIONS: Final = (_FIRST, _SHARED)  # the first makes version 1 of nothing


def find_changes(version: int, dialect: SqlDialect) -> list[str]:
    """What leads from that version to ours."""
    said = [text for change in MIGRATIONS[version:] for text in change]
    words = (("{int}", dialect.integer), ("{bytes}", dialect.binary), ("{narrow}", dialect.narrow))
    for word, spelt in words:
        said = [text.replace(word, spelt) for text in said]
    return [*said, f"UPDATE ledger_meta SET schema_version = {VERSION}"]
