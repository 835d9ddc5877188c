"""`fallow digest` over the real API: shown, as JSON, or sent; what is wrong is one sentence."""

import asyncio
import json
from typing import Any

import pytest
from aiohttp import web
from click.testing import CliRunner, Result
from tests.builders import MINUTE, NOW
from tests.unit.clients import loopback
from tests.unit.doors.api.serving import serving
from tests.unit.doors.api.test_reads import MANDATE, make_world

from fallow.account import chronicle
from fallow.doors.cli import digest
from fallow.model.history import HeldIdle


def run(*words: str, **environ: str) -> Result:
    empty = dict.fromkeys(("SLACK_WEBHOOK_URL", "DASHBOARD_URL", "FALLOW_DAEMON_URL", "KUBECONFIG", "HOME"), "")
    return CliRunner(env=empty | environ).invoke(digest.digest, list(words))


async def run_beside(*words: str, **environ: str) -> Result:
    """While the servers of this test go on."""
    return await asyncio.to_thread(run, *words, **environ)


async def fill(client: Any) -> None:
    held = HeldIdle(at=NOW - 30 * MINUTE, namespace="ml", kind="Deployment", name="<b>\x1b[31mllm", model="T4",
                    idle=7200.0, kept=0.0)
    client.kept.put(chronicle.Chapter(held=(held,)))
    await client.kept.flush(NOW)


async def test_it_is_shown_with_nothing_that_a_terminal_obeys():
    async with serving(make_world(), MANDATE) as client:
        await fill(client)
        done = await run_beside("--dashboard-url", client.url, "--top", "3")
    assert done.exit_code == 0, done.output
    assert "ml: Deployment/<b>�[31mllm, 2.0 GPU-hours (1.05 USD)" in done.output
    assert "\x1b" not in done.output
    assert "Kept on purpose\n  ml: Deployment/kept" in done.output


async def test_machines_get_json_and_the_variables_of_the_seed_are_heeded():
    async with serving(make_world(), MANDATE) as client:
        await fill(client)
        done = await run_beside("-o", "json", DASHBOARD_URL=client.url, TOP_N="1", SLACK_WEBHOOK_URL="http://127.0.0.1:1")
    made = json.loads(done.output)
    assert [each["gpuHours"] for each in made["workloads"]] == [2.0]
    assert made["savings"]["mode"] == "acting"


async def test_the_daemon_that_the_other_commands_ask_is_asked_too():
    async with serving(make_world(), MANDATE) as client:
        await fill(client)
        found = await run_beside("-o", "json", FALLOW_DAEMON_URL=client.url)
        rather = await run_beside("-o", "json", DASHBOARD_URL=client.url, FALLOW_DAEMON_URL="http://127.0.0.1:1")
    assert (found.exit_code, rather.exit_code) == (0, 0), found.output + rather.output


async def test_it_goes_to_slack_escaped_where_that_is_set_up():
    async with serving(make_world(), MANDATE) as client, loopback.serve(lambda asked: web.Response(text="ok")) as slack:
        await fill(client)
        hook = {"SLACK_WEBHOOK_URL": f"{slack.url}/services/x", "SLACK_CHANNEL": "#gpu"}
        done = await run_beside(DASHBOARD_URL=client.url, **hook)
        shown = await run_beside("--print", DASHBOARD_URL=client.url, **hook)
    assert (done.exit_code, done.output) == (0, "sent by slack\n")
    assert "How well it was seen" in shown.output
    [asked] = slack.asked
    text = json.dumps(json.loads(asked.body))
    assert "&lt;b&gt;" in text
    assert "<b>" not in text
    assert json.loads(asked.body)["channel"] == "#gpu"


async def test_what_slack_does_not_take_ends_with_1_and_shows_no_secret():
    async with serving(make_world(), MANDATE) as client, loopback.serve(
        lambda asked: web.Response(status=404, text="no_service /services/s3cret")
    ) as slack:
        done = await run_beside(DASHBOARD_URL=client.url, SLACK_WEBHOOK_URL=f"{slack.url}/services/s3cret")
    assert done.exit_code == 1
    assert "not sent by slack" in done.output
    assert "s3cret" not in done.output


@pytest.mark.parametrize(("words", "code", "said"), [
    ((), 4, "no cluster found"), (("--dashboard-url", "ftp://x"), 2, "is no address such as"),
    (("--dashboard-url", "http://127.0.0.1:1"), 1, "does not answer: "),
    (("--dashboard-url", "http://127.0.0.1:1"), 1, "What helps: kubectl"),
    (("--dashboard-url", "http://x", "--window", "2m"), 2, "is not between 1h and 31d"),
    (("--dashboard-url", "http://x", "--dashboard-token-file", "/nowhere"), 2, "/nowhere cannot be read"),
])
def test_what_is_wrong_is_one_sentence(words, code, said):
    done = run(*words)
    assert done.exit_code == code
    assert said in done.output
    assert "Traceback" not in done.output


async def test_a_token_goes_to_who_was_named_and_no_further(tmp_path):
    """Not to where that one points either."""
    (tmp_path / "token").write_text("s3cret\n")
    async with (
        loopback.serve(lambda asked: web.Response(text="{}")) as elsewhere,
        loopback.serve(lambda asked: web.HTTPFound(elsewhere.url)) as named,
    ):
        done = await run_beside("--dashboard-token-file", str(tmp_path / "token"), DASHBOARD_URL=named.url)
    assert done.exit_code == 1
    assert [asked.headers["Authorization"] for asked in named.asked] == ["Bearer s3cret"]
    assert elsewhere.asked == []
    assert "s3cret" not in done.output


async def test_what_is_no_digest_is_said():
    async with loopback.serve(lambda asked: web.Response(text="<html>")) as other:
        done = await run_beside(DASHBOARD_URL=other.url)
    assert done.exit_code == 1
    assert "its answer cannot be read" in done.output


@pytest.mark.parametrize(("query", "words"), [
    ("window=2y", "not a duration"), ("window=40d", "is not between 1h and 31d"), ("top=0", "whole number"),
    ("top=1000", "whole number"),
])
async def test_the_api_refuses_what_is_no_window_or_number(query, words):
    async with serving(make_world(), MANDATE) as client:
        status, body, _ = await client.ask(f"/api/v1/digest?{query}")
    assert status == 400
    assert words in body["error"]["message"]
