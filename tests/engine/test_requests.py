"""A request that is repeated gets its first outcome, and the repetition changes nothing."""

from __future__ import annotations

import pytest

from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.outcomes import (
    Accepted,
    AgentEvicted,
    Done,
    Evicted,
    Pending,
    ProbeNeeded,
    Queued,
    Refused,
)
from schedulemesh.engine.messages.stimulus import Request
from tests.engine.builders import Mesh, node, pool


def mesh_of(**more):
    """Room for four tasks of one CPU, two of which run."""
    mesh = Mesh(pool("p", cpu=4), nodes=[node("a", cpu=4)], **more)
    mesh.run("t", cpu=1)
    mesh.run("u", cpu=1)
    return mesh


def with_a_lost_agent():
    mesh = mesh_of()
    mesh.run("x", cpu=1, class_key="c")
    mesh.die("x")
    return mesh


def with_a_second_task():
    mesh = mesh_of()
    mesh.announce("second", "t")
    return mesh


def with_a_waiting_task():
    mesh = mesh_of()
    mesh.queue("w", cpu=4)
    return mesh


def submission(name="new", **how):
    return Mesh().submission(name, more={"request_id": "r"}, **how)


def queued(**how):
    return Mesh().submission("new", more={"request_id": "r", "queue": True}, **how)


def finished(task_id, **how):
    return s.TaskFinished(task_id=task_id, request_id="r", **how)


def preempted(**how):
    return s.PreemptionRequested(request_id="r", **how)


def rebuilt(name):
    return s.RebuildRequested(agent_name=name, request_id="r")


def start(mesh):
    (name,) = mesh.starts
    mesh.report(name)


def end(mesh):
    (name,) = mesh.ends
    mesh.leave(name)


def cancel(mesh):
    (task_id,) = mesh.task_evictions
    mesh.handle(s.CancelAnswered(task_id=task_id, cancel_success=True))


#: Every kind of request, once with each way in which it is answered: immediately, or after it was pending.
IMMEDIATE = [
    (mesh_of, submission(cpu=9), Refused),
    (mesh_of, submission("t", cpu=1), Refused),
    (mesh_of, finished("t"), Done),
    (with_a_second_task, finished("t", end_agent=True), Done),
    (mesh_of, finished("unknown"), Refused),
    (mesh_of, preempted(task_id="unknown"), Refused),
    (mesh_of, preempted(agent_name="unknown", end_agent=True), Refused),
    (mesh_of, rebuilt("t"), Refused),
    (mesh_of, queued(cpu=1), Queued),
    (mesh_of, queued(cpu=4), Queued),
    (mesh_of, queued(cpu=9), Refused),
    (with_a_waiting_task, s.QueuedTaskChanged(task_id="w", held=True, request_id="r"), Done),
    (mesh_of, s.QueuedTaskChanged(task_id="w", held=True, request_id="r"), Refused),
    (with_a_waiting_task, s.TaskCancellationRequested(task_id="w", request_id="r"), Done),
    (mesh_of, s.TaskCancellationRequested(task_id="w", request_id="r"), Refused),
]
LATER = [
    (mesh_of, submission(cpu=1), start, Accepted),
    (mesh_of, submission(cpu=1), lambda mesh: mesh.fail("new"), Refused),
    (mesh_of, submission(cpu=1), lambda mesh: (mesh.delete("new"), end(mesh)), Refused),
    (mesh_of, finished("t", end_agent=True), end, Done),
    (mesh_of, preempted(task_id="t"), cancel, Evicted),
    (mesh_of, preempted(agent_name="t", end_agent=True), end, AgentEvicted),
    (with_a_lost_agent, rebuilt("x"), start, Accepted),
]


def test_every_kind_of_request_is_covered():
    kinds = {type(case[1]) for case in (*IMMEDIATE, *LATER)}
    assert kinds == set(s.AnyRequest.__args__) == set(Request.__subclasses__())


@pytest.mark.parametrize(("made", "request_", "kind"), IMMEDIATE)
def test_a_final_outcome_is_given_again(made, request_, kind):
    mesh = made()
    first = mesh.handle(request_)
    assert isinstance(first.outcome, kind)
    assert mesh.state.answers["r"].outcome == first.outcome
    assert repeated(mesh, request_) == first.outcome
    # What would decide otherwise now changes nothing either.
    mesh.announce("unknown", "unknown")
    mesh.resize(pool("p", cpu=20))
    assert repeated(mesh, request_) == first.outcome


@pytest.mark.parametrize(("made", "request_", "happens", "kind"), LATER)
def test_a_pending_request_stays_pending_and_its_final_outcome_is_given_again(
    made, request_, happens, kind
):
    mesh = made()
    first = mesh.handle(request_).outcome
    assert isinstance(first, Pending)
    assert repeated(mesh, request_) == first
    happens(mesh)
    final = mesh.state.answers["r"].outcome
    assert isinstance(final, kind)
    assert mesh.told == ["r"]
    assert repeated(mesh, request_) == final


def test_a_request_without_an_id_is_decided_each_time():
    mesh = mesh_of()
    assert isinstance(mesh.submit("x", cpu=1), Pending)
    assert mesh.submit("x", cpu=1).reason == "duplicate_task"
    assert not mesh.state.answers


def test_a_dry_run_and_a_probe_are_not_remembered():
    mesh = mesh_of()
    mesh.run("low", priority=0.0, cpu=2)
    dry = s.TaskSubmitted(agent=submission(cpu=9).agent, request_id="r", dry_run=True)
    assert mesh.handle(dry).facts == ()
    probed = submission(cpu=2, priority=9.0, class_key="unseen")
    assert isinstance(mesh.handle(probed).outcome, ProbeNeeded)
    assert not mesh.state.answers
    mesh.handle(s.ClassProbed(class_key="unseen"))
    assert isinstance(mesh.handle(probed).outcome, Pending)


def repeated(mesh, request_):
    """The outcome of a repetition, which changes nothing."""
    step = mesh.handle(request_)
    assert step.facts == ()
    assert step.instructions == ()
    return step.outcome
