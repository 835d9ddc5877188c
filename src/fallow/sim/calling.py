"""What things in a made-up cluster are called, so that people can tell them apart: workloads, nodes, pools, owners.

In: what it is, and how many of its sort came before it. Out: a name, the same for the same numbers, and no two alike.
"""

from collections.abc import Mapping, Sequence
from typing import Final

PEOPLE: Final = ("ana", "ben", "kim", "lee", "mia", "noa", "raj", "tom", "vera")
_STEMS: Final[Mapping[str, Sequence[str]]] = {
    "inference": (
        "llm-chat", "reranker", "embedder", "asr-stream", "captions", "rank-api", "tts-voices", "vlm-qa", "ocr-api",
        "doc-parse", "intent", "geo-rank", "thumbs", "summaries", "translate", "moderation", "code-assist", "draft-api",
    ),
    "notebook": (
        "nb-ocr", "nb-codec", "nb-fleet", "nb-pose", "nb-audit", "nb-lidar", "nb-tracking", "nb-eval", "nb-tokens",
        "nb-labels", "nb-loss", "nb-scan", "nb-mesh", "nb-flow", "nb-draft", "nb-maps",
    ),
    "training": ("reranker-ft", "ctr-train", "protein-fold", "vit-large", "asr-pretrain", "rl-policy", "moe-distil"),
    "batch": ("tile-embed", "variant-call", "audio-clean", "dedupe", "batch-eval", "ocr-train"),
    "held": ("ablation-study", "img-index", "eval-harness", "chem-gen", "demo-stand", "sim-rollouts"),
    "flapping": ("load-test", "flow-sim", "cache-warm", "traffic-replay"),
    "group": ("llm-70b", "moe-serve", "long-context"),
}
_POOLS: Final[Mapping[str, str]] = {"80GB": "train-a100", "40GB": "serve-a100", "16GB": "batch-v100", "T4": "dev-t4"}


def workload(life: str, before: int) -> str:
    """`before`: how many of that life have a name already."""
    stems = _STEMS.get(life, (life,))
    lap, place = divmod(before, len(stems))
    return stems[place] if lap == 0 else f"{stems[place]}-{lap + 1}"


def person(number: int) -> str:
    return f"{PEOPLE[number % len(PEOPLE)]}@example.com"


def pool(model: str, mode: str) -> str:
    if mode in ("mig", "mps"):
        return f"{mode}-a100"
    if mode == "time-sliced":
        return "shared"
    return _POOLS[model.rpartition("-")[2]]


def family(pool: str) -> str:
    """What the nodes of a pool are called, before their number: `a100`, `mig`."""
    return pool.partition("-")[0] if pool.startswith(("mig", "mps")) else pool.rpartition("-")[2]
