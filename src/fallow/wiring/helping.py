"""What helps, for somebody at a keyboard, where the API server does not answer or does not know us."""

import contextlib
from collections.abc import Iterator

from fallow.clients import errors


@contextlib.contextmanager
def say_what_to_do() -> Iterator[None]:
    try:
        yield
    except errors.Unreachable as problem:
        next_step = "is the cluster up, and is it the one you mean (--context, --kubeconfig)?"
        raise errors.Unreachable(f"{problem}; {next_step}", retry_after=problem.retry_after) from None
    except errors.Unauthorized as problem:
        next_step = "log in again, or renew the token or certificate in the kubeconfig"
        raise errors.Unauthorized(problem.status, f"the API server does not know us ({problem}): {next_step}") from None
