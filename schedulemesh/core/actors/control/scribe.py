"""The single writer: stamp a stimulus, decide, make the facts durable, and only then act and answer."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from schedulemesh.engine.engine import Engine
from schedulemesh.engine.facts import AgentEnded
from schedulemesh.engine.instructions import AnswerRequest, AnyInstruction
from schedulemesh.engine.outcomes import RequestOutcome
from schedulemesh.engine.state import MeshState
from schedulemesh.engine.stimuli import AnyStimulus, SupervisorBegan
from schedulemesh.engine.turn import Step
from schedulemesh.errors import JournalError
from schedulemesh.store.journal import Journal
from schedulemesh.store.writer import GroupWriter

logger = logging.getLogger(__name__)

#: Seconds between attempts to write a journal that failed: doubled from the first to the last.
_RETRY_S, _RETRY_MAX_S = 0.2, 10.0


class Scribe:
    """Holds the engine and its journal. All of it runs on one event loop.

    While the journal cannot be written, the state is what is durable: reads go on, changes raise
    JournalError, and writing is tried again until it works.
    """

    def __init__(
        self, journal: Journal, strategy: str, carry_out: Callable[[AnyInstruction], None]
    ) -> None:
        self._journal = journal
        self._strategy = strategy
        self._carry_out = carry_out
        self._writer = GroupWriter(journal)
        self._healthy = asyncio.Event()
        self._healthy.set()
        self._last = 0.0
        self._answers: dict[str, list[asyncio.Future[RequestOutcome]]] = {}
        self._ends: dict[str, list[asyncio.Future[None]]] = {}
        self._healing: asyncio.Task[None] | None = None
        self.engine = self._refolded()

    @property
    def state(self) -> MeshState:
        """The state as decided; what is not durable yet is never told outside."""
        return self.engine.state

    def now(self) -> float:
        """Seconds since 1970, never going back."""
        self._last = max(self._last, time.time())
        return self._last

    async def begin(self) -> int:
        """Take the journal over; returns the epoch of this life."""
        epoch = self._journal.begin()
        await self.step(SupervisorBegan(at=0.0, epoch=epoch))
        return epoch

    async def step(self, stimulus: AnyStimulus, blobs: Mapping[str, bytes] | None = None) -> Step:
        """Decide, and return once the facts (and the blobs, where there are facts) are durable.

        Instructions are carried out by then. Raises JournalError where they could not be kept; then
        nothing changed.
        """
        if not self._healthy.is_set():
            raise JournalError("the journal cannot be written at present; try again later")
        step = self.engine.handle(msgspec.structs.replace(stimulus, at=self.now()))
        try:
            if step.facts:
                await self._writer.append(step.facts, blobs)
            else:
                await self._writer.flushed()
        except JournalError:
            self._fall_back()
            raise
        for fact in step.facts:
            if isinstance(fact, AgentEnded):
                self._settle(self._ends.pop(fact.agent_name, ()), None)
        for instruction in step.instructions:
            if isinstance(instruction, AnswerRequest):
                answer = self.state.answers[instruction.request_id].outcome
                self._settle(self._answers.pop(instruction.request_id, ()), answer)
            else:
                self._carry_out(instruction)
        return step

    async def report(self, stimulus: AnyStimulus, blobs: Mapping[str, bytes] | None = None) -> Step:
        """As ``step``, for what the hands did: it has happened, so it is tried until it is kept."""
        while True:
            try:
                return await self.step(stimulus, blobs)
            except JournalError:
                await self._healthy.wait()

    async def flushed(self) -> None:
        """Return once all that was decided is durable, so that a read may tell it."""
        try:
            await self._writer.flushed()
        except JournalError:
            self._fall_back()

    def answer(self, request_id: str) -> asyncio.Future[RequestOutcome]:
        """The final outcome of a request, once it is durable."""
        future: asyncio.Future[RequestOutcome] = asyncio.get_running_loop().create_future()
        known = self.state.answers.get(request_id)
        if known is not None:
            future.set_result(known.outcome)
        else:
            self._answers.setdefault(request_id, []).append(future)
        return future

    def end_of(self, agent_name: str) -> asyncio.Future[None]:
        """Done once the agent is durably off the book."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if agent_name not in self.state.agents:
            future.set_result(None)
        else:
            self._ends.setdefault(agent_name, []).append(future)
        return future

    async def keep(self, blobs: Mapping[str, bytes]) -> None:
        """Store blobs without a fact."""
        await self._writer.append((), blobs)

    async def blob(self, key: str | None) -> bytes | None:
        """Stored bytes; None: there are none."""
        if key is None:
            return None
        return await asyncio.get_running_loop().run_in_executor(None, self._journal.blob, key)

    async def close(self, *, destroy: bool) -> None:
        """Write what is queued and let the journal go, or forget it all."""
        if self._healing is not None:
            self._healing.cancel()
        await self._writer.close()
        if destroy:
            self._journal.destroy()
        else:
            self._journal.close()

    def _refolded(self) -> Engine:
        return Engine(MeshState.fold(self._journal.facts()), self._strategy)

    def _fall_back(self) -> None:
        """Go back to what is durable, and try to write again."""
        if not self._healthy.is_set():
            return
        logger.error("the journal cannot be written; changes are refused until it can")
        self._healthy.clear()
        self._healing = asyncio.ensure_future(self._heal())

    async def _heal(self) -> None:
        wait_s = _RETRY_S
        loop = asyncio.get_running_loop()
        while True:
            try:
                self.engine = self._refolded()
                await loop.run_in_executor(None, self._journal.append, (), {})
                break
            except JournalError as error:
                logger.warning("the journal still cannot be written: %s", error)
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, _RETRY_MAX_S)
        self._writer.resume()
        self._healthy.set()
        logger.warning("the journal can be written again")

    def _settle(self, futures: Any, value: Any) -> None:
        for future in futures:
            if not future.done():
                future.set_result(value)
