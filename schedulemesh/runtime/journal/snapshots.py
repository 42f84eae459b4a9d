"""Takes snapshots of the state, which replace the journal's oldest facts, and expires saved states."""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from schedulemesh.config.settings import JournalSettings
from schedulemesh.engine.messages.stimuli import AnyStimulus, StatesOutlived, StateStored
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.snapshot import past_states
from schedulemesh.engine.transaction import Step
from schedulemesh.errors import JournalError
from schedulemesh.runtime.journal.compaction import Compaction
from schedulemesh.runtime.threads import in_thread
from schedulemesh.store.blob_keys import BlobKeys
from schedulemesh.store.journal import Journal
from schedulemesh.store.writer import GroupWriter

logger = logging.getLogger(__name__)

#: Bytes of blobs after which a snapshot is taken; unreferenced blobs are deleted at the second one after.
_BLOB_BYTES = 64 * 1024 * 1024


class Decider(Protocol):
    """What snapshots need of the reactor."""

    @property
    def state(self) -> MeshState:
        """The state as decided."""

    def now(self) -> float:
        """Seconds since 1970."""

    async def until_consistent(self) -> None:
        """Return once the state consists of complete steps only; the caller awaits nothing after that."""

    async def step(self, stimulus: AnyStimulus) -> Step:
        """Decide, and return once the facts are durable."""


class CommitFollower(Protocol):
    """Reads the journal's commits once they are durable."""

    def keep_after(self) -> int | None:
        """The number of the commit after which it still reads them; None: it needs none."""

    async def close(self, *, destroy: bool) -> None:
        """Read nothing any more; ``destroy``: remove what was made of them."""


class Snapshots:
    """Takes snapshots in the background, one at a time."""

    def __init__(
        self, decider: Decider, journal: Journal, writer: GroupWriter, settings: JournalSettings
    ) -> None:
        self._decider = decider
        self._journal = journal
        self._writer = writer
        self._settings = settings
        #: After which commit the journal keeps what the history has not got; None: it keeps nothing for it.
        self.keep_after: Callable[[], int | None] = lambda: None
        self.taking: asyncio.Task[None] | None = None
        self._taken_at = time.monotonic()
        self._compaction = Compaction()

    def take_if_due(self) -> None:
        """Start a snapshot if there are enough new facts or bytes since the last one."""
        if self.taking is not None and not self.taking.done():
            return
        limits, writer = self._settings, self._writer
        many = writer.fresh_facts >= limits.snapshot_facts
        many = many or writer.fresh_bytes >= limits.snapshot_bytes
        # A snapshot of a large state must pay off.
        many = many and writer.fresh_bytes >= sum(map(len, writer.stored.parts))
        many = many or writer.fresh_blob_bytes >= _BLOB_BYTES
        late = time.monotonic() - self._taken_at >= limits.snapshot_s
        if many or (late and (writer.fresh_facts > 0 or writer.fresh_blob_bytes > 0)):
            self._taken_at = time.monotonic()
            self.taking = asyncio.ensure_future(self.take())

    async def take(self) -> None:
        """Take a snapshot; a failure is logged."""
        try:
            await self._forget_states()
            await self._decider.until_consistent()
            stored = await self._writer.mark()
            made = await in_thread(functools.partial(self._compaction.run, stored))
            keys = BlobKeys(made.keys)
            await self._writer.compact(made.parts, stored.last, keys, self.keep_after())
        except JournalError as error:
            logger.warning("no snapshot of the journal could be made: %s", error)
        except Exception:  # logged: the next one is due after as many facts
            logger.exception("no snapshot of the journal could be made")

    def cancel(self) -> None:
        """Cancel a running snapshot, because the journal is being closed."""
        self._compaction.end()
        if self.taking is not None:
            self.taking.cancel()

    async def _forget_states(self) -> None:
        """Delete saved states that are too old, and the oldest ones above the size limit."""
        past = past_states(self._decider.state)
        if not past:
            return
        sizes = await in_thread(functools.partial(self._journal.blob_sizes, past.keys()))
        past = past_states(self._decider.state)
        oldest = self._decider.now() - self._settings.saved_state_s
        over = sum(sizes.get(key, 0) for key in past) - self._settings.saved_states_bytes
        outlived = []
        for key, at in past.items():
            if at >= oldest and over <= 0:
                break
            outlived.append(key)
            over -= sizes.get(key, 0)
        if outlived:
            logger.info("%d saved states have expired and are deleted", len(outlived))
            await self._decider.step(StatesOutlived(state_keys=tuple(outlived)))


def is_small_enough(stimulus: StateStored, blobs: Mapping[str, bytes], limit: int) -> bool:
    """Whether a saved state may be kept; one that may not is logged."""
    size = len(blobs.get(stimulus.state_key, b""))
    if size <= limit:
        return True
    logger.error(
        "the saved state of task %s has %d bytes; more than saved_state_bytes, %d, are not kept",
        stimulus.task_id,
        size,
        limit,
    )
    return False
