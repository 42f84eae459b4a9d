"""The state: folded from facts, the same live and on recovery."""

from __future__ import annotations

from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.facts import AnyFact
from schedulemesh.engine.messages.queue_facts import ClassLoaded
from schedulemesh.engine.state import mesh_state, past
from schedulemesh.engine.state.mesh_state import MeshState
from tests.engine.builders import Mesh, amount, differences, node, pool


def busy():
    mesh = Mesh(pool("p", cpu=4, gpu=2), pool("q", cpu=4), nodes=[node("a", cpu=8, gpu=2)])
    mesh.run("x", priority=0.0, cpu=2, gpu=1, duration=10.0)
    mesh.run("y", "q", priority=1.0, cpu=4)
    mesh.submit("z", priority=9.0, cpu=4, more={"request_id": "r"})
    mesh.announce("u", "elsewhere")
    mesh.handle(s.StateHandlersGiven(pool_name="p", preserver_key="save", restorer_key=None))
    mesh.handle(s.SupervisorBegan(epoch=7))
    return mesh


def test_folding_the_facts_gives_the_state_back():
    mesh = busy()
    assert differences(mesh.state, mesh.refolded()) == []


def test_the_comparison_sees_a_difference():
    mesh = busy()
    other = mesh.refolded()
    mesh.tick()
    mesh.announce("more", "elsewhere")
    assert differences(mesh.state, other) != []


def test_every_fact_has_a_meaning():
    assert set(MeshState()._apply) == set(AnyFact.__args__)


def test_epoch_handlers_and_policy_changes_are_kept():
    mesh = busy()
    mesh.policy(min_preempt_score=2.0)
    assert mesh.state.epoch == 7
    assert mesh.state.handlers["p"].preserver_key == "save"
    change = mesh.state.policy_changes[-1]
    assert (change.client, change.changes, change.at) == ("me", ("min_preempt_score",), mesh.now)


def test_the_last_hundred_policy_changes_are_kept():
    mesh = Mesh()
    for number in range(120):
        mesh.policy(min_preempt_score=float(number))
    assert len(mesh.state.policy_changes) == 100
    assert mesh.state.policy_changes[-1].policy.min_preempt_score == 119.0


def test_the_oldest_preemptions_are_forgotten(monkeypatch):
    monkeypatch.setattr(past, "RECENT", 2)
    mesh = Mesh()
    for task_id in ("a", "b", "c", "a"):
        mesh.announce(task_id, "x")
        mesh.preempt(task_id=task_id)
        mesh.handle(s.CancelAnswered(task_id=task_id, cancel_success=True))
    assert list(mesh.state.preempted) == ["c", "a"]
    assert mesh.state.past.preemption_counts == {"manual": 4}


def test_an_incarnation_is_never_given_twice():
    mesh = Mesh(pool("p", cpu=4))
    seen = []
    for _ in range(3):
        mesh.run("t", cpu=1)
        seen.append(mesh.state.agents["t"].incarnation)
        mesh.complete("t")
    assert seen == [1, 2, 3]


def test_what_an_agent_pays_is_the_sum_of_its_shares():
    mesh = busy()
    assert mesh.state.agents["y"].paid == amount(cpu=4)


def test_classes_that_loaded_are_remembered_up_to_a_bound(monkeypatch):
    monkeypatch.setattr(mesh_state, "LOADED", 2)
    mesh = Mesh(pool("p", cpu=4), nodes=[node("a", cpu=8)])
    for key in ("x", "y", "x", "z"):
        mesh.state.evolve(ClassLoaded(class_key=key, at=0.0))
    assert list(mesh.state.loaded) == ["x", "z"], "the one used last stays longest"
