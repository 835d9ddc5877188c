"""`fallow crds`: the CustomResourceDefinitions, made from the model, ready for `kubectl apply -f -`."""

from __future__ import annotations

import click

from fallow.doors.cli import flags, show
from fallow.model.policies import attribution_crd, budget_crd, idle_crd, nodeconfig_crd, scaling_crd, sharing_crd


@click.command("crds", context_settings=flags.CONTEXT)
@click.option(
    "-o", "--output", type=click.Choice(["yaml", "json"]), default="yaml", show_default=True, help="How to show it."
)
def crds(output: str) -> None:
    """Print the CustomResourceDefinitions: fallow crds | kubectl apply -f -"""
    every = (idle_crd, budget_crd, attribution_crd, sharing_crd, nodeconfig_crd, scaling_crd)
    made = [each.define() for each in every]
    show.data({"apiVersion": "v1", "kind": "List", "items": made}, output)
