"""A task that gives its claim back before it ran, and waits again, has not failed, and its end says why."""

from __future__ import annotations

import msgspec
import pytest

from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.task import EndState
from schedulemesh.engine.messages.facts import AgentEnded, Returned
from schedulemesh.engine.messages.queue_facts import TaskQueued
from tests.engine.builders import Mesh, differences, node, pool
from tests.engine.returns import CAUSES, being_taken_back


def ends(mesh, name="t"):
    return [fact for fact in mesh.facts if isinstance(fact, AgentEnded) and fact.agent_name == name]


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.happen.__name__)
def test_the_end_of_its_agent_says_that_it_waits_again_and_why(cause):
    mesh = cause.happen(Mesh)
    (ended,) = ends(mesh)
    assert ended.returned == Returned(task_id="t", reason=cause.reason)
    queued = [fact for fact in mesh.facts if isinstance(fact, TaskQueued)]
    assert queued[-1].submission.task.task_id == "t"
    assert queued[-1].attempts.failures == 0
    assert "t" not in mesh.state.ended
    assert differences(mesh.state, mesh.refolded()) == []
    assert differences(mesh.state, mesh.rewritten()) == []


def test_a_start_that_failed_by_its_own_fault_has_failed():
    mesh = Mesh(pool("p", cpu=8), nodes=[node("a", cpu=8)])
    mesh.queue("t", cpu=4, class_key="c")
    mesh.fail("t", Reason.AGENT_START_FAILED)
    assert [ended.returned for ended in ends(mesh)] == [None]
    assert mesh.state.ended["t"].reason == "not_started"


def test_a_submission_that_does_not_wait_has_failed():
    mesh = Mesh(pool("p", cpu=8), nodes=[node("a", cpu=8)])
    mesh.submit("t", cpu=4, class_key="c")
    mesh.fail("t", Reason.CLUSTER_OUT_OF_RESOURCES)
    assert [ended.returned for ended in ends(mesh)] == [None]
    assert mesh.state.ended["t"].reason == "not_started"


def test_one_whose_agent_is_deleted_while_an_owner_takes_its_quota_back_is_cancelled():
    mesh = being_taken_back(Mesh)
    mesh.delete("t")
    mesh.leave("t")
    assert [ended.returned for ended in ends(mesh)] == [None]
    past = mesh.state.ended["t"]
    assert (past.state, past.reason) == (EndState.CANCELLED, "deleted")
    assert mesh.waiting("b") == []


def test_others_on_the_agent_end_with_it():
    mesh = Mesh(pool("p", cpu=8), nodes=[node("a", cpu=8)])
    mesh.queue("t", cpu=4, class_key="c")
    assert mesh.announce("other", agent_name="t").change is None
    mesh.fail("t", Reason.CLUSTER_OUT_OF_RESOURCES)
    assert mesh.waiting() == ["t"]
    assert mesh.state.ended["other"].reason == "not_started"


def test_a_task_that_was_cancelled_and_submitted_anew_is_another_one():
    mesh = being_taken_back(Mesh)
    mesh.cancel("t")
    again = mesh.submission("t", "a", cpu=1, more={"queue": True})
    agent = msgspec.structs.replace(again.agent, name="elsewhere")
    mesh.handle(msgspec.structs.replace(again, agent=agent))
    mesh.report("elsewhere")
    mesh.leave("t")
    assert [ended.returned for ended in ends(mesh)] == [None]
    assert mesh.state.running.by_id["t"].agent_name == "elsewhere"
    assert mesh.waiting("b") == []
