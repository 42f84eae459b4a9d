"""Random worlds with windows of maintenance and reservations keep what ``docs/calendar.md`` says.

The oracle (``calendar_oracle``) knows every opening of every window, written from the page. It checks each
start, that nobody is evicted for a window too early or too late, that nodes are empty and closed exactly
while a window is open, and that a task which waits alone for a node starts as soon as the page lets it. A
twin that is restored from a snapshot decides the same.
"""

from __future__ import annotations

import itertools
import random

import pytest

from schedulemesh.domain.windows import MaintenanceWindow
from schedulemesh.engine.engine import Engine
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.facts import AgentAdmitted, EvictionStarted
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.engine.state.agents import Running
from tests.engine.builders import Mesh, differences, node, pool
from tests.engine.calendar_oracle import Calendar, Whose, openings

HOUR, DAY = 3600.0, 86_400.0
BEGIN = 1_000_000.0
#: Grace, saving and cancelling.
LEAVING_S = 60.0


class World:
    """A few nodes, tasks that run and wait, windows that come and go."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.labels = {"a": {"rack": "1"}, "b": {"rack": "1"}, "c": {}}
        nodes = [node(name, cpu=4, labels=labels) for name, labels in self.labels.items()]
        self.mesh = Mesh(pool("p", cpu=100), pool("q", cpu=100), nodes=nodes)
        self.mesh.now = BEGIN
        self.mesh.policy(preemption_grace_s=10.0, save_timeout=30.0, cancel_timeout=20.0)
        self.oracle = Calendar()
        self.runs = {}
        self.numbers = 0
        self.seen = len(self.mesh.facts)
        self.ticked = True

    def create(self):
        rng = self.rng
        self.numbers += 1
        where = rng.choice(
            [
                {"node_ids": (rng.choice("abc"),)},
                {"node_labels": (("rack", "1"),)},
                {},
            ]
        )
        one = MaintenanceWindow(
            name=f"w{self.numbers}",
            start=self.mesh.now + rng.choice([-HOUR, 600.0, 5 * HOUR, 2 * DAY]),
            duration_s=rng.choice([1800.0, 2 * HOUR, 8 * HOUR]),
            repeat=rng.choice(["", "daily", "weekly"]),
            notice_s=rng.choice([60.0, HOUR, 6 * HOUR]),
            pools=rng.choice([(), (), ("q",)]),
            **where,
        )
        if len(self.oracle.windows) < 3:
            outcome = self.mesh.handle(s.WindowRequested(window=one)).outcome
            if not isinstance(outcome, Refused):
                self.oracle.windows[one.name] = one

    def delete(self):
        if self.oracle.windows:
            name = self.rng.choice(sorted(self.oracle.windows))
            self.mesh.handle(s.WindowDeletionRequested(name=name))
            del self.oracle.windows[name]

    def submit(self):
        self.numbers += 1
        rng, name = self.rng, f"t{self.numbers}"
        duration = rng.choice([None, None, 600.0, HOUR, 10 * HOUR, 30 * HOUR, 8 * DAY])
        limit = rng.choice([None, None, HOUR, DAY])
        times = [time for time in (duration, limit) if time is not None]
        self.runs[name] = min(times) + LEAVING_S if times else None
        self.mesh.queue(
            name,
            rng.choice("ppq"),
            cpu=rng.choice([2, 4]),
            duration=duration,
            limits={} if limit is None else {"max_run_s": limit},
            class_key="c",
            on_preempted="requeue",
        )

    def report(self):
        for name in list(self.mesh.starts):
            self.mesh.report(name)

    def end(self):
        running = [
            t for t, task in self.mesh.state.running.by_id.items() if task.phase == "running"
        ]
        if running:
            self.mesh.complete(self.rng.choice(sorted(running)))

    def leave(self):
        for name in list(self.mesh.ends):
            self.mesh.leave(name, saved=True)

    def wait(self):
        """Time passes, with a tick at each time at which something may have to happen."""
        until = self.mesh.now + self.rng.choice([1.0, 300.0, HOUR, 6 * HOUR])
        times = {until}
        for window in self.oracle.windows.values():
            for start, end in itertools.islice(openings(window, self.mesh.now), 3):
                times |= {start - LEAVING_S, start, end, start - window.notice_s}
        for at in sorted(time for time in times if self.mesh.now < time <= until):
            self.mesh.now = at
            self.mesh.tick()
            self.check()
            self.report()
            self.leave()
            self.check()

    def check(self):
        mesh = self.mesh
        self.oracle.forget_past(mesh.now)
        for fact in mesh.facts[self.seen :]:
            if isinstance(fact, AgentAdmitted):
                self.check_start(fact)
            if isinstance(fact, EvictionStarted) and fact.reason == "for_window":
                self.check_eviction(fact)
        self.seen = len(mesh.facts)

    def check_start(self, fact):
        name, node_id = fact.agent.name, fact.place.node_id
        run_s = self.runs[name]
        over_at = None if run_s is None else fact.at + run_s
        args = (self.labels[node_id], node_id, fact.at, over_at, Whose(fact.agent.pool_name))
        assert self.oracle.may_start(*args), name

    def check_eviction(self, fact):
        agent = self.mesh.state.agents.get(fact.task_id)
        if agent is not None and agent.node_id is not None:
            node_id, whose = agent.node_id, Whose(agent.spec.pool_name)
            labels = self.labels[node_id]
            leaves_at = self.oracle.leaves_at(labels, node_id, fact.at, LEAVING_S, whose)
            assert leaves_at is not None
            assert leaves_at <= fact.at

    def check_at_tick(self):
        """After a tick at any time: what is closed is in a window, and nobody has stayed too long."""
        mesh, now = self.mesh, self.mesh.now
        mesh.tick()
        self.check()
        assert set(mesh.state.windows.by_name) == set(self.oracle.windows)
        for node_id, labels in self.labels.items():
            one = mesh.state.cluster.nodes[node_id]
            assert one.cordoned == self.oracle.is_open(labels, node_id, now, maintenance=True)
            for agent in map(mesh.state.agents.get, one.allocations):
                whose = Whose(agent.spec.pool_name)
                leaves_at = self.oracle.leaves_at(labels, node_id, now, LEAVING_S, whose)
                may_run = leaves_at is None or now < leaves_at
                assert may_run or not isinstance(agent.phase, Running)
        assert not mesh.state.cluster.set_aside
        assert differences(mesh.state, mesh.rewritten()) == []


def steps_of(world):
    return (
        [world.submit] * 5
        + [world.report] * 4
        + [world.wait] * 5
        + [world.end] * 2
        + [world.create] * 2
        + [world.delete, world.leave]
    )


@pytest.mark.parametrize("seed", range(12))
def test_windows_are_kept_as_the_page_says(seed):
    world = World(seed)
    steps = steps_of(world)
    for _ in range(70):
        world.rng.choice(steps)()
        world.check()
        world.check_at_tick()
    assert differences(world.mesh.state, world.mesh.refolded()) == []


def may_start_anywhere(world, at, run_s, pool_name):
    oracle, whose = world.oracle, Whose(pool_name)
    return any(
        not oracle.is_open(labels, node_id, at, whose)
        and oracle.may_start(labels, node_id, at, at + run_s, whose)
        for node_id, labels in world.labels.items()
    )


@pytest.mark.parametrize("pool_name", ["p", "q"])
@pytest.mark.parametrize("seed", range(14))
def test_a_task_that_waits_alone_starts_as_soon_as_the_page_lets_it(seed, pool_name):
    world = World(seed + 100)
    for _ in range(2):
        world.create()
    mesh, duration = world.mesh, world.rng.choice([600.0, 5 * HOUR, 30 * HOUR])
    mesh.tick()
    mesh.queue("x", pool_name, cpu=4, duration=duration)
    run_s = duration + LEAVING_S
    for _ in range(400):
        if "x" not in mesh.state.queue.by_id:
            return
        assert not may_start_anywhere(world, mesh.now, run_s, pool_name), "it might have started"
        explained = mesh.engine.explain("x", mesh.now)
        assert explained.reason in ("maintenance_window", "node_reserved")
        # What is said to be the earliest start is a time at which it may start.
        assert may_start_anywhere(world, explained.earliest_start, run_s, pool_name)
        mesh.tick(1800.0)
    pytest.fail("it never started")


@pytest.mark.parametrize("seed", range(4))
def test_a_twin_that_is_restored_decides_the_same(seed):
    world = World(seed)
    for _ in range(60):
        world.rng.choice(steps_of(world))()
        world.check()
        now = world.mesh.now + world.rng.choice([0.0, HOUR, 5 * HOUR])
        first, second = Engine(world.mesh.rewritten()), Engine(world.mesh.rewritten())
        step = first.handle(s.ClockTicked(), now)
        assert second.handle(s.ClockTicked(), now).facts == step.facts
        live = world.mesh
        if now == live.now:
            before = len(live.facts)
            live.tick()
            assert tuple(live.facts[before:]) == step.facts
            world.check()
