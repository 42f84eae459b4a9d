"""Leases: placement groups that are held for a task without a process of ours in them.

A lease starts as soon as its placement groups exist, and ends when everything that ran in them has ended. Its
holder is notified of an eviction by the call that watches the lease.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Iterator

import msgspec

from schedulemesh.domain.payloads import LeasePayload
from schedulemesh.engine.admission.groups import create_instruction, stays
from schedulemesh.engine.lifecycle.agents import current
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.facts import (
    AgentEnded,
    AgentStarted,
    AnyFact,
    EvictionStarted,
    TaskEnded,
    TaskPreempted,
)
from schedulemesh.engine.messages.instructions import EvictAgent, StartAgent
from schedulemesh.engine.messages.queue_facts import TaskCancelled
from schedulemesh.engine.state.agents import Agent, Running
from schedulemesh.engine.transaction import Step
from schedulemesh.runtime.agents.registry import Agents
from schedulemesh.runtime.agents.start import start_failed
from schedulemesh.runtime.backend import BackendError
from schedulemesh.runtime.groups.manager import Groups
from schedulemesh.runtime.groups.warm_pool import WarmPool
from schedulemesh.runtime.reactor import Reactor
from schedulemesh.runtime.retries import until_answered

logger = logging.getLogger(__name__)

#: Seconds for Ray to show a group as unused whose holder has given it up; after that it is created again.
_UNUSED_S = 1.0


class Notice(msgspec.Struct, kw_only=True):
    """A lease that is being evicted, and whose holder may still use it."""

    #: When it ends, by the clock of the event loop.
    ends_at: float
    #: Set when the holder has released it.
    released: asyncio.Event


class Leases:
    """Starts, evicts and ends the leases of one scheduler."""

    def __init__(
        self, agents: Agents, groups: Groups, warm_pool: WarmPool, reactor: Reactor
    ) -> None:
        self._agents, self._groups = agents, groups
        self._warm_pool, self._reactor = warm_pool, reactor
        #: By agent.
        self._notices: dict[str, Notice] = {}
        #: Agents of leases that their holders have released and that have not ended yet.
        self._released: set[str] = set()
        #: Callers that wait for a change of a lease, by the ids of its task and of its agent.
        self._watchers: dict[str, set[asyncio.Event]] = {}
        reactor.subscribe(self._take)

    def start(self, order: StartAgent) -> s.AgentReported | s.AgentStartFailed:
        """A lease runs as soon as its groups are there."""
        if self._groups.slot(order.group_id or "") is None:
            return start_failed(order, f"its placement group {order.group_id} is gone")
        return s.AgentReported(agent_name=order.agent.name, incarnation=order.incarnation)

    def has_started(self, order: StartAgent) -> bool:
        """Whether the agent is a lease that runs already: its start was decided with its admission."""
        agent = current(self._reactor.state, order.agent.name, order.incarnation)
        return (
            agent is not None
            and isinstance(agent.spec.payload, LeasePayload)
            and isinstance(agent.phase, Running)
        )

    def started_in(self, result: s.GroupCreated | s.GroupCreateFailed) -> list[s.AgentReported]:
        """The start of the lease that a new group was created for: nobody can have used the group before."""
        group = self._reactor.state.groups.by_id.get(result.group_id)
        agent = None if group is None else self._reactor.state.agents.get(group.agent or "")
        if (
            isinstance(result, s.GroupCreateFailed)
            or agent is None
            or not isinstance(agent.spec.payload, LeasePayload)
        ):
            return []
        return [s.AgentReported(agent_name=agent.spec.name, incarnation=agent.incarnation)]

    def may_be_vacant(self, group_id: str) -> bool:
        """Whether a free group can be handed over unless Ray shows something in it: no warm host is there,
        nor an orphan, which only an operator may end.
        """
        return not self._warm_pool.names_in(group_id) and not self._agents.orphans

    async def is_vacant(self, group_id: str) -> bool:
        """Whether nothing has to be ended in a group before its holder is told of it."""
        return await until_answered(
            f"looking into placement group {group_id}", lambda: self._groups.is_vacant(group_id)
        )

    async def replace(self, group_id: str) -> None:
        """Create the group of a lease again, in which others run: that ends them."""
        logger.warning(
            "others run in placement group %s of a new lease; it is created again", group_id
        )
        await self._create_again(group_id)

    async def notify(self, order: EvictAgent) -> None:
        """Notify the holder that the lease ends, and wait until it is released or the time is over."""
        name = order.agent_name
        if name in self._released:
            return
        notice = Notice(ends_at=_now() + order.grace_s, released=asyncio.Event())
        self._notices[name] = notice
        self._wake((name,))
        try:
            with contextlib.suppress(asyncio.TimeoutError, TimeoutError):
                await asyncio.wait_for(notice.released.wait(), order.grace_s)
        finally:
            self._notices.pop(name, None)

    def release(self, agent_name: str, *, released: bool = True) -> None:
        """Note that the holder gives a lease up: it uses its groups no more. Ends the time after a notice.
        ``released`` False: it does not after all.
        """
        if not released:
            self._released.discard(agent_name)
            return
        self._released.add(agent_name)
        if (notice := self._notices.get(agent_name)) is not None:
            notice.released.set()

    def grace_left(self, agent_name: str) -> float | None:
        """Seconds until a lease ends whose holder has been notified; None: it was not."""
        notice = self._notices.get(agent_name)
        return None if notice is None else max(0.0, notice.ends_at - _now())

    @contextlib.contextmanager
    def watched(self, task_id: str, agent_name: str) -> Iterator[asyncio.Event]:
        """An event that is set whenever this lease may have changed."""
        changed = asyncio.Event()
        names = {task_id, agent_name}
        for name in names:
            self._watchers.setdefault(name, set()).add(changed)
        try:
            yield changed
        finally:
            for name in names:
                self._watchers[name].discard(changed)
                if not self._watchers[name]:
                    del self._watchers[name]

    def _take(self, step: Step) -> None:
        if self._watchers:
            for fact in step.facts:
                self._wake(_names_in(fact))

    async def end(self, agent: Agent) -> None:
        """End everything that runs in the groups of a lease. Returns once it has ended.

        Where another agent gets the groups, a holder that was not heard of could go on to use them with the
        handles that it has. So they are created again, unless it has released them and nothing is left.
        """
        name, group_id = agent.spec.name, agent.group_id or ""
        remaining_members = await until_answered(
            f"ending what runs in lease {name}", lambda: self._groups.vacate(group_id, ())
        )
        # Ray reports an actor as dead before its process has ended.
        unused = await self._is_unused(group_id)
        handed_over = unused and not remaining_members and name in self._released
        if not handed_over and stays(self._reactor.state, agent):
            await self._create_again(group_id)
        self._released.discard(name)

    async def _is_unused(self, group_id: str) -> bool:
        try:
            return await self._groups.is_unused(group_id, _UNUSED_S)
        except BackendError:
            return False

    async def _create_again(self, group_id: str) -> None:
        group = self._reactor.state.groups.by_id.get(group_id)
        if group is None:
            return
        await self._warm_pool.leave(group_id)
        failed = await self._groups.create_again(create_instruction(self._reactor.state, group))
        if failed is not None:
            await self._reactor.report(failed)
        self._groups.notify()

    def _wake(self, names: Iterable[str]) -> None:
        for name in names:
            for changed in self._watchers.get(name, ()):
                changed.set()


def _names_in(fact: AnyFact) -> tuple[str, ...]:
    """The tasks and agents of which a fact changes how their lease stands."""
    if isinstance(fact, (AgentStarted, AgentEnded)):
        return (fact.agent_name,)
    if isinstance(fact, (EvictionStarted, TaskEnded, TaskCancelled)):
        return (fact.task_id,)
    return (fact.task.task_id,) if isinstance(fact, TaskPreempted) else ()


def not_without_agent(task_id: str) -> s.CancelAnswered:
    """The answer to the eviction of a lease that was to leave its groups in place."""
    return s.CancelAnswered(
        task_id=task_id,
        cancel_success=False,
        runs_on=True,
        error="a lease has no process that could be cancelled; preempt_task evicts it with its groups",
    )


def _now() -> float:
    """The time of the event loop in seconds."""
    return asyncio.get_running_loop().time()
