"""The state: everything that is true, folded from facts and changed by nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from typing_extensions import assert_never

from schedulemesh.config.policy import PreemptionPolicy
from schedulemesh.domain.actor_names import ActorNames
from schedulemesh.domain.agent import gang_of
from schedulemesh.domain.end_reasons import EndReason
from schedulemesh.domain.payloads import GangPayload
from schedulemesh.domain.placement import InGroup, OnNode, Unplaced
from schedulemesh.domain.resources import NOTHING
from schedulemesh.domain.task import EndState, TaskPhase, TaskSpec
from schedulemesh.engine.messages import drain_facts as d
from schedulemesh.engine.messages import facts as f
from schedulemesh.engine.messages import pool_facts as p
from schedulemesh.engine.messages import queue_facts as q
from schedulemesh.engine.messages.fact import Fact
from schedulemesh.engine.messages.job_facts import JobClaimMoved
from schedulemesh.engine.state.agents import (
    Agent,
    AgentPhase,
    Ending,
    LostAgent,
    Running,
    Starting,
    Submission,
    Waiting,
    kind_of,
)
from schedulemesh.engine.state.audit import AuditLog
from schedulemesh.engine.state.budgets import Budgets
from schedulemesh.engine.state.class_order import ClassOrder
from schedulemesh.engine.state.cluster import Cluster
from schedulemesh.engine.state.cohort_updates import (
    CohortFacts,
    loans_within_trees,
    note_separated,
)
from schedulemesh.engine.state.dependents import Dependents
from schedulemesh.engine.state.drains import Drains
from schedulemesh.engine.state.eviction_updates import EvictionFacts
from schedulemesh.engine.state.evictions import Evictions
from schedulemesh.engine.state.external_demand import ExternalDemands
from schedulemesh.engine.state.group_updates import GroupFacts
from schedulemesh.engine.state.groups import GroupTable
from schedulemesh.engine.state.job_updates import JobFacts
from schedulemesh.engine.state.limit_updates import LimitFacts
from schedulemesh.engine.state.measurement_updates import MeasurementFacts
from schedulemesh.engine.state.owners import Owners
from schedulemesh.engine.state.past import Past, attempts_of
from schedulemesh.engine.state.pool_names import PoolNames
from schedulemesh.engine.state.pool_rename import PoolRename
from schedulemesh.engine.state.preemption_rules import PreemptionRules
from schedulemesh.engine.state.queue import Queue
from schedulemesh.engine.state.queue_updates import QueueFacts, release_children
from schedulemesh.engine.state.quota import Ledger
from schedulemesh.engine.state.request_updates import RememberedOutcomes, RequestFacts
from schedulemesh.engine.state.spared_work import CHANGE_NO_SEARCH, SparedWork
from schedulemesh.engine.state.task_phases import Preempting
from schedulemesh.engine.state.tasks import RunningTask, RunningTasks
from schedulemesh.engine.state.tokens import Tokens
from schedulemesh.engine.state.windows import Windows

#: Classes that are known to load; one that is forgotten is probed again before anyone is evicted for it.
LOADED = 10_000


class MeshState:
    """The whole state of the engine. Only ``evolve`` changes it, live and on recovery alike."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.cluster = Cluster()
        self.external_demands = ExternalDemands(self.cluster.nodes)
        self.running = RunningTasks()
        self.owners, self.budgets, dependents = Owners(), Budgets(), Dependents()
        #: Those of ``running``, which counts the members that have an agent.
        self.arrays = self.running.arrays
        self.queue = Queue(
            self.running.children,
            dependents,
            self.owners,
            self.arrays,
            self.budgets,
            self.running.relevant,
        )
        self.groups = GroupTable()
        #: By name.
        self.agents: dict[str, Agent] = {}
        #: Names of the agents of each pool.
        self.agents_of: dict[str, set[str]] = {}
        #: Names of the cores of elastic gangs.
        self.elastic: set[str] = set()
        #: Names of the agents that are being terminated.
        self.leaving: set[str] = set()
        self.policy = PreemptionPolicy()
        self.ledger.half_life_s = self.policy.usage_half_life_s
        self.owners.half_life_s = self.policy.usage_half_life_s
        self.preemption = PreemptionRules(self.policy)
        #: The last policy changes, oldest first.
        self.policy_changes: list[f.PolicyChanged] = []
        #: By pool.
        self.handlers: dict[str, f.StateHandlersRegistered] = {}
        #: Keys of classes that have loaded at least once, the last used last, at most LOADED.
        self.loaded: dict[str, None] = {}
        self.past = Past(dependents, self.arrays)
        self.evictions = Evictions()
        self.drains, self.windows = Drains(), Windows(self.cluster.nodes)
        self.pool_names = PoolNames()
        self.spared = SparedWork()
        #: Those of ``past``, which describes them.
        self.preempted, self.lost = self.past.preempted, self.past.lost
        self.former, self.ended = self.past.former, self.past.ended
        #: By request id, the first given first.
        self.answers = RememberedOutcomes()
        #: Which agent's start will answer a request.
        self.requests: dict[str, str] = {}
        #: The incarnation that the next agent gets; never given twice.
        self.next_incarnation = 1
        self.epoch = 0
        #: How the present supervisor names the actors of agents.
        self.actor_names = ActorNames()
        self.tokens, self.audit = Tokens(), AuditLog()
        queue = QueueFacts(self.queue, self.running, self.past, self.evictions, self.requests)
        requests = RequestFacts(self.answers, self.requests)
        groups = self._group_facts = GroupFacts(self.groups, self.cluster)
        evictions = EvictionFacts(
            self.evictions, self.running, self.agents, self.past, self.requests, self.cluster
        )
        self._apply: dict[type[Fact], Callable[[Any], None]] = {
            f.PoolEnsured: self._pool_ensured,
            p.PoolDeleted: self._pool_deleted,
            p.PoolRenamed: self._pool_renamed,
            p.BudgetLevelChanged: self._budget_level_changed,
            **self.tokens.updates,
            **self.audit.updates,
            **self.external_demands.updates,
            **MeasurementFacts(self.running, self.agents, self.cluster).updates,
            **LimitFacts(self.running, self.queue).updates,
            **CohortFacts(self.ledger, self.agents, self.running, self.cluster).updates,
            f.StateHandlersRegistered: lambda fact: self.handlers.update({fact.pool_name: fact}),
            f.PolicyChanged: self._policy_changed,
            f.NodeSeen: self._node_seen,
            f.NodeLost: self._node_lost,
            d.DrainStarted: self.drain_started,
            d.DrainEnded: self._drain_ended,
            **self.windows.updates,
            f.NodeCordoned: lambda fact: self.cluster.cordon(fact.node_id, fact.cordoned),
            q.ClassLoaded: lambda fact: self._has_loaded(fact.class_key),
            f.AgentAdmitted: self._agent_admitted,
            **queue.updates,
            f.ClaimGrew: self._claim_grew,
            f.AgentReady: self._agent_ready,
            f.AgentStarted: self._agent_started,
            f.AgentProcessRestarted: self._agent_process_restarted,
            f.LossReported: self._loss_reported,
            f.AgentEnding: self._agent_ending,
            f.EndingAgentDeleted: self._ending_agent_deleted,
            f.AgentEnded: self._agent_ended,
            f.GroupPlanned: groups.planned,
            f.GroupGrew: groups.grew,
            f.GroupWhole: groups.has_all_room,
            f.GroupReady: self._group_ready,
            f.GroupClaimed: groups.claimed,
            f.GroupEnding: groups.ending,
            f.GroupEnded: self._group_ended,
            JobClaimMoved: JobFacts(self.agents, self.groups, self.cluster).claim_moved,
            q.PriorityChanged: self._priority_changed,
            f.TaskRegistered: self._task_registered,
            f.TaskEnded: self._task_ended,
            f.EvictionStarted: evictions.started,
            f.StateSaved: evictions.state_saved,
            f.WorkSaved: evictions.work_saved,
            f.SavingFailed: evictions.saving_failed,
            f.TaskPreempted: evictions.task_preempted,
            f.EvictionFailed: evictions.failed,
            f.StatesForgotten: evictions.states_forgotten,
            f.QuotaHeld: self.ledger.quota_held,
            f.HoldShrank: self.ledger.hold_shrank,
            f.RequestAnswered: requests.answered,
            f.AnswersForgotten: requests.forgotten,
            f.EpochBegun: self._epoch_begun,
        }

    def evolve(self, fact: f.AnyFact) -> None:
        """Make the fact true. A fact that cannot be is a broken promise and raises."""
        kind = type(fact)
        self.spared.facts += 1
        if kind not in CHANGE_NO_SEARCH or (kind is q.TaskCancelled and self._empties_queue(fact)):
            self.spared.revision += 1
            self.spared.leaving = None
            if self.spared.beside_reserved:
                self.spared.beside_reserved = {}
        self._apply[kind](fact)
        while self.arrays.turned:
            self.queue.sort_array(self.arrays.turned.popitem()[0])

    def _empties_queue(self, fact: f.AnyFact) -> bool:
        """Whether it is the last task of its pool's queue that is cancelled: others may borrow then."""
        task = self.queue.by_id[fact.task_id] if isinstance(fact, q.TaskCancelled) else None
        return task is not None and self.queue.size(task.pool_name) == 1

    def count_members(self) -> None:
        """Count the members of arrays, once all agents and tasks of a snapshot are there."""
        self.arrays.turned.clear()
        self.arrays.restore_leaving(self.agents)
        while self.arrays.turned:
            self.queue.sort_array(self.arrays.turned.popitem()[0])

    @classmethod
    def fold(cls, facts: Iterable[f.AnyFact]) -> MeshState:
        """The state that these facts lead to."""
        state = cls()
        for fact in facts:
            state.evolve(fact)
        return state

    @property
    def nodes_known(self) -> bool:
        """Whether the cluster has been seen; until then only quota decides."""
        return bool(self.cluster.nodes)

    def is_alive(self, task_id: str) -> bool:
        """Whether a task, an array or a member of one runs or waits."""
        if task_id in self.running.by_id or task_id in self.queue.by_id:
            return True
        member = self.arrays.member_of(task_id)
        waits = member is not None and member[1] in member[0].remaining
        return waits or self.arrays.alive(task_id) is not None

    def end_of(self, task_id: str) -> EndState | None:
        """How a task has ended whose end is on record; None: it has not, or that is not on record."""
        past = self.ended.get(task_id)
        if past is not None:
            return past.state
        member = self.arrays.member_of(task_id)
        return None if member is None else member[0].end_of(member[1])

    def gang_with(self, process_name: str) -> Agent | None:
        """The gang whose member has this name; None: there is none."""
        gang = self.agents.get(process_name.rpartition("-")[0])
        if gang is None or not isinstance(gang.spec.payload, GangPayload):
            return None
        member = gang_of(process_name)
        return gang if member is not None and member[1] < len(gang.spec.bundles) else None

    def _pool_ensured(self, fact: f.PoolEnsured) -> None:
        name = fact.spec.name
        if name not in self.ledger.accounts:
            self.pool_names.note_created(name)
        elif name in self.ledger.flavored or fact.spec.flavors:
            self.queue.forget_ways(name)
        before = loans_within_trees(self.ledger)
        self.ledger.ensure(fact.spec)
        note_separated(self.ledger, self.agents, before)
        self.agents_of.setdefault(name, set())
        self._group_facts.ensured(fact.spec)
        # A pool gives its tasks a size where they ask for none.
        self.queue.kinds.seen = -1
        agents = [self.agents[agent_name] for agent_name in sorted(self.agents_of[name])]
        if self.owners.define(fact.spec, agents, fact.at):
            self.queue.sort_anew(name)
        if self.budgets.define(fact.spec, agents, fact.at):
            self._note_budget(name)

    def _pool_deleted(self, fact: p.PoolDeleted) -> None:
        name = fact.pool_name
        self.ledger.remove(name)
        del self.agents_of[name]
        self.owners.forget(name)
        self.budgets.forget(name)
        self.groups.forget(name)
        self.drains.forget_pool(name)
        self.handlers.pop(name, None)
        self.evictions.last_for.pop(name, None)
        self.evictions.lost_work.pop(name, None)
        self.queue.kinds.seen = -1

    def _pool_renamed(self, fact: p.PoolRenamed) -> None:
        rename = PoolRename(fact.pool_name, fact.new_name)
        rename.in_ledger(self.ledger)
        self.agents_of = rename.keys(self.agents_of)
        rename.in_agents(self.agents)
        rename.in_tasks(self.running, self.agents)
        rename.in_arrays(self.arrays)
        rename.in_queue(self.queue)
        rename.in_groups(self.groups)
        rename.in_drains(self.drains)
        rename.in_windows(self.windows)
        rename.in_tokens(self.tokens)
        self.policy = rename.in_policy(self.policy)
        self.preemption = PreemptionRules(self.policy)
        self.handlers = rename.in_handlers(self.handlers)
        rename.in_past(self.past)
        rename.in_evictions(self.evictions)
        for node in self.cluster.nodes.values():
            node.version += 1
        self.pool_names.note_renamed(fact.pool_name, fact.new_name)

    def _budget_level_changed(self, fact: p.BudgetLevelChanged) -> None:
        self.budgets.set_level(fact.pool_name, fact.owner, fact.level, fact.until)
        self._note_budget(fact.pool_name, fact.owner)

    def _note_budget(self, pool_name: str, owner: str | None = None) -> None:
        """The budget of a pool, or of an owner in it, is spent or is so no longer."""
        self.queue.enter_again(pool_name, owner)
        for agent in map(self.agents.__getitem__, sorted(self.agents_of[pool_name])):
            for task_id in self.running.on_agent(agent.spec.name):
                task = self.running.by_id[task_id]
                spec = self.budgets.priced(task.spec, pool_name, task.resources)
                if spec is not task.spec and owner in (None, spec.owner):
                    self.running.change_spec(task_id, spec)
                    self._touch(agent)

    def _policy_changed(self, fact: f.PolicyChanged) -> None:
        preemption = PreemptionRules(fact.policy)
        self.policy, self.preemption = fact.policy, preemption
        self.ledger.half_life_s = fact.policy.usage_half_life_s
        self.owners.half_life_s = fact.policy.usage_half_life_s
        for pool_name in self.owners.pools:
            self.queue.rank_owners(pool_name)
        self.running.partition_by(self.preemption.ranks.named(), ClassOrder.of(fact.policy))
        self.queue.name_labels()
        for node in self.cluster.nodes.values():
            node.version += 1
        self.policy_changes = [*self.policy_changes[-99:], fact]

    def _node_seen(self, fact: f.NodeSeen) -> None:
        node_id = fact.report.node_id
        new = node_id not in self.cluster.nodes
        self.cluster.see(fact.report)
        self.windows.note_nodes()
        if not new:
            return
        for name, agent in self.agents.items():
            place = agent.place
            here = isinstance(place, OnNode) and place.node_id == node_id
            if isinstance(place, OnNode) and here and not isinstance(agent.phase, Waiting):
                self.cluster.confirm(node_id, name, agent.spec.resources, place.gpu_ids)
        self._group_facts.node_returned(node_id)

    def _node_lost(self, fact: f.NodeLost) -> None:
        self.cluster.lose(fact.node_id)
        self.drains.nodes.pop(fact.node_id, None)
        self.windows.note_nodes()

    def drain_started(self, fact: d.DrainStarted) -> None:
        """A node or a pool is drained from now on; one that is to be deleted lends nothing more."""
        self.drains.start(fact)
        if fact.pool_name is not None:
            self.ledger.close(fact.pool_name, closed=fact.deletes)

    def _drain_ended(self, fact: d.DrainEnded) -> None:
        self.drains.end(fact)
        if fact.pool_name is not None:
            self.ledger.close(fact.pool_name, closed=False)

    def _agent_admitted(self, fact: f.AgentAdmitted) -> None:
        spec, task, place = fact.agent, fact.task, fact.place
        task_id = None if task is None else task.task_id
        queued = None
        if task_id in self.queue.by_id:
            counts = spec.pool_name in self.owners.pools
            queued = self.queue.remove(task_id, starts=counts)
        submission = Submission(
            request_id=fact.request_id,
            task_id=task_id,
            state_key=fact.state_key,
            evicting=fact.evicting,
            queued=queued is not None,
            expires_at=None if queued is None else queued.expires_at,
        )
        phase: AgentPhase = Starting(submission=submission)
        if fact.evicting or fact.waits_for_agents or fact.waits_for_groups:
            victims = (candidate.agent_name for candidate in fact.evicting)
            phase = Waiting(
                submission=submission,
                for_agents=frozenset((*victims, *fact.waits_for_agents)),
                for_groups=frozenset(fact.waits_for_groups),
                promised=fact.promised,
            )
        agent = self.agents[spec.name] = Agent(
            spec=spec,
            incarnation=fact.incarnation,
            phase=phase,
            place=place,
            admitted_at=fact.at,
            shares=fact.shares,
            actors=fact.actors,
            owner=None if task is None else task.owner,
        )
        self.agents_of[spec.pool_name].add(spec.name)
        if isinstance(spec.payload, GangPayload) and spec.extra_names:
            self.elastic.add(spec.name)
        self.past.forget_agent(spec.name)
        self.next_incarnation = fact.incarnation + 1
        self.ledger.clock = fact.at
        self.ledger.reserve(spec.pool_name, fact.shares)
        if agent.owner is not None and spec.pool_name in self.owners.pools:
            self.owners.admitted(agent, fact.at)
            self.queue.note_use(spec.pool_name, agent.owner)
        if isinstance(phase, Waiting):
            self.ledger.note_promise(spec.name, spec.pool_name, phase.promised)
        self.cluster.workload.note(spec.resources)
        for name in fact.waits_for_agents:
            self._leaves_also_for(self.agents[name], spec.name)
        if isinstance(place, InGroup):
            self._group_facts.admitted(agent, place)
        elif isinstance(place, OnNode):
            self.cluster.take(place.node_id, spec.name, fact.held, fact.devices)
            if isinstance(phase, Waiting):
                self.cluster.promise(place.node_id, spec.name, spec.resources.gpu, spec.name)
        elif not isinstance(place, Unplaced):
            assert_never(place)
        if fact.request_id is not None:
            self.requests[fact.request_id] = spec.name
        if task is not None:
            self._add_task(task, spec.name, fact.at, TaskPhase.STARTING, fact.max_run_s)
            running = self.running.by_id[task.task_id]
            running.state_key, running.choose_node = fact.state_key, fact.choose_node
            if fact.order_value is not None:
                self.running.note_order(task.task_id, fact.order_value)
            if queued is not None:
                running.number = queued.number
                running.attempts = msgspec.structs.replace(
                    queued.attempts, arrived_at=queued.arrived_at
                )
            else:
                running.attempts = fact.attempts
                running.number = self.queue.next_number
                self.queue.next_number += 1

    def _leaves_also_for(self, leaving: Agent, incoming: str) -> None:
        leaving.leave_also_for(incoming)
        if isinstance(leaving.place, OnNode):
            self.cluster.release_for(leaving.place.node_id, leaving.spec.name, incoming)

    def _claim_grew(self, fact: f.ClaimGrew) -> None:
        agent = self.agents[fact.agent_name]
        self.ledger.clock = fact.at
        self.ledger.reserve(agent.spec.pool_name, fact.shares)
        if fact.shares:
            agent.receive(fact.shares)
            self.ledger.note_promise(agent.spec.name, agent.spec.pool_name, agent.promised)
        if not fact.held and not fact.devices.units:
            return
        if not isinstance(agent.place, OnNode):
            raise TypeError(f"agent {fact.agent_name!r} holds nothing on a node itself: {fact}")
        self.cluster.take(agent.place.node_id, fact.agent_name, fact.held, fact.devices)

    def _agent_ready(self, fact: f.AgentReady) -> None:
        agent = self.agents[fact.agent_name]
        agent.start()
        self.ledger.note_promise(agent.spec.name, agent.spec.pool_name, agent.promised)
        self._group_facts.entered(agent, fact.at)

    def _has_loaded(self, class_key: str) -> None:
        self.loaded.pop(class_key, None)
        self.loaded[class_key] = None
        if len(self.loaded) > LOADED:
            del self.loaded[next(iter(self.loaded))]

    def _agent_started(self, fact: f.AgentStarted) -> None:
        agent = self.agents[fact.agent_name]
        running = Running(
            started_at=fact.at,
            pid=fact.pid,
            actor_name=fact.actor_name,
            actor_namespace=fact.actor_namespace,
            capabilities=fact.capabilities,
            members=fact.members,
            room=fact.room,
        )
        agent.enter(running)
        if self.budgets.by_pool:
            self.budgets.charge(agent, agent.spec.resources.gpu, fact.at)
        self.ledger.commit(agent.shares)
        for class_key in agent.spec.class_keys:
            self._has_loaded(class_key)
        self._relocate(agent, fact.node_id, fact.gpu_ids)
        if isinstance(agent.place, InGroup):
            for rank, member in enumerate(fact.members[1:], 1):
                place = agent.place
                self._group_facts.member_reported(
                    agent, place, member.node_id, member.gpu_ids, rank
                )
        for task_id in self.running.on_agent(fact.agent_name):
            if self.running.by_id[task_id].phase is TaskPhase.STARTING:
                self.running.start(task_id, fact.at, agent.payers)
                self._note_running(task_id, fact.at)
            else:
                self.running.adopt(task_id, agent.spec, agent.payers)
        self.evictions.agent_started(fact.agent_name, fact.at)
        self._touch(agent)

    def _note_running(self, task_id: str, at: float) -> None:
        self.past.note_running(task_id)
        self.evictions.note_running(task_id, at)

    def _relocate(self, agent: Agent, node_id: str | None, gpu_ids: tuple[str, ...]) -> None:
        """Record where the agent reports that it runs; ``node_id`` None: it cannot tell."""
        name, place = agent.spec.name, agent.place
        if isinstance(place, InGroup):
            self._group_facts.member_reported(agent, place, node_id, gpu_ids)
            return
        if node_id is None or agent.spec.payload.adopts:
            return
        if isinstance(place, OnNode) and place.node_id != node_id:
            self.cluster.leave(place.node_id, name)
        agent.place = OnNode(node_id=node_id, gpu_ids=gpu_ids)
        self.cluster.confirm(node_id, name, agent.spec.resources, gpu_ids)

    def _agent_process_restarted(self, fact: f.AgentProcessRestarted) -> None:
        agent = self.agents[fact.agent_name]
        agent.note_restart(fact.pid)
        self._relocate(agent, fact.node_id, fact.gpu_ids)

    def _loss_reported(self, fact: f.LossReported) -> None:
        lost = self.lost[fact.agent_name]
        self.lost[fact.agent_name] = msgspec.structs.replace(lost, reported=True)

    def _agent_ending(self, fact: f.AgentEnding) -> None:
        agent = self.agents[fact.agent_name]
        agent.end(fact)
        self.leaving.add(fact.agent_name)
        if fact.request_id is not None:
            self.requests[fact.request_id] = fact.agent_name
        if fact.leaves_for is not None and isinstance(agent.place, OnNode):
            self.cluster.release_for(agent.place.node_id, fact.agent_name, fact.leaves_for)
        for task_id in self.running.on_agent(fact.agent_name):
            if self.running.by_id[task_id].phase is TaskPhase.RUNNING:
                self.running.enter(task_id, TaskPhase.ENDING)
                self.running.children.orphan(task_id)
        self._touch(agent)

    def _ending_agent_deleted(self, fact: f.EndingAgentDeleted) -> None:
        agent = self.agents[fact.agent_name]
        agent.amend_end(deleted=True)
        if fact.destroy_group is not None:
            agent.amend_end(destroy_group=fact.destroy_group)

    def _agent_ended(self, fact: f.AgentEnded) -> None:
        tasks = self.running.remove_agent(fact.agent_name)
        agent = self.agents.pop(fact.agent_name)
        self.leaving.discard(fact.agent_name)
        returned_id = None if fact.returned is None else fact.returned.task_id
        for task in tasks:
            if task.spec.task_id != returned_id:
                self.past.note_ended_with_agent(task, fact, agent.spec.kind)
        phase, place = agent.phase, agent.place
        if fact.reason is EndReason.LOST:
            self.past.note_lost(
                LostAgent(
                    spec=agent.spec,
                    at=fact.at,
                    tasks=tuple((task.spec, task.state_key) for task in tasks),
                    attempts={
                        task.spec.task_id: attempts_of(task, agent, fact.at, failed=True)
                        for task in tasks
                    },
                )
            )
        self.past.note_former(fact.agent_name)
        self.evictions.agent_ended(fact.agent_name, fact.at)
        if fact.agent_name in self.arrays.leaving:
            self.arrays.note_agent_ended(fact.agent_name)
        self.agents_of[agent.spec.pool_name].discard(fact.agent_name)
        self.elastic.discard(fact.agent_name)
        self.ledger.clock = fact.at
        pool_name, committed = agent.spec.pool_name, agent.process is not None
        self.ledger.release(pool_name, agent.shares, committed=committed)
        if fact.agent_name in self.ledger.promises:
            self.ledger.drop_promise(fact.agent_name)
        if agent.owner is not None and pool_name in self.owners.pools:
            self.owners.ended(agent, fact.at)
            self.queue.note_use(pool_name, agent.owner)
        if self.budgets.by_pool and committed:
            self.budgets.charge(agent, -agent.spec.resources.gpu, fact.at)
        if isinstance(place, InGroup):
            self._group_facts.agent_ended(agent, place, fact.at)
        elif isinstance(place, OnNode):
            self.cluster.leave(place.node_id, fact.agent_name)
        elif not isinstance(place, Unplaced):
            assert_never(place)
        submission = agent.submission
        if submission is not None and submission.request_id is not None:
            self.requests.pop(submission.request_id, None)
        for name in phase.waiters if isinstance(phase, Ending) else ():
            self.agents[name].stop_waiting_for(agent=fact.agent_name)
        if isinstance(phase, Waiting):
            self._stop_leaving_for(fact.agent_name, phase)

    def _stop_leaving_for(self, agent_name: str, waiting: Waiting) -> None:
        """The incoming agent has ended: what it waited for is no longer meant for it."""
        for name in sorted(waiting.for_agents):
            leaving = self.agents[name]
            leaving.leave_no_more_for(agent_name)
            if isinstance(leaving.place, OnNode):
                self.cluster.release_no_more_for(leaving.place.node_id, name, agent_name)
        self._group_facts.unclaimed(agent_name, waiting.for_groups)

    def _group_ready(self, fact: f.GroupReady) -> None:
        agent_name = self._group_facts.ready(fact)
        if agent_name is not None:
            self.agents[agent_name].stop_waiting_for(group=fact.group_id)

    def _group_ended(self, fact: f.GroupEnded) -> None:
        group = self._group_facts.remove(fact)
        for name in group.waiters:
            self.agents[name].stop_waiting_for(group=fact.group_id)

    def _priority_changed(self, fact: q.PriorityChanged) -> None:
        task = self.running.by_id[fact.task_id]
        agent = self.agents.get(task.agent_name)
        spec = task.spec.with_priority(fact.priority)
        if agent is not None and self.budgets.spent:
            spec = self.budgets.priced(spec, agent.spec.pool_name, task.resources)
        self.running.change_spec(fact.task_id, spec)
        self._touch(agent)

    def _task_registered(self, fact: f.TaskRegistered) -> None:
        agent = self.agents.get(fact.agent_name)
        runs = agent is None or isinstance(agent.phase, Running)
        if agent is not None and agent.owner is None and agent.first_owner is None:
            self.budgets.charge_other(agent, fact.task.owner, fact.at)
            agent.first_owner = fact.task.owner
        phase = TaskPhase.RUNNING if runs else TaskPhase.STARTING
        self._add_task(fact.task, fact.agent_name, fact.at, phase, fact.max_run_s)
        if runs:
            self._note_running(fact.task.task_id, fact.at)

    def _add_task(
        self,
        spec: TaskSpec,
        agent_name: str,
        at: float,
        phase: TaskPhase,
        max_run_s: float | None,
    ) -> None:
        if spec.task_id in self.running.by_id:
            raise ValueError(f"task {spec.task_id!r} exists already")
        self.past.forget_ended(spec.task_id)
        agent = self.agents.get(agent_name)
        if agent is not None and (self.budgets.spent or spec.full_priority is not None):
            spec = self.budgets.priced(spec, agent.spec.pool_name, agent.spec.resources)
        self.running.add(
            RunningTask(
                spec=spec,
                agent_name=agent_name,
                started_at=at,
                phase=phase,
                max_run_s=max_run_s,
                resources=NOTHING if agent is None else agent.spec.resources,
                flavor=None if agent is None else agent.spec.flavor,
                payers=() if agent is None else agent.payers,
            )
        )
        self._touch(agent)

    def _task_ended(self, fact: f.TaskEnded) -> None:
        has_children = fact.task_id in self.running.children.by_parent
        if has_children and fact.state is EndState.COMPLETED:
            release_children(self.running, self.queue, fact.task_id)
        task = self.running.remove(fact.task_id)
        self.past.note_task_ended(task, fact, kind_of(self.agents, task.agent_name))
        if isinstance(task.phase, Preempting):
            self.evictions.cancel(fact.task_id)
        if task.agent_name not in self.agents:
            self.past.note_former(task.agent_name)
        self._touch(self.agents.get(task.agent_name))

    def _touch(self, agent: Agent | None) -> None:
        """Invalidate what the victim search summed up for the agent's node."""
        node_id = None if agent is None else agent.place.node_id
        if node_id is not None and node_id in self.cluster.nodes:
            self.cluster.nodes[node_id].version += 1

    def _epoch_begun(self, fact: f.EpochBegun) -> None:
        self.epoch, self.actor_names = fact.epoch, fact.actor_names
        self.next_incarnation += fact.gap
        self.groups.next_number += fact.gap
