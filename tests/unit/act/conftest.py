"""A small API server, our client on it, and the hands."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.unit.act import server as servers

from fallow.act import hands as doing
from fallow.clients.kubernetes import api as kubernetes
from fallow.clients.kubernetes import config


@pytest.fixture
async def server() -> AsyncIterator[servers.Server]:
    async with servers.Server() as running:
        yield running


@pytest.fixture
async def api(server: servers.Server, tmp_path: Path) -> AsyncIterator[kubernetes.Api]:
    written = {
        "apiVersion": "v1", "kind": "Config", "current-context": "c", "users": [{"name": "u", "user": {}}],
        "clusters": [{"name": "c", "cluster": {"server": server.url}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    }
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(written))
    access = config.load_access(kubeconfig=str(path), context=None, environment={})
    async with kubernetes.Api(access, qps=10_000) as ready:
        yield ready


@pytest.fixture
def make_hands(api: kubernetes.Api) -> Callable[..., doing.Hands]:
    def make(**more: Any) -> doing.Hands:
        return doing.Hands(api, servers.lookup, reporting_instance="gpu-pruner-0", **{"keda_turn": 0.0, **more})

    return make


@pytest.fixture
def hands(make_hands: Callable[..., doing.Hands]) -> doing.Hands:
    return make_hands()
