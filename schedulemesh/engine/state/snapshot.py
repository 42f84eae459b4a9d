"""Snapshots: the whole state as a value, so that a journal need not keep every fact for ever.

``take_snapshot`` copies what can change and shares the rest, so a snapshot stays as it is while the
state goes on. ``restored`` gives back the same state, field by field; what is derived (classes of tasks,
the node index, the names in each pool) is derived again.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from schedulemesh.config.policy import PreemptionPolicy
from schedulemesh.config.queueing import QueuePolicy
from schedulemesh.domain.actor_names import ActorNames
from schedulemesh.domain.audit import AuditRecord
from schedulemesh.domain.cohort import CohortSpec
from schedulemesh.domain.demand import ExternalDemand
from schedulemesh.domain.payloads import JobPayload
from schedulemesh.domain.placement import GroupShape
from schedulemesh.domain.reasons import PreemptionReason
from schedulemesh.domain.resources import Resources
from schedulemesh.domain.tokens import TokenSpec
from schedulemesh.domain.windows import MaintenanceWindow
from schedulemesh.engine.messages import facts as f
from schedulemesh.engine.messages.drain_facts import DrainStarted
from schedulemesh.engine.messages.stimuli import TaskSubmitted
from schedulemesh.engine.messages.window_facts import WindowNodesChosen
from schedulemesh.engine.state.agents import (
    Agent,
    Ending,
    LostAgent,
    Preempted,
    RememberedAnswer,
    Waiting,
)
from schedulemesh.engine.state.arrays import StoredArray
from schedulemesh.engine.state.budgets import Meter
from schedulemesh.engine.state.class_order import ClassOrder
from schedulemesh.engine.state.compact_tasks import QueueColumns, SharedSubmissions
from schedulemesh.engine.state.estimates import RunKey
from schedulemesh.engine.state.evictions import EvictionRecord
from schedulemesh.engine.state.groups import Group, PoolCounts
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.nodes import Node
from schedulemesh.engine.state.owners import OwnerUse
from schedulemesh.engine.state.past import EndedTask
from schedulemesh.engine.state.preemption_rules import PreemptionRules
from schedulemesh.engine.state.queue import Turns
from schedulemesh.engine.state.queued_tasks import QueuedTask
from schedulemesh.engine.state.quota import Account, Hold
from schedulemesh.engine.state.tasks import RunningTask

#: Entries of one list in one part.
PART = 1000


class Snapshot(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A state, or a part of one: parts in their order, put together, are the whole.

    Every list has the order of the collection that it was taken from.
    """

    #: None: in another part.
    policy: PreemptionPolicy | None = None
    epoch: int | None = None
    actor_names: ActorNames | None = None
    next_incarnation: int | None = None
    #: (pool of the evicted tasks, reason, how many).
    preemptions: list[tuple[str, PreemptionReason, int]] = []
    policy_changes: list[f.PolicyChanged] = []
    handlers: list[f.StateHandlersRegistered] = []
    loaded: list[str] = []
    #: (pool name, counts) of every pool that has or had groups. Before the pools, as it defines their order.
    group_counts: list[tuple[str, PoolCounts]] = []
    cohorts: list[CohortSpec] = []
    accounts: list[Account] = []
    #: (owner, borrower, amount).
    loans: list[tuple[str, str, Resources]] = []
    holds: list[tuple[str, Hold]] = []
    nodes: list[Node] = []
    groups: list[Group] = []
    #: (pool name, shape, how many reserved groups of it were destroyed on demand).
    groups_dropped: list[tuple[str, GroupShape, int]] = []
    next_group: int | None = None
    #: (CPU, GPU, how many tasks of this kind were admitted).
    workload: list[tuple[int, int, int]] = []
    #: The counts when the typical kinds were last computed, and the number of tasks at which they are next.
    workload_sampled: list[tuple[int, int, int]] = []
    workload_renew_at: int | None = None
    #: (agent whose GPUs are idle, since when). Before the tasks, whose classes it tells apart.
    idle: list[tuple[str, float]] = []
    agents: list[Agent] = []
    #: (pool name, owner, what its tasks hold). Before the queue, which depends on it.
    owners: list[tuple[str, str, OwnerUse]] = []
    #: (pool name, when what its owners hold has changed last), of those that count owners.
    owners_changed: list[tuple[str, float]] = []
    #: (pool name, owner or None for the pool itself, what was used of its budget). Before the queue, too.
    budgets: list[tuple[str, str | None, Meter]] = []
    #: Before the tasks, some of which are members.
    arrays: list[StoredArray] = []
    tasks: list[RunningTask] = []
    queue_policy: QueuePolicy | None = None
    next_task_number: int | None = None
    #: Tasks that wait as they were stored before ``queue_columns``; none is stored so any more.
    queue: list[QueuedTask] = []
    #: What the submissions of tasks in ``queue_columns`` have in common, which they refer to by its place.
    queue_shared: list[TaskSubmitted] = []
    queue_columns: list[QueueColumns] = []
    queue_turns: Turns | None = None
    preempted: list[Preempted] = []
    evictions: list[EvictionRecord] = []
    next_eviction: int | None = None
    evictions_requeued: dict[PreemptionReason, int] = {}
    drains: list[DrainStarted] = []
    windows: list[MaintenanceWindow] = []
    #: The nodes of those that reserve an amount.
    window_nodes: list[WindowNodesChosen] = []
    #: (former name of a pool, the name that replaced it).
    pool_names: list[tuple[str, str]] = []
    #: (pool name, when a task was last evicted for it).
    last_evictions: list[tuple[str, float]] = []
    #: (pool name, number of the minute, GPU-seconds of lost work).
    lost_work: list[tuple[str, int, float]] = []
    lost: list[LostAgent] = []
    former: list[str] = []
    #: (sort of runs, their last durations in seconds), the sort learned from last comes last.
    durations: list[tuple[RunKey, tuple[float, ...]]] = []
    ended: list[EndedTask] = []
    #: (request id, agent name).
    requests: list[tuple[str, str]] = []
    #: (request id, answer).
    answers: list[tuple[str, RememberedAnswer]] = []
    tokens: list[TokenSpec] = []
    #: Whether calls over Ray need a token.
    authentication: bool = False
    audit: list[AuditRecord] = []
    external_demand: list[ExternalDemand] = []
    #: (node id, task id) of the rooms that external work got; see ``state.external_demand``.
    rooms_lost: list[tuple[str, str]] = []
    next_change: int = 1


