"""What somebody may do, as an answer: so that a page shows what it can do before anybody presses."""

from fallow.doors import answers


class May(answers.Shape, frozen=True, kw_only=True):
    """`missing`: the right that lacks, as one asks for it; `command`: what does the same at a keyboard."""

    allowed: bool
    missing: str | None
    command: str


class MayAct(answers.Shape, frozen=True, kw_only=True):
    """On one workload."""

    keep: May
    pause: May
    resume: May


class MeTold(answers.Shape, frozen=True, kw_only=True):
    """Who asks, and the token that writes of this browser must carry."""

    user: str | None
    mode: str
    may_freeze: May
    csrf: str
