"""What the history derives from single facts."""

from __future__ import annotations

import msgspec
import pytest

from schedulemesh.domain.payloads import JobPayload
from schedulemesh.engine.messages import facts as f
from schedulemesh.engine.messages import queue_facts as q
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.job_stimuli import JobBeyondClaim
from schedulemesh.store.history.fold import Fold
from schedulemesh.store.history.usage import Dimension
from tests.engine.builders import Mesh, amount, node, pool
from tests.engine.returns import CAUSES, taken_back_while_it_starts


def test_the_time_of_a_reserved_start_is_not_that_of_the_fact():
    fold = Fold(at=5.0)
    fold.add(q.StartReserved(task_id="t", at=99.0))
    assert fold.at == 5.0


def test_ticks_and_loaded_classes_are_steps_among_the_events_and_no_events():
    fold = Fold()
    fold.add(q.Ticked(at=1.0))
    fold.add(q.ClassLoaded(class_key="c", at=2.0))
    assert [(step.number, step.at, step.subject) for step in fold.steps] == [
        (1, 1.0, ""),
        (2, 2.0, "c"),
    ]
    assert (fold.events, fold.next_event) == ([], 3)
    fold.saved()
    assert fold.steps == []


def test_what_a_supervisor_decided_after_a_restart_is_an_event():
    fold = Fold()
    fold.add(f.EpochBegun(epoch=2, at=1.0, gap=3))
    fold.add(q.Ticked(at=2.0, recovered=True))
    assert [(one.kind, one.at) for one in fold.events] == [
        ("supervisor_started", 1.0),
        ("supervisor_recovered", 2.0),
    ]
    assert fold.events[0].detail == '{"epoch":2,"gap":3}'
    assert fold.steps == []


def test_a_job_that_held_more_than_it_claimed_has_failed_for_that():
    mesh = Mesh(pool("p", cpu=4), nodes=[node("n", cpu=4)])
    mesh.submit("j", payload=JobPayload(over_claim="end"), cpu=2)
    agent = mesh.state.agents["j"]
    mesh.report("j")
    ours = {"agent_name": "j", "incarnation": agent.incarnation}
    mesh.handle(JobBeyondClaim(**ours, beyond=amount(cpu=1), since=mesh.now - 3600.0))
    mesh.handle(s.AgentGone(**ours))
    fold = Fold()
    for fact in mesh.facts:
        fold.add(fact)
    (attempt,) = fold.changed.values()
    assert (attempt.state, attempt.reason, attempt.open) == ("failed", "over_claim", False)


def test_a_field_of_the_queues_policy_that_was_renamed_is_read_by_the_name_that_it_had():
    stored = (
        b'{"type":"queue_policy_changed","policy":{"passing_limit_s":60.0},"at":1.0,"client":"c",'
    )
    fact = msgspec.json.decode(stored + b'"changes":["passing_limit_s"]}', type=f.AnyFact)
    assert fact.policy.backfill_limit_s == 60.0
    fold = Fold()
    fold.add(fact)
    assert fold.events[0].detail == '{"by_client":"c","changes":{"backfill_limit_s":60.0}}'


def folded(mesh):
    fold = Fold()
    for fact in mesh.facts:
        fold.add(fact)
    return fold


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.happen.__name__)
def test_a_claim_that_was_given_back_before_it_ran_is_no_failure(cause):
    fold = folded(cause.happen(Mesh))
    first, *_ = attempts = [one for one in fold.changed.values() if one.task_id == "t"]
    assert (first.state, first.reason, first.open) == ("returned", cause.reason.value, False)
    assert (first.started_at, first.number, attempts[-1].number) == (None, 1, 1)
    kinds = [(one.kind, one.attempt) for one in fold.events if one.attempt == first.id]
    assert kinds[-1] == ("returned", first.id)
    assert sum(sums.failed for sums in fold.booking.sums.values()) == 0


def test_a_start_that_is_cancelled_for_an_owner_says_so_from_its_beginning():
    mesh = taken_back_while_it_starts(Mesh)
    events = [event for event in folded(mesh).events if event.kind in ("ending", "returned")]
    assert [msgspec.json.decode(event.detail)["reason"] for event in events] == [
        "quota_taken_back",
        "quota_taken_back",
    ]


