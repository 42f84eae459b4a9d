"""What the agents on a node would free: summed up per node, and kept until something changes there.

From the summary follows a lower bound for the best victims on the node, so that of a thousand full nodes only
the few that can still win are searched.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import msgspec

from schedulemesh.domain.resources import NOTHING, Resources, least, most
from schedulemesh.engine.placement.group_choice import is_removed_with
from schedulemesh.engine.preemption.victims import VictimAgent, is_running
from schedulemesh.engine.state.groups import bundle_of, is_bundle
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.nodes import Node
from schedulemesh.engine.state.tasks import RunningTask, TaskClass

#: GPU-seconds by which a sum over tasks may differ from the sum over times.
_ROUNDING = 1.0
#: For how many lacks a node's bound is kept.
_LACKS = 16

#: Highest tier of a victim, number of victims, lost work in GPU-seconds, node id: ascending is better.
Place = tuple[float, int, float, str]


def place_of(victims: Collection[VictimAgent], node_id: str) -> Place:
    """Where these victims stand among those of other nodes."""
    return (
        max((victim.tier for victim in victims), default=float("-inf")),
        len(victims),
        sum(victim.lost_work for victim in victims),
        node_id,
    )


class NodeSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What a node's agents with running tasks would free."""

    version: int
    #: By the classes of an agent's tasks: what such agents free together.
    by_classes: dict[frozenset[TaskClass], Resources]
    #: The sum over all agents, and kind by kind the most and least that one of them frees.
    freed: Resources
    largest: Resources
    smallest: Resources
    #: (priority, what agents of at most that priority free together), ascending.
    levels: tuple[tuple[float, Resources], ...]
    count: int
    #: Sum over tasks of the time from which work would be lost, times what each holds in GPUs.
    since: float
    #: What they hold in GPUs, each task for itself.
    gpus: float
    #: What was found out for some lacks: see ``_least_of``.
    least: dict[Resources, tuple[float, int] | None] = {}

    def freed_by(self, allowed: frozenset[TaskClass]) -> Resources:
        """What becomes free without the agents all of whose tasks are of these classes."""
        freed = self.freed
        for classes, amount in self.by_classes.items():
            if not classes <= allowed:
                freed = freed - amount
        return freed

    def bound(self, lack: Resources, node_id: str, now: float) -> Place | None:
        """No victims on this node that free ``lack`` come before this; None: there are none."""
        if lack in self.least:
            least = self.least[lack]
        else:
            if len(self.least) >= _LACKS:
                self.least.clear()
            least = self.least[lack] = self._least_of(lack)
        if least is None:
            return None
        top, fewest = least
        if not fewest:
            return (top, self.count, self.gpus * now - self.since - _ROUNDING, node_id)
        return (top, fewest, 0.0, "")

    def _least_of(self, lack: Resources) -> tuple[float, int] | None:
        """The lowest top priority and the fewest of any victims that free ``lack``, 0: all agents of the node
        must go; None: there are none.
        """
        top = next((priority for priority, freed in self.levels if lack.fits(freed)), None)
        if top is None:
            return None
        if self._all_must_go(lack):
            return (top, 0)
        largest = dict(self.largest.items())
        return (top, max((-(-units // largest[kind]) for kind, units in lack.items()), default=1))

    def _all_must_go(self, lack: Resources) -> bool:
        """Whether every agent frees more of some kind than could be spared."""
        slack = self.freed - lack
        return (
            (lack.gpu > 0 and self.smallest.gpu > slack.gpu)
            or (lack.cpu > 0 and self.smallest.cpu > slack.cpu)
            or (lack.memory > 0 and self.smallest.memory > slack.memory)
        )


def summary_of(state: MeshState, node: Node) -> NodeSummary:
    """The node's summary."""
    cached = node.summary
    if isinstance(cached, NodeSummary) and cached.version == node.version:
        return cached
    made = _summarise(state, node)
    if not any(is_bundle(key) for key in node.allocations):
        # Changes of a group and of its agent's tasks do not show in the node's version.
        node.summary = made
    return made


def agents_on(state: MeshState, node: Node) -> Iterator[tuple[str, Resources]]:
    """The agents whose eviction frees something there, and how much; several times where an agent's group
    has several bundles there.
    """
    for key in node.allocations:
        if not is_bundle(key):
            agent = state.agents.get(key)
            if agent is not None:
                yield key, agent.spec.resources
            continue
        group_id, number = bundle_of(key)
        group = state.groups.by_id[group_id]
        if group.agent is not None and is_removed_with(group, group.agent):
            yield group.agent, group.shape.bundles[number]


def _summarise(state: MeshState, node: Node) -> NodeSummary:
    frees: dict[str, Resources] = {}
    for name, amount in agents_on(state, node):
        frees[name] = frees[name] + amount if name in frees else amount
    by_classes: dict[frozenset[TaskClass], Resources] = {}
    by_priority: dict[float, Resources] = {}
    each: list[Resources] = []
    since = gpus = 0.0
    for name, amount in frees.items():
        tasks = _tasks_of(state, name)
        if not tasks:
            continue
        each.append(amount)
        classes = frozenset(task.task_class for task in tasks if task.task_class is not None)
        by_classes[classes] = by_classes.get(classes, NOTHING) + amount
        top = max(task.spec.priority for task in tasks)
        by_priority[top] = by_priority.get(top, NOTHING) + amount
        work_rate = state.agents[name].spec.resources.work_rate
        since += sum(max(task.started_at, task.saved_at or 0.0) for task in tasks) * work_rate
        gpus += len(tasks) * work_rate
    levels, freed = [], NOTHING
    for priority in sorted(by_priority):
        freed = freed + by_priority[priority]
        levels.append((priority, freed))
    return NodeSummary(
        version=node.version,
        by_classes=by_classes,
        freed=freed,
        largest=most(each),
        smallest=least(each),
        levels=tuple(levels),
        count=len(each),
        since=since,
        gpus=gpus,
    )


def _tasks_of(state: MeshState, agent_name: str) -> list[RunningTask]:
    """The tasks of a running agent; none where one of them can be no victim at all."""
    if not is_running(state, agent_name):
        return []
    tasks = [state.running.by_id[task_id] for task_id in state.running.on_agent(agent_name)]
    return [] if any(task.task_class is None for task in tasks) else tasks
