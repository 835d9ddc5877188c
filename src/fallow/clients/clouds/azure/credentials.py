"""Azure Monitor workspaces: an access token by workload identity (a federated token exchanged) or by the machine's managed identity.

In: the AZURE_* variables and the addresses of those who hand out tokens. Out: the Authorization header.
A token is fetched again five minutes before it expires, and after a 401.
"""

import asyncio
from collections.abc import Mapping

import msgspec
import yarl

from fallow.clients import errors
from fallow.clients.prometheus import exchange
from fallow.model.units import Instant, Seconds

_RESOURCE = "https://prometheus.monitor.azure.com"
_EARLY: Seconds = 300.0


class Places(msgspec.Struct, frozen=True):
    authority: str = "https://login.microsoftonline.com"
    metadata: str = "http://169.254.169.254"


class _Token(msgspec.Struct):
    access_token: str
    expires_in: float  # the metadata server writes it as a string


class Azure:
    def __init__(self, environment: Mapping[str, str], places: Places) -> None:
        self._environment = environment
        self._places = places
        self._token = ""
        self._expires_at: Instant = 0.0
        self._lock = asyncio.Lock()
        named = environment.get("AZURE_CLIENT_ID") and environment.get("AZURE_TENANT_ID")
        if environment.get("AZURE_FEDERATED_TOKEN_FILE") and not named:
            raise errors.Misconfigured("AZURE_FEDERATED_TOKEN_FILE needs AZURE_CLIENT_ID and AZURE_TENANT_ID as well")

    async def headers(self, outgoing: exchange.Outgoing) -> Mapping[str, str]:
        async with self._lock:
            if not self._token or self._expires_at - _EARLY <= outgoing.now:
                token = await self._fetch(outgoing)
                self._token, self._expires_at = token.access_token, outgoing.now + token.expires_in
            return exchange.bearer(self._token)

    def forget(self) -> None:
        self._token = ""

    async def _fetch(self, outgoing: exchange.Outgoing) -> _Token:
        if self._environment.get("AZURE_FEDERATED_TOKEN_FILE"):
            return await self._exchange_federated(outgoing)
        return await self._from_machine(outgoing)

    async def _exchange_federated(self, outgoing: exchange.Outgoing) -> _Token:
        known = self._environment
        authority = (known.get("AZURE_AUTHORITY_HOST") or self._places.authority).rstrip("/")
        form = {
            "grant_type": "client_credentials",
            "client_id": known["AZURE_CLIENT_ID"],
            "scope": f"{_RESOURCE}/.default",
            "client_assertion_type": "urn:ietf:params:oauth:client-assertion-type:jwt-bearer",
            "client_assertion": await exchange.SecretFile(known["AZURE_FEDERATED_TOKEN_FILE"]).read(outgoing.now),
        }
        url = f"{authority}/{known['AZURE_TENANT_ID']}/oauth2/v2.0/token"
        return await exchange.fetch_json(outgoing.session, "Microsoft Entra ID", "POST", url, shape=_Token, form=form)

    async def _from_machine(self, outgoing: exchange.Outgoing) -> _Token:
        query = {"api-version": "2018-02-01", "resource": _RESOURCE}
        if client := self._environment.get("AZURE_CLIENT_ID"):
            query["client_id"] = client
        url = yarl.URL(f"{self._places.metadata}/metadata/identity/oauth2/token").with_query(query)
        return await exchange.fetch_json(
            outgoing.session, "Azure instance metadata", "GET", str(url), shape=_Token, headers={"Metadata": "true"}
        )
