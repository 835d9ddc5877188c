"""The story of budgets: every minute, what each has come to, who is told of it and what is restricted.

In: budgets and attributions as the cluster has them, the namespaces, the pods; the books by functions that were handed
in (BudgetBooks). Out: a BudgetCycle, for doors and for scaling: what is restricted now.
What was told to whom is kept in the books before it is sent; since when a budget is exceeded stands in its status.
Invariant: whatever is not seen changes nothing but that it is said. Books that cannot be written send nothing new.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from fallow import names, telemetry
from fallow.account import attribution_status as accounting
from fallow.act import events
from fallow.act.budgets import announcing, sending, statuses, wires
from fallow.act.budgets import gates as gating
from fallow.act.budgets import node_pools as holding_pools
from fallow.clients import errors
from fallow.clients.kubernetes import api as kube
from fallow.decide import admission
from fallow.decide.budgets import gates, node_pools, plan, scope
from fallow.decide.budgets.node_pools import FreePool, HoldPool, PoolEdits
from fallow.model import budgets, cluster, cost, node_facts, units
from fallow.model.budgets import AlertKey, AlertMemory, AlertRecord, BooksSeen, BudgetPlan, BudgetState, Restrict
from fallow.model.cost import BookedSaving, BudgetReading, CostQuery, CostSum, Nano, Second
from fallow.model.node_pools import PoolSeen
from fallow.model.policies import budget as policies
from fallow.model.policies.budget import CostAttribution, CostBudget, PodTraits
from fallow.model.seen import ABSENT, Input, Known, Register, Unseen
from fallow.model.units import MINUTE, Instant, Seconds
from fallow.stories.turn import Complaint, Turn, stumbling

log = logging.getLogger("fallow")

INTERVAL: Final[Seconds] = 60.0
ATTRIBUTED_EVERY: Final[Seconds] = 5 * MINUTE
TRACKED_EVERY: Final = 300  # seconds
LOOKED_FOR: Final[Seconds] = 2 * policies.STALE_AFTER  # for gates: a webhook's clock may differ from ours
RELEASED_FOR: Final[Seconds] = 20.0  # of a cycle, so that thousands of pods keep nobody's alerts from going
_LONGEST: Final[Seconds] = 40 * units.DAY  # records of periods that ended longer ago are done with

Sums: TypeAlias = Callable[[CostQuery], Awaitable[Sequence[CostSum]]]


class BudgetBooks(msgspec.Struct, frozen=True, kw_only=True):
    """The ledger, as far as budgets ask it. Each may raise a ClientError. `term`: how often the Lease has changed
    hands; None: nobody else writes."""

    look: Callable[[], Awaitable[Input[BooksSeen]]]
    sums: Sums
    savings: Callable[[int, int], Awaitable[Sequence[BookedSaving]]]  # from when until when
    recall: Callable[[], Awaitable[AlertMemory]]  # all records that are not long over
    keep: Callable[[Sequence[AlertRecord]], Awaitable[None]]
    track: Callable[[Sequence[BudgetReading]], Awaitable[None]]  # how far each is used, over time
    term: Callable[[], int | None] = lambda: None


class BudgetSights(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster, as far as budgets look at it. `pods`: GPU pods with whose each is; unseen: not in full. `frozen`:
    why no NodePool may be held anew; "": it may."""

    budgets: Callable[[], Input[tuple[CostBudget, ...]]]
    attributions: Callable[[], Input[tuple[CostAttribution, ...]]]
    namespaces: Callable[[], Register[cluster.Namespace]]
    pods: Callable[[], Input[tuple[tuple[cluster.Pod, PodTraits], ...]]]
    nodes: Callable[[], Register[cluster.Node]]
    node_pools: Callable[[], Awaitable[Input[tuple[PoolSeen, ...]]]]
    frozen: Callable[[Instant], str]


class BudgetHands(msgspec.Struct, frozen=True, kw_only=True):
    api: kube.Api
    wires: wires.AlertWires
    sender: sending.AlertSender
    statuses: statuses.StatusWriter
    announcer: events.Announcer
    is_gpu: Callable[[str], bool]
    count_claimed: gating.CountClaimed


