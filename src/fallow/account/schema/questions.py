"""What the ledger asks of its tables, and what it tells them.

`{among}`: is one of the values of a list, as the session spells it. Every other value is a `?`.
"""

from typing import Final

from fallow.model.cost import SpendState

META: Final = (
    "SELECT schema_version, currency, writer_epoch, rolled_until, seen_until, intervals_from, hours_from, generation,"
    " total_nano, spooled, writer FROM ledger_meta"
)
WRITER: Final = "SELECT writer FROM ledger_meta"
VERSION: Final = "SELECT schema_version FROM ledger_meta"
# Of PostgreSQL, where several may start at once.
LOCK_TABLES: Final = "SELECT pg_advisory_xact_lock(1717660780)"
IS_THERE: Final = "SELECT to_regclass('ledger_meta') IS NOT NULL"
# The row is locked by whoever changes it: two writers stand in line here, and the older one finds nothing to change.
CLAIM: Final = "UPDATE ledger_meta SET writer_epoch = ?, writer = ? WHERE writer_epoch <= ?"
# Of two who found the same epoch and take the next, one has it.
TAKE: Final = CLAIM.replace("<=", "<")
SET_CURRENCY: Final = "UPDATE ledger_meta SET currency = ? WHERE currency = ''"
SET_WRITTEN: Final = "UPDATE ledger_meta SET seen_until = ?, rolled_until = ?, generation = generation + ?"
SET_SPOOLED: Final = "UPDATE ledger_meta SET spooled = ?"
SET_ROLLED: Final = "UPDATE ledger_meta SET rolled_until = ?, generation = generation + 1"
SET_TOTAL: Final = "UPDATE ledger_meta SET total_nano = ?"
SET_FORGOTTEN: Final = "UPDATE ledger_meta SET intervals_from = ?, hours_from = ?"

FIND_DIMS: Final = "SELECT digest, dims_id FROM cost_dims WHERE digest {among}"
FIND_KEYS: Final = "SELECT digest, key_id FROM cost_keys WHERE digest {among}"
FIND_PARTS: Final = "SELECT gpu_uuid, slot, part_id FROM cost_parts WHERE gpu_uuid {among}"
FIND_PODS: Final = "SELECT pod_uid, pod_id FROM cost_pods WHERE pod_uid {among}"
FIND_PRICES: Final = "SELECT price_id, price_no FROM cost_prices WHERE price_id {among}"
RENEW_PRICE: Final = (
    "UPDATE cost_prices SET retrieved_at = ?, valid_to = coalesce(?, valid_to) WHERE price_no = ?"
    " AND (retrieved_at IS NULL OR retrieved_at <= ?)"
)
COUNT_DIMS: Final = "SELECT count(*) FROM cost_dims"
NEXT: Final = "SELECT coalesce(max({column}), 0) + 1 FROM {table}"

DIMS: Final = ("dims_id", "digest", "team", "project", "experiment_id", "cost_center", '"user"', "labels")
KEYS: Final = (
    "key_id", "digest", "cluster", "node", "instance_type", "region", "capacity_type", "gpu_model", "sharing_mode",
    "namespace", "owner_kind", "owner_name", "workload_type", "dims_id",
)
PARTS: Final = ("part_id", "gpu_uuid", "slot")
PODS: Final = ("pod_id", "pod_uid", "pod_name", "is_shared")
PRICES: Final = (
    "price_no", "price_id", "provider", "region", "zone", "instance_type", "gpu_model", "gpus", "capacity_type", "unit",
    "price_per_hour", "currency", "valid_from", "valid_to", "source", "retrieved_at",
)
INTERVALS: Final = (
    "day", "part_id", "t0", "t1", "is_open", "key_id", "pod_id", "share_micro", "state", "price_no", "rate_nano",
    "use_micro", "use_hours", "energy_hours", "ack_id", "gap_filled",
)
ROLLED: Final = (
    "bucket", "key_id", "state", "cost_nano", "use_cost_nano", "gpu_micro_seconds", "unpriced_gpu_micro_seconds",
    "energy_mj",
)
SAVINGS: Final = (
    "saving_id", "at", "namespace", "kind", "saved_nano", "baseline_nano", "actual_nano", "details", "realised",
    "is_dry_run",
)
BUDGETS: Final = ("budget", "at", "namespace", "team", "limit_nano", "spend_nano", "used_micro", "status")
ALERTS: Final = (
    "budget_uid", "period_start", "alert_name", "channel", "state", "fired_at", "resolved_at", "delivery",
)

