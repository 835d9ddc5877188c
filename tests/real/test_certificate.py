"""The webhook's certificate where only GPUs are shared: no books, no budgets. The daemon makes it with the rights that
are shipped, behind the bounds; without them it leaves it alone, and asks for nothing that is refused."""

from __future__ import annotations

import base64
import pathlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from fallow import names
from tests import ROOT
from tests.real import cluster as clusters
from tests.real import test_deploy, test_node_stories, world

SYSTEM = test_node_stories.SYSTEM
KINDS = ("ValidatingWebhookConfiguration", "MutatingWebhookConfiguration")
USER = f"system:serviceaccount:{SYSTEM}:gpu-pruner"


@pytest.fixture
async def house(start_control_plane: Any, tmp_path: pathlib.Path) -> AsyncIterator[test_node_stories.House]:
    made = test_node_stories.House(await start_control_plane(world.PLAIN), tmp_path)
    try:
        yield made
    finally:
        await made.close()


async def configure(cluster: clusters.Cluster) -> None:
    for thing in yaml.safe_load_all((ROOT / "deploy/webhook/40-configurations.yaml").read_text()):
        await cluster.apply(thing)


async def find_secret(cluster: clusters.Cluster) -> dict[str, Any] | None:
    return await cluster.find("v1", "Secret", names.WEBHOOK_CERTIFICATE, SYSTEM)


async def read_bundles(cluster: clusters.Cluster) -> set[str]:
    found = [await cluster.get("admissionregistration.k8s.io/v1", kind, names.WEBHOOK) for kind in KINDS]
    return {hook["clientConfig"].get("caBundle", "") for each in found for hook in each["webhooks"]}


async def test_sharing_alone_gets_its_certificate(house: test_node_stories.House) -> None:
    await house.install()
    await test_deploy.install_things(house.cluster, test_deploy.manifests("webhook/10-role.yaml"))
    daemon = await house.start("--cost", "false")
    assert await find_secret(house.cluster) is None, "no webhook is installed: nobody needs one"
    await configure(house.cluster)
    secret = await daemon.until(lambda: find_secret(house.cluster), timeout=120)
    content = {key: base64.b64decode(value) for key, value in secret["data"].items()}
    authority, leaf = (x509.load_pem_x509_certificate(content[key]) for key in ("ca.crt", "tls.crt"))
    leaf.verify_directly_issued_by(authority)
    for each in (authority, leaf):
        key = each.public_key()
        assert isinstance(key, ec.EllipticCurvePublicKey)
        assert isinstance(key.curve, ec.SECP256R1)
    lives = [(each.not_valid_after_utc - each.not_valid_before_utc).days for each in (authority, leaf)]
    assert lives == [3652, 90]
    assert await read_bundles(house.cluster) == {secret["data"]["ca.crt"]}


async def test_who_was_given_no_right_to_it_leaves_it_alone(house: test_node_stories.House) -> None:
    await house.install()
    await configure(house.cluster)
    await house.start("--cost", "false")

    async def has_asked() -> bool:
        return bool(house.cluster.requests(USER, ["create"], "/selfsubjectaccessreviews"))

    await house.cluster.wait_until(has_asked, timeout=60)
    assert await find_secret(house.cluster) is None
    assert await read_bundles(house.cluster) == {""}
    asked = [each for part in ("/secrets", "webhookconfigurations") for each in house.cluster.requests(USER, (), part)]
    assert not asked, "what would be refused is not asked for"