def take_snapshot(state: MeshState) -> Snapshot:
    """The state as it is now."""
    answers = [
        (request_id, RememberedAnswer(at=each.at, outcome=each.outcome))
        for request_id, each in state.answers.items()
    ]
    shared = SharedSubmissions()
    columns = [shared.columns(state.queue.by_id.values())] if state.queue.by_id else []
    return msgspec.structs.replace(
        _without_answers_and_queue(state),
        answers=answers,
        queue_shared=shared.all,
        queue_columns=columns,
    )


def _without_answers_and_queue(state: MeshState) -> Snapshot:
    return Snapshot(
        policy=state.policy,
        epoch=state.epoch,
        actor_names=state.actor_names,
        next_incarnation=state.next_incarnation,
        preemptions=[(*key, n) for key, n in state.past.preemptions.items()],
        policy_changes=list(state.policy_changes),
        tokens=list(state.tokens.values()),
        authentication=state.tokens.required,
        audit=state.audit.all(),
        next_change=state.audit.next_number,
        handlers=list(state.handlers.values()),
        loaded=list(state.loaded),
        cohorts=list(state.ledger.cohorts.specs.values()),
        loans=[(*pair, amount) for pair, amount in state.ledger.loans.items()],
        accounts=[copy.copy(account) for account in state.ledger.accounts.values()],
        holds=list(state.ledger.holds.items()),
        nodes=[_node(node) for node in state.cluster.nodes.values()],
        groups=[copy.copy(group) for group in state.groups.by_id.values()],
        group_counts=[(pool, copy.copy(c)) for pool, c in state.groups.counts.items()],
        groups_dropped=[(*key, n) for key, n in state.groups.dropped.items()],
        next_group=state.groups.next_number,
        workload=[(*kind, n) for kind, n in state.cluster.workload.counts.items()],
        workload_sampled=[(*kind, n) for kind, n in state.cluster.workload.sampled.items()],
        workload_renew_at=state.cluster.workload.renew_at,
        idle=list(state.running.idle.items()),
        agents=[copy.copy(agent) for agent in state.agents.values()],
        owners=[
            (pool_name, owner, copy.copy(use))
            for pool_name, uses in state.owners.uses.items()
            for owner, use in uses.items()
        ],
        owners_changed=list(state.owners.changed_at.items()),
        budgets=[
            (pool_name, owner, copy.copy(meter))
            for pool_name, pool in state.budgets.by_pool.items()
            for owner, _, meter in pool.meters()
        ],
        arrays=[one.stored() for one in state.arrays.by_id.values()],
        tasks=[
            msgspec.structs.replace(task, task_class=None) for task in state.running.by_id.values()
        ],
        queue_policy=state.queue.policy,
        next_task_number=state.queue.next_number,
        queue_turns=state.queue.turns,
        preempted=list(state.preempted.values()),
        evictions=[copy.copy(record) for record in state.evictions.records.values()],
        next_eviction=state.evictions.next_number,
        drains=list(state.drains),
        windows=list(state.windows.by_name.values()),
        window_nodes=list(state.windows.chosen.values()),
        pool_names=list(state.pool_names.next_of.items()),
        evictions_requeued=dict(state.evictions.requeued),
        last_evictions=list(state.evictions.last_for.items()),
        lost_work=[
            (pool, part, gpu_s)
            for pool, lost in state.evictions.lost_work.items()
            for part, gpu_s in lost.items()
        ],
        lost=list(state.lost.values()),
        former=list(state.former),
        durations=list(state.past.estimates.items()),
        ended=list(state.ended.values()),
        requests=list(state.requests.items()),
        external_demand=list(state.external_demands.waiting),
        rooms_lost=[
            (n, task) for n, tasks in state.external_demands.lost.items() for task in tasks
        ],
    )


