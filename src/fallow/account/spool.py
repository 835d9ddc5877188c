"""Batches that wait in a file while the database is away.

In: batches, each appended whole and synced. Out: all of them again, in order, each with a name by which the ledger
knows what it has already. A record is its length, a checksum and the batch.
Invariant: a record is replayed whole or not at all. One that is altered is left out and those behind it are not, a torn
tail is cut off, and both are said. Where there is no room, or a day of batches is waiting, the oldest are kept and the
new one is refused: whoever made it has it still, and gives it again with what follows.
"""

import hashlib
import os
import secrets
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from fallow.model.cost import DAY, CostBatch, Second

LONGEST: Final[Second] = DAY
_MAGIC: Final = b"fallow-spool-1\n"
_NAME_BYTES: Final = 8
_HEADER: Final = len(_MAGIC) + _NAME_BYTES
_FRAME: Final = struct.Struct(">I16s")
_DECODER: Final = msgspec.msgpack.Decoder(CostBatch)
_MOST: Final = 256 * 2**20  # bytes of one record: a length beyond it is no length


class SpoolFull(Exception):
    """It cannot take another batch; the message says why."""


class Spool:
    """One file. Used by one thread at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._name = ""  # of this file, as long as it has records
        self._first_at: Second | None = None  # when the oldest record was made
        self._end = 0  # of the last whole record
        self.count = 0

    def open(self) -> str:
        """What had to be cut off, in a sentence; "" = nothing. Raises OSError."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if not self._path.exists() or self._path.stat().st_size == 0:
            self._reset()
            return ""
        said = self._path.read_bytes()
        self._reset()
        if not said.startswith(_MAGIC) or len(said) < _HEADER:
            if not _MAGIC.startswith(said[: len(_MAGIC)]):
                raise OSError(f"{self._path} is no spool of ours")
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

    def append(self, batch: CostBatch) -> None:
        """Raises SpoolFull, and then the file is as it was."""
        if self._first_at is not None and batch.at > self._first_at + LONGEST:
            raise SpoolFull(f"{self._path} has batches of {LONGEST // 3600} hours and takes no more")
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

    def _note(self, batch: CostBatch, end: int) -> None:
        self._end, self.count = end, self.count + 1
        if self._first_at is None and batch.at:
            self._first_at = batch.at

    def read(self) -> list[tuple[str, CostBatch]]:
        """With its name each, the oldest first."""
        if not self.count:
            return []
        said = self._path.read_bytes()[: self._end]
        records = enumerate(_read(said), 1)  # an altered one keeps its number, or the next would be taken for it
        return [(f"{self._name}:{number}", batch) for number, (batch, _) in records if batch is not None]

    def clear(self) -> None:
        """All of it is in the ledger."""
        os.truncate(self._path, 0)
        self._reset()

    def _reset(self) -> None:
        self._name, self._first_at, self._end, self.count = "", None, 0, 0


def _check(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()


def _read(said: bytes) -> Iterator[tuple[CostBatch | None, int]]:
    """Records, None for one that is altered, and where each ends; up to the first that is torn."""
    at = _HEADER
    while at + _FRAME.size <= len(said):
        length, check = _FRAME.unpack_from(said, at)
        content = said[at + _FRAME.size : at + _FRAME.size + length]
        if length > _MOST or len(content) < length:
            return
        at += _FRAME.size + length
        yield (_decode(content) if _check(content) == check else None), at


def _decode(content: bytes) -> CostBatch | None:
    try:
        return _DECODER.decode(content)
    except msgspec.DecodeError:
        return None
