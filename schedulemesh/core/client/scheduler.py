"""RayScheduler: validate, send one request, wait, and answer in the documented words."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import msgspec

from schedulemesh.config.settings import (
    DEFAULT_NAMESPACE,
    JournalSettings,
    SchedulerSettings,
    parse_journal_settings,
    parse_state_path,
)
from schedulemesh.core.client import results
from schedulemesh.core.client.arguments import public_calls
from schedulemesh.core.client.asking import ask_with_handles
from schedulemesh.core.client.connection import Connection, connect, find
from schedulemesh.core.client.pool_calls import PoolCalls
from schedulemesh.core.client.preemption_calls import PreemptionCalls
from schedulemesh.core.client.state_calls import StateCalls
from schedulemesh.core.client.strategies import check_built_in, chosen_strategies
from schedulemesh.core.client.submit_calls import SubmitCalls
from schedulemesh.domain.names import parse_name
from schedulemesh.domain.numbers import parse_flag, parse_timeout
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.engine.placement.strategies import POOL_STRATEGY
from schedulemesh.errors import InvalidRequestError
from schedulemesh.protocol.answers import Listed
from schedulemesh.protocol.requests import (
    CordonNode,
    DeleteAgent,
    GetAbout,
    GetStats,
    ListAgents,
    ListNodes,
    ListStrategies,
)


@public_calls
class RayScheduler(PoolCalls, SubmitCalls, PreemptionCalls, StateCalls):
    """The scheduler of one name: finds its supervisor or makes it, and speaks for it.

    ``detached`` False ties it to this job: when the job ends, nothing of it stays in Ray. True lets it
    outlive the job; making it again attaches to the living one. ``state_path`` is the folder of its
    journal on this node (None: Ray's session folder). ``node_strategy`` chooses among nodes with room,
    ``pool_strategy`` among matching pools: "bin_pack", "spread", "best_fit", "dominant_share" or
    "fragmentation_aware". ``strategies`` are asked before those: instances of SchedulingStrategyPlugin,
    import paths "module:Class", or names of installed ones (see docs/plugins.md). ``health_interval_s`` has
    the scheduler itself look after agents every so many seconds, as ``ensure_agent_health`` does when asked.
    ``journal`` says how much is kept, and for how long.

    Malformed requests raise InvalidRequestError (a ValueError) before anything happens; refusals are
    answers with ``success`` False.
    """

    def __init__(
        self,
        name: str = "default",
        *,
        detached: bool = False,
        namespace: str | None = None,
        state_path: str | os.PathLike[str] | None = None,
        node_strategy: str = "bin_pack",
        pool_strategy: str = POOL_STRATEGY,
        strategies: Sequence[Any] = (),
        health_interval_s: float | None = None,
        journal: JournalSettings | None = None,
    ) -> None:
        pool_strategy = check_built_in("pool_strategy", pool_strategy)
        node_strategy, refs = chosen_strategies(node_strategy, strategies)
        settings = msgspec.structs.replace(
            _settings(name, namespace, state_path, parse_flag(detached, "detached"), node_strategy),
            pool_strategy=pool_strategy,
            strategies=refs,
            health_interval_s=(
                None
                if health_interval_s is None
                else parse_timeout(health_interval_s, "health_interval_s")
            ),
            journal=parse_journal_settings(journal),
        )
        self._take(connect(settings))

    @classmethod
    def attach(
        cls,
        name: str = "default",
        *,
        namespace: str | None = None,
        state_path: str | os.PathLike[str] | None = None,
    ) -> RayScheduler:
        """The scheduler of this name that lives already. Raises SchedulerNotFoundError where none does."""
        settings = _settings(name, namespace, state_path, detached=True, strategy="bin_pack")
        return cls._over(find(settings))

    @classmethod
    def _over(cls, connection: Connection) -> RayScheduler:
        scheduler = cls.__new__(cls)
        scheduler._take(connection)  # noqa: SLF001  # its own class
        return scheduler

    def list_agents(self, pool_name: str | None = None) -> dict[str, Any]:
        """Every agent (of one pool): resources, labels, Ray options, state, node, tasks and handle."""
        name = None if pool_name is None else parse_name(pool_name, "pool_name")
        listed, handles = ask_with_handles(self._connection, ListAgents(pool_name=name), Listed)
        if isinstance(listed, Refused):
            return dict(results.refused(listed))
        agents = zip(listed.rows, handles, strict=True)
        return {"success": True, "agents": [{**info, "handle": h} for info, h in agents]}

    def delete_agent(
        self, name: str, force: bool = False, destroy_pg: bool | None = None
    ) -> dict[str, Any]:
        """End an agent with its tasks and give its quota back; answered when its process is gone.

        An agent that is gone already answers success with ``already_gone``. ``force`` is accepted for
        callers of Ray's kill: an agent's end never fails here. ``destroy_pg`` True removes the placement
        group that it lives in, too, which the answer waits for (a reserved one stays gone until the pool is
        ensured or resized); False keeps it; None keeps reserved ones, and dynamic ones where the pool
        reuses them.
        """
        parse_flag(force, "force")
        request = DeleteAgent(
            agent_name=parse_name(name, "the agent's name"),
            destroy_group=None if destroy_pg is None else parse_flag(destroy_pg, "destroy_pg"),
        )
        return results.deleted(self._reply(request).outcome)

    def stats(self) -> dict[str, Any]:
        """The preemption stats, and the pools' quotas."""
        return self._details(GetStats())

    def strategies(self) -> dict[str, Any]:
        """Every strategy that the scheduler was made with: ``name``, ``hooks``, ``calls``, ``failures``,
        ``slow_calls``, and why it is ``disabled`` (empty: it is not).
        """
        return self._listed(ListStrategies(), "strategies")

    def cluster_snapshot(self) -> dict[str, Any]:
        """Every living node: total, free by our own book, what others use, and who stands there."""
        return self._listed(ListNodes(), "nodes")

    def cordon_node(self, node_id: str, cordoned: bool = True) -> results.Result:
        """Let a node take no new agents (or take them again); who is there stays."""
        request = CordonNode(
            node_id=parse_name(node_id, "node_id"), cordoned=parse_flag(cordoned, "cordoned")
        )
        return results.done(self._reply(request).outcome)

    def about(self) -> dict[str, Any]:
        """What serves this scheduler: ``name``, ``namespace``, ``detached``, ``node_id``, ``pid``,
        ``journal`` (its address), ``epoch`` (one more with each life), and counts of ``pools``, ``agents``
        and ``running_tasks``.
        """
        return self._details(GetAbout())

    def detach(self) -> None:
        """Leave; the scheduler lives on if it is detached."""
        self._connection = _gone(self.name)

    def shutdown(self, force: bool = False) -> dict[str, Any]:
        """End every agent, forget everything, and end the scheduler, without asking.

        Without ``force`` it is refused with ``standing_scheduler`` where this object was made without
        ``detached`` and found a standing scheduler of that name, which others may be using.
        """
        if self._connection.standing and not force:
            return dict(results.standing_scheduler(self.name))
        self._connection.end()
        return {"success": True}


def _settings(
    name: object,
    namespace: str | None,
    state_path: str | os.PathLike[str] | None,
    detached: bool,
    strategy: str,
) -> SchedulerSettings:
    return SchedulerSettings(
        name=parse_name(name, "the scheduler's name"),
        namespace=DEFAULT_NAMESPACE if namespace is None else parse_name(namespace, "namespace"),
        detached=detached,
        state_path=parse_state_path(state_path),
        node_strategy=strategy,
    )


def _gone(name: str) -> Any:
    class Detached:
        """Stands for the connection of a scheduler object that has detached."""

        def __getattr__(self, _attribute: str) -> Any:
            raise InvalidRequestError(
                f"this object has detached from scheduler {name!r}; attach again with RayScheduler.attach"
            )

    return Detached()
