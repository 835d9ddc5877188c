"""What a GitOps tool must be told, lest it undo a pause: YAML for the object that steers it.

In: a workload, and the tool. Out: a snippet to put into an Application (Argo CD), a Kustomization or a HelmRelease
(Flux). Fields are those that the kind's row writes.
"""

from typing import Any, Final

import yaml

from fallow import names
from fallow.model import cluster, kinds

TOOLS: Final = {"argocd": "Argo CD", "flux": "Flux", "helm": "Helm"}


def make_snippet(ref: cluster.Ref, tool: str) -> str:
    """`tool`: as in TOOLS."""
    made = {"argocd": _for_argo, "flux": _for_flux, "helm": _for_helm}[tool](ref)
    return str(yaml.safe_dump(made, sort_keys=False))


def _for_argo(ref: cluster.Ref) -> dict[str, Any]:
    """Into the Application: what our field manager owns is not compared, and not written at a sync."""
    ignored: dict[str, Any] = {"group": ref.group} if ref.group else {}
    ignored |= {"kind": ref.kind, "name": ref.name, "namespace": ref.namespace}
    ignored |= {"managedFieldsManagers": [names.FIELD_MANAGER]}
    return {"spec": {"ignoreDifferences": [ignored], "syncPolicy": {"syncOptions": ["RespectIgnoreDifferences=true"]}}}


def _for_flux(ref: cluster.Ref) -> dict[str, Any]:
    """Into the Kustomization: what it does not set, Flux leaves alone."""
    removed = [{"op": "remove", "path": path} for path in _fields(ref) if path.startswith("/spec/")]
    patch = {"target": _target(ref), "patch": yaml.safe_dump(removed, sort_keys=False)}
    return {"spec": {"patches": [patch]}}


def _for_helm(ref: cluster.Ref) -> dict[str, Any]:
    """Into the HelmRelease: its drift detection does not look at the fields of a pause."""
    ignored = {"paths": _fields(ref), "target": _target(ref)}
    return {"spec": {"driftDetection": {"mode": "enabled", "ignore": [ignored]}}}


def _target(ref: cluster.Ref) -> dict[str, str]:
    return {"kind": ref.kind, "name": ref.name, "namespace": ref.namespace}


def _fields(ref: cluster.Ref) -> list[str]:
    row = kinds.find(ref.group, ref.kind)
    return list(row.writes) if row else ["/spec/replicas"]
