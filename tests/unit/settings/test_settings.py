"""Flags and environment into settings: defaults are the seed's, and whatever is wrong is named."""

import pytest

from fallow import settings
from fallow.model.policies import idle

URL = {"prometheus_url": "http://prometheus:9090"}


def read(environ=None, **given):
    return settings.read_flags({**URL, **given}, environ or {})


def test_the_defaults_are_those_of_gpu_pruner():
    options = read()
    assert options.mandate.rule.gone_idle == options.mandate.rule.never_used == 30 * 60
    assert options.mandate.rule.grace == 300
    assert options.mandate.scope.letters == frozenset("drsin")
    assert options.mandate.acting is False
    assert options.loop.interval == 180
    assert options.loop.daemon is False
    assert options.loop.metrics_address is None


@pytest.mark.parametrize(
    ("daemon", "cycles", "elects"), [(False, 1, False), (True, 2, True)], ids=["one-shot", "daemon"]
)
def test_a_daemon_confirms_twice_and_elects_a_leader(daemon, cycles, elects):
    options = read(daemon_mode=daemon)
    assert options.mandate.brakes.confirm_cycles == cycles
    assert options.loop.leader_elect is elects


@pytest.mark.accepts("idle", 29)
@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"enabled_resources": "dq"}, "--enabled-resources: unknown letter 'q'"),
        ({"enabled_resources": ""}, "--enabled-resources: no letter given"),
        ({"duration": "0"}, "--duration: '0' is not a whole number of at least 1"),
        ({"duration": "-1"}, "--duration: '-1'"),
        ({"duration": "½"}, "--duration: '½'"),
        ({"namespace": "("}, "--namespace: '(' is not a valid RE2 expression"),
        ({"namespace": "(?=x)"}, "--namespace: '(?=x)' is not a valid RE2 expression"),
        ({"idle_threshold": "2"}, "--idle-threshold: '2' is not between 0 and 1"),
        ({"idle_threshold": "nan"}, "--idle-threshold: 'nan' is not between 0 and 1"),
        ({"run_mode": "delete"}, "--run-mode: 'delete' is none of scale-down, dry-run"),
        ({"metrics_addr": "8080"}, "--metrics-addr: '8080' is not IP:PORT"),
        ({"metrics_addr": "0.0.0.0:99999"}, "--metrics-addr: '0.0.0.0:99999' is not IP:PORT"),
        ({"policies": "maybe"}, "--policies: 'maybe' is neither true nor false"),
        ({"prometheus_url": "prometheus:9090"}, "--prometheus-url: 'prometheus:9090' is not an address"),
        ({"prometheus_header": ["X-Scope-OrgID"]}, "--prometheus-header: it is not of the form"),
        ({"prometheus_auth": "basic"}, "--prometheus-auth basic needs"),
        ({"prometheus_auth": "bearer"}, "--prometheus-auth bearer needs"),
        ({"prometheus_username": "ada"}, "--prometheus-username needs a password"),
        ({"slack_interaction_addr": "127.0.0.1:3002"}, "--slack-interaction-addr needs SLACK_SIGNING_SECRET"),
        ({"slack_interaction_port": "3002"}, "--slack-interaction-addr needs SLACK_SIGNING_SECRET"),
        ({"slack_interaction_port": "0"}, "--slack-interaction-port: '0' is not a port"),
        ({"dashboard_auth": "none"}, "--dashboard-auth: 'none' is none of email, kube, oidc, proxy"),
        ({"dashboard_auth": "oidc"}, "--dashboard-auth oidc needs --dashboard-public-url"),
        ({"dashboard_auth": "oidc", "dashboard_public_url": "https://x"}, "--dashboard-auth oidc needs --oidc-issuer"),
        ({"oidc_issuer_url": "http://login.example.com"}, "--oidc-issuer-url: 'http://login.example.com' is not"),
        ({"oidc_issuer_url": "https://login.example.com/#x"}, "--oidc-issuer-url: "),
        ({"oidc_issuer_url": "https://ada:pw@login.example.com"}, "--oidc-issuer-url: an address with a user name"),
        ({"dashboard_auth": "proxy"}, "--dashboard-auth proxy needs --trusted-proxy"),
        ({"trusted_proxy": ["10.0.0.1/8"]}, "--trusted-proxy: '10.0.0.1/8' is not a network"),
        ({"session_key_file": "/nowhere/key"}, "--session-key-file: /nowhere/key cannot be read"),
        ({"source": "nvml"}, "--source: 'nvml' is none of auto, prometheus, scrape"),
        ({"scrape_interval": "90"}, "--scrape-interval: '90' is not between 1 and 60"),
        (
            {"leader_elect": "false", "run_mode": "scale-down"},
            "--leader-elect false goes with --run-mode dry-run only: who acts holds the Lease",
        ),
        ({"scrape_timeout": "20"}, "--scrape-timeout must not be longer than --scrape-interval"),
        (
            {"scrape_selector": ["app.kubernetes.io/name=x"]},
            "--scrape-selector: 'app.kubernetes.io/name=x' is not NAMESPACE/SELECTOR",
        ),
        ({"scrape_selector": ["gpu"]}, "--scrape-selector: 'gpu' is not NAMESPACE/SELECTOR"),
        ({"scrape_target": ["n1:9400"]}, "--scrape-target: 'n1:9400' is not an address"),
        (
            {"scrape_target": ["http://ada:s3cret@n1:9400"]},
            "--scrape-target: an address with a user name or a password",
        ),
        ({"prometheus_client_cert": "a.pem"}, "--prometheus-client-cert and --prometheus-client-key go together"),
    ],
    ids=lambda value: None if isinstance(value, str) else "+".join(f"{key}={text}" for key, text in value.items()),
)
def test_what_is_wrong_is_named(given, says):
    with pytest.raises(settings.UsageError) as caught:
        read(**given)
    assert str(caught.value).startswith(says)


