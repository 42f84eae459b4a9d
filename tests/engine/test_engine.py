"""The step as a whole: pools, policy, nodes, clock; and that it is deterministic."""

from __future__ import annotations

import subprocess
import sys

import msgspec

from schedulemesh.domain.reasons import Change
from schedulemesh.engine.engine import Engine
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.outcomes import Done
from schedulemesh.engine.messages.query import PreemptionQuery
from schedulemesh.engine.messages.stimuli import AnyStimulus
from tests.engine.builders import Mesh, amount, node, pool


def test_every_stimulus_has_a_handler():
    assert set(Engine()._handlers) == set(AnyStimulus.__args__)


def test_the_same_pool_again_changes_nothing():
    mesh = Mesh(pool("p", cpu=4))
    seen = len(mesh.facts)
    assert mesh.resize(pool("p", cpu=4)) == Done(change=Change.UNCHANGED)
    assert len(mesh.facts) == seen


def test_another_size_resizes():
    mesh = Mesh(pool("p", cpu=4))
    mesh.run("t", cpu=2)
    assert mesh.resize(pool("p", cpu=8)) == Done(change=Change.CHANGED)
    assert mesh.free() == amount(cpu=6)
    assert mesh.resize(pool("p", cpu=2)) == Done(change=Change.CHANGED)
    assert mesh.free() == amount()


def test_a_pool_that_must_be_new_may_not_exist_otherwise():
    mesh = Mesh(pool("p", cpu=4))
    assert mesh.resize(pool("p", cpu=5), must_be_new=True).reason == "pool_exists"
    assert mesh.resize(pool("p", cpu=4), must_be_new=True) == Done(change=Change.UNCHANGED)
    assert mesh.resize(pool("n", cpu=4), must_be_new=True) == Done(change=Change.CREATED)


def test_cordoning_is_told_once_and_only_of_known_nodes():
    mesh = Mesh(nodes=[node("a", cpu=1)])
    assert mesh.cordon("a") == Done()
    assert mesh.cordon("a") == Done(change=Change.UNCHANGED)
    assert mesh.cordon("b").reason == "node_not_found"
    mesh.observe(node("a", cpu=2))
    assert mesh.state.cluster.nodes["a"].cordoned


def test_time_that_passes_without_anything_due_makes_no_facts():
    mesh = Mesh(pool("p", cpu=1))
    assert mesh.tick(1e6).facts == ()


def test_an_engine_goes_on_from_a_refolded_state():
    mesh = Mesh(pool("p", cpu=2), nodes=[node("a", cpu=2)])
    mesh.run("low", priority=0.0, cpu=2)
    mesh.submit("high", priority=9.0, cpu=2)

    mesh.engine = Engine(mesh.refolded())

    mesh.slot("high")
    mesh.complete("high")
    assert mesh.free() == amount(cpu=2)


def test_the_same_stimuli_give_the_same_steps():
    def story():
        mesh = Mesh(pool("p", cpu=4), nodes=[node("a", cpu=4), node("b", cpu=2)])
        for name, priority in (("x", 0.0), ("y", 1.0), ("z", 9.0)):
            mesh.submit(name, priority=priority, cpu=2)
            if name in mesh.starts:
                mesh.report(name)
        mesh.tick(99)
        return mesh.facts

    assert story() == story()


def test_importing_the_engine_loads_no_ray_and_no_database():
    program = (
        "import sys, schedulemesh.engine.engine;"
        "print([m for m in ('ray', 'sqlalchemy') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_an_evaluation_and_a_submission_agree():
    mesh = Mesh(pool("p", cpu=4), nodes=[node("a", cpu=4)])
    mesh.run("x", priority=0.0, cpu=2)
    mesh.run("y", priority=1.0, cpu=2)
    found = mesh.evaluate(9.0, cpu=3)
    outcome = mesh.submit("z", priority=9.0, cpu=3)
    assert outcome.agent_name == "z"
    assert found.victims == tuple(c.task_id for c in mesh.state.agents["z"].submission.evicting)


def test_a_query_and_a_stimulus_of_the_same_moment_see_the_same_time():
    mesh = Mesh(pool("p", cpu=4))
    mesh.announce("t", "x", priority=4.0, duration=100.0)
    mesh.now += 40
    (found,) = mesh.engine.evaluate(
        PreemptionQuery(priority=5.0, pool_name="p"), mesh.now
    ).candidates
    assert found.remaining_time == 60.0


def test_handlers_of_a_pool_that_does_not_exist_yet_are_kept_with_a_warning():
    mesh = Mesh(pool("training", cpu=1))
    given = s.StateHandlersGiven(pool_name="traning", preserver_key="k", restorer_key=None)
    (warning,) = mesh.handle(given).outcome.warnings
    assert "no pool 'traning' as yet (did you mean 'training'?)" in warning
    mesh.handle(s.PoolRequested(spec=pool("traning", cpu=1)))
    assert mesh.state.handlers["traning"].preserver_key == "k"


def test_handlers_of_a_pool_that_exists_are_kept_without_a_warning():
    mesh = Mesh(pool("p", cpu=1))
    given = s.StateHandlersGiven(pool_name="p", preserver_key="k", restorer_key=None)
    assert mesh.handle(given).outcome.warnings == ()


def test_a_pool_larger_than_the_cluster_is_made_with_a_warning():
    mesh = Mesh(nodes=[node("a", cpu=4), node("b", cpu=4)])
    assert mesh.resize(pool("p", cpu=8)).warnings == ()
    (warning,) = mesh.resize(pool("q", cpu=9, memory=5)).warnings
    assert "'q' promises" in warning
    assert "cannot be used before nodes join" in warning
    assert Mesh().resize(pool("p", cpu=9)).warnings == ()


def test_protecting_an_unknown_pool_is_done_with_a_warning():
    mesh = Mesh(pool("p", cpu=1))
    policy = msgspec.structs.replace(mesh.state.policy, protected_pools=("p", "r", "s"))
    changed = s.PolicyChangeRequested(policy=policy, client="me", changes=("protected_pools",))
    (warning,) = mesh.handle(changed).outcome.warnings
    assert "'r', 's'" in warning
    assert mesh.state.policy.protected_pools == ("p", "r", "s")
