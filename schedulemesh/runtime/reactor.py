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
from schedulemesh.engine.engine import Engine
from schedulemesh.engine.messages.facts import AgentEnded
from schedulemesh.engine.messages.instructions import AnswerRequest, AnyInstruction
from schedulemesh.engine.messages.outcomes import Refused, RequestOutcome
from schedulemesh.engine.messages.stimuli import AnyStimulus, StateStored, SupervisorBegan
from schedulemesh.engine.placement.strategies import Strategies
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.transaction import Step
from schedulemesh.errors import JournalError, JournalTakenOverError, NotStorableError
from schedulemesh.runtime.clock import ClockMark, SteadyClock
from schedulemesh.runtime.decision_log import log_facts
from schedulemesh.runtime.snapshots import Snapshots
from schedulemesh.runtime.witness import Seen
from schedulemesh.store.journal import Journal
from schedulemesh.store.recovery import Stored
from schedulemesh.store.writer import GroupWriter

logger = logging.getLogger(__name__)

Value = TypeVar("Value")

#: Seconds between attempts to write a journal that failed: doubled from the first to the last.
_RETRY_S, _RETRY_MAX_S = 0.2, 10.0
#: Seconds for which stored bytes are asked for again where the journal cannot be read.
_FETCH_S = 15.0
#: Numbers that are left out where some may have been given after the backup that was put back.
_GAP = 1_000_000
#: The journal's note of where the clock stood, and the seconds between two of them.
_CLOCK_NOTE, _CLOCK_S = "clock", 60.0


