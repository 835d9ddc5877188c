"""Where the dashboard listens."""

import pytest

from fallow import settings


def address(**given):
    return settings.read_flags({"daemon_mode": True, **given}, {}).loop.dashboard_address


def test_nowhere_unless_it_is_asked_for_and_only_a_daemon_has_one():
    assert address() is None
    assert settings.read_flags({"dashboard_port": "8080"}, {}).loop.dashboard_address is None


def test_on_this_machine_or_with_the_metrics_or_where_it_is_said():
    assert address(dashboard_port="9000") == ("127.0.0.1", 9000)
    assert address(dashboard_port="8080") == ("0.0.0.0", 8080)  # the listener of --metrics-addr
    assert address(dashboard_port="8080", metrics_addr="") == ("127.0.0.1", 8080)
    assert address(dashboard_addr="[::1]:9000") == ("::1", 9000)


@pytest.mark.parametrize("given", [
    {"dashboard_port": "0"}, {"dashboard_port": "65536"}, {"dashboard_port": "x"}, {"dashboard_addr": "host:1"},
    {"dashboard_port": "1", "dashboard_addr": "127.0.0.1:2"},
])
def test_what_is_wrong_names_the_flag(given):
    with pytest.raises(settings.UsageError, match="--dashboard-"):
        address(**given)
