"""What is done for a client is given up when it has gone away: it would take the place of what others ask."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from starlette.types import Receive

from schedulemesh.server.problems import Problem

Value = TypeVar("Value")


class ClientPresence:
    """Whether the client of a connection is still there, for whoever works for it. ``listen``: has its end be
    noticed, which nobody notices while nothing is read of the connection.
    """

    def __init__(self, listen: Callable[[], None] = lambda: None) -> None:
        self._listen = listen
        self._is_gone = False
        self._callbacks: dict[Callable[[], object], None] = {}

    @property
    def is_gone(self) -> bool:
        """Whether the client has gone away."""
        return self._is_gone

    def call_when_gone(self, callback: Callable[[], object]) -> None:
        """Call this when the client goes away, or at once where it has, unless it is forgotten before."""
        if self._is_gone:
            callback()
            return
        self._callbacks[callback] = None
        self._listen()

    def forget(self, callback: Callable[[], object]) -> None:
        """Do not call this any more."""
        self._callbacks.pop(callback, None)

    def note_end(self) -> None:
        """The client has gone away."""
        self._is_gone = True
        callbacks, self._callbacks = self._callbacks, {}
        for callback in callbacks:
            callback()


async def wait_for_disconnect(receive: Receive) -> None:
    """Return when the client has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        continue


async def while_connected(
    client: ClientPresence,
    work: Callable[[], Awaitable[Value]],
    turn: asyncio.Semaphore | None = None,
    *,
    ends: bool = True,
) -> Value:
    """The result of work for a client. Raises Problem where the client goes away before; the work is
    cancelled then, or goes on without it where not ``ends``. ``turn``: held while the work is done.
    """
    if not ends:
        return await _outlasting(client, _in_turn(work, turn))
    if client.is_gone:
        raise _gone()
    # In the task of the request: one of its own would cost as much as a short read.
    cancel = _current_task().cancel
    client.call_when_gone(cancel)
    try:
        return await _in_turn(work, turn)
    except asyncio.CancelledError:
        if client.is_gone:
            raise _gone() from None
        raise
    finally:
        client.forget(cancel)


async def _outlasting(client: ClientPresence, work: Coroutine[Any, Any, Value]) -> Value:
    """The result of work that goes on when the client has gone away, which raises Problem then."""
    working = asyncio.ensure_future(work)
    gone = asyncio.get_running_loop().create_future()
    end = partial(_resolve, gone)
    client.call_when_gone(end)
    try:
        await asyncio.wait((working, gone), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise _gone()
    finally:
        client.forget(end)
        working.add_done_callback(_retrieve)


async def _in_turn(work: Callable[[], Awaitable[Value]], turn: asyncio.Semaphore | None) -> Value:
    if turn is None:
        return await work()
    async with turn:
        return await work()


def _current_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("a client is served in a task")
    return task


def _gone() -> Problem:
    return Problem(408, "disconnected", "the client has gone away")


def _resolve(gone: asyncio.Future[None]) -> None:
    if not gone.done():
        gone.set_result(None)


def _retrieve(working: asyncio.Future[Value]) -> None:
    """Take the error of work that nobody waits for, or asyncio reports it as lost."""
    if not working.cancelled():
        working.exception()
