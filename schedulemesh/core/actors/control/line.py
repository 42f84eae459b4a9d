"""The line to one agent's process: commands go out where it asks for them."""

from __future__ import annotations

import asyncio
import random
from collections import deque

from schedulemesh.core.wire import Command, Result

#: A host's question for commands is answered after this many seconds even if there are none.
POLL_S = 90.0


class Line:
    """Commands for one agent's process, and their results."""

    def __init__(self) -> None:
        self._waiting: deque[Command] = deque()
        #: By id, what the process was given and has not answered.
        self._given: dict[int, Command] = {}
        self._arrived = asyncio.Event()
        #: Questions so far; only the last one is answered with commands.
        self._asked = 0
        #: Answers that somebody waits for.
        self.open: set[asyncio.Future[Result | None]] = set()

    def send(self, command: Command) -> None:
        """Queue a command for the host's next question."""
        self._waiting.append(command)
        self._arrived.set()

    async def receive(self) -> list[Command]:
        """What is queued, as soon as there is anything. An earlier question gets nothing any more: who asked
        it may be a process that died since.
        """
        self._asked += 1
        mine = self._asked
        try:
            # Spread, so that hosts that began together do not all ask again together.
            await asyncio.wait_for(self._arrived.wait(), POLL_S * random.uniform(0.75, 1.25))
        except (asyncio.TimeoutError, TimeoutError):
            return []
        if mine != self._asked:
            return []
        self._arrived.clear()
        commands = list(self._waiting)
        self._waiting.clear()
        self._given.update((command.command_id, command) for command in commands)
        return commands

    def drop(self, command: Command) -> None:
        """Nobody waits for its result any more."""
        self._given.pop(command.command_id, None)
        if command in self._waiting:
            self._waiting.remove(command)

    def renew(self) -> None:
        """The process is another: the former one's question is void, and what it was given and did not answer
        is given again.
        """
        self._asked += 1
        self._waiting.extendleft(reversed(self._given.values()))
        self._given.clear()
        if self._waiting:
            self._arrived.set()

    def close(self) -> None:
        """The process is gone: whoever waits for its answers need wait no longer."""
        for answer in self.open:
            if not answer.done():
                answer.set_result(None)
