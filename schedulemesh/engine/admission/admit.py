"""Admits a decided submission: reserves its claim, and starts the evictions that it needs."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf, nextafter

import msgspec

from schedulemesh.domain.agent import gang_of
from schedulemesh.domain.end_reasons import EndReason
from schedulemesh.domain.labels import Labels
from schedulemesh.domain.payloads import GangPayload
from schedulemesh.domain.placement import GroupShape, InGroup, OnNode, Unplaced
from schedulemesh.domain.resources import NOTHING, Resources
from schedulemesh.domain.task import DEFAULT_PRIORITY, TaskSpec
from schedulemesh.engine.admission.arrays import next_member
from schedulemesh.engine.admission.groups import end_group, plan_group
from schedulemesh.engine.admission.time_limits import grace_of, run_limit
from schedulemesh.engine.messages.cohort_facts import LoansExchanged
from schedulemesh.engine.messages.facts import (
    AgentAdmitted,
    AgentEnding,
    Devices,
    EvictionStarted,
    GroupClaimed,
    HoldShrank,
    Share,
)
from schedulemesh.engine.messages.instructions import EvictAgent, StartAgent
from schedulemesh.engine.messages.outcomes import Accepted, Pending
from schedulemesh.engine.messages.stimuli import TaskSubmitted
from schedulemesh.engine.placement.group_choice import Assignment, GroupRequest, NoAssignment
from schedulemesh.engine.preemption.limits import Limits
from schedulemesh.engine.preemption.search import EvictionPlan
from schedulemesh.engine.preemption.victims import VictimAgent, evicted_tasks
from schedulemesh.engine.state.agents import Agent, Starting
from schedulemesh.engine.state.devices import devices_for
from schedulemesh.engine.state.gangs import members_running
from schedulemesh.engine.state.groups import Group, GroupPhase, shape_on_node
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.nodes import Node
from schedulemesh.engine.state.preemption_rules import Incoming
from schedulemesh.engine.state.queue_classes import QueueClass
from schedulemesh.engine.state.queued_tasks import LARGEST, QueuedTask
from schedulemesh.engine.state.quota import Payment
from schedulemesh.engine.transaction import Transaction

_NO_DEVICES = Devices()


class Request(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A submission whose pool is known: what it asks for, where, and how it is paid."""

    stimulus: TaskSubmitted
    pool_name: str
    need: Resources
    payment: Payment
    #: A node with room as things are; None: there is none, or none is to be chosen.
    node: Node | None
    #: Whether a node is to be chosen for it, and none has room as things are.
    by_node: bool
    #: In a pool that keeps placement groups: what is asked of them, and what is to be had for nothing.
    group_request: GroupRequest | None = None
    assignment: Assignment | NoAssignment | None = None
    #: Whether others may be evicted though external work would get their room: to say what keeps it waiting.
    may_lose_room: bool = False
    #: Whether nobody is evicted for it but by reclaim.
    only_reclaims: bool = False
    #: Whether what is leaving anyway counts as gone: not to find out whether others would be evicted. What
    #: claims wait for that count as revoked does.
    counts_leaving: bool = True
    #: Agents that do not run yet whose claims count as revoked.
    revokes: tuple[str, ...] = ()
    #: Whether claims may be revoked for it.
    may_revoke: bool = True
    #: What of its pool's quota it was short of when claims were revoked for it.
    takes_back: Resources = NOTHING
    #: Whether only extra members of elastic gangs may be evicted.
    only_extras: bool = False
    #: The task where it waits in the queue; None: it is submitted now.
    waiting: QueuedTask | None = None
    #: The same in other ways in which the agent may run: of one that fits those that come before, which do
    #: not; else all. As far as they are possible at all.
    others: tuple[Request, ...] = ()
    #: The submission in the ways that come after one that fits, which were not looked at.
    untried: tuple[TaskSubmitted, ...] = ()
    #: In how many ways the agent may run, those included in which it surely never fits.
    ways: int = 1

    @property
    def each_alternative(self) -> tuple[Request, ...]:
        """The request in each way that was looked at, the preferred one first."""
        if not self.others:
            return (self,)
        alone = msgspec.structs.replace(self, others=())
        return tuple(sorted((alone, *self.others), key=_alternative_of))

    @property
    def node_shape(self) -> GroupShape:
        """What it asks for on a node, where it runs in no placement group."""
        return shape_on_node(self.stimulus.agent, self.need)

    @property
    def on_a_node(self) -> tuple[GroupShape, Resources]:
        """What it asks of nodes, and what one of them must have for it: of a group, the largest bundle."""
        if self.group_request is None:
            return self.node_shape, self.need
        shape = self.group_request.shape
        return shape, max(shape.bundles, key=_size)

    @property
    def quota_need(self) -> Resources:
        """What it asks for of its pool's quota: its need, in the flavor in which it runs."""
        flavor = self.stimulus.agent.flavor
        return self.need if flavor is None else flavor.quota_of(self.need)

    @property
    def scarce_quota(self) -> Resources:
        """What of that is of the kinds that decide about room."""
        flavor = self.stimulus.agent.flavor
        return self.need.scarce if flavor is None else flavor.quota_of(self.need.scarce)

    @property
    def unassigned(self) -> bool:
        """Whether somebody must leave before it has a place to run."""
        return self.by_node or isinstance(self.assignment, NoAssignment)

    @property
    def fits_now(self) -> bool:
        """Whether it has quota and a place to run, and nobody must leave."""
        if self.by_node or isinstance(self.assignment, NoAssignment):
            return False
        return self.payment.short == NOTHING

    def limits(self, state: MeshState, now: float) -> Limits:
        """What limits the evictions for it."""
        return Limits(state, self.pool_name, now, self.waiting)

    def incoming(self, state: MeshState) -> Incoming:
        """The task as the preemption rules see it; an agent without a task has the default priority."""
        task = self.stimulus.task
        neighbours = state.ledger.cohorts.neighbours(self.pool_name).names
        if task is None:
            return Incoming(
                priority=DEFAULT_PRIORITY,
                pool_name=self.pool_name,
                labels=self.stimulus.agent.labels,
                neighbours=neighbours,
                borrows=self.borrows_of(neighbours, self.payment.loans),
            )
        return Incoming(
            priority=task.priority,
            pool_name=self.pool_name,
            labels=task.labels,
            neighbours=neighbours,
            ancestors=_ancestors(state, task),
            evict_pools=task.evict_pools,
            borrows=self.borrows_of(neighbours, self.payment.loans),
        )

    def borrows_of(self, pools: frozenset[str], shares: tuple[Share, ...]) -> bool:
        """Whether these shares have quota of one of these pools of the kinds that decide about room: then it
        may be reclaimed.
        """
        return bool(shares) and any(
            share.pool_name in pools and share.amount.helps(self.scarce_quota) for share in shares
        )


