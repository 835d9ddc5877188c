"""`fallow digest`: what became of the GPUs in some days, as a daemon wrote it down; to a terminal, Slack or e-mail.

In: where the daemon answers, found as by the other commands; the window; where it shall go. Out: a text, JSON or YAML,
or a message that was confirmed. The variables are those of gpu-pruner's digest: DASHBOARD_URL, DASHBOARD_PUBLIC_URL,
SLACK_WEBHOOK_URL, SLACK_CHANNEL, TOP_N. What was asked to be sent and did not arrive ends with 1, and 4 says that there
is no daemon to ask.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from fallow import settings
from fallow.act.notices import digesting, facts, senders
from fallow.clients import errors
from fallow.clients.messages import post
from fallow.doors.cli import asking, flags, interrupts, main, pasts, show, where
from fallow.model import digest as digests
from fallow.model import units
from fallow.model.policies import idle
from fallow.model.secret import Secret
from fallow.model.units import DAY, HOUR, Seconds
from fallow.settings.telling import TellingSettings

_SENDING = ("--slack-webhook-url", "--slack-channel", "--smtp-url", "--smtp-password", "--email-from", "--digest-email",
            "--dashboard-public-url")
_PATIENCE: Seconds = 30.0  # of a week it reads much
_WHERE = (
    "kubectl -n gpu-pruner-system port-forward svc/gpu-pruner-dashboard 8080, then --daemon-url http://localhost:8080"
)


def _digest(
    window: float, top: int, output: str, prints: bool, daemon_url: str | None, daemon_auth: str | None,
    dashboard_token_file: str | None, **given: Any,
) -> None:
    environ = settings.environment()
    # A mail server's address asks for --email-from beside it, which who writes no letter does not give.
    telling = flags.read_settings(given, () if given["digest_email"] else {"SMTP_URL", "SMTP_PASSWORD"}).telling
    asked = {**given, "daemon_url": daemon_url or environ.get("DASHBOARD_URL"), "daemon_auth": daemon_auth}
    made = _ask(asked, window, top, _check_token(dashboard_token_file))
    if prints or output != "table" or not telling.digest.channels:
        if not show.data(made, output):
            click.echo("\n".join(show.fold(line, 4) for line in digesting.write_text(made).splitlines()))
        return
    with show.refusals():
        interrupts.run(_send(made, telling, environ))
    show.sentence(f"sent by {', '.join(channel.name for channel in telling.digest.channels)}")


def _check_token(path: str | None) -> Path | None:
    if path is None:
        return None
    try:
        Path(path).read_text()
    except (OSError, UnicodeDecodeError) as problem:
        raise click.UsageError(f"--dashboard-token-file: {show.plain(path)} cannot be read: {problem}") from None
    return Path(path)


def _ask(asked: dict[str, Any], window: float, top: int, token_file: Path | None) -> digests.Digest:
    async def read(daemon: asking.Daemon) -> digests.Digest:
        return await daemon.read("/api/v1/digest", digests.Digest, window=units.humane(window), top=str(top))

    heard = asking.ask(asked, read, token_file=token_file, patience=_PATIENCE)
    if isinstance(heard, asking.Told):
        return heard.answer
    because = f"{heard.because}. What helps: {_WHERE}"
    raise show.NoSource(because) if heard.is_usual else show.failure(because)


async def _send(made: digests.Digest, telling: TellingSettings, environ: Any) -> None:
    """All of them are tried; the first that did not arrive is said."""
    head, problems = facts.Letterhead(public_url=telling.public_url, cluster_name=made.cluster), []
    async with post.Poster(environ) as poster:
        wires = senders.Senders(poster, _NoSecrets(), telling.mail)
        for channel in telling.digest.channels:
            try:
                await wires.send_digest(channel, made, head)
            except errors.ClientError as problem:
                problems.append(f"not sent by {channel.name}: {problem}")
    if problems:
        raise errors.BadAnswer("; ".join(problems))


class _NoSecrets:
    """A command has its secrets by flag or variable."""

    async def read(self, ref: idle.SecretKey) -> Secret[str]:
        raise errors.Misconfigured(f"the Secret {ref.name} is the daemon's to read")


def _whom_to_ask() -> list[click.Option]:
    """As the other commands, but there is no look of one's own: it is the past."""
    _, *options = where.daemon_options("--dashboard-url")
    return [*options, *where.cluster_options()]


digest = flags.FlagCommand(
    "digest", callback=_digest, context_settings=main.CONTEXT,
    params=[
        click.Option(["--window"], type=pasts.Duration(HOUR, 31 * DAY), default="7d", show_default=True,
                     help="How far back."),
        click.Option(["--top"], type=click.IntRange(1, 100), default=10, show_default=True, envvar="TOP_N",
                     show_envvar=True, help="How many namespaces and workloads are named."),
        show.output_option,
        click.Option(["--print", "prints"], is_flag=True, help="Show it, and send nothing."),
        *_whom_to_ask(),
        click.Option(["--dashboard-token-file"], metavar="FILE",
                     help="A token that says who asks, where the daemon wants to know."),
        *(flags.flag_option(flag) for flag in settings.FLAGS if flag.name in _SENDING),
    ],
    help="What became of the GPUs in some days: pauses, resumes, regrets, who held most idle, acknowledgements with "
    "what they cost, what was given back, how well it was seen.\n\nA daemon is asked, which wrote it down. With a "
    "Slack webhook or --digest-email it is sent there, else shown; `fallow run --digest-schedule '0 17 * * 5'` sends "
    "one by itself.",
)
