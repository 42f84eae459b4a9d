"""The engine's state as plain values, for strategies from plugins."""

from __future__ import annotations

from schedulemesh.domain.agent import AgentSpec
from schedulemesh.domain.resources import NOTHING, UNIT, Resources
from schedulemesh.domain.task import DEFAULT_PRIORITY, TaskSpec
from schedulemesh.engine.messages.query import PreemptionQuery
from schedulemesh.engine.state.nodes import Node
from schedulemesh.engine.state.quota import Account
from schedulemesh.engine.state.tasks import RunningTask
from schedulemesh.plugins.scheduling import ResourceDomain, TaskView


def amounts(resources: Resources) -> dict[str, object]:
    """The documented dict of floats, every kind present."""
    return {
        "cpu": resources.cpu / UNIT,
        "memory": resources.memory / UNIT,
        "gpu": resources.gpu / UNIT,
        "custom": {name: units / UNIT for name, units in resources.custom},
    }


def node_domain(node: Node) -> ResourceDomain:
    """A node as a candidate."""
    return ResourceDomain(
        kind="node",
        name=node.node_id,
        labels=dict(node.labels),
        total=amounts(node.total),
        free=amounts(node.free),
        devices=tuple(units / UNIT for units in node.devices),
    )


def pool_domain(account: Account) -> ResourceDomain:
    """A pool as a candidate."""
    return ResourceDomain(
        kind="pool",
        name=account.spec.name,
        labels=dict(account.spec.labels),
        total=amounts(account.spec.resources),
        free=amounts(account.free),
    )


def submitted_view(
    agent: AgentSpec, task: TaskSpec | None, need: Resources | None, pool_name: str
) -> TaskView:
    """A task that is being submitted, or an agent without one."""
    return TaskView(
        id="" if task is None else task.task_id,
        pool=pool_name,
        priority=DEFAULT_PRIORITY if task is None else task.priority,
        labels=dict(agent.labels if task is None else task.labels),
        resources=amounts(need or NOTHING),
        estimated_duration=None if task is None else task.estimated_duration,
    )


def query_view(query: PreemptionQuery) -> TaskView:
    """The task that a dry run of the decision is about."""
    return TaskView(
        id="",
        pool=query.pool_name,
        priority=query.priority,
        labels=dict(query.labels),
        resources=amounts(query.resources or NOTHING),
    )


def running_view(task: RunningTask, now: float) -> TaskView:
    """A running task."""
    timed = task.ends_at is not None
    return TaskView(
        id=task.spec.task_id,
        pool=task.spec.pool_name,
        priority=task.spec.priority,
        labels=dict(task.spec.labels),
        resources=amounts(task.resources),
        estimated_duration=task.spec.estimated_duration,
        remaining_time=task.remaining(now) if timed else None,
        lost_work=task.lost_work(now),
        agent=task.agent_name,
    )
