"""Searches with one token are made one at a time, each after a rest; in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from schedulemesh.api.preemption import EvaluatePreemption
from schedulemesh.api.tasks import CompleteTask, ExplainTask, ListTasks
from schedulemesh.server.search_pace import MAX_REST_S, REST, SearchPace, is_search
from tests.runtime import virtual_time


def search_of(seconds, times):
    async def ask():
        loop = asyncio.get_running_loop()
        times.append(loop.time())
        await asyncio.sleep(seconds)
        return len(times)

    return ask


async def begun_by_three(seconds):
    """When three searches began that were asked for at once, and what they answered."""
    pace, times = SearchPace(), []
    answers = await asyncio.gather(*(pace.search(search_of(seconds, times)) for _ in range(3)))
    return [at - times[0] for at in times], answers


@pytest.mark.parametrize(("seconds", "rest"), [(0.1, 0.1 * REST), (10.0, MAX_REST_S)])
def test_each_begins_after_a_rest_in_times_of_what_the_last_one_took(seconds, rest):
    times, answers = virtual_time.run(begun_by_three(seconds))
    assert answers == [1, 2, 3]
    assert times == pytest.approx([0.0, seconds + rest, 2 * (seconds + rest)])


async def after_one_that_fails():
    pace, times = SearchPace(), []

    async def fails():
        await asyncio.sleep(0.1)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await pace.search(fails)
    return await pace.search(search_of(0.1, times))


def test_one_that_fails_keeps_nobody_waiting():
    assert virtual_time.run(after_one_that_fails()) == 1


def test_what_is_a_search():
    assert is_search(ExplainTask(task_id="a"))
    assert is_search(EvaluatePreemption(priority=1.0, pool_name="p"))
    assert not is_search(ListTasks())
    assert not is_search(CompleteTask(request_id="r", task_id="a"))
