"""A pool gets another name: everything in the state that refers to it refers to the new one.

What has ended keeps the name that it had: tasks that are only remembered, answers, and records of changes. So
do the ids of placement groups, which Ray knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

import msgspec

from schedulemesh.config.policy import PreemptionPolicy
from schedulemesh.domain.agent import AgentSpec
from schedulemesh.domain.task import TaskSpec
from schedulemesh.engine.messages.facts import Share, StateHandlersRegistered
from schedulemesh.engine.messages.stimuli import TaskSubmitted
from schedulemesh.engine.state.agents import (
    Agent,
    AgentPhase,
    Ending,
    LostAgent,
    Preempted,
    Starting,
    Submission,
    Waiting,
)
from schedulemesh.engine.state.arrays import Arrays
from schedulemesh.engine.state.drains import Drains
from schedulemesh.engine.state.estimates import Estimates
from schedulemesh.engine.state.evictions import EvictionRecord, Evictions
from schedulemesh.engine.state.groups import GroupTable
from schedulemesh.engine.state.past import Past
from schedulemesh.engine.state.queue import Queue, Turns
from schedulemesh.engine.state.quota import Ledger
from schedulemesh.engine.state.tasks import RunningTasks
from schedulemesh.engine.state.tokens import Tokens
from schedulemesh.engine.state.windows import Windows

ValueT = TypeVar("ValueT")
replace = msgspec.structs.replace


class PoolRename:
    """Replaces the name of a pool in values and in a state."""

    def __init__(self, name: str, new_name: str) -> None:
        self._name, self._new_name = name, new_name

    def new_name_of(self, name: str) -> str:
        """The name, or the new one in its place."""
        return self._new_name if name == self._name else name

    def new_names_of(self, names: Iterable[str]) -> tuple[str, ...]:
        """The names with the new one in its place."""
        return tuple(map(self.new_name_of, names))

    def keys(self, by_pool: Mapping[str, ValueT]) -> dict[str, ValueT]:
        """The same by the new name; what was kept by it from before is replaced."""
        renamed = {
            self.new_name_of(name): value
            for name, value in by_pool.items()
            if name != self._new_name
        }
        return renamed if self._name in by_pool else dict(by_pool)

    def shares(self, shares: Iterable[Share]) -> tuple[Share, ...]:
        """Shares of a claim."""
        return tuple(
            replace(share, pool_name=self.new_name_of(share.pool_name)) for share in shares
        )

    def agent_spec(self, spec: AgentSpec) -> AgentSpec:
        """What an agent was submitted as; it has its pool's name as a label."""
        if spec.pool_name != self._name:
            return spec
        labels = spec.labels
        if labels.get("pool") == self._name:
            labels = {**labels, "pool": self._new_name}
        return replace(spec, pool_name=self._new_name, labels=labels)

    def task(self, spec: TaskSpec) -> TaskSpec:
        """A task, and the pools in which it may evict."""
        evict_pools = None if spec.evict_pools is None else self.new_names_of(spec.evict_pools)
        if (self.new_name_of(spec.pool_name), evict_pools) == (spec.pool_name, spec.evict_pools):
            return spec
        return replace(spec, pool_name=self.new_name_of(spec.pool_name), evict_pools=evict_pools)

    def submitted(self, submission: TaskSubmitted) -> TaskSubmitted:
        """What waits in the queue."""
        task = None if submission.task is None else self.task(submission.task)
        return replace(submission, agent=self.agent_spec(submission.agent), task=task)

    def in_ledger(self, ledger: Ledger) -> None:
        """Accounts, loans, holds and cohorts."""
        account = ledger.accounts[self._name]
        account.spec = replace(account.spec, name=self._new_name)
        ledger.rename(
            self.keys(ledger.accounts),
            {
                (self.new_name_of(o), self.new_name_of(b)): amount
                for (o, b), amount in ledger.loans.items()
            },
            {
                key: replace(
                    hold,
                    for_pool=None if hold.for_pool is None else self.new_name_of(hold.for_pool),
                    shares=self.shares(hold.shares),
                )
                for key, hold in ledger.holds.items()
            },
            {
                agent: (self.new_name_of(pool), self.shares(shares))
                for agent, (pool, shares) in ledger.promises.items()
            },
        )
        ledger.over_quota = self.keys(ledger.over_quota)
        ledger.closed = set(self.new_names_of(ledger.closed))
        ledger.freed = set(self.new_names_of(ledger.freed))
        ledger.cohorts.rename_pool(self._name, self._new_name)

    def in_agents(self, agents: Mapping[str, Agent]) -> None:
        """Agents and their claims."""
        for agent in agents.values():
            agent.spec = self.agent_spec(agent.spec)
            agent.shares = self.shares(agent.shares)
            agent.former_lenders = tuple(sorted(self.new_names_of(agent.former_lenders)))
            agent.phase = self._phase(agent.phase)

    def _phase(self, phase: AgentPhase) -> AgentPhase:
        if isinstance(phase, Ending):
            previous = self._phase(phase.previous)
            hold_for = None if phase.hold_for is None else self.new_name_of(phase.hold_for)
            return replace(phase, previous=previous, hold_for=hold_for)
        if isinstance(phase, Waiting):
            submission = self._submission(phase.submission)
            return replace(phase, submission=submission, promised=self.shares(phase.promised))
        if isinstance(phase, Starting):
            return replace(phase, submission=self._submission(phase.submission))
        return phase

    def _submission(self, submission: Submission) -> Submission:
        evicting = (replace(each, task=self.task(each.task)) for each in submission.evicting)
        return replace(submission, evicting=tuple(evicting))

    def in_tasks(self, running: RunningTasks, agents: Mapping[str, Agent]) -> None:
        """Tasks that run or start."""
        for task in running.by_id.values():
            task.spec = self.task(task.spec)
            agent = agents.get(task.agent_name)
            # Those of a task that does not run yet are noted when it starts.
            task.payers = () if agent is None or not task.payers else agent.payers
        running.partition_anew()

    def in_queue(self, queue: Queue) -> None:
        """Tasks that wait, what their owners hold, and budgets."""
        waiting = list(queue.by_id.values())
        for task in waiting:
            queue.remove(task.task_id)
        # The places of the tasks depend on what their owners hold.
        queue.owners.rename(self._name, self._new_name)
        queue.budgets.rename(self._name, self._new_name)
        for task in waiting:
            task.submission = self.submitted(task.submission)
            queue.add(task)
        queue.no_group.clear()
        queue.turns = Turns(
            evictions=self.new_name_of(queue.turns.evictions),
            starts=self.new_name_of(queue.turns.starts),
        )

    def in_arrays(self, arrays: Arrays) -> None:
        """Arrays, whose members have the names of their pools themselves."""
        for one in arrays.by_id.values():
            one.spec = self.task(one.spec)

    def in_groups(self, groups: GroupTable) -> None:
        """Placement groups."""
        groups.rename(self._name, self._new_name)

    def in_windows(self, windows: Windows) -> None:
        """The windows that reserve nodes for the pool."""
        for window in windows.by_name.values():
            if self._name in window.pools:
                windows.add(replace(window, pools=self.new_names_of(window.pools)))

    def in_drains(self, drains: Drains) -> None:
        """The drain of the pool."""
        drain = drains.pools.get(self._name)
        if drain is not None:
            drains.forget_pool(self._name)
            drains.start(replace(drain, pool_name=self._new_name))

    def in_tokens(self, tokens: Tokens) -> None:
        """The pools that tokens name."""
        renamed = [
            replace(
                token,
                pools=self.new_names_of(token.pools),
                evict_pools=None
                if token.evict_pools is None
                else self.new_names_of(token.evict_pools),
            )
            for token in tokens.values()
        ]
        tokens.replace(renamed)

    def in_policy(self, policy: PreemptionPolicy) -> PreemptionPolicy:
        """The pools that the policy names."""
        return replace(policy, protected_pools=self.new_names_of(policy.protected_pools))

    def in_handlers(
        self, handlers: Mapping[str, StateHandlersRegistered]
    ) -> dict[str, StateHandlersRegistered]:
        """The functions that save and restore states."""
        renamed = self.keys(handlers)
        return {name: replace(fact, pool_name=name) for name, fact in renamed.items()}

    def in_past(self, past: Past) -> None:
        """What can be started again, and what is learned."""
        past.preempted.update({task: self._preempted(one) for task, one in past.preempted.items()})
        past.lost.update({agent: self._lost(one) for agent, one in past.lost.items()})
        counts = {(self.new_name_of(pool), reason): 0 for pool, reason in past.preemptions}
        for (pool, reason), count in past.preemptions.items():
            counts[self.new_name_of(pool), reason] += count
        past.preemptions = counts
        past.estimates = self._estimates(past.estimates)

    def in_evictions(self, evictions: Evictions) -> None:
        """What is remembered of evictions, and limits further ones."""
        evictions.last_for = self.keys(evictions.last_for)
        evictions.lost_work = self.keys(evictions.lost_work)
        for record in evictions.records.values():
            self._record(record)

    def _preempted(self, past: Preempted) -> Preempted:
        fact = past.fact
        agent = None if fact.agent is None else self.agent_spec(fact.agent)
        return replace(past, fact=replace(fact, task=self.task(fact.task), agent=agent))

    def _lost(self, lost: LostAgent) -> LostAgent:
        tasks = tuple((self.task(task), key) for task, key in lost.tasks)
        return replace(lost, spec=self.agent_spec(lost.spec), tasks=tasks)

    def _estimates(self, estimates: Estimates) -> Estimates:
        renamed = Estimates()
        items = [(key, runs) for key, runs in estimates.items() if key.pool_name != self._new_name]
        renamed.restore(
            (replace(key, pool_name=self.new_name_of(key.pool_name)), runs) for key, runs in items
        )
        return renamed

    def _record(self, record: EvictionRecord) -> None:
        record.task = self.task(record.task)
        evictor = record.evictor
        if evictor is not None:
            task = None if evictor.task is None else self.task(evictor.task)
            record.evictor = replace(
                evictor, pool_name=self.new_name_of(evictor.pool_name), task=task
            )
