"""The single writer: stamp a stimulus, decide, make the facts durable, and only then act and answer."""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from schedulemesh.config.settings import JournalSettings
from schedulemesh.engine.codec import encode_part
from schedulemesh.engine.engine import Engine
from schedulemesh.engine.messages.facts import AgentEnded
from schedulemesh.engine.messages.instructions import AnswerRequest, AnyInstruction
from schedulemesh.engine.messages.outcomes import RequestOutcome
from schedulemesh.engine.messages.stimuli import (
    AnyStimulus,
    StatesOutlived,
    StateStored,
    SupervisorBegan,
)
from schedulemesh.engine.placement.strategies import Strategies
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.snapshot import Snapshot, parts, past_states, picture, referenced
from schedulemesh.engine.transaction import Step
from schedulemesh.errors import JournalError, JournalTakenOverError
from schedulemesh.store.journal import Journal
from schedulemesh.store.writer import GroupWriter

logger = logging.getLogger(__name__)

Value = TypeVar("Value")

#: Seconds between attempts to write a journal that failed: doubled from the first to the last.
_RETRY_S, _RETRY_MAX_S = 0.2, 10.0
#: Seconds for which stored bytes are asked for again where the journal cannot be read.
_FETCH_S = 15.0


class Scribe:
    """Holds the engine and its journal. All of it runs on one event loop; ``begin`` comes first.

    While the journal cannot be written, the state is what is durable: reads go on, changes raise
    JournalError, and writing is tried again until it works.
    """

    def __init__(
        self, journal: Journal, strategies: Strategies, carry_out: Callable[[AnyInstruction], None]
    ) -> None:
        self._journal = journal
        self._strategies = strategies
        self._carry_out = carry_out
        self._settings = JournalSettings()
        self._writer: GroupWriter = None  # type: ignore[assignment]  # set when it begins
        self._healthy = asyncio.Event()
        self._healthy.set()
        self._trouble = ""
        self._last = 0.0
        self._answers: dict[str, list[asyncio.Future[RequestOutcome]]] = {}
        self._ends: dict[str, list[asyncio.Future[None]]] = {}
        self._healing: asyncio.Task[None] | None = None
        self._tidying: asyncio.Task[None] | None = None
        self._tidied_at = time.monotonic()
        self.engine = Engine(strategies=strategies)

    @property
    def state(self) -> MeshState:
        """The state as decided; what is not durable yet is never told outside."""
        return self.engine.state

    def now(self) -> float:
        """Seconds since 1970, never going back."""
        self._last = max(self._last, time.time())
        return self._last

    async def begin(
        self, settings: JournalSettings | None = None, *, take_over: bool = False
    ) -> int:
        """Become the journal's writer and recover from it; returns the epoch of this life.

        ``take_over``: also from one that lives. Raises JournalError.
        """
        self._settings = settings or self._settings
        epoch = await _beside(functools.partial(self._journal.begin, take_over=take_over))
        stored = await _beside(self._journal.load)
        self.engine = Engine(await _beside(stored.fold), strategies=self._strategies)
        self._writer = GroupWriter(self._journal, stored)
        await self.step(SupervisorBegan(at=0.0, epoch=epoch))
        return epoch

    async def step(self, stimulus: AnyStimulus, blobs: Mapping[str, bytes] | None = None) -> Step:
        """Decide, and return once the facts (and the blobs, where there are facts) are durable.

        Instructions are carried out by then. Raises JournalError where they could not be kept; then
        nothing changed.
        """
        if not self._healthy.is_set():
            raise JournalError(
                f"the journal cannot be written, so nothing can be changed now: {self._trouble}"
            )
        if isinstance(stimulus, StateStored) and not self._small_enough(stimulus, blobs or {}):
            return Step()
        try:
            step = self.engine.handle(msgspec.structs.replace(stimulus, at=self.now()))
        except Exception:
            # A promise is broken half-way: what was made true of it must not stay.
            self._start_over()
            raise
        try:
            if step.facts:
                await self._writer.append(step.facts, blobs)
            else:
                await self._writer.flushed()
        except JournalError:
            self._fall_back()
            raise
        self._take_effect(step)
        self._tidy_if_due()
        return step

    async def report(self, stimulus: AnyStimulus, blobs: Mapping[str, bytes] | None = None) -> Step:
        """As ``step``, for what the hands did: it has happened, so it is tried until it is kept."""
        while True:
            try:
                return await self.step(stimulus, blobs)
            except JournalError:
                await self._healthy.wait()

    async def read(self, look: Callable[[], Value]) -> Value:
        """What ``look`` gives, once everything that it saw is durable; it looks again where that was taken
        back.
        """
        while True:
            seen, value = self.engine, look()
            await self.flushed()
            if self.engine is seen:
                return value

    async def flushed(self) -> None:
        """Return once all that was decided is durable, or was taken back."""
        try:
            await self._writer.flushed()
        except JournalError:
            self._fall_back()

    async def answer(self, request_id: str) -> RequestOutcome:
        """The final outcome of a request, once it is durable."""
        if request_id in self.state.answers:
            await self.flushed()
        known = self.state.answers.get(request_id)
        if known is not None:
            return known.outcome
        future: asyncio.Future[RequestOutcome] = asyncio.get_running_loop().create_future()
        self._answers.setdefault(request_id, []).append(future)
        return await future

    async def end_of(self, agent_name: str) -> None:
        """Return once the agent is durably off the book."""
        if agent_name not in self.state.agents:
            await self.flushed()
        if agent_name not in self.state.agents:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ends.setdefault(agent_name, []).append(future)
        await future

    async def keep(self, blobs: Mapping[str, bytes]) -> None:
        """Store blobs for a fact that is about to come."""
        try:
            await self._writer.append((), blobs)
        except JournalError:
            self._fall_back()
            raise

    async def blob(self, key: str | None) -> bytes | None:
        """Stored bytes; None: there are none."""
        return None if key is None else await _beside(functools.partial(self._journal.blob, key))

    async def fetch(self, key: str | None) -> bytes | None:
        """As ``blob``, for the hands, who cannot ask their caller to come again: tried for a while."""
        until = time.monotonic() + _FETCH_S
        while True:
            try:
                return await self.blob(key)
            except JournalError as error:
                if time.monotonic() > until:
                    raise
                logger.warning("%s; trying again", error)
            await asyncio.sleep(_RETRY_S)

    async def close(self, *, destroy: bool) -> None:
        """Write what is queued and let the journal go, or forget it all."""
        for task in (self._healing, self._tidying):
            if task is not None:
                task.cancel()
        if self._writer is not None:
            await self._writer.close()
        if destroy:
            self._journal.destroy()
        else:
            self._journal.close()

    def _take_effect(self, step: Step) -> None:
        """What the step decided is durable: tell those who wait, and have the hands act."""
        for fact in step.facts:
            if isinstance(fact, AgentEnded):
                _settle(self._ends.pop(fact.agent_name, []), None)
        for instruction in step.instructions:
            if isinstance(instruction, AnswerRequest):
                known = self.state.answers[instruction.request_id]
                _settle(self._answers.pop(instruction.request_id, []), known.outcome)
            else:
                self._carry_out(instruction)

    def _fall_back(self) -> None:
        """Go back to what is durable, and try to write again."""
        if not self._healthy.is_set() or not self._writer.broken:
            return
        self._healthy.clear()
        self.engine = Engine(self._writer.stored.fold(), strategies=self._strategies)
        self._healing = asyncio.ensure_future(self._heal())

    def _start_over(self) -> None:
        """Go back to what is durable, once what was decided before is."""
        self._healthy.clear()
        self._trouble = "a step failed half-way, and the books are being read again"
        self._healing = asyncio.ensure_future(self._refold())

    async def _refold(self) -> None:
        try:
            await self._writer.flushed()
        except JournalError:
            self._healthy.set()
            self._fall_back()
            return
        self.engine = Engine(self._writer.stored.fold(), strategies=self._strategies)
        self._healthy.set()

    async def _heal(self) -> None:
        wait_s = _RETRY_S
        while True:
            try:
                await self._writer.resume()
                break
            except JournalTakenOverError as error:
                self._trouble = str(error)
                logger.critical("this supervisor changes nothing any more: %s", error)
                return
            except JournalError as error:
                self._trouble = str(error)
                logger.warning("%s; changes are refused; next attempt in %g s", error, wait_s)
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, _RETRY_MAX_S)
        self._healthy.set()
        logger.warning("the journal can be written again")

    def _small_enough(self, stimulus: StateStored, blobs: Mapping[str, bytes]) -> bool:
        size, limit = len(blobs.get(stimulus.state_key, b"")), self._settings.saved_state_bytes
        if size <= limit:
            return True
        logger.error(
            "the saved state of task %s has %d bytes; more than saved_state_bytes, %d, are not kept",
            stimulus.task_id,
            size,
            limit,
        )
        return False

    def _tidy_if_due(self) -> None:
        """Begin a snapshot when enough has come since the last; one at a time."""
        if self._tidying is not None and not self._tidying.done():
            return
        limits, writer = self._settings, self._writer
        many = writer.fresh_facts >= limits.snapshot_facts
        many = many or writer.fresh_bytes >= limits.snapshot_bytes
        late = time.monotonic() - self._tidied_at >= limits.snapshot_s and writer.fresh_facts > 0
        # A snapshot of a large state must pay off.
        if late or (many and writer.fresh_bytes >= sum(map(len, writer.stored.parts))):
            self._tidied_at = time.monotonic()
            self._tidying = asyncio.ensure_future(self._tidy())

    async def _tidy(self) -> None:
        try:
            await self._forget_states()
            snapshot, keep = picture(self.state), referenced(self.state)
            upto = await self._writer.mark()
            written = await _beside(functools.partial(_encoded, snapshot))
            await self._writer.compact(written, upto, keep)
        except JournalError as error:
            logger.warning("no snapshot of the journal could be made: %s", error)

    async def _forget_states(self) -> None:
        """Let saved states go that are too old, and the oldest of too many."""
        sizes = await _beside(self._journal.blob_sizes)
        past = past_states(self.state)
        oldest = self.now() - self._settings.saved_state_s
        over = sum(sizes.get(key, 0) for key in past) - self._settings.saved_states_bytes
        outlived = []
        for key, at in past.items():
            if at >= oldest and over <= 0:
                break
            outlived.append(key)
            over -= sizes.get(key, 0)
        if outlived:
            logger.info("%d saved states are kept no longer", len(outlived))
            await self.step(StatesOutlived(at=0.0, state_keys=tuple(outlived)))


def _encoded(snapshot: Snapshot) -> list[bytes]:
    return [encode_part(part) for part in parts(snapshot)]


async def _beside(call: Callable[[], Value]) -> Value:
    """Run something that blocks beside the loop."""
    return await asyncio.get_running_loop().run_in_executor(None, call)


def _settle(futures: list[asyncio.Future[Any]], value: object) -> None:
    for future in futures:
        if not future.done():
            future.set_result(value)
