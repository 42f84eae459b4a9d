"""Agents: end, check and list them."""

from __future__ import annotations

from typing import ClassVar

from schedulemesh.api.call import Call, Change
from schedulemesh.api.routes import delete, post
from schedulemesh.api.values import AgentName, PoolName, Seconds


class DeleteAgent(Change, tag="delete_agent", frozen=True, kw_only=True):
    """Terminate an agent."""

    routes: ClassVar = (delete("/agents/{agent_name}", "End an agent with its tasks"),)

    agent_name: AgentName
    #: Whether its placement group is removed, too; None: as the pool's definition says.
    destroy_group: bool | None = None


class EnsureAgentHealth(Change, tag="ensure_agent_health", frozen=True, kw_only=True):
    """Check every agent, and rebuild dead and unresponsive ones where possible."""

    routes: ClassVar = (
        post(
            "/agents/check",
            "Check all agents, and rebuild those that are dead or silent",
            renamed={"timeout_s": "timeout"},
        ),
    )

    #: Agents that were silent for so many seconds are asked for a sign of life.
    timeout_s: Seconds = 120.0


class ListAgents(Call, tag="list_agents", frozen=True, kw_only=True):
    """List all agents (of one pool); their Ray handles are sent beside the answer, in the same order."""

    pool_name: PoolName | None = None
