"""Equal reads of several clients at the same time become one request to the supervisor."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Protocol

import msgspec

from schedulemesh.api.call import Call
from schedulemesh.protocol.answers import AnyAnswer
from schedulemesh.protocol.long_answers import read_long_answer
from schedulemesh.protocol.portions import PortionTurns
from schedulemesh.protocol.requests import encode_request


class PackedAnswers(Protocol):
    """What answers reads with the bytes of the supervisor, as ``SupervisorClient`` does."""

    async def ask_packed(self, request: Call) -> bytes:
        """The encoded answer. Raises SchedulerUnavailableError."""


class _Reading(msgspec.Struct):
    """One read: the request that is under way, and the one that follows it."""

    #: Done when the request has ended. Of one that nobody shares, see ``_read_alone``, it has no result.
    now: asyncio.Future[AnyAnswer]
    #: What whoever began ``now`` knew of the time, see ``SharedReads.ask``; None: nothing.
    stamp: object = None
    #: For those who came after ``now`` had begun, and must see what was changed until they came.
    then: asyncio.Future[AnyAnswer] | None = None
    then_stamp: object = None


class SharedReads:
    """Makes at most one request of a kind at a time, however many clients want the answer.

    Whoever asks gets an answer that was made after they had asked. A read for which nobody waits any more is
    given up.
    """

    def __init__(self, gateway: PackedAnswers) -> None:
        self._gateway = gateway
        #: Those of this process in which long answers are decoded and encoded.
        self.turns = PortionTurns()
        self._readings: dict[bytes, _Reading] = {}
        #: How many clients wait for each; a read for which nobody does is given up.
        self._waiting: Counter[asyncio.Future[AnyAnswer]] = Counter()

    async def ask(self, request: Call, stamp: object = None) -> AnyAnswer:
        """The answer to a request that changes nothing. ``stamp``: up to what the answer has to be true, such
        as the last event that is known; a read that began with an equal one will do. None: up to now.
        """
        key = encode_request(request)
        reading = self._readings.get(key)
        if reading is None and stamp is None:
            return await self._read_alone(key, request)
        task: asyncio.Future[AnyAnswer]
        if reading is None:
            task = asyncio.ensure_future(self._read(key, request))
            self._readings[key] = _Reading(now=task, stamp=stamp)
        elif stamp is not None and reading.stamp == stamp:
            task = reading.now
        elif reading.then is None:
            task = reading.then = asyncio.ensure_future(self._read(key, request, reading.now))
            reading.then_stamp = stamp
        else:
            task = reading.then
        self._waiting[task] += 1
        try:
            # One client that disconnects does not cancel what others wait for.
            return await asyncio.shield(task)
        finally:
            self._waiting[task] -= 1
            if not self._waiting[task]:
                self._give_up(key, task)

    async def _read_alone(self, key: bytes, request: Call) -> AnyAnswer:
        """As ``ask``, where no such read is under way. Nobody shares its answer, so it needs no task of its
        own, which would cost as much as all else that is done here. Who comes meanwhile waits for its end.
        """
        ended: asyncio.Future[AnyAnswer] = asyncio.get_running_loop().create_future()
        self._readings[key] = _Reading(now=ended)
        try:
            return await self._answer(request)
        finally:
            ended.cancel()
            self._done(key, ended)

    async def _read(
        self, key: bytes, request: Call, after: asyncio.Future[AnyAnswer] | None = None
    ) -> AnyAnswer:
        if after is not None:
            await asyncio.wait([after])
        try:
            return await self._answer(request)
        finally:
            self._done(key, asyncio.current_task())

    async def _answer(self, request: Call) -> AnyAnswer:
        return await read_long_answer(await self._gateway.ask_packed(request), self.turns)

    def _give_up(self, key: bytes, task: asyncio.Future[AnyAnswer]) -> None:
        """Nobody waits for a read: it has ended, or is not needed."""
        del self._waiting[task]
        reading = self._readings.get(key)
        # Whoever comes now must not wait for it.
        if reading is not None and reading.then is task:
            reading.then = None
        elif reading is not None and reading.now is task:
            reading.stamp = None
        task.cancel()

    def _done(self, key: bytes, ended: asyncio.Future[AnyAnswer] | None) -> None:
        reading = self._readings.get(key)
        if reading is None or reading.now is not ended:
            return  # it was given up before it began
        if reading.then is None:
            del self._readings[key]
        else:
            self._readings[key] = _Reading(now=reading.then, stamp=reading.then_stamp)
