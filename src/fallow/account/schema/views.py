"""Wide tables for people and for what reads the tables of old: views, to be read and not written.

`cost_data`, `cost_hourly_summary`, `cost_daily_summary`, `cost_savings` and `budget_tracking` have the columns that the
documents name. Money is in units of the currency, a time is a time. What is open ends where we looked last, and hours
are shown as far as they are summed up.
"""

from typing import Final

from fallow.account.schema import SqlDialect

# `(day + 1) * 86400`: what is open goes on until we looked last, within its day.
_ENDS: Final = (
    "SELECT i.*, CASE WHEN i.is_open = 0 OR i.t1 >= m.seen_until THEN i.t1"
    " WHEN m.seen_until > (i.day + 1) * 86400 THEN (i.day + 1) * 86400 ELSE m.seen_until END AS ends"
    " FROM cost_intervals i CROSS JOIN ledger_meta m"
)
_WHOLE: Final = (
    "SELECT e.*, e.rate_nano / 3600 * (e.ends - e.t0) + e.rate_nano % 3600 * (e.ends - e.t0) / 3600 AS whole,"
    f" e.rate_nano % 3600 * (e.ends - e.t0) % 3600 AS rest FROM ({_ENDS}) e"
)
# Half to even, as the ledger itself rounds.
_COST: Final = "(w.whole + CASE WHEN w.rest > 1800 OR (w.rest = 1800 AND w.whole % 2 = 1) THEN 1 ELSE 0 END)"
_STATE: Final = (
    "CASE r.state WHEN 0 THEN 'used' WHEN 1 THEN 'held_idle' WHEN 2 THEN 'unallocated' ELSE 'use_unknown' END"
)
_KEYS: Final = (
    "k.cluster, k.namespace, k.owner_kind, k.owner_name, k.node, k.gpu_model, k.capacity_type, k.sharing_mode,"
    ' k.workload_type, d.team, d.project, d.experiment_id, d.cost_center, d."user", d.labels'
)
_SUMMARY: Final = (
    f"SELECT {{instant:r.bucket}} AS time, {_KEYS}, {_STATE} AS state, {{units:r.cost_nano}} AS cost,"
    " {units:r.use_cost_nano} AS use_cost, r.gpu_micro_seconds / 3600000000.0 AS gpu_hours,"
    " r.unpriced_gpu_micro_seconds / 3600000000.0 AS unpriced_gpu_hours, r.energy_mj / 3600000000000.0 AS energy_kwh"
    " FROM {table} r JOIN cost_keys k ON k.key_id = r.key_id JOIN cost_dims d ON d.dims_id = k.dims_id"
    " CROSS JOIN ledger_meta m WHERE r.bucket + {length} <= m.rolled_until"
)
VIEWS: Final = (
    (
        "cost_data",
        "SELECT {instant:w.t0} AS time, p.pod_name, k.namespace, k.node, k.gpu_model AS gpu_type,"
        " w.share_micro / 1000000.0 AS gpu_count, k.capacity_type, k.sharing_mode, {units:w.rate_nano} AS hourly_rate,"
        f" {{units:{_COST}}} AS cumulative_cost, d.experiment_id, d.team, d.project, d.cost_center, d.labels"
        f" FROM ({_WHOLE}) w JOIN cost_keys k ON k.key_id = w.key_id JOIN cost_dims d ON d.dims_id = k.dims_id"
        " JOIN cost_pods p ON p.pod_id = w.pod_id",
    ),
    ("cost_hourly_summary", _SUMMARY.replace("{table}", "cost_hourly").replace("{length}", "3600")),
    ("cost_daily_summary", _SUMMARY.replace("{table}", "cost_daily").replace("{length}", "86400")),
    (
        "cost_savings",
        "SELECT {instant:at} AS time, namespace, kind AS optimization_type, {units:saved_nano} AS savings_amount,"
        " {units:baseline_nano} AS baseline_cost, {units:actual_nano} AS actual_cost, details, realised"
        " FROM ledger_savings WHERE is_dry_run = 0",
    ),
    (
        "budget_tracking",
        "SELECT {instant:at} AS time, budget AS budget_name, namespace AS scope_namespace, team AS scope_team,"
        " {units:limit_nano} AS monthly_limit, {units:spend_nano} AS current_spend,"
        " used_micro / 10000.0 AS percentage_used, status FROM ledger_budgets",
    ),
)


def find_views(dialect: SqlDialect) -> list[str]:
    """Made anew with every version: nothing is in them."""
    made = [(name, _spell(body, dialect)) for name, body in VIEWS]
    return [text for name, body in made for text in (f"DROP VIEW IF EXISTS {name}", f"CREATE VIEW {name} AS {body}")]


def _spell(body: str, dialect: SqlDialect) -> str:
    for word, pattern in (("instant", dialect.instant), ("units", dialect.units)):
        while (begin := body.find("{" + word + ":")) >= 0:
            end = body.index("}", begin)
            column = body[begin + len(word) + 2 : end]
            body = body[:begin] + pattern.replace("{}", column) + body[end + 1 :]
    return body
