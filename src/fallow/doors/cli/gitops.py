"""`fallow gitops-snippet`: what Argo CD, Flux or Helm must be told about a workload, lest they undo a pause.

Needs a kubeconfig, to find the object and the tool that manages it. Nothing is changed.
"""

from __future__ import annotations

from typing import Any

import click

from fallow import verbs
from fallow.doors.answers import gitops
from fallow.doors.cli import completing, flags, show, where
from fallow.doors.cli import verbs as acting
from fallow.model import kinds

_WHERE_TO = {
    "argocd": "Put this into the Application that has {short}:",
    "flux": "Put this into the Kustomization that has {short}, for those of its fields that the manifest sets:",
    "helm": "Put this into the HelmRelease that has {short} (helm itself only writes when you upgrade):",
}


def _print(target: str, tool: str | None, **given: Any) -> None:
    workload = acting.find(target, given)
    acting.tell_meant(target, workload.ref)
    found = kinds.gitops_tool(workload)
    by_name = {title: name for name, title in gitops.TOOLS.items()}
    chosen = tool or by_name.get(found or "", "argocd")
    if tool is None and found is None:
        show.tell("no GitOps tool left its mark on it; this is for Argo CD, --tool says another")
    click.echo(show.plain(f"# {_WHERE_TO[chosen].format(short=workload.ref.short)}"))
    click.echo(gitops.make_snippet(workload.ref, chosen), nl=False)


snippet = click.Command(
    "gitops-snippet", callback=_print, context_settings=flags.CONTEXT,
    params=[
        acting.target_argument(),
        click.Option(["--tool"], type=click.Choice(["argocd", "flux", "helm"]), default=None,
                     help="For which tool.  [default: the one that manages it]"),
        click.Option(
            ["-n", "--namespace"], default=None, help="Namespace of the workload, by its name; default: the context's.",
            callback=show.checked(lambda text: verbs.check_namespace(text)), shell_complete=completing.namespaces,
        ),
        *where.cluster_options(),
    ],
    help="Print the YAML that keeps Argo CD, Flux or Helm from undoing a pause of this workload. Nothing is changed.",
)
