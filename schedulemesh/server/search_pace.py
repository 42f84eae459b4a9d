"""Searches that a client may repeat as often as it likes are paced, so that most of the time is for others.

A dry run, an evaluation or an explanation changes nothing, but may take the supervisor a hundred times as
long as a read of a list. With each token one of them is made at a time, and the next after a rest of ``REST``
times what the last one took. Who asks now and then does not notice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from schedulemesh.api.call import Call
from schedulemesh.api.preemption import EvaluatePreemption
from schedulemesh.api.tasks import ExplainTask, SubmitTask

Value = TypeVar("Value")

#: The rest after a search, in times of what it took, and in seconds at most.
REST, MAX_REST_S = 4.0, 1.0


def is_search(call: Call) -> bool:
    """Whether a call searches, for as long as that takes, and changes nothing."""
    if isinstance(call, SubmitTask):
        return call.submission.dry_run
    return isinstance(call, (EvaluatePreemption, ExplainTask))


class SearchPace:
    """The searches with one token, or those of all pages."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        #: The time of the loop before which no further search begins.
        self._rests_until = 0.0

    async def search(self, ask: Callable[[], Awaitable[Value]]) -> Value:
        """The answer to a search, in its turn."""
        clock = asyncio.get_running_loop().time
        async with self._turn:
            await asyncio.sleep(max(0.0, self._rests_until - clock()))
            began = clock()
            try:
                return await ask()
            finally:
                now = clock()
                self._rests_until = now + min(MAX_REST_S, REST * (now - began))
