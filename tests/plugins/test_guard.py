"""The guard: whatever a strategy does, the decision goes on."""

from __future__ import annotations

import logging
from asyncio import CancelledError
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from schedulemesh.plugins import ResourceDomain, SchedulingStrategyPlugin, TaskView
from schedulemesh.plugins.guard import Guarded
from schedulemesh.plugins.scheduling import hooks_of

AMOUNTS = {"cpu": 1.0, "memory": 0.0, "gpu": 0.0, "custom": {}}
TASK = TaskView(id="t", pool="p", priority=5.0, labels={}, resources=AMOUNTS)
NODE = ResourceDomain(kind="node", name="a", labels={}, total=AMOUNTS, free=AMOUNTS)


class Says(SchedulingStrategyPlugin):
    """Answers what it was made with, or raises it."""

    def __init__(self, answer):
        self.answer = answer

    def priority(self, task):
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer

    def preemption_policy(self, high, low):
        return self.answer


class Clock:
    """Time that goes by as it is told, at every look."""

    def __init__(self, *steps):
        self.steps = list(steps)
        self.now = 0.0

    def __call__(self):
        self.now += self.steps.pop(0)
        return self.now


def test_only_overridden_hooks_are_called():
    assert hooks_of(Says(1)) == ("priority", "preemption_policy")
    assert hooks_of(SchedulingStrategyPlugin()) == ()
    assert SchedulingStrategyPlugin().score(TASK, NODE) is None
    assert not Guarded("s", Says(1)).has("score")


@pytest.mark.parametrize("answer", [3, 2.5, -1.0, None])
def test_a_valid_answer_is_returned(answer):
    guarded = Guarded("s", Says(answer))
    assert guarded.priority(TASK) == answer
    assert guarded.failures == 0


@pytest.mark.parametrize(
    "answer",
    [float("nan"), float("inf"), "7", True, [1], RuntimeError("no"), SystemExit(1)],
    ids=repr,
)
def test_an_invalid_answer_is_logged_counted_and_ignored(answer, caplog):
    guarded = Guarded("s", Says(answer))
    with caplog.at_level(logging.WARNING):
        assert guarded.priority(TASK) is None
    assert (guarded.calls, guarded.failures, guarded.disabled) == (1, 1, "")
    assert "strategy s, priority" in caplog.text


@pytest.mark.parametrize(("answer", "failures"), [(True, 0), (None, 0), (1, 1), ("yes", 1)])
def test_a_preemption_verdict_is_true_false_or_none(answer, failures):
    guarded = Guarded("s", Says(answer))
    assert guarded.preemption_policy(TASK, TASK) is (None if failures else answer)
    assert guarded.failures == failures


def test_the_third_call_above_10_ms_disables():
    told = []
    clock = Clock(0, 0.011, 0, 0.010, 0, 0.02, 0, 0.5)
    guarded = Guarded("s", Says(1), clock, told.append)
    for slow in (1, 1, 2):
        guarded.priority(TASK)
        assert guarded.slow == slow
        assert guarded.has("priority")
    guarded.priority(TASK)
    assert told == [guarded]
    assert not guarded.has("priority")
    assert guarded.disabled == "3 calls took longer than 10 ms"


def test_without_a_clock_nothing_is_timed():
    guarded = Guarded("s", Says(1))
    for _ in range(5):
        guarded.priority(TASK)
    assert guarded.slow == 0
    assert guarded.running_call is None


def test_a_running_call_is_visible_to_the_watchdog():
    seen = []

    class Looks(SchedulingStrategyPlugin):
        def score(self, task, resources):
            seen.append(guarded.running_call)
            return 1.0

    guarded = Guarded("s", Looks(), Clock(4.0, 0))
    assert guarded.score(TASK, NODE) == 1.0
    assert seen == [("score", 4.0)]
    assert guarded.running_call is None


@pytest.mark.parametrize(
    "given", [np.float32(2.5), np.float64(2.5), np.array(2.5), Fraction(5, 2), Decimal("2.5")]
)
def test_numbers_of_numpy_and_the_library_are_numbers(given):
    guarded = Guarded("s", Says(given))
    answer = guarded.priority(TASK)
    if isinstance(given, Decimal):
        assert (answer, guarded.failures) == (None, 1)  # Decimal is no Real
    else:
        assert (answer, type(answer)) == (2.5, float)


@pytest.mark.parametrize("given", [np.int64(3), np.uint8(3)])
def test_integers_of_numpy_are_numbers(given):
    assert Guarded("s", Says(given)).priority(TASK) == 3.0


def test_truth_values_of_numpy_are_truth_values():
    assert Guarded("s", Says(np.bool_(True))).preemption_policy(TASK, TASK) is True
    assert Guarded("s", Says(np.bool_(False))).preemption_policy(TASK, TASK) is False


@pytest.mark.parametrize(
    "given", [np.bool_(True), np.float32("nan"), np.array([1.0]), np.str_("3"), 10**400]
)
def test_a_non_number_is_ignored_whatever_its_class(given):
    guarded = Guarded("s", Says(given))
    assert guarded.priority(TASK) is None
    assert guarded.failures == 1


class OfItsOwn(BaseException):
    pass


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), CancelledError(), GeneratorExit(), OfItsOwn()]
)
def test_a_decision_survives_any_exception_of_a_plugin(error):
    guarded = Guarded("s", Says(error))
    assert guarded.priority(TASK) is None
    assert guarded.failures == 1


class Marks:
    """What was marked, in order."""

    def __init__(self):
        self.marks = []

    def begin(self, name, hook):
        self.marks.append((name, hook))

    def end(self):
        self.marks.append(None)


@pytest.mark.parametrize("answer", [1.0, RuntimeError("no"), KeyboardInterrupt()])
def test_a_call_is_marked_while_it_lasts(answer):
    marks = Marks()
    Guarded("s", Says(answer), mark=marks).priority(TASK)
    assert marks.marks == [("s", "priority"), None]
