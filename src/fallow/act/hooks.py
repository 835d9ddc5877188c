"""The pre-pause hook: a pod may ask to be told before it is paused, so that it can save its work.

In: the GPU pods of a workload; those with the annotation pre-pause (":PORT/PATH") get one POST each, all at once.
Out: None when every one of them answered 2xx in time, else a sentence saying which did not and how.
Invariant: only the pods' own addresses are called, redirects are not followed, nothing of the answer is kept. All
hooks of one namespace share one budget of time in each cycle, so that no tenant's hooks use up the time of the others.
"""

import asyncio
import re
from collections.abc import Iterable, Sequence

from fallow import names
from fallow.clients.web import aiohttp
from fallow.model import cluster
from fallow.model.decision import Detail
from fallow.model.policies import idle
from fallow.model.units import Instant, Seconds

_HOOK = re.compile(r":([1-9][0-9]{0,4})(/[!-~]*)?")
_ABORTS = 3
BUDGET: Seconds = 60.0  # of one namespace in one cycle, unless its policy lets a single hook take longer


class Hooks:
    """Asks the pods of workloads that are to be paused, and knows whose hook keeps stopping the pause."""

    def __init__(self, budget: Seconds = BUDGET) -> None:
        self._budget = budget
        self._aborts: dict[str, int] = {}  # uid -> cycles in a row in which its hook stopped the pause
        self._cycle: Instant | None = None
        self._used: dict[str, Seconds] = {}  # by namespace, in this cycle

    async def ask(
        self, ref: cluster.Ref, pods: Sequence[cluster.Pod], hook: idle.Hook, cycle: Instant
    ) -> tuple[str, Detail | None] | None:
        """Why they stop the pause, if they do: a sentence, and a word once that is no accident of one cycle."""
        if not wanted(pods):
            self._aborts.pop(ref.uid, None)
            return None
        left = self._time_left(ref.namespace, hook, cycle)
        if left <= 0:
            return f"not paused in this cycle: the hooks of namespace {ref.namespace} have used up their time", None
        because = await self._call_timed(ref.namespace, pods, min(left, hook.timeout))
        if because is None or hook.on_failure == "continue":
            self._aborts.pop(ref.uid, None)
            return None
        self._aborts[ref.uid] = self._aborts.get(ref.uid, 0) + 1
        is_failing = self._aborts[ref.uid] >= _ABORTS
        return (because, Detail.HookFailing) if is_failing else (f"not paused in this cycle: {because}", None)

    def _time_left(self, namespace: str, hook: idle.Hook, cycle: Instant) -> Seconds:
        if cycle != self._cycle:
            self._cycle, self._used = cycle, {}
        return max(self._budget, hook.timeout) - self._used.get(namespace, 0.0)

    async def _call_timed(self, namespace: str, pods: Sequence[cluster.Pod], timeout: Seconds) -> str | None:
        elapsed = asyncio.get_running_loop().time
        began = elapsed()
        try:
            return await call(pods, timeout)
        finally:
            self._used[namespace] = self._used.get(namespace, 0.0) + elapsed() - began


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
