"""A random load of all that can be submitted: jobs, leases, elastic gangs, several bundles, children."""

from __future__ import annotations

from heapq import heapify

import msgspec

from schedulemesh.domain.agent import AgentSpec
from schedulemesh.domain.end_reasons import TaskEndReason
from schedulemesh.domain.payloads import (
    RUN_DRIVER,
    SINGLE_PROCESS,
    GangPayload,
    JobPayload,
    LeasePayload,
)
from schedulemesh.domain.placement import OnNode
from schedulemesh.domain.resources import UNIT, Resources, sum_of
from schedulemesh.engine.codec import decode_facts
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.job_stimuli import JobBeyondClaim, JobWorkObserved
from schedulemesh.engine.state.agents import Running
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.sim import Job
from schedulemesh.sim.rehearsal.restarts import Ordered
from schedulemesh.sim.runs import Run
from schedulemesh.sim.submission import Submissions
from schedulemesh.sim.world import Rank
from tests.sim.disturbed_load import DisturbedWorld

KINDS = ("elastic", "job", "lease", "bundles", "called", "unqueued", "child")
ONE = Resources(gpu=UNIT)


class MixedSubmissions(Submissions):
    """Turns every other job into one of ``kinds``, by the number in its name."""

    def __init__(self, nodes, kinds):
        super().__init__(nodes)
        self._kinds = kinds
        #: A task that runs when a child is submitted.
        self.parent = ""

    def kind_of(self, job):
        number = int(job.job_id.rpartition("-")[2])
        return "" if number % 2 else self._kinds[number // 2 % len(self._kinds)]

    def submission_of(self, job):
        submission = super().submission_of(job)
        make = getattr(self, f"as_{self.kind_of(job)}", None)
        return submission if make is None else make(submission)

    def as_elastic(self, given):
        core = max(1, given.agent.resources.gpu // UNIT // 2)
        gang = GangPayload(strategy="PACK", replicas=core + 3)
        return _with_agent(
            given, bundles=(ONE,) * core, resources=sum_of((ONE,) * core), payload=gang
        )

    def as_job(self, given):
        task = msgspec.structs.replace(given.task, run=RUN_DRIVER)
        job = JobPayload(over_claim="end", grace_s=1.0)
        given = msgspec.structs.replace(given, task=task)
        return _with_agent(given, bundles=(), payload=job)

    def as_lease(self, given):
        parts = max(1, given.agent.resources.gpu // UNIT // 2)
        bundles = (ONE,) * (2 * parts)
        lease = LeasePayload(strategy="STRICT_PACK", parts=parts, grace_s=2.0)
        agent = AgentSpec(
            name=given.agent.name,
            pool_name=given.agent.pool_name,
            resources=sum_of(bundles),
            bundles=bundles,
            payload=lease,
        )
        task = msgspec.structs.replace(given.task, run="", max_retries=0, on_preempted="")
        return msgspec.structs.replace(given, agent=agent, task=task)

    def as_bundles(self, given):
        count = max(2, given.agent.resources.gpu // UNIT)
        bundles = (ONE,) * count
        return _with_agent(
            given, bundles=bundles, resources=sum_of(bundles), payload=SINGLE_PROCESS
        )

    def as_called(self, given):
        task = msgspec.structs.replace(given.task, run="", max_retries=0)
        return msgspec.structs.replace(given, task=task)

    def as_unqueued(self, given):
        return msgspec.structs.replace(given, queue=False)

    def as_child(self, given):
        if not self.parent:
            return given
        task = msgspec.structs.replace(given.task, parent=self.parent)
        return msgspec.structs.replace(given, task=task)


def _with_agent(given, **fields):
    return msgspec.structs.replace(given, agent=msgspec.structs.replace(given.agent, **fields))


class MixedWorld(DisturbedWorld):
    """One in which leases end by their holders, gangs grow and shrink, and jobs move."""

    kinds = (*DisturbedWorld.kinds, "_move_job", "_end_greedy_job", "_restart")

    def __init__(self, engine, runs, submissions, timing, begin, *, submitted=KINDS, **given):
        mixed = MixedSubmissions((), submitted)
        mixed._largest = submissions._largest
        super().__init__(engine, runs, mixed, timing, begin, **given)
        #: What was ordered before the restart that is under way, and how many there were.
        self._ordered, self._epoch = None, 0
        #: What has started, by kind.
        self.started = dict.fromkeys(submitted, 0)

    def _start(self, order):
        name = order.agent.name
        known = self._runs.get(name)
        if known is None or not known.is_waiting:
            self._begin_extra(name)
        super()._start(order)

    def _begin_extra(self, name):
        """An extra member of an elastic gang works as long as its core."""
        core = self._runs[name.rpartition("-")[0]]
        job = Job(job_id=name, submit_s=0.0, duration_s=core.job.duration_s, gpus=1.0)
        self._runs[name] = Run(job, core.pool_name, core._pool, ONE)
        self._runs[name].submitted(self.now)

    def _running(self, kind):
        """The agents that run now and are of this kind of submission."""
        return [
            agent
            for name, agent in sorted(self.engine.state.agents.items())
            if isinstance(agent.phase, Running)
            and self._kind(name) == kind
            and self._runs[name].is_running
        ]

    def _kind(self, name):
        found = self._runs[name].job
        return "" if name.count("-") > 1 else self._submissions.kind_of(found)

    def submit(self, run):
        running = [
            name
            for name, one in sorted(self._runs.items())
            if one.is_running and name in self.engine.state.running.by_id and name.count("-") == 1
        ]
        self._submissions.parent = self._draw.choice(running) if running else ""
        super().submit(run)

    def _report_started(self, order):
        super()._report_started(order)
        name = order.agent.name
        run = self._runs[name]
        agent = self.engine.state.agents.get(name)
        if agent is None or not isinstance(agent.phase, Running):
            return
        kind = self._kind(name)
        if kind in self.started:
            self.started[kind] += 1
        if name.count("-") > 1:
            self.started["extra"] = self.started.get("extra", 0) + 1
        if (
            not isinstance(agent.spec.payload, LeasePayload)
            and self._submissions.kind_of(run.job) != "called"
        ):
            return
        seconds, _ = run.running(self.now)
        self.at(self.now + seconds, lambda: self._over(run, order.incarnation))

    def _over(self, run, incarnation):
        """Its caller or holder completes it, or lets it expire."""
        if run.incarnation != incarnation or not run.is_running:
            return
        task_id = run.job.job_id
        if not isinstance(self.engine.state.agents[task_id].phase, Running):
            return  # it is being evicted, and runs again: its completion would be refused
        run.end(self.now, failed=False)
        if self._kind(task_id) == "lease" and self._draw.random() < 0.3:
            how = self._draw.choice((TaskEndReason.EXPIRED, TaskEndReason.HOLDER_ENDED))
            self.handle(
                s.TaskCancellationRequested(task_id=task_id, reason=how, error="it is over")
            )
        else:
            self.handle(s.TaskFinished(task_id=task_id, end_agent=True))

    def _save(self, name, incarnation):
        agent = self.engine.state.agents.get(name)
        if agent is None or not isinstance(agent.spec.payload, LeasePayload):
            super()._save(name, incarnation)
            return
        run = self._runs[name]
        if run.incarnation == incarnation:
            run.stopped(self.now, saved=False)
            self._gone(name, incarnation)

    # what happens to jobs

    def _move_job(self):
        """The work of a job is found on another node."""
        state = self.engine.state
        for agent in self._running("job"):
            if not isinstance(agent.place, OnNode):
                continue
            need = agent.spec.resources
            for node in state.cluster.nodes.values():
                if node.node_id != agent.place.node_id and need.fits(node.free):
                    name, claims = agent.spec.name, ((node.node_id, need),)
                    ours = {"agent_name": name, "incarnation": agent.incarnation}
                    self.handle(JobWorkObserved(**ours, claims=claims))
                    return

    def _end_greedy_job(self):
        """A job has held more than it claims for long."""
        for agent in self._running("job")[:1]:
            name = agent.spec.name
            self.handle(
                JobBeyondClaim(
                    agent_name=name,
                    incarnation=agent.incarnation,
                    beyond=ONE,
                    since=self.now - 3600.0,
                )
            )

    # restarts of the supervisor

    def _restart(self):
        """The supervisor dies, and another one begins some seconds later. What happens meanwhile is reported
        then.
        """
        back = self.now + self._draw.uniform(1.0, 10.0)
        self._events = [
            (max(at, back + 1.0 + self._draw.random()), *rest) for at, *rest in self._events
        ]
        heapify(self._events)
        self.at(back, self._come_back, Rank.TICK)
        self.at(back + 0.2, self.observe, Rank.TICK)
        self.at(back + 0.4, self._recover, Rank.TICK)

    def _come_back(self):
        facts = [fact for record in self.engine.commits for fact in decode_facts(record)]
        self.engine.state = MeshState.fold(facts)
        self._epoch += 1
        self.handle(s.SupervisorBegan(epoch=self._epoch))

    def _recover(self):
        """It finds what exists still: some processes have died."""
        state = self.engine.state
        dead = [
            run
            for name, run in sorted(self._runs.items())
            if run.incarnation
            and name in state.agents
            and not isinstance(state.agents[name].spec.payload, LeasePayload)
            if self._draw.random() < 0.2
        ]
        lost = {(run.job.job_id, run.incarnation) for run in dead}
        for run in dead:
            run.lost(self.now)
            self._free(run)
        agents = {(name, agent.incarnation) for name, agent in state.agents.items()}
        self._ordered = Ordered(state)
        self.handle(
            s.RecoveryObserved(
                living=frozenset(agents - lost), groups=frozenset(state.groups.by_id)
            )
        )
        self._ordered = None

    def _carry_out(self, instruction):
        if self._ordered is None or not self._ordered.has(instruction):
            super()._carry_out(instruction)
