"""Applies facts of evictions to running tasks, to the records of evictions and to what is remembered."""

from __future__ import annotations

from collections.abc import Mapping

from schedulemesh.domain.task import TaskPhase
from schedulemesh.engine.messages import facts as f
from schedulemesh.engine.state.agents import Agent, Ending, kind_of
from schedulemesh.engine.state.cluster import Cluster
from schedulemesh.engine.state.evictions import Evictions, Evictor
from schedulemesh.engine.state.past import Past
from schedulemesh.engine.state.task_phases import Preempting
from schedulemesh.engine.state.tasks import RunningTasks


class EvictionFacts:
    """Applies facts of evictions."""

    def __init__(
        self,
        evictions: Evictions,
        running: RunningTasks,
        agents: Mapping[str, Agent],
        past: Past,
        requests: dict[str, str],
        cluster: Cluster,
    ) -> None:
        self._evictions = evictions
        self._running = running
        self._agents = agents
        self._past = past
        self._requests = requests
        self._cluster = cluster

    def started(self, fact: f.EvictionStarted) -> None:
        """The task is no candidate any more."""
        task = self._running.by_id[fact.task_id]
        preempting = Preempting(
            reason=fact.reason, score=fact.preempt_score, request_id=fact.request_id
        )
        evictor = None if fact.for_agent is None else self._evictor(self._agents[fact.for_agent])
        idle_since = None if evictor is None else self._running.idle.get(task.agent_name)
        self._evictions.begin(task, preempting, fact.at, evictor, fact.client, idle_since)
        self._running.enter(fact.task_id, preempting)
        if fact.request_id is not None:
            self._requests[fact.request_id] = task.agent_name
        self._touch(task.agent_name)

    def state_saved(self, fact: f.StateSaved) -> None:
        """The work of the task until the state was taken would not be lost, if it can be restored."""
        saved_at = fact.work_saved_at
        self._running.save(fact.task_id, saved_at, fact.state_key)
        self._orphan_children(fact.task_id)
        if saved_at is not None:
            self._evictions.note_saved(fact.task_id, saved_at, fact.state_key)
        self._touch(self._running.by_id[fact.task_id].agent_name)

    def work_saved(self, fact: f.WorkSaved) -> None:
        """The work of the task until then would not be lost."""
        self._running.save(fact.task_id, fact.work_saved_at)
        self._evictions.note_saved(fact.task_id, fact.work_saved_at)
        self._touch(self._running.by_id[fact.task_id].agent_name)

    def saving_failed(self, fact: f.SavingFailed) -> None:
        """The task is evicted without its present state."""
        self._running.by_id[fact.task_id].note_saving(fact.error)
        self._orphan_children(fact.task_id)
        self._evictions.note_not_saved(fact.task_id, fact.error)

    def _orphan_children(self, task_id: str) -> None:
        """Have the children of a task end that is evicted with its agent: it does not need them any more."""
        task = self._running.by_id[task_id]
        agent = self._agents.get(task.agent_name)
        leaves = agent is not None and isinstance(agent.phase, Ending)
        if leaves and isinstance(task.phase, Preempting):
            self._running.children.orphan(task_id)

    def task_preempted(self, fact: f.TaskPreempted) -> None:
        """The task is no longer part of the state."""
        task = self._running.remove(fact.task.task_id)
        self._touch(task.agent_name)
        agent = self._agents.get(task.agent_name)
        if agent is None:
            self._past.note_former(task.agent_name)
        self._past.note_preempted(task, fact, kind_of(self._agents, task.agent_name))
        ends = agent is not None and isinstance(agent.phase, Ending)
        self._evictions.finish(fact.task.task_id, fact.at, agent_stays=not ends)

    def failed(self, fact: f.EvictionFailed) -> None:
        """The task runs on."""
        self._running.enter(fact.task_id, TaskPhase.RUNNING)
        self._evictions.cancel(fact.task_id)
        self._touch(self._running.by_id[fact.task_id].agent_name)

    def states_forgotten(self, fact: f.StatesForgotten) -> None:
        """These saved states are no longer kept."""
        state_keys = frozenset(fact.state_keys)
        self._past.forget_states(state_keys)
        self._evictions.forget_states(state_keys)

    def _evictor(self, agent: Agent) -> Evictor:
        submission = agent.submission
        task = None if submission is None else self._running.by_id.get(submission.task_id or "")
        return Evictor(
            agent_name=agent.spec.name,
            pool_name=agent.spec.pool_name,
            task=None if task is None else task.spec,
        )

    def _touch(self, agent_name: str) -> None:
        """Invalidate what the victim search summed up for the agent's node."""
        agent = self._agents.get(agent_name)
        if agent is not None:
            self._cluster.touch(agent.node_id)
