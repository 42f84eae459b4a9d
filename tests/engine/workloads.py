"""Whole workloads on an engine whose executor and clock are simulated: agents start and end, runs return,
raise or lose their agents, evicted tasks save their states or not, time passes.

``Workload.run`` drives the engine until nothing waits or runs any more. ``CountingMesh`` counts how often
each task was admitted, was evicted and has ended; every step is checked as by ``Mesh``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from heapq import heappop, heappush
from types import MappingProxyType
from typing import Any, NamedTuple

from schedulemesh.domain.end_reasons import TaskEndReason
from schedulemesh.domain.node import NodeReport
from schedulemesh.domain.payloads import SINGLE_PROCESS, GangPayload
from schedulemesh.domain.pool import PoolSpec
from schedulemesh.domain.reasons import PreemptionReason
from schedulemesh.engine.messages import facts as f
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.engine.state.agents import Running
from schedulemesh.engine.state.task_phases import Preempting
from tests.engine.builders import Mesh

#: Seconds that starting an agent takes, and ending one, saving its state included.
START_S, LEAVE_S = 1.0, 2.0
#: Seconds between two ticks.
TICK_S = 5.0
#: Above every cooldown, back-off and time limit of a workload: if nothing happens for so long, nothing will.
PATIENCE_S = 400.0


class Job(NamedTuple):
    """A task as its user submits it, and how its runs go."""

    name: str
    at: float
    pool_name: str
    need: dict[str, Any]
    work_s: float
    priority: float = 5.0
    labels: Mapping[str, str] = MappingProxyType({})
    #: What the user believes; None: nothing.
    estimate_s: float | None = None
    on_preempted: str = "requeue"
    #: How many agents of this size it has; 1: it is no gang.
    members: int = 1
    #: How often its run raises, and then how often its agent dies, before a run goes well.
    raises: int = 0
    dies: int = 0
    retries: int = 0
    #: Whether an eviction saves its state, so that it goes on where it was.
    saves: bool = True
    #: Whether it waits where it does not fit.
    queue: bool = True


class CountingMesh(Mesh):
    """A mesh that notes, step by step, which tasks exist, and why agents were evicted."""

    def __init__(self, *pools: PoolSpec, nodes: Iterable[NodeReport] = (), **policy: Any) -> None:
        self.living: set[str] = set()
        #: How often each task has ended.
        self.ends_of: Counter[str] = Counter()
        #: By task: its admissions, those given back, its evictions by the rules, and those for an owner.
        self.admitted: Counter[str] = Counter()
        self.returned: Counter[str] = Counter()
        self.evicted: Counter[str] = Counter()
        self.reclaimed: Counter[str] = Counter()
        #: When each task was admitted first.
        self.started_at: dict[str, float] = {}
        super().__init__(*pools, nodes=nodes, **policy)

    def handle(self, stimulus: s.AnyStimulus) -> Any:
        step = super().handle(stimulus)
        for fact in step.facts:
            if isinstance(fact, f.AgentAdmitted) and fact.task is not None:
                self.admitted[fact.task.task_id] += 1
                self.started_at.setdefault(fact.task.task_id, self.now)
            elif isinstance(fact, f.AgentEnded) and fact.returned is not None:
                self.returned[fact.returned.task_id] += 1
            elif isinstance(fact, f.EvictionStarted):
                reclaims = fact.reason is PreemptionReason.RECLAIM
                (self.reclaimed if reclaims else self.evicted)[fact.task_id] += 1
        present = self.state.running.by_id.keys() | self.state.queue.by_id.keys()
        self.ends_of.update(self.living - present)
        self.living = set(present)
        return step


class Workload:
    """Jobs, and what happens to them on one engine."""

    def __init__(self, mesh: CountingMesh, jobs: Iterable[Job]) -> None:
        self.mesh = mesh
        self.jobs = {job.name: job for job in jobs}
        self.refused: dict[str, Refused] = {}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        #: What is being carried out: agents as (name, incarnation), groups by id.
        self._known: set[object] = set()
        #: Seconds of work that the last saved state of each task holds.
        self._saved: Counter[str] = Counter()
        self._run_since: dict[str, float] = {}
        self._raised: Counter[str] = Counter()
        self._died: Counter[str] = Counter()
        begin = mesh.now
        for job in self.jobs.values():
            self._in(begin + job.at - mesh.now, lambda job=job: self._submit(job))  # type: ignore[misc]

    def run(self, until: float) -> None:
        """Let time pass until no job is left. Raises AssertionError where that is not the case in time."""
        self.run_until(self._is_over, until)

    def _is_over(self) -> bool:
        return not (self._events or self.mesh.living or self.mesh.state.agents)

    def run_until(self, is_so: Callable[[], bool], until: float) -> None:
        """Let time pass until this is so. Raises AssertionError where that is not the case in time."""
        tick = last = self.mesh.now
        while not is_so():
            if self._events:
                last = self._events[0][0]
            if self._events and last < tick:
                self.mesh.now, _, event = heappop(self._events)
                event()
            else:
                self.mesh.now = tick
                tick += TICK_S
                self.mesh.handle(s.ClockTicked())
            self._carry_out()
            waits = {t: task.pool_name for t, task in self.mesh.state.queue.by_id.items()}
            assert self.mesh.now <= min(until, last + PATIENCE_S), f"{waits} still wait"

    def _in(self, seconds: float, event: Callable[[], None]) -> None:
        self._number += 1
        heappush(self._events, (self.mesh.now + seconds, self._number, event))

    def _submit(self, job: Job) -> None:
        many = job.members > 1
        stimulus = self.mesh.submission(
            job.name,
            job.pool_name,
            job.priority,
            labels=dict(job.labels),
            duration=job.estimate_s,
            class_key="c",
            run="train",
            retries=job.retries,
            on_preempted=job.on_preempted,
            bundles=[job.need] * job.members if many else (),
            payload=GangPayload(strategy="PACK") if many else SINGLE_PROCESS,
            more={"queue": job.queue},
            **({} if many else job.need),
        )
        outcome = self.mesh.handle(stimulus).outcome
        if isinstance(outcome, Refused):
            self.refused[job.name] = outcome

    # -- the executor ---------------------------------------------------------------------------------

    def _carry_out(self) -> None:
        """Start what was ordered since."""
        mesh = self.mesh
        for task_id in list(mesh.probes):
            mesh.handle(s.ClassProbed(class_key=mesh.probes.pop(task_id).class_key))
        for name, order in mesh.starts.items():
            self._once(START_S, self._report, (name, order.incarnation))
        for name, order in mesh.ends.items():
            self._once(LEAVE_S, self._leave, (name, order.incarnation), "ends")
        for group_id in mesh.makes:
            self._once(START_S, self._make, group_id)
        for group_id in mesh.removes:
            self._once(START_S, self._remove, group_id, "removed")

    def _once(self, seconds: float, event: Callable[..., None], key: Any, what: str = "") -> None:
        if (key, what) not in self._known:
            self._known.add((key, what))
            self._in(seconds, lambda: event(key))

    def _make(self, group_id: str) -> None:
        if group_id in self.mesh.makes:
            self.mesh.make(group_id)

    def _remove(self, group_id: str) -> None:
        self.mesh.remove(group_id)

    def _report(self, key: tuple[str, int]) -> None:
        name, incarnation = key
        order = self.mesh.starts.get(name)
        if order is None or order.incarnation != incarnation:
            return
        job = self.jobs[name]
        self.mesh.report(name, capabilities=("save_state",) if job.saves else ())
        self._run_since[name] = self.mesh.now
        left = max(0.0, job.work_s - self._saved[name])
        if self._raised[name] == job.raises and self._died[name] < job.dies:
            self._in(left / 2, lambda: self._die(key))
        else:
            self._in(left, lambda: self._return(key))

    def _is_current(self, key: tuple[str, int]) -> bool:
        agent = self.mesh.state.agents.get(key[0])
        return agent is not None and agent.incarnation == key[1]

    def _die(self, key: tuple[str, int]) -> None:
        """The process dies by itself, unless it is being ended anyway."""
        agent = self.mesh.state.agents.get(key[0])
        if self._is_current(key) and agent is not None and isinstance(agent.phase, Running):
            self._died[key[0]] += 1
            self.mesh.die(*key)

    def _return(self, key: tuple[str, int]) -> None:
        name, incarnation = key
        task = self.mesh.state.running.by_id.get(name)
        if task is None or not self._is_current(key):
            return
        evicted = isinstance(task.phase, Preempting)
        raises = not evicted and self._raised[name] < self.jobs[name].raises
        self._raised[name] += raises
        self.mesh.handle(
            s.RunEnded(
                task_id=name,
                agent_name=name,
                incarnation=incarnation,
                reason=TaskEndReason.RUN_RAISED if raises else None,
                error="it raised" if raises else "",
                cancelled=evicted,
            )
        )

    def _leave(self, key: tuple[str, int]) -> None:
        name = key[0]
        if name not in self.mesh.ends or not self._is_current(key):
            return
        agent = self.mesh.state.agents[name]
        saves = self.jobs[name].saves and name in self._run_since
        if saves and not isinstance(agent.phase, Running):
            worked = self.mesh.now - LEAVE_S - self._run_since.pop(name)
            self._saved[name] += int(min(worked, self.jobs[name].work_s))
        self.mesh.leave(name, saved=saves)
