"""Moves: smaller tasks are saved and started again elsewhere, so that a larger one has room on a node.

A task may have its quota while what it needs is free, but scattered over several nodes. Then tasks that need
less on a node than it does may be moved: those that have been there for ``defragment_after_s``, are in no
placement group, and have room together on other nodes as these are now. ``savable`` says which others are
spared, and in which order they are taken. A move counts as an eviction of the task. It may be moved again
only after the same time, so that moves do not follow each other for ever.
"""

from __future__ import annotations

from collections.abc import Hashable

from schedulemesh.domain.reasons import PreemptionReason, Reason
from schedulemesh.engine.messages.outcomes import Candidate
from schedulemesh.engine.placement.placers import FreeNode
from schedulemesh.engine.preemption.limits import Limits
from schedulemesh.engine.preemption.savable import SavableTasks
from schedulemesh.engine.preemption.search import EvictionPlan
from schedulemesh.engine.preemption.veto import PluginVeto
from schedulemesh.engine.preemption.victims import VictimAgent
from schedulemesh.engine.state.groups import shape_on_node
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.nodes import has_labels
from schedulemesh.engine.state.preemption_rules import Incoming, Verdict
from schedulemesh.engine.state.tasks import RunningTask, TaskClass


class SmallerTasks(SavableTasks):
    """The running tasks that may be moved for a larger one."""

    reason = PreemptionReason.DEFRAGMENTED
    in_groups = False

    def __init__(
        self,
        state: MeshState,
        incoming: Incoming,
        now: float,
        veto: PluginVeto | None,
        limits: Limits,
        *,
        gpu: int,
    ) -> None:
        """``gpu``: the GPU units that the incoming task needs on one node."""
        super().__init__(state, incoming, now, veto, limits)
        self._came_first = frozenset()  # they run on, on another node
        self._gpu = gpu

    def candidate_of(self, task: RunningTask) -> Candidate | None:
        """See ``Candidates.candidate_of``."""
        agent = self._state.agents.get(task.agent_name)
        in_group = agent is None or agent.group_id is not None
        came_lately = task.started_at + self._policy.defragment_after_s > self._now
        return None if in_group or came_lately else super().candidate_of(task)

    def _ready_at(self, task: RunningTask) -> float:
        came_at = task.started_at + self._policy.defragment_after_s
        return max(came_at, super()._ready_at(task))

    @property
    def _kind(self) -> tuple[Hashable, ...]:
        return (*super()._kind, self._gpu)

    def _judge(self, task_class: TaskClass) -> Verdict:
        if task_class.resources.gpu >= self._gpu:
            return Verdict(refused=Reason.WOULD_NOT_MAKE_ROOM)
        return super()._judge(task_class)


def fit_elsewhere(state: MeshState, plan: EvictionPlan) -> bool:
    """Whether all victims of a plan have room together on nodes that the incoming task does not use; those
    that ask for labels are placed before the others.
    """
    used = () if plan.placement is None else plan.placement.node_ids
    nodes = state.cluster.nodes
    others = (node for node in state.cluster.open_nodes() if node.node_id not in used)
    free = [FreeNode(node, total=False, waits=True) for node in others if node.free.gpu]
    shapes = {v.name: shape_on_node(state.agents[v.name].spec, v.resources) for v in plan.victims}

    def order(victim: VictimAgent) -> tuple[bool, int, str]:
        return (not shapes[victim.name].node_labels, -victim.resources.gpu, victim.name)

    for victim in sorted(plan.victims, key=order):
        fitting = [
            node
            for node in free
            if node.fits(victim.resources) and has_labels(nodes[node.node_id], shapes[victim.name])
        ]
        if not fitting:
            return False
        min(fitting, key=FreeNode.order).put(victim.resources)
    return True
