"""How long evictions take: from the decision until what the task held can be used."""

from __future__ import annotations

import msgspec

from schedulemesh.engine.messages import facts as f
from schedulemesh.engine.state.agents import Ending, Waiting
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.metrics import catalogue as c
from schedulemesh.metrics.values import Histogram


class _Eviction(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An eviction whose resources cannot be used yet."""

    decided_at: float
    #: The incoming agent; None: the eviction was requested.
    for_agent: str | None


class _Freed(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A task that was evicted, whose resources cannot be used yet."""

    decided_at: float
    #: Its pool, and the reason of its eviction.
    labels: tuple[str, str]


class EvictionTimes:
    """Measures the evictions in progress."""

    def __init__(self, state: MeshState) -> None:
        self.latency_ms = Histogram(c.PREEMPTION_MS)
        #: By task.
        self._evicting: dict[str, _Eviction] = {}
        #: By the agent whose readiness or end completes them.
        self._awaiting: dict[str, list[_Freed]] = {}
        #: Agents that are being terminated.
        self._ending: set[str] = set()
        self._begin(state)

    def _begin(self, state: MeshState) -> None:
        """Begin with the evictions in progress."""
        self._ending = {n for n, a in state.agents.items() if isinstance(a.phase, Ending)}
        for record in state.evictions.records.values():
            for_agent = None if record.evictor is None else record.evictor.agent_name
            if record.evicted_at is None:
                eviction = _Eviction(decided_at=record.decided_at, for_agent=for_agent)
                self._evicting[record.task.task_id] = eviction
                continue
            awaited = record.agent_name if for_agent is None else for_agent
            agent = state.agents.get(awaited)
            phase = Ending if for_agent is None else Waiting
            if agent is not None and isinstance(agent.phase, phase):
                labels = (record.task.pool_name, record.reason.value)
                self._await(awaited, _Freed(decided_at=record.decided_at, labels=labels))

    def started(self, fact: f.EvictionStarted) -> None:
        """The eviction of a task was decided."""
        eviction = _Eviction(decided_at=fact.at, for_agent=fact.for_agent)
        self._evicting[fact.task_id] = eviction

    def failed(self, fact: f.EvictionFailed) -> None:
        """The task runs on."""
        self.dropped(fact.task_id)

    def dropped(self, task_id: str) -> None:
        """The task was not evicted."""
        if self._evicting:
            self._evicting.pop(task_id, None)

    def task_preempted(self, fact: f.TaskPreempted) -> float | None:
        """The task was evicted; returns when that was decided. None: it is not known."""
        eviction = self._evicting.pop(fact.task.task_id, None)
        if eviction is None:
            return None
        labels = (fact.task.pool_name, fact.reason.value)
        freed = _Freed(decided_at=eviction.decided_at, labels=labels)
        if not fact.counted:
            return eviction.decided_at
        if eviction.for_agent is not None:
            self._await(eviction.for_agent, freed)
        elif fact.agent_name in self._ending:
            self._await(fact.agent_name, freed)
        else:
            self._observe(freed, fact.at)
        return eviction.decided_at

    def agent_ready(self, fact: f.AgentReady) -> None:
        """An incoming agent has all that it waited for."""
        for freed in self._awaiting.pop(fact.agent_name, ()):
            self._observe(freed, fact.at)

    def agent_ending(self, fact: f.AgentEnding) -> None:
        """An agent is being terminated."""
        self._ending.add(fact.agent_name)

    def agent_ended(self, fact: f.AgentEnded) -> None:
        """An agent has ended: what it held is free. An incoming one used nothing."""
        agent_name = fact.agent_name
        if self._evicting:
            self._evict_for_nobody(agent_name)
        awaited = self._awaiting.pop(agent_name, ()) if self._awaiting else ()
        if agent_name in self._ending:
            self._ending.remove(agent_name)
            for freed in awaited:
                self._observe(freed, fact.at)

    def _evict_for_nobody(self, agent_name: str) -> None:
        """What was evicted for an agent that has ended is evicted for nobody."""
        for task_id, eviction in self._evicting.items():
            if eviction.for_agent == agent_name:
                self._evicting[task_id] = msgspec.structs.replace(eviction, for_agent=None)

    def _await(self, agent_name: str, freed: _Freed) -> None:
        self._awaiting.setdefault(agent_name, []).append(freed)

    def _observe(self, freed: _Freed, at: float) -> None:
        self.latency_ms.observe(freed.labels, max(0.0, at - freed.decided_at) * 1e3)