_INTERVALS: Final = f"SELECT {', '.join(INTERVALS)} FROM cost_intervals"
# Every question says t0 as well: TimescaleDB finds its chunks by it.
OF_PARTS: Final = f"{_INTERVALS} WHERE day = ? AND t0 >= ? AND t0 < ? AND part_id {{among}} ORDER BY part_id, t0"
# What is open may go on beyond its t1: until we looked last.
OF_WINDOW: Final = (
    f"{_INTERVALS} WHERE day >= ? AND day <= ? AND t0 >= ? AND t0 < ? AND (t1 > ? OR is_open = 1)"
    " ORDER BY day, part_id, t0"
)
# With those that follow them on the same part: they end what is open.
ACKED_OF_WINDOW: Final = OF_WINDOW.replace(
    " ORDER BY", " AND (day, part_id) IN (SELECT day, part_id FROM cost_intervals WHERE ack_id IS NOT NULL) ORDER BY"
)
_WITHIN: Final = "FROM cost_intervals WHERE day >= ? AND day <= ? AND t0 >= ? AND t0 < ?"
KEYS_OF_WINDOW: Final = f"SELECT DISTINCT key_id {_WITHIN}"
KEYED_OF_WINDOW: Final = OF_WINDOW.replace(
    " ORDER BY", f" AND (day, part_id) IN (SELECT day, part_id {_WITHIN} AND key_id {{among}}) ORDER BY"
)
PRICES_OF_WINDOW: Final = (
    "SELECT DISTINCT p.price_id FROM cost_intervals i JOIN cost_prices p ON p.price_no = i.price_no"
    " WHERE i.day >= ? AND i.day <= ?"
)
# What goes on began in the last days that were written; an index of what is open would double the time of writing.
SINCE_DAY: Final = f"{_INTERVALS} WHERE day >= ? AND t0 >= ? ORDER BY day, part_id, t0"
LAST_DAY: Final = "SELECT max(day) FROM cost_intervals"
OPEN_ENDS: Final = "SELECT t1 FROM cost_intervals WHERE is_open = 1"
FIRST_DAY: Final = "SELECT min(day) FROM cost_intervals"

KEY_ROWS: Final = (
    "SELECT k.key_id, k.cluster, k.node, k.instance_type, k.region, k.capacity_type, k.gpu_model, k.sharing_mode,"
    " k.namespace, k.owner_kind, k.owner_name, k.workload_type, d.team, d.project, d.experiment_id, d.cost_center,"
    ' d."user", d.labels FROM cost_keys k JOIN cost_dims d ON d.dims_id = k.dims_id WHERE k.key_id {among}'
)
PART_ROWS: Final = "SELECT part_id, gpu_uuid, slot FROM cost_parts WHERE part_id {among}"
POD_ROWS: Final = "SELECT pod_id, pod_uid, pod_name FROM cost_pods WHERE pod_id {among}"
SHARED_PODS: Final = "SELECT pod_uid FROM cost_pods WHERE is_shared = 1 AND pod_uid {among}"
# Pods that are over, the last of them first: each with one of its keys, how many parts it held, its beginning and end,
# the seconds that were measured, and what was used in them.
RUNS: Final = (
    "SELECT i.pod_id, max(i.key_id), count(DISTINCT i.part_id), min(i.t0), max(i.t1), CAST(sum(i.t1 - i.t0) AS BIGINT),"
    " CAST(sum(CASE WHEN i.use_micro IS NULL THEN 0 ELSE i.t1 - i.t0 END) AS BIGINT),"
    " CAST(sum(CASE WHEN i.use_micro IS NULL THEN 0 ELSE (i.t1 - i.t0) * i.use_micro END) AS BIGINT)"
    " FROM cost_intervals i JOIN cost_pods p ON p.pod_id = i.pod_id"
    " WHERE i.day >= ? AND i.t0 >= ? AND p.pod_uid <> '' GROUP BY i.pod_id"
    " HAVING max(i.is_open) = 0 AND min(i.t0) > ? ORDER BY max(i.t1) DESC, i.pod_id LIMIT ?"
)
PRICE_IDS: Final = "SELECT price_no, price_id FROM cost_prices WHERE price_no {among}"
PRICE_ROWS: Final = f"SELECT {', '.join(PRICES[1:])} FROM cost_prices ORDER BY price_no"

