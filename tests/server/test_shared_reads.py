"""Equal reads at the same time are one request, and nobody gets an answer from before they asked."""

from __future__ import annotations

import asyncio

import pytest

from schedulemesh.api.agents import ListAgents
from schedulemesh.api.pools import ListPools
from schedulemesh.errors import SchedulerUnavailableError
from schedulemesh.protocol.answers import Listed, encode_answer
from schedulemesh.server.shared_reads import SharedReads


class HeldGateway:
    """Answers when it is told to, with the number of the request."""

    def __init__(self):
        self.held = []

    async def ask_packed(self, request, caller=None):
        answer = asyncio.get_running_loop().create_future()
        self.held.append(answer)
        return await answer

    async def answer(self, number, error=None):
        if error is not None:
            self.held[number].set_exception(error)
        else:
            self.held[number].set_result(encode_answer(Listed(rows=[{"n": number}])))
        for _ in range(5):
            await asyncio.sleep(0)


async def asking(reads, request=None):
    task = asyncio.ensure_future(reads.ask(request or ListPools()))
    for _ in range(3):
        await asyncio.sleep(0)
    return task


def test_whoever_comes_during_a_read_shares_the_next_one():
    async def story():
        gateway = HeldGateway()
        reads = SharedReads(gateway)
        first = await asking(reads)
        later = [await asking(reads) for _ in range(50)]
        assert len(gateway.held) == 1
        await gateway.answer(0)
        assert (await first).rows == [{"n": 0}]
        assert len(gateway.held) == 2
        last = await asking(reads)
        await gateway.answer(1)
        assert {(await task).rows[0]["n"] for task in later} == {1}
        assert len(gateway.held) == 3
        await gateway.answer(2)
        assert (await last).rows == [{"n": 2}]
        assert reads._readings == {}

    asyncio.run(story())


def test_other_reads_are_requests_of_their_own():
    async def story():
        gateway = HeldGateway()
        reads = SharedReads(gateway)
        pools, agents = await asking(reads), await asking(reads, ListAgents())
        assert len(gateway.held) == 2
        await gateway.answer(1)
        await gateway.answer(0)
        assert ((await pools).rows, (await agents).rows) == ([{"n": 0}], [{"n": 1}])

    asyncio.run(story())


def test_a_failed_read_concerns_those_who_share_it_only():
    async def story():
        gateway = HeldGateway()
        reads = SharedReads(gateway)
        first, second = await asking(reads), await asking(reads)
        await gateway.answer(0, SchedulerUnavailableError("gone"))
        with pytest.raises(SchedulerUnavailableError):
            await first
        await gateway.answer(1)
        assert (await second).rows == [{"n": 1}]

    asyncio.run(story())


def test_a_client_that_leaves_cancels_nothing_that_others_wait_for():
    async def story():
        gateway = HeldGateway()
        reads = SharedReads(gateway)
        first = await asking(reads)
        second, third = await asking(reads), await asking(reads)
        second.cancel()
        await gateway.answer(0)
        await gateway.answer(1)
        assert (await first).rows == [{"n": 0}]
        assert (await third).rows == [{"n": 1}]

    asyncio.run(story())


def test_a_read_for_which_nobody_waits_is_given_up():
    async def story():
        gateway = HeldGateway()
        reads = SharedReads(gateway)
        first = await asking(reads)
        # It has not begun, and whoever comes afterwards does not get it.
        second = await asking(reads)
        second.cancel()
        third = await asking(reads)
        first.cancel()
        await asyncio.wait([first, second])
        for _ in range(5):
            await asyncio.sleep(0)
        assert [answer.cancelled() for answer in gateway.held] == [True, False]
        await gateway.answer(1)
        assert (await third).rows == [{"n": 1}]
        assert (reads._readings, reads._waiting) == ({}, {})

    asyncio.run(story())


def test_a_read_that_began_after_the_same_event_is_shared_while_it_is_under_way():
    async def story():
        gateway = HeldGateway()
        reads = SharedReads(gateway)
        first = asyncio.ensure_future(reads.ask(ListPools(), 7))
        await asyncio.sleep(0)
        same, later = (asyncio.ensure_future(reads.ask(ListPools(), at)) for at in (7, 8))
        for _ in range(3):
            await asyncio.sleep(0)
        await gateway.answer(0)
        assert ((await first).rows, (await same).rows) == ([{"n": 0}], [{"n": 0}])
        same = asyncio.ensure_future(reads.ask(ListPools(), 8))
        await gateway.answer(1)
        assert ((await later).rows, (await same).rows) == ([{"n": 1}], [{"n": 1}])
        assert len(gateway.held) == 2

    asyncio.run(story())


def test_nobody_shares_a_read_that_was_just_given_up():
    async def story():
        gateway = HeldGateway()
        reads = SharedReads(gateway)
        first = asyncio.ensure_future(reads.ask(ListPools(), 7))
        for _ in range(3):
            await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)
        second = asyncio.ensure_future(reads.ask(ListPools(), 7))
        for _ in range(5):
            await asyncio.sleep(0)
        await gateway.answer(1)
        assert (await second).rows == [{"n": 1}]

    asyncio.run(story())
