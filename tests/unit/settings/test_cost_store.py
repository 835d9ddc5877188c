"""The flags about where the books are."""

from pathlib import Path

import pytest

from fallow import settings
from fallow.model.cost import DAY, CostRetention
from fallow.settings import cost_store


def read(environ: dict[str, str] | None = None, **given: str) -> cost_store.CostStoreSettings:
    return settings.read_flags(given, environ or {}).cost_store


def test_without_a_place_the_books_are_in_memory_and_nothing_waits_in_a_file() -> None:
    assert read() == cost_store.CostStoreSettings()
    assert (read().path, read().spool, read().dsn) == (None, None, None)


@pytest.mark.parametrize(("given", "path", "spool"), [
    ({"state_dir": "/s"}, "/s/costs.sqlite", "/s/costs.spool"),
    ({"state_dir": "/s", "cost_store": "/c/mine.db"}, "/c/mine.db", "/c/costs.spool"),
    ({"cost_store": "/c/mine.db", "cost_spool": "/w/waits"}, "/c/mine.db", "/w/waits"),
], ids=["beside-the-state", "a-file-of-its-own", "a-spool-of-its-own"])
def test_the_spool_is_beside_the_store(given: dict[str, str], path: str, spool: str) -> None:
    assert (read(**given).path, read(**given).spool) == (path, spool)


def test_an_address_comes_from_a_file_before_the_variable_and_is_never_shown(tmp_path: Path) -> None:
    (tmp_path / "dsn").write_text("postgresql://u:hunter2@db/costs\n")
    variable = {"FALLOW_COST_DSN": "postgresql://u:other@db/costs"}
    said = read(variable, cost_store_dsn_file=str(tmp_path / "dsn"), state_dir="/s")
    assert said.dsn is not None
    assert (said.dsn.reveal(), said.path, said.spool) == ("postgresql://u:hunter2@db/costs", None, "/s/costs.spool")
    assert "hunter2" not in f"{said!r}"
    by_variable = read(variable).dsn
    assert by_variable is not None
    assert by_variable.reveal().endswith("other@db/costs")


def test_how_often_how_long_and_which_labels() -> None:
    said = read(cost_tracking_interval="10s", cost_retention_intervals_days="7", cost_retention_hours_days="30",
                cost_attribution_labels="app, example.com/squad")
    assert (said.interval, said.labels) == (10.0, ("app", "example.com/squad"))
    assert said.retention == CostRetention(7 * DAY, 30 * DAY)


@pytest.mark.parametrize(("given", "said"), [
    ({"cost_store": "postgresql://u:hunter2@db/costs"}, "--cost-store: this is the address of a database, not a path"),
    ({"cost_store": "host=db password=hunter2"}, "--cost-store: this is the address of a database, not a path"),
    ({"cost_store": " "}, "--cost-store: no path is given"),
    ({"cost_store_dsn_file": "/nowhere/dsn"}, "--cost-store-dsn-file: /nowhere/dsn cannot be read: No such file"),
    ({"cost_tracking_interval": "0s"}, "--cost-tracking-interval: '0s' is not between 1s and 10m"),
    ({"cost_tracking_interval": "1h"}, "--cost-tracking-interval: '1h' is not between 1s and 10m"),
    ({"cost_retention_intervals_days": "0"}, "--cost-retention-intervals-days: '0' is not a whole number of at least"),
    ({"cost_retention_hours_days": "30"}, "--cost-retention-hours-days is less than --cost-retention-intervals-days"),
    ({"cost_attribution_labels": "app,b ad"}, "--cost-attribution-labels: 'b ad' is not the key of a label"),
])
def test_nonsense_is_one_sentence_that_names_the_flag(given: dict[str, str], said: str) -> None:
    with pytest.raises(settings.UsageError) as problem:
        read(**given)
    assert str(problem.value).startswith(said)
    assert "hunter2" not in str(problem.value)


def test_two_places_are_one_too_many() -> None:
    with pytest.raises(settings.UsageError, match="are two places: give one of them"):
        read({"FALLOW_COST_DSN": "postgresql://db"}, cost_store="/c/costs.sqlite")


def test_an_empty_file_is_no_address(tmp_path: Path) -> None:
    (tmp_path / "dsn").write_text("\n")
    with pytest.raises(settings.UsageError, match="is empty"):
        read(cost_store_dsn_file=str(tmp_path / "dsn"))
