"""Finds out why queued tasks wait, for the history.

Reasons are computed, not recorded: this asks for those of some tasks at a time, so that decisions are never
delayed for long. A task's reason is passed on when it is another one than before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import islice

from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.runtime.reactor import Reactor

#: Seconds that one round may take, and the tasks, from the one that waits longest, that are asked about.
_ROUND_S = 0.004
_TASKS = 1_000


class WaitReasons:
    """Asks for the reasons of the tasks that wait longest, in turn."""

    def __init__(self, reactor: Reactor, note: Callable[[str, str], None]) -> None:
        self._reactor, self._note = reactor, note
        self._left: Iterator[str] = iter(())
        #: The reason last noted, by task.
        self._noted: dict[str, str] = {}

    async def round(self) -> None:
        """Ask for the reasons of the next tasks."""
        await self._reactor.whole()
        until = time.perf_counter() + _ROUND_S
        waiting = self._reactor.state.queue.by_id
        for _ in range(min(len(waiting), _TASKS)):
            task_id = next(self._left, None)
            if task_id is None:
                self._begin_again()
                task_id = next(self._left)
            if task_id in waiting:
                self._ask(task_id)
            if time.perf_counter() >= until:
                return

    def _begin_again(self) -> None:
        waiting = self._reactor.state.queue.by_id
        self._left = iter(list(islice(waiting, _TASKS)))
        self._noted = {t: reason for t, reason in self._noted.items() if t in waiting}

    def _ask(self, task_id: str) -> None:
        found = self._reactor.engine.explain(task_id, self._reactor.now())
        if isinstance(found, Refused) or found.state != "queued" or not found.reason:
            return
        if self._noted.get(task_id) != found.reason:
            self._noted[task_id] = found.reason
            self._note(task_id, found.reason)