def parts(snapshot: Snapshot, size: int = PART) -> Iterator[Snapshot]:
    """The snapshot in parts of at most ``size`` entries, so that none of them takes long to write."""
    fields = msgspec.structs.asdict(snapshot)
    lists: dict[str, Any] = {
        name: entries for name, entries in fields.items() if isinstance(entries, list)
    }
    yield msgspec.structs.replace(snapshot, **{name: [] for name in lists})
    for name, entries in lists.items():
        if name == "queue_columns":
            for columns in snapshot.queue_columns:
                yield from (Snapshot(queue_columns=[piece]) for piece in columns.pieces(size))
            continue
        for first in range(0, len(entries), size):
            yield msgspec.structs.replace(Snapshot(), **{name: entries[first : first + size]})


def restored(stored: Iterable[Snapshot]) -> MeshState:
    """The state that these parts are a snapshot of; without any, an empty one."""
    state, waiting, shared = MeshState(), list[QueuedTask](), list[TaskSubmitted]()
    for part in stored:
        shared += part.queue_shared
        queued = [task for columns in part.queue_columns for task in columns.tasks(shared)]
        if part == Snapshot(queue_columns=part.queue_columns):
            waiting += queued  # put in order together with those of the next parts
            continue
        state.queue.add_all(waiting)
        waiting.clear()
        _put_head(state, part)
        _put_books(state, part)
        _put_lives(state, part, [*part.queue, *queued])
    state.queue.add_all(waiting)
    state.count_members()
    return state


