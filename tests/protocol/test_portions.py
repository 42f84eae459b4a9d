"""Long reads are made in portions, and others are served between any two of them."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from schedulemesh.protocol import portions as turns_module
from schedulemesh.protocol.portions import PORTION, PortionTurns


def test_between_two_portions_of_any_reads_others_are_served():
    portions_served, others_served = [], 0

    async def other(done):
        nonlocal others_served
        while not done.is_set():
            others_served += 1
            await asyncio.sleep(0)

    async def several_reads():
        turns, done = PortionTurns(), asyncio.Event()
        serving = asyncio.ensure_future(other(done))
        items = range(4 * PORTION + 1)
        reads = (
            turns.each(
                items, lambda part, read=read: portions_served.append((read, *part, others_served))
            )
            for read in "abc"
        )
        await asyncio.gather(*reads)
        done.set()
        await serving

    asyncio.run(several_reads())
    assert len(portions_served) == 3 * 5
    for read in "abc":
        items = [item for name, *part, _ in portions_served if name == read for item in part]
        assert items == list(range(4 * PORTION + 1))
    moments = [moment for *_, moment in portions_served]
    assert all(earlier < later for earlier, later in itertools.pairwise(moments))


def test_while_a_read_is_under_way_others_see_that():
    async def reads():
        turns, seen = PortionTurns(), []
        assert not turns.are_taken
        reading = asyncio.ensure_future(turns.each(range(3 * PORTION), lambda _: None))
        await asyncio.sleep(0)
        while not reading.done():
            seen.append(turns.are_taken)
            await asyncio.sleep(0)
        assert not turns.are_taken
        return seen

    seen = asyncio.run(reads())
    assert all(seen[:-1])
    assert len(seen) > 3


def test_a_read_that_fails_lets_others_continue():
    async def reads():
        turns = PortionTurns()
        with pytest.raises(ZeroDivisionError):
            await turns.each([0], lambda portion: 1 // portion[0])
        seen = []
        await turns.each([1], seen.extend)
        return seen

    assert asyncio.run(reads()) == [1]


def read_beside(pending):
    """How far a long read has come, at each of its portions, and whether what was pending was done."""
    seen = []

    async def reads():
        commit = asyncio.get_running_loop().create_future()
        finishing = asyncio.ensure_future(pending(commit))
        turns = PortionTurns(lambda: None if commit.done() else commit)
        await turns.each(range(3 * PORTION), lambda _: seen.append(commit.done()))
        finishing.cancel()

    asyncio.run(reads())
    return seen


async def later(commit):
    for _ in range(100):
        await asyncio.sleep(0)
    commit.set_result(None)


async def failed(commit):
    await asyncio.sleep(0)
    commit.set_exception(ValueError("no space left"))
    commit.exception()


async def never(commit):
    await commit


def test_a_commit_that_is_under_way_is_made_before_the_next_portion(monkeypatch):
    monkeypatch.setattr(turns_module, "MOST_PATIENCE", 1e9)
    assert read_beside(later) == [False, True, True]
    assert read_beside(failed) == [False, True, True]


def test_a_read_goes_on_where_something_is_always_pending(monkeypatch):
    monkeypatch.setattr(turns_module, "MOST_PATIENCE", 1e-9)
    assert read_beside(never) == [False, False, False]
