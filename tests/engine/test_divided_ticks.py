"""Ticks that are made in portions, between which others are served."""

from __future__ import annotations

import os

import pytest

from schedulemesh.engine.admission import reservations
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.facts import AgentAdmitted
from schedulemesh.engine.messages.queue_facts import Ticked
from schedulemesh.engine.state.invariants import check
from tests.engine.builders import Mesh, differences, in_portions, node, pool
from tests.engine.distinct_worlds import Digested, Life, indexed_from

WORLDS = int(os.environ.get("HYPOTHESIS_EXAMPLES", "4"))


class Divided(Digested):
    """A mesh whose ticks are divided, and that counts their portions."""

    portions = 0

    def between(self):
        """What happens between two portions."""
        Divided.portions += 1

    def handle(self, stimulus):
        engine = self.engine
        if isinstance(stimulus, s.ClockTicked):
            self.engine = _Portions(engine, self.between)
            try:
                return super().handle(stimulus)
            finally:
                self.engine = engine
        return super().handle(stimulus)


class _Portions:
    """An engine that makes ticks class by class."""

    def __init__(self, engine, between):
        self._engine, self._between = engine, between
        self.state = engine.state

    def handle(self, stimulus, now):
        """All portions of a tick."""
        return in_portions(self._engine, stimulus, now, self._between)


class DividedLife(Life):
    mesh_type = Divided


@pytest.mark.parametrize("seed", range(WORLDS))
def test_a_divided_tick_decides_the_same_where_nothing_happens_in_between(seed):
    Divided.portions = 0
    with indexed_from(8, block=4):
        at_once = Life(seed).live()
        in_turns = DividedLife(seed).live()
    assert in_turns == at_once
    assert Divided.portions > len(at_once)


class Interrupted(Digested):
    """A mesh in which something happens between the portions of a tick."""

    check_every = 1
    between = None

    def handle(self, stimulus):
        if not isinstance(stimulus, s.ClockTicked) or self.between is None:
            return super().handle(stimulus)
        step = super().handle(s.ClockTicked(portion=1))
        while step.is_unfinished:
            self.between()
            step = super().handle(s.TickContinued())
        return step


class InterruptedLife(Life):
    mesh_type = Interrupted

    def __init__(self, seed):
        super().__init__(seed)
        self.others = [step for step in self.steps() if step != self.tick]
        self.mesh.between = self.interrupt
        self.interruptions = 0

    def interrupt(self):
        """Now and then somebody else is served, a little later."""
        if self.dice.random() < 0.3:
            self.mesh.now += self.dice.choice((0.0, 0.001, 0.5))
            self.dice.choice(self.others)()
            self.interruptions += 1


@pytest.mark.parametrize("seed", range(WORLDS))
def test_whatever_happens_in_between_what_is_true_holds(seed):
    with indexed_from(8, block=4):
        life = InterruptedLife(seed)
        life.live()
    assert life.interruptions
    check(life.mesh.state)
    refolded = life.mesh.refolded()
    # What has become due without a fact is due in both.
    for state in (life.mesh.state, refolded):
        state.queue.advance(life.mesh.now)
    assert differences(life.mesh.state, refolded) == []


POOLS = [f"p{number}" for number in range(6)]


def waiting_for_a_tick():
    """A mesh in which a task of each pool evicts at the next tick the one that runs there."""
    pools = [pool(name, cpu=4) for name in POOLS]
    mesh = Mesh(*pools, pool("other", cpu=1), nodes=[node("n", cpu=25)])
    mesh.handle(s.ClassProbed(class_key="c"))
    for name in POOLS:
        mesh.run(f"low-{name}", name, 1.0, cpu=4, class_key="c")
    mesh.run("beside", "other", cpu=1)
    mesh.policy(same_pool_priority_threshold=50.0, enable_cross_pool_preemption=False)
    for name in POOLS:
        mesh.queue(f"high-{name}", name, 9.0, cpu=4, class_key="c")
    assert not mesh.ends
    mesh.policy(same_pool_priority_threshold=1.0)
    return mesh


def admitted(facts):
    """The tasks that were admitted."""
    return {fact.task.task_id for fact in facts if isinstance(fact, AgentAdmitted)}


