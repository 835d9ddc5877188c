"""What GPUs cost an hour, as an answer; None where nobody knows.

In: a workload's models, its pods and nodes, a book of prices. Out: a Cost.
Invariant: a price is that of a whole GPU of one known model. What is cut by MIG, shared, claimed by name, or of a model
that is not in the book has none; it is never guessed.
"""

from decimal import Decimal

from fallow import names
from fallow.doors import answers
from fallow.model import cluster, decision, prices


class Cost(answers.Shape, frozen=True, kw_only=True):
    per_hour: float
    currency: str


def cost(amount: Decimal) -> Cost:
    return Cost(per_hour=float(round(amount, 2)), currency=prices.CURRENCY)


def find_price(finding: decision.Finding, seen: cluster.Snapshot, book: prices.Book) -> Decimal | None:
    """Of an hour of any of its GPUs."""
    found = {prices.find(model, book) for model in finding.models}
    if len(found) != 1 or not all(_holds_whole(seen.pods[index], seen) for index in finding.workload.pods):
        return None
    return found.pop()


def _holds_whole(pod: cluster.Pod, seen: cluster.Snapshot) -> bool:
    node = seen.nodes.known.get(pod.node)
    is_cut = node is None or node.shared or "-MIG-" in (node.gpu_product or "")
    return not is_cut and pod.resources.keys() <= {names.GPU} and pod.claimed == 0