def test_without_an_address_exporters_are_scraped():
    options = settings.read_flags(
        {"scrape_selector": ["gpu/app=x", "*/a.b/c in (d)"], "scrape_target": ["http://n1:9400"]}, {}
    )
    assert options.prometheus is None
    assert (options.scrape.interval, options.scrape.timeout, options.state_dir) == (15, 5, None)
    assert options.scrape.selectors == (("gpu", "app=x"), ("", "a.b/c in (d)"))
    assert options.scrape.targets == ("http://n1:9400",)
    assert read(source="scrape").prometheus is None
    with pytest.raises(settings.UsageError, match="--source prometheus needs --prometheus-url"):
        settings.read_flags({"source": "prometheus"}, {})
    assert settings.read_flags({}, {"PROMETHEUS_URL": "http://p:1/prefix/"}).prometheus.url == "http://p:1/prefix"


def test_a_flag_wins_over_its_variable():
    options = read({"PROMETHEUS_TOKEN": "from-environment"}, prometheus_token="from-flag")
    assert options.prometheus.token is not None
    assert options.prometheus.token.reveal() == "from-flag"


def test_secrets_do_not_print():
    options = read({"PROMETHEUS_PASSWORD": "hunter2"}, prometheus_token="s3cret", prometheus_header=["X-Key: k3y"])
    shown = repr(options.prometheus) + str(options.prometheus)
    assert not any(secret in shown for secret in ("hunter2", "s3cret", "k3y"))


def test_owners_are_told_by_what_the_flags_name_and_no_secret_is_shown():
    environ = {"SLACK_WEBHOOK_URL": "https://hooks.slack.example/p4ss", "SMTP_URL": "smtps://ada:p4ss@mail:4465"}
    options = read(environ, slack_channel="#gpu", email_from="f@example.com", slack_namespace_mentions='{"a-":"<@U1>"}')
    slack, email = options.mandate.rule.notice.channels
    assert (slack.type, slack.text("channel"), email.type) == ("slack", "#gpu", "email")
    assert (options.telling.mail.host, options.telling.mail.port, options.telling.mail.is_tls) == ("mail", 4465, True)
    assert options.telling.mentions == {"a-": "<@U1>"}
    assert "p4ss" not in repr(options.mandate) + repr(options.telling)


def test_the_password_of_a_mail_server_may_stand_alone_as_it_is():
    """As a Secret has it: nobody quoted it for an address."""
    read_it = read({"SMTP_URL": "smtp://ada%40x.org@mail", "SMTP_PASSWORD": "p4ss/@:#%41"}, email_from="f@x.org")
    mail = read_it.telling.mail
    assert (mail.username, mail.password.reveal(), mail.port) == ("ada@x.org", "p4ss/@:#%41", 587)
    assert "p4ss" not in repr(read_it.telling)


