"""Access tokens of Azure: by workload identity (a federated token exchanged) or by the machine's managed identity.

In: the AZURE_* variables, the resource that is to be asked, the addresses of those who hand out tokens. Out: a Signer.
"""

from collections.abc import Mapping

import msgspec
import yarl

from fallow.clients import errors, secret, signing
from fallow.clients.clouds import exchange


class AzureAddresses(msgspec.Struct, frozen=True):
    authority: str = "https://login.microsoftonline.com"
    metadata: str = "http://169.254.169.254"


_USUAL = AzureAddresses()


def make_signer(environment: Mapping[str, str], resource: str, addresses: AzureAddresses = _USUAL) -> signing.Signer:
    """Raises Misconfigured where the variables are half of what is needed."""
    is_federated = bool(environment.get("AZURE_FEDERATED_TOKEN_FILE"))
    if is_federated and not (environment.get("AZURE_CLIENT_ID") and environment.get("AZURE_TENANT_ID")):
        raise errors.Misconfigured("AZURE_FEDERATED_TOKEN_FILE needs AZURE_CLIENT_ID and AZURE_TENANT_ID as well")

    async def fetch(outgoing: signing.Outgoing) -> exchange.AccessToken:
        request = (
            await _ask_authority(environment, resource, addresses, outgoing) if is_federated
            else _ask_machine(environment, resource, addresses)
        )
        return await exchange.fetch_json(outgoing.session, request, exchange.AccessToken)

    return exchange.TokenSigner(fetch)


async def _ask_authority(
    known: Mapping[str, str], resource: str, addresses: AzureAddresses, outgoing: signing.Outgoing
) -> exchange.CloudRequest:
    authority = (known.get("AZURE_AUTHORITY_HOST") or addresses.authority).rstrip("/")
    form = {
        "grant_type": "client_credentials",
        "client_id": known["AZURE_CLIENT_ID"],
        "scope": f"{resource}/.default",
        "client_assertion_type": "urn:ietf:params:oauth:client-assertion-type:jwt-bearer",
        "client_assertion": await secret.SecretFile(known["AZURE_FEDERATED_TOKEN_FILE"]).read(outgoing.now),
    }
    url = f"{authority}/{known['AZURE_TENANT_ID']}/oauth2/v2.0/token"
    return exchange.CloudRequest("Microsoft Entra ID", "POST", url, form=form)


def _ask_machine(known: Mapping[str, str], resource: str, addresses: AzureAddresses) -> exchange.CloudRequest:
    query = {"api-version": "2018-02-01", "resource": resource}
    if client := known.get("AZURE_CLIENT_ID"):
        query["client_id"] = client
    url = yarl.URL(f"{addresses.metadata}/metadata/identity/oauth2/token").with_query(query)
    return exchange.CloudRequest("Azure instance metadata", "GET", str(url), {"Metadata": "true"})