def referenced(snapshot: Snapshot) -> frozenset[str]:
    """The keys of all stored bytes to which a state refers."""
    keys: set[str | None] = set()
    specs = [agent.spec for agent in snapshot.agents]
    tasks = [task.spec for task in snapshot.tasks]
    keys.update(a.submission.state_key for a in snapshot.agents if a.submission is not None)
    for running in snapshot.tasks:
        keys |= {running.state_key, running.attempts.previous_state}
    for shared in snapshot.queue_shared:
        keys.add(shared.state_key)
        specs.append(shared.agent)
    for columns in snapshot.queue_columns:
        keys |= columns.keys()
    for past in snapshot.preempted:
        if past.ran_again:
            continue
        keys |= {past.state_key, past.fact.attempts.previous_state}
        specs += [] if past.fact.agent is None else [past.fact.agent]
        tasks.append(past.fact.task)
    for lost in snapshot.lost:
        specs.append(lost.spec)
        tasks += [task for task, _ in lost.tasks]
        keys.update(state_key for _, state_key in lost.tasks)
        keys.update(attempts.previous_state for attempts in lost.attempts.values())
    for handlers in snapshot.handlers:
        keys |= {handlers.preserver_key, handlers.restorer_key}
    keys.update(key for spec in specs for key in (spec.class_key, spec.arguments_key))
    for payload in (spec.payload for spec in specs):
        for member in payload.members:
            keys |= {member.class_key, member.arguments_key}
        if isinstance(payload, JobPayload):
            keys |= {payload.folder_key, *(module.key for module in payload.modules)}
    for account in snapshot.accounts:
        if account.spec.groups is not None and account.spec.groups.warm is not None:
            keys.add(account.spec.groups.warm.class_key)
    for ended in snapshot.ended:
        keys |= {ended.result_key, ended.state_key}
    for task in tasks:
        keys |= {task.payload_key, task.run_key}
    return frozenset(key for key in keys if key)


def past_states(state: MeshState) -> dict[str, float]:
    """The results and saved states of tasks that neither run nor wait in the queue, oldest first, each with
    when the task ended.
    """
    entries = [
        (past.fact.at, past.state_key)
        for task_id, past in state.preempted.items()
        if not past.ran_again and task_id not in state.queue.by_id
    ]
    entries += [(lost.at, key) for lost in state.lost.values() for _, key in lost.tasks]
    for ended in state.ended.values():
        entries += [(ended.at, ended.result_key), (ended.at, ended.state_key)]
    return {key: at for at, key in sorted((at, key) for at, key in entries if key)}


def _node(node: Node) -> Node:
    allocations = {name: copy.copy(allocation) for name, allocation in node.allocations.items()}
    return msgspec.structs.replace(
        node,
        devices=list(node.devices),
        slots=dict(node.slots),
        allocations=allocations,
        version=0,
        summary=None,
        gpu_tasks=None,
    )


def _put_head(state: MeshState, part: Snapshot) -> None:
    if part.policy is not None:
        state.policy = part.policy
        state.ledger.half_life_s = part.policy.usage_half_life_s
        state.owners.half_life_s = part.policy.usage_half_life_s
        state.preemption = PreemptionRules(part.policy)
        state.running.partition_by(state.preemption.ranks.named(), ClassOrder.of(part.policy))
        state.queue.name_labels()
    state.epoch = state.epoch if part.epoch is None else part.epoch
    if part.actor_names is not None:
        state.actor_names = part.actor_names
    if part.next_group is not None:
        state.groups.next_number = part.next_group
    if part.next_incarnation is not None:
        state.next_incarnation = part.next_incarnation
    if part.queue_policy is not None:
        state.queue.order_by(part.queue_policy)
    if part.next_task_number is not None:
        state.queue.next_number = part.next_task_number
    if part.queue_turns is not None:
        state.queue.turns = part.queue_turns
    for pool_name, reason, n in part.preemptions:
        state.past.preemptions[pool_name, reason] = n
    state.policy_changes += part.policy_changes


