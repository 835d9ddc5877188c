"""`fallow apply`: our own kinds, stored by server-side apply; what can only be meant one way is corrected, and said.

In: YAML or JSON from a file or standard input. Out: a line for each object on standard output, one for each correction
on standard error. Exit 2 for what is wrong with a document, with the path of the field; 1 where the cluster said no.
Invariant: nothing is stored unless every document is right.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeAlias

import click
import msgspec

from fallow import names
from fallow.clients import errors
from fallow.clients.kubernetes import api as kube
from fallow.doors.cli import corrections, flags, interrupts, show
from fallow.doors.cli import where as where_options
from fallow.model.policies import (
    attribution_crd,
    budget_crd,
    idle_crd,
    nodeconfig_crd,
    scaling_crd,
    scope_crd,
    sharing_crd,
)
from fallow.model.policies.budget import CostAttribution, CostBudget
from fallow.model.policies.idle import IdlePolicy
from fallow.model.policies.scaling import ScalingPolicy
from fallow.model.policies.sharing import NodeConfig, SharingPolicy
from fallow.wiring import reach

Parsed: TypeAlias = IdlePolicy | CostBudget | CostAttribution | SharingPolicy | NodeConfig | ScalingPolicy
_KNOWN = ("apiVersion", "kind", "metadata", "spec", "status")


def _parsers() -> dict[str, Callable[[Mapping[str, Any]], Parsed]]:
    return {
        names.POLICY_KIND: idle_crd.parse, names.BUDGET_KIND: budget_crd.parse,
        names.ATTRIBUTION_KIND: attribution_crd.parse, names.SHARING_POLICY_KIND: sharing_crd.parse,
        names.NODE_CONFIG_KIND: nodeconfig_crd.parse, names.SCALING_POLICY_KIND: scaling_crd.parse,
    }


def _resource(kind: str) -> kube.Resource:
    plurals = {
        names.POLICY_KIND: names.POLICY_PLURAL, names.BUDGET_KIND: names.BUDGET_PLURAL,
        names.ATTRIBUTION_KIND: names.ATTRIBUTION_PLURAL, names.SHARING_POLICY_KIND: names.SHARING_POLICY_PLURAL,
        names.NODE_CONFIG_KIND: names.NODE_CONFIG_PLURAL, names.SCALING_POLICY_KIND: names.SCALING_POLICY_PLURAL,
    }
    return kube.Resource(names.GROUP, names.POLICY_VERSION, plurals[kind], kind, False)


def _apply(file: str, dry_run: str, **given: Any) -> None:
    documents = _read(file)
    if not documents:
        raise click.UsageError(f"{_called(file)} holds no document")
    checked = [
        _check(document, f"{_called(file)}, document {place}") for place, document in enumerate(documents, start=1)
    ]
    for name, _, lines in checked:
        for line in lines:
            show.tell(f"{name}: {line}")
    objects = [made for _, made, _ in checked]
    if dry_run == "client":
        for made in objects:
            show.sentence(f"{_title(made)} is right (nothing was sent)")
        return
    _send(objects, given, is_dry=dry_run == "server")


def _called(file: str) -> str:
    return "standard input" if file == "-" else file


def _read(file: str) -> list[Any]:
    import yaml  # --help does without it

    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text()
        return corrections.read(text)
    except OSError as problem:
        raise click.UsageError(f"{file} cannot be read: {problem.strerror}") from None
    except UnicodeDecodeError:
        raise click.UsageError(f"{_called(file)} is not text") from None
    except (yaml.YAMLError, RecursionError, ArithmeticError, ValueError) as problem:
        where = f" at line {mark.line + 1}" if (mark := getattr(problem, "problem_mark", None)) else ""
        said = getattr(problem, "problem", None) or type(problem).__name__
        raise click.UsageError(f"{_called(file)} is no YAML{where}: {said}") from None


def _check(document: Any, where: str) -> tuple[str, dict[str, Any], list[str]]:
    """Its name, the object to store, what was corrected. What is wrong ends here."""
    if not isinstance(document, dict):
        raise click.UsageError(f"{where}: it is no object with apiVersion, kind, metadata and spec")
    made, lines = corrections.correct(document)
    metadata = made.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    kind, version = made.get("kind"), made.get("apiVersion")
    parsers = _parsers()
    if kind not in parsers:
        found = "kind is missing: it is one" if kind is None else f"kind: {kind} is none"
        raise click.UsageError(f"{where}: {found} of {', '.join(parsers)}")
    if version != corrections.VERSION:
        found = "apiVersion is missing: it is" if version is None else f"apiVersion: {version} is not"
        raise click.UsageError(f"{where}: {found} {corrections.VERSION}")
    if not isinstance(name, str) or not name:
        raise click.UsageError(f"{where}: metadata.name is missing")
    if strange := sorted(str(key) for key in made if key not in _KNOWN):
        raise click.UsageError(f"{name}: {strange[0]}: there is no such field")
    made.pop("status", None)
    faults = parsers[kind](made).invalid
    if faults:
        raise click.UsageError("\n".join(f"{name}: {fault}" for fault in faults))
    return name, made, lines


def _send(objects: list[dict[str, Any]], given: dict[str, Any], *, is_dry: bool) -> None:
    async def run() -> None:
        async with reach.open_api(given["kubeconfig"], given["context"]) as (api, _):
            for made in objects:
                await _store(api, made, is_dry=is_dry)
                show.sentence(f"{_title(made)} applied{' (server dry run)' if is_dry else ''}")

    with show.refusals():
        interrupts.run(run())


async def _store(api: kube.Api, made: dict[str, Any], *, is_dry: bool) -> None:
    resource, name = _resource(made["kind"]), made["metadata"]["name"]
    try:
        await api.apply(resource, None, name, _wire(made), field_manager=names.FIELD_MANAGER, dry_run=is_dry)
    except errors.NotFound:
        helps = "install the definitions first: fallow crds | kubectl apply -f -"
        raise errors.NotFound(404, f"the cluster does not know {made['kind']}; {helps}") from None
    except errors.Invalid as problem:
        raise errors.Misconfigured(f"{name}: {problem}") from None
    except errors.Conflict as problem:
        raise errors.Conflict(409, f"{name}: somebody else set some of this: {problem}") from None


def _title(made: Mapping[str, Any]) -> str:
    return f"{made['kind'].lower()}.{names.GROUP}/{made['metadata']['name']}"


def _wire(value: Any) -> Any:
    """Numbers in the digits they were written in."""
    if isinstance(value, dict):
        return {key: _wire(member) for key, member in value.items()}
    if isinstance(value, list):
        return [_wire(member) for member in value]
    return msgspec.Raw(scope_crd.write(value)) if isinstance(value, Decimal) else value


apply = click.Command(
    "apply", callback=_apply, context_settings=flags.CONTEXT,
    help="Store IdlePolicies, CostBudgets, CostAttributions, GPUSharingPolicies, GPUNodeConfigs and "
    "AutoscalingPolicies by server-side apply. What can only be meant one way (an apiVersion in the wrong order, "
    "fields of older versions, a quoted amount, `30 d`) is corrected, and said."
    "\n\n\b\n  fallow apply -f budget.yaml --dry-run client   only check it; needs no cluster"
    "\n  fallow apply -f budget.yaml                    store it",
    params=[
        click.Option(["-f", "--filename", "file"], required=True, metavar="FILE", help="A file; - is standard input."),
        click.Option(
            ["--dry-run"], type=click.Choice(["none", "client", "server"]), default="none", show_default=True,
            help="client: only check; server: let the API server check; change nothing.",
        ),
        *where_options.cluster_options(),
    ],
)
