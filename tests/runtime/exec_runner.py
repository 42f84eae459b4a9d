"""Processes of tasks that run nothing, but start the commands that they are told to."""

from __future__ import annotations

import asyncio
import os

import msgspec

from schedulemesh.core.agent.exec_process import begin_exec
from schedulemesh.protocol.agents import CommandResult, pack
from schedulemesh.protocol.exec_messages import ExecOrder


class ExecRunner:
    """The process of the task with an id, of a gang the named one, as the supervisor sees it; its loop is
    that of the supervisor.
    """

    def __init__(self, service, task_id, process_name=None):
        state = service.running.reactor.state
        self._agent = state.agents[state.running.by_id[task_id].agent_name]
        self._name = process_name or self._agent.spec.name
        self._commands, self._service = service.running.agents.commands, service
        #: What it answers, where it starts no command; and the orders that came.
        self.result, self.orders = None, []
        self._work = service.do(self._begun())

    async def _begun(self):
        return asyncio.ensure_future(self._serve())

    async def _serve(self):
        commands = []
        while True:
            received = [command.command_id for command in commands]
            commands = await self._commands.poll(self._name, self._agent.incarnation, received)
            for command in commands:
                self._commands.done(command.command_id, pack(await self._result_of(command)))

    async def _result_of(self, command):
        if command.kind != "exec":
            return CommandResult()
        order = msgspec.msgpack.decode(command.order, type=ExecOrder)
        self.orders.append(order)
        if self.result is None:
            environment = {
                "PATH": os.environ["PATH"],
                "CUDA_VISIBLE_DEVICES": "1",
                "PROCESS": self._name,
            }
            await asyncio.to_thread(begin_exec, order, environment, None)
        return self.result or CommandResult()

    def close(self):
        self._service.loop.call_soon_threadsafe(self._work.cancel)
