"""What helps, for somebody at a keyboard, where the API server does not answer, does not know us or does not let us."""

import contextlib
from collections.abc import Iterator

from fallow.clients import errors

# For who looks at a whole cluster, and for who has one thing to do.
OF_A_LOOK = (
    "who may read single namespaces only names them (--watch-namespaces ml); deploy/base/20-reader.yaml has the rights "
    "to read all"
)
_OF_A_VERB = "ask whoever runs the cluster for that right; `kubectl auth can-i --list -n NAMESPACE` shows yours"


@contextlib.contextmanager
def say_what_to_do(rights: str = _OF_A_VERB) -> Iterator[None]:
    """`rights`: what helps who may not."""
    try:
        yield
    except errors.Unreachable as problem:
        next_step = "is the cluster up, and is it the one you mean (--context, --kubeconfig)?"
        raise errors.Unreachable(f"{problem}; {next_step}", retry_after=problem.retry_after) from None
    except errors.Unauthorized as problem:
        next_step = "log in again, or renew the token or certificate in the kubeconfig"
        raise errors.Unauthorized(problem.status, f"the API server does not know us ({problem}): {next_step}") from None
    except errors.Forbidden as problem:
        raise errors.Forbidden(problem.status, f"{problem}. What helps: {rights}", causes=problem.causes) from None
