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
from schedulemesh.server.event_feed import EventLine
from schedulemesh.server.page.explanations import SHARE, RecentExplanations
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


#: How long an explanation takes the supervisor, and between two reads of an open page.
TAKES_S, PAGE_S = 0.033, 0.6


class OpenTasks:
    """Pages that each show a task, while things happen to others and, now and then, to theirs."""

    def __init__(self, takes_s=TAKES_S):
        self.supervisor = Supervisor(takes_s)
        self.time = asyncio.get_running_loop().time
        reads = recent(self.supervisor)
        self.lines, self.known = [], True
        self.explanations = RecentExplanations(
            reads.ask, lambda: reads.stamp, self.events_after, self.time
        )
        self.reads = reads
        #: The first event that each task's page has to show, when it happened, and after what time it did.
        self.unseen, self.delays = {}, []

    def events_after(self, cursor):
        return [line for line in self.lines if line.cursor > cursor] if self.known else None

    def happens(self, task_id):
        self.supervisor.position += 1
        self.lines.append(EventLine(self.supervisor.position, "started", task_id, "", b""))

    async def shown(self, task_id):
        """What a page shows of a task: up to which event, and when to look again."""
        answer, again_s = await self.explanations.ask(ExplainTask(task_id=task_id))
        return answer.rows[0]["position"], again_s

    async def page(self, task_id, until):
        while self.time() < until:
            position, _ = await self.shown(task_id)
            event, at = self.unseen.get(task_id, (position + 1, 0.0))
            if position >= event:
                self.delays.append(self.time() - at)
                del self.unseen[task_id]
            await asyncio.sleep(PAGE_S)

    @property
    def explained(self):
        return self.supervisor.asked[ExplainTask]


async def open_pages(pages, seconds, own_s=None):
    """So many open pages for some seconds; ``own_s``: after how long something happens to one of their tasks,
    once each has been shown.
    """
    open_tasks = OpenTasks()
    end = open_tasks.time() + seconds
    names = [f"task-{number}" for number in range(pages)]
    running = [asyncio.ensure_future(open_tasks.page(name, end)) for name in names]
    happened = 0
    while open_tasks.time() < end - 1.0:
        await asyncio.sleep(0.05)
        happened += 1
        open_tasks.happens("another")
        are_open = open_tasks.explained >= pages
        if own_s is not None and are_open and happened % round(own_s / 0.05) == 0:
            name = names[happened % pages]
            open_tasks.happens(name)
            event = (open_tasks.supervisor.position, open_tasks.time())
            open_tasks.unseen.setdefault(name, event)
    await asyncio.gather(*running)
    return open_tasks


@pytest.mark.parametrize("pages", [1, 3, 10, 50])
def test_explanations_for_what_happens_to_others_take_a_twentieth_of_the_time(pages):
    seconds = 120
    open_tasks = run(open_pages(pages, seconds))
    most = seconds * SHARE / TAKES_S
    assert 0.5 * most <= open_tasks.explained <= most + pages


@pytest.mark.parametrize("pages", [1, 10, 50])
def test_what_happens_to_a_task_is_seen_on_its_page_within_a_second(pages):
    open_tasks = run(open_pages(pages, 120, own_s=3.0))
    assert len(open_tasks.delays) >= 35
    assert open_tasks.unseen == {}
    assert max(open_tasks.delays) <= 1.0


def test_a_page_is_told_when_its_explanation_may_be_newer():
    async def story():
        open_tasks = OpenTasks()
        assert await open_tasks.shown("task") == (0, None)
        assert await open_tasks.shown("task") == (0, None)
        open_tasks.happens("another")
        position, again_s = await open_tasks.shown("task")
        assert position == 0
        assert again_s == pytest.approx(TAKES_S / SHARE)
        await asyncio.sleep(again_s)
        assert await open_tasks.shown("task") == (1, None)
        assert open_tasks.explained == 2

    run(story())


@pytest.mark.parametrize(
    ("shown", "happens"), [("a", "a"), ("a", "a[3]"), ("a[3]", "a"), ("a[3]", "a[3]")]
)
def test_what_happens_to_a_task_its_array_or_a_member_outdates_its_explanation(shown, happens):
    async def story():
        open_tasks = OpenTasks()
        await open_tasks.shown(shown)
        await asyncio.sleep(0.3)
        for other in ("ab", "a1[3]", "a[4]" if "[" in shown else "b"):
            open_tasks.happens(other)
        assert (await open_tasks.shown(shown))[0] == 0
        open_tasks.happens(happens)
        assert (await open_tasks.shown(shown))[0] == 4

    run(story())


def test_what_happens_while_a_task_is_explained_outdates_the_explanation():
    async def story():
        open_tasks = OpenTasks()
        await open_tasks.shown("other")
        first = asyncio.ensure_future(open_tasks.shown("task"))
        await asyncio.sleep(TAKES_S * 5)
        assert not first.done()
        open_tasks.happens("task")
        await open_tasks.shown("other")
        await first
        await asyncio.sleep(0.3)
        assert (await open_tasks.shown("task"))[0] == 1

    run(story())


def test_a_change_made_here_and_events_that_are_not_known_outdate_every_explanation():
    async def story():
        open_tasks = OpenTasks()
        await open_tasks.shown("task")
        open_tasks.reads.outdated()
        await open_tasks.shown("task")
        assert open_tasks.explained == 2
        open_tasks.happens("task")
        open_tasks.known = False
        assert (await open_tasks.shown("task"))[0] == 1

    run(story())


def test_cheap_explanations_are_made_again_as_often_as_other_reads():
    async def story():
        open_tasks = OpenTasks(takes_s=0.0001)
        for _ in range(20):
            open_tasks.happens("another")
            assert (await open_tasks.shown("task"))[0] == open_tasks.supervisor.position
            await asyncio.sleep(PAGE_S)

    run(story())
