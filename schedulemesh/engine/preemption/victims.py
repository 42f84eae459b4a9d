"""Victim agents: candidates grouped by agent, because an agent is evicted with all its tasks.

An agent may be evicted only if every one of its tasks may. In the order of victims (``candidates``) it stands
where the last of its tasks does: it counts with the lowest of their scores.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from schedulemesh.domain.resources import NOTHING, Resources
from schedulemesh.engine.messages.facts import Share
from schedulemesh.engine.messages.outcomes import Candidate
from schedulemesh.engine.placement.group_choice import (
    GroupRequest,
    is_held_only_by,
    is_removed_with,
    suits,
)
from schedulemesh.engine.placement.scenario import Allocations, Removal, bundle_allocations
from schedulemesh.engine.preemption.candidates import Candidates, Order, idle_beyond
from schedulemesh.engine.state.agents import Agent, Running
from schedulemesh.engine.state.groups import Group
from schedulemesh.engine.state.lending import LoanCaps
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.tasks import TaskClass


class VictimAgent(Removal, frozen=True, kw_only=True, gc=False):
    """An agent that may be evicted, with its tasks and what becomes free without it."""

    #: Its tasks, highest score first.
    tasks: tuple[Candidate, ...]
    #: Its place in the order of victims.
    order: Order
    #: What sites are compared by first, ascending; see ``Candidates.tier_of``.
    tier: float
    resources: Resources
    pool_name: str
    #: The quota that it holds, by the pool that it belongs to.
    shares: tuple[Share, ...] = ()

    @property
    def lost_work(self) -> float:
        """The work lost with it, in GPU-seconds."""
        return sum(task.lost_work for task in self.tasks) * self.resources.work_rate

    def idle_beyond(self, need: Resources) -> float:
        """What it frees beyond a need, in GPUs."""
        return idle_beyond(self.resources, need)

    @property
    def room(self) -> Resources:
        """What becomes free on the nodes, in sum."""
        if self.group is not None:
            return self.group.shape.total
        return self.resources if self.allocations else NOTHING


def order_of(victim: VictimAgent) -> Order:
    """Its place in the order of victims."""
    return victim.order


def evicted_tasks(victims: Iterable[VictimAgent]) -> tuple[Candidate, ...]:
    """Every task of these agents, highest score first."""
    every = [task for victim in victims for task in victim.tasks]
    return tuple(sorted(every, key=lambda task: -task.preempt_score))


class VictimAgents:
    """The agents that may be evicted for one incoming task."""

    def __init__(
        self,
        state: MeshState,
        candidates: Candidates,
        group_request: GroupRequest | None = None,
        caps: LoanCaps | None = None,
        keep: Callable[[Agent], bool] | None = None,
    ) -> None:
        #: ``group_request``: what the task asks of its pool's groups, where a victim's may be taken.
        #: ``caps``: the limits of what it may borrow. ``keep``: which agents are candidates; None: all.
        self._caps = caps
        self._keep = keep
        self._state = state
        self._candidates = candidates
        self._group_request = group_request
        #: The agents that were asked for, with the tasks of each.
        self._known: dict[str, tuple[list[Candidate], VictimAgent]] = {}

    @property
    def allowed(self) -> Collection[TaskClass]:
        """The classes whose tasks a rule allows to evict."""
        return self._candidates.allowed

    @property
    def by_priority(self) -> bool:
        """Whether sites are compared by the priority of their victims."""
        return self._candidates.by_priority

    @property
    def tiers(self) -> Mapping[TaskClass, float]:
        """In a reclaim: the tier of the tasks of each class that may be evicted."""
        return self._candidates.tiers

    @property
    def may_preempt_groups(self) -> bool:
        """Whether the incoming task may get the group of a victim."""
        return self._group_request is not None

    def alike(self, victim: VictimAgent) -> Collection[TaskClass]:
        """The classes of which the task goes that leaves least idle, where the order takes this one."""
        return self._candidates.alike(min(victim.tasks, key=lambda task: task.preempt_score))

    def in_order(self, keep: Callable[[TaskClass], bool]) -> Iterator[VictimAgent]:
        """Those with tasks of classes that ``keep`` accepts, in the order of victims, found lazily; ``keep``
        is asked again before each task. An agent appears when the last of its tasks does.
        """
        state = self._state
        seen: dict[str, list[Candidate]] = {}
        for candidate in self._candidates.in_order(keep):
            name = candidate.agent_name
            if not self._may_be(name):
                continue
            tasks = seen.setdefault(name, [])
            tasks.append(candidate)
            if len(tasks) == len(state.running.on_agent(name)):
                yield self._victim(state.agents[name], tasks)

    def victim_of(self, agent_name: str) -> VictimAgent | None:
        """The agent as a victim; None: it does not run, or one of its tasks may not be evicted."""
        state = self._state
        if not self._may_be(agent_name):
            return None
        tasks = []
        for task_id in state.running.on_agent(agent_name):
            candidate = self._candidates.candidate_of(state.running.by_id[task_id])
            if candidate is None:
                return None
            tasks.append(candidate)
        return self._victim(state.agents[agent_name], tasks) if tasks else None

    def _may_be(self, agent_name: str) -> bool:
        if not is_running(self._state, agent_name):
            return False
        return self._keep is None or self._keep(self._state.agents[agent_name])

    def _victim(self, agent: Agent, tasks: list[Candidate]) -> VictimAgent:
        """The agent as a victim, made once: several sites may ask for it."""
        cached = self._known.get(agent.spec.name)
        if cached is None or cached[0] != tasks:
            cached = self._known[agent.spec.name] = (tasks, self._victim_of(agent, tasks))
        return cached[1]

    def _victim_of(self, agent: Agent, tasks: list[Candidate]) -> VictimAgent:
        """An agent with its candidates as a victim: what its eviction frees, and its place in the order."""
        name, order = agent.spec.name, self._candidates.order_of(tasks)
        quota = self._candidates.quota_of(agent)
        limited: tuple[tuple[str, Resources], ...] = ()
        if self._caps is not None:
            quota, limited = self._caps.split(agent.spec.pool_name, agent.shares)
        alone = self._group_of(agent)
        removed = alone if alone is not None and is_removed_with(alone, name) else None
        return VictimAgent(
            name=name,
            quota=quota,
            limited=limited,
            pool_name=agent.spec.pool_name,
            allocations=_allocations(agent, removed),
            group=removed,
            preempted_group=alone if alone is not None and self._suits(alone) else None,
            tasks=tuple(sorted(tasks, key=lambda task: (-task.preempt_score, task.task_id))),
            order=order,
            tier=self._candidates.tier_of(tasks),
            resources=agent.spec.resources,
            shares=agent.shares,
        )

    def _group_of(self, agent: Agent) -> Group | None:
        """The group that it runs in, unless that is promised to another agent."""
        group = self._state.groups.by_id.get(agent.group_id or "")
        alone = group is not None and is_held_only_by(group, agent.spec.name)
        return group if alone else None

    def _suits(self, group: Group) -> bool:
        request = self._group_request
        return request is not None and suits(self._state, request, group)


def _allocations(agent: Agent, removed: Group | None) -> Allocations:
    """What becomes free on the nodes; nothing where its group stays."""
    if removed is not None:
        return bundle_allocations(removed)
    if agent.group_id is not None or agent.node_id is None:
        return ()
    return ((agent.node_id, agent.spec.name),)


def is_running(state: MeshState, agent_name: str) -> bool:
    """Whether the agent is ours and runs: only then does its eviction free what it holds."""
    agent = state.agents.get(agent_name)
    return agent is not None and isinstance(agent.phase, Running)
