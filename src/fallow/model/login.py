"""Logging in with somebody else's word for it (OpenID Connect): as whom we are known there, and what its claims mean.

In: claims of an ID token that was found to hold. Out: a name and groups as Kubernetes' roles spell them. Flags,
prefixes and defaults are as those of the kube-apiserver's own --oidc-* flags, so that people have one name in both.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from fallow.model.secret import Secret

NO_PREFIX: Final = "-"


class OidcClient(msgspec.Struct, frozen=True, kw_only=True):
    """As whom we are known at the provider; without a secret, by PKCE alone."""

    issuer: str
    client_id: str
    secret: Secret[str] | None = None
    secret_file: str | None = None  # read anew for every login
    scopes: tuple[str, ...] = ()
    ca_file: str | None = None


class ClaimNames(msgspec.Struct, frozen=True, kw_only=True):
    """Which claims say who it is. A prefix that is not given is the issuer's address and #, but of e-mail addresses."""

    user: str = "sub"
    groups: str = "groups"
    user_prefix: str | None = None
    groups_prefix: str = ""

    def read_user(self, claims: Mapping[str, Any], issuer: str) -> str:
        """Raises ValueError, one sentence, where they do not say who it is."""
        found = claims.get(self.user)
        if not isinstance(found, str) or not found:
            raise ValueError(f"the provider does not say the claim {self.user!r}, by which people are known here")
        if self.user == "email" and claims.get("email_verified") is not True:
            raise ValueError("the provider does not vouch for this e-mail address (email_verified)")
        prefix = ("" if self.user == "email" else f"{issuer}#") if self.user_prefix is None else self.user_prefix
        return f"{'' if prefix == NO_PREFIX else prefix}{found}"

    def read_groups(self, claims: Mapping[str, Any]) -> tuple[str, ...]:
        found = claims.get(self.groups)
        named = [found] if isinstance(found, str) else found if isinstance(found, list) else []
        prefix = "" if self.groups_prefix == NO_PREFIX else self.groups_prefix
        return tuple(f"{prefix}{each}" for each in named if isinstance(each, str) and each)
