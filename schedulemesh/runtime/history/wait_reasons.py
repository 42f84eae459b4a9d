"""Finds out why queued tasks wait, for the history.

Reasons are computed, not recorded: this asks for those of some tasks at a time, so that decisions are never
delayed for long. A task's reason is passed on when it is the first one or another one than before.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice

from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.engine.messages.queue_facts import TaskQueued
from schedulemesh.engine.transaction import Step
from schedulemesh.runtime.reactor import Reactor

#: Seconds that one round may take, and the tasks, from the one that waits longest, that are asked about.
_ROUND_S = 0.004
_TASKS = 1_000


class WaitReasons:
    """Asks for the reasons of the tasks that have joined the queue since, then of those that wait longest, in
    turn.
    """

    def __init__(self, reactor: Reactor, note: Callable[[str, str, float], None]) -> None:
        self._reactor, self._note = reactor, note
        #: Tasks that have joined the queue and were not asked about since. What is dropped here has its turn.
        self._new: deque[str] = deque(maxlen=_TASKS)
        self._left: Iterator[str] = iter(())
        #: The reason last noted, by task.
        self._noted: dict[str, str] = {}
        reactor.observers.add(self._queued)

    async def round(self) -> None:
        """Note the reasons of the next tasks."""
        await self._reactor.until_consistent()
        until = time.perf_counter() + _ROUND_S
        for task_id in self._next():
            if task_id in self._reactor.state.queue.by_id:
                self._note_reason(task_id)
            if time.perf_counter() >= until:
                return

    def _queued(self, step: Step) -> None:
        """Tasks have joined the queue, some of them again."""
        for fact in step.facts:
            if isinstance(fact, TaskQueued) and (task := fact.submission.task) is not None:
                self._noted.pop(task.task_id, None)
                self._new.append(task.task_id)

    def _next(self) -> Iterator[str]:
        """The tasks to ask about; some may have started."""
        while self._new:
            yield self._new.popleft()
        for _ in range(min(len(self._reactor.state.queue.by_id), _TASKS)):
            task_id = next(self._left, None)
            if task_id is None:
                self._begin_again()
                task_id = next(self._left)
            yield task_id

    def _begin_again(self) -> None:
        waiting = self._reactor.state.queue.by_id
        self._left = iter(list(islice(waiting, _TASKS)))
        self._noted = {t: reason for t, reason in self._noted.items() if t in waiting}

    def _note_reason(self, task_id: str) -> None:
        """Note why a task waits, unless that is the reason that was noted last, or it waits no longer."""
        now = self._reactor.now()
        explanation = self._reactor.engine.explain(task_id, now)
        if isinstance(explanation, Refused) or explanation.state != "queued":
            return
        if explanation.reason and self._noted.get(task_id) != explanation.reason:
            self._noted[task_id] = explanation.reason
            self._note(task_id, explanation.reason, now)
