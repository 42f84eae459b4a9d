"""The scheduler's own log: shortage, victims, cancellations and the policy, at the documented levels."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

from schedulemesh.config.policy import PreemptionPolicy
from schedulemesh.config.queueing import QueuePolicy
from schedulemesh.domain.language import language_of
from schedulemesh.domain.placement import GroupsSpec
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.runtime.services import decision_log
from schedulemesh.runtime.services.decision_log import (
    log_facts,
    log_refusal,
    log_step,
    log_unchanged_policy,
    speak,
)
from tests.engine.builders import Mesh, node, pool


@pytest.fixture
def told(caplog):
    """What was told since the last look: (level, message)."""
    caplog.set_level(logging.INFO, logger="schedulemesh.runtime.services.decision_log")

    def look():
        found = [(record.levelname, record.getMessage()) for record in caplog.records]
        caplog.clear()
        return found

    return look


def test_a_shortage_is_a_warning_and_its_victims_are_information(told):
    mesh = Mesh(pool("p", cpu=2))
    mesh.run("low", priority=1.0, cpu=1)
    mesh.run("lower", priority=0.5, cpu=1)
    step = mesh.handle(mesh.submission("high", priority=9.0, cpu=2))
    log_facts(step.facts)
    assert told() == [
        ("WARNING", "short of resources: task_id=high needs=(cpu 2)"),
        (
            "INFO",
            "victim chosen: victim_task=lower for=high score=8.50 reason=same_pool_preemption",
        ),
        ("INFO", "victim chosen: victim_task=low for=high score=8.00 reason=same_pool_preemption"),
    ]
    mesh.facts.clear()
    mesh.leave("low")
    log_facts(mesh.facts)
    assert told() == [("INFO", "preempted: task_id=low agent=low reason=same_pool_preemption")]


def test_a_pool_that_cannot_hold_a_waiting_task_any_more_is_a_warning(told):
    mesh = Mesh(pool("p", cpu=2))
    mesh.run("runs", cpu=1)
    mesh.queue("large", cpu=2)
    log_step(mesh.handle(s.PoolRequested(spec=pool("p", cpu=1))))
    ((level, message),) = told()
    assert level == "WARNING"
    assert message.startswith(
        "pools changed: 1 of the tasks that wait in pool 'p' cannot start in it"
    )


@pytest.fixture
def chinese():
    speak("zh")
    yield
    speak("en")


def test_in_chinese_the_words_are_those_of_the_documents_and_the_fields_stay(told, chinese):
    mesh = Mesh(pool("p", cpu=1))
    mesh.run("rollout-01", priority=1.0, cpu=1)
    step = mesh.handle(mesh.submission("rollout-extra-00", priority=9.0, cpu=1))
    log_facts(step.facts)
    assert told() == [
        ("WARNING", "资源不足 task_id=rollout-extra-00 needs=(cpu 1)"),
        (
            "INFO",
            (
                "找到抢占目标 victim_task=rollout-01 for=rollout-extra-00 score=8.00 "
                "reason=same_pool_preemption"
            ),
        ),
    ]


def test_every_message_has_its_chinese_words():
    source = Path(decision_log.__file__).read_text(encoding="utf-8")
    called = re.findall(r'_log\(\s*logging\.\w+,\s*"([^"]+)"', source)
    assert set(called) == set(decision_log._CHINESE)


@pytest.mark.parametrize(
    ("variables", "language"),
    [
        ({}, "en"),
        ({"LANG": "zh_CN.UTF-8"}, "zh"),
        ({"LANG": "zh_CN.UTF-8", "LC_ALL": "C.UTF-8"}, "en"),
        ({"LANG": "de_DE.UTF-8", "LC_MESSAGES": "zh_TW"}, "zh"),
        ({"LANG": "zh_CN.UTF-8", "SCHEDULEMESH_LANG": "en"}, "en"),
        ({"LC_ALL": "C", "SCHEDULEMESH_LANG": " ZH "}, "zh"),
        ({"SCHEDULEMESH_LANG": "", "LANG": "zh"}, "zh"),
    ],
)
def test_the_language_is_that_of_the_locale_unless_a_variable_names_another(variables, language):
    assert language_of(variables) == language


def test_a_submission_that_fits_is_not_logged(told):
    mesh = Mesh(pool("p", cpu=2))
    mesh.run("a", cpu=1)
    log_facts(mesh.facts)
    assert told() == []


def test_a_refusal_because_of_a_group_logs_no_shortage_of_amounts(told):
    mesh = Mesh(pool("p", cpu=4, groups=GroupsSpec(dynamic=False)), nodes=[node("a", cpu=4)])
    stimulus = mesh.submission("t", cpu=2)
    log_refusal(stimulus, mesh.handle(stimulus).outcome)
    assert told() == [("WARNING", "refused: task_id=t reason=group_unplaceable")]


def test_a_manual_eviction_is_logged(told):
    mesh = Mesh(pool("p", cpu=2))
    mesh.run("a", cpu=1)
    step = mesh.handle(s.PreemptionRequested(task_id="a", end_agent=True))
    log_facts(step.facts)
    assert told() == [("INFO", "preempting by request: victim_task=a")]


def test_a_shortage_is_a_warning_unless_it_was_a_dry_run(told):
    mesh = Mesh(pool("p", cpu=2))
    mesh.run("a", cpu=2)
    asked = mesh.submission("b", cpu=1)
    log_refusal(asked, mesh.handle(asked).outcome)
    assert told() == [("WARNING", "refused: task_id=b reason=preemption_failed lacks=(cpu 1)")]
    dry = mesh.submission("b", cpu=1, more={"dry_run": True})
    log_refusal(dry, mesh.handle(dry).outcome)
    elsewhere = mesh.submission("b", "nowhere", cpu=1)
    log_refusal(elsewhere, mesh.handle(elsewhere).outcome)
    assert told() == []


def test_the_resolved_aggressiveness_is_logged(told):
    mesh = Mesh()
    policy = PreemptionPolicy(label_priority_threshold=0.1, same_pool_priority_threshold=0.5)
    step = mesh.handle(
        s.PolicyChangeRequested(
            policy=policy,
            client="host:7",
            changes=("label_priority_threshold", "same_pool_priority_threshold"),
            level="high",
        )
    )
    log_facts(step.facts)
    assert told() == [
        ("INFO", "preemption policy changed by host:7"),
        ("INFO", "policy: preemption_aggressiveness=high"),
        ("INFO", "policy: label_priority_threshold=0.1"),
        ("INFO", "policy: same_pool_priority_threshold=0.5"),
    ]


def test_a_level_that_changes_nothing_is_logged_all_the_same(told):
    log_unchanged_policy(PreemptionPolicy(), ["same_pool_priority_threshold"], "medium")
    assert told() == [
        ("INFO", "policy: preemption_aggressiveness=medium"),
        ("INFO", "policy: same_pool_priority_threshold=1.0"),
    ]
    log_unchanged_policy(PreemptionPolicy(), ["same_pool_priority_threshold"], None)
    assert told() == []


def test_what_becomes_of_queued_tasks_is_logged_where_nobody_asked_for_it(told):
    mesh = Mesh(pool("p", cpu=1))
    mesh.queue("a", cpu=1, priority=1.0, on_preempted="requeue", class_key="c")
    mesh.report("a")
    mesh.queue("late", cpu=1, priority=1.0, more={"wait_s": 5.0})
    mesh.queue("unwanted", cpu=1, priority=1.0)
    mesh.cancel("unwanted")
    mesh.now += 5.0
    mesh.handle(s.ClockTicked())
    mesh.handle(
        s.QueuePolicyChangeRequested(
            policy=QueuePolicy(order="fifo"), client="me", changes=("order",)
        )
    )
    log_facts(mesh.facts)
    assert told() == [
        ("INFO", "cancelled: task_id=late reason=wait_timeout"),
        ("INFO", "queue policy changed by me: order=fifo"),
    ]
    mesh.facts.clear()
    mesh.queue("high", cpu=1, priority=9.0)
    mesh.leave("a")
    log_facts(mesh.facts)
    assert told()[-1] == ("INFO", "waits again: task_id=a pool=p preemptions=1 failures=0")
