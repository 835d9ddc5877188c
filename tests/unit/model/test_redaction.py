"""What leaves the machine has no secret in it: by value, by the name of its key, by its look."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fallow.model import redaction

PLAIN = redaction.Redactor()
WORD = st.text("abcdefghijklmnopqrstuvwxyzABCDEF0123456789", min_size=8, max_size=40)


@pytest.mark.parametrize("text", [
    "https://user:hunter22@db.example:5432/books", "postgresql://fallow:hunter22@db/books?sslmode=require",
    "https://hooks.slack.example/services/hunter22", "GET https://x/?sig=hunter22", "smtp://a:hunter22@mail",
    "Authorization: Bearer hunter22", "password=hunter22", '"token": "hunter22"', "{'client_secret': 'hunter22'}",
    "PGPASSWORD=hunter22", "dsn: hunter22", "host=db user=a password=hunter22 dbname=b",
    "authorization: Basic hunter22",
    "X-Api-Key=hunter22", "routing_key: hunter22",
    "-----BEGIN EC PRIVATE KEY-----\nhunter22\n-----END EC PRIVATE KEY-----",
    "-----BEGIN PRIVATE KEY-----\nhunter22 cut off", "AWS_SECRET_ACCESS_KEY=hunter22", "ftp://hunter22@host",
    "cookie: session=hunter22", "Cookie: a=b; session=hunter22", 'password: "a b hunter22"', "token='a b hunter22'",
    "Authorization: GenieKey hunter22", 'Proxy-Authorization: Digest username="x", response="hunter22"',
    r'{"message": "sent {\"password\": \"a hunter22\"}"}', '"password": "a\\"hunter22"', "password=pa,hunter22",
    '"tokens": ["a", "hunter22"]', "postgresql://a:p@hunter22@host/x", "postgresql://a:b/hunter22@host/x",
    "postgresql://a:hunter22/b@host/x", "postgresql://a:b'hunter22@host", "redis://:hunter22#b@h:6379",
    r"https:\/\/hooks.slack.example\/services\/hunter22", r"https://x/ab\u0026sig=hunter22",
    "a:hunter22@tcp(db:3306)/x",
    "fallow run --prometheus-token hunter22", "AccountKey=hunter22==", "hunter22\n-----END RSA PRIVATE KEY-----\nwell",
    "key LS0tLS1CRUdJTihunter22==",
    "password: |\n    hunter22\nwell", "password: >-\n  a\n  hunter22", '{"password": {"of": {"it": "hunter22"}}}',
    'password="""a "hunter22" """', "password: '''hunter22'''", "password => hunter22", "password%3Dhunter22",
    '["--db-password", "hunter22"]', "['--token','hunter22']", "GET /hook?a=1&sig=hunter22", "JSESSIONID=hunter22",
    "hooks.slack.com/services/T0/B0/hunter22", "to=https%3A%2F%2Fx%2Fhunter22",
    "auth eyJhdXRocyI6eyJn+aGNy/hunter22==", "ewogICJ0eXBlIjogInNl+hunter22", "YXBpVmVyc2lvbjogdjEK/hunter22",
    "hvs.CAESIJhunter22abcdefgh", "glsa_hunter22abcdefghij", "GOCSPX-hunter22abcdefghij",
])
def test_what_looks_like_a_secret_is_one(text):
    assert "hunter22" not in PLAIN.text(text)


@pytest.mark.parametrize("text", [
    "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJrIn0.c2lnbmF0dXJl", "xoxb-1234-abcd", "AKIAIOSFODNN7EXAMPLE",
    "ASIAIOSFODNN7EXAMPLE", "xapp-1-A0-1-abcd", "hf_abcdefghijklmnopqrst", "nvapi-abcdefghijklmnopqrst",
    "github_pat_11ABCDEFG0abcdefghijkl", "AIzaSyA1234567890abcdefghijklmnopqrstuv",
])
def test_tokens_are_known_by_how_they_look(text):
    assert PLAIN.text(f"said {text}.") in ("said ***.", "said ***")


@pytest.mark.parametrize("text", [
    "Deployment/llm in ml has been idle for 2h", "it looks every 180 s", "http://prometheus.monitoring:9090",
    'gpu_pruner_cycles_total{outcome="done"} 12', "node gpu-7 is given back", "2026-11-18T05:51:04Z",
    "key: value", "the author said so", "http://127.0.0.1:9: connection refused", "(see http://[::1]:8080)",
    "ghcr.example/fallow:0.1.0@sha256:0a1b", "GET /api/v1/list?code", "{'a': 1} > {2}", "100%3A",
])
def test_what_is_none_stays(text):
    assert PLAIN.text(text) == text


def test_of_an_address_only_its_host_stays():
    said = PLAIN.text("see https://grafana.example:3000/d/abc?x=1 there")
    assert said == "see https://grafana.example:3000/*** there"


def test_a_tree_hides_by_names_and_keeps_references():
    found = PLAIN.tree({
        "metadata": {"annotations": {"other.example/hook": "hunter22", "gpuautoscaler.io/idle": "ignore"},
                     "managedFields": [{"manager": "x"}]},
        "spec": {"channels": [{"type": "slack", "config": {"webhook_url": "hunter22", "channel": "hunter22"},
                               "configSecretRefs": {"bot_token": {"name": "slack", "key": "token"}}}],
                 "routingKey": "hunter22", "count": 3},
    })
    assert "hunter22" not in json.dumps(found)
    assert found["metadata"] == {"annotations": {"other.example/hook": "***", "gpuautoscaler.io/idle": "ignore"}}
    (channel,) = found["spec"]["channels"]
    assert channel["configSecretRefs"]["bot_token"]["name"] == "slack"
    assert (channel["config"], found["spec"]["count"]) == ({"webhook_url": "***", "channel": "***"}, 3)


def test_texts_under_a_secret_name_are_hidden_in_lists_and_pairs_too():
    found = redaction.know(["known22"]).tree({
        "tokens": ["hunter22"], "config": ["hunter22"], "credentials": {"said": "known22"},
        "headers": [{"name": "Authorization", "value": "hunter22"}, {"name": "Accept", "value": "text"}],
    })
    assert "hunter22" not in json.dumps(found)
    assert "known22" not in json.dumps(found)
    assert found["headers"][1] == {"name": "Accept", "value": "text"}


@pytest.mark.parametrize("form", [
    "aHVudGVyMjIvZW5kIQ==", "hunter22%2Fend%21", "hunter22/end!",
])
def test_a_known_secret_is_known_in_its_other_spellings(form):
    assert redaction.know(["hunter22/end!"]).text(f"said {form}").startswith("said ***")


@pytest.mark.parametrize("text", [
    "pass", "token ", "a.", "a-", "eyJ-", "eyJ", "-----BEGIN ", "a:b", "a://", "a@", "token=\\", "--a", "token=[", '"',
    "token={", 'token="""', "token=|\n ", "token=|", "--token'", "http%3A%2F%2F", "&sig=", "ewog",
])
def test_no_text_keeps_it_busy(text):
    """Whoever chooses a text could else stop who asks for help: the time grows as the text does."""
    def spent(size):
        before = time.process_time()
        PLAIN.text(text * (size // len(text)))
        return time.process_time() - before

    assert spent(100_000) < 2.0


@given(WORD, st.text(max_size=30), st.text(max_size=30))
def test_a_known_secret_stays_nowhere(secret, before, after):
    redactor = redaction.know([secret])
    assert secret not in redactor.text(f"{before}{secret}{after}")
    assert secret not in json.dumps(redactor.tree({before + secret: [{"a": after + secret}]}))


def test_a_short_word_is_no_secret_by_its_value():
    assert redaction.know(["true", " \n", ""]).text("it is true") == "it is true"


@pytest.mark.parametrize("address", ["http://{}@h:1", "htp://{}@h", "{}@h:9090", "http://{}@", "west={}@h"])
@pytest.mark.parametrize("login", ["ada:pa55word", "ada:pa55/wo@rd#", "ada:pa55=wo rd", "ada:pa55'wo\\rd"])
def test_a_sentence_about_an_address_does_not_repeat_its_login(address, login):
    text = address.format(login)
    for said in (f"{text!r} is no address", f"{text} is no address", f"{text.removeprefix('west=')!r} is no address"):
        assert "pa55" not in redaction.hide_logins(said, [text])


@pytest.mark.parametrize("text", ["ada@example.com", "http://h:9090/a", "a:b", "30"])
def test_what_has_no_login_is_repeated_as_it_is(text):
    assert redaction.hide_logins(f"{text!r} is wrong", [text]) == f"{text!r} is wrong"


def test_a_number_can_be_a_password_too():
    said = {"password": 12345678, "pins": {"token": [1234.5]}, "replicas": 3, "automountServiceAccountToken": False}
    assert PLAIN.tree(said) == {
        "password": "***", "pins": {"token": ["***"]}, "replicas": 3, "automountServiceAccountToken": False,
    }
    assert PLAIN.tree({"name": "DB_PASSWORD", "value": 12345678})["value"] == "***"
