"""The processor time of a coroutine is that of its own steps, whatever it waits for."""

from __future__ import annotations

import asyncio

import pytest

from schedulemesh.protocol.processor_time import ProcessorTime
from tests.protocol.processor import Processor


async def beside_others(processor, work):
    """The result of work in whose pauses others compute, and its processor time."""

    async def others():
        while True:
            processor.compute(100.0)
            await asyncio.sleep(0)

    timed = ProcessorTime(work, processor.clock)
    flood = asyncio.ensure_future(others())
    try:
        return await timed, timed.seconds
    finally:
        flood.cancel()


def test_what_others_compute_while_it_waits_is_not_counted():
    processor = Processor()

    async def work():
        for _ in range(3):
            processor.compute(1.0)
            await asyncio.sleep(0)
        await asyncio.sleep(0.01)
        processor.compute(0.5)
        return "result"

    assert asyncio.run(beside_others(processor, work())) == ("result", 3.5)


def test_what_fails_has_computed_until_then():
    processor = Processor()

    async def fails():
        processor.compute(2.0)
        await asyncio.sleep(0)
        processor.compute(3.0)
        raise ValueError("no")

    async def run():
        timed = ProcessorTime(fails(), processor.clock)
        with pytest.raises(ValueError, match="no"):
            await timed
        return timed.seconds

    assert asyncio.run(run()) == 5.0


def test_cancelling_reaches_what_waits_and_may_be_handled_there():
    processor, events = Processor(), []

    async def work():
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            processor.compute(1.0)
            events.append("cancelled")
            await asyncio.sleep(0)
            raise

    async def run():
        timed = ProcessorTime(work(), processor.clock)
        waiting = asyncio.ensure_future(timed)
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        return timed.seconds

    assert asyncio.run(run()) == 1.0
    assert events == ["cancelled"]
