"""Fields given up when a pause is over, lest the owner's next server-side apply conflict with us.

In: an object as an answer showed it, and the pointers that a pause or its end wrote. Failing harms nothing: it is said.
"""

import contextlib
import logging
from collections.abc import Collection, Mapping
from typing import Any

from fallow import names
from fallow.act.sending import PatchWriter
from fallow.act.workloads import bodies
from fallow.clients import errors
from fallow.model import cluster

log = logging.getLogger(__name__)

_TRIES = 3


async def release(writer: PatchWriter, ref: cluster.Ref, answer: Mapping[str, Any], written: Collection[str]) -> None:
    because = "it keeps changing"
    for _ in range(_TRIES):
        operations = bodies.release_operations(answer, written)
        if not operations or writer.is_dry:
            return
        try:
            await writer.operate(ref, operations, names.RESUME_FIELD_MANAGER)
            return
        except (errors.Conflict, errors.Invalid):  # it changed meanwhile, and the test of its entries failed
            with contextlib.suppress(errors.ClientError):
                answer = await writer.read(ref)
        except errors.ClientError as problem:
            because = str(problem)
            break
    log.warning("we still own fields of %s, and a server-side apply may conflict: %s", ref, because)
