"""What is done for a client is given up when it has gone away: it would take the place of what others ask."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from starlette.types import Receive

from schedulemesh.server.problems import Problem

Value = TypeVar("Value")


async def wait_for_disconnect(receive: Receive) -> None:
    """Return when the client has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        continue


async def while_connected(
    receive: Receive,
    work: Callable[[], Awaitable[Value]],
    turn: asyncio.Semaphore | None = None,
    *,
    ends: bool = True,
) -> Value:
    """The result of work for a client. Raises Problem where the client goes away before; the work is
    cancelled then, or goes on without it where not ``ends``. ``turn``: held while the work is done.
    """
    working = asyncio.ensure_future(_in_turn(work, turn))
    gone = asyncio.ensure_future(wait_for_disconnect(receive))
    try:
        await asyncio.wait((working, gone), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise Problem(408, "disconnected", "the client has gone away")
    finally:
        gone.cancel()
        if ends:
            working.cancel()
        else:
            working.add_done_callback(_retrieve)


async def _in_turn(work: Callable[[], Awaitable[Value]], turn: asyncio.Semaphore | None) -> Value:
    if turn is None:
        return await work()
    async with turn:
        return await work()


def _retrieve(working: asyncio.Future[Value]) -> None:
    """Take the error of work that nobody waits for, or asyncio reports it as lost."""
    if not working.cancelled():
        working.exception()