def _size(amount: Resources) -> tuple[int, int, int]:
    return (amount.gpu, amount.cpu, amount.memory)


def _alternative_of(request: Request) -> int:
    return request.stimulus.agent.alternative


def _ancestors(state: MeshState, task: TaskSpec) -> frozenset[str]:
    """The ids of the tasks that started this one, directly or through others."""
    ancestors: set[str] = set()
    parent_id = task.parent
    while parent_id and parent_id not in ancestors:
        ancestors.add(parent_id)
        parent = state.running.by_id.get(parent_id)
        parent_id = "" if parent is None else parent.spec.parent
    return frozenset(ancestors)


def would_run(state: MeshState, request: Request, plan: EvictionPlan | None) -> Accepted:
    """The answer of a dry run."""
    agent, task = request.stimulus.agent, request.stimulus.task
    assignment = _assignment(request, plan)
    if assignment is not None:
        node_id: str | None = _node_ids(assignment)[0]
    elif plan is not None and plan.placement is not None:
        node_id = plan.placement.node_ids[0]
    else:
        node_id = request.node.node_id if request.node is not None else None
    return Accepted(
        agent_name=agent.name,
        pool_name=request.pool_name,
        resources=request.need,
        labels=_labels(state, request),
        task_id=None if task is None else task.task_id,
        preempted=() if plan is None else evicted_tasks(plan.victims),
        cancelled_starts=() if plan is None else tasks_to_start(state, plan.revoked),
        node_id=node_id,
        restartable=agent.restartable,
        group_id=(
            None if assignment is None or assignment.group is None else assignment.group.group_id
        ),
        group_path="" if assignment is None else assignment.path,
        whole_pool=request.quota_need == state.ledger.accounts[request.pool_name].spec.resources,
    )


