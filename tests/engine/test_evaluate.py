"""The dry run of the decision, with resources: whom a submission of them would evict."""

from __future__ import annotations

import pytest

from schedulemesh.domain.payloads import GangPayload
from schedulemesh.domain.placement import GroupsSpec
from schedulemesh.domain.reasons import Reason
from schedulemesh.engine.messages.facts import EvictionStarted
from schedulemesh.engine.messages.outcomes import Accepted, Evaluation
from schedulemesh.engine.messages.stimuli import ClassProbed
from tests.engine.builders import Mesh, leaving_for, names, node, pool, shape


def grouped(**spec):
    """Two tasks in a pool of two dynamic groups on a node that they fill."""
    mesh = Mesh(
        pool("p", cpu=8, groups=GroupsSpec(**{"max_dynamic": 2, **spec})),
        nodes=[node("a", cpu=4)],
    )
    for name, priority in (("low", 0.0), ("mid", 3.0)):
        mesh.submit(name, priority=priority, cpu=2)
        mesh.make_all()
        mesh.report(name)
    return mesh


def test_without_resources_the_candidates_are_told():
    found = grouped().evaluate(9.0)
    assert found.should_preempt
    assert names(found.candidates) == ["low", "mid"]
    assert found.victims == ()


@pytest.mark.parametrize(
    ("cpu", "victims"), [(2, ("low",)), (1, ("low",)), (4, ("low", "mid")), (3, ("low", "mid"))]
)
def test_the_victims_in_a_pool_with_groups_are_those_of_a_submission(cpu, victims):
    mesh = grouped()
    found = mesh.evaluate(9.0, cpu=cpu)
    assert found.victims == victims
    assert found.should_preempt
    accepted = mesh.dry("x", priority=9.0, cpu=cpu)
    assert isinstance(accepted, Accepted)
    assert tuple(names(accepted.preempted)) == victims


def test_a_free_group_needs_no_victim():
    mesh = grouped()
    spec = GroupsSpec(max_dynamic=2, reserved=(shape({"cpu": 1}),))
    mesh.resize(pool("p", cpu=8, groups=spec))
    assert mesh.evaluate(9.0, cpu=2).victims == ("low",)
    assert mesh.evaluate(9.0, cpu=1).victims == ("low",)
    mesh.observe(node("a", cpu=4), node("b", cpu=1))
    mesh.make_all()
    assert mesh.evaluate(9.0, cpu=1) == Evaluation(
        should_preempt=False, reason=Reason.RESOURCES_AVAILABLE
    )


def test_groups_that_nobody_uses_need_no_victim():
    mesh = grouped()
    mesh.complete("low")
    assert mesh.evaluate(9.0, cpu=1).reason == "resources_available"
    mesh.resize(pool("plain", cpu=8))
    assert mesh.evaluate(9.0, "plain", cpu=1).reason == "resources_available"


def test_a_limit_that_lets_nobody_in_is_no_reason_to_evict():
    mesh = grouped(dynamic=True, max_dynamic=2)
    mesh.resize(pool("p", cpu=8, groups=GroupsSpec(dynamic=False)))
    found = mesh.evaluate(9.0, cpu=1)
    assert (found.should_preempt, found.victims) == (False, ())
    assert (found.reason, found.turned_away) == (Reason.GROUP_UNPLACEABLE, {})


@pytest.mark.parametrize(
    ("pool_name", "cpu", "reason"),
    [
        ("nowhere", 1, "pool_not_found"),
        ("p", 9, "exceeds_pool_capacity"),
        ("p", 5, "cluster_out_of_resources"),
        ("plain", 5, "cluster_out_of_resources"),
    ],
)
def test_what_can_never_be_is_told_by_its_code(pool_name, cpu, reason):
    mesh = grouped()
    mesh.resize(pool("plain", cpu=8))
    assert mesh.evaluate(9.0, pool_name, cpu=cpu) == Evaluation(should_preempt=False, reason=reason)


def test_an_evaluation_changes_nothing():
    mesh = grouped()
    seen = len(mesh.facts)
    mesh.evaluate(9.0, cpu=4)
    assert len(mesh.facts) == seen
    assert not mesh.ends