class BudgetCycle(msgspec.Struct, frozen=True, kw_only=True):
    plan: BudgetPlan | None = None
    failure: str = ""

    @property
    def restricts(self) -> tuple[Restrict, ...]:
        return self.plan.restricts if self.plan is not None else ()


class BudgetsStory:
    def __init__(
        self, *, sights: BudgetSights, books: BudgetBooks, hands: BudgetHands, terms: plan.BudgetTerms,
        metrics: telemetry.Telemetry,
    ) -> None:
        self._sights, self._books, self._hands, self._terms, self._metrics = sights, books, hands, terms, metrics
        self._records: dict[AlertKey, AlertRecord] | None = None  # None: not read from the books yet
        self._unkept: dict[AlertKey, AlertRecord] = {}  # that the books have not taken yet
        self._term: int | None = None  # in which they were read: in another somebody else may have told
        self._streaks: dict[str, Mapping[str, int]] = {}
        self._hours: dict[str, tuple[CostQuery, dict[Second, Nano]]] = {}  # by budget: of which question
        self._attributed: dict[str, Instant] = {}
        self._tracked: dict[str, BudgetReading] = {}
        self._held_at: Instant | None = None  # when gates were last held; None: there may be some of before
        self._looked_at: Instant = float("-inf")  # when all that may go on did
        self._unwritten = Complaint("what is told of budgets cannot be kept in the books: %s")
        self._uncounted = Complaint("budgets cannot tell how many GPUs %s ask for: each counts as one")
        self._pools_clear = False  # none is held, and nobody may hold any
        self._pools_unseen = Complaint("NodePools stay as they are: %s")
        self._pools_left = Complaint("%s")
        self._currency = "USD"  # of the books, as they last said

    async def tick(self, turn: Turn) -> BudgetCycle:
        # 1. Look: the budgets, the books, what was told before.
        seen = self._sights.budgets()
        if isinstance(seen, Unseen):
            return self.fail(seen.why, turn)
        with stumbling():
            books, states = await turn.in_time(self._look(seen.value if isinstance(seen, Known) else (), turn.now))
            # 2. Plan: what each has come to; which alerts fire or end; what is restricted.
            made = plan.plan(states, self._records or {}, turn.now)
        self._streaks = {state.budget.uid: state.streaks for state in made.states}
        # 3. Act: tell, let pods go on, write the status of each.
        await self._act(made, turn)
        # 4. Account: what attributions show, and the gauges.
        await self._attribute(books, turn)
        await self._track(made, turn)
        self._gauge(made)
        # 5. Tell.
        self._tell(made)
        return BudgetCycle(plan=made)

    async def look(self, turn: Turn) -> BudgetCycle:
        """For a follower: what the books say, without an act."""
        seen = self._sights.budgets()
        if isinstance(seen, Unseen):
            return self.fail(seen.why, turn)
        with stumbling():
            _, states = await turn.in_time(self._look(seen.value if isinstance(seen, Known) else (), turn.now))
            return BudgetCycle(plan=plan.plan(states, self._records or {}, turn.now))

    def fail(self, because: str, turn: Turn) -> BudgetCycle:
        return BudgetCycle(failure=because)

    # ---- look --------------------------------------------------------------------------------------------------------

    async def _look(
        self, found: tuple[CostBudget, ...], now: Instant
    ) -> tuple[Input[BooksSeen], list[BudgetState]]:
        books = await self._look_at_books()
        namespaces = self._sights.namespaces()
        states = []
        for each in sorted(found, key=lambda one: one.name):
            asked = plan.question(each, namespaces, books, self._terms, now)
            states.append(asked if isinstance(asked, BudgetState) else await self._evaluate(asked, books, now))
        return books, states

    async def _look_at_books(self) -> Input[BooksSeen]:
        try:
            if self._records is None or self._books.term() != self._term:
                self._term, self._records = self._books.term(), dict(await self._books.recall())
                self._unkept = {}  # who led meanwhile knows better
                self._pools_clear = False
            return await self._books.look()
        except errors.ClientError as problem:
            return Unseen(str(problem))

    async def _evaluate(self, asked: plan.BudgetAsked, books: Input[BooksSeen], now: Instant) -> BudgetState:
        of = asked.budget
        assert isinstance(books, Known)
        try:
            spend = await self._ask(of, asked.questions)
        except errors.ClientError as problem:
            return BudgetState(
                budget=of, ready=budgets.WhyReady.LedgerUnavailable, ready_because=str(problem), period=asked.period
            )
        return plan.evaluate(asked, spend, books.value, self._streaks.get(of.uid, {}), self._terms, now)

    async def _ask(self, of: CostBudget, asked: scope.BudgetQuestions) -> budgets.SpendSeen:
        if asked.total is None or asked.recent is None or asked.hours is None:
            return plan.read_spend((), {}, (), None)
        known, hours = self._hours.get(of.uid, (None, {}))
        if known != asked.hours:  # another hour, or another scope
            hours = {each.begin: each.total.cost for each in await self._books.sums(asked.hours)}
            self._hours[of.uid] = asked.hours, hours
        total, recent = await self._books.sums(asked.total), await self._books.sums(asked.recent)
        overridden = None if asked.overridden is None else await self._books.sums(asked.overridden)
        vouched = None if asked.vouched is None else await self._books.sums(asked.vouched)
        return plan.read_spend(total, hours, recent, overridden, vouched)

    # ---- act ---------------------------------------------------------------------------------------------------------

    async def _act(self, made: BudgetPlan, turn: Turn) -> None:
        """Statuses come first, by which the webhook restricts: neither pods that wait, however many tenants make, nor a
        channel that never answers may keep them from being of now. And who is put behind a gate by a status of before
        is found after the new one stands."""
        now = turn.now
        may_send = turn.may_act() and await self._remember(made.records, now)
        for state in made.states:
            if turn.may_act() and await self._write_status(state, now):
                for news in made.news.get(state.budget.uid, ()):  # after what it tells of
                    await announcing.announce(self._hands.announcer, state, news, now)
        if turn.may_act():
            await self._release(made, turn)
        if turn.may_act():
            await self._hold_pools(made, turn)
        if may_send:
            await self._send(made, turn)

    async def _send(self, made: BudgetPlan, turn: Turn) -> None:
        now, by_uid = turn.now, {state.budget.uid: state for state in made.states}
        for record in [each for each in (self._records or {}).values() if each.is_due(now)]:
            state = by_uid.get(record.budget_uid)
            if state is None or not turn.may_act():
                continue
            if not await self._remember([await self._hands.sender.send_due(state, record, now)], now):
                return

    async def _remember(self, records: Sequence[AlertRecord], now: Instant) -> bool:
        """Kept by ourselves in any case, so that nothing is sent twice; False: the books do not have all of them, nor
        of those before."""
        new = {record.key: record for record in records}
        known = {**(self._records or {}), **new}
        self._records = {key: each for key, each in known.items() if _is_alive(each, now)}
        self._unkept |= new
        try:
            if self._unkept:
                await self._books.keep(tuple(self._unkept.values()))
        except errors.ClientError as problem:
            self._unwritten.note(str(problem))
            return False
        self._unkept = {}
        self._unwritten.note("")
        return True

    async def _write_status(self, state: BudgetState, now: Instant) -> bool:
        missing = await self._hands.wires.find_missing(state.budget)
        mine = [each for each in (self._records or {}).values() if each.budget_uid == state.budget.uid]
        status = statuses.make_status(state, mine, missing, now)
        return await self._hands.statuses.write_budget(state, status, now)

    async def _release(self, made: BudgetPlan, turn: Turn) -> None:
        """Gates are looked for while somebody may put some, and until all were seen to go after the last webhook has
        stopped to believe a status of then."""
        holding = {each.budget.name: each.budget for each in made.states
                   if each.is_enforced and plan.may_hold(each.budget)}
        said = any(each.budget.standing.is_enforced and plan.may_hold(each.budget) for each in made.states)
        if holding or said or self._held_at is None:
            self._held_at = turn.now
        if self._looked_at > self._held_at + LOOKED_FOR:
            return
        try:
            waiting = await turn.in_time(self._find_waiting(holding))
        except errors.ClientError as problem:
            log.warning("pods that wait behind a budget cannot be seen: %s", problem)
            return
        await self._let_go_on(waiting, holding, turn)

    async def _find_waiting(self, holding: Mapping[str, CostBudget]) -> list[gates.HeldPod]:
        """Claims are read only of those for whose GPUs there is a cap."""
        found = await gating.find(self._hands.api, self._hands.is_gpu)
        seen = self._sights.pods() if found else ABSENT
        known = {pod.uid: whose for pod, whose in seen.value} if isinstance(seen, Known) else {}
        waiting = [self._make_waiting(pod, known.get(pod.ref.uid)) for pod in found]
        capped = {each.pod.ref.uid: each for each in waiting if any(
            of.enforcement.throttle.max_gpus is not None for of in gates.find_holding(each, holding)
        )}
        counted = await gating.count((each.pod for each in capped.values()), self._hands.count_claimed)
        made = [msgspec.structs.replace(capped[pod.ref.uid], pod=pod) for pod in counted]
        return [*made, *(each for each in waiting if each.pod.ref.uid not in capped)]

    def _make_waiting(self, pod: budgets.GatedPod, whose: PodTraits | None) -> gates.HeldPod:
        """`whose` None: the mirror does not have it yet, so that anybody may stand above it."""
        found = self._sights.namespaces().find(pod.ref.namespace)
        around = Known(found.value.labels) if isinstance(found, Known) else found
        bare = PodTraits(
            namespace=pod.ref.namespace, labels=pod.labels, above=Unseen("it is not seen yet"), around=around
        )
        return gates.HeldPod(pod=pod, whose=whose or bare, is_cheap=admission.keeps_to_cheap(pod.affinity))

    async def _let_go_on(
        self, waiting: Sequence[gates.HeldPod], holding: Mapping[str, CostBudget], turn: Turn
    ) -> None:
        gated, until = frozenset(each.pod.ref.uid for each in waiting), turn.took + RELEASED_FOR
        uses = {name: self._find_use(of, gated) for name, of in holding.items()}
        released = gates.release(waiting, holding, uses)
        removed = await gating.remove(
            self._hands.api, released, lambda: turn.may_act() and turn.took < until
        )
        if removed == len(released):
            self._looked_at = turn.now
        if removed:
            log.info("%s may go on", units.many(removed, "pod"))
        unclear = sum(not each.pod.is_counted for each in waiting) + sum(each.unclear for each in uses.values())
        self._uncounted.note(units.many(unclear, "pod") if unclear else "")

    def _find_use(self, of: CostBudget, gated: frozenset[str]) -> gates.ScopeUse:
        """Who may go on and has no node yet counts as well: it takes its GPUs as soon as there is one. Who asks for
        nobody knows how many has at least one."""
        mine = self._find_pods(of.scope, payer=True, vouched=True, gated=gated)
        if mine is None:
            return gates.ScopeUse(None, None)
        found = [self._sights.nodes().find(name) for name in {pod.node for pod in mine if pod.node}]
        is_blind = any(isinstance(each, Unseen) for each in found)
        spot = sum(_is_spot(each.value) for each in found if isinstance(each, Known))
        counts = [pod.gpu_count for pod in mine]
        gpus = sum(1 if count is None else count for count in counts)
        return gates.ScopeUse(gpus, None if is_blind else spot, counts.count(None))

    def _find_pods(
        self, of: policies.SpendScope, *, payer: bool, vouched: bool = False, gated: frozenset[str] | None = None
    ) -> list[cluster.Pod] | None:
        """Those that hold GPUs, and where `gated` is given also those that wait for a node behind no gate of ours; one
        that may be meant counts. None: not known."""
        seen = self._sights.pods()
        if isinstance(seen, Unseen):
            return None
        pods = seen.value if isinstance(seen, Known) else ()
        held = ((pod, whose) for pod, whose in pods if not pod.has_ended and (
            pod.node or (gated is not None and pod.uid not in gated)
        ))
        return [pod for pod, whose in held if of.covers(whose, payer=payer, vouched=vouched) is not False]

    async def _hold_pools(self, made: BudgetPlan, turn: Turn) -> None:
        """Also where none may be held: what was held before has its limits back."""
        edits = self._terms.pools
        if self._pools_clear and edits is PoolEdits.off:
            return
        try:
            seen = await turn.in_time(self._sights.node_pools())
        except errors.ClientError as problem:
            seen = Unseen(str(problem))
        if isinstance(seen, Unseen):
            self._pools_unseen.note("" if edits is PoolEdits.off else seen.why)
            return
        pools = seen.value if isinstance(seen, Known) else ()
        found = node_pools.plan(made.states, pools, edits)
        self._pools_clear = all(pool.record is None for pool in pools)
        self._pools_unseen.note("")
        self._pools_left.note("; ".join((*found.left, *await self._carry_out(found, turn))))

    async def _carry_out(self, found: node_pools.PoolPlan, turn: Turn) -> list[str]:
        """What was not done, a sentence each."""
        failed = list[str]()
        wanted: tuple[HoldPool | FreePool, ...] = (*found.frees, *found.holds)
        for each in wanted:
            name = f"NodePool {each.pool.name}"
            if not turn.may_act():
                break
            why = self._why_only_said(turn) if isinstance(each, HoldPool) else ""
            if why:
                failed.append(f"{name} would get no more than the GPUs that it has: {why}")
                continue
            try:
                await self._edit_pool(each, turn.now)
            except errors.ClientError as problem:
                failed.append(f"{name} {_say_failed(each)}: {problem}")
        return failed

    def _why_only_said(self, turn: Turn) -> str:
        if self._terms.pools is not PoolEdits.done:
            return "that needs --cost-enforcement true and --run-mode scale-down"
        return self._sights.frozen(turn.now)

    async def _edit_pool(self, wanted: HoldPool | FreePool, now: Instant) -> None:
        pool, what = wanted.pool, kube.NODE_POOLS
        if isinstance(wanted, HoldPool):
            await holding_pools.hold(self._hands.api, pool, wanted.gpus, wanted.budgets, now)
            by = " and ".join(wanted.budgets)
            reason, word = names.Event.POOL_HELD, "hold"
            note = f"it gets no more than the {units.many(wanted.gpus, 'GPU')} that it has, by its limits: budget {by}"
        else:
            note = f"it {await holding_pools.give_back(self._hands.api, pool)}: {wanted.because}"
            reason, word = names.Event.POOL_GIVEN_BACK, "give back"
        log.warning("NodePool %s: %s", pool.name, note, extra={"fields": {"audit": word, "node_pool": pool.name}})
        ref = cluster.Ref(what.group, what.version, what.kind, "", pool.name, pool.uid)
        await self._hands.announcer.announce_once(ref, reason, note, now, pool.version)

    # ---- account and tell --------------------------------------------------------------------------------------------

    async def _attribute(self, books: Input[BooksSeen], turn: Turn) -> None:
        seen = self._sights.attributions()
        for each in seen.value if isinstance(seen, Known) else ():
            due = self._attributed.get(each.uid, float("-inf")) + ATTRIBUTED_EVERY
            if turn.now >= due and turn.may_act():
                self._attributed[each.uid] = turn.now
                status = await self._show(each, books, turn.now)
                if status is not None:
                    await self._hands.statuses.write_attribution(each, status, turn.now)

    async def _show(self, of: CostAttribution, books: Input[BooksSeen], now: Instant) -> dict[str, Any] | None:
        """None: nothing is known now, and what was shown stays."""
        if of.invalid:
            return accounting.refuse(of, "Invalid", "; ".join(of.invalid), now)
        live = policies.find_live(of.scope, self._sights.namespaces())
        if isinstance(live, Unseen) or not isinstance(books, Known):
            return None
        where, meant = of.scope.filters(payer=False), live.value if isinstance(live, Known) else None
        if isinstance(live, Known):
            if not live.value:
                return accounting.refuse(of, "NobodyMeant", "its selector fits no namespace", now)
            on = cost.Dimension(cost.DimensionName.namespace)
            where = (*where, cost.CostFilter(on, frozenset(live.value)))
        try:
            found = await self._ask_attribution(accounting.ask(of, where, now))
            rows = await self._books.savings(int(now) - of.period, int(now))
        except errors.ClientError as problem:
            log.warning("CostAttribution %s cannot be shown: %s", of.name, problem)
            return None
        mine = self._find_pods(of.scope, payer=False)
        counts = [pod.gpu_count for pod in mine or ()]
        running = accounting.ScopePods(
            None if mine is None else len(mine), None if mine is None or None in counts else sum(filter(None, counts))
        )
        found = msgspec.structs.replace(found, saved=accounting.choose_savings(of, rows, meant))
        return accounting.make_status(of, found, running, now, missing=books.value.missing)

    async def _ask_attribution(self, asked: accounting.AttributionQuestions) -> accounting.AttributionAnswers:
        ask = self._books.sums
        return accounting.AttributionAnswers(
            groups=await ask(asked.groups), hours=await ask(asked.hours), days=await ask(asked.days),
            parts={field: await ask(query) for field, query in asked.parts.items()},
        )

    async def _track(self, made: BudgetPlan, turn: Turn) -> None:
        """Every few minutes, and at once where its level changes."""
        found = [one for state in made.states if (one := budgets.read(state, turn.now)) is not None]
        due = [
            one for one in found
            if (known := self._tracked.get(one.budget)) is None or known.status != one.status
            or one.at - known.at >= TRACKED_EVERY
        ]
        if not due or not turn.may_act():
            return
        try:
            await self._books.track(due)
        except errors.ClientError as problem:
            log.warning("how far budgets are used cannot be written down: %s", problem)
            return
        self._tracked |= {one.budget: one for one in due}

    def _gauge(self, made: BudgetPlan) -> None:
        known = [state for state in made.states if state.percent is not None]
        of = "gpu_autoscaler_budget_"
        percents = {(state.budget.name,): float(state.percent or 0) for state in known}
        self._metrics.replace(f"{of}percentage", percents)
        self._currency = next((state.currency for state in known), self._currency)
        amounts = {"spend": {state.budget.name: state.spent for state in known},
                   "projected": {state.budget.name: state.forecast.projected for state in known}}
        for name, by_budget in amounts.items():
            said = {(budget,): float(amount) for budget, amount in by_budget.items() if amount is not None}
            self._metrics.replace_money(f"{of}{name}", self._currency, said)
        self._metrics.replace(f"{of}enforcement_active", {
            (state.budget.name, str(state.budget.enforcement.mode)): float(state.is_enforced) for state in made.states
        })

    def _tell(self, made: BudgetPlan) -> None:
        for each in made.begun:
            log.warning("budget %s restricts new GPU pods from now on: %s", each.budget, each.because,
                        extra={"fields": {"audit": "restrict", "budget": each.budget, "mode": str(each.mode)}})
        for lifted in made.lifts:
            log.warning("budget %s restricts nobody any more: %s", lifted.budget, lifted.because,
                        extra={"fields": {"audit": "lift", "budget": lifted.budget}})


def _say_failed(wanted: HoldPool | FreePool) -> str:
    if isinstance(wanted, HoldPool):
        return "is not held yet"
    return "is still held (fallow cost lift BUDGET gives it back, with the rights of who asks)"


def _is_alive(record: AlertRecord, now: Instant) -> bool:
    is_over = record.state is budgets.AlertState.resolved and not record.is_due(float("inf"))
    return not is_over or now - record.period_start < _LONGEST or now - (record.resolved_at or now) < _LONGEST


def _is_spot(node: cluster.Node) -> bool:
    return node_facts.read(node).capacity_type is cost.CapacityType.spot
