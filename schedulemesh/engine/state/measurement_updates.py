"""Applies facts about what was measured to running tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from schedulemesh.engine.messages.fact import Fact
from schedulemesh.engine.messages.measurement_facts import EndMeasured, GpusBusy, GpusIdle
from schedulemesh.engine.state.agents import Agent
from schedulemesh.engine.state.cluster import Cluster
from schedulemesh.engine.state.tasks import RunningTasks


class MeasurementFacts:
    """Applies facts about idle GPUs and measured ends."""

    def __init__(
        self, running: RunningTasks, agents: Mapping[str, Agent], cluster: Cluster
    ) -> None:
        self._running = running
        self._agents = agents
        self._cluster = cluster

    @property
    def updates(self) -> Mapping[type[Fact], Callable[..., None]]:
        """How each of these facts changes them."""
        return {
            GpusIdle: lambda fact: self._note(fact.agent_name, fact.since),
            GpusBusy: lambda fact: self._note(fact.agent_name, None),
            EndMeasured: lambda fact: self._running.measure_end(fact.task_id, fact.ends_at),
        }

    def _note(self, agent_name: str, idle_since: float | None) -> None:
        """Classify its tasks anew, and invalidate what the victim search summed up for its node."""
        self._running.note_idle(agent_name, idle_since)
        agent = self._agents.get(agent_name)
        if agent is not None:
            self._cluster.touch(agent.node_id)
