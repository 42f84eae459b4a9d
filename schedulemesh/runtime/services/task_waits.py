"""Callers that wait until tasks run or have ended: woken by durable steps, without polling the state."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from schedulemesh.api.tasks import WaitUntil
from schedulemesh.domain.task import TaskPhase
from schedulemesh.engine.messages.facts import (
    AgentAdmitted,
    AgentEnded,
    AgentStarted,
    AnyFact,
    TaskEnded,
    TaskPreempted,
    TaskRegistered,
)
from schedulemesh.engine.messages.queue_facts import (
    ArrayEnded,
    ArrayMembersCancelled,
    TaskCancelled,
)
from schedulemesh.engine.state.agents import Ending
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.transaction import Step
from schedulemesh.runtime.reactor import Reactor

#: Whether a task has got as far as somebody waits for.
Condition = Callable[[MeshState, str], bool]


class TaskWaits:
    """Wakes callers when one of their tasks may have started or ended; subscribes to the reactor."""

    def __init__(self, reactor: Reactor) -> None:
        self._reactor = reactor
        #: Waiting callers by task.
        self._waiting: dict[str, set[asyncio.Event]] = {}
        #: The tasks that somebody waits for on each agent.
        self._on_agent: dict[str, set[str]] = {}
        reactor.subscribe(self._take)

    async def until(
        self, task_ids: Sequence[str], reached: Condition, enough: int, wait_s: float
    ) -> None:
        """Return when ``enough`` of these tasks have got so far, or after so many seconds.

        ``reached``: one of the conditions of this module.
        """
        changed = asyncio.Event()
        self._add(task_ids, changed)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s
        try:
            while True:
                changed.clear()
                count = await self._reactor.read(lambda: self._count(task_ids, reached))
                if count >= enough or loop.time() >= deadline:
                    return
                try:
                    await asyncio.wait_for(changed.wait(), deadline - loop.time())
                except (asyncio.TimeoutError, TimeoutError):
                    return
        finally:
            self._remove(task_ids, changed)

    def __len__(self) -> int:
        """How many tasks somebody waits for."""
        return len(self._waiting)

    def _count(self, task_ids: Iterable[str], reached: Condition) -> int:
        state = self._reactor.state
        return sum(reached(state, task_id) for task_id in task_ids)

    def _add(self, task_ids: Iterable[str], changed: asyncio.Event) -> None:
        state = self._reactor.state
        for task_id in task_ids:
            self._waiting.setdefault(task_id, set()).add(changed)
            task = state.running.by_id.get(task_id) or state.ended.get(task_id)
            if task is not None and task.agent_name in state.agents:
                self._on_agent.setdefault(task.agent_name, set()).add(task_id)

    def _remove(self, task_ids: Iterable[str], changed: asyncio.Event) -> None:
        for task_id in task_ids:
            waiting = self._waiting.get(task_id, set())
            waiting.discard(changed)
            if not waiting:
                self._waiting.pop(task_id, None)

    def _take(self, step: Step) -> None:
        if self._waiting:
            for fact in step.facts:
                self._wake(self._changed_by(fact))
        else:
            self._on_agent.clear()

    def _changed_by(self, fact: AnyFact) -> Iterable[str]:
        """The tasks that somebody waits for and that a fact has started or ended."""
        if isinstance(fact, TaskEnded | TaskCancelled):
            return (fact.task_id,)
        if isinstance(fact, TaskPreempted):
            return (fact.task.task_id,)
        if isinstance(fact, ArrayEnded | ArrayMembersCancelled):
            return self._of_array(fact.array_id)
        if isinstance(fact, AgentStarted):
            return self._on_agent.get(fact.agent_name, ())
        if isinstance(fact, AgentEnded):
            return self._on_agent.pop(fact.agent_name, ())
        if isinstance(fact, AgentAdmitted):
            if fact.task is None:
                return ()
            of_task = self._placed(fact.task.task_id, fact.agent.name)
            return (*of_task, fact.task.array_id) if fact.task.array_id else of_task
        if isinstance(fact, TaskRegistered):
            return self._placed(fact.task.task_id, fact.agent_name)
        return ()

    def _of_array(self, array_id: str) -> list[str]:
        """The array and its members that somebody waits for."""
        begin = f"{array_id}["
        return [one for one in self._waiting if one == array_id or one.startswith(begin)]

    def _placed(self, task_id: str, agent_name: str) -> tuple[str, ...]:
        """A task was put on an agent; it is only remembered where somebody waits for it."""
        if task_id not in self._waiting:
            return ()
        self._on_agent.setdefault(agent_name, set()).add(task_id)
        return (task_id,)

    def _wake(self, task_ids: Iterable[str]) -> None:
        for task_id in task_ids:
            for changed in self._waiting.get(task_id, ()):
                changed.set()


def runs(state: MeshState, task_id: str) -> bool:
    """Whether a task runs or has ended; one that is not known has ended."""
    task = state.running.by_id.get(task_id)
    if task is None and (array := state.arrays.alive(task_id)) is not None:
        return bool(array.running)
    if task is None:
        return not state.is_alive(task_id)
    return task.phase is not TaskPhase.STARTING


def has_ended(state: MeshState, task_id: str) -> bool:
    """Whether a task has ended; one that is not known has."""
    return not state.is_alive(task_id)


def has_left(state: MeshState, task_id: str) -> bool:
    """Whether a task has ended, and its agent too if it ends with it: what it held is free."""
    if not has_ended(state, task_id):
        return False
    ended = state.ended.get(task_id)
    agent = None if ended is None else state.agents.get(ended.agent_name)
    return agent is None or not isinstance(agent.phase, Ending)


#: What the callers of ``wait`` wait for.
CONDITIONS: dict[WaitUntil, Condition] = {WaitUntil.RUNNING: runs, WaitUntil.ENDED: has_left}