class Reactor:
    """Holds the engine and its journal. All of it runs on one event loop; ``begin`` comes first.

    While the journal cannot be written, the state is what is durable: reads go on, changes raise
    JournalError, and writing is tried again until it works.
    """

    def __init__(
        self,
        journal: Journal,
        strategies: Strategies,
        carry_out: Callable[[AnyInstruction], None],
        clock: SteadyClock | None = None,
    ) -> None:
        self._journal = journal
        self._strategies = strategies
        self._carry_out = carry_out
        self._settings = JournalSettings()
        self._writer: GroupWriter = None  # type: ignore[assignment]  # set when it begins
        #: Whether the journal is older than what was already true: a backup was put in its place.
        self.rolled_back = False
        self._clock = clock or SteadyClock()
        self._noted_at = 0.0
        self._healthy = asyncio.Event()
        self._healthy.set()
        self._trouble = ""
        #: Clear while the state holds half of a step that failed, and is being read again.
        self._whole = asyncio.Event()
        self._whole.set()
        self._answers: dict[str, list[asyncio.Future[RequestOutcome]]] = {}
        self._ends: dict[str, list[asyncio.Future[None]]] = {}
        self._healing: asyncio.Task[None] | None = None
        self._reloading: asyncio.Task[None] | None = None
        self._noting: asyncio.Task[None] | None = None
        self._snapshots: Snapshots | None = None
        self.engine = Engine(strategies=strategies)

    @property
    def state(self) -> MeshState:
        """The state as decided; what is not durable yet is never told outside."""
        return self.engine.state

    @property
    def saved_state_bytes(self) -> int:
        """Bytes that a stored state may have."""
        return self._settings.saved_state_bytes

    def now(self) -> float:
        """Seconds since 1970, never going back."""
        return self._clock.now()

    async def begin(
        self,
        settings: JournalSettings | None = None,
        *,
        take_over: bool = False,
        seen: Seen | None = None,
        newest_incarnation: int = 0,
    ) -> int:
        """Become the journal's writer and recover from it; returns the epoch of this life.

        ``take_over``: also from one that lives. ``seen``: what is known of former lives from elsewhere, and
        the highest ``newest_incarnation`` of an agent that lives. Raises JournalError.
        """
        self._settings = settings or self._settings
        seen = seen or Seen()
        epoch = await _beside(
            functools.partial(self._journal.begin, take_over=take_over, above=seen.epoch)
        )
        stored = await _beside(self._journal.load)
        self.engine = Engine(await _beside(stored.fold), strategies=self._strategies)
        self.rolled_back = stored.last > 0 and (
            seen.unresolved
            or self.state.epoch < seen.epoch
            or stored.last < seen.last
            or self.state.next_incarnation <= newest_incarnation
        )
        self._clock.resume(await _beside(self._last_mark), _newest(self.state))
        await _beside(self._note_clock)
        self._writer = GroupWriter(self._journal, stored)
        self._snapshots = Snapshots(self, self._journal, self._writer, self._settings)
        gap = _GAP if self.rolled_back else 0
        await self.step(SupervisorBegan(epoch=epoch, gap=gap))
        return epoch

    def height(self) -> Seen:
        """How far the journal came."""
        return Seen(epoch=self.state.epoch, last=self._journal.last)

    async def step(self, stimulus: AnyStimulus, blobs: Mapping[str, bytes] | None = None) -> Step:
        """Decide, and return once the facts (and the blobs, where there are facts) are durable.

        Instructions are carried out by then. Raises JournalError where they could not be kept, and
        NotStorableError where they can never be; then nothing changed.
        """
        while not self._whole.is_set():
            await self.whole()
        if not self._healthy.is_set():
            raise JournalError(
                f"the journal cannot be written, so nothing can be changed now: {self._trouble}"
            )
        if isinstance(stimulus, StateStored) and not self._small_enough(stimulus, blobs or {}):
            return Step()
        step, kept = self._decide(stimulus, blobs)
        try:
            await (kept if kept is not None else self._writer.flushed())
        except JournalError:
            self._fall_back()
            raise
        self._take_effect(step)
        self._maintain_journal()
        return step

    def _decide(
        self, stimulus: AnyStimulus, blobs: Mapping[str, bytes] | None
    ) -> tuple[Step, asyncio.Future[None] | None]:
        """The step, and the future of its facts; None: it has none. A step that fails leaves nothing."""
        try:
            step = self.engine.handle(stimulus, self.now())
            if not step.facts:
                return step, None
            # What a refusal came with is not needed again.
            wanted = None if isinstance(step.outcome, Refused) else blobs
            return step, self._writer.append(step.facts, wanted)
        except NotStorableError:
            self._start_over()
            raise
        except Exception:
            logger.exception("a step failed: %s", type(stimulus).__name__)
            if self.engine.torn:
                self._start_over()
            raise

    async def report(self, stimulus: AnyStimulus, blobs: Mapping[str, bytes] | None = None) -> Step:
        """As ``step``, for what the executor did: it has happened, so it is tried until it is kept. Raises
        NotStorableError where it never can be.
        """
        while True:
            try:
                return await self.step(stimulus, blobs)
            except JournalError:
                await self._healthy.wait()

    async def whole(self) -> None:
        """Return while the state holds whole steps only."""
        await self._whole.wait()

    async def read(self, look: Callable[[], Value]) -> Value:
        """What ``look`` gives, once everything that it saw is durable; it looks again where that was taken
        back.
        """
        while True:
            await self.whole()
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
        return await _wait_for(self._answers, request_id)

    async def end_of(self, agent_name: str) -> None:
        """Return once the agent is durably off the book."""
        if agent_name not in self.state.agents:
            await self.flushed()
        if agent_name not in self.state.agents:
            return
        await _wait_for(self._ends, agent_name)

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
        """As ``blob``, for the executor, which cannot ask its caller to come again: tried for a while."""
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
        for task in (self._healing, self._reloading, self._noting):
            if task is not None:
                task.cancel()
        if self._snapshots is not None:
            self._snapshots.cancel()
        if self._writer is not None:
            await self._writer.close()
        if destroy:
            self._journal.destroy()
        else:
            self._journal.close()

    def _take_effect(self, step: Step) -> None:
        """What the step decided is durable: tell those who wait, and have the executor act."""
        log_facts(step.facts)
        for fact in step.facts:
            if isinstance(fact, AgentEnded):
                _resolve(self._ends.pop(fact.agent_name, []), None)
        for instruction in step.instructions:
            if isinstance(instruction, AnswerRequest):
                known = self.state.answers[instruction.request_id]
                _resolve(self._answers.pop(instruction.request_id, []), known.outcome)
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
        """Go back to what was decided before the step that failed; others wait meanwhile."""
        self._whole.clear()
        self._reloading = asyncio.ensure_future(self._reload())

    async def _reload(self) -> None:
        try:
            stored = await self._writer.copy()
        except JournalError:
            self._fall_back()
        else:
            await self._fold(stored)
        self._whole.set()

    async def _fold(self, stored: Stored) -> None:
        try:
            self.engine = Engine(await _beside(stored.fold), strategies=self._strategies)
        except JournalError as error:
            self._trouble = str(error)
            self._healthy.clear()
            logger.critical("this supervisor changes nothing any more: %s", error)

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

    def _maintain_journal(self) -> None:
        """Begin a snapshot, or note the time, when it is due."""
        if self._snapshots is not None:
            self._snapshots.take_if_due()
        if self.now() - self._noted_at >= _CLOCK_S and (
            self._noting is None or self._noting.done()
        ):
            self._noting = asyncio.ensure_future(self._note_clock_beside())

    async def _note_clock_beside(self) -> None:
        try:
            await _beside(self._note_clock)
        except JournalError as error:
            logger.warning("the time cannot be noted: %s", error)

    def _note_clock(self) -> None:
        self._noted_at = self.now()
        self._journal.put_note(_CLOCK_NOTE, msgspec.json.encode(self._clock.mark()))

    def _last_mark(self) -> ClockMark | None:
        """Where the clock of the last life stood; None: that is not known."""
        try:
            noted = self._journal.note(_CLOCK_NOTE)
            return None if noted is None else msgspec.json.decode(noted, type=ClockMark)
        except (JournalError, msgspec.MsgspecError) as error:
            logger.warning("the time of the former life cannot be read: %s", error)
            return None


def _newest(state: MeshState) -> float:
    """The newest time in the books."""
    found = [0.0, *(answer.at for answer in state.answers.values())]
    found += [max(task.started_at, task.saved_at or 0.0) for task in state.running.by_id.values()]
    for agent in state.agents.values():
        found.append(max(agent.admitted_at, agent.started_at or 0.0))
    found += [past.fact.at for past in state.preempted.values()]
    found += [lost.at for lost in state.lost.values()]
    found += [change.at for change in state.policy_changes]
    return max(found)


async def _beside(call: Callable[[], Value]) -> Value:
    """Run something that blocks beside the loop."""
    return await asyncio.get_running_loop().run_in_executor(None, call)


async def _wait_for(waiting: dict[str, list[asyncio.Future[Value]]], key: str) -> Value:
    """Wait to be told; whoever gives up is forgotten."""
    future: asyncio.Future[Value] = asyncio.get_running_loop().create_future()
    waiting.setdefault(key, []).append(future)
    try:
        return await future
    finally:
        others = waiting.get(key, [])
        if future in others:
            others.remove(future)
            if not others:
                del waiting[key]


def _resolve(futures: list[asyncio.Future[Any]], value: object) -> None:
    for future in futures:
        if not future.done():
            future.set_result(value)
