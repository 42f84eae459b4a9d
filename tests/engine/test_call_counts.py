"""What the life of a task costs the engine, as a number of calls of Python functions: the same on every
machine. The limits only ever fall: what is off costs nothing.
"""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from benchmarks import budgets, models, owners
from benchmarks.mesh import POOLS, amounts, finish, finished, gone, mesh, reported, start, submitted
from benchmarks.queueing import Drain
from schedulemesh.engine.engine import Engine
from schedulemesh.engine.messages.stimuli import ClockTicked
from schedulemesh.engine.state.snapshot import parts, restored, take_snapshot
from tests.counted_calls import calls_of

#: Calls from the submission of a task to the end of its agent, while nothing waits and 300 others run. With
#: 3.12 and later, in which comprehensions are no functions, they are fewer.
A_LIFE = 190
LIVES = 60


def test_the_life_of_a_task_in_calls():
    needs = (
        amounts(cpu=1, memory=1_000),
        amounts(cpu=2, memory=1_000, gpu=0.5),
        amounts(cpu=4, memory=8_000, gpu=0.25),
    )

    def submission(number):
        return submitted(number, needs[number % 3], float(number % 7), 100.0)

    engine = mesh(50)
    running = {number: start(engine, submission(number), 1.0) for number in range(300)}
    for number in range(100):  # classes, and what is kept for lack of room, are there
        finish(engine, number, running[number], 1.0)

    def count(stimulus):
        step, calls = calls_of(lambda: engine.handle(stimulus, 1.0))
        return step, calls - 1  # the lambda

    total = 0
    for number in range(300, 300 + LIVES):
        step, admitting = count(submission(number))
        _, starting = count(reported(engine, step))
        oldest = number - 200
        _, ending = count(finished(oldest))
        _, leaving = count(gone(oldest, running[oldest]))
        total += admitting + starting + ending + leaving
    assert total / LIVES <= A_LIFE


#: Calls for each task that a snapshot has in the queue: what differs among them is read as columns.
A_RESTORED_TASK = 3


def test_a_queue_that_is_restored_in_calls():
    engine = mesh(1)
    for number in range(3_000):
        need = amounts(cpu=64, gpu=8 - number % 3)
        engine.handle(replace(submitted(number, need, 5.0, 60.0), request_id=None, queue=True), 1.0)
    stored = list(parts(take_snapshot(engine.state)))
    again, calls = calls_of(lambda: restored(stored))
    assert len(again.queue) == 3_000 - 1
    assert calls / 3_000 <= A_RESTORED_TASK


def calls_of_ends(waiting):
    """The calls of ends with the starts in their place, and of ticks, while tasks wait that all differ."""
    engine, dice, running = mesh(8), random.Random(7), {}

    def submission(number, **need):
        one = submitted(number * POOLS, amounts(cpu=4, **need), 5.0, 100.0)
        return replace(one, request_id=None, queue=True)

    for number in range(16):
        busy = submission(number, gpu=4, memory=200_000)
        running[number * POOLS] = start(engine, busy, 1.0)
    for number in range(100, 100 + waiting):
        gpus, memory = dice.choice((1, 2, 4)), dice.uniform(50_000, 400_000)
        engine.handle(submission(number, gpu=gpus, memory=memory), 1.0)
    engine.handle(ClockTicked(), 2.0)

    def go_on():
        for now, (number, incarnation) in enumerate(running.items(), start=3):
            finish(engine, number, incarnation, now)
            engine.handle(ClockTicked(), now + 0.5)

    _, calls = calls_of(go_on)
    assert len(engine.state.queue) < waiting
    return calls


#: How many times as many calls it takes while four times as many tasks wait.
OF_FOUR_TIMES_AS_MANY = 1.4


def test_a_queue_in_which_all_tasks_differ_in_calls():
    assert calls_of_ends(800) / calls_of_ends(200) <= OF_FOUR_TIMES_AS_MANY


def tick_in_calls(users):
    """The calls of a tick of a full mesh, on which tasks of so many users wait in two pools. Each task has a
    label that names its user.
    """
    engine = mesh(8)
    for number in range(32):
        start(engine, submitted(number, amounts(cpu=4, gpu=2), 5.0, 100.0), 1.0)
    for number in range(80):
        of_pool = (2 + number // 2) * POOLS + number % 2
        one = submitted(of_pool, amounts(cpu=4, gpu=(1, 2, 4)[number % 3]), 5.0, 100.0)
        task = replace(one.task, labels={"user": str(number // 2 % users)})
        engine.handle(replace(one, task=task, request_id=None, queue=True), 1.0)
    assert len(engine.state.queue) == 80
    _, calls = calls_of(lambda: engine.handle(ClockTicked(), 2.0))
    return calls


def test_labels_that_no_rule_names_make_a_tick_hardly_longer():
    assert tick_in_calls(40) <= 1.5 * tick_in_calls(1)


def drained_calls(opening, submissions, tasks):
    """The calls with which a queue is drained that these stimuli make."""
    engine = Engine()
    drain = Drain(engine)
    for stimulus in (*opening, *submissions):
        drain.take(engine.handle(stimulus, 1.0).instructions)

    def go_on():
        for stimulus in drain.stimuli():
            drain.take(engine.handle(stimulus, drain.now).instructions)

    _, calls = calls_of(go_on)
    assert drain.admitted == tasks
    return calls


#: The least rates of decisions, in calls and relative to the first way: what tasks say of nodes, and pools of
#: owners and budgets.
RATES = {
    models: {
        "a model": 0.99,
        "alternatives": 0.95,
        "flavors": 0.96,
        "a model of the flavors": 0.96,
    },
    owners: {
        "limits that hold nobody back": 0.95,
        "limits that hold back all": 0.95,
        "owner_order fair": 0.91,
    },
    budgets: {"a budget of each pool": 0.96, "budgets of pools and owners": 0.92},
}


@pytest.mark.parametrize("module", RATES, ids=lambda module: module.__name__)
def test_what_tasks_and_pools_ask_for_costs_a_tenth_at_most(module):
    nodes, tasks = 30, 1_200

    def calls(way):
        if module is models:
            submissions = [module._submission(number, way) for number in range(tasks)]
        else:
            submissions = [module._submission(number) for number in range(tasks)]
        return drained_calls(module._opening(nodes, way), submissions, tasks)

    plain, *others = module.WAYS
    base = calls(plain)
    rates = {way: base / calls(way) for way in others}
    assert {way: rate for way, rate in rates.items() if rate < RATES[module][way]} == {}