def tasks_to_start(state: MeshState, agents: Iterable[str]) -> tuple[str, ...]:
    """The tasks that these agents are to start, by id; an agent without a task stands for itself."""
    running = state.running
    return tuple(name for agent in agents for name in (running.on_agent(agent) or (agent,)))


def _assignment(request: Request, plan: EvictionPlan | None) -> Assignment | None:
    """The group that a request gets; None: it runs on a node without a group."""
    if plan is not None and plan.preempted_group is not None:
        return Assignment(path="preempted", group=plan.preempted_group)
    if plan is not None and plan.placement is not None and request.group_request is not None:
        return Assignment(path="created", placement=plan.placement, leaving=plan.removed)
    return request.assignment if isinstance(request.assignment, Assignment) else None


def _node_ids(assignment: Assignment) -> tuple[str, ...]:
    if assignment.group is not None:
        return assignment.group.node_ids
    return ("",) if assignment.placement is None else assignment.placement.node_ids


def _labels(state: MeshState, request: Request) -> Labels:
    """The agent's labels: its pool, the pool's own beneath, then those of the submission."""
    return {
        "pool": request.pool_name,
        **state.ledger.accounts[request.pool_name].spec.labels,
        **request.stimulus.agent.labels,
    }


def admit(tx: Transaction, request: Request, plan: EvictionPlan | None) -> Pending:
    """Reserve the agent's quota and its resources on a node, and start the eviction of its victims. Of an
    array the next member is admitted.
    """
    if request.waiting is not None and request.waiting.spec.array:
        request = _of_next_member(tx, request, request.waiting)
    state, stimulus = tx.state, request.stimulus
    payment = request.payment if plan is None or plan.payment is None else plan.payment
    if plan is not None and plan.exchanged:
        claims = (
            (name, tuple((share.pool_name, share.amount) for share in shares))
            for name, shares in plan.exchanged
        )
        tx.emit(LoansExchanged(at=tx.now, claims=tuple(claims)))
    for hold_id, remaining_shares in payment.holds_left:
        tx.emit(HoldShrank(hold_id=hold_id, at=tx.now, shares=remaining_shares))
    agent = msgspec.structs.replace(
        stimulus.agent,
        pool_name=request.pool_name,
        resources=request.need,
        labels=_labels(state, request),
    )
    task = stimulus.task
    if task is not None and task.pool_name != request.pool_name:
        task = msgspec.structs.replace(task, pool_name=request.pool_name)
    admitted = AgentAdmitted(
        agent=agent,
        incarnation=state.next_incarnation,
        at=tx.now,
        task=task,
        shares=payment.shares,
        evicting=() if plan is None else evicted_tasks(plan.victims),
        waits_for_agents=() if plan is None else plan.waits_for,
        promised=() if plan is None else plan.promised,
        request_id=stimulus.request_id,
        state_key=stimulus.state_key,
        choose_node=stimulus.choose_node,
        attempts=stimulus.attempts,
        order_value=None if request.waiting is None else _order_value(state, request.waiting),
        max_run_s=None if task is None else run_limit(state, request.pool_name, task),
        actors=state.actor_names.of_agent(
            agent,
            state.next_incarnation,
            is_extra=task is not None and bool(task.extra_of),
        ),
    )
    assignment = _assignment(request, plan)
    if assignment is not None:
        _move_in(tx, request, admitted, assignment, plan)
    else:
        _allocate_on_node(tx, request, admitted, plan)
    if plan is not None and plan.victims:
        _evict(tx, plan.victims, agent.name)
    if isinstance(state.agents[agent.name].phase, Starting):
        tx.instruct(start_instruction(state, agent.name))
    return Pending(agent_name=agent.name)


