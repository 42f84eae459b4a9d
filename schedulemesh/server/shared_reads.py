"""Equal reads of several clients at the same time become one request to the supervisor."""

from __future__ import annotations

import asyncio

import msgspec

from schedulemesh.api.call import Call
from schedulemesh.protocol.answers import AnyAnswer
from schedulemesh.protocol.long_answers import read_long_answer
from schedulemesh.protocol.portions import PortionTurns
from schedulemesh.protocol.requests import encode_request
from schedulemesh.server.gateway import SupervisorClient


class _Reading(msgspec.Struct):
    """One read: the request that is under way, and the one that follows it."""

    now: asyncio.Task[AnyAnswer]
    #: For those who came after ``now`` had begun, and must see what was changed until they came.
    then: asyncio.Task[AnyAnswer] | None = None


class SharedReads:
    """Makes at most one request of a kind at a time, however many clients want the answer.

    Whoever asks gets an answer that was made after they had asked.
    """

    def __init__(self, gateway: SupervisorClient) -> None:
        self._gateway = gateway
        #: Those of this process in which long answers are decoded and encoded.
        self.turns = PortionTurns()
        self._readings: dict[bytes, _Reading] = {}

    async def ask(self, request: Call) -> AnyAnswer:
        """The answer to a request that changes nothing."""
        key = encode_request(request)
        reading = self._readings.get(key)
        if reading is None:
            task = asyncio.ensure_future(self._read(key, request))
            self._readings[key] = _Reading(now=task)
        elif reading.then is None:
            task = reading.then = asyncio.ensure_future(self._read(key, request, reading.now))
        else:
            task = reading.then
        # One client that disconnects does not cancel what others wait for.
        return await asyncio.shield(task)

    async def _read(
        self, key: bytes, request: Call, after: asyncio.Task[AnyAnswer] | None = None
    ) -> AnyAnswer:
        if after is not None:
            await asyncio.wait([after])
        try:
            return await read_long_answer(await self._gateway.ask_packed(request), self.turns)
        finally:
            self._done(key)

    def _done(self, key: bytes) -> None:
        following = self._readings.pop(key).then
        if following is not None and following is not asyncio.current_task():
            self._readings[key] = _Reading(now=following)
