"""Where the dashboard listens."""

import pytest

from fallow import settings


def address(**given):
    return settings.read_flags({"daemon_mode": True, **given}, {}).loop.dashboard_address


def test_nowhere_unless_it_is_asked_for_and_only_a_daemon_has_one():
    assert address() is None
    assert settings.read_flags({"dashboard_port": "8080"}, {}).loop.dashboard_address is None


LOGIN = {"dashboard_auth": "kube"}


def test_on_this_machine_or_with_the_metrics_or_where_it_is_said():
    assert address(dashboard_port="9000") == ("127.0.0.1", 9000)
    assert address(dashboard_port="8080") == ("0.0.0.0", 8080)  # the listener of --metrics-addr
    assert address(dashboard_port="8080", metrics_addr="") == ("127.0.0.1", 8080)
    assert address(dashboard_addr="[::1]:9000") == ("::1", 9000)


def test_beyond_this_machine_where_people_log_in():
    assert address(dashboard_port="9000", **LOGIN) == ("0.0.0.0", 9000)
    assert address(dashboard_addr="10.0.0.1:9000", **LOGIN) == ("10.0.0.1", 9000)
    for beyond in ("0.0.0.0:9000", "10.0.0.1:9000", "[::]:9000"):
        with pytest.raises(settings.UsageError, match="without logging in it answers this machine only"):
            address(dashboard_addr=beyond)
    assert address(dashboard_addr="0.0.0.0:8080") == ("0.0.0.0", 8080)  # the listener of --metrics-addr


@pytest.mark.parametrize("given", [
    {"dashboard_port": "0"}, {"dashboard_port": "65536"}, {"dashboard_port": "x"}, {"dashboard_addr": "host:1"},
    {"dashboard_port": "1", "dashboard_addr": "127.0.0.1:2"},
])
def test_what_is_wrong_names_the_flag(given):
    with pytest.raises(settings.UsageError, match="--dashboard-"):
        address(**given)


OIDC = {
    "dashboard_auth": "oidc", "dashboard_public_url": "https://fallow.example", "oidc_client_id": "fallow",
    "oidc_issuer_url": "https://login.example.com/realms/main/",
}


def test_a_provider_is_named_to_the_letter_and_its_secret_by_file_or_variable(tmp_path):
    file = tmp_path / "secret"
    file.write_text("s3cret")
    found = settings.read_flags({**OIDC, "oidc_client_secret_file": str(file)}, {}).serving
    assert (found.auth, found.oidc.issuer) == ("oidc", "https://login.example.com/realms/main/")
    assert (found.oidc.secret, found.oidc.secret_file) == (None, str(file))
    assert found.oidc.scopes == ("profile", "email")
    by_variable = settings.read_flags(OIDC, {"OIDC_CLIENT_SECRET": "s3cret"}).serving
    assert by_variable.oidc.secret.reveal() == "s3cret"
    assert "s3cret" not in repr(by_variable)
    with pytest.raises(settings.UsageError, match="is no file"):
        settings.read_flags({**OIDC, "oidc_client_secret_file": str(tmp_path / "none")}, {})
