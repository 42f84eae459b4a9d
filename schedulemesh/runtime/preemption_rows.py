"""The records of preemptions as callers see them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from schedulemesh.api.preemption import EvictorInfo, ListPreemptions, PreemptionRecord
from schedulemesh.api.tasks import row_of_task
from schedulemesh.engine.state.evictions import EvictionRecord, Evictor


def selected(records: Iterable[EvictionRecord], query: ListPreemptions) -> list[EvictionRecord]:
    """The last records that a query asks for, oldest first."""
    matching = [record for record in records if _concerns(record, query)]
    return matching[max(0, len(matching) - query.limit) :]


def of_tasks(
    records: Iterable[EvictionRecord], task_ids: Collection[object] | None
) -> list[EvictionRecord]:
    """The records of evictions of these tasks; None: of all."""
    return [r for r in records if task_ids is None or r.task.task_id in task_ids]


def preemption_row(record: EvictionRecord) -> PreemptionRecord:
    """A record as plain data. Times are seconds since 1970, durations seconds."""
    at = record.decided_at
    row = row_of_task(PreemptionRecord, record.task)
    row |= {
        "timestamp": at if record.evicted_at is None else record.evicted_at,
        "agent_name": record.agent_name,
        "reason": record.reason,
        "preempt_score": record.preempt_score,
        "state_saved": record.state_saved,
        "saved_at": record.saved_at,
        "evictor": None if record.evictor is None else _evictor(record.evictor),
        "requested_by": record.client or None,
        "decided_at": at,
        "lost_work": record.lost_s,
        "lost_gpu_seconds": record.lost_gpu_s,
        "time_to_evicted": _after(at, record.evicted_at),
        "time_to_freed": _after(at, record.freed_at),
        "time_to_start": _after(at, record.evictor_started_at),
        "used": record.used,
        "requeued": record.requeued,
        "time_to_run_again": _after(at, record.ran_again_at),
        "idle_since": record.idle_since,
    }
    if record.save_error:
        row["save_error"] = record.save_error
    return row


def _evictor(evictor: Evictor) -> EvictorInfo:
    task = evictor.task
    return {
        "task_id": None if task is None else task.task_id,
        "agent_name": evictor.agent_name,
        "pool_name": evictor.pool_name,
        "owner": "" if task is None else task.owner,
        "priority": None if task is None else task.priority,
    }


def _after(start: float, end: float | None) -> float | None:
    return None if end is None else max(0.0, end - start)


def _concerns(record: EvictionRecord, query: ListPreemptions) -> bool:
    """Whether the victim or the evictor is what the query names."""
    parties = list(_parties(record))
    filters = (query.task_id, query.pool_name, query.owner)
    return all(
        name is None or any(party[i] == name for party in parties) for i, name in enumerate(filters)
    )


def _parties(record: EvictionRecord) -> Iterator[tuple[str | None, str, str]]:
    """Task id, pool and owner of the victim, and of the evictor if there is one."""
    yield record.task.task_id, record.task.pool_name, record.task.owner
    evictor = record.evictor
    if evictor is not None:
        task = evictor.task
        task_id, owner = (None, "") if task is None else (task.task_id, task.owner)
        yield task_id, evictor.pool_name, owner
