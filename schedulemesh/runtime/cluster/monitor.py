"""Observes the cluster: alive nodes, external usage and demand, and agents and placement groups that were
lost.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec

from schedulemesh.domain.agent import Death
from schedulemesh.domain.node import NodeReport
from schedulemesh.domain.payloads import LeasePayload
from schedulemesh.domain.placement import GroupShape
from schedulemesh.domain.resources import NOTHING, Resources
from schedulemesh.engine.lifecycle.job_claims import is_over
from schedulemesh.engine.lifecycle.pools import has_more_to_cancel
from schedulemesh.engine.messages.stimuli import (
    ClockTicked,
    ClusterObserved,
    GroupGone,
    RecoveryObserved,
    TickContinued,
)
from schedulemesh.engine.state.agents import Agent, Ending, Running, Starting, Waiting
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.nodes import Node
from schedulemesh.runtime.agents.gangs import (
    deaths_of,
    elastic_gangs,
    end_processes,
    every_process,
    processes_of,
    tell_members,
)
from schedulemesh.runtime.agents.placement_watch import external_use
from schedulemesh.runtime.agents.registry import Agents
from schedulemesh.runtime.backend import Backend, BundleSlot, GroupView, NodeView
from schedulemesh.runtime.cluster.autoscaler import AutoscalerRequest
from schedulemesh.runtime.cluster.orphans import Orphans
from schedulemesh.runtime.executor import Executor
from schedulemesh.runtime.groups.manager import REMOVED_S, groups_gone, ready_groups
from schedulemesh.runtime.jobs.claim_following import ClaimFollower
from schedulemesh.runtime.jobs.claims import (
    ClaimOfJob,
    ClaimWatch,
    claims_of,
    jobs_of,
    unused_claims,
)
from schedulemesh.runtime.journal.witness import Witness

logger = logging.getLogger(__name__)

#: Ray's view lags: external usage is computed only where none of our claims changed for so long.
QUIET_S = 1.0
#: Seconds between two looks for placement groups of which nobody knows. Ray also lists removed ones, so a
#: look takes long.
_LATE_S = 30.0
#: Seconds that a recovery waits for actors that nobody claims to end, and for the processes of dead agents.
_ENDS_S = 5.0

#: Classes of waiting tasks that a tick tries at once, or so many of them as searches for victims take: about
#: a millisecond.
_PORTION = 50
#: Running tasks up to which a tick is made at once where no more than a portion waits: that takes some
#: milliseconds at most, and a rehearsal decides the same again whatever happened at the same time.
_FEW_RUNNING = 200
#: Nodes that were lost whose names are remembered.
_LOST = 1_000

Value = TypeVar("Value")


class _Quiet(msgspec.Struct, frozen=True):
    version: int
    since: float


class NodeWatch:
    """Turns Ray's view of nodes into reports with the external usage: what is used beside our own claims."""

    def __init__(self) -> None:
        self._quiet: dict[str, _Quiet] = {}

    def reports(
        self,
        state: MeshState,
        views: list[NodeView],
        now: float,
        unused: Mapping[str, Resources] | None,
    ) -> tuple[NodeReport, ...]:
        """One report per living node; external_usage is None where our own claims changed recently.
        ``unused``: what of our claims on each node is free in Ray; None: that is not known now.
        """
        living = {view.node_id for view in views}
        self._quiet = {node_id: q for node_id, q in self._quiet.items() if node_id in living}
        return tuple(
            self._report(
                state.cluster.nodes.get(v.node_id),
                v,
                now,
                None if unused is None else unused.get(v.node_id, NOTHING),
            )
            for v in views
        )

    def _report(
        self, node: Node | None, view: NodeView, now: float, unused: Resources | None
    ) -> NodeReport:
        others: Resources | None = None
        if node is None:
            others = (view.total - view.free).beyond(NOTHING)
        elif self._is_quiet(node, now) and unused is not None:
            others = external_use(node, view, unused)
        return NodeReport(
            node_id=view.node_id,
            total=view.total,
            labels=view.labels,
            external_usage=others,
            draining=view.draining,
            drain_deadline=view.drain_deadline,
        )

    def _is_quiet(self, node: Node, now: float) -> bool:
        quiet = self._quiet.get(node.node_id)
        if quiet is None or quiet.version != node.version:
            self._quiet[node.node_id] = _Quiet(node.version, now)
            return False
        return now - quiet.since >= QUIET_S


