"""The flags about telling owners: Slack, mail, and what every message says of us.

In: flag texts, the environment. Out: TellingSettings, and the channels of the rule that the flags make.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from fallow.model import mailing, schedule
from fallow.model.policies import idle
from fallow.model.policies.idle import ChannelType
from fallow.model.schedule import Schedule
from fallow.model.secret import Secret
from fallow.settings import readers as read
from fallow.settings.flags import Flag, group
from fallow.settings.readers import UsageError

TELL = "Whom to tell"

FLAGS: tuple[Flag, ...] = group(
    TELL,
    Flag("--slack-webhook-url", "URL", "Incoming webhook of Slack by which owners are told; better in the variable.",
         read.secret_url, variable="SLACK_WEBHOOK_URL"),
    Flag("--slack-channel", "CHANNEL", "Slack channel, where it is not the webhook's own.", variable="SLACK_CHANNEL"),
    Flag("--slack-namespace-mentions", "JSON",
         "Whom to mention, by namespace or by its beginning: '{\"team-ml-\":\"<!subteam^S1>\"}'.",
         read.text_map, variable="SLACK_NAMESPACE_MENTIONS"),
    Flag("--smtp-url", "URL", "Mail server: smtp[s]://[USER:PASSWORD@]HOST[:PORT]; better in the variable.",
         Secret, variable="SMTP_URL"),
    Flag("--smtp-password", "PASSWORD", "Password for the user in --smtp-url, where it is not in there; better in the "
         "variable.", Secret, variable="SMTP_PASSWORD"),
    Flag("--email-from", "ADDRESS", "Whose name letters carry."),
    Flag("--email-domains", "A,B",
         "Domains of the addresses that owners may name; default: that of --email-from.", read.name_list, ""),
    Flag("--digest-schedule", "CRON", "When a digest of the time since the last one is sent, such as '0 17 * * 5'.",
         variable="DIGEST_SCHEDULE"),
    Flag("--digest-timezone", "ZONE", "Time zone of --digest-schedule.", schedule.read_zone, "UTC"),
    Flag("--digest-top", "N", "How many namespaces and workloads a digest names.", read.whole_number(1), "10",
         variable="TOP_N"),
    Flag("--digest-email", "A,B", "Addresses that get the digest, besides Slack's channel; needs --smtp-url.",
         read.name_list, ""),
    Flag("--cluster-name", "NAME", "What messages and pages call this cluster.", variable="CLUSTER_NAME"),
    Flag("--dashboard-public-url", "URL", "Where people reach the dashboard: messages link to it.", read.http_url,
         variable="DASHBOARD_PUBLIC_URL"),
)


class DigestSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`schedule` None: no digest is sent. `channels`: by which it goes; without any it is written into the log."""

    schedule: Schedule | None = None
    top: int = 10
    channels: tuple[idle.Channel, ...] = ()


class TellingSettings(msgspec.Struct, frozen=True, kw_only=True):
    mail: mailing.MailServer | None = None
    email_domains: frozenset[str] = frozenset()  # whose addresses owners may name
    mentions: Mapping[str, str] = {}
    cluster_name: str = ""
    public_url: str = ""
    digest: DigestSettings = DigestSettings()


def read_telling(values: Mapping[str, Any]) -> TellingSettings:
    mail = _mail(values)
    domains = frozenset(each.lower().removeprefix("@") for each in values["email_domains"])
    return TellingSettings(
        mail=mail, email_domains=domains or frozenset({mail.domain} if mail else ()),
        mentions=values["slack_namespace_mentions"] or {},
        cluster_name=values["cluster_name"] or "", public_url=values["dashboard_public_url"] or "",
        digest=_digest(values),
    )


def _digest(values: Mapping[str, Any]) -> DigestSettings:
    to = values["digest_email"]
    if to and values["smtp_url"] is None:
        raise UsageError("--digest-email needs --smtp-url and --email-from: by which server is it sent?")
    try:
        when = values["digest_schedule"]
        found = Schedule.parse(when, values["digest_timezone"]) if when else None
    except ValueError as problem:
        raise UsageError(f"--digest-schedule: {problem}") from None
    slack = tuple(each for each in read_channels(values) if each.type is ChannelType.slack)
    letters = (idle.Channel("email", ChannelType.email, (("to", ", ".join(to)),)),) if to else ()
    return DigestSettings(schedule=found, top=values["digest_top"], channels=(*slack, *letters))


def _mail(values: Mapping[str, Any]) -> mailing.MailServer | None:
    if (values["smtp_url"] is None) != (values["email_from"] is None):
        raise UsageError("--smtp-url and --email-from go together: one of them is missing")
    if values["smtp_url"] is None:
        return None
    try:
        return mailing.MailServer.parse(values["smtp_url"], values["email_from"], values["smtp_password"])
    except ValueError as problem:
        raise UsageError(f"--smtp-url: {problem}") from None


def read_channels(values: Mapping[str, Any]) -> tuple[idle.Channel, ...]:
    """Of the rule of the flags. Mail has no receivers but those that owners name."""
    found = []
    if values["slack_webhook_url"] is not None:
        room = (("channel", values["slack_channel"]),) if values["slack_channel"] else ()
        found.append(idle.Channel("slack", ChannelType.slack, (("webhook_url", values["slack_webhook_url"]), *room)))
    if values["smtp_url"] is not None:
        found.append(idle.Channel("email", ChannelType.email))
    return tuple(found)
