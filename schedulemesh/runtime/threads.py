"""Calls that block, such as those of the journal, run in a thread, and work on many bytes, too."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")


#: Bytes from which data is packed, copied or hashed in a thread: the event loop would stand still for 1 ms.
LARGE_BYTES = 1024 * 1024


async def in_thread(call: Callable[[], Value]) -> Value:
    """The result of a function that blocks; it runs in a thread of the event loop's default executor."""
    return await asyncio.get_running_loop().run_in_executor(None, call)


async def beside_loop(size: int, call: Callable[[], Value]) -> Value:
    """The result of a function that works on so many bytes; in a thread if they are many."""
    return await in_thread(call) if size >= LARGE_BYTES else call()
