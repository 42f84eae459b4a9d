"""The calls that list and delete agents, rebuild dead ones, and end orphans."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from schedulemesh.api.agents import DeleteAgent, EnsureAgentHealth, ListAgents
from schedulemesh.api.cluster import EndOrphans, ListOrphans
from schedulemesh.client import results
from schedulemesh.client.arguments import public_calls
from schedulemesh.client.asking import ask_with_handles, details, listed, logged, respond
from schedulemesh.client.listings import AgentsResult, EndedOrphans, HealthResult, OrphansResult
from schedulemesh.client.scheduler_object import SchedulerObject
from schedulemesh.domain.containers import as_elements
from schedulemesh.domain.names import as_text, parse_name
from schedulemesh.domain.numbers import parse_flag, parse_timeout
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.protocol.answers import Listed
from schedulemesh.protocol.public import refused


@public_calls
class AgentCalls(SchedulerObject):
    """A scheduler object that lists and ends agents."""

    def list_agents(self, pool_name: str | None = None) -> AgentsResult:
        """Return ``agents``: every agent, or those of one pool, with name, pool, Ray handle, resources,
        labels, Ray options, state, node, process, tasks and last metrics.
        """
        name = None if pool_name is None else parse_name(pool_name, "pool_name")
        answer, handles = ask_with_handles(self._connection, ListAgents(pool_name=name), Listed)
        if isinstance(answer, Refused):
            return results.combined(AgentsResult, refused(answer))
        rest = iter(handles)
        agents = [_with_handles(row, rest) for row in answer.rows]
        return {"success": True, "agents": agents}

    def delete_agent(
        self, name: str, force: bool = False, destroy_pg: bool | None = None
    ) -> results.DeletionResult:
        """End an agent with its tasks and free its quota; returns when its process has ended.

        An agent that has ended before is a success with ``already_gone``; a name that no agent had is refused
        with ``agent_not_found``. ``force`` is accepted for callers of Ray's kill and changes nothing: ending
        an agent never fails. ``destroy_pg`` True also removes its placement group and waits for that (a
        reserved one stays removed until the pool is ensured or resized); False keeps it; None keeps reserved
        groups, and dynamic ones where the pool reuses them.
        """
        parse_flag(force, "force")
        request = DeleteAgent(
            agent_name=parse_name(name, "the agent's name"),
            destroy_group=None if destroy_pg is None else parse_flag(destroy_pg, "destroy_pg"),
        )
        return logged("delete_agent", results.deleted(respond(self._connection, request).outcome))

    def ensure_agent_health(self, timeout: float = 120.0) -> HealthResult:
        """Check every agent. Those that are dead, or that were silent for ``timeout`` seconds and do not
        answer a ping, are removed and, where possible, rebuilt from their last saved state.

        Returns ``checked`` and ``healthy`` (counts), ``rebuilt`` and ``removed`` (names), and ``details``:
        for each agent that was not healthy the problem, what was done, and why not more. A removed agent is
        reported once.
        """
        request = EnsureAgentHealth(timeout_s=parse_timeout(timeout, "timeout"))
        return details(self._connection, request, HealthResult)

    def list_orphans(self) -> OrphansResult:
        """Return ``orphans``: actors and placement groups of this scheduler that its journal does not know,
        because a backup was restored while they ran; each with ``name`` (in Ray) and ``kind``.
        """
        return listed(self._connection, ListOrphans(), "orphans", OrphansResult)

    def end_orphans(self, names: Iterable[str] | None = None) -> EndedOrphans:
        """End the orphaned actors with these names in Ray, or all of them (None).

        Orphaned placement groups are removed with the last orphaned actor. Returns ``ended`` (names).
        """
        request = EndOrphans(names=None if names is None else _names(names))
        return details(self._connection, request, EndedOrphans)


def _with_handles(row: dict[str, object], handles: Iterator[Any]) -> results.AgentInfo:
    """An agent with its Ray handle, the next of these; a gang with those of its members, of whom the first
    one's is its own; a lease has no process. Over a connection that sends no handles they are None.
    """
    if row["kind"] == "lease":
        return results.combined(results.AgentInfo, row, {"handle": None})
    members = row.get("members")
    if not isinstance(members, list):
        return results.combined(results.AgentInfo, row, {"handle": next(handles, None)})
    shown = [{**member, "handle": next(handles, None)} for member in members]
    return results.combined(
        results.AgentInfo, row, {"handle": shown[0]["handle"], "members": shown}
    )


def _names(value: object) -> tuple[str, ...]:
    """Names as list_orphans returns them. Raises InvalidRequestError."""
    text = as_text(value)
    names = as_elements(value, "names", "a list of names", sets=True) if text is None else [text]
    return tuple(parse_name(name, "each of names") for name in names)
