"""The single writer of the state: sets the time, decides, makes the facts durable, and only then acts."""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from enum import Enum
from typing import TypeVar

from typing_extensions import Self

from schedulemesh.config.settings import JournalSettings
from schedulemesh.domain.actor_names import ActorNames
from schedulemesh.engine.engine import Engine
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.engine.messages.stimuli import AnyStimulus, StateStored, SupervisorBegan
from schedulemesh.engine.placement.strategies import Strategies
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.transaction import Step
from schedulemesh.errors import JournalError, JournalTakenOverError, NotStorableError
from schedulemesh.metrics.reactor_times import ReactorTimes
from schedulemesh.protocol.portions import PortionTurns
from schedulemesh.runtime.clock import SteadyClock
from schedulemesh.runtime.journal.recovery import (
    ClockNotes,
    EarlierLives,
    Recovered,
    recovered_from,
)
from schedulemesh.runtime.journal.snapshots import CommitFollower, Snapshots, is_small_enough
from schedulemesh.runtime.journal.witness import Seen
from schedulemesh.runtime.threads import in_thread
from schedulemesh.store.journal import Journal
from schedulemesh.store.writer import GroupWriter, after_refusal

logger = logging.getLogger(__name__)

Value = TypeVar("Value")

#: Called with a step once it is durable. It neither blocks nor raises.
Subscriber = Callable[[Step], None]

#: Seconds between attempts to write a journal that failed: doubled from the first to the last.
_RETRY_S, _RETRY_MAX_S = 0.2, 10.0
#: Seconds for which reading stored bytes is retried while the journal cannot be read.
_FETCH_S = 15.0
#: How many numbers are skipped after a restored backup, because some may have been assigned since.
_GAP = 1_000_000


class JournalCondition(Enum):
    """What the journal and the state are fit for. Reads are always answered, while it is RELOADING later."""

    #: Changes are decided and written.
    OK = "ok"
    #: The state contains part of a failed step, and is being read anew: everybody waits.
    RELOADING = "reloading"
    #: The journal cannot be written. The state is what is durable, and writing is tried again.
    RETRYING = "retrying"
    #: Another supervisor writes the journal, or it cannot be read: nothing is changed any more.
    SUPERSEDED = "superseded"


#: Rounds of the event loop from a commit to its callers' answers: its step returns in the first, what carries
#: the request out ends in it, and who waits for that goes on in the third.
_ANSWERED_ROUNDS = 3


class Observers:
    """Those that only count or note durable steps, which need not be done between a commit and the answer to
    its caller: they are called some rounds of the event loop later. By then the callers of one commit have
    been answered and have appended what they decided next, so this is done while the journal writes that.
    """

    def __init__(self) -> None:
        self._observers: list[Subscriber] = []
        #: Durable steps in the order of their facts. Where there are any, ``catch_up`` is scheduled.
        self._unseen: list[Step] = []

    def add(self, observer: Subscriber) -> None:
        """Have an observer called with every step that is published from now on."""
        self.catch_up()
        self._observers.append(observer)

    def publish(self, step: Step) -> None:
        """A step is durable: the observers are called with it soon."""
        if not self._observers:
            return
        if not self._unseen:
            self._catch_up_after(_ANSWERED_ROUNDS)
        self._unseen.append(step)

    def _catch_up_after(self, rounds: int) -> None:
        loop = asyncio.get_running_loop()
        if rounds:
            loop.call_soon(self._catch_up_after, rounds - 1)
        else:
            loop.call_soon(self.catch_up)

    def catch_up(self) -> None:
        """Call the observers with all that is durable. Whoever reads what they keep calls this first."""
        steps, self._unseen = self._unseen, []
        for observer in self._observers:
            for step in steps:
                _call(observer, step)


def _resolve(future: asyncio.Future[None], error: BaseException | None) -> None:
    """Complete a future, unless whoever waited for it was cancelled."""
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


def _call(subscriber: Subscriber, step: Step) -> None:
    try:
        subscriber(step)
    except Exception:  # logged: what one subscriber breaks must not keep others from acting
        logger.exception("a subscriber to durable steps failed")


