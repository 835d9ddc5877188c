"""E-mail by SMTP: one message, as plain text and as HTML. Delivered is what the server took with 250 after DATA.

In: the server's address (`smtp://` or `smtps://`, with a name and password where it wants them), sender, receivers.
Invariant: a password is never sent in the clear: with one, STARTTLS must succeed before. No header can be forged by
what a tenant wrote: the library's own policy refuses line breaks, and we take them out before.
"""

import asyncio
import ssl
from collections.abc import Sequence
from email import policy
from email.message import EmailMessage
from email.utils import make_msgid
from typing import Self
from urllib import parse

import aiosmtplib
import msgspec

from fallow.clients import errors, retry
from fallow.clients.messages import post
from fallow.model.secret import Secret
from fallow.model.units import Seconds

_PORTS = {"smtp": 587, "smtps": 465}


class MailServer(msgspec.Struct, frozen=True, kw_only=True):
    """Where mail is handed in, and whose it is. `tls`: whom we trust; None: the system's authorities."""

    host: str
    port: int
    is_tls: bool  # from the first byte; else STARTTLS where it is offered
    username: str | None = None
    password: Secret[str] | None = None
    sender: str

    @classmethod
    def parse(cls, address: Secret[str], sender: str) -> Self:
        """Raises ValueError, which shows nothing of the address."""
        parts = parse.urlsplit(address.reveal().strip())
        try:
            port = parts.port or _PORTS.get(parts.scheme, 0)
        except ValueError:
            raise ValueError("its port is no number between 1 and 65535") from None
        if parts.scheme not in _PORTS or not parts.hostname:
            raise ValueError("it must be smtp://[USER:PASSWORD@]HOST[:PORT] or smtps://...")
        named = {name: parse.unquote(text) for name, text in (("u", parts.username), ("p", parts.password)) if text}
        if len(named) == 1:
            raise ValueError("it has a user or a password, and not both")
        return cls(
            host=parts.hostname, port=port, is_tls=parts.scheme == "smtps", username=named.get("u"),
            password=Secret(named["p"]) if named else None, sender=sender,
        )


class Letter(msgspec.Struct, frozen=True, kw_only=True):
    to: tuple[str, ...]
    subject: str
    text: str
    html: str


async def send(
    server: MailServer, letter: Letter, *, timeout: Seconds = post.TIMEOUT, patience: retry.Patience = post.PATIENCE,
    tls: ssl.SSLContext | None = None,
) -> None:
    message = _write(server, letter)
    await retry.persist(lambda: _send_once(server, message, letter.to, timeout, tls), patience, is_read=True)


def _write(server: MailServer, letter: Letter) -> EmailMessage:
    message = EmailMessage(policy=policy.SMTP)
    message["From"], message["To"] = server.sender, ", ".join(letter.to)
    message["Subject"] = " ".join(letter.subject.split())
    message["Message-ID"] = make_msgid(domain=server.sender.rpartition("@")[2].strip("> ") or "localhost")
    message["Auto-Submitted"] = "auto-generated"  # no answers by holiday robots
    message.set_content(letter.text)
    message.add_alternative(letter.html, subtype="html")
    return message


async def _send_once(
    server: MailServer, message: EmailMessage, to: Sequence[str], timeout: Seconds, tls: ssl.SSLContext | None
) -> None:
    client = aiosmtplib.SMTP(
        hostname=server.host, port=server.port, use_tls=server.is_tls, start_tls=None if server.password is None else
        not server.is_tls, timeout=timeout, tls_context=tls,
    )
    try:
        async with asyncio.timeout(timeout), client:
            if server.username is not None and server.password is not None:
                await client.login(server.username, server.password.reveal())
            refused, _ = await client.send_message(message, sender=server.sender, recipients=list(to))
    except aiosmtplib.SMTPAuthenticationError as problem:
        raise errors.Rejected(problem.code, f"{server.host} does not accept our user and password") from None
    except aiosmtplib.SMTPRecipientsRefused as problem:
        raise errors.Rejected(550, f"{server.host} takes mail for none of {_named(problem.recipients)}") from None
    except aiosmtplib.SMTPResponseException as problem:
        is_passing = 400 <= problem.code < 500
        kind: type[errors.Rejected] = errors.ServerFault if is_passing else errors.Rejected
        raise kind(problem.code, f"{server.host} answered {problem.code}: {problem.message[:200]}") from None
    except (aiosmtplib.SMTPException, OSError, TimeoutError) as problem:
        raise errors.Unreachable(f"{server.host} cannot be reached by SMTP: {type(problem).__name__}") from None
    if refused:
        raise errors.Rejected(550, f"{server.host} does not take mail for {', '.join(sorted(refused))}")


def _named(refused: Sequence[aiosmtplib.SMTPRecipientRefused]) -> str:
    return ", ".join(sorted(each.recipient for each in refused))
