"""A random load in virtual time whose facts are written to a journal and its history."""

from __future__ import annotations

import random
from heapq import heappop

from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.resources import sum_of
from schedulemesh.engine.codec import encode_facts
from schedulemesh.engine.engine import Engine
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.sim import Job, NodeKind, Timing
from schedulemesh.sim.cluster import reports
from schedulemesh.sim.policy import parse_policy
from schedulemesh.sim.simulation import BEGIN, _allowance, _open, _runs
from schedulemesh.sim.submission import Submissions
from schedulemesh.sim.usage import PoolUsage
from schedulemesh.sim.world import Rank, World, plan_submissions
from schedulemesh.store.history.commits import SqlCommits
from schedulemesh.store.history.follower import Follower
from schedulemesh.store.history.tables import history_engine, migrate
from schedulemesh.store.sql import SqlJournal

#: 32 GPUs.
FOUR = (NodeKind(count=4, gpu=8),)


_NOT_STARTED = (Reason.CLUSTER_OUT_OF_RESOURCES, Reason.AGENT_START_FAILED)


class RecordedEngine(Engine):
    """An engine that keeps the facts of each step."""

    def __init__(self):
        super().__init__()
        self.commits = []

    def handle(self, stimulus, now):
        step = super().handle(stimulus, now)
        if step.facts:
            self.commits.append(encode_facts(step.facts))
        return step


class UnevenWorld(World):
    """A world like that of a supervisor: no action takes as long as another of its kind, and it ticks
    all the time, sometimes late.
    """

    def __init__(self, *given, seed=1):
        super().__init__(*given)
        self._draw = random.Random(seed)
        self.at(self.now + self._draw.random(), self._tick_and_again, Rank.TICK)

    def at(self, time, event, rank=Rank.REPORT):
        if rank is Rank.REPORT and self._draw.random() < 0.9:
            time += self._draw.expovariate(1.5)
        super().at(time, event, rank)

    def run_for(self, seconds):
        """Let time pass."""
        end = self._begin + seconds
        while self._events and self._events[0][0] <= end:
            self.now, _, _, event = heappop(self._events)
            event()

    def _tick_by(self, time):
        """Ticks do not depend on what happens."""

    def _tick_and_again(self):
        self.handle(s.ClockTicked())
        late = self._draw.uniform(0.0, 5.0) if self._draw.random() < 0.02 else 0.0
        pause = 1.0 + self._draw.expovariate(100.0) + late
        self.at(self.now + pause, self._tick_and_again, Rank.TICK)


class FailingWorld(UnevenWorld):
    """One in which every fourth start fails: for lack of room, in the constructor, or because the process
    dies.
    """

    def _report_started(self, order):
        name, incarnation = order.agent.name, order.incarnation
        run = self._runs[name]
        if run.incarnation != incarnation or self._draw.random() < 0.75:
            super()._report_started(order)
            return
        run.lost(self.now)
        self._free(run)
        ours = {"agent_name": name, "incarnation": incarnation}
        how = self._draw.choice((*_NOT_STARTED, None))
        if how is None:
            self.handle(s.AgentGone(**ours))
        else:
            self.handle(s.AgentStartFailed(**ours, reason=how, error="it did not start"))


def random_jobs(seed, count, pools, *, mean_s=60.0, shorter=1.0):
    draw = random.Random(seed)
    at, found = 0.0, []
    for n in range(count):
        at += draw.expovariate(1.0 / mean_s)
        fails = (draw.uniform(1.0, 300.0),) if draw.random() < 0.1 else ()
        found.append(
            Job(
                job_id=f"job-{n}",
                submit_s=at,
                duration_s=draw.lognormvariate(6.5, 1.3) / shorter,
                gpus=draw.choice((1, 1, 1, 2, 4, 8, 8, 16)),
                pool=draw.choice(pools),
                user=draw.choice(("ann", "bob", "eve")),
                priority=draw.choice((3.0, 5.0, 8.0)),
                savable=draw.random() < 0.7,
                estimate_s=draw.choice((None, 600.0, 3600.0)),
                fails_at_s=fails,
            )
        )
    return found


def policy_of(queue=None, queueing="best_effort", groups=None, **preemption):
    alike = {"cohort": "all", "resources": {"gpu": 16}, "queueing": queueing}
    pools = [{"name": name, **alike, "pg_pool_config": groups} for name in ("a", "b")]
    given = {"queue": queue or {}, "preemption": preemption}
    return parse_policy({"pools": pools, "policy": given})


def recorded_world(jobs, policy, timing, nodes=FOUR, world=World):
    """A world in which nothing has happened yet but the definitions."""
    engine, cluster = RecordedEngine(), reports(nodes)
    usage = {
        spec.name: PoolUsage(spec.resources, "gpu", _allowance(policy, timing), BEGIN)
        for spec in policy.pools
    }
    submissions = Submissions(cluster)
    runs = _runs(jobs, submissions, "", usage)
    world = world(engine, runs, submissions, timing, BEGIN)
    _open(world, policy, policy.pools)
    world.handle(s.ClusterObserved(nodes=cluster))
    plan_submissions(world, runs.values(), BEGIN)
    assert sum_of(node.total for node in cluster).gpu
    return world


def written(world, path):
    """Write what has happened to a journal, and its history beside it."""
    journal = SqlJournal(path)
    journal.begin()
    for record in world.engine.commits:
        journal.append(record, {})
    place = journal.place()
    with history_engine(place.address).connect() as connection:
        with connection.begin():
            migrate(connection)
        commits = SqlCommits(place.address, place.journal)
        follower = Follower(connection, place.journal, commits, lambda: journal.last)
        while follower.write_next() is not None:
            pass
        commits.close()
    journal.close()


def run_and_write(path, seed=1, count=150, timing=None, policy=None):
    timing = timing or Timing()
    world = recorded_world(random_jobs(seed, count, "ab"), policy or policy_of(), timing)
    world.run()
    written(world, path)
    return world