_SUMS: Final = ", ".join(f"CAST(sum({column}) AS BIGINT)" for column in ROLLED[3:])
# Key and state as one number: KINDS * key + state. What is sorted for groups is then a sixth less work.
KINDS: Final = len(SpendState)
# The pieces are `(VALUES ...)`, each with its number and the buckets it holds.
SUMS_OF: Final = (
    "WITH pieces (piece, begin_at, end_at) AS (VALUES {pieces})"
    f" SELECT piece, key_id * {KINDS} + state AS kind, {_SUMS} FROM pieces JOIN {{table}}"
    " ON bucket >= begin_at AND bucket < end_at GROUP BY piece, kind"
)
# In whole units and the rest: what years come to in nano need not fit into 64 bits.
TOTAL_OF: Final = (
    "SELECT coalesce(sum(cost_nano / 1000000000), 0), coalesce(sum(cost_nano % 1000000000), 0)"
    " FROM {table} WHERE bucket >= ? AND bucket < ?"
)
BUCKETS: Final = f"SELECT {', '.join(ROLLED)} FROM {{table}} WHERE bucket >= ? AND bucket < ?"
DELETE_HOURS: Final = "DELETE FROM cost_hourly WHERE bucket >= ? AND bucket < ?"
DELETE_DAY: Final = "DELETE FROM cost_daily WHERE bucket = ?"
ADD_DAY: Final = (
    f"INSERT INTO cost_daily ({', '.join(ROLLED)}) SELECT CAST(? AS BIGINT), key_id, state, {_SUMS} FROM cost_hourly"
    " WHERE bucket >= ? AND bucket < ? GROUP BY key_id, state"
)

BEGAN: Final = (
    "SELECT (SELECT MIN(t0) FROM cost_intervals WHERE day = (SELECT MIN(day) FROM cost_intervals)),"
    " (SELECT MIN(bucket) FROM cost_daily)"
)
FORGET_INTERVALS: Final = "DELETE FROM cost_intervals WHERE day < ?"
FORGET_HOURS: Final = "DELETE FROM cost_hourly WHERE bucket < ?"
FORGET_PODS: Final = "DELETE FROM cost_pods WHERE pod_id NOT IN (SELECT pod_id FROM cost_intervals)"
FORGET_BUDGETS: Final = "DELETE FROM ledger_budgets WHERE at < ?"

DEMAND: Final = ("policy", "hour", "gpus_milli")
DELETE_DEMAND: Final = "DELETE FROM scaling_demand WHERE policy = ? AND hour = ?"
FORGET_DEMAND: Final = "DELETE FROM scaling_demand WHERE hour < ?"
READ_DEMAND: Final = f"SELECT {', '.join(DEMAND)} FROM scaling_demand WHERE hour >= ? ORDER BY policy, hour"

DELETE_SAVINGS: Final = "DELETE FROM ledger_savings WHERE saving_id {among}"
READ_SAVINGS: Final = (
    f"SELECT {', '.join(SAVINGS)} FROM ledger_savings WHERE at >= ? AND at < ? ORDER BY at, saving_id"
)
DELETE_BUDGET: Final = "DELETE FROM ledger_budgets WHERE budget = ? AND at = ?"
READ_BUDGETS: Final = f"SELECT {', '.join(BUDGETS)} FROM ledger_budgets WHERE at >= ? AND at < ? ORDER BY at, budget"
DELETE_ALERT: Final = (
    "DELETE FROM budget_alerts WHERE budget_uid = ? AND period_start = ? AND alert_name = ? AND channel = ?"
)
READ_ALERTS: Final = (
    f"SELECT {', '.join(ALERTS)} FROM budget_alerts WHERE budget_uid = ? OR ? = ''"
    " ORDER BY budget_uid, period_start, alert_name, channel"
)
