"""Where mail is handed in: `smtp://` or `smtps://`, with a name and password where the server wants them.

In: an address as people write it. Out: a MailServer; ValueError, which shows nothing of the address, if it is none.
"""

import re
from typing import Final, Self
from urllib import parse

import msgspec

from fallow.model.secret import Secret

_SENDER: Final = re.compile(r"(?:[^<>\r\n]* <)?[^\s<>@]+@[^\s<>@]+>?")
_PORTS: Final = {"smtp": 587, "smtps": 465}


class MailServer(msgspec.Struct, frozen=True, kw_only=True):
    """A server, and as whom we write."""

    host: str
    port: int
    is_tls: bool  # from the first byte; else STARTTLS where it is offered
    username: str | None = None
    password: Secret[str] | None = None
    sender: str

    @classmethod
    def parse(cls, address: Secret[str], sender: str, password: Secret[str] | None = None) -> Self:
        """Raises ValueError, which shows nothing of the address. `password`: where it is not in the address."""
        try:
            parts = parse.urlsplit(address.reveal().strip())
            port = parts.port or _PORTS.get(parts.scheme, 0)
        except ValueError:
            raise ValueError("its port is no number between 1 and 65535, or its host is none") from None
        if parts.scheme not in _PORTS or not parts.hostname:
            raise ValueError("it must be smtp://[USER:PASSWORD@]HOST[:PORT] or smtps://...")
        named = {name: parse.unquote(text) for name, text in (("u", parts.username), ("p", parts.password)) if text}
        if not _SENDER.fullmatch(sender):
            raise ValueError("whose name letters carry is no address such as fallow@example.com or Name <a@b.c>")
        if password is not None and password.reveal() and "p" in named:
            raise ValueError("it has a password, and --smtp-password is another")
        if password is not None and password.reveal():
            named["p"] = password.reveal()
        if len(named) == 1:
            raise ValueError("it has a user or a password, and not both")
        return cls(
            host=parts.hostname, port=port, is_tls=parts.scheme == "smtps", username=named.get("u"),
            password=Secret(named["p"]) if named else None, sender=sender,
        )

    @property
    def domain(self) -> str:
        """Of the sender."""
        return self.sender.rpartition("@")[2].strip("> ").lower()
