"""By what reported metrics are aggregated: the agents of each group, and what names the group."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from schedulemesh.api.metrics import GetReportedMetrics, ReportedMetric
from schedulemesh.engine.state.mesh_state import MeshState

#: Values of labels that one answer has at most; those of the most agents are taken.
MAX_LABELS = 1_000


class Reporter(NamedTuple):
    """An agent that has reported, or a member of a gang."""

    name: str
    pool_name: str
    #: Its own labels, and those of its tasks.
    labels: Mapping[str, str]


class MetricGroup(NamedTuple):
    """Agents whose metrics are aggregated together."""

    #: What names it, as fields of its rows.
    fields: ReportedMetric
    agents: list[str]


def groups(
    state: MeshState, agents: Iterable[str], request: GetReportedMetrics
) -> list[MetricGroup]:
    """The groups that a request asks for, in the order of their names."""
    reporters = [
        reporter
        for name in agents
        if request.agent_name in (None, name)
        and (reporter := _reporter(state, name)) is not None
        and request.pool_name in (None, reporter.pool_name)
    ]
    return _GROUPINGS[request.by](reporters, request)


def _reporter(state: MeshState, name: str) -> Reporter | None:
    """What is known of an agent; None: it has ended, and no task is registered on it."""
    agent = state.agents.get(name) or state.gang_with(name)
    owner = name if agent is None else agent.spec.name
    tasks = [state.running.by_id[task_id].spec for task_id in state.running.on_agent(owner)]
    labels = {} if agent is None else dict(agent.spec.labels)
    for task in tasks:
        labels.update(task.labels)
    if agent is not None:
        return Reporter(name, agent.spec.pool_name, labels)
    return Reporter(name, tasks[0].pool_name, labels) if tasks else None


def _by_agent(reporters: Iterable[Reporter], _request: GetReportedMetrics) -> list[MetricGroup]:
    return [
        MetricGroup({"agent_name": one.name, "pool_name": one.pool_name}, [one.name])
        for one in sorted(reporters, key=lambda one: one.name)
    ]


def _by_pool(reporters: Iterable[Reporter], _request: GetReportedMetrics) -> list[MetricGroup]:
    pools: dict[str, list[str]] = {}
    for one in reporters:
        pools.setdefault(one.pool_name, []).append(one.name)
    return [MetricGroup({"pool_name": pool}, pools[pool]) for pool in sorted(pools)]


def _by_label(reporters: Iterable[Reporter], request: GetReportedMetrics) -> list[MetricGroup]:
    labels: dict[tuple[str, str], list[str]] = {}
    for one in reporters:
        for key, value in one.labels.items():
            if request.label in (None, key):
                labels.setdefault((key, value), []).append(one.name)
    most_common = sorted(labels, key=lambda label: (-len(labels[label]), label))[:MAX_LABELS]
    return [
        MetricGroup({"label": key, "label_value": value}, labels[key, value])
        for key, value in sorted(most_common)
    ]


_GROUPINGS: dict[str, Callable[[Iterable[Reporter], GetReportedMetrics], list[MetricGroup]]] = {
    "agent": _by_agent,
    "pool": _by_pool,
    "label": _by_label,
}
