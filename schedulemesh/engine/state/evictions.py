"""What is remembered of evictions: a record of each, and what limits further ones.

A record begins when the eviction is decided. Later facts complete it: whether the state was saved, when the
resources of the victim were free, whether the task that they were freed for has started.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from schedulemesh.domain.reasons import LIMITS, PreemptionReason
from schedulemesh.domain.task import TaskSpec
from schedulemesh.engine.state.task_phases import Preempting
from schedulemesh.engine.state.tasks import RunningTask

#: Records kept.
RECENT = 1000
#: Lost work is summed up in parts of this many seconds.
_PART_S = 60.0
_HOUR_S = 3600.0


class Evictor(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """For whom a task was evicted."""

    agent_name: str
    pool_name: str
    #: None: the agent was submitted without a task.
    task: TaskSpec | None = None


class EvictionRecord(msgspec.Struct, kw_only=True, omit_defaults=True, gc=False):
    """One eviction of one task. Times are seconds since 1970."""

    number: int
    task: TaskSpec
    agent_name: str
    #: The rule that allowed it.
    reason: PreemptionReason
    decided_at: float
    #: The time from which its work was lost: its start, or when its state was last saved.
    unsaved_since: float
    #: The GPUs of its agent.
    gpus: float
    preempt_score: float | None = None
    #: None: it was evicted for no other task; see ``reason``.
    evictor: Evictor | None = None
    #: The client that requested it, or the window; empty: it was decided otherwise, or the client is unknown.
    client: str = ""
    #: The key of the state that it can be restored from; None: there is none, or it is no longer kept.
    state_key: str | None = None
    #: When that was last written, in the attempt that was evicted; None: nothing of it was saved.
    saved_at: float | None = None
    #: Why it could not be saved for the eviction; empty: it was, or it saves nothing.
    save_error: str = ""
    #: When the task had been evicted; None: it is being evicted.
    evicted_at: float | None = None
    #: Whether its agent runs on without it, so that nothing becomes free.
    agent_stays: bool = False
    #: When its agent had ended, so that what it held was free; None: not yet, or the agent stayed.
    freed_at: float | None = None
    #: When the task started for which it was evicted.
    evictor_started_at: float | None = None
    #: Whether the evictor started on what was freed; None: it is not known yet, or there is no evictor.
    used: bool | None = None
    #: Whether the evicted task joined the queue again.
    requeued: bool = False
    #: When the evicted task ran again.
    ran_again_at: float | None = None
    #: Since when the GPUs of its agent were idle; None: they were not.
    idle_since: float | None = None

    @property
    def state_saved(self) -> bool:
        """Whether something that it can be restored from was saved since the attempt began."""
        return self.saved_at is not None

    @property
    def lost_s(self) -> float:
        """Seconds of work that were lost; until the state is saved, those that would be."""
        return max(0.0, self.decided_at - self.unsaved_since)

    @property
    def lost_gpu_s(self) -> float:
        """The lost work in GPU-seconds."""
        return self.lost_s * self.gpus


class Evictions:
    """The records of the last evictions, and the sums that limit further ones."""

    def __init__(self) -> None:
        #: By number, oldest first.
        self.records: dict[int, EvictionRecord] = {}
        self.next_number = 1
        #: How often an evicted task joined the queue again, by the reason of the eviction.
        self.requeued: dict[PreemptionReason, int] = {}
        #: When a task was last evicted for a task of the pool.
        self.last_for: dict[str, float] = {}
        #: By pool of the evicted tasks: {number of the minute: GPU-seconds of lost work}, for one hour.
        self.lost_work: dict[str, dict[int, float]] = {}
        #: The last record of a task.
        self._of_task: dict[str, int] = {}
        #: The records whose resources are not free yet, by agent.
        self._unfreed: dict[str, list[int]] = {}
        #: The records whose evictor does not run yet, by its agent.
        self._unused: dict[str, list[int]] = {}

    def of_task(self, task_id: str) -> EvictionRecord | None:
        """The last eviction of this task; None: there is none on record."""
        return self.records.get(self._of_task.get(task_id, 0))

    def begin(
        self,
        task: RunningTask,
        preempting: Preempting,
        at: float,
        evictor: Evictor | None,
        client: str,
        idle_since: float | None,
    ) -> None:
        """The eviction of a task was decided."""
        record = EvictionRecord(
            number=self.next_number,
            task=task.spec,
            agent_name=task.agent_name,
            reason=preempting.reason,
            decided_at=at,
            unsaved_since=task.unsaved_since,
            idle_since=idle_since,
            gpus=task.resources.gpus,
            preempt_score=preempting.score,
            evictor=evictor,
            client=client,
            state_key=task.state_key,
            saved_at=task.saved_at,
        )
        self.next_number += 1
        self.adopt(record)
        if evictor is not None:
            self.last_for[evictor.pool_name] = at
        self._charge(record, record.lost_gpu_s)
        if len(self.records) > RECENT:
            self._forget(next(iter(self.records)))

    def adopt(self, record: EvictionRecord) -> None:
        """Add a record, the newest of all."""
        number = record.number
        self.records[number] = record
        self._of_task[record.task.task_id] = number
        if record.freed_at is None and not record.agent_stays:
            self._unfreed.setdefault(record.agent_name, []).append(number)
        if record.evictor is not None and record.used is None:
            self._unused.setdefault(record.evictor.agent_name, []).append(number)

    def note_saved(self, task_id: str, at: float, state_key: str | None = None) -> None:
        """The work of a task that is being evicted was saved: what it did until then is not lost. Where the
        task keeps it by itself, there is no key.
        """
        record = self._open(task_id)
        if record is None:
            return
        charged = record.lost_gpu_s
        record.unsaved_since = max(record.unsaved_since, at)
        record.saved_at, record.state_key = at, state_key or record.state_key
        record.save_error = ""
        self._charge(record, record.lost_gpu_s - charged)

    def note_not_saved(self, task_id: str, error: str) -> None:
        """The state of a task that is being evicted could not be saved."""
        if (record := self._open(task_id)) is not None:
            record.save_error = error

    def finish(self, task_id: str, at: float, *, agent_stays: bool) -> None:
        """The task was evicted."""
        record = self._open(task_id)
        if record is None:
            return
        record.evicted_at, record.agent_stays = at, agent_stays
        if agent_stays:
            _remove(self._unfreed, record.agent_name, record.number)

    def cancel(self, task_id: str) -> None:
        """The task could not be evicted and runs on."""
        record = self._open(task_id)
        if record is not None:
            self._charge(record, -record.lost_gpu_s)
            self._forget(record.number)
            before = [n for n, other in self.records.items() if other.task.task_id == task_id]
            if before:
                self._of_task[task_id] = before[-1]

    def agent_started(self, agent_name: str, at: float) -> None:
        """An agent runs: it uses what was freed for it."""
        if agent_name not in self._unused:
            return
        for record in self._records(self._unused.pop(agent_name)):
            record.evictor_started_at, record.used = at, True

    def agent_ended(self, agent_name: str, at: float) -> None:
        """What an agent held is free; what was freed for it, if it did not start, was not used."""
        if agent_name in self._unfreed:
            for record in self._records(self._unfreed.pop(agent_name)):
                record.freed_at = at
        if agent_name in self._unused:
            for record in self._records(self._unused.pop(agent_name)):
                record.used = False

    def note_queued(self, task_id: str, at: float) -> None:
        """A task has joined the queue: again, if that is when it had been evicted."""
        record = self.of_task(task_id)
        if record is not None and record.evicted_at == at and not record.requeued:
            record.requeued = True
            self.requeued[record.reason] = self.requeued.get(record.reason, 0) + 1

    def note_running(self, task_id: str, at: float) -> None:
        """A task runs, maybe again."""
        record = self.of_task(task_id) if task_id in self._of_task else None
        if record is not None and record.evicted_at is not None and record.ran_again_at is None:
            record.ran_again_at = at

    def forget_states(self, state_keys: frozenset[str]) -> None:
        """These saved states are no longer kept."""
        for record in self.records.values():
            if record.state_key in state_keys:
                record.state_key = None

    def lost_work_in(self, pool_name: str, now: float) -> float:
        """GPU-seconds of work that evictions in this pool lost within the last hour, or a minute more."""
        first = int((now - _HOUR_S) // _PART_S)
        return sum(
            gpu_s for part, gpu_s in self.lost_work.get(pool_name, {}).items() if part >= first
        )

    def _open(self, task_id: str) -> EvictionRecord | None:
        """The record of a task that is being evicted."""
        record = self.of_task(task_id)
        return record if record is not None and record.evicted_at is None else None

    def _records(self, numbers: Iterable[int]) -> list[EvictionRecord]:
        return [self.records[number] for number in numbers]

    def _charge(self, record: EvictionRecord, gpu_s: float) -> None:
        """Add to the lost work of a pool, at the time of the decision; that of limits in time is no
        eviction's.
        """
        if not gpu_s or record.reason in LIMITS:
            return
        pool_name, part = record.task.pool_name, int(record.decided_at // _PART_S)
        first = part - int(_HOUR_S // _PART_S)
        lost_by_part = {
            p: lost for p, lost in self.lost_work.get(pool_name, {}).items() if p >= first
        }
        lost_by_part[part] = max(0.0, lost_by_part.get(part, 0.0) + gpu_s)
        self.lost_work[pool_name] = lost_by_part

    def _forget(self, number: int) -> None:
        record = self.records.pop(number)
        if self._of_task[record.task.task_id] == number:
            del self._of_task[record.task.task_id]
        _remove(self._unfreed, record.agent_name, number)
        if record.evictor is not None:
            _remove(self._unused, record.evictor.agent_name, number)


def _remove(index: dict[str, list[int]], name: str, number: int) -> None:
    """Remove a number from an index, where it is there."""
    numbers = index.get(name)
    if numbers is None or number not in numbers:
        return
    numbers.remove(number)
    if not numbers:
        del index[name]
