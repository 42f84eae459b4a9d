"""What a client may repeat as often as it likes is paced, so that most of the time is for others.

With each token one search, and one screen of the page, is made at a time, and the next after a rest that
depends on what was computed for the last one, wherever that was. How busy others keep the processes is
not its client's doing, and makes no rest longer. Who asks now and then does not notice.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from schedulemesh.protocol.answers import AnyAnswer, search_seconds
from schedulemesh.protocol.processor_time import ProcessorTime

AnswerT = TypeVar("AnswerT", AnyAnswer, bytes)
Value = TypeVar("Value")

#: The rest after something, in times of what was computed for it, and in seconds at most.
REST, MAX_REST_S = 4.0, 2.0
#: The rest after a search, in the same.
SEARCH_REST = 20.0


class Elsewhere:
    """What was computed for something in other processes and threads."""

    def __init__(self) -> None:
        self.seconds = 0.0


class TokenPace:
    """Lets one piece of work be done at a time, with a rest after each. ``clock``: the processor time of the
    thread of the event loop.
    """

    def __init__(self, clock: Callable[[], float] = time.thread_time) -> None:
        self._clock = clock
        self._turn = asyncio.Lock()
        #: The time of the loop before which nothing further begins.
        self._rests_until = 0.0

    async def run(self, work: Callable[[Elsewhere], Awaitable[Value]]) -> Value:
        """The result of work, done in its turn. ``work`` adds to what it gets what is computed for it
        elsewhere.

        What has begun keeps its turn to its end though its client goes away: others compute it to its end
        as well.
        """
        await self._turn.acquire()
        try:
            await asyncio.sleep(max(0.0, self._rests_until - asyncio.get_running_loop().time()))
        except BaseException:
            self._turn.release()
            raise
        return await asyncio.shield(asyncio.ensure_future(self._done(work)))

    async def _done(self, work: Callable[[Elsewhere], Awaitable[Value]]) -> Value:
        """Do work whose turn it is, and set how long the next one waits."""
        loop, elsewhere = asyncio.get_running_loop(), Elsewhere()

        async def worked() -> Value:
            return await work(elsewhere)

        timed = ProcessorTime(worked(), self._clock)
        try:
            return await timed
        finally:
            rest_s = self.rest_after(elsewhere.seconds + timed.seconds)
            self._rests_until = loop.time() + min(MAX_REST_S, rest_s)
            self._turn.release()

    def rest_after(self, computed_s: float) -> float:
        """Seconds of the rest after what was computed for so many, if they are not too many."""
        return REST * computed_s


class SearchPace(TokenPace):
    """That of searches: a dry run, an evaluation or an explanation changes nothing, but may take the
    supervisor a hundred times as long as a read of a list, without serving others meanwhile.
    """

    async def search(
        self, ask: Callable[[], Awaitable[AnswerT]], respond: Callable[[AnswerT], Value]
    ) -> Value:
        """What ``respond`` makes of the answer to a search, which is asked for in its turn."""
        return await self.run(partial(_answered, ask, respond))


class TokenSearchPace(SearchPace):
    """That of the searches with one token. Pages of all tokens have a ``SearchPace`` together, in which none
    may make the others wait for long.
    """

    def rest_after(self, computed_s: float) -> float:
        """See TokenPace. Others wait for the rest of a search that is under way, so searches are to be under
        way for a small part of the time.
        """
        return SEARCH_REST * computed_s


async def _answered(
    ask: Callable[[], Awaitable[AnswerT]],
    respond: Callable[[AnswerT], Value],
    elsewhere: Elsewhere,
) -> Value:
    answer = await ask()
    # Before the answer is looked at: what is refused has been searched, too.
    elsewhere.seconds += search_seconds(answer)
    return respond(answer)
