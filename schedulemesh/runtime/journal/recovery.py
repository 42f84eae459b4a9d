"""Recovers from the journal: becomes its writer, restores the state, and detects a restored backup."""

from __future__ import annotations

import asyncio
import functools
import logging

import msgspec

from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.errors import JournalError
from schedulemesh.runtime.clock import ClockMark, SteadyClock
from schedulemesh.runtime.journal.witness import Seen
from schedulemesh.runtime.threads import in_thread
from schedulemesh.store.journal import Journal
from schedulemesh.store.recovery import Stored

logger = logging.getLogger(__name__)

#: The journal's note of where the clock stood, and the seconds between two of them.
_CLOCK_NOTE, _CLOCK_S = "clock", 60.0


class EarlierLives(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of earlier processes of this supervisor from elsewhere than the journal."""

    #: Whether to take the journal over from a process that may still write it.
    take_over: bool = False
    seen: Seen = Seen()
    #: The highest incarnation of an agent that is alive.
    newest_incarnation: int = 0


class Recovered(msgspec.Struct, frozen=True, kw_only=True):
    """What a journal led to."""

    stored: Stored
    state: MeshState
    #: The epoch of this process.
    epoch: int
    #: Whether the journal is older than what was already true: a backup was put in its place.
    rolled_back: bool


async def recovered_from(journal: Journal, earlier: EarlierLives) -> Recovered:
    """Become the journal's writer and read it. Raises JournalError."""
    epoch = await in_thread(
        functools.partial(journal.begin, take_over=earlier.take_over, above=earlier.seen.epoch)
    )
    stored = await in_thread(journal.load)
    state = await in_thread(stored.fold)
    rolled_back = stored.last > 0 and (
        earlier.seen.unresolved
        or state.epoch < earlier.seen.epoch
        or stored.last < earlier.seen.last
        or state.next_incarnation <= earlier.newest_incarnation
    )
    return Recovered(stored=stored, state=state, epoch=epoch, rolled_back=rolled_back)


class ClockNotes:
    """Notes in the journal where the clock stands, so that the next process goes on from there."""

    def __init__(self, journal: Journal, clock: SteadyClock) -> None:
        self._journal, self._clock = journal, clock
        self._noted_at = 0.0
        self._noting: asyncio.Task[None] | None = None

    async def resume(self, state: MeshState) -> None:
        """Set the clock by the last note and by the newest time in the state, and note it."""
        self._clock.resume(await in_thread(self._last), newest_time(state))
        await in_thread(self._note)

    def note_if_due(self) -> None:
        """Begin to note the time if the last note is old."""
        due = self._clock.now() - self._noted_at >= _CLOCK_S
        if due and (self._noting is None or self._noting.done()):
            self._noting = asyncio.ensure_future(self._note_in_background())

    def cancel(self) -> None:
        """The journal is being closed."""
        if self._noting is not None:
            self._noting.cancel()

    async def _note_in_background(self) -> None:
        try:
            await in_thread(self._note)
        except JournalError as error:
            logger.warning("the time cannot be noted: %s", error)

    def _note(self) -> None:
        self._noted_at = self._clock.now()
        self._journal.put_note(_CLOCK_NOTE, msgspec.json.encode(self._clock.mark()))

    def _last(self) -> ClockMark | None:
        """The last note; None: there is none that can be read."""
        try:
            noted = self._journal.note(_CLOCK_NOTE)
            return None if noted is None else msgspec.json.decode(noted, type=ClockMark)
        except (JournalError, msgspec.MsgspecError) as error:
            logger.warning("the time of the previous incarnation cannot be read: %s", error)
            return None


def newest_time(state: MeshState) -> float:
    """The newest time in the state."""
    times = [0.0, *(answer.at for answer in state.answers.values())]
    times += [max(task.started_at, task.saved_at or 0.0) for task in state.running.by_id.values()]
    for agent in state.agents.values():
        times.append(agent.admitted_at if agent.process is None else agent.process.started_at)
    times += [past.fact.at for past in state.preempted.values()]
    times += [lost.at for lost in state.lost.values()]
    times += [change.at for change in state.policy_changes]
    return max(times)
