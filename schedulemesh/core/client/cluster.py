"""Calls about nodes, strategies and the scheduler itself. RayScheduler documents each call."""

from __future__ import annotations

from schedulemesh.core.client import results
from schedulemesh.core.client.about_results import AboutResult
from schedulemesh.core.client.asking import details, listed, respond
from schedulemesh.core.client.connection import Connection
from schedulemesh.core.client.external_results import ExternalUsageResult
from schedulemesh.core.client.listings import NodesResult, Stats, StrategiesResult
from schedulemesh.domain.names import parse_name
from schedulemesh.domain.numbers import parse_flag
from schedulemesh.protocol.requests import (
    CordonNode,
    GetAbout,
    GetStats,
    ListExternalUsage,
    ListNodes,
    ListStrategies,
)


def cluster_snapshot(connection: Connection) -> NodesResult:
    """Every living node."""
    return listed(connection, ListNodes(), "nodes", NodesResult)


def external_usage(connection: Connection) -> ExternalUsageResult:
    """Every Ray job that holds or waits for something outside of the scheduler."""
    return listed(connection, ListExternalUsage(), "jobs", ExternalUsageResult)


def cordon_node(connection: Connection, node_id: object, cordoned: object) -> results.Result:
    """Close a node to new agents, or open it again."""
    request = CordonNode(
        node_id=parse_name(node_id, "node_id"), cordoned=parse_flag(cordoned, "cordoned")
    )
    return results.done(respond(connection, request).outcome)


def strategies(connection: Connection) -> StrategiesResult:
    """The strategies that the scheduler was made with."""
    return listed(connection, ListStrategies(), "strategies", StrategiesResult)


def stats(connection: Connection) -> Stats:
    """The preemption counts, and the pools."""
    return details(connection, GetStats(), Stats)


def about(connection: Connection) -> AboutResult:
    """What serves this scheduler, and where."""
    return details(connection, GetAbout(), AboutResult)
