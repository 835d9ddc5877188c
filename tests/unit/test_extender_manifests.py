"""What is shipped for the scheduler's extender, against the code: flags that exist, resources that are known, nothing
that decides beyond loopback without certificates."""

from __future__ import annotations

from typing import Any

import click
import yaml
from tests import ROOT

from fallow.doors.cli import extender
from fallow.model import gpus
from fallow.settings import packing

FOLDER = ROOT / "deploy/extender"


def read(place: str) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all((FOLDER / place).read_text()) if each]


def settings_of(place: str) -> packing.ExtenderSettings:
    (deployment,) = [each for each in read(place) if each["kind"] == "Deployment"]
    (container,) = [each for each in deployment["spec"]["template"]["spec"]["containers"] if each["name"] == "extender"]
    assert container["command"] == ["fallow", "extender"]
    context = click.Context(extender.extender)
    given, _, _ = extender.extender.make_parser(context).parse_args(list(container["args"]))
    return packing.read_extender(given, {})


def test_beside_a_scheduler_it_listens_on_loopback_alone() -> None:
    found = settings_of("30-scheduler.yaml")
    (second,) = read("scheduler/second.yaml")
    host, port = found.address
    assert (host, found.cert_dir, second["extenders"][0]["urlPrefix"]) == ("127.0.0.1", None, f"http://{host}:{port}")


def test_from_elsewhere_it_knows_who_asks() -> None:
    found = settings_of("service/30-extender.yaml")
    assert (found.address, found.cert_dir, found.clients) == (
        ("0.0.0.0", 9444), "/etc/fallow/extender", ("system:kube-scheduler",)
    )


def test_both_configurations_are_as_the_spec_says() -> None:
    (own,), (second,) = read("scheduler/config.yaml"), read("scheduler/second.yaml")
    assert own["extenders"] == second["extenders"]
    assert [each["schedulerName"] for each in second["profiles"]] == ["fallow-scheduler"]
    (asked,) = own["extenders"]
    mig = sorted({profile.resource for model in gpus.MODELS if model.mig for profile in model.mig.profiles})
    named = ("nvidia.com/gpu", "nvidia.com/gpu.shared", *mig)
    managed = [{"name": name, "ignoredByScheduler": False} for name in named]
    assert asked == {
        "urlPrefix": "http://127.0.0.1:9444", "filterVerb": "filter", "prioritizeVerb": "prioritize", "weight": 100,
        "nodeCacheCapable": True, "ignorable": True, "httpTimeout": "2s", "managedResources": managed,
    }


def test_it_may_only_read() -> None:
    (role,) = [each for each in read("role/10-role.yaml") if each["kind"] == "ClusterRole"]
    assert {verb for rule in role["rules"] for verb in rule["verbs"]} == {"list", "watch", "get"}
