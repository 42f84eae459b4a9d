"""What is remembered of agents and tasks that have ended: to restore them, for statistics, and to tell a name
that was used before from a wrong one.
"""

from __future__ import annotations

from collections import OrderedDict

import msgspec

from schedulemesh.domain.reasons import PreemptionReason
from schedulemesh.engine.messages.facts import TaskPreempted
from schedulemesh.engine.state.agents import LostAgent, Preempted

#: How many past preemptions, and how many lost agents, are kept.
RECENT = 1000
#: How many names of former agents are kept.
FORMER = 10_000


class Past:
    """Preempted tasks, lost agents and the names of former agents."""

    def __init__(self) -> None:
        #: The last preemptions by task, oldest first.
        self.preempted: dict[str, Preempted] = {}
        #: Agents that were lost and not created again, by name, oldest first.
        self.lost: dict[str, LostAgent] = {}
        #: Which lost agent a task ran on, by task.
        self._lost_with: dict[str, str] = {}
        #: Names of agents that have ended, oldest first.
        self.former: OrderedDict[str, None] = OrderedDict()
        #: Preemptions so far, by reason.
        self.preemption_counts: dict[PreemptionReason, int] = {}

    def note_preempted(self, fact: TaskPreempted, state_key: str | None) -> None:
        """Remember a preemption; only those that count are in the statistics."""
        if fact.counted:
            self.preemption_counts[fact.reason] = self.preemption_counts.get(fact.reason, 0) + 1
        self.preempted.pop(fact.task.task_id, None)
        self.preempted[fact.task.task_id] = Preempted(fact=fact, state_key=state_key)
        if len(self.preempted) > RECENT:
            del self.preempted[next(iter(self.preempted))]

    def note_lost(self, lost: LostAgent) -> None:
        """Remember a lost agent. A task that was lost with another one before belongs to this one now."""
        self._forget_lost(lost.spec.name)
        for task, _ in lost.tasks:
            self._forget_lost_task(task.task_id)
        self.lost[lost.spec.name] = lost
        for task, _ in lost.tasks:
            self._lost_with[task.task_id] = lost.spec.name
        if len(self.lost) > RECENT:
            self._forget_lost(next(iter(self.lost)))

    def note_former(self, agent_name: str) -> None:
        """Remember the name of an agent that has ended."""
        self.former[agent_name] = None
        self.former.move_to_end(agent_name)
        if len(self.former) > FORMER:
            self.former.popitem(last=False)

    def note_running(self, task_id: str) -> None:
        """The task runs again: what was kept to restore it is no longer needed."""
        past = self.preempted.get(task_id)
        if past is not None and not past.ran_again:
            self.preempted[task_id] = msgspec.structs.replace(past, ran_again=True)
        self._forget_lost_task(task_id)

    def forget_agent(self, agent_name: str) -> None:
        """An agent of this name exists again."""
        self._forget_lost(agent_name)
        self.former.pop(agent_name, None)

    def forget_states(self, state_keys: frozenset[str]) -> None:
        """These saved states are no longer kept; the tasks stay on record without one."""
        for task_id, past in self.preempted.items():
            if past.state_key in state_keys:
                self.preempted[task_id] = msgspec.structs.replace(past, state_key=None)
        for name, lost in self.lost.items():
            tasks = tuple((task, None if key in state_keys else key) for task, key in lost.tasks)
            self.lost[name] = msgspec.structs.replace(lost, tasks=tasks)

    def _forget_lost(self, agent_name: str) -> None:
        lost = self.lost.pop(agent_name, None)
        for task, _ in () if lost is None else lost.tasks:
            if self._lost_with.get(task.task_id) == agent_name:
                del self._lost_with[task.task_id]

    def _forget_lost_task(self, task_id: str) -> None:
        agent_name = self._lost_with.pop(task_id, None)
        if agent_name is not None:
            lost = self.lost[agent_name]
            left = tuple(entry for entry in lost.tasks if entry[0].task_id != task_id)
            if left:
                self.lost[agent_name] = msgspec.structs.replace(lost, tasks=left)
            else:
                del self.lost[agent_name]
