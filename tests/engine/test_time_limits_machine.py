"""Random lives of a queue whose tasks and pools have limits in time: a limit ends a task when it is due, not
before, and what was recorded, restored or found out again says the same.
"""

from __future__ import annotations

import os

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from schedulemesh.domain.reasons import PreemptionReason, Reason
from schedulemesh.domain.task import TaskPhase
from schedulemesh.engine.messages import facts as f
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.limit_facts import IdleLimitNear, TimeLimitChanged, TimeLimitNear
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.engine.state.agents import Running
from tests.engine.test_queue_machine import QueueMachine, QueueMesh, pick, picks, queued

#: No task asks for more than the shortest limit of a pool, so that none is refused for it.
of_pools = st.fixed_dictionaries(
    {
        "default_max_run_s": st.sampled_from([None, None, 15.0, 30.0]),
        "max_run_s": st.sampled_from([None, None, 30.0, 60.0]),
        "idle_s": st.sampled_from([None, None, 10.0]),
    }
)
of_tasks = st.fixed_dictionaries(
    {
        "max_run_s": st.sampled_from([None, 1.0, 10.0, 30.0]),
        "on_time_limit": st.sampled_from(["", "end", "requeue"]),
        "idle_s": st.sampled_from([None, None, 5.0]),
    }
)


class LimitedMesh(QueueMesh):
    """A mesh that knows by the facts alone since when each task runs, and for how long it may."""

    ENDS = (*QueueMesh.ENDS, s.RunEnded)

    def __init__(self, *pools, **policy):
        #: By task: the limit of its attempt, since when it runs (None: it does not yet), whether it was
        #: warned, and when it is ended because its GPUs are idle.
        self.limits: dict[str, float | None] = {}
        self.began: dict[str, float] = {}
        self.warned: set[str] = set()
        self.idle_until: dict[str, float] = {}
        super().__init__(*pools, **policy)

    def handle(self, stimulus):
        running = {t for t, x in self.state.running.by_id.items() if x.phase is TaskPhase.RUNNING}
        step = super().handle(stimulus)
        for fact in step.facts:
            self.follow(fact, stimulus, running)
        if isinstance(stimulus, s.ClockTicked):
            self.nothing_is_overdue()
        return step

    def follow(self, fact, stimulus, running):
        if isinstance(fact, f.AgentAdmitted) and fact.task is not None:
            self.begin(fact.task, self.state.ledger.accounts[fact.agent.pool_name].spec)
            assert fact.max_run_s == self.limits[fact.task.task_id]
        elif isinstance(fact, f.TaskRegistered):
            agent = self.state.agents.get(fact.agent_name)
            pool_name = fact.task.pool_name if agent is None else agent.spec.pool_name
            account = self.state.ledger.accounts.get(pool_name)
            self.begin(fact.task, None if account is None else account.spec)
            if agent is None or isinstance(agent.phase, Running):
                self.began[fact.task.task_id] = fact.at
        elif isinstance(fact, f.AgentStarted):
            for task_id in self.state.running.on_agent(fact.agent_name):
                self.began.setdefault(task_id, fact.at)
        elif isinstance(fact, TimeLimitChanged):
            self.limits[fact.task_id] = fact.of_attempt_s
            self.warned.discard(fact.task_id)
        elif isinstance(fact, TimeLimitNear):
            self.is_warned_in_time(fact)
        elif isinstance(fact, IdleLimitNear):
            self.idle_until[fact.task_id] = fact.limit_at
        elif isinstance(fact, f.EvictionStarted):
            self.is_due(fact, stimulus, running)

    def begin(self, task, pool):
        bounds = [task.max_run_s, None]
        if pool is not None:
            own = pool.default_max_run_s if task.max_run_s is None else task.max_run_s
            bounds = [own, pool.max_run_s]
        bounds = [bound for bound in bounds if bound is not None]
        self.limits[task.task_id] = min(bounds) if bounds else None
        self.began.pop(task.task_id, None)
        self.warned.discard(task.task_id)
        self.idle_until.pop(task.task_id, None)

    def is_warned_in_time(self, fact):
        """Once, before the limit, and at most a tenth of it before."""
        limit = self.limits[fact.task_id]
        assert fact.task_id not in self.warned
        self.warned.add(fact.task_id)
        assert fact.limit_at == self.began[fact.task_id] + limit
        assert fact.limit_at - 0.1 * limit - 1e-6 <= fact.at < fact.limit_at

    def is_due(self, fact, stimulus, running):
        """A limit ends only what has reached it, and idle GPUs only what is still measured as idle."""
        if fact.reason is PreemptionReason.TIME_LIMIT:
            assert fact.task_id in running
            assert self.now >= self.began[fact.task_id] + self.limits[fact.task_id] - 1e-6
        elif fact.reason is PreemptionReason.IDLE_LIMIT:
            assert self.now >= self.idle_until[fact.task_id]
            agent_name = self.state.running.by_id[fact.task_id].agent_name
            assert agent_name in dict(stimulus.unused)

    def nothing_is_overdue(self):
        for task_id, task in self.state.running.by_id.items():
            limit = self.limits[task_id]
            if task.phase is TaskPhase.RUNNING and limit is not None:
                assert self.now < self.began[task_id] + limit, f"{task_id} runs on"

    def returns(self, task):
        if task.reached_limit:
            if task.evicted_by is PreemptionReason.IDLE_LIMIT:
                return False
            agent, _ = self.admitted.get(task.spec.task_id, (None, False))
            mine = agent is not None and agent.name == task.agent_name and bool(agent.class_key)
            return mine and task.spec.on_time_limit == "requeue"
        return super().returns(task)


