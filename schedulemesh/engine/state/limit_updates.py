"""Applies facts about limits in time to running and waiting tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from schedulemesh.engine.messages import limit_facts as f
from schedulemesh.engine.messages.fact import Fact
from schedulemesh.engine.state.queue import Queue
from schedulemesh.engine.state.tasks import RunningTasks


class LimitFacts:
    """Applies facts about limits in time."""

    def __init__(self, running: RunningTasks, queue: Queue) -> None:
        self._running, self._queue = running, queue

    @property
    def updates(self) -> Mapping[type[Fact], Callable[..., None]]:
        """What applies each fact."""
        return {
            f.TimeLimitNear: lambda fact: self._running.warn_of_limit(fact.task_id, fact.at),
            f.TimeLimitChanged: self._changed,
            f.IdleLimitNear: lambda fact: self._running.warn_of_idle(
                fact.task_id, fact.since, fact.limit_at
            ),
            f.IdleLimitCleared: lambda fact: self._running.warn_of_idle(fact.task_id, None, None),
        }

    def _changed(self, fact: f.TimeLimitChanged) -> None:
        if fact.task_id in self._queue.by_id:
            self._queue.limit(fact.task_id, fact.max_run_s)
            return
        task = self._running.by_id[fact.task_id]
        task.spec = msgspec.structs.replace(task.spec, max_run_s=fact.max_run_s)
        self._running.limit(fact.task_id, fact.of_attempt_s)
