"""Commands to the processes of agents, and their results."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterable

import msgspec
from typing_extensions import TypedDict, Unpack

from schedulemesh.protocol.agents import Command, CommandResult, MessageError, unpack
from schedulemesh.runtime.agents.command_queue import CommandQueue

#: Bits of the id of a command: as many as a signed number has in a message.
_ID_BITS = 63


class _Parts(msgspec.Struct, kw_only=True):
    """What came of a large result so far."""

    limit_bytes: int
    size: int = 0
    taken: list[bytes] = []


class CommandFields(TypedDict, total=False):
    """What commands of some kinds carry; see Command."""

    task_id: str
    seconds: float
    limit_bytes: int
    ranks: tuple[int, ...]
    order: bytes


class AgentCommands:
    """Sends commands to agents by name and incarnation; the agent's process polls for them."""

    def __init__(self, queue_of: Callable[[str, int], CommandQueue | None]) -> None:
        #: The command queue of an agent that is not being ended.
        self._queue_of = queue_of
        self._epoch = 0
        #: Results that are waited for, by command.
        self._results: dict[int, asyncio.Future[CommandResult | None]] = {}
        #: Parts of large results, by command.
        self._parts: dict[int, _Parts] = {}

    def begin_epoch(self, epoch: int) -> None:
        """Commands carry this epoch from now on."""
        self._epoch = epoch

    def seconds_since_contact(self, name: str, incarnation: int) -> float:
        """Seconds since the process last polled; infinite: it is unknown."""
        queue = self._queue_of(name, incarnation)
        return float("inf") if queue is None else queue.seconds_since_contact()

    def silent_s(self, name: str, incarnation: int) -> float:
        """See CommandQueue; infinite: the agent is unknown."""
        queue = self._queue_of(name, incarnation)
        return float("inf") if queue is None else queue.silent_s()

    def is_awaited(self, name: str, incarnation: int) -> bool:
        """Whether somebody waits for the result of a command, whose time is not over: the process may carry
        it out, and polls for nothing else meanwhile.
        """
        queue = self._queue_of(name, incarnation)
        return queue is not None and bool(queue.open)

    async def execute(
        self,
        name: str,
        incarnation: int,
        kind: str,
        timeout_s: float,
        *,
        until: float | None = None,
        **fields: Unpack[CommandFields],
    ) -> CommandResult | None:
        """Have a host execute a command; None: no answer in time, or there is no such agent any more.
        ``until``: see CommandQueue.send.
        """
        queue = self._queue_of(name, incarnation)
        if queue is None:
            return None
        # Random, so that no earlier supervisor used it, and who answers it is the process that received it.
        number = secrets.randbits(_ID_BITS)
        command = Command(
            command_id=number, epoch=self._epoch, kind=kind, within_s=timeout_s, **fields
        )
        answer: asyncio.Future[CommandResult | None] = asyncio.get_running_loop().create_future()
        self._results[command.command_id] = answer
        self._parts[command.command_id] = _Parts(limit_bytes=command.limit_bytes)
        queue.open.add(answer)
        queue.send(command, until)
        try:
            result = await asyncio.wait_for(answer, timeout_s)
        except (asyncio.TimeoutError, TimeoutError):
            return None
        else:
            if result is not None:
                queue.note_result()
            return result
        finally:
            queue.open.discard(answer)
            queue.drop(command)
            self._results.pop(command.command_id, None)
            self._parts.pop(command.command_id, None)

    def poll(
        self, name: str, incarnation: int, received: Iterable[int] = ()
    ) -> asyncio.Future[list[Command]]:
        """A host asks for commands, and says which it has received. One that is being ended gets none, and
        waits.
        """
        return (self._queue_of(name, incarnation) or CommandQueue()).ask(received)

    def part(self, command_id: int, begin: int, data: object) -> bool:
        """A host sends a part of a large result; False: nobody waits for it, or it is not what is due. One
        whose answer was lost comes again.
        """
        parts = self._parts.get(command_id)
        if parts is None or type(data) is not bytes or begin > parts.size:
            return False
        if begin < parts.size:
            return begin + len(data) == parts.size and parts.taken[-1] == data
        if parts.size + len(data) > parts.limit_bytes:
            return False
        parts.taken.append(data)
        parts.size += len(data)
        return True

    def done(self, command_id: int, message: bytes) -> CommandResult | None:
        """A host answers a command; an answer that cannot be read is a failure of that command.

        Returns the result before its caller gets it; None: nobody waits for it.
        """
        answer = self._results.get(command_id)
        if answer is None or answer.done():
            return None
        try:
            result = self._whole(command_id, unpack(message, CommandResult))
        except MessageError as error:
            result = CommandResult(error=str(error), success=False)
        answer.set_result(result)
        return result

    def _whole(self, command_id: int, result: CommandResult) -> CommandResult:
        """The result with the parts that went ahead. Raises MessageError where some are missing."""
        if not result.part_bytes:
            return result
        parts = self._parts.pop(command_id, None)
        if parts is None or parts.size != result.part_bytes:
            raise MessageError("parts of the result are missing")
        return msgspec.structs.replace(result, data=b"".join(parts.taken))
