"""The look around: which nodes live, what others use there, and which agents are gone."""

from __future__ import annotations

import msgspec

from schedulemesh.core.ray_api import NodeView
from schedulemesh.domain.agent import AgentPhase
from schedulemesh.domain.node import NodeReport
from schedulemesh.domain.resources import NOTHING, Resources
from schedulemesh.engine.cluster import Node
from schedulemesh.engine.state import MeshState
from schedulemesh.engine.stimuli import AgentGone

#: Ray's view lags; what others use is believed only where none of our claims changed for so long.
QUIET_S = 1.0


class _Quiet(msgspec.Struct, frozen=True):
    version: int
    since: float


class NodeWatch:
    """Turns Ray's view of nodes into reports, telling others' use from our own claims."""

    def __init__(self) -> None:
        self._quiet: dict[str, _Quiet] = {}

    def reports(
        self, state: MeshState, views: list[NodeView], now: float
    ) -> tuple[NodeReport, ...]:
        """One report per living node; others_use is None where our own claims changed lately."""
        living = {view.node_id for view in views}
        self._quiet = {node_id: q for node_id, q in self._quiet.items() if node_id in living}
        return tuple(self._report(state.cluster.nodes.get(v.node_id), v, now) for v in views)

    def _report(self, node: Node | None, view: NodeView, now: float) -> NodeReport:
        others: Resources | None = None
        if node is None:
            others = _positive(view.total - view.free)
        elif self._is_quiet(node, now):
            ours = node.total - node.others_use - node.free
            others = _positive(view.total - view.free - ours)
        return NodeReport(
            node_id=view.node_id, total=view.total, labels=view.labels, others_use=others
        )

    def _is_quiet(self, node: Node, now: float) -> bool:
        known = self._quiet.get(node.node_id)
        if known is None or known.version != node.version:
            self._quiet[node.node_id] = _Quiet(node.version, now)
            return False
        return now - known.since >= QUIET_S


def agents_gone(
    state: MeshState, before: set[tuple[str, int]], living: set[tuple[str, str]], now: float
) -> list[AgentGone]:
    """Agents that ran ``before`` the look and are not among the living actors."""
    gone = []
    for name, agent in state.agents.items():
        if agent.phase is not AgentPhase.RUNNING or (name, agent.incarnation) not in before:
            continue
        if (agent.actor_namespace, agent.actor_name) not in living:
            gone.append(AgentGone(at=now, agent_name=name, incarnation=agent.incarnation))
    return gone


def running_agents(state: MeshState) -> set[tuple[str, int]]:
    """The agents that run now, with their incarnations."""
    return {
        (name, agent.incarnation)
        for name, agent in state.agents.items()
        if agent.phase is AgentPhase.RUNNING
    }


def _positive(amount: Resources) -> Resources:
    return amount.beyond(NOTHING)
