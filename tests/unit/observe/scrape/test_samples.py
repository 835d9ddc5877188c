"""Series that come and go: what is forgotten stays forgotten."""

from __future__ import annotations

from fallow.clients import exposition
from fallow.model.units import HOUR, MINUTE
from fallow.observe.scrape import samples, targets

METRIC = "DCGM_FI_DEV_GPU_UTIL"


def read(known: samples.Exporter, generation: int, series: int) -> exposition.Page:
    """A page of so many GPUs, all held by pods of one generation."""
    reading = known.reader.begin(is_openmetrics=False)
    reading.feed(
        "".join(
            f'{METRIC}{{UUID="GPU-{gpu}",pod="p-{generation}-{gpu}",namespace="ml"}} 5\n' for gpu in range(series)
        ).encode()
    )
    return reading.end()


def test_a_series_that_was_forgotten_gets_no_column_again_while_its_exporter_remembers_it() -> None:
    """Else every round would forget them anew, and number all others anew with them."""
    held = samples.Scraped(honor_labels=False, interval=60.0, horizon=HOUR)
    known = samples.Exporter(targets.read_address("http://127.0.0.1:1/metrics"))
    generations = []
    for minute in range(60):
        now = minute * MINUTE
        held.take([samples.Taken(known, read(known, minute // 10, 300))], now, counts=True)
        held.tidy(now - 5 * MINUTE)
        generations.append(held.generation)
    assert generations[-1] >= 1  # something was forgotten
    assert generations[-1] <= 5  # and not in every round
    assert len(held.table) <= 300 + 1000 + 300
