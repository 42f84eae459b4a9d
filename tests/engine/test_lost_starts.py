"""A task whose starts are lost with their nodes is started more and more seldom, and not for ever."""

from __future__ import annotations

import pytest

from schedulemesh.domain.task import EndState
from schedulemesh.engine.admission.requeue import LOST_STARTS
from tests.engine.builders import Mesh, differences, node, pool


@pytest.fixture
def mesh():
    return Mesh(pool("p", cpu=8), nodes=[node("a", cpu=8)])


def lose_start(mesh, task_id="t"):
    """The node dies on which the task is being started; another joins. The seconds until the next try."""
    mesh.fail(task_id, room_lost=True)
    waiting = mesh.state.queue.by_id.get(task_id)
    return None if waiting is None else waiting.not_before - mesh.now


def start_again(mesh, task_id="t"):
    mesh.now = mesh.state.queue.by_id[task_id].not_before
    mesh.tick()
    assert task_id in mesh.starts


def lose_starts(mesh, count):
    """The waits after so many starts that are lost in a row; the next try is not made yet."""
    waits = []
    for number in range(count):
        if number:
            start_again(mesh)
        waits.append(lose_start(mesh))
    return waits


def test_each_start_in_a_row_that_is_lost_doubles_the_wait(mesh):
    mesh.queue("t", cpu=4, class_key="c")
    assert lose_starts(mesh, LOST_STARTS) == [2.0, 4.0, 8.0, 16.0, 32.0]
    assert mesh.state.queue.by_id["t"].attempts.failures == 0
    assert differences(mesh.state, mesh.refolded()) == []
    assert differences(mesh.state, mesh.rewritten()) == []


def test_the_wait_has_an_end(mesh):
    mesh.queue("t", cpu=4, class_key="c", retries=10)
    assert lose_starts(mesh, 10)[-2:] == [300.0, 300.0]


def test_explain_says_how_often_it_was_lost(mesh):
    mesh.queue("t", cpu=4, class_key="c")
    lose_starts(mesh, 1)
    assert (
        mesh.engine.explain("t", mesh.now).error
        == "its start was lost with its node; next try in 2 s"
    )
    start_again(mesh)
    lose_start(mesh)
    start_again(mesh)
    lose_start(mesh)
    explained = mesh.engine.explain("t", mesh.now)
    assert explained.reason == "back_off"
    assert explained.error == "its start was lost with its node 3 times in a row; next try in 8 s"


def test_a_start_that_succeeds_ends_the_row(mesh):
    mesh.queue("t", cpu=4, class_key="c", on_preempted="requeue")
    lose_starts(mesh, 3)
    start_again(mesh)
    mesh.report("t")
    assert mesh.state.running.by_id["t"].attempts.lost_starts == 0
    mesh.preempt(agent_name="t")
    mesh.leave("t")
    mesh.tick()
    assert lose_start(mesh) == 2.0


def test_too_many_in_a_row_without_retries_is_a_failure(mesh):
    mesh.queue("t", cpu=4, class_key="c")
    lose_starts(mesh, LOST_STARTS)
    start_again(mesh)
    lose_start(mesh)
    past = mesh.state.ended["t"]
    assert (past.state, past.reason) == (EndState.FAILED, "not_started")
    assert "its start was lost with its node 6 times in a row" in str(past.error)


def test_each_further_one_counts_against_its_retries(mesh):
    mesh.queue("t", cpu=4, class_key="c", retries=2)
    lose_starts(mesh, LOST_STARTS + 2)
    assert mesh.state.queue.by_id["t"].attempts.failures == 2
    start_again(mesh)
    lose_start(mesh)
    assert mesh.state.ended["t"].state is EndState.FAILED


def test_other_starts_without_room_are_not_counted(mesh):
    mesh.queue("t", cpu=4, class_key="c")
    lose_starts(mesh, 2)
    start_again(mesh)
    mesh.fail("t", "cluster_out_of_resources")
    assert mesh.state.queue.by_id["t"].not_before == mesh.now + 2.0
    assert mesh.state.queue.by_id["t"].attempts.lost_starts == 2
