"""Queries: the state as plain data, for callers and the command line. They change nothing."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from typing import TypeVar, cast

from schedulemesh.api.agents import AgentListing, MeasuredUsage, PlacementGroupInfo
from schedulemesh.api.cluster import OrphanInfo, SchedulerStats
from schedulemesh.api.nodes import DrainInfo, GpuHolderInfo, NextWindow, NodeInfo
from schedulemesh.api.policies import PolicyChange, PolicyFields
from schedulemesh.api.pools import BudgetInfo, CohortInfo, PoolInfo, ShareInfo, lending_definition
from schedulemesh.api.preemption import PreemptionCounts
from schedulemesh.api.states import SavedStateInfo
from schedulemesh.api.tasks import TaskInfo, TaskListing, TaskStatus, row_of_task
from schedulemesh.api.windows import WindowInfo
from schedulemesh.config.groups import public_groups
from schedulemesh.domain.agent import AgentSpec
from schedulemesh.domain.budgets import offset_text, public_budget, public_owner_budgets
from schedulemesh.domain.flavors import public_flavors
from schedulemesh.domain.links import links_of
from schedulemesh.domain.owner_limits import public_owner_limits
from schedulemesh.domain.payloads import GangPayload
from schedulemesh.domain.priorities import own_class_of
from schedulemesh.domain.reasons import PreemptionReason
from schedulemesh.domain.resources import UNIT, sum_of
from schedulemesh.domain.task import Attempts, TaskPhase, TaskSpec
from schedulemesh.engine.explanation.budgets import budgets_of
from schedulemesh.engine.explanation.shares import shares_of
from schedulemesh.engine.explanation.waiting import WaitCauses
from schedulemesh.engine.lifecycle.drain import agents_of
from schedulemesh.engine.messages.facts import PolicyChanged
from schedulemesh.engine.state.agents import Agent, kind_of
from schedulemesh.engine.state.groups import bundle_of, is_bundle
from schedulemesh.engine.state.lending import lendable
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.nodes import Node
from schedulemesh.engine.state.queued_tasks import QueuedTask
from schedulemesh.engine.state.tasks import RunningTask
from schedulemesh.protocol.answers import QueueRow
from schedulemesh.protocol.credentials import without_token
from schedulemesh.runtime.agents.gangs import processes_of
from schedulemesh.runtime.agents.registry import Agents
from schedulemesh.runtime.agents.usage import public_usage
from schedulemesh.runtime.backend import Handle
from schedulemesh.runtime.groups.manager import Groups
from schedulemesh.runtime.preemption_rows import preemption_row

#: The number of preemptions listed by get_preemption_stats.
RECENT = 100

Item = TypeVar("Item")


def picked(items: Mapping[str, Item], keys: Iterable[object] | None) -> list[Item]:
    """The items with these keys, as far as there are any; None: all."""
    if keys is None:
        return list(items.values())
    return [items[key] for key in keys if isinstance(key, str) and key in items]


def past_of(state: MeshState, task_id: str) -> tuple[TaskSpec, AgentSpec | None] | None:
    """The specification of a preempted or lost task and of its agent; None: it is not on record."""
    past = state.preempted.get(task_id)
    if past is not None and not past.ran_again:
        return past.fact.task, past.fact.agent
    for lost in state.lost.values():
        for spec, _ in lost.tasks:
            if spec.task_id == task_id:
                return spec, lost.spec
    return None


def task_status(state: MeshState, task_id: str, causes: WaitCauses | None = None) -> TaskStatus:
    """What a task does, or how it ended; with ``causes`` also why it waits, if it does."""
    task, ended = state.running.by_id.get(task_id), state.ended.get(task_id)
    status: TaskStatus = {"task_id": task_id, "state": "unknown"}
    if task is not None:
        status |= _attempts(task.attempts)
        return {**status, "state": task.phase.value, "agent_name": task.agent_name}
    array = state.arrays.alive(task_id)
    if array is not None and array.running:
        # Others of its members may wait, as one entry in the queue.
        return {**status, "state": "running", "error": str(array.described())}
    waiting = state.queue.by_id.get(task_id)
    if waiting is not None:
        position = state.queue.position(waiting)
        status |= _attempts(waiting.attempts)
        status |= {"state": "queued", "position": position, "held": waiting.held}
        return status if causes is None else {**status, **_waits(state, waiting, causes)}
    if ended is None:
        return {**status, **_of_array(state, task_id)}
    return {
        "task_id": task_id,
        "state": ended.state.value,
        "agent_name": ended.agent_name,
        **_attempts(ended.attempts),
        "ended_at": ended.at,
        **({"reason": ended.reason} if ended.reason else {}),
        **({"error": str(ended.error)} if str(ended.error) else {}),
    }


def _of_array(state: MeshState, task_id: str) -> TaskStatus:
    """What an array without an entry in the queue does, or a member that is no task; empty: it is neither."""
    array = state.arrays.alive(task_id)
    if array is not None:
        return {"state": "queued", "error": str(array.described())}
    end = state.end_of(task_id)
    if end is not None:
        return {"state": end.value}
    return {"state": "queued"} if state.is_alive(task_id) else {}


def _waits(state: MeshState, waiting: QueuedTask, causes: WaitCauses) -> TaskStatus:
    """Why a task waits, and among how many of its pool."""
    cause = causes.cause_of(waiting)
    return {
        "queue_length": state.queue.size(waiting.pool_name),
        "reason": cause.reason,
        "short": cause.short.public(),
    }


def _attempts(attempts: Attempts) -> TaskStatus:
    """How often a task was evicted and has failed, where it was and has."""
    counts: TaskStatus = {}
    if attempts.preemptions:
        counts["preemptions"] = attempts.preemptions
    if attempts.failures:
        counts["failures"] = attempts.failures
    return counts


def saved_key(state: MeshState, task_id: str) -> str | None:
    """The key of the last saved state of a task that runs, waits to run again, was lost or preempted, or
    could not be started from it; None: none was saved.
    """
    task = state.running.by_id.get(task_id)
    if task is not None and task.state_key is not None:
        return task.state_key
    for lost in state.lost.values():
        for spec, key in lost.tasks:
            if spec.task_id == task_id and key is not None:
                return key
    waiting = state.queue.by_id.get(task_id)
    if waiting is not None and waiting.submission.state_key is not None:
        return waiting.submission.state_key
    past, ended = state.preempted.get(task_id), state.ended.get(task_id)
    if past is not None and not past.ran_again and past.state_key is not None:
        return past.state_key
    if ended is not None and ended.state_key is not None:
        return ended.state_key
    attempts = task.attempts if task is not None else None if waiting is None else waiting.attempts
    return None if attempts is None else attempts.previous_state


class StateView:
    """What the state alone shows, in rows."""

    def __init__(self, state: MeshState, agents: Agents, groups: Groups, now: float) -> None:
        self._state = state
        self._agents = agents
        self._groups = groups
        self._now = now

    def agents(
        self, pool_name: str | None = None, names: Iterable[object] | None = None
    ) -> list[Agent]:
        """Each agent of the pool (None: of all) with one of these names (None: with any)."""
        agents = picked(self._state.agents, names)
        return [agent for agent in agents if pool_name in (None, agent.spec.pool_name)]

    def handles(self, agent: Agent) -> list[Handle | None]:
        """The Ray handle of an agent; of a gang those of all members."""
        return [
            self._agents.handle(process.spec.name, process.incarnation)
            for process in processes_of(self._state, agent)
        ]

    def pools(self) -> list[PoolInfo]:
        """Each pool with its quota: total, free, reserved, used, lent, borrowed; and with whom it shares."""
        ledger = self._state.ledger
        return [
            {
                "name": name,
                "labels": account.spec.labels,
                "resources": account.spec.resources.public(),
                "target_agents": account.spec.target_agents,
                "placement_strategy": account.spec.placement_strategy,
                "pg_pool_config": public_groups(account.spec.groups),
                "on_preempted": account.spec.on_preempted,
                "queueing": account.spec.queueing,
                "max_run_s": account.spec.max_run_s,
                "default_max_run_s": account.spec.default_max_run_s,
                "idle_s": account.spec.idle_s,
                "min_priority": account.spec.min_priority,
                "max_priority": account.spec.max_priority,
                "owner_limits": public_owner_limits(account.spec.owner_limits),
                "owner_order": account.spec.owner_order,
                "budget": public_budget(account.spec.budget),
                "owner_budgets": public_owner_budgets(account.spec.owner_budgets),
                "flavors": public_flavors(account.spec.flavors),
                "queued": self._state.queue.size(name),
                **lending_definition(account.spec),
                "lent_to": {
                    other: amount.public() for other, amount in ledger.lent_by(name).items()
                },
                "borrowed_from": {
                    owner: amount.public() for owner, amount in ledger.borrowed_by(name).items()
                },
                "free": account.free.public(),
                "reserved": account.reserved.public(),
                "used": account.used.public(),
                "lent": account.lent.public(),
                "borrowed": account.borrowed.public(),
                "agents": sorted(self._state.agents_of[name]),
                "state": self._state_of(name),
            }
            for name, account in ledger.accounts.items()
        ]

    def shares(self) -> list[ShareInfo]:
        """Each pool, and behind it its owners, with what they use and by which shares they are compared."""
        return [
            {
                "pool_name": row.pool_name,
                "owner": row.owner,
                "resources": row.resources.public(),
                "running": row.running,
                "queued": row.queued,
                "usage": row.usage,
                "share": row.share,
                "weight": row.weight,
                "limit": None if row.limit is None else row.limit.public(),
            }
            for row in shares_of(self._state, self._now)
        ]

    def budgets(self) -> list[BudgetInfo]:
        """Each budget of a pool or an owner, with what was used of it in the present period."""
        return [
            {
                "pool_name": row.pool_name,
                "owner": row.owner,
                "gpu_hours": row.budget.gpu_hours or 0.0,
                "period": row.budget.period,
                "then": row.budget.then,
                "utc_offset": offset_text(row.budget.utc_offset or 0),
                "state": row.state,
                "used": row.used,
                "part": row.part,
                "since": row.since,
                "until": row.until,
                "forecast": row.forecast,
                "spent_at": row.spent_at,
            }
            for row in budgets_of(self._state, self._now)
        ]

    def _state_of(self, pool_name: str) -> str:
        """One of ``POOL_STATES``."""
        drains = self._state.drains
        if pool_name in drains.ending:
            return "ending"
        return "draining" if pool_name in drains.pools else "open"

    def cohorts(self) -> list[CohortInfo]:
        """Each cohort with its pools, their quota together, and what of it is idle and may be lent."""
        ledger = self._state.ledger
        rows: list[CohortInfo] = []
        for name, spec in ledger.cohorts.specs.items():
            below = [ledger.accounts[pool] for pool in ledger.cohorts.pools_below(name)]
            row: CohortInfo = {
                "name": name,
                "parent": spec.parent,
                "weight": spec.weight,
                "pools": sorted(a.spec.name for a in below if a.spec.cohort == name),
                "cohorts": sorted(
                    c.name for c in ledger.cohorts.specs.values() if c.parent == name
                ),
                "resources": sum_of(account.spec.resources for account in below).public(),
                "idle": sum_of(lendable(ledger, a.spec.name) for a in below).public(),
            }
            rows.append(row)
        return rows

    def _own_class(self, spec: TaskSpec) -> str:
        """The class of the policy that the priority of a task has; empty: none has it."""
        return own_class_of(spec.priority, self._state.policy.priority_classes)

    def running_task(self, task: RunningTask) -> TaskListing:
        """A task that holds resources or is registered."""
        agent = self._state.agents.get(task.agent_name)
        row = row_of_task(TaskListing, task.spec, self._own_class(task.spec))
        row |= {
            "agent_name": task.agent_name,
            "kind": kind_of(self._state.agents, task.agent_name),
            "phase": task.phase.value,
            "resources": task.resources.public(),
            "label_selector": {} if agent is None else agent.spec.label_selector,
            "alternative": 0 if agent is None else agent.spec.taken,
            "flavor": "" if agent is None else agent.spec.taken_flavor,
            "node_id": None if agent is None else agent.node_id,
            "started_at": task.started_at,
            "remaining_time": task.remaining(self._now),
            "limit_at": limit_at(task),
            "last_metrics": self._metrics_of(task.agent_name),
        }
        links = links_of(self._state.policy.links, task.spec, task.agent_name, row["node_id"])
        return row | {"links": links} if links else row

    def node(self, node_id: str) -> NodeInfo | None:
        """An alive node with its free resources according to the scheduler's node state; None: it is lost."""
        node = self._state.cluster.nodes.get(node_id)
        if node is None:
            return None
        window, levels = self._window_of(node.node_id), self._state.policy.topology_levels
        return {
            "node_id": node.node_id,
            "labels": node.labels,
            "topology": {level: node.labels[level] for level in levels if level in node.labels},
            "total": node.total.public(),
            "free": node.free.public(),
            "external_usage": node.external_usage.public(),
            "cordoned": node.cordoned,
            "draining": node.node_id in self._state.drains.nodes,
            "window": window["window"],
            "window_start": window["window_start"],
            "window_end": window["window_end"],
            "window_reserves": window["window_reserves"],
            "in_window": window["in_window"],
            "agents": sorted(node.allocations),
            "gpu_holders": self._gpu_holders(node),
        }

    def _window_of(self, node_id: str) -> NextWindow:
        """The window of a node that is open, or else the next one."""
        of_node = self._state.windows.of_node(node_id, self._now)
        if not of_node:
            return {
                "window": None,
                "window_start": None,
                "window_end": None,
                "window_reserves": False,
                "in_window": False,
            }
        occurrence, window = of_node[0]
        drain = self._state.drains.nodes.get(node_id)
        return {
            "window": window.name,
            "window_start": occurrence.start,
            "window_end": occurrence.end,
            "window_reserves": window.is_reservation,
            "in_window": drain is not None and bool(drain.window),
        }

    def windows(self) -> list[WindowInfo]:
        """The windows that are open or to come, the first first."""
        windows = self._state.windows
        rows: list[WindowInfo] = []
        for window in windows.by_name.values():
            occurrence = window.occurrence(self._now)
            if occurrence is None:
                continue
            rows.append(
                {
                    "name": window.name,
                    "start": window.time_text(window.start),
                    "duration_s": window.duration_s,
                    "repeat": window.repeat or None,
                    "nodes": list(window.node_ids),
                    "node_labels": dict(window.node_labels),
                    "resources": window.resources.public(),
                    "short": windows.short_of(window).public(),
                    "notice_s": window.notice_s,
                    "comment": window.comment,
                    "pools": list(window.pools),
                    "owners": list(window.owners),
                    "labels": window.labels,
                    "open": occurrence.start <= self._now,
                    "next_start": occurrence.start,
                    "next_end": occurrence.end,
                    "node_ids": sorted(windows.node_ids(window)),
                }
            )
        return sorted(rows, key=lambda row: (row["next_start"], row["name"]))

    def _gpu_holders(self, node: Node) -> list[GpuHolderInfo]:
        """What agents have reported of the GPUs of a node, by the number of the GPU."""
        names = {index: name for name, index in node.slots.items()}
        holders: list[GpuHolderInfo] = [
            {
                "agent_name": self._holder(key),
                "gpu_id": names.get(index, ""),
                "index": index,
                "amount": units / UNIT,
            }
            for key, allocation in node.allocations.items()
            if allocation.reported
            for index, units in allocation.devices.units
        ]
        return sorted(holders, key=lambda holder: (holder["index"], holder["agent_name"]))

    def _holder(self, key: str) -> str:
        """The agent whose allocation has this key; empty: its placement group has no agent."""
        if not is_bundle(key):
            return key
        group = self._state.groups.by_id.get(bundle_of(key)[0])
        return "" if group is None else group.agent or ""

    def drains(self) -> list[DrainInfo]:
        """The drains in progress, with the agents and tasks that each still waits for."""
        running = self._state.running
        rows: list[DrainInfo] = []
        for drain in self._state.drains:
            agents = agents_of(self._state, drain)
            rows.append(
                {
                    "node_id": drain.node_id,
                    "pool_name": drain.pool_name,
                    "started_at": drain.at,
                    "deadline": drain.deadline,
                    "requested_by": drain.client or None,
                    "by_ray": not drain.client,
                    "agents": agents,
                    "tasks": [t for name in agents for t in running.on_agent(name)],
                    "done": not agents,
                }
            )
        return rows

    def orphans(self) -> list[OrphanInfo]:
        """The actors and placement groups of this scheduler that its journal does not know."""
        actors: list[OrphanInfo] = [
            {"name": name, "namespace": namespace, "kind": "actor"}
            for namespace, name in sorted(self._agents.orphans)
        ]
        groups = [self._groups.name(group_id) for group_id in sorted(self._groups.orphans)]
        kind = "placement group"
        return actors + [{"name": name, "namespace": None, "kind": kind} for name in groups]

    def saved_states(
        self, task_ids: Collection[object] | None = None
    ) -> list[tuple[TaskSpec, str, bool]]:
        """Every task with a stored state, and every lost task, with one of these ids (None: with any); what
        became of it, and whether its state is stored.
        """
        state = self._state
        lost = (task for agent in state.lost.values() for task in agent.tasks)
        saved: list[tuple[TaskSpec, str, bool]] = [
            (spec, "lost", key is not None)
            for spec, key in lost
            if task_ids is None or spec.task_id in task_ids
        ]
        preempted = picked(state.preempted, task_ids)
        saved += [
            (past.fact.task, "preempted", True)
            for past in preempted
            if past.state_key and not past.ran_again
        ]
        unused = (ended for ended in picked(state.ended, task_ids) if ended.state_key)
        saved += [(ended.spec, ended.state.value, True) for ended in unused]
        running = (task for task in picked(state.running.by_id, task_ids) if task.state_key)
        saved += [(task.spec, "running", True) for task in running]
        # The last entry of a task counts.
        return list({entry[0].task_id: entry for entry in saved}.values())

    def policy(self) -> dict[str, object]:
        """The current policy."""
        return self._state.policy.public()

    def policy_changes(self) -> list[PolicyChange]:
        """The most recent changes of the policy, oldest first: when, by which client, what."""
        return [
            {
                "timestamp": change.at,
                "client": change.client,
                "changes": _policy_fields(change),
                "preemption_aggressiveness": change.level,
            }
            for change in self._state.policy_changes
        ]

    def preemption_stats(self) -> PreemptionCounts:
        """The counts of preemptions by reason, and the most recent ones, newest last."""
        counts, evictions = self._state.past.preemption_counts, self._state.evictions
        finished = [r for r in evictions.records.values() if r.evicted_at is not None]
        return {
            "total_preemptions": sum(counts.values()),
            "same_pool_preemptions": counts.get(PreemptionReason.SAME_POOL, 0),
            "cross_pool_preemptions": counts.get(PreemptionReason.CROSS_POOL, 0),
            "label_preemptions": counts.get(PreemptionReason.LABEL, 0),
            "reclaims": counts.get(PreemptionReason.RECLAIM, 0),
            "running_tasks": len(self._state.running),
            "requeued_preemptions": sum(evictions.requeued.values()),
            "preemptions_by_reason": {reason.value: n for reason, n in counts.items()},
            "requeues_by_reason": {reason.value: n for reason, n in evictions.requeued.items()},
            "recent_preemptions": [preemption_row(record) for record in finished[-RECENT:]],
        }

    def stats(self) -> SchedulerStats:
        """Preemption statistics, the pools, and the numbers of agents and nodes."""
        return {
            **self.preemption_stats(),
            "pools": {pool["name"]: pool for pool in self.pools()},
            "agents": len(self._state.agents),
            "nodes": len(self._state.cluster.nodes),
        }

    def agent(self, agent: Agent) -> AgentListing:
        """An agent, with its tasks and what it uses."""
        running = self._state.running
        task_ids = list(running.on_agent(agent.spec.name))
        return {
            "name": agent.spec.name,
            "kind": agent.spec.kind,
            "pool": agent.spec.pool_name,
            "resources": agent.spec.resources.public(),
            "labels": agent.spec.labels,
            "ray_options": json.loads(without_token(agent.spec.options)),
            "state": agent.phase.value,
            "node_id": agent.node_id,
            "placement_group": self._group(agent.group_id),
            "pid": 0 if agent.process is None else agent.process.pid,
            "restarts": agent.restarts,
            "tasks": task_ids,
            "task_details": [
                row_of_task(TaskInfo, spec, self._own_class(spec))
                for spec in (running.by_id[task_id].spec for task_id in task_ids)
            ],
            "last_metrics": self._metrics_of(agent.spec.name),
            "usage": self._usage_of(_first_process(agent)),
            "idle_since": running.idle.get(agent.spec.name),
            **self._members_of(agent),
        }

    def _metrics_of(self, agent_name: str) -> dict[str, object]:
        """The last metrics of an agent, of a gang those of its first member."""
        agent = self._state.agents.get(agent_name)
        name = agent_name if agent is None else _first_process(agent)
        return self._agents.metrics.newest_of(name)

    def _usage_of(self, process_name: str) -> MeasuredUsage | None:
        """What a process really uses; None: it is not known."""
        return public_usage(self._agents.usage.newest_of(process_name, self._now))

    def _members_of(self, agent: Agent) -> AgentListing:
        """The members of a gang in the order of ranks, or the gang whose extra member this is."""
        running = self._state.running
        for task_id in running.on_agent(agent.spec.name):
            if gang_name := running.by_id[task_id].spec.extra_of:
                return {"extra_of": gang_name}
        if not isinstance(agent.spec.payload, GangPayload):
            return {}
        members = [
            {
                "name": process.spec.name,
                "rank": rank,
                "resources": process.spec.resources.public(),
                "node_id": process.node_id,
                "pid": 0 if process.process is None else process.process.pid,
                "last_metrics": self._agents.metrics.newest_of(process.spec.name),
                "usage": self._usage_of(process.spec.name),
            }
            for rank, process in enumerate(processes_of(self._state, agent))
        ]
        return {"members": members}

    def _group(self, group_id: str | None) -> PlacementGroupInfo | None:
        group = self._state.groups.by_id.get(group_id or "")
        if group is None:
            return None
        return {
            "id": group.group_id,
            "name": self._groups.name(group.group_id),
            "node_ids": list(group.node_ids),
        }


