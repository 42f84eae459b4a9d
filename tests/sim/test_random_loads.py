"""Random loads with failures: everything that can run ends, nothing is held twice, no gang runs in part.

``RANDOM_LOADS`` is the number of loads (default 12); ``SIMULATED_YEAR=1`` adds a year of 1,000 nodes.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from heapq import heappop
from itertools import pairwise

import pytest

from schedulemesh.domain.pool import QUEUEING
from schedulemesh.domain.resources import NOTHING, UNIT
from schedulemesh.engine.engine import Engine
from schedulemesh.engine.state.invariants import check
from schedulemesh.sim import Job, NodeChange, NodeKind, Timing, simulation
from schedulemesh.sim.policy import parse_policy
from schedulemesh.sim.world import World

NODES = 6
GPUS = 8
HOUR = 3600.0
#: The most that processes take to end.
END_S = 3.0
#: Steps of the engine that one job may need on average, whatever happens to it.
MOST_STEPS = 400

QUEUES = (
    {},
    {"order": "priority"},
    {"order": "shortest_remaining"},
    {"order": "two_level_las", "las_preempts": True, "las_threshold_gpu_hours": 0.5},
)
PREEMPTION = (
    {},
    {"min_runtime": 300.0},
    {"defragment_after_s": 120.0},
    {"preemption_grace_s": 20.0, "preemption_cooldown": 60.0},
)


class Watched(World):
    """A world that compares what runs where with the nodes that there are, after every start."""

    #: The whole state is checked after one step of so many.
    every = 5

    def run(self):
        """Until nothing happens any more: the last agents end after their runs."""
        super().run()
        while self._events:
            self.now, _, _, event = heappop(self._events)
            event()

    def handle(self, stimulus):
        step = super().handle(stimulus)
        assert self.steps < MOST_STEPS * len(self._runs), "the work does not get on"
        if self.steps % self.every == 0:
            check(self.engine.state)
        return step

    def _report_started(self, order):
        super()._report_started(order)
        if self.every == Watched.every or self.steps % self.every == 0:
            self.compare()

    def compare(self):
        """Every process is on a node that there is, gangs are complete, and no node is overbooked."""
        used = Counter()
        for name, nodes in self._places.items():
            run = self._runs[name]
            if not run.incarnation:
                continue
            job = run.job
            members = max(1, -(-job.gpus // GPUS))
            assert len(nodes) == members, f"{name} has {len(nodes)} of {members} members"
            for at, node in enumerate(nodes):
                last = at == members - 1
                used[node] += job.gpus - GPUS * (members - 1) if last else GPUS
        for node, gpus in used.items():
            assert node in self._nodes, f"{node} is gone, and something runs there"
            assert gpus <= GPUS, f"{gpus} GPUs are used on {node}"


class RarelyWatched(Watched):
    """The same, for a large cluster."""

    every = 2000


def random_load(draw, count, mean_s, longer):
    at, jobs = 0.0, []
    for n in range(count):
        at += draw.expovariate(1.0 / mean_s)
        duration = longer * min(draw.lognormvariate(6.5, 1.3), 8 * HOUR)
        jobs.append(
            Job(
                job_id=f"job-{n}",
                submit_s=at,
                duration_s=duration,
                gpus=draw.choice((1, 1, 1, 2, 4, 8, 8, 16)),
                pool=draw.choice("ab"),
                priority=draw.choice((3.0, 5.0, 8.0)),
                savable=draw.random() < 0.7,
                estimate_s=draw.choice((None, duration)),
                fails_at_s=(draw.uniform(1.0, 600.0),) if draw.random() < 0.1 else (),
            )
        )
    return jobs


def random_changes(draw, nodes, until, mean_s):
    """Nodes that die and return, and nodes that are drained for a while; two are always left alone."""
    changes = []
    for node in nodes[2:]:
        at = 0.0
        while (at := at + draw.expovariate(1.0 / mean_s)) < until:
            away, back = draw.choice((("lost", "joined"), ("drain", "undrain")))
            changes.append(NodeChange(at_s=at, node=node, event=away))
            at += draw.uniform(60.0, 2 * HOUR)
            changes.append(NodeChange(at_s=at, node=node, event=back))
    return changes


def random_policy(draw, quota):
    queueing = draw.choice(QUEUEING)
    pools = [
        {"name": name, "cohort": "all", "resources": {"gpu": quota}, "queueing": queueing}
        for name in "ab"
    ]
    return parse_policy(
        {
            "pools": pools,
            "policy": {"queue": draw.choice(QUEUES), "preemption": draw.choice(PREEMPTION)},
        }
    )


def node_names(count):
    return [f"{n:0{len(str(count))}}-node" for n in range(count)]


def run_watched(
    monkeypatch, draw, *, nodes, jobs, mean_s, between_losses_s, longer=1.0, world=Watched
):
    engines = []

    class Kept(Engine):
        def __init__(self, **options):
            super().__init__(**options)
            engines.append(self)

    monkeypatch.setattr(simulation, "World", world)
    monkeypatch.setattr(simulation, "Engine", Kept)
    load = random_load(draw, jobs, mean_s, longer)
    changes = random_changes(draw, node_names(nodes), load[-1].submit_s, between_losses_s)
    result = simulation.simulate(
        load,
        [NodeKind(count=nodes, gpu=GPUS)],
        random_policy(draw, nodes * GPUS // 2),
        Timing(
            start_s=draw.choice((0.0, 5.0)),
            save_s=draw.choice((0.0, 60.0)),
            end_s=draw.choice((0.0, END_S)),
        ),
        node_changes=changes,
    )
    (engine,) = engines
    return result, engine.state, changes


def assert_all_ended(result, state):
    assert not [run.error for run in result.runs if run.error]
    assert all(run.ended_at is not None for run in result.runs)
    assert not state.queue.by_id
    assert not state.agents
    for account in state.ledger.accounts.values():
        assert (account.used, account.lent, account.borrowed) == (NOTHING, NOTHING, NOTHING)
    for node in state.cluster.nodes.values():
        assert node.devices == [UNIT] * GPUS, node.node_id


@pytest.mark.parametrize("seed", range(int(os.environ.get("RANDOM_LOADS", "12"))))
def test_a_random_load_with_failing_nodes_and_jobs_ends(monkeypatch, seed):
    draw = random.Random(seed)
    result, state, changes = run_watched(
        monkeypatch, draw, nodes=NODES, jobs=150, mean_s=120.0, between_losses_s=2 * HOUR
    )
    assert changes
    assert_all_ended(result, state)
    assert sum(run.waited_s > 0 for run in result.runs) > 10
    for run in result.runs:
        # What a job took beyond its duration is what it waited, lost and spent on starting, saving, restoring
        # and ending; its last process may end after the job.
        after = run.waited_s + run.lost_s + run.overhead_s - run.delay_s
        assert -1e-3 <= after <= 20.0 + END_S + 1e-3, run.job
    for name, usage in result.pools.items():
        mine = [run for run in result.runs if run.pool_name == name]
        held = [run.job.duration_s + run.lost_s + run.overhead_s for run in mine]
        expected = sum(run.job.gpus * seconds for run, seconds in zip(mine, held, strict=True))
        series = [(time, amount.gpus) for time, amount in usage.held_series]
        found = sum(gpus * (end - begin) for (begin, gpus), (end, _) in pairwise(series))
        assert found == pytest.approx(expected), "a job held GPUs in no figure"


@pytest.mark.skipif(
    "SIMULATED_YEAR" not in os.environ, reason="takes long: set SIMULATED_YEAR=1 to run it"
)
def test_a_year_of_a_thousand_nodes(monkeypatch):
    draw = random.Random(0)
    result, state, _ = run_watched(
        monkeypatch,
        draw,
        nodes=1000,
        jobs=100_000,
        mean_s=365 * 24 * HOUR / 100_000,
        between_losses_s=60 * 24 * HOUR,
        longer=250.0,
        world=RarelyWatched,
    )
    assert_all_ended(result, state)
