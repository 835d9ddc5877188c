"""Which cluster is meant, and who is to answer: the options that commands share, spelled once.

`--kubeconfig` and `--context` are those of the table of flags; the daemon's are our own, for no daemon takes them.
"""

from __future__ import annotations

import click

from fallow import settings
from fallow.doors.cli import flags, show
from fallow.settings import readers

CLUSTER = ("--kubeconfig", "--context")
URL_VARIABLE, AUTH_VARIABLE = "FALLOW_DAEMON_URL", "FALLOW_DAEMON_AUTH"


def cluster_options() -> list[click.Option]:
    return [flags.flag_option(flag) for flag in settings.FLAGS if flag.name in CLUSTER]


def prometheus_option() -> click.Option:
    """For a command that asks none: who types it for all of them is not sent away."""
    return click.Option(
        ["--prometheus-url"], metavar="URL", expose_value=False, callback=show.checked(readers.http_url),
        help="Accepted, as by other commands, and not used: costs come from the books.",
    )


def daemon_options(*also: str) -> list[click.Option]:
    """`also`: another name of --daemon-url."""
    return [
        click.Option(["--look"], is_flag=True, help="Look anew; ask no daemon."),
        click.Option(
            ["--daemon-url", *also, "daemon_url"], default=None, metavar="URL",
            help=f"The daemon; default: its Service. [env: {URL_VARIABLE}]",
        ),
        click.Option(
            ["--daemon-auth"], type=click.Choice(["auto", "kube", "none"]), default=None, metavar="WHEN",
            help=f"When it sees your token: auto, kube, none. [env: {AUTH_VARIABLE}]",
        ),
    ]


DAEMON_KEYS = ("look", "daemon_url", "daemon_auth")
