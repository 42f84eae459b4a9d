"""The recorder: counts and measures what becomes durable. It observes the reactor's steps.

A step is published after its facts are durable, when the state may already contain later ones. So the
recorder keeps what it needs of each agent and task by itself, from facts alone, and begins with the state
that was recovered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from schedulemesh.domain.end_reasons import EndReason
from schedulemesh.domain.reasons import LIMITS
from schedulemesh.domain.resources import UNIT
from schedulemesh.engine.messages import facts as f
from schedulemesh.engine.messages import queue_facts as q
from schedulemesh.engine.messages.fact import Fact
from schedulemesh.engine.messages.outcomes import ProbeNeeded, Refused
from schedulemesh.engine.messages.stimuli import TaskSubmitted
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.past import WITH_AGENT
from schedulemesh.engine.transaction import Step
from schedulemesh.metrics import catalogue as c
from schedulemesh.metrics.catalogue import Metric
from schedulemesh.metrics.evictions import EvictionTimes
from schedulemesh.metrics.values import (
    Counter,
    Family,
    Histogram,
    Labels,
    Sample,
    Window,
    family_of,
)

#: Observations of one histogram that are kept between two calls of ``observed``.
_OBSERVATIONS = 10_000
#: Seconds over which the success ratio and the throughput are means.
_SPAN_S = 300.0


class _Agent(msgspec.Struct, kw_only=True, gc=False):
    """What is kept of an agent until it has ended."""

    pool: str
    gpus: float
    #: When its task was submitted, or returned to the queue; None: it has started.
    since: float | None


class _Task(msgspec.Struct, kw_only=True, gc=False):
    """What is kept of a task that was admitted or registered, until it has ended."""

    task_id: str
    pool: str
    agent: str
    gpus: float
    #: None: it does not run yet.
    started_at: float | None = None
    saved_at: float | None = None


class MetricsRecorder:
    """The counters and histograms; called with each durable step, in order.

    ``now``: the reactor's clock, in seconds since 1970.
    """

    def __init__(self, state: MeshState, now: Callable[[], float]) -> None:
        self._now = now
        self._submissions = Counter(c.SUBMISSIONS)
        self._ended = Counter(c.ENDED)
        self._agents_started = Counter(c.AGENTS_STARTED)
        self._agents_ended = Counter(c.AGENTS_ENDED)
        self._lost_gpu_s = Counter(c.LOST_WORK)
        self._saved_gpu_s = Counter(c.SAVED_WORK)
        self._lost_s = Counter(c.LOST_TIME)
        self._schedule_ms = Histogram(c.SCHEDULE_MS)
        self._queue_wait_s = Histogram(c.QUEUE_WAIT)
        self._recent_submissions = Window(_SPAN_S)
        self._recent_completions = Window(_SPAN_S)
        self._evictions = EvictionTimes(state)
        #: By pool: when each task joined its queue, the first first.
        self._queued: dict[str, dict[str, float]] = {}
        self._queue_of: dict[str, str] = {}
        self._agents: dict[str, _Agent] = {}
        self._tasks: dict[str, _Task] = {}
        #: By agent, those that were started elsewhere included: its tasks, of which most have one.
        self._on_agent: dict[str, tuple[_Task, ...]] = {}
        self._pools: set[str] = set()
        self._on: dict[type[Fact], Callable[[Any], None]] = {
            f.PoolEnsured: lambda fact: self._pools.add(fact.spec.name),
            q.TaskQueued: self._task_queued,
            q.TaskCancelled: self._task_cancelled,
            f.AgentAdmitted: self._agent_admitted,
            f.AgentReady: self._evictions.agent_ready,
            f.AgentStarted: self._agent_started,
            f.AgentEnding: self._evictions.agent_ending,
            f.AgentEnded: self._agent_ended,
            f.TaskRegistered: self._task_registered,
            f.TaskEnded: self._task_ended,
            f.EvictionStarted: self._evictions.started,
            f.EvictionFailed: self._evictions.failed,
            f.StateSaved: self._state_saved,
            f.WorkSaved: self._state_saved,
            f.TaskPreempted: self._task_preempted,
        }
        self._begin(state)

    def __call__(self, step: Step) -> None:
        """Record what became durable."""
        on = self._on
        for fact in step.facts:
            kind = type(fact)
            if kind in on:
                on[kind](fact)
        if type(step.stimulus) is TaskSubmitted:
            self._submitted(step.stimulus, step)

    def families(self) -> Iterator[Family]:
        """What was recorded."""
        now = self._now()
        yield family_of(self._evictions.latency_ms)
        yield family_of(self._schedule_ms)
        yield family_of(self._submissions)
        refused, submitted = self._recent_submissions.sums(now)
        ratio = 1.0 - refused / submitted if submitted else 1.0
        yield c.SUCCESS, [Sample((), ratio)]
        pools = list(self._pools)
        yield c.QUEUE_DEPTH, (Sample((p,), len(self._queued.get(p, ()))) for p in pools)
        yield c.QUEUE_OLDEST, (Sample((p,), self._oldest(p, now)) for p in pools)
        yield family_of(self._queue_wait_s)
        yield family_of(self._ended)
        completed, _ = self._recent_completions.sums(now)
        yield c.THROUGHPUT, [Sample((), completed / (_SPAN_S / 60.0))]
        for counter in (self._lost_gpu_s, self._saved_gpu_s, self._lost_s):
            yield family_of(counter)
        yield family_of(self._agents_started)
        yield family_of(self._agents_ended)

    def observed(self) -> Iterator[tuple[Metric, Labels, float]]:
        """The observations of both latencies since the last call; of very many, the last ones."""
        for histogram in (self._evictions.latency_ms, self._schedule_ms):
            recent, histogram.recent = histogram.recent, deque(maxlen=_OBSERVATIONS)
            for labels, value in recent or ():
                yield histogram.metric, labels, value

    def _begin(self, state: MeshState) -> None:
        """Begin with what exists."""
        self._pools.update(state.ledger.accounts)
        for waiting in sorted(state.queue.by_id.values(), key=lambda task: task.queued_at):
            self._join(waiting.pool_name, waiting.task_id, waiting.queued_at)
        for name, agent in state.agents.items():
            since = None if agent.submission is None else agent.admitted_at
            gpus = agent.spec.resources.gpu / UNIT
            pool = agent.spec.pool_name
            self._agents[name] = _Agent(pool=pool, gpus=gpus, since=since)
        for task_id, task in state.running.by_id.items():
            known_agent = self._agents.get(task.agent_name)
            started = (
                None
                if known_agent is not None and known_agent.since is not None
                else task.started_at
            )
            self._add(task_id, task.spec.pool_name, task.agent_name, started)
            self._tasks[task_id].saved_at = task.saved_at

    def _submitted(self, stimulus: TaskSubmitted, step: Step) -> None:
        repeated = stimulus.request_id is not None and not step.facts
        if stimulus.dry_run or repeated or isinstance(step.outcome, ProbeNeeded):
            return
        pool = stimulus.agent.pool_name
        labels = (pool if pool in self._pools else "", *_outcome(stimulus, step))
        self._submissions.add(labels)
        self._recent_submissions.add(step.at, 1.0 if labels[1] == "refused" else 0.0, 1.0)

    def _task_queued(self, fact: q.TaskQueued) -> None:
        task = fact.submission.task
        if task is not None:
            self._join(fact.submission.agent.pool_name, task.task_id, fact.at)

    def _join(self, pool: str, task_id: str, at: float) -> None:
        self._queued.setdefault(pool, {})[task_id] = at
        self._queue_of[task_id] = pool

    def _leave(self, task_id: str) -> float | None:
        """Remove a task from its queue; when it joined it. None: it was in none."""
        if task_id not in self._queue_of:
            return None
        return self._queued[self._queue_of.pop(task_id)].pop(task_id)

    def _oldest(self, pool: str, now: float) -> float:
        queue = self._queued.get(pool)
        return max(0.0, now - next(iter(queue.values()))) if queue else 0.0

    def _task_cancelled(self, fact: q.TaskCancelled) -> None:
        pool = self._queue_of.get(fact.task_id, "")
        self._leave(fact.task_id)
        self._ended.add((pool, "cancelled", fact.reason.value))

    def _agent_admitted(self, fact: f.AgentAdmitted) -> None:
        spec, task, since = fact.agent, fact.task, fact.at
        if task is not None:
            joined = self._leave(task.task_id)
            if joined is not None:
                self._queue_wait_s.observe((spec.pool_name,), max(0.0, fact.at - joined))
                since = joined
        gpus = spec.resources.gpu / UNIT
        self._agents[spec.name] = _Agent(pool=spec.pool_name, gpus=gpus, since=since)
        if task is not None:
            self._add(task.task_id, task.pool_name, spec.name, None)

    def _agent_started(self, fact: f.AgentStarted) -> None:
        agent, at = self._agents[fact.agent_name], fact.at
        self._agents_started.add((agent.pool,))
        tasks = self._on_agent.get(fact.agent_name, ())
        for task in tasks:
            task.gpus = agent.gpus
            if task.started_at is None:
                task.started_at = at
        if agent.since is not None and tasks:
            self._schedule_ms.observe((agent.pool,), max(0.0, at - agent.since) * 1e3)
        agent.since = None

    def _agent_ended(self, fact: f.AgentEnded) -> None:
        self._evictions.agent_ended(fact)
        agent = self._agents.pop(fact.agent_name)
        self._agents_ended.add((agent.pool, fact.reason._value_))
        lost_tasks = self._on_agent.get(fact.agent_name)
        if lost_tasks is None:
            return
        state, reason = WITH_AGENT[fact.reason]
        for task in lost_tasks:
            self._remove(task.task_id)
            if fact.returned is not None and fact.returned.task_id == task.task_id:
                self._ended.add((task.pool, "returned", fact.returned.reason.value))
                continue
            self._note_end(task.pool, state.value, "" if reason is None else reason.value, fact.at)
            if fact.reason is EndReason.LOST:
                self._note_work(task, fact.at, "lost")

    def _task_registered(self, fact: f.TaskRegistered) -> None:
        agent = self._agents.get(fact.agent_name)
        runs = agent is None or agent.since is None
        started = fact.at if runs else None
        self._add(fact.task.task_id, fact.task.pool_name, fact.agent_name, started)

    def _add(self, task_id: str, pool: str, agent_name: str, started_at: float | None) -> None:
        agent = self._agents.get(agent_name)
        task = _Task(
            task_id=task_id,
            pool=pool,
            agent=agent_name,
            gpus=0.0 if agent is None else agent.gpus,
            started_at=started_at,
        )
        self._tasks[task_id] = task
        on_agent = self._on_agent
        on_agent[agent_name] = (*on_agent[agent_name], task) if agent_name in on_agent else (task,)

    def _remove(self, task_id: str) -> _Task:
        task = self._tasks.pop(task_id)
        tasks = self._on_agent.pop(task.agent)
        if len(tasks) > 1:
            self._on_agent[task.agent] = tuple(other for other in tasks if other is not task)
        return task

    def _task_ended(self, fact: f.TaskEnded) -> None:
        self._evictions.dropped(fact.task_id)
        task = self._remove(fact.task_id)
        # For every task, so without the property ``value``, which takes as long as counting does.
        reason = "" if fact.reason is None else fact.reason._value_
        self._note_end(task.pool, fact.state._value_, reason, fact.at)

    def _state_saved(self, fact: f.StateSaved | f.WorkSaved) -> None:
        if fact.work_saved_at is not None:
            self._tasks[fact.task_id].saved_at = fact.work_saved_at

    def _task_preempted(self, fact: f.TaskPreempted) -> None:
        decided_at = self._evictions.task_preempted(fact)
        task = self._remove(fact.task.task_id)
        if fact.reason in LIMITS:  # nobody took its room
            self._note_end(task.pool, "cancelled", fact.reason.value, fact.at)
            return
        self._note_end(task.pool, "preempted", fact.reason.value, fact.at)
        self._note_work(task, fact.at if decided_at is None else decided_at, "preempted")

    def _note_end(self, pool: str, state: str, reason: str, at: float) -> None:
        self._ended.add((pool, state, reason))
        if state == "completed":
            self._recent_completions.add(at, 1.0)

    def _note_work(self, task: _Task, until: float, cause: str) -> None:
        """Count what a task did until its eviction or loss, by whether it was saved."""
        if task.started_at is None:
            return
        saved_at = task.started_at if task.saved_at is None else task.saved_at
        kept_s = max(0.0, min(saved_at, until) - task.started_at)
        lost_s = max(0.0, until - max(saved_at, task.started_at))
        labels = (task.pool, cause)
        self._lost_s.add(labels, lost_s)
        self._lost_gpu_s.add(labels, lost_s * task.gpus)
        self._saved_gpu_s.add(labels, kept_s * task.gpus)


def _outcome(stimulus: TaskSubmitted, step: Step) -> tuple[str, str]:
    """The outcome of a submission, and the code of its refusal."""
    if isinstance(step.outcome, Refused):
        return "refused", step.outcome.reason.value
    for fact in step.facts:
        if type(fact) is f.AgentAdmitted and fact.agent.name == stimulus.agent.name:
            return "admitted", ""
    return "queued", ""
