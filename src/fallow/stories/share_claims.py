"""ResourceClaimTemplates by which pods ask for parts of GPUs (DRA): every half minute, as enforcing policies want them.

    look    policies, namespaces, nodes with their devices, classes and templates, as the cluster has them
    plan    which templates are missing, which nobody wants any more, which may go
    act     one write after the other; before one is removed the server is asked who names it

What is not seen changes nothing. A process that ends between two writes leaves what the next one plans from.
"""

import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

import msgspec

from fallow.act.claim_templates import ClaimHands
from fallow.clients import errors
from fallow.decide import sharing
from fallow.decide.sharing import ClaimSights, PartIndex
from fallow.model import cluster
from fallow.model.claims import ClaimGround, ClaimTemplate, ClaimWrite, MakeTemplate, RemoveTemplate
from fallow.model.patterns import Pattern
from fallow.model.policies.sharing import SharingPolicy
from fallow.model.seen import Input, Known, Register, Unseen, sure
from fallow.model.units import Instant, Seconds
from fallow.stories.turn import Complaint, Turn, stumbling

log = logging.getLogger("fallow")

INTERVAL: Final[Seconds] = 30.0
_MOST_WRITES: Final = 200  # of one turn: a policy that means a thousand namespaces is carried out in some of them


class TemplateSights(msgspec.Struct, frozen=True, kw_only=True):
    """`policies` by rank. `named`: templates that pods of a namespace name, asked of the server itself; may raise."""

    policies: Callable[[], Input[tuple[SharingPolicy, ...]]]
    namespaces: Callable[[], Register[cluster.Namespace]]
    nodes: Callable[[], Input[PartIndex]]
    ground: Callable[[], Input[ClaimGround]]
    named: Callable[[str], Coroutine[Any, Any, frozenset[str]]]


class ClaimsCycle(msgspec.Struct, frozen=True, kw_only=True):
    writes: tuple[ClaimWrite, ...] = ()
    failure: str = ""


class ShareClaimsStory:
    def __init__(
        self, *, sights: TemplateSights, hands: ClaimHands, exempt: Pattern,
        held: Callable[[Instant], str] = lambda _: "",
    ) -> None:
        """`held`: why nothing may be written now; "": it may."""
        self._sights, self._hands, self._exempt, self._held = sights, hands, exempt, held
        self._complaint = Complaint("templates of claims are not kept: %s")
        self._refused: set[tuple[str, str]] = set()  # in the last turn: tried after all others in the next

    async def tick(self, turn: Turn) -> ClaimsCycle:
        made = await self.look(turn)
        if made.failure:
            return made
        self._complaint.note("" if self._held(turn.now) else await self._write(made.writes, turn))
        return made

    async def look(self, turn: Turn) -> ClaimsCycle:
        policies, nodes, ground = self._sights.policies(), self._sights.nodes(), self._sights.ground()
        namespaces = self._sights.namespaces()
        for seen in (policies, nodes, ground, namespaces.rest):
            if isinstance(seen, Unseen):
                return self.fail(seen.why, turn)
        with stumbling():
            sights = ClaimSights(
                policies=sure(policies), namespaces=namespaces.known, exempt=self._exempt,
                nodes=nodes.value if isinstance(nodes, Known) else PartIndex(()),
                ground=ground.value if isinstance(ground, Known) else ClaimGround(),
            )
            return ClaimsCycle(writes=sharing.plan_claims(sights, turn.now))

    def fail(self, because: str, turn: Turn) -> ClaimsCycle:
        self._complaint.note(because)
        return ClaimsCycle(failure=because)

    async def _write(self, writes: tuple[ClaimWrite, ...], turn: Turn) -> str:
        """The first thing that went wrong. A template that pods name stays."""
        problem, done, named = "", 0, dict[str, frozenset[str]]()
        late, self._refused = self._refused, set()
        for write in sorted(writes, key=lambda each: _name(each) in late):
            if not turn.may_act() or done == _MOST_WRITES:
                break
            try:
                if isinstance(write, RemoveTemplate) and await self._is_named(write.template, named):
                    continue
                refused = await self._do(write)
            except errors.ClientError as unseen:
                refused = str(unseen)
            problem, done = problem or refused, done + 1
            if refused:
                self._refused.add(_name(write))
        return problem

    async def _is_named(self, template: ClaimTemplate, named: dict[str, frozenset[str]]) -> bool:
        """`named`: by namespace, what was asked for in this turn."""
        if template.namespace not in named:
            named[template.namespace] = await self._sights.named(template.namespace)
        return template.name in named[template.namespace]

    async def _do(self, write: ClaimWrite) -> str:
        refused = await self._hands.do(write)
        if not refused:
            log.info("ResourceClaimTemplate %s", _say(write))
        return refused


def _name(write: ClaimWrite) -> tuple[str, str]:
    made = write if isinstance(write, MakeTemplate) else write.template
    return made.namespace, made.name


def _say(write: ClaimWrite) -> str:
    if isinstance(write, MakeTemplate):
        return f"{write.namespace}/{write.name} is there"
    called = f"{write.template.namespace}/{write.template.name}"
    if isinstance(write, RemoveTemplate):
        return f"{called} is removed: no policy wants it, and no pod uses it"
    return f"{called} stays" if write.since is None else f"{called} goes once nobody uses it: no policy wants it so"
