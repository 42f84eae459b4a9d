"""The single writer: stamp a stimulus, decide, make the facts durable, and only then act and answer."""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from typing_extensions import Self

from schedulemesh.config.settings import JournalSettings
from schedulemesh.engine.engine import Engine
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.engine.messages.stimuli import AnyStimulus, StateStored, SupervisorBegan
from schedulemesh.engine.placement.strategies import Strategies
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.transaction import Step
from schedulemesh.errors import JournalError, JournalTakenOverError, NotStorableError
from schedulemesh.runtime.clock import SteadyClock
from schedulemesh.runtime.journal_recovery import (
    ClockNotes,
    EarlierLives,
    Recovered,
    in_thread,
    recovered_from,
)
from schedulemesh.runtime.snapshots import Snapshots
from schedulemesh.runtime.witness import Seen
from schedulemesh.store.journal import Journal
from schedulemesh.store.recovery import Stored
from schedulemesh.store.writer import GroupWriter

logger = logging.getLogger(__name__)

Value = TypeVar("Value")

#: Called with a step once it is durable.
Subscriber = Callable[[Step], None]

#: Seconds between attempts to write a journal that failed: doubled from the first to the last.
_RETRY_S, _RETRY_MAX_S = 0.2, 10.0
#: Seconds for which stored bytes are asked for again where the journal cannot be read.
_FETCH_S = 15.0
#: Numbers that are left out where some may have been given after the backup that was put back.
_GAP = 1_000_000


class Reactor:
    """Holds the engine and its journal; made by ``recover``. All of it runs on one event loop.

    While the journal cannot be written, the state is what is durable: reads go on, changes raise
    JournalError, and writing is tried again until it works.
    """

    def __init__(
        self,
        journal: Journal,
        recovered: Recovered,
        strategies: Strategies,
        settings: JournalSettings,
        clock: SteadyClock,
    ) -> None:
        self._journal = journal
        self._strategies = strategies
        self._settings = settings
        self._clock = clock
        self.engine = Engine(recovered.state, strategies=strategies)
        self.epoch = recovered.epoch
        #: Whether the journal is older than what was already true: a backup was put in its place.
        self.rolled_back = recovered.rolled_back
        self._writer = GroupWriter(journal, recovered.stored)
        self._snapshots = Snapshots(self, journal, self._writer, settings)
        self._clock_notes = ClockNotes(journal, clock)
        self._subscribers: list[Subscriber] = []
        #: Clear while the journal cannot be written; then ``_trouble`` says why.
        self._healthy = asyncio.Event()
        self._healthy.set()
        self._trouble = ""
        #: Clear while the state holds half of a step that failed, and is being read again.
        self._whole = asyncio.Event()
        self._whole.set()
        self._healing: asyncio.Task[None] | None = None
        self._reloading: asyncio.Task[None] | None = None

    @classmethod
    async def recover(
        cls,
        journal: Journal,
        strategies: Strategies | None = None,
        settings: JournalSettings | None = None,
        clock: SteadyClock | None = None,
        earlier: EarlierLives | None = None,
    ) -> Self:
        """Become the journal's writer, recover the state from it, and begin a new epoch.

        Nobody has subscribed by then, and the new epoch has no instructions. Raises JournalError; then the
        journal is closed.
        """
        try:
            recovered = await recovered_from(journal, earlier or EarlierLives())
        except JournalError:
            journal.close()
            raise
        reactor = cls(
            journal,
            recovered,
            strategies or Strategies(),
            settings or JournalSettings(),
            clock or SteadyClock(),
        )
        try:
            await reactor._begin(recovered)
        except JournalError:
            await reactor.close(destroy=False)
            raise
        return reactor

    async def _begin(self, recovered: Recovered) -> None:
        await self._clock_notes.resume(recovered.state)
        gap = _GAP if recovered.rolled_back else 0
        await self.step(SupervisorBegan(epoch=recovered.epoch, gap=gap))

    def subscribe(self, subscriber: Subscriber) -> None:
        """Have a subscriber called with every step from now on.

        A step is published when its facts are durable, and before ``step`` returns; steps come in the order
        of their facts, subscribers in the order in which they subscribed. A subscriber neither blocks nor
        raises.
        """
        self._subscribers.append(subscriber)

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
        self._publish(step)
        self._snapshots.take_if_due()
        self._clock_notes.note_if_due()
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

    async def keep(self, blobs: Mapping[str, bytes]) -> None:
        """Store blobs for a fact that is about to come."""
        try:
            await self._writer.append((), blobs)
        except JournalError:
            self._fall_back()
            raise

    async def blob(self, key: str | None) -> bytes | None:
        """Stored bytes; None: there are none."""
        return None if key is None else await in_thread(functools.partial(self._journal.blob, key))

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
        for task in (self._healing, self._reloading):
            if task is not None:
                task.cancel()
        self._clock_notes.cancel()
        self._snapshots.cancel()
        await self._writer.close()
        if destroy:
            self._journal.destroy()
        else:
            self._journal.close()

    def _publish(self, step: Step) -> None:
        """The step is durable: pass it to the subscribers."""
        for subscriber in self._subscribers:
            try:
                subscriber(step)
            except Exception:  # logged: what one subscriber breaks must not keep others from acting
                logger.exception("a subscriber to durable steps failed")

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
            self.engine = Engine(await in_thread(stored.fold), strategies=self._strategies)
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
