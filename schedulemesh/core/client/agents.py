"""Agent calls: list and delete agents, rebuild dead ones, end orphans. RayScheduler documents each call."""

from __future__ import annotations

from collections.abc import Iterator

from ray.actor import ActorHandle

from schedulemesh.api.agents import DeleteAgent, EnsureAgentHealth, ListAgents
from schedulemesh.api.cluster import EndOrphans, ListOrphans
from schedulemesh.core.client import results
from schedulemesh.core.client.asking import ask_with_handles, details, listed, logged, respond
from schedulemesh.core.client.connection import Connection
from schedulemesh.core.client.listings import (
    AgentsResult,
    EndedOrphans,
    HealthResult,
    OrphansResult,
)
from schedulemesh.domain.containers import as_elements
from schedulemesh.domain.names import as_text, parse_name
from schedulemesh.domain.numbers import parse_flag, parse_timeout
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.protocol.answers import Listed


def list_agents(connection: Connection, pool_name: object) -> AgentsResult:
    """Every agent with its Ray handle, or those of one pool."""
    name = None if pool_name is None else parse_name(pool_name, "pool_name")
    answer, handles = ask_with_handles(connection, ListAgents(pool_name=name), Listed)
    if isinstance(answer, Refused):
        return results.combined(AgentsResult, results.refused(answer))
    rest = iter(handles)
    agents = [_with_handles(row, rest) for row in answer.rows]
    return {"success": True, "agents": agents}


def _with_handles(row: dict[str, object], handles: Iterator[ActorHandle]) -> results.AgentInfo:
    """An agent with its Ray handle, the next of these; a gang with those of its members, of whom the first
    one's is its own; a lease has no process.
    """
    if row["kind"] == "lease":
        return results.combined(results.AgentInfo, row, {"handle": None})
    members = row.get("members")
    if not isinstance(members, list):
        return results.combined(results.AgentInfo, row, {"handle": next(handles)})
    shown = [{**member, "handle": next(handles)} for member in members]
    return results.combined(
        results.AgentInfo, row, {"handle": shown[0]["handle"], "members": shown}
    )


def delete_agent(
    connection: Connection, name: object, force: object, destroy_pg: object
) -> results.DeletionResult:
    """End an agent."""
    parse_flag(force, "force")
    request = DeleteAgent(
        agent_name=parse_name(name, "the agent's name"),
        destroy_group=None if destroy_pg is None else parse_flag(destroy_pg, "destroy_pg"),
    )
    return logged("delete_agent", results.deleted(respond(connection, request).outcome))


def ensure_agent_health(connection: Connection, timeout: object) -> HealthResult:
    """Check every agent, and rebuild those that are dead or silent."""
    request = EnsureAgentHealth(timeout_s=parse_timeout(timeout, "timeout"))
    return details(connection, request, HealthResult)


def list_orphans(connection: Connection) -> OrphansResult:
    """Every orphan."""
    return listed(connection, ListOrphans(), "orphans", OrphansResult)


def end_orphans(connection: Connection, names: object) -> EndedOrphans:
    """End the orphans with these names in Ray; None: all."""
    request = EndOrphans(names=None if names is None else _names(names))
    return details(connection, request, EndedOrphans)


def _names(given: object) -> tuple[str, ...]:
    """Names as list_orphans returns them. Raises InvalidRequestError."""
    text = as_text(given)
    names = as_elements(given, "names", "a list of names", sets=True) if text is None else [text]
    return tuple(parse_name(name, "each of names") for name in names)