def loaded(mesh):
    """The mesh, with a class for which others may be evicted at once."""
    mesh.handle(ClassProbed(class_key="c"))
    return mesh


def is_told_what_a_submission_does(mesh, priority, pool_name, **need):
    """The victims that the evaluation names, which are those of a submission."""
    found = mesh.evaluate(priority, pool_name, **need)
    seen = len(mesh.facts)
    mesh.submit("incoming", pool_name, priority, class_key="c", **need)
    evicted = [f.task_id for f in mesh.facts[seen:] if isinstance(f, EvictionStarted)]
    assert "incoming" in mesh.state.agents
    assert sorted(found.victims) == sorted(evicted)
    assert found.should_preempt == bool(evicted)
    needless = (Reason.RESOURCES_AVAILABLE, Reason.STARTS_CANCELLED)
    assert (found.reason in needless) != bool(evicted)
    assert bool(found.cancelled_starts) == (found.reason is Reason.STARTS_CANCELLED)
    return found.victims


def test_a_start_that_an_owner_cancels_is_named():
    mesh = loaded(Mesh(nodes=[node("n", gpu=8, cpu=8)]))
    for name, gpus in (("borrows", 2), ("owns", 2), ("idle", 4)):
        mesh.resize(pool(name, gpu=gpus, cpu=gpus, lending={"cohort": "c"}))
    mesh.queue("starts", "borrows", gpu=8, cpu=8, class_key="c")
    answer = mesh.evaluate(9.0, "owns", gpu=2, cpu=2)
    assert (answer.should_preempt, answer.victims) == (False, ())
    assert (answer.reason, answer.cancelled_starts) == (Reason.STARTS_CANCELLED, ("starts",))
    dry = mesh.dry("incoming", "owns", 9.0, gpu=2, cpu=2, class_key="c")
    assert (dry.preempted, dry.cancelled_starts) == ((), ("starts",))
    mesh.queue("incoming", "owns", 9.0, gpu=2, cpu=2, class_key="c")
    assert leaving_for(mesh.state.agents["incoming"]) == ["starts"]


def test_nobody_is_a_victim_where_enough_is_leaving_already():
    mesh = loaded(Mesh(pool("p", gpu=2, cpu=8), nodes=[node("n", gpu=2, cpu=8)]))
    for name in ("leaves", "stays"):
        mesh.run(name, "p", 1.0, gpu=1, class_key="c")
    mesh.cancel("leaves")
    assert is_told_what_a_submission_does(mesh, 9.0, "p", gpu=1) == ()


@pytest.mark.parametrize("waits", [False, True])
def test_nobody_is_a_victim_where_the_start_of_a_borrower_is_cancelled(waits):
    mesh = loaded(
        Mesh(
            pool("a", gpu=4, cpu=4, lending={"cohort": "k"}),
            pool("b", cpu=4, lending={"cohort": "k"}),
            nodes=[node("n", gpu=4, cpu=8)],
        )
    )
    for name, priority in (("runs", 50.0), ("other", 1.0)):
        mesh.queue(name, "b", priority, gpu=2, class_key="c", on_preempted="requeue")
        if waits or name == "runs":
            mesh.report(name, capabilities=("save_state",))
    mesh.now += 3600
    if waits:
        mesh.queue("waits", "b", 9.0, gpu=2, class_key="c")
        assert leaving_for(mesh.state.agents["waits"]) == ["other"]
    assert is_told_what_a_submission_does(mesh, 1.0, "a", gpu=2) == ()


def test_extra_members_of_elastic_gangs_are_the_victims_where_they_are_enough():
    mesh = loaded(Mesh(pool("p", gpu=4, cpu=8), nodes=[node("n", gpu=4, cpu=8)]))
    payload = GangPayload(replicas=4)
    mesh.queue("g", "p", 1.0, bundles=[{"gpu": 1}] * 2, payload=payload, class_key="c")
    mesh.make_all()
    mesh.report("g", capabilities=("save_state",))
    mesh.tick(1.0)
    for name in list(mesh.starts):
        mesh.report(name, capabilities=("save_state",))
    victims = is_told_what_a_submission_does(mesh, 9.0, "p", gpu=2)
    assert sorted(victims) == ["g-2", "g-3"]
