"""One review, judged: what is known of budgets, namespaces and owners is handed to the rules, in a second at most; one
more where somebody's right is asked for.

In: a review. Out: the bytes of the answer, and the word by which it is counted. Who wants a single pod to run in spite
of a budget (an annotation with the reason) is asked about at the API server: may they `override` that budget?
Invariant: whatever is not known, not in time or unforeseen admits the pod unchanged, and is counted. A right that could
not be asked for, or not in time, is none.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from fallow import names
from fallow.clients import errors
from fallow.clients.kubernetes import reviews as rights
from fallow.decide import admission
from fallow.decide.admission import AdmitReason
from fallow.doors.webhook import reviews
from fallow.model import cluster
from fallow.model.patterns import Pattern
from fallow.model.policies.budget import ClaimWanted, CostBudget, EnforcementMode, PodTraits
from fallow.model.seen import Input, Known, Register, Unseen
from fallow.model.units import Instant, Seconds
from fallow.observe.budgets import OwnerRef

log = logging.getLogger("fallow")

DEADLINE: Final[Seconds] = 1.0  # the API server waits for three
Above: TypeAlias = Callable[[str, list[OwnerRef] | None], Awaitable[Input[Mapping[str, str]]]]
Claims: TypeAlias = Callable[[str, Sequence[ClaimWanted]], Awaitable[Input[bool]]]
Asks: TypeAlias = Callable[[rights.Identity, rights.AccessWish], Awaitable[bool]]


class Reviewed(msgspec.Struct, frozen=True):
    """`outcome`: admitted, denied, patched or error."""

    body: bytes
    outcome: str
    reason: AdmitReason


Judging: TypeAlias = Reviewed | Coroutine[Any, Any, Reviewed]


class WebhookEyes(msgspec.Struct, frozen=True, kw_only=True):
    """What the rules rest on, as functions: each is asked anew."""

    budgets: Callable[[], Input[tuple[CostBudget, ...]]]
    namespaces: Callable[[], Register[cluster.Namespace]]
    above: Above
    claims: Claims
    may: Asks


class Judge:
    def __init__(
        self, eyes: WebhookEyes, *, exempt: Pattern, gpu_resources: frozenset[str], clock: Callable[[], Instant],
    ) -> None:
        self._eyes, self._exempt, self._clock = eyes, exempt, clock
        self._gpu_resources = gpu_resources | {names.GPU, names.GPU_SHARED}
        self._restricting: dict[EnforcementMode, tuple[object, int, admission.Restricting]] = {}

    def judge(self, body: bytes, mode: EnforcementMode) -> Judging:
        """At once, unless somebody has to be asked. Raises one of reviews.UNREADABLE where no uid can be read."""
        request = reviews.read(body)
        if isinstance(request, str):
            return Reviewed(reviews.admit(request), "error", AdmitReason.Unreadable)
        try:
            found = self._judge(request, mode)
        except Exception:  # a defect of ours must not keep anybody's pod away
            return _stumble(request.uid)
        return found if isinstance(found, Reviewed) else _wait(request.uid, found)

    def _judge(self, request: reviews.ReviewRequest, mode: EnforcementMode) -> Judging:
        uid, pod = request.uid, reviews.wanted(request, self._gpu_resources)
        is_exempt = bool(self._exempt.fullmatch(pod.namespace))
        passed = admission.look_past(pod, is_exempt=is_exempt)
        if passed is not None or request.operation != "CREATE":
            return Reviewed(reviews.admit(uid), "admitted", passed or AdmitReason.NoBudget)
        seen = self._eyes.budgets()
        if isinstance(seen, Unseen):
            return Reviewed(reviews.admit(uid), "error", AdmitReason.NotLoaded)
        restricting = self._find_restricting(seen, mode)
        if not restricting.budgets:
            reason = AdmitReason.StatusStale if restricting.stale else AdmitReason.NoBudget
            return Reviewed(reviews.admit(uid), "admitted", reason)
        around = self._find_around(pod.namespace)
        bare = PodTraits(namespace=pod.namespace, labels=pod.labels, above=Unseen("not asked for"), around=around)
        meant, why = admission.find_meant(restricting, bare)
        if why is AdmitReason.ScopeUnknown:
            return self._look_above(request, pod, bare, restricting, mode)
        return self._restrict(request, pod, meant, why, mode)

    def _find_restricting(self, seen: Input[tuple[CostBudget, ...]], mode: EnforcementMode) -> admission.Restricting:
        """Of the same budgets in the same second the same ones."""
        now, before = self._clock(), self._restricting.get(mode)
        if before is None or before[0] is not seen or before[1] != int(now):
            known = seen.value if isinstance(seen, Known) else ()
            before = self._restricting[mode] = seen, int(now), admission.find_restricting(known, mode, now)
        return before[2]

    async def _look_above(
        self, request: reviews.ReviewRequest, pod: admission.PodWanted, bare: PodTraits,
        restricting: admission.Restricting, mode: EnforcementMode,
    ) -> Reviewed:
        """Who stands above it is asked only where that makes a difference."""
        async with asyncio.timeout(DEADLINE):
            above = await self._eyes.above(pod.namespace, request.object.metadata.owner_references)
        meant, why = admission.find_meant(restricting, msgspec.structs.replace(bare, above=above))
        found = self._restrict(request, pod, meant, why, mode)
        return found if isinstance(found, Reviewed) else await found

    def _find_around(self, namespace: str) -> Input[Mapping[str, str]]:
        """A namespace that is not seen yet may have any label."""
        found = self._eyes.namespaces().find(namespace)
        return Known(found.value.labels) if isinstance(found, Known) else Unseen("it is new")

    def _restrict(
        self, request: reviews.ReviewRequest, pod: admission.PodWanted, meant: Sequence[CostBudget], why: AdmitReason,
        mode: EnforcementMode,
    ) -> Judging:
        if not meant:
            return Reviewed(reviews.admit(request.uid), "admitted", why)
        if not pod.has_gpus:
            return self._look_at_claims(request, pod, meant, mode)
        if not pod.is_daemons and not admission.find_wish(pod):
            return _refuse(request, pod, meant, mode)
        return self._ask_rights(request, pod, meant, mode)

    async def _look_at_claims(
        self, request: reviews.ReviewRequest, pod: admission.PodWanted, meant: Sequence[CostBudget],
        mode: EnforcementMode,
    ) -> Reviewed:
        if too_many := admission.find_too_many(pod):
            return await self._ask_rights(request, pod, meant, mode, too_many)
        async with asyncio.timeout(DEADLINE):
            asks = await self._eyes.claims(pod.namespace, pod.claims)
        if isinstance(asks, Unseen):
            return Reviewed(reviews.admit(request.uid), "error", AdmitReason.ClaimUnseen)
        if isinstance(asks, Known) and not asks.value:
            return Reviewed(reviews.admit(request.uid), "admitted", AdmitReason.NoGpus)
        missing = "" if isinstance(asks, Known) else "a claim that it names is not there yet: make that first"
        return await self._ask_rights(request, pod, meant, mode, missing)

    async def _ask_rights(
        self, request: reviews.ReviewRequest, pod: admission.PodWanted, meant: Sequence[CostBudget],
        mode: EnforcementMode, hint: str = "",
    ) -> Reviewed:
        uid, wish = request.uid, admission.find_wish(pod)
        if pod.is_daemons and not await self._find_refusal(request, [_keeps_daemons(pod)]):
            return Reviewed(reviews.admit(uid), "admitted", AdmitReason.DaemonSet)
        refused = "" if not wish else await self._find_refusal(request, [_overrides(each) for each in meant])
        if wish and not refused:
            return self._break_glass(request, pod, meant, wish)
        return _refuse(request, pod, meant, mode, refused, hint)

    async def _find_refusal(self, request: reviews.ReviewRequest, wishes: Sequence[rights.AccessWish]) -> str:
        """Why whoever asks may not do these; "": they may."""
        who = rights.Identity(request.user_info.username, request.user_info.groups)
        try:
            async with asyncio.timeout(DEADLINE):  # of its own: whoever asks for it must not gain by a slow answer
                for wish in wishes:
                    if not await self._eyes.may(who, wish):
                        return f"{who.name} may not {wish.verb} {wish.resource}/{wish.name}"
        except (errors.ClientError, TimeoutError) as problem:
            log.warning("whether %s may %s could not be asked: %s", who.name, wishes[0],
                        str(problem) or f"no answer in {DEADLINE:g} s")
            return f"whether {who.name} may {wishes[0].verb} it could not be asked"
        return ""

    def _break_glass(
        self, request: reviews.ReviewRequest, pod: admission.PodWanted, meant: Sequence[CostBudget], wish: str
    ) -> Reviewed:
        who, meta = request.user_info.username, request.object.metadata
        named = f"{pod.namespace}/{meta.name or meta.generate_name}"
        budgets = ", ".join(each.name for each in meant)
        if not request.dry_run:
            said = {"audit": "break-glass", "user": who, "pod": named, "budget": budgets, "reason": wish[:256]}
            log.warning("%s admitted %s although %s is exceeded: %s", who, named, budgets, wish[:256],
                        extra={"fields": said})
        notes = {**_notes(meant), "budget-override": f"{who}: {wish[:256]}"}
        return Reviewed(reviews.admit(request.uid, notes=notes), "admitted", AdmitReason.BreakGlass)


async def _wait(uid: str, judging: Coroutine[Any, Any, Reviewed]) -> Reviewed:
    try:
        return await judging
    except TimeoutError:
        return Reviewed(reviews.admit(uid), "error", AdmitReason.Deadline)
    except Exception:
        return _stumble(uid)


def _stumble(uid: str) -> Reviewed:
    log.exception("a review was not judged; the pod was admitted")
    return Reviewed(reviews.admit(uid), "error", AdmitReason.Defect)


def _refuse(
    request: reviews.ReviewRequest, pod: admission.PodWanted, meant: Sequence[CostBudget], mode: EnforcementMode,
    refused: str = "", hint: str = "",
) -> Reviewed:
    """`refused`: why an override was not heeded. `hint`: why its claims count as ones for GPUs."""
    uid, is_blocked = request.uid, mode is EnforcementMode.block
    bound = "" if is_blocked else admission.find_bound(pod, meant)
    if is_blocked or bound:
        because = "; ".join(text for text in (admission.deny(meant[0]), refused, hint, bound) if text)
        reason = AdmitReason.Exceeded if is_blocked else AdmitReason.Throttled
        return Reviewed(reviews.deny(uid, because, notes=_notes(meant)), "denied", reason)
    patch = admission.change(pod, meant)
    outcome = "patched" if patch else "admitted"
    return Reviewed(reviews.admit(uid, patch=patch, notes=_notes(meant)), outcome, AdmitReason.Throttled)


def _overrides(budget: CostBudget) -> rights.AccessWish:
    return rights.AccessWish(names.OVERRIDE_VERB, names.GROUP, names.BUDGET_PLURAL, name=budget.name)


def _keeps_daemons(pod: admission.PodWanted) -> rights.AccessWish:
    """What a DaemonSet's controller does, and who only writes DaemonSets, or their name on a pod, does not."""
    return rights.AccessWish("update", "apps", "daemonsets", pod.namespace, subresource="status")


def _notes(meant: Sequence[CostBudget]) -> dict[str, str]:
    return {"budget": ",".join(each.name for each in meant)}