def test_an_end_that_was_stored_before_returns_were_is_told_as_it_was():
    mesh = taken_back_while_it_starts(Mesh)
    fold = Fold()
    for fact in mesh.facts:
        is_end = isinstance(fact, f.AgentEnded)
        fold.add(msgspec.structs.replace(fact, returned=None) if is_end else fact)
    first = next(one for one in fold.changed.values() if one.task_id == "t")
    assert (first.state, first.reason) == ("failed", "not_started")


def test_the_history_says_when_a_limit_in_time_was_near_changed_and_reached():
    mesh = Mesh(pool("p", cpu=4, gpu=4), nodes=[node("n", cpu=4, gpu=4)])
    limits = {"max_run_s": 3600.0, "on_time_limit": "requeue", "idle_s": 60.0}
    mesh.queue("t", cpu=1, gpu=1, class_key="c", limits=limits)
    mesh.report("t")
    mesh.now += 60
    mesh.handle(s.AgentsMeasured(unused=(("t", 0.0),)))
    mesh.handle(s.AgentsMeasured())
    mesh.handle(s.TimeLimitRequested(task_id="t", max_run_s=1000.0))
    mesh.tick(840)
    mesh.tick(100)
    mesh.leave("t", saved=True)
    fold = folded(mesh)
    kinds = [event.kind for event in fold.events if "limit" in event.kind]
    assert kinds == [
        "idle_limit_soon",
        "idle_limit_cleared",
        "time_limit_changed",
        "time_limit_soon",
        "time_limit_reached",
    ]
    first, second = (one for one in fold.changed.values() if one.task_id == "t")
    assert (first.state, first.reason, first.rule) == ("cancelled", "time_limit", "time_limit")
    assert (second.state, second.number) == ("starting", 2)
    assert (first.max_run_s, first.on_time_limit) == (1000.0, "requeue")
    assert (second.max_run_s, second.on_time_limit) == (1000.0, "requeue")
    assert sum(sums.preempted + sums.failed for sums in fold.booking.sums.values()) == 0


def test_the_alternative_that_was_taken_is_kept_with_its_labels():
    nodes = [node("a", gpu=1, labels={"zone": "a"}), node("b", labels={"zone": "b"}, cpu=1)]
    mesh = Mesh(pool("p", gpu=2), nodes=nodes)
    mesh.submit(
        "t", gpu=2, node_labels={"zone": "b"}, fallbacks=[{"zone": "a", "takes": {"gpu": 1}}]
    )
    (attempt,) = folded(mesh).changed.values()
    assert (attempt.node_labels, attempt.alternative) == ('{"zone":"a"}', 2)


def test_the_flavor_that_was_taken_is_kept_and_summed_up():
    zones = {"first": {"zone": "a"}, "second": {"zone": "b"}}
    nodes = [node(zone, gpu=1, labels={"zone": zone}) for zone in ("a", "b")]
    quota = {"custom": {"gpu@first": 1, "gpu@second": 1}}
    mesh = Mesh(pool("p", flavors=zones, **quota), nodes=nodes)
    for name in ("x", "y"):
        mesh.submit(name, gpu=1)
        mesh.report(name)
    fold = folded(mesh)
    flavors = {one.task_id: one.flavor for one in fold.changed.values()}
    assert flavors == {"x": "first", "y": "second"}
    started = {
        name: sums.started
        for (dimension, _, name), sums in fold.booking.sums.items()
        if dimension == Dimension.FLAVOR
    }
    assert started == {"first": 1, "second": 1}


def test_what_tasks_and_members_of_arrays_start_after_is_kept():
    mesh = Mesh(pool("p", cpu=4), nodes=[node("n", cpu=4)])
    mesh.queue("first", cpu=1, class_key="c", run="go")
    limits = {"after": ("any:first",), "array": "0-1"}
    mesh.queue("many", cpu=1, class_key="c", run="go", limits=limits)
    mesh.report("first")
    mesh.complete("first")
    attempts = {one.task_id: one.starts_after for one in folded(mesh).changed.values()}
    after = '["any:first"]'
    assert attempts == {"first": "", "many": after, "many[0]": after, "many[1]": after}
