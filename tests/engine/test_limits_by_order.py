"""A task that waits spares those that started since because they came before it in the order of the queue."""

import pytest

from schedulemesh.domain.reasons import Reason
from schedulemesh.engine.codec import storable
from schedulemesh.engine.engine import Engine
from schedulemesh.engine.messages import facts as f
from tests.engine.builders import Mesh, node, pool

SAVES = ("save_state", "restore_state")
LENDING = {"cohort": "all"}


def evicted(mesh, seconds=5):
    """Who is evicted within so many ticks."""
    seen = len(mesh.facts)
    for _ in range(seconds):
        mesh.tick(1)
    return [fact.task_id for fact in mesh.facts[seen:] if isinstance(fact, f.EvictionStarted)]


def freed(mesh, task_id="busy"):
    """A task completes, a second later what has become free is in use."""
    mesh.tick(1)
    mesh.complete(task_id)
    for name in list(mesh.starts):
        mesh.report(name, capabilities=SAVES)


def waiting_world(*pools, **order):
    """All GPUs are held by a task that nobody may evict; ``low`` came first, and ``high`` waits behind it."""
    mesh = Mesh(*(pools or [pool("p", gpu=8, cpu=100)]), nodes=[node("n1", gpu=8, cpu=100)])
    mesh.order_by(**order)
    mesh.run("busy", priority=50.0, gpu=8)
    mesh.tick(1)
    mesh.queue("low", priority=1.0, gpu=8, on_preempted="requeue", class_key="c")
    mesh.tick(1)
    mesh.queue("high", priority=9.0, gpu=8)
    return mesh


def test_a_task_that_was_moved_to_the_front_is_not_evicted_by_the_one_that_it_passed():
    mesh = waiting_world()
    mesh.change("low", to_front=True)
    freed(mesh)
    assert evicted(mesh) == []
    assert mesh.waiting() == ["high"]


def test_neither_is_one_that_starts_at_the_moment_at_which_the_other_began_to_wait():
    mesh = Mesh(pool("p", gpu=8, cpu=100), nodes=[node("n1", gpu=8, cpu=100)])
    mesh.run("busy", priority=50.0, gpu=8)
    mesh.queue("low", priority=1.0, gpu=8, on_preempted="requeue", class_key="c")
    mesh.change("low", to_front=True)
    mesh.tick(1)
    mesh.queue("high", priority=9.0, gpu=8)
    mesh.complete("busy")
    for name in list(mesh.starts):
        mesh.report(name, capabilities=SAVES)
    assert mesh.waiting() == ["high"]
    assert evicted(mesh) == []


@pytest.mark.parametrize(
    "order", [{"order": "fifo"}, {"ageing_per_hour": 3e4}, {"promote_after_s": 0.5}]
)
def test_neither_is_one_that_arrived_first_has_aged_or_was_promoted(order):
    mesh = waiting_world(**order)
    if "promote_after_s" in order:  # what has waited for long comes first, "high" does not yet
        mesh.order_by(promote_after_s=2.5)
    mesh.tick(1)
    freed(mesh)
    assert mesh.waiting() == ["high"]
    mesh.order_by(**({"promote_after_s": 1e6} if "promote_after_s" in order else {}))
    assert evicted(mesh) == []


@pytest.mark.parametrize("order", ["fifo", "shortest_remaining"])
def test_whom_it_passed_is_known_after_a_restart(order):
    """The tasks have no durations, so the second order puts them last of all."""
    mesh = waiting_world(order=order)
    freed(mesh)
    assert mesh.waiting() == ["high"]
    assert storable(mesh.facts)
    mesh.engine.state = mesh.rewritten()
    assert evicted(mesh) == []


def test_neither_is_one_that_label_rules_put_below_it():
    rules = {"tier": {"premium": ["batch"]}}
    mesh = Mesh(
        pool("p", gpu=8, cpu=100),
        nodes=[node("n1", gpu=8, cpu=100)],
        label_preemption_rules=rules,
    )
    mesh.run("busy", priority=50.0, gpu=8)
    mesh.tick(1)
    mesh.queue("batch", priority=9.0, gpu=8, labels={"tier": "batch"})
    mesh.tick(1)
    mesh.queue("premium", priority=5.0, gpu=8, labels={"tier": "premium"})
    freed(mesh)
    assert evicted(mesh) == []
    mesh.queue("new", priority=5.0, gpu=8, labels={"tier": "premium"})
    assert mesh.waiting() == ["premium", "new"], "it stands behind the one of its class"


