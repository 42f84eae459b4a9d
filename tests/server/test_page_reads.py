"""However many pages are open, the supervisor is read about four times a second of each kind, and no page
shows what was before an event that it was told of.
"""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from schedulemesh.api.nodes import ListNodeNames, ListNodes
from schedulemesh.api.pools import ListPools
from schedulemesh.api.tasks import ExplainTask
from schedulemesh.errors import SchedulerUnavailableError
from schedulemesh.protocol.answers import Listed, encode_answer
from schedulemesh.server.page.reads import PacedReads, RecentReads
from schedulemesh.server.shared_reads import SharedReads
from tests.runtime.virtual_time import run

PAGES, SECONDS = 200, 10
SHOWN = (ListNodes(), ListNodeNames(), ListPools())


class Supervisor:
    """Answers with the position of the events, after a moment of its own; counts what it is asked."""

    def __init__(self, takes_s=0.005):
        self.position, self.takes_s = 0, takes_s
        self.asked = Counter()
        self.now_asked, self.most_at_once = 0, 0

    async def ask_packed(self, request, caller=None):
        self.asked[type(request)] += 1
        self.now_asked += 1
        self.most_at_once = max(self.most_at_once, self.now_asked)
        position = self.position
        try:
            await asyncio.sleep(self.takes_s)
        finally:
            self.now_asked -= 1
        search_s = self.takes_s if request.searches else 0.0
        return encode_answer(Listed(rows=[{"position": position}], search_s=search_s))


def recent(supervisor):
    loop = asyncio.get_running_loop()
    reads = SharedReads(PacedReads(supervisor))
    return RecentReads(reads, lambda: supervisor.position, loop.time)


async def watched(supervisor, calls=SHOWN, pages=PAGES):
    """Pages that read all the time for some seconds, while an event comes every twentieth of a second."""
    reads = recent(supervisor)
    time = asyncio.get_running_loop().time

    async def page(number):
        await asyncio.sleep(number / pages)
        while time() < end:
            for call in calls:
                position = supervisor.position
                (row,) = (await reads.ask(call)).rows
                assert row["position"] >= position
            await asyncio.sleep(0.6)

    end = time() + SECONDS
    open_pages = [asyncio.ensure_future(page(number)) for number in range(pages)]
    while time() < end:
        await asyncio.sleep(0.05)
        supervisor.position += 1
    await asyncio.gather(*open_pages)


def test_two_hundred_pages_read_each_thing_four_times_a_second_and_see_each_event():
    supervisor = Supervisor()
    run(watched(supervisor))
    assert all(2 * SECONDS <= supervisor.asked[type(call)] <= 4 * SECONDS + 4 for call in SHOWN)


def test_a_slow_supervisor_is_read_less_often():
    supervisor = Supervisor(takes_s=0.2)
    run(watched(supervisor))
    assert all(supervisor.asked[type(call)] <= SECONDS / 0.8 + 4 for call in SHOWN)


def test_without_events_an_answer_is_shown_again():
    async def story():
        supervisor = Supervisor()
        reads = recent(supervisor)
        for _ in range(PAGES):
            await reads.ask(ListPools())
            await asyncio.sleep(0.01)
        assert supervisor.asked[ListPools] == 3

    run(story())


def test_pages_that_come_during_a_read_share_it_where_nothing_has_happened_since():
    async def story():
        supervisor = Supervisor()
        reads = recent(supervisor)
        await asyncio.gather(*(reads.ask(ListPools()) for _ in range(PAGES)))
        assert supervisor.asked[ListPools] == 1

    run(story())


def test_whoever_has_changed_something_sees_it():
    async def story():
        supervisor = Supervisor()
        reads = recent(supervisor)
        during = asyncio.ensure_future(reads.ask(ListPools()))
        await asyncio.sleep(0.001)
        reads.outdated()
        await asyncio.gather(during, reads.ask(ListPools()))
        assert supervisor.asked[ListPools] == 2

    run(story())


def test_explanations_of_many_tasks_are_made_one_at_a_time_with_rests():
    async def story():
        supervisor = Supervisor()
        reads = recent(supervisor)
        calls = [ExplainTask(task_id=f"task-{number}") for number in range(50)]
        began = asyncio.get_running_loop().time()
        await asyncio.gather(*map(reads.ask, calls))
        took_s = asyncio.get_running_loop().time() - began
        assert supervisor.most_at_once == 1
        assert took_s >= 49 * 5 * supervisor.takes_s

    run(story())


def test_a_failed_read_is_not_shown_again():
    async def story():
        supervisor = Supervisor()
        reads = recent(supervisor)

        async def away(request, caller=None):
            raise SchedulerUnavailableError("away")

        answers, supervisor.ask_packed = supervisor.ask_packed, away
        with pytest.raises(SchedulerUnavailableError):
            await reads.ask(ListPools())
        supervisor.ask_packed = answers
        assert (await reads.ask(ListPools())).rows

    run(story())
