"""Lines to agents: commands, their results, and what becomes of them when the process is gone."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace

from schedulemesh.domain.agent import AgentSpec
from schedulemesh.domain.placement import Unplaced
from schedulemesh.domain.resources import NOTHING
from schedulemesh.engine.state.agents import Agent, Running
from schedulemesh.protocol.agents import CommandResult, pack
from schedulemesh.runtime.agents import command_queue
from schedulemesh.runtime.agents.registry import Agents
from tests.runtime.fake_backend import FakeBackend


async def agents_with_one():
    agents = Agents(FakeBackend(), "mesh", "namespace")
    spec = AgentSpec(name="a", pool_name="p", resources=NOTHING)
    await agents.adopt(
        Agent(
            spec=spec,
            incarnation=1,
            phase=Running(started_at=0.0),
            place=Unplaced(),
            admitted_at=0.0,
        )
    )
    return agents


def test_waiting_for_a_dead_agent_ends_at_once():
    async def story():
        agents = await agents_with_one()
        order = asyncio.ensure_future(agents.commands.execute("a", 1, "save", 3600.0))
        (command,) = await agents.commands.poll("a", 1)
        await agents.end("a", 1)
        assert await order is None
        agents.commands.done(command.command_id, pack(CommandResult()))
        assert await agents.commands.execute("a", 1, "cancel", 3600.0) is None

    asyncio.run(asyncio.wait_for(story(), 10.0))


def test_an_answer_that_cannot_be_read_is_a_failure_of_that_command_alone():
    async def story():
        agents = await agents_with_one()
        orders = [
            asyncio.ensure_future(agents.commands.execute("a", 1, "save", 3600.0)) for _ in range(3)
        ]
        await asyncio.sleep(0)
        commands = await agents.commands.poll("a", 1)
        for command, answer in zip(
            commands, (b"\xc1", object(), pack(CommandResult())), strict=True
        ):
            agents.commands.done(command.command_id, answer)
        garbled, foreign, good = await asyncio.gather(*orders)
        assert (garbled.success, foreign.success, good.success) == (False, False, True)
        assert "not a CommandResult" in garbled.error
        assert "not as object" in foreign.error

    asyncio.run(asyncio.wait_for(story(), 10.0))


def test_a_result_that_came_in_parts_is_put_together():
    async def story():
        agents = await agents_with_one()
        order = asyncio.ensure_future(
            agents.commands.execute("a", 1, "save", 3600.0, limit_bytes=8)
        )
        await asyncio.sleep(0)
        (command,) = await agents.commands.poll("a", 1)
        number = command.command_id
        assert agents.commands.part(number, 0, b"1234")
        assert agents.commands.part(number, 0, b"1234"), "its answer was lost, and it is there"
        assert not agents.commands.part(number, 0, b"4321"), "something else is there"
        assert not agents.commands.part(number, 1, b"1234"), "it does not follow on what is there"
        assert not agents.commands.part(number, 4, "text")
        assert not agents.commands.part(number, 4, b"56789"), "more than it may take"
        assert agents.commands.part(number, 4, b"5678")
        assert not agents.commands.part(number, 0, b"1234"), "others have come since"
        agents.commands.done(number, pack(CommandResult(part_bytes=8)))
        assert (await order).data == b"12345678"
        assert not agents.commands.part(number, 8, b""), "nobody waits for it any more"

    asyncio.run(asyncio.wait_for(story(), 10.0))


def test_a_result_with_parts_missing_is_a_failure():
    async def story():
        agents = await agents_with_one()
        order = asyncio.ensure_future(
            agents.commands.execute("a", 1, "save", 3600.0, limit_bytes=8)
        )
        await asyncio.sleep(0)
        (command,) = await agents.commands.poll("a", 1)
        agents.commands.part(command.command_id, 0, b"1234")
        agents.commands.done(command.command_id, pack(CommandResult(part_bytes=8)))
        result = await order
        assert (result.success, result.data) == (False, None)
        assert "missing" in result.error

    asyncio.run(asyncio.wait_for(story(), 10.0))


def test_a_process_is_not_silent_while_a_command_that_it_got_has_time_left(monkeypatch):
    async def story():
        ahead_s = 0.0
        monkeypatch.setattr(
            command_queue, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + ahead_s)
        )
        agents = await agents_with_one()
        commands = agents.commands

        def silent():
            return commands.silent_s("a", 1) > 240.0

        save = asyncio.ensure_future(commands.execute("a", 1, "save", 3600.0))
        await asyncio.sleep(0)
        ahead_s = 300.0
        assert silent(), "it has not asked for the command"
        (command,) = await commands.poll("a", 1)
        ahead_s = 900.0
        assert not silent()
        commands.done(command.command_id, pack(CommandResult()))
        await save
        assert not silent(), "it has just answered"
        ahead_s = 1200.0
        assert silent()
        ping = asyncio.ensure_future(commands.execute("a", 1, "ping", 0.01))
        await asyncio.sleep(0)
        await commands.poll("a", 1)
        ahead_s = 1500.0
        await ping
        assert silent(), "the time for the command is over"

    asyncio.run(asyncio.wait_for(story(), 10.0))
