"""Loops of the supervisor: they go on after any failure, and tell of it."""

from __future__ import annotations

import asyncio
import logging

import pytest

from schedulemesh.metrics import catalogue as c
from schedulemesh.runtime.backend import BackendError
from schedulemesh.runtime.periodic import Loops
from tests.runtime import virtual_time


def values(loops, metric):
    (samples,) = (samples for shown, samples in loops.families() if shown is metric)
    return {sample.labels[0]: sample.value for sample in samples}


def told(story):
    async def run():
        loops = Loops()
        try:
            await story(loops)
        finally:
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()

    virtual_time.run(run())


@pytest.mark.parametrize("error", [KeyError("lost"), BackendError("away"), ZeroDivisionError()])
def test_a_loop_goes_on_after_any_failure_and_counts_it(error, caplog):
    rounds = []

    async def work():
        rounds.append(None)
        if 2 <= len(rounds) <= 4:
            raise error

    async def story(loops):
        running = asyncio.ensure_future(loops.run("watch", 1.0, work))
        await asyncio.sleep(4.5)  # virtual time
        assert len(rounds) == 4
        assert values(loops, c.LOOP_FAILURES) == {"watch": 3}
        assert values(loops, c.LOOP_OVERDUE) == {"watch": 2.5}
        await asyncio.sleep(1.0)  # virtual time
        assert values(loops, c.LOOP_FAILURES) == {"watch": 3}
        assert values(loops, c.LOOP_OVERDUE) == {"watch": 0.0}
        assert not running.done()

    told(story)
    expected = isinstance(error, BackendError)
    assert caplog.text.count("Traceback") == (0 if expected else 1), "once for equal failures"
    assert len([r for r in caplog.records if r.levelno == logging.WARNING]) == 3


def test_a_round_that_never_returns_is_overdue():
    async def story(loops):
        running = asyncio.ensure_future(loops.run("watch", 1.0, asyncio.Event().wait))
        await asyncio.sleep(100.0)  # virtual time
        assert values(loops, c.LOOP_OVERDUE) == {"watch": 99.0}
        assert not running.done()

    told(story)


def test_a_loop_that_its_failure_may_end_is_not_overdue_afterwards():
    async def refused():
        raise BackendError("takes none")

    async def story(loops):
        await loops.run("export", 1.0, refused, at_once=True, ended_by=BackendError)
        assert values(loops, c.LOOP_OVERDUE) == {}

    told(story)


def test_a_round_that_may_take_long_is_overdue_later():
    async def story(loops):
        running = asyncio.ensure_future(loops.run("watch", 1.0, asyncio.Event().wait, takes_s=60.0))
        await asyncio.sleep(61.0)  # virtual time
        assert values(loops, c.LOOP_OVERDUE) == {"watch": 0.0}
        await asyncio.sleep(1.0)  # virtual time
        assert values(loops, c.LOOP_OVERDUE) == {"watch": 1.0}
        assert not running.done()

    told(story)
