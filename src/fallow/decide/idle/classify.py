"""What kind of work a workload does: training, inference, notebook or batch.

In: the workload, its pods, its namespace. Out: the class and the source that told it.
The first source that answers wins: what people wrote, the kind of the owner, the size of what it asks for, else batch.
The snapshot carries neither images nor history, so these two sources of the specification are left to who has them.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from fallow import names
from fallow.model import cluster, kinds
from fallow.model.seen import Input, Known

_CLASSES: Final = {
    "training": "training", "inference": "inference", "notebook": "notebook", "batch": "batch",
    "serving": "inference", "development": "notebook", "dev": "notebook",
}


def classify(
    workload: cluster.Workload, pods: Iterable[cluster.Pod], namespace: Input[cluster.Namespace]
) -> tuple[str, str]:
    """(class, source)."""
    pods = tuple(pods)
    spoken = [*(one for pod in pods for one in (pod.labels, pod.annotations)), workload.labels, workload.annotations]
    if isinstance(namespace, Known):
        spoken += [namespace.value.labels, namespace.value.annotations]
    if found := next(filter(None, map(_read_class, spoken)), None):
        return found, "label"
    if found := kinds.find_class(workload.ref.group, workload.ref.kind):
        return found, "owner"
    if any((pod.gpu_count or 0) > 1 for pod in pods):
        return "training", "resources"
    return "batch", "default"


def _read_class(said: Mapping[str, str]) -> str | None:
    """Our key wins over its alias; a word we do not know says nothing."""
    return _CLASSES.get(said.get(names.WORKLOAD_TYPE) or said.get(names.WORKLOAD_TYPE_ALIAS) or "")