class IndependentAttempts:
    """Attempts of which each is made whatever became of those before."""

    def __init__(self) -> None:
        self._errors: list[Exception] = []

    async def make(self, attempt: Callable[[], Awaitable[Value]]) -> Value | None:
        """The result of an attempt; None: it failed."""
        try:
            return await attempt()
        except Exception as error:  # noqa: BLE001  # raised by raise_first, or logged
            if self._errors:
                logger.warning("cluster monitor: %r", error)
            self._errors.append(error)
            return None

    def raise_first(self) -> None:
        """Raise the first error that there was; the others are in the log."""
        if self._errors:
            raise self._errors[0]


class ClusterMonitor:
    """Compares the state with what exists in Ray: once after a recovery, then periodically."""

    def __init__(
        self,
        backend: Backend,
        agents: Agents,
        executor: Executor,
        orphans: Orphans,
        witness: Witness,
    ) -> None:
        self._backend = backend
        self._agents = agents
        self._orphans, self._witness = orphans, witness
        self._reactor = executor.reactor
        self._executor = executor
        self._groups, self._warm_pool = executor.groups, executor.warm_pool
        self._spawn = executor.spawn
        self._autoscaler = AutoscalerRequest(backend, self._reactor.still_writes)
        self._watch = NodeWatch()
        self._follower = ClaimFollower()
        #: What jobs use beside their claims.
        self.claims = ClaimWatch()
        #: Host name and address of each node, by its id.
        self.node_names: dict[str, tuple[str, str]] = {}
        #: Host names, or addresses, by id, of lost nodes too.
        self._hosts: dict[str, str] = {}
        self._demand = executor.demand
        self._recovered = False
        #: (namespace, name) of actors of ours that nobody claimed at the last look.
        self._unclaimed: set[tuple[str, str]] = set()
        #: When to look for late placement groups next.
        self._look_at = 0.0

    async def observe(self) -> None:
        """Report what changed: nodes, external usage, agents that died, and the time; nothing once a
        successor has taken over.

        What cannot be found out, or not be done, keeps nothing else from being done. Raises its first error
        afterwards.
        """
        state, attempts = self._reactor.state, IndependentAttempts()
        if self._recovered and await attempts.make(self._is_superseded):
            return
        before = agents_with_process(state)
        running = every_process(state, [state.agents[name] for name, _ in before])
        await attempts.make(lambda: self._agents.end_leftovers(running))
        placed, were_ready = ready_groups(state.groups), self._warm_pool.names()
        views = await attempts.make(self._backend.nodes)
        living = await attempts.make(self._backend.living_actors)
        groups = await attempts.make(self._groups.living) if placed else {}
        now = self._reactor.now()
        if views is not None:
            self._note_names(views)
            await attempts.make(lambda: self._report_nodes(views, attempts, now))
        if groups is not None:
            await attempts.make(lambda: self._remove_lost_groups(placed, groups))
        if living is not None:
            await self._serve_others()
            await attempts.make(lambda: self._compare_actors(before, were_ready, living))
        await self._serve_others()
        await attempts.make(self._tick)
        await self._serve_others()
        await attempts.make(self._meet_demand)
        if self._recovered:
            await attempts.make(lambda: self._witness.note(self._reactor.height()))
            if now >= self._look_at:
                self._look_at = now + _LATE_S
                await attempts.make(self._remove_late_groups)
        attempts.raise_first()

    async def _serve_others(self) -> None:
        """Have others served between two parts of a look, each of which is as long as a large read."""
        await self._reactor.turns.serve_others(0.0)

    async def _tick(self) -> None:
        """Have time pass; at once again while a pool that is being deleted has more to cancel. Others are
        served in between, and between the portions of each tick.
        """
        await self._tick_once()
        while has_more_to_cancel(self._reactor.state):
            await self._tick_once()

    async def _tick_once(self) -> None:
        time, state = asyncio.get_running_loop().time, self._reactor.state
        is_short = len(state.queue) <= _PORTION and len(state.running) <= _FEW_RUNNING
        tick = ClockTicked(portion=0 if is_short else _PORTION)
        began, step = time(), await self._reactor.step(tick)
        while step.is_unfinished:
            await self._reactor.turns.serve_others(time() - began)
            began, step = time(), await self._reactor.step(TickContinued())

    def _note_names(self, views: list[NodeView]) -> None:
        """Note what the nodes are called, and what those are called that were lost lately."""
        self.node_names = {view.node_id: (view.host, view.address) for view in views}
        self._hosts |= {view.node_id: view.host or view.address for view in views}
        lost = [one for one in self._hosts if one not in self.node_names]
        for forgotten in lost[:-_LOST]:
            del self._hosts[forgotten]
        self._executor.lost_hosts = {
            one: self._hosts[one] for one in lost[-_LOST:] if self._hosts[one]
        }

    async def _is_superseded(self) -> bool:
        """Whether a successor has begun, as Ray knows before it acts, and has taken the journal over."""
        begun = await self._witness.has_successor(self._reactor.epoch)
        return begun and not await self._reactor.still_writes()

    async def _report_nodes(
        self, views: list[NodeView], attempts: IndependentAttempts, now: float
    ) -> None:
        """Report the nodes, and what others use of them and wait for; then look after the claims of jobs."""
        claims, unused = await attempts.make(lambda: self._claims_of_jobs(views)) or (None, None)
        self._executor.unused_claims = unused or {}
        nodes = self._watch.reports(self._reactor.state, views, now, unused)
        demand = await attempts.make(lambda: self._demand.look(self._reactor.state))
        await self._reactor.step(
            ClusterObserved(nodes=nodes, external_demand=demand, hosts=self._executor.lost_hosts)
        )
        if claims is not None:
            await self._check_claims(claims, now)

    async def _compare_actors(
        self, before: set[tuple[str, int]], were_ready: set[str], living: set[tuple[str, str]]
    ) -> None:
        """Begin to end what is left of agents and warm hosts that were there before and do not live any more,
        and actors that nobody claims.
        """
        self._end_gone(before, living)
        self._orphans.forget_dead(living)
        self._warm_pool.mark_dead(were_ready - {name for _, name in living})
        await self._end_unclaimed(living)

    async def _meet_demand(self) -> None:
        """Make and end warm hosts, and ask the autoscaler for what is missing."""
        self._warm_pool.reconcile(self._reactor.state)
        await self._autoscaler.notify(self._reactor.state)

    def _end_gone(self, before: set[tuple[str, int]], living: set[tuple[str, str]]) -> None:
        """Begin to end what is left of agents that have died, of each once."""
        for gone in agents_gone(self._reactor.state, before, living):
            if gone in self._executor.endings:
                continue
            logger.warning(
                "agent %s is dead; what it held is free when all it started has ended", gone[0]
            )
            self._spawn(self._executor.end(*gone))
        for dead in self._died_while_ending(before, living):
            logger.warning(
                "agent %s died before it was terminated; nothing waits for its results",
                dead.spec.name,
            )
            self._spawn(self._agents.end(dead.spec.name, dead.incarnation))

    async def _end_unclaimed(self, living: set[tuple[str, str]]) -> None:
        """End actors of ours that belong to nobody in two looks, because one may just have ended; none where
        they may belong to a successor.
        """
        if not self._recovered:
            return
        unclaimed = self._unclaimed_actors(living)
        seen_twice, self._unclaimed = unclaimed & self._unclaimed, unclaimed
        due = [address for address in seen_twice if address not in self._agents.endings]
        if not due or not await self._reactor.still_writes():
            return
        for address in due:
            logger.warning("actor %s is ours, but nobody claims it; ending it", address[1])
            self._spawn(self._agents.end_unclaimed(*address))

    def _unclaimed_actors(self, living: set[tuple[str, str]]) -> set[tuple[str, str]]:
        """The (namespace, name) of living actors of ours that belong to nobody."""
        state = self._reactor.state
        processes = every_process(state, state.agents.values())
        claimed = {self._agents.where(process) for process in processes}
        claimed |= self._agents.addresses() | self._agents.orphans
        claimed |= {(self._agents.namespace, name) for name in self._warm_pool.all_names()}
        return set(self._agents.unclaimed_actors(living, claimed))

    async def _remove_late_groups(self) -> None:
        """Remove placement groups of ours that nobody knows."""
        reactor, endings = self._reactor, self._executor.endings
        await self._groups.remove_late(reactor.state.groups, reactor.still_writes, endings)

    async def _claims_of_jobs(
        self, views: list[NodeView]
    ) -> tuple[list[ClaimOfJob], dict[str, Resources]]:
        """The claims of jobs, and what of them is free in Ray, by node. Its tables are read only if there are
        any jobs.
        """
        state = self._reactor.state
        jobs = jobs_of(state)
        if not jobs:
            return [], {}
        usage = await self._backend.usage()
        claims = claims_of(state, self._agents, jobs, usage)
        return claims, unused_claims(claims, usage, views)

    async def _check_claims(self, claims: list[ClaimOfJob], now: float) -> None:
        """Have claims follow the work of their jobs, and end jobs that hold too much for too long."""
        for move in self._follower.due(claims, now):
            await self._reactor.step(move)
        state = self._reactor.state
        self.claims.forget(jobs_of(state))
        for over in self.claims.look(claims, now):
            agent = state.agents.get(over.agent_name)
            if agent is not None and is_over(state, agent, over.since, now):
                await self._reactor.step(over)

    async def _remove_lost_groups(self, placed: list[str], living: dict[str, GroupView]) -> None:
        """Report lost placement groups, and remove what is left of them. One that cannot be removed is waited
        for in the background.
        """
        endings, begun = self._executor.endings, []
        for group_id, why in groups_gone(self._reactor.state.groups, placed, living):
            if (group_id, "group") not in endings:
                logger.warning("placement group %s is gone: %s", group_id, why)
                remove = functools.partial(self._remove_lost, group_id, living.get(group_id))
                begun.append(endings.begin((group_id, "group"), remove))
        if begun:
            await asyncio.wait(begun, timeout=REMOVED_S)

    async def _remove_lost(self, group_id: str, view: GroupView | None) -> None:
        await self._reactor.confirmed()
        if view is not None and self._groups.slot(group_id) is None:
            # The recovery has not taken it over yet.
            self._groups.adopt(
                group_id, BundleSlot(ray_id=view.ray_id, shape=GroupShape(bundles=()))
            )
        await self._warm_pool.leave(group_id)
        await self._groups.remove(group_id)
        await self._reactor.report(GroupGone(group_id=group_id))
        self._groups.notify()

    async def withdraw(self) -> None:
        """Withdraw the request to the autoscaler."""
        await self._autoscaler.withdraw()

    async def _end_all_dead(self, dead: list[tuple[str, int]]) -> frozenset[tuple[str, int]]:
        """End what dead agents left behind. Returns those of whom something still ends after a while: they
        stay in the state until then, and nobody waits for them.
        """
        late = [
            dead[i] for i in await self._start_endings(self._end_dead(name) for name, _ in dead)
        ]
        for agent in late:
            self._spawn(self._executor.end(*agent))
        return frozenset(late)

    async def _deaths_of(self, dead: Sequence[Agent]) -> dict[str, Death]:
        """How agents died, as far as Ray says that in time."""
        finding = deaths_of(self._agents, self._reactor.state, dead)
        try:
            return await asyncio.wait_for(finding, _ENDS_S)
        except (asyncio.TimeoutError, TimeoutError):
            logger.warning("Ray does not say how %d agents died; their tasks are lost", len(dead))
            return {}

    async def _start_endings(self, endings: Iterable[Coroutine[object, object, None]]) -> list[int]:
        """Begin to end things, and wait for that a while: the positions of those that have not ended then,
        whose ending goes on by itself, and of those that could not be ended, which the log says.
        """
        tasks = [asyncio.ensure_future(ending) for ending in endings]
        if tasks:
            await asyncio.wait(tasks, timeout=_ENDS_S)
        return [position for position, task in enumerate(tasks) if not _has_ended(task)]

    async def _end_dead(self, agent_name: str) -> None:
        """Terminate what a dead agent had started, and of a gang with a dead member all members."""
        agent = self._reactor.state.agents.get(agent_name)
        if agent is not None and not isinstance(agent.phase, Waiting):
            processes = processes_of(self._reactor.state, agent)
            for process in processes:
                self._agents.know(process)
            await end_processes(
                self._agents, ((process.spec.name, process.incarnation) for process in processes)
            )

    def _died_while_ending(
        self, before: set[tuple[str, int]], living: set[tuple[str, str]]
    ) -> list[Agent]:
        """Dead processes of agents whose eviction is in progress; it removes these from the state."""
        state = self._reactor.state
        ending = [
            agent
            for name, agent in state.agents.items()
            if isinstance(agent.phase, Ending) and (name, agent.incarnation) in before
        ]
        return [
            process
            for process in every_process(state, ending)
            if self._agents.handle(process.spec.name, process.incarnation) is not None
            and self._agents.where(process) not in living
        ]

    async def recover(self) -> None:
        """After a recovery: adopt existing agents, terminate orphans, continue pending operations.

        Until then nothing is executed, also of what the first ``observe`` led to: a process that is started
        meanwhile would be missing among those that are listed here, and be taken for dead.
        """
        state = self._reactor.state
        living = await self._backend.living_actors()
        living_groups = await self._groups.living()
        # Nothing of what is listed is a successor's if there is none by now; else this fails.
        await self._reactor.keep({})
        addresses = {
            self._agents.where(process): (name, agent.incarnation)
            for name, agent in state.agents.items()
            for process in processes_of(state, agent)
        }
        await self._end_orphans(living, set(addresses))
        # A gang of which a member is dead is dead: the others are ended with it.
        dead = list(dict.fromkeys(k for a, k in addresses.items() if a not in living))
        # Those of whom the first look has made an end meanwhile are gone.
        dead_agents = (state.agents.get(name) for name, _ in dead)
        ran = [
            agent for agent in dead_agents if agent is not None and isinstance(agent.phase, Running)
        ]
        deaths = await self._deaths_of(ran)
        ending = await self._end_all_dead(dead)
        groups = await self._groups.recover(
            state.groups, living_groups, self._executor.endings, keep_all=self._reactor.rolled_back
        )
        await self._executor.rooms.recover(state, self._agents, living_groups)
        await self._orphans.note()
        await self._witness.note(self._reactor.height())
        self._recovered = True
        alive = frozenset(addresses.values()) - (frozenset(dead) - ending) | _leases(state)
        await self._adopt(alive - ending)
        if state.agents or len(state.running) or state.groups.by_id:
            await self._reactor.step(
                RecoveryObserved(
                    living=alive, groups=groups, deaths=deaths, hosts=self._executor.lost_hosts
                )
            )
        else:
            self._executor.begin()
        for gang_name in elastic_gangs(state):
            # A member may have ended before the others could be told, by this process or the former one.
            self._spawn(tell_members(self._agents, state, gang_name))
        self._warm_pool.reconcile(self._reactor.state)

    async def _end_orphans(
        self, living: set[tuple[str, str]], addresses: set[tuple[str, str]]
    ) -> None:
        """End the living actors that are ours and that nobody claims; those of after a roll-back are kept."""
        unclaimed = self._agents.unclaimed_actors(living, addresses)
        orphans = await self._orphans.take(unclaimed, rolled_back=self._reactor.rolled_back)
        for _, name in orphans:
            logger.warning("actor %s is ours, but nobody claims it; ending it", name)
        await self._start_endings(self._agents.end_unclaimed(*address) for address in orphans)

    async def _adopt(self, surviving: Collection[tuple[str, int]]) -> None:
        """Go on with the agents that survived the former process, but for those that were starting."""
        state = self._reactor.state
        await asyncio.gather(
            *(
                self._agents.adopt(process)
                for name, agent in state.agents.items()
                if (name, agent.incarnation) in surviving and not _is_starting(agent)
                for process in processes_of(state, agent)
            )
        )