def _of_next_member(tx: Transaction, request: Request, entry: QueuedTask) -> Request:
    """The request of an array as that of its next member, in the alternative that was chosen."""
    member = next_member(tx, entry)
    submission = member.submission
    agent, chosen = submission.agent, request.stimulus.agent
    if agent.alternatives or chosen.flavor is not None:
        agent = agent.as_chosen(chosen)
        submission = msgspec.structs.replace(submission, agent=agent)
    return msgspec.structs.replace(request, stimulus=submission, waiting=member)


def _order_value(state: MeshState, waiting: QueuedTask) -> float | None:
    """See ``AgentAdmitted.order_value``; infinity, which cannot be stored, as the largest number. Nobody
    waits for extra members of gangs, so they pass nobody.
    """
    if waiting.spec.extra_of:
        return None
    entry = state.queue.entry(waiting)
    value = min(float(entry[0]), LARGEST)
    if waiting.front:
        return value
    if state.owners.is_fair(waiting.pool_name):
        return _before_all_passed(state, waiting, value)
    if state.queue.policy.is_by_priority and not state.preemption.ranks.ranks:
        return None
    return value if any(c.entries[-1] > entry for c in _outranking(state, waiting)) else None


def _before_all_passed(state: MeshState, waiting: QueuedTask, value: float) -> float | None:
    """In a fair pool an order value before those of all tasks with more priority that a task passes, so that
    none of them evicts it for having waited; None: it passes none.
    """
    outranking = _outranking(state, waiting)
    if not outranking:
        return None
    entry = state.queue.entry(waiting)
    passed = [
        float(queue_class.entries[behind][0])
        for queue_class in outranking
        if (behind := queue_class.entries.bisect_right(entry)) < len(queue_class.entries)
    ]
    return nextafter(min(value, *passed), -inf) if passed else None


def _outranking(state: MeshState, task: QueuedTask) -> list[QueueClass]:
    """The classes of its pool whose tasks have a higher priority than a task, or come before it by a label
    rule.
    """
    pool, ranks = state.queue.pools[task.pool_name], state.preemption.ranks
    spec = task.common_spec
    priority, labels = spec.priority, spec.labels
    if ranks.ranks:
        classes = pool.classes.values()
        return [c for c in classes if c.priority > priority or ranks.rank(c.labels, labels)]
    outranking: list[QueueClass] = []
    for other_priority, of_priority in pool.by_priority.items():
        if other_priority > priority:
            outranking += of_priority
    return outranking


def _allocate_on_node(
    tx: Transaction, request: Request, admitted: AgentAdmitted, plan: EvictionPlan | None
) -> None:
    """Its claim is on the node itself."""
    node = request.node
    if plan is not None and plan.placement is not None:
        node = tx.state.cluster.nodes.get(plan.placement.node_ids[0])
    taken, devices = _room_now(request.need, node, waits=plan is not None)
    leaving = () if plan is None else (*plan.removed, *_groups_of(plan))
    tx.emit(
        msgspec.structs.replace(
            admitted,
            place=Unplaced() if node is None else OnNode(node_id=node.node_id),
            held=taken,
            devices=devices,
            waits_for_groups=tuple(group.group_id for group in leaving) if leaving else (),
        )
    )
    if leaving:
        _clear(tx, leaving, admitted.agent.name)


def _groups_of(plan: EvictionPlan | None) -> tuple[Group, ...]:
    """The groups among what is leaving anyway and makes room."""
    return () if plan is None else tuple(g for item in plan.leaving for g in item.groups)


def _clear(tx: Transaction, leaving: Iterable[Group], agent_name: str) -> None:
    """These groups go for the agent: at once, or when those who live in them have left."""
    for group in leaving:
        if group.agent is None and group.phase is not GroupPhase.ENDING:
            end_group(tx, group, for_agent=agent_name)
        else:
            tx.emit(GroupClaimed(group_id=group.group_id, for_agent=agent_name))


