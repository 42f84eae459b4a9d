"""The line to one agent: commands reach the process that asks last."""

from __future__ import annotations

import asyncio

from schedulemesh.protocol.agents import Command
from schedulemesh.runtime.agents.command_queue import CommandQueue
from tests.runtime import virtual_time


def command(n):
    return Command(command_id=n, epoch=1, kind="ping")


def test_commands_are_handed_out_in_order_and_once():
    async def story():
        line = CommandQueue()
        line.send(command(1))
        line.send(command(2))
        assert await line.ask() == [command(1), command(2)]
        asking = line.ask([1, 2])
        assert not asking.done()
        line.send(command(3))
        assert await asking == [command(3)]

    asyncio.run(asyncio.wait_for(story(), 30))


def test_a_process_that_died_while_asking_takes_no_command_along():
    async def story():
        line = CommandQueue()
        dead = line.ask()
        alive = line.ask()
        line.send(command(1))
        assert await alive == [command(1)]
        assert await dead == []

    asyncio.run(asyncio.wait_for(story(), 30))


def test_a_new_process_is_given_what_the_former_one_did_not_answer():
    async def story():
        line = CommandQueue()
        for n in (1, 2):
            line.send(command(n))
        assert await line.ask() == [command(1), command(2)]
        line.drop(command(1))
        dead = line.ask([1, 2])
        line.renew()
        line.send(command(3))
        assert await dead == []
        assert await line.ask() == [command(2), command(3)]

    asyncio.run(asyncio.wait_for(story(), 30))


def test_commands_whose_answer_was_lost_are_given_again_before_newer_ones():
    async def story():
        queue = CommandQueue()
        queue.send(command(1))
        assert await queue.ask() == [command(1)]
        for number in (2, 3):
            queue.send(command(number))
        assert await queue.ask([1]) == [command(2), command(3)]
        queue.drop(command(2))
        queue.send(command(4))
        assert await queue.ask([1]) == [command(3), command(4)], (
            "what was answered is not given again"
        )
        asking = queue.ask([3, 4])
        assert not asking.done(), (
            "what has arrived is not given again, though it is not answered yet"
        )
        queue.renew()
        assert await queue.ask() == [command(1), command(3), command(4)]

    asyncio.run(asyncio.wait_for(story(), 30))


def test_a_command_without_a_waiter_is_not_sent():
    async def story():
        line = CommandQueue()
        line.send(command(1))
        line.drop(command(1))
        line.send(command(2))
        assert await line.ask() == [command(2)]

    asyncio.run(asyncio.wait_for(story(), 30))


def test_a_question_is_answered_in_time_even_with_nothing(monkeypatch):
    monkeypatch.setattr("schedulemesh.runtime.agents.command_queue.POLL_S", 0.01)

    async def story():
        line = CommandQueue()
        assert await line.ask() == []
        line.send(command(1))
        assert await line.ask() == [command(1)]

    asyncio.run(asyncio.wait_for(story(), 30))


def test_a_command_that_is_sent_late_says_how_many_seconds_are_left():
    async def story():
        line = CommandQueue()
        clock = asyncio.get_running_loop().time
        notice = Command(command_id=1, epoch=1, kind="notice", seconds=30.0)
        line.send(notice, clock() + 31.0)
        (at_once,) = await line.ask()
        assert at_once == notice
        for pause_s, left_s in ((20.0, 11.0), (9.0, 2.0), (9.0, 0.0)):
            line.renew()
            await asyncio.sleep(pause_s)  # of virtual time
            assert [each.seconds for each in await line.ask()] == [left_s]
        line.renew()
        line.drop(notice)
        line.send(command(2))
        assert await line.ask() == [command(2)]

    virtual_time.run(story())
