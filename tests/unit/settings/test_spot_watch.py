"""The flags of the watch, and what is shipped for it."""

from __future__ import annotations

from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner
from tests import ROOT

from fallow import names
from fallow.doors.cli import spot_watch
from fallow.settings import spot_watch as table

FOLDER = ROOT / "deploy" / "spot-watch"
IN_CLUSTER = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443", "NODE_NAME": "gpu-1"}


def shipped(place: str) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all((FOLDER / place).read_text()) if each]


def test_without_a_word_it_listens_on_this_machine_alone() -> None:
    made = table.read_watch({}, IN_CLUSTER)
    assert (made.node, made.cloud, made.interval, made.host, made.port) == ("gpu-1", "auto", 5.0, "127.0.0.1", 9837)
    assert (made.server, made.token_file) == ("https://10.0.0.1:443", f"{names.SERVICE_ACCOUNT_DIR}/token")
    assert table.read_watch({}, {**IN_CLUSTER, "KUBERNETES_SERVICE_HOST": "fd00::1"}).server == "https://[fd00::1]:443"
    assert table.read_watch({"metrics_addr": ""}, IN_CLUSTER).port == 0


@pytest.mark.parametrize(("given", "environ", "because"), [
    ({}, {}, "--node-name, or the variable NODE_NAME"), ({"node_name": "n"}, {}, "--server is needed"),
    ({"interval": "1m"}, IN_CLUSTER, "'1m' is not between 1s and 30s"), ({"cloud": "x"}, IN_CLUSTER, "--cloud"),
    ({"server": "http://example.com"}, IN_CLUSTER, "is not https"), ({"aws_metadata_url": "x"}, IN_CLUSTER, "address"),
])
def test_what_is_wrong_is_one_sentence(given: dict[str, str], environ: dict[str, str], because: str) -> None:
    typed = [f"--{key.replace('_', '-')}={value}" for key, value in given.items()]
    found = CliRunner().invoke(spot_watch.spot_watch, typed, env={**dict.fromkeys(IN_CLUSTER, ""), **environ})
    assert found.exit_code == 2
    assert because in found.output
    assert "Traceback" not in found.output


def test_the_shipped_one_is_bounded() -> None:
    (daemons,) = shipped("30-spot-watch.yaml")
    pod = daemons["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["command"] == ["fallow", "spot-watch"]
    typed = [each.replace("$(HOST_IP)", "10.1.2.3") for each in container["args"]]
    given, _, _ = spot_watch.spot_watch.make_parser(click.Context(spot_watch.spot_watch)).parse_args(typed)
    made = table.read_watch(given, IN_CLUSTER)
    assert (made.host, made.port) == ("10.1.2.3", container["ports"][0]["containerPort"])
    safe = container["securityContext"]
    assert (safe["allowPrivilegeEscalation"], safe["readOnlyRootFilesystem"]) == (False, True)
    assert (safe["capabilities"]["drop"], pod["securityContext"]["runAsNonRoot"]) == (["ALL"], True)
    terms = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    keys = {term["matchExpressions"][0]["key"] for term in terms}
    assert keys == {
        names.KARPENTER_CAPACITY, "eks.amazonaws.com/capacityType", *names.GKE_SPOT, names.AKS_PRIORITY,
        names.OWN_CAPACITY,
    }


def test_its_account_may_get_and_patch_nodes_and_bounds_say_what() -> None:
    account, role, binding = shipped("10-role.yaml")
    assert role["rules"] == [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "patch"]}]
    assert binding["subjects"][0]["name"] == account["metadata"]["name"]
    text = (FOLDER / "15-bounds.yaml").read_text()
    assert all(f"'{each}'" in text for each in (names.SPOT_WARNING, names.SPOT_TERMINATION))
    who = f"system:serviceaccount:{account['metadata']['namespace']}:{account['metadata']['name']}"
    assert who in text
    assert {each.name for each in FOLDER.glob("*.yaml")} - {"kustomization.yaml"} == set(
        yaml.safe_load((FOLDER / "kustomization.yaml").read_text())["resources"])
