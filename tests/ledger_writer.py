"""A writer that is killed: `python -m tests.ledger_writer KIND WHERE SEED EPOCH`. It says how far it came.

It writes a whole history from its first look on, as one does that remembers nothing, and rolls up as it goes.
"""

from __future__ import annotations

import asyncio
import pathlib
import sys

from fallow.account import ledger, ledger_postgres, spool
from fallow.model.cost import HOUR
from fallow.model.secret import Secret
from tests import ledgers

STEPS = (45, 600, 1, 1234, 899, 3600, 61, 2222, 7, 1800, 500, 3599, 60, 60, 1111, 4000)
BEGIN = ledgers.MIDNIGHT - 3 * HOUR


def history_of(seed: int) -> ledgers.History:
    return ledgers.make_history(seed, STEPS, BEGIN)


def make(kind: str, where: str, waiting: str = "") -> ledger.Ledger:
    kept = spool.Spool(pathlib.Path(waiting)) if waiting else None
    if kind == "file":
        return ledger.on_file(pathlib.Path(where), spool=kept)
    return ledger_postgres.on_postgres(Secret(where), spool=kept)


async def write_all(books: ledger.Ledger, seed: int, epoch: int, say: bool = False) -> None:
    for number, batch in enumerate(history_of(seed).batches):
        await books.write(batch, epoch)
        await books.roll_up(batch.at - 2 * HOUR, epoch)
        if say:
            print(number, flush=True)


async def main(kind: str, where: str, seed: int, epoch: int) -> None:
    books = make(kind, where)
    await books.open()
    await books.claim(epoch)
    print("open", flush=True)
    await write_all(books, seed, epoch, say=True)
    await books.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