def _policy_fields(change: PolicyChanged) -> PolicyFields:
    """The fields that a change of the policy has set, with their new values."""
    policy = change.policy.public()
    return cast("PolicyFields", {name: policy[name] for name in change.changes})


def _first_process(agent: Agent) -> str:
    """The process that reports for an agent; a lease, which has none, reports nothing under its own name."""
    return next(iter(agent.spec.process_names), agent.spec.name)


def limit_at(task: RunningTask) -> float | None:
    """When a task that runs has run for as long as it may; None: it has no limit, or does not run."""
    return None if task.phase is TaskPhase.STARTING else task.limit_at


def saved_state(entry: tuple[TaskSpec, str, bool]) -> SavedStateInfo:
    """One of ``StateView.saved_states``."""
    spec, status, is_saved = entry
    row = row_of_task(SavedStateInfo, spec)
    row |= {"status": status, "state_saved": is_saved}
    return row


def queued_task(row: QueueRow, link_templates: Mapping[str, str]) -> TaskListing:
    """A task that waits in the queue, among those that run. ``link_templates``: those of the policy."""
    listing = row_of_task(TaskListing, row.task, row.own_class)
    listing |= {
        "agent_name": row.agent_name,
        "kind": row.kind,
        "phase": "queued",
        "node_id": None,
        "started_at": None,
        "remaining_time": row.task.estimated_duration or 0.0,
        "limit_at": None,
        "last_metrics": {},
        "position": row.position,
        "held": row.held,
        "waiting_time": row.waiting_s,
        "resources": row.resources.public(),
        "label_selector": dict(row.node_labels),
        "alternative": 0,
        "flavor": "",
        "reason": row.reason,
        "short": row.short.public(),
    }
    links = links_of(link_templates, row.task, row.agent_name)
    return listing | {"links": links} if links else listing
