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
from typing import TYPE_CHECKING

import msgspec

from fallow.clients import errors, retry
from fallow.clients.messages import post
from fallow.model.mailing import MailServer
from fallow.model.units import Seconds

if TYPE_CHECKING:
    import aiosmtplib


class Letter(msgspec.Struct, frozen=True, kw_only=True):
    to: tuple[str, ...]
    subject: str
    text: str
    html: str


async def send(
    server: MailServer, letter: Letter, *, timeout: Seconds = post.TIMEOUT, patience: retry.Patience = post.PATIENCE,
    tls: ssl.SSLContext | None = None,
) -> tuple[str, ...]:
    """Who was refused, where others have it; Rejected where nobody has."""
    message = _write(server, letter)
    return await retry.persist(lambda: _send_once(server, message, letter.to, timeout, tls), patience, is_read=True)


def _write(server: MailServer, letter: Letter) -> EmailMessage:
    message = EmailMessage(policy=policy.SMTP)
    message["From"], message["To"] = server.sender, ", ".join(letter.to)
    message["Subject"] = " ".join(letter.subject.split())
    message["Message-ID"] = make_msgid(domain=server.domain)
    message["Auto-Submitted"] = "auto-generated"  # no answers by holiday robots
    message.set_content(letter.text)
    message.add_alternative(letter.html, subtype="html")
    return message


async def _send_once(
    server: MailServer, message: EmailMessage, to: Sequence[str], timeout: Seconds, tls: ssl.SSLContext | None
) -> tuple[str, ...]:
    import aiosmtplib  # who sends no letter does without it

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
        said = problem.message[:200].encode(errors="replace").decode()  # bytes of no known encoding come as surrogates
        raise kind(problem.code, f"{server.host} answered {problem.code}: {said}") from None
    except (aiosmtplib.SMTPException, OSError, TimeoutError) as problem:
        raise errors.Unreachable(f"{server.host} cannot be reached by SMTP: {type(problem).__name__}") from None
    return tuple(sorted(refused))


def _named(refused: "Sequence[aiosmtplib.SMTPRecipientRefused]") -> str:
    return ", ".join(sorted(each.recipient for each in refused))