class Reactor:
    """Holds the engine and its journal; made by ``recover``. All of it runs on one event loop.

    While the journal cannot be written, the state is what is durable: reads are answered, changes raise
    JournalError, and writing is retried until it works.
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
        #: Called with steps as soon as they are decided.
        self._early: list[Subscriber] = []
        #: The newest commit whose steps were not published yet; it may be durable already.
        self._unpublished: asyncio.Future[None] | None = None
        #: Those that need not see a step before its caller is answered.
        self.observers = Observers()
        #: The portions of long reads.
        self.turns = PortionTurns(self._commit_in_progress)
        #: How long decisions and commits take.
        self.times = ReactorTimes()
        self._follower: CommitFollower | None = None
        self._condition = JournalCondition.OK
        #: Set when the condition changes, and then replaced.
        self._changed = asyncio.Event()
        #: Why the journal cannot be written, while it cannot.
        self._trouble = ""
        #: What brings the condition back to OK.
        self._mending: asyncio.Task[None] | None = None
        self._closed = False
        self._at_takeover: list[Callable[[], None]] = []

    @classmethod
    async def recover(
        cls,
        journal: Journal,
        strategies: Strategies | None = None,
        settings: JournalSettings | None = None,
        clock: SteadyClock | None = None,
        earlier: EarlierLives | None = None,
        actor_names: ActorNames = ActorNames(),  # noqa: B008  # it is immutable
    ) -> Self:
        """Become the journal's writer, recover the state from it, and begin a new epoch.

        Nobody has subscribed by then, and the new epoch has no instructions. Raises JournalError, and
        JournalTakenOverError where a successor has become its writer meanwhile; then the journal is closed.
        """
        try:
            recovered = await recovered_from(journal, earlier or EarlierLives())
        except Exception:
            # The next attempt opens it again, and needs its lock.
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
            await reactor._begin(recovered, actor_names)
        except Exception as error:
            if await reactor.give_up():
                raise JournalTakenOverError(
                    "another process has taken the journal over during the recovery"
                ) from error
            raise
        return reactor

    async def _begin(self, recovered: Recovered, actor_names: ActorNames) -> None:
        await self._clock_notes.resume(recovered.state)
        gap = _GAP if recovered.rolled_back else 0
        began = SupervisorBegan(epoch=recovered.epoch, gap=gap, actor_names=actor_names)
        await self.step(began)

    def subscribe(self, subscriber: Subscriber) -> None:
        """Have a subscriber called with every step from now on.

        A step is published when its facts are durable, and before ``step`` returns; steps come in the order
        of their facts, subscribers in the order in which they subscribed.
        What only counts or notes steps belongs into ``observers``, which delay no answer.
        """
        self._subscribers.append(subscriber)

    def look_ahead(self, subscriber: Subscriber) -> None:
        """Have a subscriber called with every step from now on as soon as it is decided. It may never become
        durable, so this is for what changes nothing: asking what will be needed when it is.
        """
        self._early.append(subscriber)

    def keep_commits_for(self, follower: CommitFollower) -> None:
        """Have snapshots leave the commits in the journal that this one still reads; it is closed before the
        journal.
        """
        self._snapshots.keep_after = follower.keep_after
        self._follower = follower

    @property
    def last(self) -> int:
        """The number of the last durable commit. Any thread may ask."""
        return self._journal.last

    @property
    def state(self) -> MeshState:
        """The state as decided; it may contain facts that are not durable yet, which callers must not see."""
        return self.engine.state

    @property
    def saved_state_bytes(self) -> int:
        """The maximum size of a saved state in bytes."""
        return self._settings.saved_state_bytes

    @property
    def result_bytes(self) -> int:
        """The maximum size of a kept result in bytes."""
        return self._settings.result_bytes

    def now(self) -> float:
        """Seconds since 1970; never decreases."""
        return self._clock.now()

    def height(self) -> Seen:
        """The current epoch and the number of the last commit."""
        return Seen(epoch=self.state.epoch, last=self._journal.last)

    async def step(self, stimulus: AnyStimulus, blobs: Mapping[str, bytes] | None = None) -> Step:
        """Decide, and return once the facts (and the blobs, if there are facts) are durable.

        The instructions have been passed to the executor then. Raises JournalError if the facts could not be
        written, and NotStorableError if they can never be; then nothing has changed. A repeated request needs
        nothing to be written.
        """
        if self._condition is not JournalCondition.OK:
            await self.until_consistent()
            if (decided := self._repeated_step(stimulus)) is not None:
                return decided
        self._check_writable()
        limit = self.saved_state_bytes
        if isinstance(stimulus, StateStored) and not is_small_enough(stimulus, blobs or {}, limit):
            return Step()
        step, commit = self._decide(stimulus, blobs)
        await self._publish_once_durable([step], commit)
        return step

    def _repeated_step(self, stimulus: AnyStimulus) -> Step | None:
        """The step of a repeated request that was decided before, while nothing can be written."""
        if self._condition is JournalCondition.OK:
            return None
        outcome = self.engine.decided(stimulus)
        return None if outcome is None else Step(outcome=outcome, stimulus=stimulus, at=self.now())

    def _check_writable(self) -> None:
        """Raise JournalError while the journal cannot be written."""
        if self._condition is not JournalCondition.OK:
            raise JournalError(
                f"the journal cannot be written, so nothing can be changed now: {self._trouble}"
            )

    def _publish_once_durable(
        self, steps: Sequence[Step], own_commit: asyncio.Future[None] | None
    ) -> asyncio.Future[None]:
        """Publish steps once all is durable that they tell; the future is done then, or fails with
        JournalError where that could not be written, and nothing is published.

        ``own_commit`` writes the facts of the steps. None: they have none, and wait for the newest commit
        before them, because they were decided on its facts; without one they are published at once.
        The steps are published whether or not the caller still waits, who may be cancelled at any time.
        """
        published: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        began = time.perf_counter()

        def publish_after(commit: asyncio.Future[None] | None) -> None:
            error = None if commit is None else self._finish_commit(commit)
            if own_commit is None and isinstance(error, NotStorableError):
                error = after_refusal(error)  # another step had the content that was refused
            if own_commit is not None and error is None:
                self.times.written(time.perf_counter() - began)
            # Whoever waits goes on in the next round of the loop, after the steps were published.
            _resolve(published, error)
            if error is None:
                self._publish(steps)

        if own_commit is not None:
            self._unpublished = own_commit
            for step in steps:
                for subscriber in self._early:
                    _call(subscriber, step)
        commit = own_commit if own_commit is not None else self._undurable() or self._unpublished
        if commit is None:
            publish_after(None)
        else:
            commit.add_done_callback(publish_after)
        return published

    def _finish_commit(self, commit: asyncio.Future[None]) -> BaseException | None:
        """Note that a commit is done, and fall back to what is durable if it failed; why it failed."""
        if commit is self._unpublished:
            self._unpublished = None
        error = commit.exception()
        if error is not None:
            self._fall_back()
        return error

    def _undurable(self) -> asyncio.Future[None] | None:
        """A future of what was appended last; None: everything is durable. Raises JournalError."""
        try:
            return self._writer.pending()
        except JournalError:
            self._fall_back()
            raise

    async def writable(self) -> None:
        """Return once the journal can be written, and nothing of what failed before can become durable any
        more. It does not return after a takeover.
        """
        await self._until(JournalCondition.OK)

    async def steps(self, stimuli: Sequence[AnyStimulus], blobs: Mapping[str, bytes]) -> list[Step]:
        """As ``step`` for several stimuli, whose facts become durable together."""
        if self._condition is not JournalCondition.OK:
            await self.until_consistent()
        self._check_writable()
        steps, commit = self._decide_all(stimuli, blobs)
        await self._publish_once_durable(steps, commit)
        return steps

    def _decide_all(
        self, stimuli: Sequence[AnyStimulus], blobs: Mapping[str, bytes]
    ) -> tuple[list[Step], asyncio.Future[None] | None]:
        """The steps, and a future for their facts, None if they have none. If one fails, nothing changes."""
        steps: list[Step] = []
        try:
            now = self.now()
            steps += [self._handled(stimulus, now) for stimulus in stimuli]
            facts = [fact for step in steps for fact in step.facts]
            return steps, self._writer.append(facts, blobs) if facts else None
        except Exception:
            logger.exception("one of %d steps failed", len(stimuli))
            self._start_over()
            raise

    def _decide(
        self, stimulus: AnyStimulus, blobs: Mapping[str, bytes] | None
    ) -> tuple[Step, asyncio.Future[None] | None]:
        """The step, and a future for its facts, None if it has none. A failed step changes nothing."""
        try:
            step = self._handled(stimulus, self.now())
            if not step.facts:
                return step, None
            # The bytes of a refused request are not needed again.
            stored_blobs = None if isinstance(step.outcome, Refused) else blobs
            return step, self._writer.append(step.facts, stored_blobs)
        except NotStorableError:
            self._start_over()
            raise
        except Exception:
            logger.exception("a step failed: %s", type(stimulus).__name__)
            if self.engine.torn:
                self._start_over()
            raise

    def _handled(self, stimulus: AnyStimulus, now: float) -> Step:
        """The engine's decision, with its time measured."""
        began = time.perf_counter()
        step = self.engine.handle(stimulus, now)
        self.times.decided(time.perf_counter() - began)
        return step

    async def report(self, stimulus: AnyStimulus, blobs: Mapping[str, bytes] | None = None) -> Step:
        """As ``step``, for results of the executor: they have happened, so writing them is retried until it
        succeeds. Raises NotStorableError if it never can.
        """
        while True:
            try:
                return await self.step(stimulus, blobs)
            except JournalError:
                await self.writable()

    async def report_all(self, stimuli: Sequence[AnyStimulus]) -> None:
        """As ``report`` for several results, whose facts become durable together."""
        while True:
            try:
                await self.steps(stimuli, {})
            except JournalError:
                await self.writable()
            else:
                return

    async def until_consistent(self) -> None:
        """Return once the state consists of complete steps only; it stays so until the caller awaits."""
        await self._until(
            JournalCondition.OK, JournalCondition.RETRYING, JournalCondition.SUPERSEDED
        )

    async def read(self, query: Callable[[], Value]) -> Value:
        """The result of ``query``, once everything that it read is durable; the query is repeated if that was
        rolled back.
        """
        while True:
            await self.until_consistent()
            seen, value = self.engine, query()
            await self.flushed()
            if self.engine is seen:
                return value

    async def read_rows(
        self, begin: Callable[[], Iterable[Callable[[], Value | None]]], *, quick: bool = False
    ) -> list[Value]:
        """The rows that the functions make which ``begin`` returns; see ``read``. They are made in portions:
        ``begin`` chooses what is listed at one moment, and each row is as it is when it is made; None: what
        it was about is no longer there. ``quick``: see ``portions.QUICK``.
        """
        while True:
            await self.until_consistent()
            seen, rows = self.engine, list[Value]()

            def make(
                portion: Sequence[Callable[[], Value | None]], rows: list[Value] = rows
            ) -> None:
                rows.extend(row for made in portion if (row := made()) is not None)

            await self.turns.each([*begin()], make, quick=quick)
            await self.flushed()
            if self.engine is seen:
                return rows

    def _commit_in_progress(self) -> asyncio.Future[None] | None:
        """Done when all that was decided is durable; None: it is, or nothing is written now."""
        try:
            return self._writer.pending()
        except JournalError:
            return None

    async def flushed(self) -> None:
        """Return once everything decided so far is durable or rolled back."""
        try:
            await self._writer.flushed()
        except JournalError:
            self._fall_back()

    async def keep(self, blobs: Mapping[str, bytes]) -> None:
        """Store blobs to which a later fact will refer."""
        try:
            await asyncio.shield(self._writer.append((), blobs))
        except (JournalError, NotStorableError):
            self._fall_back()
            raise

    async def still_writes(self) -> bool:
        """Whether this supervisor is still the journal's writer, as an attempt to write shows; False also
        where that cannot be known now. Ask before something is ended in Ray because the state, which may be
        out of date, says so.
        """
        if self._condition in (JournalCondition.RETRYING, JournalCondition.SUPERSEDED):
            return False
        try:
            await self.keep({})
        except JournalError:
            return False
        return True

    async def confirmed(self) -> None:
        """Return once this supervisor has been shown to be the journal's writer; never after a takeover."""
        while not await self.still_writes():
            await self.writable()

    def at_takeover(self, callback: Callable[[], None]) -> None:
        """Have a function called when it is known that a successor has taken the journal over."""
        self._at_takeover.append(callback)

    async def blob(self, key: str | None) -> bytes | None:
        """Stored bytes; None: there are none."""
        return None if key is None else await in_thread(functools.partial(self._journal.blob, key))

    async def fetch(self, key: str | None) -> bytes | None:
        """As ``blob``, for the executor, which has no caller that could retry: retried for a while."""
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
        """Write what is queued and let the journal go, or remove it all. What a successor has taken over is
        not removed.
        """
        await self._end_writing()
        await self._let_go(destroy=destroy and not await in_thread(self._is_taken_over))

    async def give_up(self) -> bool:
        """Let the journal go, as after a recovery that failed. Returns whether a successor has taken it over,
        so that it must not be taken back.
        """
        await self._end_writing()
        is_taken_over = await in_thread(self._is_taken_over)
        await self._let_go(destroy=False)
        return is_taken_over

    async def _end_writing(self) -> None:
        self._closed = True
        if self._mending is not None:
            self._mending.cancel()
        self._clock_notes.cancel()
        self._snapshots.cancel()
        await self._writer.close()

    async def _let_go(self, *, destroy: bool) -> None:
        if self._follower is not None:
            await self._follower.close(destroy=destroy)
        self.observers.catch_up()
        if destroy:
            self._journal.destroy()
        else:
            self._journal.close()

    def _is_taken_over(self) -> bool:
        """Whether the journal is a successor's, as far as can be known."""
        try:
            self._journal.append(b"", {})
        except JournalTakenOverError as error:
            logger.warning("%s; it is left as it is", error)
            return True
        except JournalError:
            return False
        return False

    def _publish(self, steps: Sequence[Step]) -> None:
        """These steps are durable: pass them to the subscribers."""
        for step in steps:
            for subscriber in self._subscribers:
                _call(subscriber, step)
            self.observers.publish(step)
        if not self._closed:
            self._snapshots.take_if_due()
            self._clock_notes.note_if_due()

    async def _until(self, *conditions: JournalCondition) -> None:
        """Return in one of these conditions; it stays so until the caller awaits."""
        while self._condition not in conditions:
            await self._changed.wait()

    def _become(
        self, condition: JournalCondition, mending: Coroutine[None, None, None] | None = None
    ) -> None:
        """Change the condition; ``mending`` brings it back to OK, and what did so until now ends."""
        if self._mending is not None and self._mending is not asyncio.current_task():
            self._mending.cancel()
        self._mending = None if mending is None else asyncio.ensure_future(mending)
        self._condition = condition
        self._changed.set()
        self._changed = asyncio.Event()

    def _fall_back(self) -> None:
        """Roll the state back to what is durable, and retry writing."""
        if (
            self._condition in (JournalCondition.RETRYING, JournalCondition.SUPERSEDED)
            or not self._writer.broken
        ):
            return
        self.times.failed()
        self._trouble = self._writer.failure
        try:
            self.engine = Engine(self._writer.stored.fold(), strategies=self._strategies)
        except JournalError as error:
            self._give_up(error)
        except Exception:  # logged: it is tried again
            logger.exception("the state cannot be rolled back now")
            self._become(JournalCondition.RELOADING, self._reload(_RETRY_S))
        else:
            self._become(JournalCondition.RETRYING, self._heal())

    def _start_over(self) -> None:
        """Roll the state back to before the failed step; other requests wait meanwhile."""
        self._become(JournalCondition.RELOADING, self._reload())

    async def _reload(self, wait_s: float = 0.0) -> None:
        """Return to the durable state, after so many seconds, and as often as that fails: without it nobody
        could be answered any more.
        """
        state: MeshState | None = None
        while state is None:
            await asyncio.sleep(wait_s)
            wait_s = min(max(_RETRY_S, 2 * wait_s), _RETRY_MAX_S)
            try:
                state = await self._durable_state()
            except JournalError as error:
                self._give_up(error)
                return
            except Exception:  # logged: it is tried again
                logger.exception("the state cannot be read anew; next attempt in %g s", wait_s)
        self.engine = Engine(state, strategies=self._strategies)
        if self._writer.broken:
            self._become(JournalCondition.RETRYING, self._heal())
        else:
            self._become(JournalCondition.OK)

    async def _durable_state(self) -> MeshState | None:
        """The state to which the journal leads; None: it cannot be copied now. Raises JournalError where it
        cannot be read, which stays so.
        """
        try:
            stored = await self._writer.copy()
        except JournalError as error:
            if not self._writer.broken:
                logger.warning("%s", error)
                return None
            stored = self._writer.stored
        return await in_thread(stored.fold)

    def _give_up(self, error: JournalError) -> None:
        """Change nothing any more."""
        self._trouble = str(error)
        self._become(JournalCondition.SUPERSEDED)
        logger.critical("this supervisor changes nothing any more: %s", error)
        if isinstance(error, JournalTakenOverError):
            for callback in self._at_takeover:
                callback()

    async def _heal(self) -> None:
        wait_s = _RETRY_S
        while True:
            try:
                await self._writer.resume()
                break
            except JournalTakenOverError as error:
                self._give_up(error)
                return
            except Exception as error:  # noqa: BLE001  # told to all who ask for a change; tried again
                self._trouble = str(error) or repr(error)
                logger.warning("%s; changes are refused; next attempt in %g s", error, wait_s)
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, _RETRY_MAX_S)
        self._become(JournalCondition.OK)
        self.times.healed()
        logger.warning("the journal can be written again")
