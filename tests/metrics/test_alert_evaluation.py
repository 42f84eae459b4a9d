"""When alerts are pending, fire and are resolved."""

from __future__ import annotations

import pytest

from schedulemesh.metrics.alert_conditions import Comparator, Condition, Value
from schedulemesh.metrics.alert_evaluation import MOST_OF_A_RULE, AlertBoard, AlertState
from schedulemesh.metrics.alert_rules import RULES, Rule, Severity

POOL = (("pool", "训练"),)


def rule(for_s=0.0):
    return Rule(
        id="high",
        condition=Condition(
            expression=Value(metric="m"), comparison=Comparator.ABOVE, threshold=10.0
        ),
        for_s=for_s,
        severity=Severity.WARNING,
        summary="pool {pool} is high",
        action="look at {pool}",
    )


class Story:
    """Values of one metric at times, and what is told of them."""

    def __init__(self, for_s=0.0, board=None):
        self.rules = [rule(for_s)]
        self.board = AlertBoard("mesh") if board is None else board

    def at(self, now, value, labels=POOL):
        samples = {} if value is None else {"m": {labels: value}}
        return [a.state.value for a in self.board.evaluate(self.rules, samples, now)]

    def states(self):
        return [alert.state.value for alert in self.board.all()]


def test_an_alert_is_pending_then_fires_once_and_is_resolved_once():
    story = Story(for_s=60.0)
    assert story.at(0.0, 11.0) == []
    assert story.states() == ["pending"]
    assert story.at(59.0, 12.0) == []
    assert story.at(60.0, 13.0) == ["firing"]
    assert story.at(75.0, 14.0) == []
    (alert,) = story.board.all()
    assert (alert.value, alert.active_at, alert.fired_at) == (14.0, 0.0, 60.0)
    assert (alert.summary, alert.action) == ("pool 训练 is high", "look at 训练")
    assert story.at(90.0, 10.0) == ["resolved"]
    assert story.at(105.0, 10.0) == []
    (resolved,) = story.board.all()
    assert (resolved.id, resolved.state, resolved.resolved_at) == (
        alert.id,
        AlertState.RESOLVED,
        90.0,
    )


def test_a_pending_alert_whose_condition_ends_is_told_to_nobody():
    story = Story(for_s=60.0)
    assert story.at(0.0, 11.0) == story.at(30.0, 9.0) == story.at(70.0, 11.0) == []
    assert story.states() == ["pending"]


@pytest.mark.parametrize("value", [None, float("nan")])
def test_an_alert_without_a_value_is_resolved(value):
    story = Story()
    assert story.at(0.0, 11.0) == ["firing"]
    assert story.at(15.0, value) == ["resolved"]


def test_each_time_it_fires_has_an_id_of_its_own():
    story = Story()
    story.at(0.0, 11.0)
    story.at(15.0, 0.0)
    story.at(30.0, 11.0)
    first, second = (alert.id for alert in story.board.all())
    assert first != second


def test_after_a_restart_an_alert_that_fires_is_not_told_again():
    first = Story()
    assert first.at(0.0, 11.0) == ["firing"]
    board = AlertBoard("mesh", first.board.firing(), first.board.resolved)
    second = Story(board=board)
    assert second.at(30.0, 12.0) == []
    assert [a.id for a in board.firing()] == [a.id for a in first.board.firing()]
    assert second.at(45.0, 1.0) == ["resolved"]


def test_alerts_of_a_rule_that_was_switched_off_are_resolved():
    story = Story()
    story.at(0.0, 11.0)
    (resolved,) = story.board.drop_others(RULES.values(), 15.0)
    assert (resolved.rule, resolved.state) == ("high", AlertState.RESOLVED)
    assert story.board.firing() == []


def test_the_alerts_of_a_rule_are_limited_and_those_that_exist_stay():
    board = AlertBoard("mesh")
    few = {"m": {(("agent", f"b{number}"),): 11.0 for number in range(10)}}
    many = {(("agent", f"a{number}"),): 11.0 for number in range(1000)}
    board.evaluate([rule()], few, 0.0)
    fired = board.evaluate([rule()], {"m": many | few["m"]}, 15.0)
    assert len(fired) == MOST_OF_A_RULE - 10
    assert {a.labels for a in board.firing()} >= set(few["m"])
