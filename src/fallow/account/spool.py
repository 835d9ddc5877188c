"""Batches that wait in a file while the database is away.

In: batches with the epoch of who made them, each appended whole and synced. Out: all of them again, in order, each with
a name by which the ledger knows what it has already. A record is its length, a checksum and the batch.
Invariant: a record is replayed whole or not at all. One that is altered is left out and those behind it are not, a torn
tail is cut off, and both are said, also where the file is hurt while we use it: `lost` counts what is gone. Where there
is no room, or a day of batches is waiting, the oldest are kept and the new one is refused: whoever made it has it
still, and gives it again with what follows.
"""

import hashlib
import logging
import os
import secrets
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from fallow.model.cost import DAY, CostBatch, Second

log = logging.getLogger(__name__)

LONGEST: Final[Second] = DAY
_MAGIC: Final = b"fallow-spool-1\n"
_NAME_BYTES: Final = 8
_HEADER: Final = len(_MAGIC) + _NAME_BYTES
_FRAME: Final = struct.Struct(">I16s")
_MOST: Final = 256 * 2**20  # bytes of one record: a length beyond it is no length
_SECOND_BYTE: Final = b"\xa2at"  # so goes on every batch: how the next is found behind one whose length is hurt


class WaitingBatch(CostBatch, frozen=True, kw_only=True):
    """`epoch`: of who made it; None = it was written before this was kept."""

    epoch: int | None = None


_DECODER: Final = msgspec.msgpack.Decoder(WaitingBatch)


class SpoolFull(Exception):
    """It cannot take another batch; the message says why."""


