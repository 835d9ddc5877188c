"""STATE_DIR/state.json: what is remembered of processes and pods, so that idle times survive a restart of the exporter.

In: what the histories export, the boot id, two clocks. Out: the same after a restart, or a sentence that says why not.
Invariant: what is given back is of this boot and no older than STATE_MAX_GAP by both clocks; a file that is in any way
not right is not used at all. The file is there whole or as it was before.
"""

import os
import pathlib
from typing import Any, Final, Literal

import msgspec

from fallow.clients import errors
from fallow.model import processes, units
from fallow.model.units import Instant, Seconds

NAME: Final = "state.json"
_MOST_BYTES: Final = 64 << 20  # 10,000 processes are 1.5 MB


class SavedState(msgspec.Struct, forbid_unknown_fields=True):
    """`monotonic` goes on over a restart, and ends with the boot. `tenancies` is for who made it to understand."""

    boot_id: str
    at: Instant
    monotonic: Seconds
    processes: list[processes.KeptProcess]
    tenancies: Any = None
    version: Literal[1] = 1


def save(directory: str, state: SavedState) -> None:
    """Raises Misconfigured if it cannot be written. Not synced: a file lost with the machine is of an earlier boot."""
    folder = pathlib.Path(directory)
    aside = folder / f".{NAME}.new"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(file, "wb") as opened:
            opened.write(msgspec.json.encode(state))
        aside.replace(folder / NAME)
    except OSError as failure:
        raise errors.Misconfigured(f"STATE_DIR: {folder / NAME} cannot be written ({failure.strerror})") from failure


def load(
    directory: str, boot_id: str, max_gap: Seconds, now: Instant, monotonic: Seconds
) -> tuple[SavedState | None, str]:
    """What was saved if it may be used, else None and why; no file is no reason to say anything."""
    path = pathlib.Path(directory) / NAME
    try:
        with path.open("rb") as opened:
            state = msgspec.json.decode(opened.read(_MOST_BYTES), type=SavedState)
    except FileNotFoundError:
        return None, ""
    except OSError as failure:
        return None, f"{path} cannot be read ({failure.strerror}); idle times start anew"
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as failure:
        return None, f"{path} is damaged ({failure}); idle times start anew"
    because = _find_objection(state, boot_id, max_gap, now, monotonic)
    return (None, f"{path} is not used: {because}; idle times start anew") if because else (state, "")


def _find_objection(state: SavedState, boot_id: str, max_gap: Seconds, now: Instant, monotonic: Seconds) -> str:
    if not boot_id or state.boot_id != boot_id:
        return "it is of another boot of this machine"
    gaps = now - state.at, monotonic - state.monotonic
    if min(gaps) < 0:
        return "it is from the future, so one of the clocks was set back"
    return f"it is {units.humane(max(gaps))} old" if max(gaps) > max_gap else ""
