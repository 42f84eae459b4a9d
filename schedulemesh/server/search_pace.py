"""Searches that a client may repeat as often as it likes are paced, so that most of the time is for others.

A dry run, an evaluation or an explanation changes nothing, but may take the supervisor a hundred times as
long as a read of a list. With each token one of them is made at a time, and the next after a rest of ``REST``
times what the last one has computed: what the supervisor says that it took of its processor, and what this
process has computed to read and encode the answer. How busy others keep both is not its client's doing, and
makes no rest longer. Who asks now and then does not notice.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from schedulemesh.protocol.answers import AnyAnswer, search_seconds
from schedulemesh.protocol.processor_time import ProcessorTime

AnswerT = TypeVar("AnswerT", AnyAnswer, bytes)
Value = TypeVar("Value")

#: The rest after a search, in times of what was computed for it, and in seconds at most.
REST, MAX_REST_S = 4.0, 1.0


class SearchPace:
    """The searches with one token, or those of all pages. ``clock``: the processor time of this thread."""

    def __init__(self, clock: Callable[[], float] = time.thread_time) -> None:
        self._clock = clock
        self._turn = asyncio.Lock()
        #: The time of the loop before which no further search begins.
        self._rests_until = 0.0

    async def search(
        self, ask: Callable[[], Awaitable[AnswerT]], respond: Callable[[AnswerT], Value]
    ) -> Value:
        """What ``respond`` makes of the answer to a search, which is asked for in its turn.

        A search that was asked for keeps its turn to its end though its client goes away, because the
        supervisor makes it to its end as well.
        """
        await self._turn.acquire()
        try:
            await asyncio.sleep(max(0.0, self._rests_until - asyncio.get_running_loop().time()))
        except BaseException:
            self._turn.release()
            raise
        return await asyncio.shield(asyncio.ensure_future(self._made(ask, respond)))

    async def _made(
        self, ask: Callable[[], Awaitable[AnswerT]], respond: Callable[[AnswerT], Value]
    ) -> Value:
        """Make a search whose turn it is, and set how long the next one waits."""
        loop = asyncio.get_running_loop()
        search_s = 0.0

        async def answered() -> Value:
            nonlocal search_s
            answer = await ask()
            # Before the answer is looked at: what is refused has been searched, too.
            search_s = search_seconds(answer)
            return respond(answer)

        timed = ProcessorTime(answered(), self._clock)
        try:
            return await timed
        finally:
            rest_s = min(MAX_REST_S, REST * (search_s + timed.seconds))
            self._rests_until = loop.time() + rest_s
            self._turn.release()
