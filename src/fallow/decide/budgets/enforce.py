"""Does a budget restrict new pods, and why, or why not?

In: a budget with what is known of it. Out: one word of a closed set and a sentence.
Invariant: it restricts only what it surely may: the amount was spent for all of the grace period, in a scope that is
known and that no tenant made its own, by books that are complete and of now, where the operator allowed it and nobody
overrides it.
"""

from decimal import Decimal

from fallow.model import units
from fallow.model.budgets import BooksSeen, OverrideHeld, PeriodBounds, WhyEnforced
from fallow.model.policies.budget import FULL, STALE_AFTER, CostBudget, EnforcementMode
from fallow.model.units import Instant, Seconds


def find_override(of: CostBudget, longest: Seconds, now: Instant) -> OverrideHeld | None:
    """As it is asked for, but no longer than `longest` from when we first saw it; None: nobody asks."""
    wish, seen = of.wish, of.standing.override
    if wish is None:
        return None
    is_same = seen is not None and seen.asked == wish.asked
    since = seen.since if seen is not None and is_same else now
    return OverrideHeld(
        asked=wish.asked, since=since, until=min(wish.until, since + longest), by=wish.by, reason=wish.reason
    )


def find_exceeded(of: CostBudget, percent: Decimal, period: PeriodBounds, now: Instant) -> Instant | None:
    """Since when, without a break; None: it is not."""
    if percent < FULL:
        return None
    since = of.standing.exceeded_since
    return since if since is not None and period.start <= since <= now else now


def judge(
    of: CostBudget, *, since: Instant | None, books: BooksSeen, override: OverrideHeld | None, is_allowed: bool,
    now: Instant, is_claimed: bool = False,
) -> tuple[WhyEnforced, str]:
    """`since`: when the amount was spent; `is_allowed`: by the operator; `is_claimed`: some of the spend is only said
    by pods to be of this scope. What has no price is not in the way: what has
    one exceeds the amount already, and a GPU without a price would be a way past every budget."""
    rule = of.enforcement
    if rule.mode is EnforcementMode.alert:
        return WhyEnforced.AlertOnly, "its enforcement.mode is alert: it only tells"
    if since is None and is_claimed:
        return WhyEnforced.OnlyClaimed, (
            "its amount is not spent by namespaces that say they are meant; what only pods say of themselves restricts"
            " nobody: label the namespaces, or name them in the scope"
        )
    if since is None:
        return WhyEnforced.WithinBudget, "less than its amount is spent"
    if (left := rule.grace - (now - since)) > 0:
        return WhyEnforced.GracePeriod, f"exceeded since {units.rfc3339(since)}: {units.spoken(left)} of grace are left"
    if of.invalid:
        return WhyEnforced.NotReady, f"it is not valid, so that it restricts nobody: {of.invalid[0]}"
    if (age := now - books.until) > STALE_AFTER:
        return WhyEnforced.LedgerStale, f"the books end {units.spoken(age)} ago: nobody is restricted by old figures"
    if -age > STALE_AFTER:
        return WhyEnforced.LedgerStale, f"the books end {units.spoken(-age)} ahead of our clock: one of them is wrong"
    if books.missing:
        return WhyEnforced.DataIncomplete, f"the figures are not complete: {books.missing[0]}"
    if override is not None and override.holds(now):
        because = f"{override.by or 'somebody'} lets it be exceeded until {units.rfc3339(override.until)}"
        return WhyEnforced.Overridden, f"{because}: {override.reason}" if override.reason else because
    if not is_allowed:
        return WhyEnforced.NotEnabled, f"it would {rule.mode}; that needs --cost-enforcement true"
    return WhyEnforced.Enforced, f"exceeded since {units.rfc3339(since)}: {rule.mode}"
