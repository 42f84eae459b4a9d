"""After a recovery the books and the world are compared, and what was under way goes on."""

from __future__ import annotations

import pytest

from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.instructions import EvictAgent, StopAgent
from schedulemesh.engine.messages.outcomes import AgentEvicted, Evicted
from schedulemesh.engine.state.agents import Starting
from tests.engine.builders import Mesh, amount, node, pool


def mesh_of(cpu: float = 4) -> Mesh:
    return Mesh(pool("p", cpu=cpu), nodes=[node("n", cpu=cpu)])


def recover(mesh: Mesh, *alive: str) -> None:
    """The executor forgets all; the world is looked at; these agents live."""
    for orders in (mesh.starts, mesh.ends, mesh.task_evictions):
        orders.clear()
    living = frozenset((name, mesh.state.agents[name].incarnation) for name in alive)
    mesh.handle(s.RecoveryObserved(living=living))


def test_an_agent_that_lives_is_left_alone_and_a_dead_one_gives_its_quota_back():
    mesh = mesh_of()
    mesh.run("a", cpu=2)
    mesh.run("b", cpu=1)
    recover(mesh, "a")
    assert set(mesh.state.agents) == {"a"}
    assert mesh.free() == amount(cpu=2)
    assert set(mesh.state.lost) == {"b"}
    assert (mesh.starts, mesh.ends) == ({}, {})


@pytest.mark.parametrize("lives", [True, False])
def test_a_start_is_taken_over_where_the_actor_lives_and_made_again_where_not(lives):
    mesh = mesh_of()
    mesh.submit("a", cpu=2)
    recover(mesh, *(["a"] if lives else []))
    assert mesh.starts["a"].adopt is lives
    assert mesh.report("a").agent_name == "a"


def test_an_eviction_goes_on_and_the_incoming_agent_starts():
    mesh = mesh_of(cpu=2)
    mesh.run("low", priority=1.0, cpu=2)
    mesh.submit("high", priority=9.0, cpu=2)
    recover(mesh, "low")
    assert isinstance(mesh.ends["low"], EvictAgent)
    assert mesh.starts == {}
    mesh.leave("low", saved=True)
    assert mesh.report("high").preempted[0].task_id == "low"
    assert mesh.state.past.preemption_counts == {"same_pool_preemption": 1}


def test_a_victim_that_is_gone_already_lets_its_incoming_agent_start_once():
    mesh = mesh_of(cpu=2)
    mesh.run("low", priority=1.0, cpu=2)
    mesh.submit("high", priority=9.0, cpu=2)
    mesh.save("low")
    recover(mesh)
    assert mesh.starts["high"].adopt is False
    assert isinstance(mesh.state.agents["high"].phase, Starting)
    assert mesh.state.past.preemption_counts == {"same_pool_preemption": 1}


def test_a_victim_that_is_gone_and_was_not_saved_is_evicted_to_the_end_so_that_its_payload_is_kept():
    mesh = mesh_of(cpu=2)
    mesh.run("low", priority=1.0, cpu=2)
    mesh.submit("high", priority=9.0, cpu=2)
    recover(mesh)
    assert "high" not in mesh.starts
    mesh.leave("low", saved=True)
    assert mesh.state.preempted["low"].state_key == "state-low"
    assert mesh.starts["high"].adopt is False


def test_a_stop_goes_on_or_is_done():
    mesh = mesh_of()
    mesh.run("a", cpu=1)
    mesh.run("b", cpu=1)
    mesh.delete("a")
    mesh.delete("b")
    recover(mesh, "a")
    assert isinstance(mesh.ends["a"], StopAgent)
    assert "b" not in mesh.state.agents
    mesh.leave("a")
    assert mesh.free() == amount(cpu=4)


def test_a_task_evicted_alone_is_evicted_to_its_end():
    mesh = mesh_of()
    mesh.run("t", cpu=1)
    mesh.preempt(task_id="t", request_id="r")
    mesh.task_evictions.clear()
    recover(mesh, "t")
    assert set(mesh.task_evictions) == {"t"}
    mesh.handle(s.CancelAnswered(task_id="t", cancel_success=True))
    assert isinstance(mesh.state.answers["r"].outcome, Evicted)


def test_a_task_evicted_alone_whose_agent_died_is_answered_all_the_same():
    mesh = mesh_of()
    mesh.run("t", cpu=1)
    mesh.preempt(task_id="t", request_id="r")
    recover(mesh)
    answer = mesh.state.answers["r"].outcome
    assert isinstance(answer, Evicted)
    assert (answer.cancel_success, bool(answer.error)) == (False, True)
    assert mesh.told == ["r"]


def test_an_agent_evicted_on_request_is_answered_after_a_recovery():
    mesh = mesh_of()
    mesh.run("t", cpu=1)
    mesh.preempt(agent_name="t", end_agent=True, request_id="r")
    recover(mesh, "t")
    mesh.leave("t")
    assert mesh.state.answers["r"].outcome == AgentEvicted(agent_name="t", task_ids=("t",))


def test_requests_repeated_after_a_recovery_get_their_first_answer():
    mesh = mesh_of()
    mesh.run("t", cpu=1)
    done = s.TaskFinished(task_id="t", end_agent=True, request_id="r")
    mesh.handle(done)
    recover(mesh)
    assert mesh.handle(done).outcome == mesh.state.answers["r"].outcome
    evict = s.PreemptionRequested(task_id="u", request_id="q")
    mesh.run("u", cpu=1)
    first = mesh.handle(evict).outcome
    assert mesh.handle(evict).outcome == first