class Spool:
    """One file. Used by one thread at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._name = ""  # of this file, as long as it has records
        self._first_at: Second | None = None  # when the oldest record was made
        self._end = 0  # of the last whole record
        self._oldest: int | None = None  # the least epoch of a record
        self.count = 0
        self.lost = 0  # of those that it took, since it was empty

    @property
    def waits_for(self) -> tuple[str, int | None]:
        """The name of this file, and the least epoch that is in it; "" = it is empty."""
        return self._name, self._oldest

    def open(self, *, is_ours: bool = False) -> str:
        """What had to be cut off or set aside, in a sentence; "" = nothing. Raises OSError and SpoolFull. `is_ours`: we
        have written it, whatever it looks like now."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if not self._path.exists() or self._path.stat().st_size == 0:
            self._reset()
            return ""
        said = self._path.read_bytes()
        self._reset()
        if not said.startswith(_MAGIC) or len(said) < _HEADER:
            if not _MAGIC.startswith(said[: len(_MAGIC)]):
                return self._begin_anew(said, is_ours)
            self.clear()
            return f"{self._path} was torn in its first bytes; no batch was in it"
        self._name, self._end = said[len(_MAGIC) : _HEADER].hex(), _HEADER
        left_out = self._note_all(said)
        altered = f"{self._path}: {left_out} batches within it are altered and are left out" if left_out else ""
        if self._end < len(said):
            os.truncate(self._path, self._end)
            cut = f"{self._path}: the last {len(said) - self._end} bytes are torn or altered and were cut off"
            return "; ".join(filter(None, (altered, cut)))
        return altered

    def _begin_anew(self, said: bytes, is_ours: bool) -> str:
        """Of a file whose first bytes are hurt: what a power cut leaves of one, or one with whole batches behind."""
        whole = [batch for batch, _ in _read(said) if batch is not None]
        if not whole and said.strip(b"\0") and not is_ours:
            raise OSError(f"{self._path} is no spool of ours")
        aside = self._path.with_name(f"{self._path.name}.unreadable")
        self._path.replace(aside)
        for batch in whole:
            self._put(batch)
        kept = f"{len(whole)} batches of it are whole and kept"
        return f"{self._path} cannot be read and was set aside as {aside}; {kept}"

    def _note_all(self, said: bytes) -> int:
        """How many are altered, with a whole one behind them."""
        left_out = altered = 0
        for batch, end in _read(said):
            if batch is None:
                altered += 1
            else:
                left_out, altered = left_out + altered, 0
                self._note(batch, end)
        return left_out

    def append(self, batch: CostBatch, epoch: int | None = None) -> None:
        """Raises SpoolFull, and then the file is as it was."""
        try:
            self._look_again()
        except OSError as problem:
            raise SpoolFull(f"{self._path} cannot be used: {problem}") from problem
        if self._first_at is not None and batch.at > self._first_at + LONGEST:
            raise SpoolFull(f"{self._path} has batches of {LONGEST // 3600} hours and takes no more")
        self._put(WaitingBatch(**_fields(batch), epoch=epoch))

    def set_aside(self, batch: CostBatch, epoch: int) -> Path:
        """One that no database takes, beside those that wait. Raises SpoolFull."""
        aside = Spool(self._path.with_name(f"{self._path.name}.refused"))
        try:
            aside.open()
        except OSError as problem:
            raise SpoolFull(f"{aside._path} cannot be used: {problem}") from problem
        aside.append(batch, epoch)
        return aside._path

    def _look_again(self) -> None:
        """Whether the file is as we left it: who deletes or cuts it while we run takes batches away, and we say so."""
        size = self._path.stat().st_size if self._path.exists() else 0
        if size == self._end:
            return
        count, lost = self.count, self.lost
        cut = self.open(is_ours=True)
        self.lost = lost + max(0, count - self.count)
        gone = f"{self.lost - lost} of {count} batches are gone"
        log.error("%s is not as we left it: %s", self._path, "; ".join(filter(None, (gone, cut))))

    def _put(self, batch: WaitingBatch) -> None:
        content = msgspec.msgpack.encode(batch)
        record = _FRAME.pack(len(content), _check(content)) + content
        name = self._name or secrets.token_hex(_NAME_BYTES)
        begin = b"" if self._end else _MAGIC + bytes.fromhex(name)
        try:
            self._append(begin + record)
        except OSError as problem:
            raise SpoolFull(f"{self._path} cannot be written: {problem.strerror or problem}") from problem
        self._name = name
        self._note(batch, self._end + len(begin) + len(record))

    def _append(self, said: bytes) -> None:
        try:
            with self._path.open("ab") as file:
                file.write(said)
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            if self._path.exists():  # half a record is worth nothing, and would hide the next
                os.truncate(self._path, self._end)
            raise

    def _note(self, batch: WaitingBatch, end: int) -> None:
        self._end, self.count = end, self.count + 1
        if self._first_at is None and batch.at:
            self._first_at = batch.at
        if batch.epoch is not None:
            self._oldest = batch.epoch if self._oldest is None else min(self._oldest, batch.epoch)

    def read(self) -> list[tuple[str, WaitingBatch]]:
        """With its name each, the oldest first. Raises OSError."""
        if not self.count:
            return []
        self._look_again()
        found = list(_read(self._path.read_bytes()[: self._end])) if self.count else []
        # Named by where it ends: one that is altered does not change the names of those behind it.
        whole = [(f"{self._name}:{end}", batch) for batch, end in found if batch is not None]
        if missing := self.count - len(whole):
            self.count, self.lost = len(whole), self.lost + missing
            log.error("%s: %d batches that waited are altered and are left out", self._path, missing)
        return whole

    def clear(self) -> None:
        """All of it is in the ledger."""
        if self._path.exists():
            os.truncate(self._path, 0)
        self._reset()

    def _reset(self) -> None:
        self._name, self._first_at, self._oldest, self._end, self.count, self.lost = "", None, None, 0, 0, 0


def _fields(batch: CostBatch) -> dict[str, Any]:
    return {name: getattr(batch, name) for name in CostBatch.__struct_fields__}


def _check(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()


def _read(said: bytes) -> Iterator[tuple[WaitingBatch | None, int]]:
    """Records, None for one that is altered, and where each ends; up to the last that is whole or has its length."""
    at = _HEADER
    while at + _FRAME.size <= len(said):
        found, end = _read_one(said, at)
        if found is None:
            end = _find_next(said, at) or end
        if not end:
            return
        yield found, end
        at = end


def _read_one(said: bytes, at: int) -> tuple[WaitingBatch | None, int]:
    """The record that begins there, None = it is altered, and where it ends; 0 = it is torn, or its length is hurt."""
    length, check = _FRAME.unpack_from(said, at)
    content = said[at + _FRAME.size : at + _FRAME.size + length]
    if length > _MOST or len(content) < length:
        return None, 0
    return (_decode(content) if _check(content) == check else None), at + _FRAME.size + length


def _find_next(said: bytes, at: int) -> int:
    """Where the next whole record begins, behind the one that begins there; 0 = there is none."""
    mark = at + _FRAME.size + 1
    while (mark := said.find(_SECOND_BYTE, mark + 1)) >= 0:
        begin = mark - 1 - _FRAME.size
        if _read_one(said, begin)[0] is not None:
            return begin
    return 0


def _decode(content: bytes) -> WaitingBatch | None:
    try:
        return _DECODER.decode(content)
    except msgspec.DecodeError:
        return None
