"""Tells the webhook what owners used: one ConfigMap where we live, written whole. A failure is told, and harms nobody:
what is not told is not known, and nobody shares by it."""

import logging
from collections.abc import Mapping

from fallow import names
from fallow.clients import errors
from fallow.clients.kubernetes import api as kube
from fallow.model import owner_use
from fallow.model.sharing import OwnerUse
from fallow.model.units import Instant

log = logging.getLogger("fallow")


class UseTeller:
    def __init__(self, api: kube.Api, namespace: str) -> None:
        self._api, self._namespace = api, namespace

    async def tell(self, used: Mapping[str, OwnerUse], at: Instant) -> None:
        body = {
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": names.OWNER_USE},
            "data": {owner_use.KEY: owner_use.write(used, at)},
        }
        try:
            await self._api.apply(
                kube.CONFIG_MAPS, self._namespace, names.OWNER_USE, body, field_manager=names.FIELD_MANAGER, force=True
            )
        except errors.ClientError as problem:
            log.warning("the webhook is not told what owners used: %s", problem)
