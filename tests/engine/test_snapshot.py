"""Snapshots: a state written down and read again is the same state, and goes on the same."""

from __future__ import annotations

import msgspec
import pytest

from schedulemesh.config.queueing import ORDERS
from schedulemesh.domain.cohort import CohortSpec
from schedulemesh.domain.owner_limits import parse_owner_limits
from schedulemesh.domain.tokens import Role, TokenSpec
from schedulemesh.engine.codec import decode_chunk, encode_chunk
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.state.compact_tasks import CompactTask
from schedulemesh.engine.state.invariants import check
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.queued_tasks import QueuedTask
from schedulemesh.engine.state.snapshot import (
    Snapshot,
    parts,
    referenced,
    restored,
    take_snapshot,
)
from tests.engine.builders import Mesh, differences, node, on, pool


class BusyMesh(Mesh):
    """A mesh whose tasks can be preempted in one word."""

    def drop(self, task_id):
        self.preempt(task_id=task_id)
        self.save(task_id)
        self.handle(s.CancelAnswered(task_id=task_id, cancel_success=True))


def busy():
    mesh = BusyMesh(
        pool("p", cpu=4, gpu=2, custom={"x": 1}), pool("q", cpu=4), nodes=[node("a", cpu=9, gpu=2)]
    )
    mesh.policy(label_preemption_rules={"tier": {"high": ["low"]}})
    mesh.run("x", priority=0.0, cpu=2, gpu=0.5, devices=on((1, 0.5)), labels={"tier": "low"})
    mesh.run("y", "q", priority=1.0, cpu=4, duration=7.25)
    mesh.run("w", "p", priority=1.0, cpu=1, duration=0.1)
    mesh.announce("u", "elsewhere")
    mesh.announce("v", "elsewhere")
    mesh.drop("v")
    mesh.submit("z", priority=9.0, cpu=4, more={"request_id": "r"})
    mesh.submit("no", "q", priority=0.0, cpu=4, more={"request_id": "s"})
    mesh.handle(s.StateHandlersGiven(pool_name="p", preserver_key="save", restorer_key=None))
    mesh.cordon("a")
    token = TokenSpec(name="t", role=Role.VIEWER, secret_hash="a" * 64)
    mesh.handle(s.TokenRequested(spec=token, lifetime_s=60.0, client="c"))
    mesh.handle(s.SupervisorBegan(epoch=7))
    return mesh


def written(state, size=2):
    return restored(decode_chunk(encode_chunk(part)) for part in parts(take_snapshot(state), size))


@pytest.mark.parametrize("size", [1, 2, 1000])
def test_a_state_comes_back_field_by_field(size):
    state = busy().state
    again = written(state, size)
    assert differences(state, again) == []
    check(again)


@pytest.mark.parametrize("ageing", [0.0, 2.0])
@pytest.mark.parametrize("order", ORDERS)
def test_tasks_of_one_class_come_back_at_their_places_in_every_order(order, ageing):
    mesh = BusyMesh(pool("p", cpu=4), nodes=[node("a", cpu=4)])
    mesh.order_by(order=order, ageing_per_hour=ageing)
    mesh.run("ran", cpu=4, class_key="k", on_preempted="requeue", more={"queue": True})
    for number, duration in enumerate((9.0, None, 3.0, 7.0)):
        mesh.now += 1000.0
        mesh.queue(f"t{number}", cpu=4, duration=duration)
    mesh.preempt(agent_name="ran")
    mesh.leave("ran", saved=True)
    assert len(mesh.waiting()) == 4, "one has started in its place"
    again = written(mesh.state)
    classes = again.queue.pools["p"].classes.values()
    assert [len(c.entries) for c in classes] == [4]
    assert [list(c.entries) for c in classes] == [
        list(c.entries) for c in mesh.state.queue.pools["p"].classes.values()
    ]
    assert differences(mesh.state, again) == []


def test_an_empty_state_comes_back():
    assert differences(MeshState(), written(MeshState())) == []
    assert differences(MeshState(), restored([])) == []


def test_cohorts_come_back_in_their_order():
    mesh = Mesh()
    for name, parent in (("left", "root"), ("root", None), ("right", "left")):
        mesh.handle(s.CohortRequested(spec=CohortSpec(name=name, parent=parent)))
    mesh.handle(s.CohortRequested(spec=CohortSpec(name="last", parent="first")))
    specs = mesh.state.ledger.cohorts.specs
    back = restored([decode_chunk(encode_chunk(p)) for p in parts(take_snapshot(mesh.state))])
    assert list(back.ledger.cohorts.specs) == list(specs)


def test_every_field_of_the_state_is_in_the_snapshot_or_derived():
    derived = {"_apply", "ledger", "cluster", "running", "preemption", "agents_of", "_group_facts"}
    derived |= {"past", "elastic", "external_demands", "leaving", "spared"}
    books = {"accounts", "holds", "nodes", "tasks", "idle", "workload"}
    books |= {
        "cohorts",
        "loans",
        "group_counts",
        "owners_changed",
        "groups_dropped",
        "next_group",
        "workload_sampled",
        "workload_renew_at",
        "queue_policy",
        "queue_shared",
        "queue_columns",
        "next_task_number",
        "queue_turns",
        "authentication",
        "next_change",
        "external_demand",
        "rooms_lost",
    }
    books |= {
        "durations",
        "next_eviction",
        "evictions_requeued",
        "last_evictions",
        "window_nodes",
        "lost_work",
        "preemptions",
    }
    assert set(vars(MeshState())) - derived == set(Snapshot.__struct_fields__) - books


