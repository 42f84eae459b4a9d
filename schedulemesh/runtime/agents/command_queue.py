"""The command queue of one agent: its process long-polls the supervisor for commands."""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Iterable, Sequence

import msgspec

from schedulemesh.protocol.agents import Command, CommandResult

#: A poll for commands is answered after this many seconds even if there are none.
POLL_S = 90.0


class CommandQueue:
    """Commands for one agent's process, and their results.

    Thousands of processes each have one poll open all the time, so a poll is only a future and a timer.
    """

    def __init__(self) -> None:
        self._waiting: deque[Command] = deque()
        #: By id, when the time is over that commands name, on the monotonic clock.
        self._until: dict[int, float] = {}
        #: By id, the commands that were sent to the process and that it has not answered.
        self._given: dict[int, Command] = {}
        #: The ids of those of which the process has not said that it has received them.
        self._unconfirmed: set[int] = set()
        #: The open poll; None: the process executes commands, or has not polled yet.
        self._question: asyncio.Future[list[Command]] | None = None
        self._timer: asyncio.TimerHandle | None = None
        #: Results for which a caller waits.
        self.open: set[asyncio.Future[CommandResult | None]] = set()
        self._last_contact = time.monotonic()

    def send(self, command: Command, until: float | None = None) -> None:
        """Queue a command; it is sent with the open poll or the next one. ``until``: when its ``seconds`` are
        over, on the monotonic clock; one that is sent late says how many are left.
        """
        if until is not None:
            self._until[command.command_id] = until
        self._waiting.append(command)
        if self._question is not None:
            self._answer()

    def seconds_since_contact(self) -> float:
        """Seconds since the process was started, or last polled."""
        return time.monotonic() - self._last_contact

    def silent_s(self) -> float:
        """Seconds since the process was to be heard of: since its last contact, or 0 while it has a command
        whose time is not over, because it polls again only after that.
        """
        return 0.0 if self._given else self.seconds_since_contact()

    def note_result(self) -> None:
        """Its process has answered a command."""
        self._last_contact = time.monotonic()

    def ask(self, received: Iterable[int] = ()) -> asyncio.Future[list[Command]]:
        """Open a poll: a future of the queued commands. An earlier poll is answered with nothing, because its
        process may have died since.

        ``received``: the ids of the commands that the last answer has brought to the process. It polls again
        once it has carried these out, so what it has not received was lost on the way, and is queued again,
        before all others.
        """
        self._last_contact = time.monotonic()
        self._void()
        self._unconfirmed.difference_update(received)
        self._queue_again([c for c in self._given.values() if c.command_id in self._unconfirmed])
        loop = asyncio.get_running_loop()
        question: asyncio.Future[list[Command]] = loop.create_future()
        self._question = question
        # Random, so that hosts that started together do not all poll again together.
        self._timer = loop.call_later(POLL_S * random.uniform(0.75, 1.25), self._void)
        if self._waiting:
            self._answer()
        return question

    def drop(self, command: Command) -> None:
        """Remove a command whose result is no longer needed."""
        self._given.pop(command.command_id, None)
        self._unconfirmed.discard(command.command_id)
        self._until.pop(command.command_id, None)
        for waiting in list(self._waiting):
            if waiting.command_id == command.command_id:
                self._waiting.remove(waiting)

    def renew(self) -> None:
        """Handle a restart of the process: close the poll of the previous one, and queue the commands that it
        did not answer again.
        """
        self._last_contact = time.monotonic()
        self._void()
        self._queue_again([*self._given.values()])

    def _queue_again(self, commands: Sequence[Command]) -> None:
        """Queue commands that were sent again, before those that were not."""
        self._waiting.extendleft(reversed(commands))
        for command in commands:
            del self._given[command.command_id]
            self._unconfirmed.discard(command.command_id)

    def _answer(self) -> None:
        """Answer the open poll with all queued commands."""
        commands = [self._with_time_left(command) for command in self._waiting]
        self._waiting.clear()
        self._given.update((command.command_id, command) for command in commands)
        self._unconfirmed.update(command.command_id for command in commands)
        self._close_question(commands)

    def _with_time_left(self, command: Command) -> Command:
        until = self._until.get(command.command_id)
        if until is None:
            return command
        remaining_s = max(0.0, until - time.monotonic())
        return msgspec.structs.replace(command, seconds=min(command.seconds, remaining_s))

    def _void(self) -> None:
        """Answer the open poll, if there is one, with nothing."""
        self._close_question([])

    def _close_question(self, commands: list[Command]) -> None:
        question, self._question = self._question, None
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        if question is not None and not question.done():
            question.set_result(commands)

    def close(self) -> None:
        """Resolve all pending results with None, because the process has ended."""
        for answer in self.open:
            if not answer.done():
                answer.set_result(None)
