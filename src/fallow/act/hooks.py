"""The pre-pause hook: a pod may ask to be told before it is paused, so that it can save its work.

In: the GPU pods of a workload; those with the annotation pre-pause (":PORT/PATH") get one POST each, all at once.
Out: None when every one of them answered 2xx in time, else a sentence saying which did not and how.
Invariant: only the pods' own addresses are called, redirects are not followed, nothing of the answer is kept.
"""

import asyncio
import re
from collections.abc import Iterable, Sequence

import aiohttp

from fallow import names
from fallow.model import cluster
from fallow.model.decision import Detail
from fallow.model.policies import idle
from fallow.model.units import Seconds

_HOOK = re.compile(r":([1-9][0-9]{0,4})(/[!-~]*)?")
_ABORTS = 3


class Hooks:
    """Asks the pods of workloads that are to be paused, and knows whose hook keeps stopping the pause."""

    def __init__(self) -> None:
        self._aborts: dict[str, int] = {}  # uid -> cycles in a row in which its hook stopped the pause

    async def ask(
        self, ref: cluster.Ref, pods: Sequence[cluster.Pod], hook: idle.Hook
    ) -> tuple[str, Detail | None] | None:
        """Why they stop the pause, if they do: a sentence, and a word once that is no accident of one cycle."""
        because = await call(pods, hook.timeout)
        if because is None or hook.on_failure == "continue":
            self._aborts.pop(ref.uid, None)
            return None
        self._aborts[ref.uid] = self._aborts.get(ref.uid, 0) + 1
        is_failing = self._aborts[ref.uid] >= _ABORTS
        return (because, Detail.HookFailing) if is_failing else (f"not paused in this cycle: {because}", None)


def wanted(pods: Iterable[cluster.Pod]) -> tuple[cluster.Pod, ...]:
    """The pods that asked to be told."""
    return tuple(pod for pod in pods if names.PRE_PAUSE_HOOK in pod.annotations and not pod.terminating)


async def call(pods: Iterable[cluster.Pod], timeout: Seconds) -> str | None:
    """Tells all of them; the first complaint, or None."""
    asked = wanted(pods)
    if not asked:
        return None
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=timeout), trust_env=False) as session:
        complaints = await asyncio.gather(*(_tell(session, pod, timeout) for pod in asked))
    return next((complaint for complaint in complaints if complaint), None)


async def _tell(session: aiohttp.ClientSession, pod: cluster.Pod, timeout: Seconds) -> str | None:
    url = address(pod)
    if url is None:
        return f"pod {pod.name} has no address, or its {names.PRE_PAUSE_HOOK} is not of the form :PORT/PATH"
    try:
        async with session.post(url, allow_redirects=False) as response:
            ok = 200 <= response.status < 300
            return None if ok else f"the hook of pod {pod.name} answered {response.status}"
    except TimeoutError:
        return f"the hook of pod {pod.name} did not answer within {timeout:g} s"
    except aiohttp.ClientError as problem:
        return f"the hook of pod {pod.name} could not be called: {type(problem).__name__}"


def address(pod: cluster.Pod) -> str | None:
    """Where the pod wants the POST; None where that cannot be read."""
    found = _HOOK.fullmatch(pod.annotations.get(names.PRE_PAUSE_HOOK, ""))
    if not found or not pod.ip or int(found[1]) > 65535:
        return None
    host = f"[{pod.ip}]" if ":" in pod.ip else pod.ip
    return f"http://{host}:{found[1]}{found[2] or '/'}"
