"""A cluster of simulated nodes and processes on which commands are run in virtual time, so that they always
print the same.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import os
import random
import re
import secrets
import shlex
import socket
import time
from contextlib import contextmanager

import msgspec
from typer.testing import CliRunner

from schedulemesh.cli import gateway, ray_gateway
from schedulemesh.cli.app import app
from schedulemesh.core.client.scheduler import RayScheduler
from schedulemesh.core.client.task_request import Caller
from schedulemesh.domain.end_reasons import TaskEndReason
from schedulemesh.domain.resources import parse_resources
from schedulemesh.protocol.agents import (
    AgentInit,
    Command,
    CommandResult,
    KeptResult,
    RunReport,
    StartReport,
    pack,
    unpack,
)
from schedulemesh.protocol.callers import RequestSource
from schedulemesh.protocol.credentials import Credential
from schedulemesh.runtime.backend import BackendError, NodeView
from tests.runtime import virtual_time
from tests.runtime.composition import supervisor
from tests.runtime.fake_backend import FakeBackend

#: When the day begins, and the size of a node.
MORNING = dt.datetime(2026, 11, 2, 9, tzinfo=dt.timezone.utc)
NODE = parse_resources({"cpu": 64, "gpu": 8, "memory": 512 * 1024})
#: Virtual seconds after each command, in which what it began goes on.
MEANWHILE_S = 1.0
#: Virtual seconds that a job takes to save when it is evicted.
SAVING_S = 12.0
#: Virtual seconds in which what waits for a time goes on.
SETTLES_S = 30.0


#: The report of a driver that was ended, and the process in which every command runs.
ENDED = RunReport(kept=b"", cancelled=True, error="signal 15", reason=TaskEndReason.RUN_RAISED)
PID = 4711


class Connection:
    """What a command has in place of a connection to Ray."""

    standing = False

    def __init__(self, day):
        self.day, self.settings = day, day.service._settings
        self.shipped = set()
        #: Who types the command.
        self.user = ""

    @property
    def caller(self):
        return Caller(namespace="default", runtime_env={}, owner=self.user)

    def call(self, method, data, refs, what):
        credential = msgspec.msgpack.encode(Credential(pid=PID))
        # As over the HTTP API of the machine, whose system says who asks.
        source = RequestSource(user=f"{self.user}@head", user_verified=True)
        return self.day.until(self.day.service._ask_from(source, data, refs, credential))


class SharedDay:
    """A cluster, its scheduler, and what its jobs do."""

    def __init__(self, folder, loop, patch, hosts, node=NODE):
        """``hosts``: the names of the nodes, with their labels."""
        self.loop, self.patch, self.began = loop, patch, MORNING.timestamp()
        self.backend = FakeBackend()
        self.backend.free = [
            NodeView(node_id=digit * 56, total=node, free=node, labels=labels, host=host)
            for digit, (host, labels) in zip("3a8f5c", hosts.items(), strict=False)
        ]
        self.backend.start, self.backend.run_task = self._started, self._run
        #: The runs of jobs by their ids, and what serves their processes.
        self.runs, self.hosts = {}, set()
        self.service = self.until(self._begun(folder))
        self.connection = Connection(self)
        drawn = random.Random(1)
        patch.setattr(secrets, "token_hex", lambda size: drawn.randbytes(size).hex())
        patch.setattr(random, "uniform", drawn.uniform)

        @contextmanager
        def connected(target):
            yield ray_gateway.RayGateway(self.connection)

        @contextmanager
        def attached(target):
            scheduler = RayScheduler.__new__(RayScheduler)
            scheduler._connection = self.connection
            yield scheduler

        patch.setattr(gateway, "connection_to", connected)
        patch.setattr(ray_gateway, "attached", attached)

    async def _begun(self, folder):
        service = supervisor(
            self.backend,
            folder / "journal.sqlite",
            clock=virtual_time.clock(lambda: self.began),
            name="head",
            namespace="default",
            state_path=str(folder / "state"),
        )
        await service.ready()
        return service

    def until(self, work):
        """The result of a coroutine."""
        return self.loop.run_until_complete(work)

    def advance(self, to):
        """Let the time pass until ``hh:mm`` of the first day."""
        hours, minutes = map(int, to.split(":"))
        left_s = MORNING.replace(hour=hours, minute=minutes).timestamp() - self.now()
        self.until(asyncio.sleep(min(left_s, SETTLES_S)))
        # What is done each second need not be done all the time.
        jump_s = max(0.0, left_s - 2 * SETTLES_S)
        self.began += jump_s
        self.until(asyncio.sleep(max(0.0, left_s - SETTLES_S - jump_s)))

    def now(self):
        """Seconds since 1970."""
        return self.began + self.loop.time()

    def run(self, line, user):
        """What a command prints that somebody types, and its exit code."""
        self._write_history()
        self.connection.user = user
        with self.patch.context() as patch:
            patch.setattr(time, "time", self.now)
            patch.setattr(socket, "gethostname", lambda: "head")
            patch.setattr(os, "getpid", lambda: PID)
            for variable in ("USER", "LOGNAME"):
                patch.setenv(variable, user)
            done = CliRunner().invoke(app, shlex.split(line))
        self.until(asyncio.sleep(MEANWHILE_S))
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return done.output, done.exit_code

    def close(self):
        """End the scheduler."""
        self.until(self._ended())

    async def _ended(self):
        running = self.service._requests.running
        running.executor.stop_all()
        await running.reactor.close(destroy=False)

    def _write_history(self):
        """Wait for the thread that writes it, for which the virtual time does not wait."""
        running = self.service._requests.running
        running.history.begin_at_once()
        while running.history.upto < running.reactor.last:
            self.until(asyncio.sleep(0))
            time.sleep(0.001)  # between two looks at the thread, which tells only this loop

    # what processes do

    def _started(self, actor):
        able = ("cancel", "on_preemption_notice")
        report = StartReport(node_id=actor.node_id, pid=actor.pid, capabilities=able)
        actor.answers["agent_report"] = report
        self.hosts.add(asyncio.ensure_future(self._serve(actor)))

    async def _run(self, actor, order):
        init = unpack(actor.request.init, AgentInit)
        run = self.runs[init.job.task_id] = self.loop.create_future()
        report = await run
        if not actor.alive:
            raise BackendError("the actor is dead")
        return pack(report)

    async def _serve(self, actor):
        init = unpack(actor.request.init, AgentInit)
        own, received = (init.agent_name, init.incarnation, init.key), []
        while actor.alive:
            answer = await self.service.poll(*own, None, received)
            commands = unpack(answer, list[Command])
            received = [command.command_id for command in commands]
            for command in commands:
                if command.kind == "notice":
                    await asyncio.sleep(SAVING_S)
                    await self.service.work_saved(*own, 0.0)
                if command.kind == "cancel":
                    self._end(init.job.task_id, ENDED)
                await self.service.command_done(command.command_id, pack(CommandResult()))

    def _end(self, task_id, report):
        if not self.runs[task_id].done():
            self.runs[task_id].set_result(report)

    # what jobs do

    def ends(self, task_id):
        """The driver of a job exits with 0."""
        self._end(task_id, RunReport(kept=pack(KeptResult(value=b""))))
        self.until(asyncio.sleep(MEANWHILE_S))


#: A directive in a page, a prompt with a command, and a block of them.
_AT = re.compile(r"<!-- at (\d\d:\d\d) -->")
_ENDS = re.compile(r"<!-- (\S+) ends -->")
_PROMPT = re.compile(r"(\w+)\$ (.*)")


def replayed(page, day):
    """A page with what its commands print now; what else stands in it stays."""
    lines, in_block, code = [], False, 0
    for line in page.split("\n"):
        if line.startswith("```"):
            in_block = line == "```console"
        if match := _AT.fullmatch(line):
            day.advance(match[1])
        elif match := _ENDS.fullmatch(line):
            day.ends(match[1])
        prompt = _PROMPT.fullmatch(line) if in_block else None
        if prompt is None:
            if not in_block or line.startswith("```"):
                lines.append(line)
            continue
        lines.append(line)
        if prompt[2] == "echo $?":
            lines.append(str(code))
            continue
        printed, code = day.run(prompt[2].removeprefix("schedulemesh "), prompt[1])
        lines += printed.rstrip().split("\n")
    return "\n".join(lines)
