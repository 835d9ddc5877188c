"""What kind of work a workload of the snapshot does: training, inference, notebook or batch.

In: the workload, its pods, its namespace. Out: the class and the source that told it, by the one ladder there is
(classes.py). The snapshot carries neither images nor history, so these two sources are left to who has them.
Rules choose by it (decide) and costs are told apart by it (account): so it stands where both may ask.
"""

from collections.abc import Iterable

from fallow.model import classes, cluster, kinds
from fallow.model.seen import Input, Known


def classify(
    workload: cluster.Workload, pods: Iterable[cluster.Pod], namespace: Input[cluster.Namespace]
) -> tuple[str, str]:
    """(class, source)."""
    pods = tuple(pods)
    said = [*(one for pod in pods for one in (pod.labels, pod.annotations)), workload.labels, workload.annotations]
    if isinstance(namespace, Known):
        said += [namespace.value.labels, namespace.value.annotations]
    found = classes.classify(classes.WorkFacts(
        said=tuple(said), owned=kinds.find_class(workload.ref.group, workload.ref.kind),
        gpus=max((pod.gpu_count or 0 for pod in pods), default=0),
    ))
    return str(found.work), str(found.source)