def test_each_portion_decides_by_itself_and_the_last_one_says_that_it_was_a_tick():
    mesh = waiting_for_a_tick()
    steps = [mesh.handle(s.ClockTicked(portion=1))]
    while steps[-1].is_unfinished:
        steps.append(mesh.handle(s.TickContinued()))
    assert [len(admitted(step.facts)) for step in steps if admitted(step.facts)] == [1] * 6
    ticked = [any(isinstance(fact, Ticked) for fact in step.facts) for step in steps]
    assert ticked == [False] * (len(steps) - 1) + [True]


def test_a_tick_that_is_always_interrupted_tries_every_class_once():
    mesh, decided, portions = waiting_for_a_tick(), [], 0
    step = mesh.handle(s.ClockTicked(portion=1))
    while True:
        decided += step.facts
        portions += 1
        if not step.is_unfinished:
            break
        mesh.queue(f"new-{portions}", "other", cpu=1)
        mesh.cancel(f"new-{portions}")
        step = mesh.handle(s.TickContinued())
    assert admitted(decided) == {f"high-{name}" for name in POOLS}
    assert portions <= 3 * len(POOLS)


def test_what_is_cancelled_in_between_is_not_started():
    mesh = waiting_for_a_tick()
    first = mesh.handle(s.ClockTicked(portion=1))
    (started,) = admitted(first.facts)
    others = sorted({f"high-{name}" for name in POOLS} - {started})
    mesh.cancel(others[0])
    mesh.change(others[1], held=True)
    decided, step = [], first
    while step.is_unfinished:
        step = mesh.handle(s.TickContinued())
        decided += step.facts
    assert admitted(decided) == set(others[2:])


def test_a_tick_that_is_not_finished_is_given_up_when_the_next_one_begins():
    mesh = waiting_for_a_tick()
    assert mesh.handle(s.ClockTicked(portion=1)).is_unfinished
    mesh.tick(1.0)
    assert len(mesh.ends) == len(POOLS)
    nothing = mesh.handle(s.TickContinued())
    assert (nothing.facts, nothing.is_unfinished) == ((), False)


def with_late_starts(count):
    """A mesh in which the first task of each of so many pools can start when the one there has ended."""
    names = [f"p{number}" for number in range(count)]
    mesh = Mesh(*(pool(name, cpu=4) for name in names), nodes=[node("n", cpu=4 * count)])
    for number, name in enumerate(names):
        mesh.run(f"runs-{name}", name, cpu=4, duration=100.0 + number)
        mesh.queue(f"waits-{name}", name, cpu=4)
    return mesh


@pytest.fixture
def searches(monkeypatch):
    """The tasks whose starts were sought."""
    sought, seek = [], reservations._earliest

    def noted(state, projections, task, classes):
        sought.append(task.task_id)
        return seek(state, projections, task, classes)

    monkeypatch.setattr(reservations, "_earliest", noted)
    return sought


def starts_of(mesh):
    return {name: mesh.state.queue.by_id[name].reservation.at for name in mesh.state.queue.reserved}


def test_starts_are_sought_one_by_one(searches):
    mesh = with_late_starts(6)
    step, counts = mesh.handle(s.ClockTicked(portion=50)), [len(searches)]
    while step.is_unfinished:
        step = mesh.handle(s.TickContinued())
        counts.append(len(searches) - sum(counts))
    assert (max(counts), sum(counts)) == (1, 6)
    assert starts_of(mesh) == {f"waits-p{n}": 1100.0 + n for n in range(6)}
    at_once = with_late_starts(6)
    at_once.handle(s.ClockTicked())
    assert starts_of(at_once) == starts_of(mesh)


def test_what_happens_between_two_searches_counts_in_those_that_follow(searches):
    mesh = with_late_starts(4)
    step = mesh.handle(s.ClockTicked(portion=50))
    while not searches:
        step = mesh.handle(s.TickContinued())
    mesh.cancel("waits-p1")
    mesh.handle(s.TimeLimitRequested(task_id="runs-p3", max_run_s=30.0, request_id="shorter"))
    while step.is_unfinished:
        step = mesh.handle(s.TickContinued())
    assert searches == ["waits-p0", "waits-p2", "waits-p3"]
    # After 30 s, and 35 s in which it is saved and cancelled.
    assert starts_of(mesh) == {"waits-p0": 1100.0, "waits-p2": 1102.0, "waits-p3": 1065.0}
