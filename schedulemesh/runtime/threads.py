"""Calls that block, such as those of the journal, run in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")


async def in_thread(call: Callable[[], Value]) -> Value:
    """The result of a function that blocks; it runs in a thread of the event loop's default executor."""
    return await asyncio.get_running_loop().run_in_executor(None, call)
