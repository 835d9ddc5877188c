"""What is different where PostgreSQL has the TimescaleDB extension: intervals lie in chunks of a day, and go by chunk.

Nothing here needs its licence: it is what the Apache edition has too. Continuous aggregates are not used by any
edition: an interval has to be cut at hours and rounded as the ledger rounds, and our own roll-ups do that.
"""

from typing import Final

IS_THERE: Final = "SELECT 1 FROM pg_extension WHERE extname = 'timescaledb'"
MAKE_CHUNKS: Final = (
    "SELECT create_hypertable('cost_intervals', 't0', chunk_time_interval => 86400, create_default_indexes => FALSE)"
)
HAS_CHUNKS: Final = (
    "SELECT 1 FROM timescaledb_information.hypertables"
    " WHERE hypertable_name = 'cost_intervals' AND hypertable_schema = current_schema()"
)
DROP_CHUNKS: Final = "SELECT drop_chunks('cost_intervals', older_than => CAST(? AS BIGINT))"