def _move_in(
    tx: Transaction,
    request: Request,
    admitted: AgentAdmitted,
    assignment: Assignment,
    plan: EvictionPlan | None,
) -> None:
    """Its claim is a placement group: one that is there, or one that is made for it now."""
    name, group = admitted.agent.name, assignment.group
    leaving_groups = (*assignment.leaving, *_groups_of(plan))
    if group is None and assignment.placement is not None and request.group_request is not None:
        group = plan_group(
            tx,
            request.pool_name,
            request.group_request.shape,
            assignment.placement,
            agent_name=name,
            waits=bool(leaving_groups or admitted.evicting or admitted.waits_for_agents),
        )
    if group is None:
        return
    waits_for = [leaving.group_id for leaving in leaving_groups]
    if assignment.group is None or assignment.waits:
        waits_for.append(group.group_id)
    tx.emit(
        msgspec.structs.replace(
            admitted,
            place=InGroup(group_id=group.group_id, node_id=group.node_ids[0], path=assignment.path),
            waits_for_groups=tuple(waits_for),
        )
    )
    _clear(tx, leaving_groups, name)
    if assignment.group is None:
        tx.wake(name)


def _room_now(need: Resources, node: Node | None, *, waits: bool) -> tuple[Resources, Devices]:
    """What of the need is held on the node now: amounts, and devices where nobody has to leave before."""
    without_gpu = msgspec.structs.replace(need, gpu=0) if need.gpu else need
    if node is None:
        return without_gpu, _NO_DEVICES
    if waits:
        return without_gpu.within(node.free), _NO_DEVICES
    return without_gpu, devices_for(node.devices, need.gpu) or _NO_DEVICES


def _evict(tx: Transaction, victims: tuple[VictimAgent, ...], incoming: str) -> None:
    """Evict all victims of one submission at the same time."""
    for candidate in evicted_tasks(victims):
        tx.emit(
            EvictionStarted(
                task_id=candidate.task_id,
                at=tx.now,
                reason=candidate.reason,
                preempt_score=candidate.preempt_score,
                for_agent=incoming,
            )
        )
    for victim in victims:
        name = victim.name
        tx.emit(
            AgentEnding(agent_name=name, reason=EndReason.PREEMPTED, at=tx.now, leaves_for=incoming)
        )
        tx.instruct(evict_instruction(tx.state, name))


def start_instruction(state: MeshState, agent_name: str, *, adopt: bool = False) -> StartAgent:
    """The instruction to start this agent's actor."""
    agent = state.agents[agent_name]
    submission = agent.submission
    if submission is None:
        raise ValueError(f"agent {agent_name!r} has run already and is not started again")
    rank, world_size = _rank(state, agent)
    return StartAgent(
        agent=agent.spec,
        incarnation=agent.incarnation,
        node_id=agent.place.node_id,
        state_key=submission.state_key,
        adopt=adopt,
        group_id=agent.place.group_id,
        world_size=world_size,
        rank=rank,
        actors=agent.actors,
    )


def _rank(state: MeshState, agent: Agent) -> tuple[int, int]:
    """The agent's first rank and how many members its gang has when it starts; (0, 0): it is in no gang."""
    if isinstance(agent.spec.payload, GangPayload):
        return 0, len(agent.spec.bundles)
    for task_id in state.running.on_agent(agent.spec.name):
        if not state.running.by_id[task_id].spec.extra_of:
            continue
        if (member := gang_of(agent.spec.name)) is not None:
            others = set(members_running(state, member[0])) - {member[1]}
            return member[1], len(others) + 1
    return 0, 0


def evict_instruction(state: MeshState, agent_name: str) -> EvictAgent:
    """The order to save and end this agent with its tasks."""
    agent = state.agents[agent_name]
    return EvictAgent(
        agent_name=agent_name,
        incarnation=agent.incarnation,
        task_ids=state.running.on_agent(agent_name),
        grace_s=grace_of(state, agent.spec),
    )