def _put_books(state: MeshState, part: Snapshot) -> None:
    for pool_name, so_far in part.group_counts:
        state.groups.counts[pool_name] = so_far
        state.groups.of_pool.setdefault(pool_name, {})
    # All of them first: each would create its parent behind itself, and listings would have another order.
    state.ledger.cohorts.specs.update((cohort.name, cohort) for cohort in part.cohorts)
    for cohort in part.cohorts:
        state.ledger.cohorts.ensure(cohort)
    for owner, borrower, amount in part.loans:
        state.ledger.loans[owner, borrower] = amount
    for account in part.accounts:
        state.ledger.accounts[account.spec.name] = account
        if account.spec.flavors:
            state.ledger.flavored.add(account.spec.name)
        state.ledger.note_over_quota(account.spec.name)
        state.ledger.cohorts.join(account.spec.name, account.spec.cohort)
        state.agents_of[account.spec.name] = set()
        state.groups.define(account.spec.name, account.spec.groups)
        state.owners.define(account.spec, (), 0.0)
        state.budgets.define(account.spec, (), 0.0)
    state.ledger.holds.update(part.holds)
    for node in part.nodes:
        state.cluster.adopt(node)
    state.external_demands.restore(part.external_demand, part.rooms_lost)
    for group in part.groups:
        state.groups.add(group)
    for pool_name, shape, n in part.groups_dropped:
        state.groups.drop(pool_name, shape, n)
    if part.workload or part.workload_sampled or part.workload_renew_at is not None:
        state.cluster.workload.adopt(
            {(cpu, gpu): n for cpu, gpu, n in part.workload},
            {(cpu, gpu): n for cpu, gpu, n in part.workload_sampled},
            part.workload_renew_at,
        )
    for handlers in part.handlers:
        state.handlers[handlers.pool_name] = handlers
    state.loaded.update(dict.fromkeys(part.loaded))


def _put_lives(state: MeshState, part: Snapshot, queued: list[QueuedTask]) -> None:
    state.running.idle.update(part.idle)
    for agent in part.agents:
        state.agents[agent.spec.name] = agent
        if isinstance(agent.phase, Waiting):
            promised = agent.phase.promised
            state.ledger.note_promise(agent.spec.name, agent.spec.pool_name, promised)
        state.agents_of[agent.spec.pool_name].add(agent.spec.name)
        if agent.spec.extra_names:
            state.elastic.add(agent.spec.name)
        if isinstance(agent.phase, Ending):
            state.leaving.add(agent.spec.name)
    state.owners.changed_at.update(part.owners_changed)
    for pool_name, owner, use in part.owners:
        state.owners.uses[pool_name][owner] = use
    state.budgets.restore(part.budgets)
    for stored_array in part.arrays:
        state.arrays.restore(stored_array)
    for task in part.tasks:
        state.running.add(task)
    state.queue.add_all(queued)
    for past in part.preempted:
        state.preempted[past.fact.task.task_id] = past
    state.pool_names.next_of.update(part.pool_names)
    for drain in part.drains:
        state.drain_started(drain)
    for window in part.windows:
        state.windows.add(window)
    for chosen in part.window_nodes:
        state.windows.choose(chosen)
    for record in part.evictions:
        state.evictions.adopt(record)
    if part.next_eviction is not None:
        state.evictions.next_number = part.next_eviction
    state.evictions.requeued.update(part.evictions_requeued)
    state.evictions.last_for.update(part.last_evictions)
    for pool_name, minute, gpu_s in part.lost_work:
        state.evictions.lost_work.setdefault(pool_name, {})[minute] = gpu_s
    for lost in part.lost:
        state.past.note_lost(lost)
    for ended in part.ended:
        state.past.note_ended(ended)
    state.former.update(dict.fromkeys(part.former))
    state.past.estimates.restore(part.durations)
    state.requests.update(part.requests)
    state.answers.restore(part.answers)
    state.tokens.restore(part.tokens)
    state.tokens.required |= part.authentication
    state.audit.restore(part.audit, max(part.next_change, state.audit.next_number))
