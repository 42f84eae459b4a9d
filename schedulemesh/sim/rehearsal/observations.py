"""What the supervisor saw and measured in a recording, as stimuli: nodes, external work, agents."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from schedulemesh.domain.demand import ExternalDemand
from schedulemesh.domain.node import NodeReport
from schedulemesh.domain.resources import NOTHING, Resources
from schedulemesh.engine.messages import facts as f
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.demand_facts import ExternalDemandSeen
from schedulemesh.engine.messages.measurement_facts import EndMeasured, GpusBusy, GpusIdle
from schedulemesh.engine.messages.queue_facts import Ticked
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.nodes import Node
from schedulemesh.sim.rehearsal.recording import fact_of
from schedulemesh.store.history.events import OBSERVED, Event

#: The kinds of events to which a look at the nodes leads.
NODE_KINDS = frozenset(("node_joined", "node_changed", "node_lost"))


class Observations:
    """Remembers the nodes as they were seen last."""

    def __init__(self, state: Callable[[], MeshState], late_s: Callable[[str], float]) -> None:
        """``state``: the present one. ``late_s``: by how much a task began later than in the history."""
        self._state, self._late_s = state, late_s
        self._reports: dict[str, NodeReport] = {}
        #: Nodes that are added to those of the history; below 0: that are left out.
        self.more_nodes = 0

    def now(self, demand: tuple[ExternalDemand, ...] | None = None) -> s.ClusterObserved:
        """The nodes as they are now, and what external work waits for; None: as before."""
        nodes = tuple(_with(list(self._reports.values()), self.more_nodes))
        return s.ClusterObserved(nodes=nodes, external_demand=demand)

    @property
    def each_added(self) -> Resources:
        """What each node has that is added: as much as the largest one; nothing where none is."""
        if self.more_nodes <= 0 or not self._reports:
            return NOTHING
        return _largest(self._reports.values()).total

    def start_with(self, nodes: Iterable[Node]) -> s.ClusterObserved:
        """These nodes, of which the history does not have when they joined."""
        for node in nodes:
            self._reports[node.node_id] = NodeReport(
                node_id=node.node_id,
                total=node.total,
                labels=node.labels,
                external_usage=node.external_usage,
            )
        return self.now()

    def of_cluster(self, events: Iterable[Event]) -> s.ClusterObserved:
        """One look at the cluster, which has led to these events."""
        demand = None
        for event in events:
            fact = fact_of(event)
            if isinstance(fact, f.NodeSeen):
                self._reports[fact.report.node_id] = fact.report
            elif isinstance(fact, ExternalDemandSeen):
                demand = fact.demand
            else:
                self._reports.pop(event.subject, None)
        return self.now(demand)

    def measured(self, event: Event) -> s.AnyStimulus | None:
        """What a step measured that is no event."""
        fact = fact_of(event)
        if isinstance(fact, Ticked):
            return self.now()  # it changes nothing either
        idle = dict(self._state().running.idle)
        if isinstance(fact, GpusIdle):
            idle[fact.agent_name] = fact.since
        elif isinstance(fact, GpusBusy):
            idle.pop(fact.agent_name, None)
        elif not isinstance(fact, EndMeasured):
            return None  # the start that found no room says so
        ends = (self._end(fact),) if isinstance(fact, EndMeasured) else ()
        return s.AgentsMeasured(idle=tuple(idle.items()), ends=ends)

    def _end(self, fact: EndMeasured) -> tuple[str, float | None]:
        """When a task ends that began later or earlier than in the history."""
        if fact.ends_at is None:
            return fact.task_id, None
        return fact.task_id, fact.ends_at + self._late_s(fact.task_id)


def is_of_cluster(event: Event) -> bool:
    """Whether an event is part of a look at the cluster."""
    return event.kind in NODE_KINDS or (
        event.kind == OBSERVED and isinstance(fact_of(event), ExternalDemandSeen)
    )


def _with(nodes: list[NodeReport], more: int) -> Iterator[NodeReport]:
    """The nodes, and so many more like the largest; below 0: without the last so many."""
    yield from nodes[: max(0, len(nodes) + min(0, more))]
    if more > 0 and nodes:
        like = _largest(nodes)
        for number in range(more):
            yield NodeReport(node_id=f"more-{number + 1}", total=like.total, labels=like.labels)


def _largest(nodes: Iterable[NodeReport]) -> NodeReport:
    return max(nodes, key=lambda node: (node.total.gpu, node.total.cpu))
