"""A writer that is killed with signal 9, anywhere, and begins again: the ledger is as if nothing had happened."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys

import pytest
from tests import ROOT, ledger_writer

from fallow.model import cost
from fallow.model.cost import CostQuery, CostStep

SEED = 26


async def contents(books):
    history = ledger_writer.history_of(SEED)
    begin, end = history.begin - 100, history.end + 100
    dimensions = tuple(map(cost.read_dimension, ("namespace", "team", "node", "pod")))
    return (
        await books.read_intervals(begin, end), await books.read_open(), (await books.read_meta()).rolled_until,
        await books.sums(CostQuery(begin=begin, end=end, by=dimensions[:3], step=CostStep.hour)),
        await books.sums(CostQuery(begin=begin, end=end, by=dimensions)), await books.total_since_start(),
    )


def live_until_killed(kind, where, epoch, chance):
    """Some lines, then some microseconds; a kill may come too late, and then it was a life to its end."""
    command = [sys.executable, "-m", "tests.ledger_writer", kind, where, str(SEED), str(epoch)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as child:
        for _ in range(chance.randrange(1, len(ledger_writer.STEPS) - 2)):
            assert child.stdout.readline()
        try:
            child.wait(timeout=chance.random() * 0.02)
        except subprocess.TimeoutExpired:
            child.kill()
        return child.wait()


async def check_killed_writers(kind, where, other_place):
    chance = random.Random(5)
    codes = [await asyncio.to_thread(live_until_killed, kind, where, epoch, chance) for epoch in range(1, 7)]
    assert codes.count(-9) >= 4
    books, other = ledger_writer.make(kind, where), other_place.ledger()
    for one in (books, other):
        await one.open()
        await ledger_writer.write_all(one, SEED, 7)
    assert await contents(books) == await contents(other)
    assert (await books.read_intervals(0, 2**40 - 1))[:] == ledger_writer.history_of(SEED).truth
    for one in (books, other):
        await one.close()


@pytest.mark.accepts("cost", 5)
async def test_a_writer_killed_anywhere_leaves_the_same_ledger(new_place):
    await check_killed_writers("file", str(new_place().path), new_place())
