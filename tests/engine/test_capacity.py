"""The pass after each handler: who gets what a step has freed, and in which order."""

from __future__ import annotations

from schedulemesh.domain.placement import GroupsSpec
from schedulemesh.domain.reasons import Reason
from schedulemesh.engine.messages import facts as f
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.queue_facts import Ticked
from schedulemesh.engine.state.agents import Starting
from tests.engine.builders import Mesh, node, pool, shape


def test_freed_capacity_goes_to_those_it_was_freed_for_before_a_refused_agent_has_its_victims_run_again():
    mesh = Mesh(pool("p", cpu=4), nodes=[node("a", cpu=2), node("b", cpu=2)])
    for name in ("v", "w"):
        mesh.run(name, priority=0.0, cpu=2, class_key="c")
    for name in ("x", "y"):
        mesh.submit(name, priority=9.0, cpu=2, class_key="c", more={"request_id": name})
    lost = next(name for name in ("x", "y") if mesh.state.agents[name].node_id == "a")
    served = "y" if lost == "x" else "x"
    victim = mesh.state.agents[lost].submission.evicting[0].task_id
    mesh.save("v")
    mesh.save("w")
    mesh.observe(node("b", cpu=2))

    # Both victims are found gone in one step. The one whose place is lost would fit where the other was.
    mesh.handle(s.RecoveryObserved(living=frozenset()))

    assert isinstance(mesh.state.agents[served].phase, Starting)
    refused = mesh.state.answers[lost].outcome
    assert (refused.reason, refused.requeued) == (Reason.PREEMPTION_FAILED, (victim,))


def test_an_agent_that_waits_for_two_continues_when_both_are_gone_in_one_step():
    mesh = Mesh(pool("p", cpu=4, gpu=2), nodes=[node("a", cpu=4, gpu=2)])
    for name in ("v", "w"):
        mesh.run(name, priority=0.0, cpu=2, gpu=1)
    mesh.submit("x", priority=9.0, cpu=4, gpu=2)
    mesh.save("v")
    mesh.save("w")
    step = mesh.handle(s.RecoveryObserved(living=frozenset()))
    kinds = [type(fact) for fact in step.facts]
    assert kinds.count(f.ClaimGrew) == 2  # one for each victim
    assert kinds[-2:] == [f.AgentReady, Ticked]
    assert list(mesh.starts) == ["x"]


def reserves(name, groups=1):
    spec = GroupsSpec(reserved=(shape({"cpu": 2}),) * groups)
    return pool(name, cpu=2, groups=spec)


def test_room_that_a_group_frees_is_used_in_the_same_step():
    mesh = Mesh(reserves("q"), reserves("r"), nodes=[node("a", cpu=2)])
    mesh.make_all()
    mesh.resize(reserves("q", groups=0))
    (ending,) = mesh.removes
    step = mesh.remove(ending)
    assert type(step.facts[0]) is f.GroupEnded
    assert [order.group_id.partition("-")[0] for order in mesh.makes.values()] == ["r"]


def test_room_that_an_agent_frees_is_used_for_groups_at_the_next_tick():
    mesh = Mesh(pool("p", cpu=2), nodes=[node("a", cpu=2)])
    mesh.run("t", cpu=2)
    mesh.resize(reserves("q"))
    mesh.complete("t")
    assert not mesh.makes
    mesh.tick()
    assert len(mesh.makes) == 1


def test_a_step_that_frees_nothing_has_no_facts_of_its_own():
    mesh = Mesh(pool("p", cpu=4), nodes=[node("a", cpu=2)])
    mesh.run("v", priority=0.0, cpu=2)
    mesh.submit("x", priority=9.0, cpu=2)
    step = mesh.save("v")
    assert [type(fact) for fact in step.facts] == [f.StateSaved]
    assert step.instructions == ()
