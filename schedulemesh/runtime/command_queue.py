"""The line to one agent's process: commands go out where it asks for them."""

from __future__ import annotations

import asyncio
import random
from collections import deque

from schedulemesh.protocol.agents import Command, Result

#: A host's question for commands is answered after this many seconds even if there are none.
POLL_S = 90.0


class CommandQueue:
    """Commands for one agent's process, and their results.

    Thousands of processes each have one question open all the time, so a question is a future and a timer,
    and nothing else.
    """

    def __init__(self) -> None:
        self._waiting: deque[Command] = deque()
        #: By id, what the process was given and has not answered.
        self._given: dict[int, Command] = {}
        #: The question that is open, and when it is answered whatever comes; None: the process carries out
        #: what it was given, or has not asked yet.
        self._question: asyncio.Future[list[Command]] | None = None
        self._timer: asyncio.TimerHandle | None = None
        #: Answers that somebody waits for.
        self.open: set[asyncio.Future[Result | None]] = set()

    def send(self, command: Command) -> None:
        """Queue a command; it goes out with the open question, or with the next."""
        self._waiting.append(command)
        if self._question is not None:
            self._answer()

    def ask(self) -> asyncio.Future[list[Command]]:
        """What is queued, as soon as there is anything. An earlier question gets nothing any more: who asked
        it may be a process that died since.
        """
        self._void()
        loop = asyncio.get_running_loop()
        question: asyncio.Future[list[Command]] = loop.create_future()
        self._question = question
        # Spread, so that hosts that began together do not all ask again together.
        self._timer = loop.call_later(POLL_S * random.uniform(0.75, 1.25), self._void)
        if self._waiting:
            self._answer()
        return question

    def drop(self, command: Command) -> None:
        """Nobody waits for its result any more."""
        self._given.pop(command.command_id, None)
        if command in self._waiting:
            self._waiting.remove(command)

    def renew(self) -> None:
        """The process is another: the former one's question is void, and what it was given and did not answer
        is given again.
        """
        self._void()
        self._waiting.extendleft(reversed(self._given.values()))
        self._given.clear()

    def _answer(self) -> None:
        """Answer the open question with all that is queued."""
        commands = list(self._waiting)
        self._waiting.clear()
        self._given.update((command.command_id, command) for command in commands)
        self._close_question(commands)

    def _void(self) -> None:
        """Answer the open question, if there is one, with nothing."""
        self._close_question([])

    def _close_question(self, commands: list[Command]) -> None:
        question, self._question = self._question, None
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        if question is not None and not question.done():
            question.set_result(commands)

    def close(self) -> None:
        """The process is gone: whoever waits for its answers need wait no longer."""
        for answer in self.open:
            if not answer.done():
                answer.set_result(None)