class LimitsMachine(QueueMachine):
    """A queue whose tasks and pools have limits in time."""

    mesh_kind = LimitedMesh

    def __init__(self):
        self.of_pool = {}
        super().__init__()

    def spec(self, name, cpu, agents=0):
        return msgspec.structs.replace(
            super().spec(name, cpu, agents), **self.of_pool.get(name, {})
        )

    @rule(given=queued, limits=of_tasks)
    def queue_limited(self, given, limits):
        self.join(**given, limits=limits)

    @rule(name=st.sampled_from(["p", "q", "r"]), limits=of_pools)
    def limit_pool(self, name, limits):
        account = self.state.ledger.accounts.get(name)
        if account is not None:
            self.of_pool[name] = limits
            self.mesh.resize(msgspec.structs.replace(account.spec, **limits))

    @precondition(lambda self: self.state.running.by_id)
    @rule(which=picks, max_run_s=st.sampled_from([None, 2.0, 20.0]), may_lengthen=st.booleans())
    def limit_task(self, which, max_run_s, may_lengthen):
        task_id = pick(self.state.running.by_id, which)
        before = self.state.running.by_id[task_id].max_run_s
        outcome = self.mesh.handle(
            s.TimeLimitRequested(task_id=task_id, max_run_s=max_run_s, may_lengthen=may_lengthen)
        ).outcome
        if isinstance(outcome, Refused):
            return
        task = self.state.running.by_id[task_id]
        shorter = before is None or (task.max_run_s is not None and task.max_run_s <= before)
        assert shorter or may_lengthen

    @precondition(lambda self: self.state.queue.by_id)
    @rule(which=picks, max_run_s=st.sampled_from([None, 2.0, 20.0]))
    def limit_waiting(self, which, max_run_s):
        task_id = pick(self.state.queue.by_id, which)
        self.mesh.handle(s.TimeLimitRequested(task_id=task_id, max_run_s=max_run_s))

    @rule(seconds=st.sampled_from([1.0, 5.0, 15.0]))
    def wait(self, seconds):
        self.mesh.tick(seconds)

    @precondition(lambda self: self.state.agents)
    @rule(which=picks, idle_s=st.sampled_from([1.0, 10.0, 100.0]), others=st.booleans())
    def measure(self, which, idle_s, others):
        """One agent is idle, and those that were warned are, or no longer."""
        names = {pick(self.state.agents, which)}
        if others:
            tasks = map(self.state.running.by_id.__getitem__, self.state.running.idle_warned)
            names |= {task.agent_name for task in tasks}
        since = self.mesh.now - idle_s
        self.mesh.handle(s.AgentsMeasured(unused=tuple((name, since) for name in sorted(names))))

    def is_held_back(self, stimulus, pool_name, seats):
        """As the engine says where something waits: the oracle of reserved starts counts no limits."""
        outcome = self.mesh.handle(msgspec.structs.replace(stimulus, dry_run=True)).outcome
        refused = isinstance(outcome, Refused) and outcome.reason is Reason.HELD_FOR_QUEUE
        return bool(self.state.queue.by_id) and refused

    def delays(self, task):
        """What its oracle says of reserved starts counts no limits."""
        return True

    def value(self, task):
        """As everywhere; one that has reached its limit is as old as its present wait."""
        if self.order.order == "priority" and task.attempts.time_limits:
            return self.order.ageing_per_hour / 3600 * task.queued_at - task.spec.priority
        return super().value(task)


TestTimeLimits = LimitsMachine.TestCase
TestTimeLimits.settings = settings(
    max_examples=int(os.environ.get("HYPOTHESIS_EXAMPLES", "60")),
    stateful_step_count=50,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