def _has_ended(ending: asyncio.Task[None]) -> bool:
    return ending.done() and not ending.cancelled() and ending.exception() is None


def _leases(state: MeshState) -> frozenset[tuple[str, int]]:
    """The leases, which have no process that could be dead."""
    agents = state.agents.items()
    return frozenset(
        (name, a.incarnation) for name, a in agents if isinstance(a.spec.payload, LeasePayload)
    )


def _is_starting(agent: Agent) -> bool:
    """Whether the agent's start, which continues after a recovery, finds out where it runs."""
    return isinstance(agent.phase, (Waiting, Starting))


def agents_gone(
    state: MeshState, before: set[tuple[str, int]], living: set[tuple[str, str]]
) -> list[tuple[str, int]]:
    """Agents that ran ``before`` and are not among the living actors now, with their incarnations."""
    gone = []
    for name, agent in state.agents.items():
        phase = agent.phase
        if not isinstance(phase, Running) or (name, agent.incarnation) not in before:
            continue
        if isinstance(agent.spec.payload, LeasePayload):
            continue  # it has no process; it is lost with its placement group only
        processes = phase.members or (phase,)
        if any((p.actor_namespace, p.actor_name) not in living for p in processes):
            gone.append((name, agent.incarnation))
    return gone


def agents_with_process(state: MeshState) -> set[tuple[str, int]]:
    """The agents that run or are being terminated, with their incarnations."""
    return {
        (name, agent.incarnation)
        for name, agent in state.agents.items()
        if isinstance(agent.phase, (Running, Ending))
    }
