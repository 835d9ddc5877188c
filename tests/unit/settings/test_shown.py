"""What somebody set is shown by the table of flags, and nothing else of it."""

import pytest

from fallow import settings
from fallow.settings import shown

SECRET = "hunter22hunter22"


def test_known_flags_are_shown_and_others_are_not():
    words = ["run", "-d", "--duration=30", "-n", "ml-.*", "--run-mode=$(RUN_MODE)", f"--no-such={SECRET}", SECRET]
    assert shown.show_arguments(words) == [
        "run", "-d", "--duration=30", "-n=ml-.*", "--run-mode=$(RUN_MODE)", "***", "***",
    ]


def test_what_is_hidden_of_arguments_is_hidden_wherever_it_stands():
    words = ["run", "--duration", "30", "--prometheus-token", SECRET, f"--no-such={SECRET}2", f"{SECRET}3"]
    assert shown.find_secret_arguments(words) == [SECRET, f"{SECRET}2", f"{SECRET}3"]


@pytest.mark.parametrize("flag", settings.FLAGS, ids=lambda flag: flag.name)
def test_no_flag_shows_what_it_reads_as_a_secret(flag):
    """By every form that a secret may have there."""
    for text in (f"https://hooks.example/services/{SECRET}", f"X-Token: {SECRET}", f"smtp://a:{SECRET}@mail",
                 f"https://a:{SECRET}@b/c", f"a=https://b/{SECRET}"):
        assert SECRET not in "".join(shown.show_arguments([f"{flag.name}={text}"]))
        if flag.variable:
            assert SECRET not in shown.show_variable(flag.variable, text)


def test_a_flag_that_is_a_secret_or_a_map_shows_nothing():
    given = [f"--prometheus-token={SECRET}", f"--prometheus-header=X: {SECRET}",
             f'--slack-namespace-mentions={{"a": "{SECRET}"}}']
    assert all(word.endswith("=***") for word in shown.show_arguments(given))


def test_variables_are_shown_by_the_flag_that_they_are_of():
    assert shown.show_variable("PROMETHEUS_URL", "http://prometheus:9090") == "http://prometheus:9090"
    assert shown.show_variable("RUN_MODE", "dry-run") == "dry-run"
    assert shown.show_variable("SLACK_SIGNING_SECRET", SECRET) == "***"
    assert shown.find_secrets([("RUN_MODE", "dry-run"), ("FALLOW_COST_DSN", SECRET)]) == [SECRET]


def test_only_a_whole_reference_is_shown_as_one():
    assert shown.show_arguments([f"--prometheus-token=$(A){SECRET}"]) == ["--prometheus-token=***"]