@pytest.mark.parametrize(("given", "says"), [
    ({"smtp_url": "smtp://h"}, "--smtp-url and --email-from go together"),
    ({"smtp_url": "smtp://h", "smtp_password": "p4ss", "email_from": "f@x.org"}, "it has a user or a password"),
    ({"smtp_url": "smtp://a:p4ss@h", "smtp_password": "x", "email_from": "f@x.org"}, "--smtp-password is another"),
    ({"smtp_url": "http://h", "email_from": "f@x.org"}, "--smtp-url: it must be smtp://"),
    ({"smtp_url": "smtp://h", "email_from": "a@b.c\nX: y"}, "--smtp-url: whose name letters carry"),
    ({"slack_webhook_url": "htp://hooks/p4ss"}, "--slack-webhook-url: it is no address"),
    ({"slack_webhook_url": "https://[hooks/p4ss"}, "--slack-webhook-url: it is no address"),
    ({"slack_namespace_mentions": "[]"}, "--slack-namespace-mentions: it is not a JSON object"),
    ({"slack_namespace_mentions": '{"a":1}'}, "--slack-namespace-mentions: it is not a JSON object"),
    ({"dashboard_public_url": "example.com"}, "--dashboard-public-url: 'example.com' is not an address"),
])
def test_what_cannot_be_told_by_is_refused(given, says):
    with pytest.raises(settings.UsageError) as problem:
        read(**given)
    assert says in str(problem.value)
    assert "p4ss" not in str(problem.value)


def test_our_own_namespace_is_always_protected():
    protected = read({"POD_NAMESPACE": "gpu.pruner"}, protected_namespaces="a|b").mandate.scope.protected_namespaces
    assert protected is not None
    assert [
        bool(protected.fullmatch(name)) for name in ("a", "b", "gpu.pruner", "gpuxpruner", "ab")
    ] == [True, True, True, False, False]


def test_exporters_are_believed_where_they_usually_run_and_beside_us():
    usual = read({"POD_NAMESPACE": "mine"}).exporter_namespaces
    where = ("gpu-operator", "nvidia-x", "dcgm-a", "monitoring", "kube-system", "gpu-idle-exporter", "mine", "tenant")
    assert [bool(usual.fullmatch(name)) for name in where] == [True] * 7 + [False]
    given = read({"POD_NAMESPACE": "mine"}, exporter_namespaces="gpus")
    assert [bool(given.exporter_namespaces.fullmatch(name)) for name in ("gpus", "mine", "kube-system")] == [
        True, True, False
    ]
    assert (given.trust_metrics, read(trust_metrics=True).trust_metrics) == (False, True)


def test_a_dry_run_plans_the_same_pause():
    rule = read().mandate.rule
    assert rule == read(run_mode="scale-down").mandate.rule
    assert rule.action.type is idle.ActionType.pause


@pytest.mark.parametrize(
    ("environ", "level"),
    [
        ({}, "info"), ({"RUST_LOG": "debug"}, "debug"), ({"RUST_LOG": "gpu_pruner=trace,warn"}, "warning"),
        ({"FALLOW_LOG": "error", "RUST_LOG": "debug"}, "error"), ({"RUST_LOG": "gpu_pruner=nonsense"}, "info"),
    ],
)
def test_the_log_level(environ, level):
    assert settings.log_level(environ) == level


def test_people_are_asked_who_they_are_only_where_somebody_says_so():
    assert read().serving.auth == "email"
    assert read(dashboard_auth="kube").serving.auth == "kube"


def test_the_two_ways_to_say_where_slack_calls(tmp_path):
    environ = {"SLACK_SIGNING_SECRET": "s3cret"}
    both = read(environ, daemon_mode=True, slack_interaction_port="3002").serving
    assert both.slack_address == ("0.0.0.0", 3002)
    assert "s3cret" not in repr(both)
    with pytest.raises(settings.UsageError, match="two different ports"):
        read(environ, slack_interaction_port="3002", slack_interaction_addr="127.0.0.1:3003")
    assert read(environ, slack_interaction_port="3002").serving.slack_address is None  # one look hears nobody


def test_a_key_for_sessions_is_long_and_not_shown(tmp_path):
    path = tmp_path / "key"
    path.write_bytes(b"short")
    with pytest.raises(settings.UsageError, match="less than 32 bytes"):
        read(session_key_file=str(path))
    path.write_bytes(b"k" * 32 + b"\n")
    key = read(session_key_file=str(path)).serving.session_key
    assert key.reveal() == b"k" * 32
    assert "k" * 8 not in repr(key)


def test_further_clusters_are_listed_by_name_and_only_looked_at():
    found = settings.read_flags(
        {"cluster": ("a=http://p.a:9090/", "b.c=https://p.b/x"), "honor_labels_clusters": "b.c"}, {}
    ).clusters
    assert [(each.name, each.url, each.honor_labels) for each in found] == [
        ("a", "http://p.a:9090", False), ("b.c", "https://p.b/x", True),
    ]
    with pytest.raises(settings.UsageError, match="default is named twice"):
        settings.read_flags({"cluster": ("default=http://p",)}, {})
