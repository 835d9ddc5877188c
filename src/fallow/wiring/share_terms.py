"""By which terms pods share GPUs: as the settings of the admission webhook say, or would.

In: WebhookSettings, or our namespace. Out: ShareTerms. The webhook loads this, so it loads nothing that others need.
"""

import re

from fallow import names
from fallow.decide import sharing
from fallow.model import classes
from fallow.model.patterns import Pattern
from fallow.settings import cost_enforcement, readers


def of_options(options: cost_enforcement.WebhookSettings) -> sharing.ShareTerms:
    said = options.sharing
    return sharing.ShareTerms(
        exempt=options.exempt, rewrites=said.rewrites, by_claims=said.by_claims, schedulers=said.schedulers,
        patterns=classes.Patterns(said.patterns), without=said.without,
    )


def make_usual(namespace: str, *, by_claims: bool = False) -> sharing.ShareTerms:
    """As the webhook has them where its flags are not given, but that it may change pods; `namespace`: ours."""
    return sharing.ShareTerms(
        exempt=find_exempt(namespace), rewrites=True, by_claims=by_claims,
        schedulers=frozenset({names.DEFAULT_SCHEDULER}), patterns=classes.Patterns(),
    )


def find_exempt(namespace: str) -> Pattern:
    """`namespace`: ours."""
    return readers.regex(f"(?:{cost_enforcement.EXEMPT})|{re.escape(namespace)}")