def test_a_snapshot_stays_as_it_is_while_the_state_goes_on():
    mesh = busy()
    taken = take_snapshot(mesh.state)
    before = [encode_chunk(part) for part in parts(taken)]
    mesh.die("x")
    mesh.cordon("a", False)
    mesh.policy(min_preempt_score=2.0)
    assert [encode_chunk(part) for part in parts(taken)] == before
    assert differences(mesh.state, restored(map(decode_chunk, before))) != []


def test_facts_go_on_after_a_snapshot():
    mesh = busy()
    again = written(mesh.state)
    seen = len(mesh.facts)
    mesh.die("x")
    mesh.drop("u")
    mesh.tick(100_000)
    for fact in mesh.facts[seen:]:
        again.evolve(fact)
    assert differences(mesh.state, again) == []


def test_what_the_state_may_ask_for_is_referenced():
    mesh = busy()
    assert referenced(take_snapshot(mesh.state)) == {"save", "state-v"}
    mesh.handle(s.StatesOutlived(state_keys=("state-v", "unknown")))
    assert referenced(take_snapshot(mesh.state)) == {"save"}
    assert mesh.state.preempted["v"].state_key is None
    assert mesh.handle(s.StatesOutlived(state_keys=("state-v",))).facts == ()
    assert differences(mesh.state, mesh.refolded()) == []


def test_classes_arguments_and_payloads_are_referenced():
    mesh = Mesh(pool("p", cpu=4))
    mesh.run("x", cpu=1, class_key="class")
    assert referenced(take_snapshot(mesh.state)) == {"class"}
    mesh.complete("x")
    assert referenced(take_snapshot(mesh.state)) == set()


def queue_of_every_kind():
    limits = parse_owner_limits({"default": {"running": 1}})
    limited = msgspec.structs.replace(pool("q", cpu=4), owner_limits=limits)
    mesh = Mesh(pool("p", cpu=4), limited, pool("r", cpu=4), nodes=[node("a", cpu=12)])
    for name in ("p", "q", "r"):
        mesh.queue(f"whole-{name}", name, cpu=4)
        mesh.report(f"whole-{name}")
    for number in range(60):
        extra = [{}, {"wait_s": 50.0}, {"queue": True}][number % 7 % 3]
        mesh.queue(
            f"t{number}",
            "pqr"[number % 3],
            priority=float(number % 4),
            cpu=1 + number % 2,
            duration=100.0 - number,
            more=extra,
        )
        if number % 10 == 3:
            mesh.change(f"t{number}", to_front=True)
        if number % 11 == 5:
            mesh.change(f"t{number}", held=True)
    return mesh


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_queue_of_every_kind_comes_back_in_its_order(size):
    """Most tasks are put in order together, and those with something special one by one between them."""
    mesh = queue_of_every_kind()
    again = written(mesh.state, size)
    assert differences(mesh.state, again) == []
    check(again)
    for name, queued in mesh.state.queue.pools.items():
        restored_pool = again.queue.pools[name]
        assert list(restored_pool.ready) == list(queued.ready)
        assert list(restored_pool.firsts) == list(queued.firsts)
        assert {key: list(one.entries) for key, one in restored_pool.classes.items()} == {
            key: list(one.entries) for key, one in queued.classes.items()
        }
        shortest = {key: one.shortest for key, one in queued.classes.items()}
        assert all(shortest[key] <= one.shortest for key, one in restored_pool.classes.items())


def test_what_queued_tasks_have_in_common_is_kept_once_after_a_restart():
    mesh = Mesh(pool("p", cpu=4), nodes=[node("a", cpu=4)])
    for number in range(3):
        mesh.queue(f"t{number}", cpu=4, duration=60.0)
    again = written(mesh.state)
    first, second = (again.queue.by_id[task_id] for task_id in ("t1", "t2"))
    assert first.common is second.common
    assert first.common.agent.name == first.common.task.task_id == ""
    assert (first.agent_name, second.task_id, first.spec.estimated_duration) == ("t1", "t2", 60.0)


def test_a_restored_task_has_a_submission_of_its_own_once_that_is_looked_at():
    mesh = Mesh(pool("p", cpu=4), nodes=[node("a", cpu=4)])
    for number in range(3):
        mesh.queue(f"t{number}", cpu=4, more={"request_id": f"r{number}"})
    before = mesh.state.queue.by_id["t1"]
    task = written(mesh.state).queue.by_id["t1"]
    assert type(task) is CompactTask
    assert (task.spec, task.pool_name, task.arrived_at) == (before.spec, "p", before.arrived_at)
    assert type(task) is CompactTask
    assert task.submission == before.submission
    assert type(task) is QueuedTask
    assert task.submission is task.submission
    assert (task.spec, task.outline[1:]) == (before.spec, before.outline[1:])


def test_a_restored_task_changes_as_any_other():
    mesh = Mesh(pool("p", cpu=4), nodes=[node("a", cpu=4)])
    for number in range(4):
        mesh.queue(f"t{number}", cpu=4)
    again = written(mesh.state)
    seen = len(mesh.facts)
    mesh.change("t3", priority=9.0)
    mesh.change("t2", held=True)
    mesh.change("t1", to_front=True)
    for fact in mesh.facts[seen:]:
        again.evolve(fact)
    assert differences(mesh.state, again) == []
    check(again)


def test_a_state_that_was_restored_is_written_as_the_one_that_was_not():
    state = queue_of_every_kind().state
    assert take_snapshot(written(state, 7)) == take_snapshot(state)
    assert [encode_chunk(part) for part in parts(take_snapshot(written(state)), 5)] == [
        encode_chunk(part) for part in parts(take_snapshot(state), 5)
    ]