def test_a_task_that_arrives_later_evicts_it_all_the_same():
    mesh = waiting_world(order="fifo")
    freed(mesh)
    mesh.tick(1)
    mesh.queue("urgent", priority=20.0, gpu=8)
    assert set(mesh.ends) == {"low"}
    mesh.leave("low")
    assert "urgent" in mesh.starts


def test_a_submission_without_the_queue_evicts_it_all_the_same():
    mesh = waiting_world(order="fifo")
    freed(mesh)
    mesh.tick(1)
    mesh.submit("urgent", priority=20.0, gpu=8)
    assert set(mesh.ends) == {"low"}


def test_what_ran_before_the_task_waited_is_evicted_as_ever():
    mesh = Mesh(pool("p", gpu=8, cpu=100), nodes=[node("n1", gpu=8, cpu=100)])
    mesh.order_by(order="fifo")
    mesh.run("low", priority=1.0, gpu=8)
    mesh.tick(1)
    mesh.queue("high", priority=9.0, gpu=8)
    assert set(mesh.ends) == {"low"}


@pytest.mark.parametrize("how", [{"to_front": True}, {"priority": 60.0}])
def test_the_task_that_waits_may_be_put_before_it_afterwards(how):
    mesh = waiting_world()
    mesh.change("low", to_front=True)
    freed(mesh)
    assert evicted(mesh) == []
    mesh.change("high", **how)
    assert evicted(mesh, 1) == (["low"] if "to_front" in how else [])


def test_another_order_of_the_queue_ends_it():
    mesh = waiting_world(order="fifo")
    freed(mesh)
    assert evicted(mesh) == []
    mesh.order_by(order="priority")
    assert evicted(mesh, 1) == ["low"]


def test_tasks_of_other_pools_are_spared_only_if_they_were_put_first():
    for to_front in (True, False):
        mesh = waiting_world(pool("p", gpu=8, cpu=100), pool("q", gpu=8, cpu=100), order="fifo")
        mesh.cancel("high")
        mesh.queue("of-q", "q", priority=20.0, gpu=8)
        if to_front:
            mesh.change("low", to_front=True)
        freed(mesh)
        assert evicted(mesh, 2) == ([] if to_front else ["low"])


def test_an_owner_gets_its_quota_back_from_a_task_that_was_moved_to_the_front():
    mesh = Mesh(
        pool("p", cpu=100, lending=LENDING),
        pool("q", gpu=8, cpu=100, lending=LENDING),
        nodes=[node("n1", gpu=8, cpu=100)],
    )
    mesh.run("busy", "q", priority=50.0, gpu=8)
    mesh.tick(1)
    mesh.queue("of-q", "q", priority=1.0, gpu=8)
    mesh.queue("low", "p", priority=1.0, gpu=8)
    mesh.change("low", to_front=True)
    mesh.change("of-q", held=True)
    freed(mesh)
    assert mesh.state.agents["low"].payers == ("q",)
    mesh.change("of-q", held=False)
    assert evicted(mesh, 2) == ["low"]


def test_preemption_by_attained_service_spares_only_those_that_were_put_first():
    """One that came first by its level has had its turn once it has reached a later one."""
    for to_front in (True, False):
        mesh = waiting_world(order="two_level_las", las_preempts=True, las_threshold_gpu_hours=0.01)
        mesh.change("high", priority=1.0)
        if to_front:
            mesh.change("low", to_front=True)
        freed(mesh)
        assert evicted(mesh, 10) == ([] if to_front else ["low"])


def test_explain_says_who_came_first():
    mesh = waiting_world(order="fifo")
    freed(mesh)
    mesh.tick(1)
    considered = mesh.engine.explain("high", mesh.now).considered
    assert considered.turned_away == {Reason.CAME_FIRST: 1}
    assert considered.sufficient_priority is None, "a higher priority does not change the order"


def test_explain_knows_the_priority_that_puts_a_task_first():
    mesh = waiting_world(ageing_per_hour=3e4)
    freed(mesh)
    mesh.tick(1)
    sufficient = mesh.engine.explain("high", mesh.now).considered.sufficient_priority
    assert sufficient is None or sufficient > 9.0


def test_it_is_known_after_a_restart():
    mesh = waiting_world(order="fifo")
    freed(mesh)
    mesh.engine = Engine(mesh.rewritten())
    assert evicted(mesh) == []


def test_a_task_behind_the_first_one_may_evict_what_started_before_it_waited():
    """That evictions are in vain for the first task says nothing of one that has not been passed."""
    mesh = waiting_world(order="fifo")
    freed(mesh)
    mesh.tick(1)
    mesh.change("high", held=True)
    mesh.queue("later", priority=9.0, gpu=4)
    assert set(mesh.ends) == {"low"}
