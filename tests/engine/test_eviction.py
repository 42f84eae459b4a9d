"""Evictions by a submission and by request: saved, counted, refused."""

from __future__ import annotations

import pytest

from schedulemesh.domain.payloads import JobPayload
from schedulemesh.domain.reasons import PreemptionReason
from schedulemesh.domain.task import TaskPhase
from schedulemesh.engine.lifecycle.eviction import attempt_of
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.facts import AgentEnding
from schedulemesh.engine.messages.instructions import EvictAgent, StopAgent
from schedulemesh.engine.messages.outcomes import Evicted, Pending
from schedulemesh.engine.preemption.savable import can_be_saved
from schedulemesh.engine.state.agents import Ending, Running, Waiting
from schedulemesh.engine.state.snapshot import referenced, take_snapshot
from tests.engine.builders import Mesh, amount, differences, node, pool


def evicted_pair(**policy):
    """A mesh where ``high`` waits for ``low`` to leave."""
    mesh = Mesh(pool("p", cpu=2), nodes=[node("a", cpu=2)], **policy)
    mesh.run("low", priority=0.0, cpu=2, class_key="c")
    mesh.submit("high", priority=9.0, cpu=2, more={"request_id": "r"})
    return mesh


def test_evicting_saves_and_counts_once_under_its_reason():
    mesh = evicted_pair(preemption_grace_s=3.0)
    order = mesh.ends["low"]
    assert isinstance(order, EvictAgent)
    assert (order.task_ids, order.grace_s) == (("low",), 3.0)
    assert mesh.state.running.by_id["low"].phase.value == "preempting"

    mesh.leave("low", saved=True)

    assert mesh.state.past.preemption_counts == {"same_pool_preemption": 1}
    past = mesh.state.preempted["low"]
    assert (past.state_key, past.fact.preempt_score) == ("state-low", 9.0)
    assert past.fact.agent is not None


@pytest.mark.parametrize(
    ("own", "policy", "expected"),
    [(None, 3.0, 30.0), (None, 40.0, 40.0), (0.0, 3.0, 0.0), (60.0, 3.0, 60.0)],
)
def test_a_job_may_have_a_grace_of_its_own(own, policy, expected):
    mesh = Mesh(pool("p", cpu=2), nodes=[node("a", cpu=2)], preemption_grace_s=policy)
    mesh.run("job", priority=0.0, cpu=2, class_key="c", payload=JobPayload(grace_s=own))
    mesh.submit("high", priority=9.0, cpu=2)
    order = mesh.ends["job"]
    assert isinstance(order, EvictAgent)
    assert order.grace_s == expected


def test_a_state_stored_for_a_task_that_ended_meanwhile_is_dropped():
    assert Mesh(pool("p", cpu=1)).save("gone").facts == ()


def cancel(mesh, task_id):
    return mesh.handle(s.CancelAnswered(task_id=task_id, cancel_success=True)).outcome


def test_a_task_preempted_alone_leaves_its_agent_behind():
    mesh = Mesh(pool("p", cpu=2))
    mesh.run("t", cpu=2)
    asked = mesh.preempt(
        task_id="t", agent_name="t", reason=PreemptionReason.SAME_POOL, request_id="r"
    )
    assert asked == Pending(agent_name="t")
    assert set(mesh.task_evictions) == {"t"}
    mesh.save("t")

    outcome = cancel(mesh, "t")

    assert outcome == Evicted(
        task_id="t",
        agent_name="t",
        reason=PreemptionReason.SAME_POOL,
        state_key="state-t",
        state_saved=True,
        cancel_success=True,
    )
    assert mesh.state.answers["r"].outcome == outcome
    assert isinstance(mesh.state.agents["t"].phase, Running)
    assert mesh.free() == amount()
    assert mesh.state.past.preemption_counts == {"same_pool_preemption": 1}
    assert cancel(mesh, "t") is None


def test_the_runner_of_a_job_that_is_preempted_alone_ends_with_it():
    mesh = Mesh(pool("p", cpu=2))
    mesh.run("t", cpu=2, payload=JobPayload())
    mesh.preempt(task_id="t", agent_name="t", reason=PreemptionReason.SAME_POOL)

    cancel(mesh, "t")

    assert isinstance(mesh.state.agents["t"].phase, Ending)
    assert isinstance(mesh.ends["t"], StopAgent)


def test_a_task_elsewhere_is_preempted_too():
    mesh = Mesh(pool("p", cpu=2))
    mesh.announce("t", "elsewhere")
    mesh.preempt(task_id="t", end_agent=True)
    assert cancel(mesh, "t").agent_name == "elsewhere"
    assert mesh.state.preempted["t"].fact.agent is None


def test_an_agent_is_preempted_on_request_with_all_its_tasks():
    mesh = Mesh(pool("p", cpu=2))
    mesh.run("t", cpu=2)
    mesh.announce("u", "t")
    assert mesh.preempt(agent_name="t") == Pending(agent_name="t")
    assert mesh.ends["t"].task_ids == ("t", "u")
    mesh.leave("t")
    assert mesh.state.past.preemption_counts == {"manual": 2}
    assert mesh.free() == amount(cpu=2)


def test_a_task_already_preempted_alone_keeps_its_reason_when_its_agent_is():
    mesh = Mesh(pool("p", cpu=2))
    mesh.run("t", cpu=2)
    mesh.announce("u", "t")
    mesh.preempt(task_id="u", reason=PreemptionReason.CROSS_POOL)
    mesh.preempt(agent_name="t", end_agent=True)
    mesh.leave("t")
    assert mesh.state.past.preemption_counts == {"cross_pool_preemption": 1, "manual": 1}


def test_the_score_of_an_eviction_on_request_belongs_to_the_task_that_was_named():
    mesh = Mesh(pool("p", cpu=2))
    mesh.run("t", cpu=2)
    mesh.announce("u", "t")
    mesh.preempt(task_id="t", end_agent=True, preempt_score=4.0)
    mesh.leave("t")
    assert mesh.state.preempted["t"].fact.preempt_score == 4.0
    assert mesh.state.preempted["u"].fact.preempt_score is None


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ({"task_id": "none"}, "task_not_found"),
        ({"task_id": "t", "agent_name": "other"}, "task_not_found"),
        ({"agent_name": "none"}, "agent_not_found"),
        ({}, "agent_not_found"),
        ({"agent_name": "t", "end_agent": True, "for_pool": "none"}, "pool_not_found"),
        ({"agent_name": "starting", "end_agent": True}, "agent_not_running"),
        ({"task_id": "starting"}, "already_being_preempted"),
        ({"task_id": "leaving"}, "already_being_preempted"),
    ],
)
def test_what_cannot_be_preempted_is_refused(how, reason):
    mesh = Mesh(pool("p", cpu=4))
    mesh.run("t", cpu=1)
    mesh.submit("starting", cpu=1)
    mesh.run("leaving", cpu=1)
    mesh.preempt(task_id="leaving")
    assert mesh.preempt(**how).reason == reason


def test_an_eviction_on_an_unknown_agent_is_answered_where_one_of_that_name_fails_to_start():
    mesh = Mesh(pool("p", cpu=2))
    mesh.announce("t", "ghost")
    assert mesh.preempt(task_id="t", request_id="r").agent_name == "ghost"
    mesh.submit("ghost", task=False, cpu=1)
    mesh.fail("ghost")
    evicted = mesh.state.answers["r"].outcome
    assert (evicted.task_id, evicted.cancel_success) == ("t", False)
    assert mesh.told == ["r"]
    assert mesh.state.requests == {}


def test_an_eviction_is_answered_where_the_agent_is_deleted_before_it_starts():
    mesh = Mesh(pool("p", cpu=2))
    mesh.announce("t", "ghost")
    mesh.preempt(task_id="t", request_id="r")
    mesh.run("low", priority=0.0, cpu=2, class_key="c")
    mesh.submit("ghost", priority=9.0, cpu=2, class_key="c")
    assert isinstance(mesh.state.agents["ghost"].phase, Waiting)
    mesh.delete("ghost")
    assert mesh.told == ["r"]


def cancelled(mesh, task_id, **how):
    mesh.task_evictions.pop(task_id)
    return mesh.handle(s.CancelAnswered(task_id=task_id, **how)).outcome


def test_a_task_that_cannot_be_cancelled_runs_on_and_is_not_counted():
    mesh = Mesh(pool("p", cpu=2))
    mesh.run("t", priority=1.0, cpu=2)
    mesh.preempt(task_id="t", request_id="r")
    mesh.save("t")
    evicted = cancelled(mesh, "t", cancel_success=False, runs_on=True, error="no cancel()")
    assert (evicted.runs_on, evicted.state_key) == (True, "state-t")
    assert mesh.told == ["r"]
    assert mesh.state.past.preemption_counts == {}
    assert mesh.state.running.by_id["t"].phase is TaskPhase.RUNNING
    assert [c.task_id for c in mesh.evaluate(9.0).candidates] == ["t"]


def test_an_agent_whose_cancel_does_not_return_is_ended_with_its_other_tasks():
    mesh = Mesh(pool("p", cpu=2))
    mesh.run("t", priority=1.0, cpu=2)
    mesh.announce("u", "t")
    mesh.preempt(task_id="t", request_id="r")
    evicted = cancelled(mesh, "t", cancel_success=False, timed_out=True, error="too slow")
    assert (evicted.runs_on, evicted.error, mesh.told) == (False, "too slow", ["r"])
    assert isinstance(mesh.state.agents["t"].phase, Ending)
    assert isinstance(mesh.ends["t"], StopAgent)
    assert mesh.state.running.by_id["u"].phase is TaskPhase.ENDING
    mesh.leave("t")
    assert (mesh.state.agents, mesh.state.running.by_id) == ({}, {})


def test_an_agent_that_is_being_ended_already_is_not_ended_again():
    mesh = Mesh(pool("p", cpu=2))
    mesh.run("t", priority=1.0, cpu=2)
    mesh.preempt(task_id="t", request_id="r")
    mesh.delete("t")
    mesh.facts.clear()
    cancelled(mesh, "t", cancel_success=False, timed_out=True)
    assert not any(isinstance(fact, AgentEnding) for fact in mesh.facts)


def test_a_task_that_could_not_be_cancelled_because_its_agent_is_unknown_is_off_the_book_and_not_counted():
    mesh = Mesh(pool("p", cpu=2))
    mesh.announce("t", "elsewhere")
    mesh.preempt(task_id="t", request_id="r")
    assert not cancelled(mesh, "t", cancel_success=False, runs_on=True).runs_on
    assert mesh.state.past.preemption_counts == {}
    assert mesh.state.running.by_id == {}


def test_a_name_is_that_of_a_task_or_else_of_an_agent():
    mesh = Mesh(pool("p", cpu=2))
    mesh.run("a", cpu=1, task=False)
    assert mesh.preempt(task_id="a").reason == "task_not_found"
    assert mesh.preempt(task_id="a", end_agent=True).agent_name == "a"
    mesh.leave("a")
    assert mesh.state.agents == {}


def freed_by(client, *pools):
    """``low`` of pool q was evicted at the request of a client."""
    mesh = Mesh(pool("p", cpu=0), pool("q", cpu=2), *pools)
    mesh.resize(pool("p", cpu=2))
    mesh.run("full", "p", cpu=2)
    mesh.run("low", "q", cpu=2)
    mesh.preempt(task_id="low", end_agent=True, client=client)
    mesh.leave("low")
    return mesh


def test_quota_freed_on_request_is_held_for_the_client_who_may_use_it_in_another_pool():
    mesh = freed_by("me")
    assert mesh.delete("low").change == "already_gone"
    assert mesh.submit("other", "q", cpu=2, more={"client": "you"}).reason == "preemption_failed"
    mesh.run("mine", "p", cpu=2, more={"client": "me"})
    assert mesh.state.ledger.accounts["p"].borrowed == amount(cpu=2)
    assert mesh.state.ledger.holds == {}


def test_after_ten_seconds_everybody_may_use_it():
    mesh = freed_by("me")
    mesh.tick(9.9)
    assert mesh.free("q") == amount()
    mesh.tick(0.1)
    assert mesh.free("q") == amount(cpu=2)


def test_nothing_is_held_for_nobody():
    assert freed_by(None).free("q") == amount(cpu=2)


def test_a_preempted_task_that_ran_again_is_no_longer_to_be_restored():
    mesh = Mesh(pool("p", cpu=2))
    mesh.run("t", cpu=2, class_key="c")
    mesh.preempt(task_id="t", end_agent=True)
    mesh.leave("t", saved=True)
    assert not mesh.state.preempted["t"].ran_again
    mesh.submit("t", cpu=2, class_key="c")
    assert not mesh.state.preempted["t"].ran_again, "its start may fail"
    mesh.report("t")
    assert mesh.state.preempted["t"].ran_again
    assert "state-t" not in referenced(take_snapshot(mesh.state))
    assert mesh.state.past.preemption_counts == {"manual": 1}


def test_a_victim_that_ran_again_elsewhere_is_not_restarted_when_its_incoming_agent_fails():
    mesh = Mesh(pool("p", cpu=2), nodes=[node("a", cpu=2)])
    mesh.run("low", priority=0.0, cpu=2, class_key="c")
    mesh.submit("high", priority=9.0, cpu=2, class_key="c", more={"request_id": "r"})
    mesh.leave("low", saved=True)
    mesh.announce("low", "elsewhere")
    mesh.complete("low")
    mesh.fail("high")
    assert mesh.state.answers["r"].outcome.not_restarted == ("low",)
    assert mesh.starts == {}


def evicted_with_room_elsewhere():
    """``low`` was evicted for ``high``, which does not run yet; there is room for it in pool ``q``."""
    mesh = Mesh(pool("p", cpu=2), pool("q", cpu=2), nodes=[node("a", cpu=2), node("b", cpu=2)])
    mesh.run("low", priority=0.0, cpu=2, class_key="c")
    mesh.submit("high", priority=9.0, cpu=2, class_key="c", more={"request_id": "r"})
    mesh.leave("low", saved=True)
    return mesh


def evict_again_for_a_client(mesh):
    mesh.preempt(task_id="low", end_agent=True)


def evict_again_for_another(mesh):
    mesh.submit("other", "q", priority=9.0, cpu=2, class_key="c")


@pytest.mark.parametrize("evict_again", [evict_again_for_a_client, evict_again_for_another])
def test_a_victim_that_was_evicted_again_since_does_not_return_for_the_first_eviction(evict_again):
    mesh = evicted_with_room_elsewhere()
    mesh.run("low", "q", priority=0.0, cpu=2, class_key="c")
    mesh.now += 1.0
    evict_again(mesh)
    mesh.leave("low", saved=True)
    mesh.fail("high")
    assert mesh.state.answers["r"].outcome.not_restarted == ("low",)
    assert "low" not in mesh.starts
    assert mesh.state.ended["low"].reason == "preempted"


def test_a_second_eviction_that_was_in_vain_is_undone():
    mesh = evicted_with_room_elsewhere()
    mesh.fail("high")
    mesh.report("low")
    mesh.now += 1.0
    mesh.submit("high", priority=9.0, cpu=2, class_key="c", more={"request_id": "r2"})
    mesh.leave("low", saved=True)
    mesh.fail("high")
    assert mesh.state.answers["r2"].outcome.restarted == ("low",)


@pytest.mark.parametrize("condition", ["ok", "any", "fail"])
@pytest.mark.parametrize("waits", [True, False])
def test_a_victim_by_whose_end_another_task_goes_does_not_return(condition, waits):
    mesh = Mesh(pool("p", cpu=2), pool("q", cpu=2), nodes=[node("a", cpu=2), node("b", cpu=2)])
    mesh.run("low", priority=0.0, cpu=2, class_key="c")
    mesh.submit("high", priority=9.0, cpu=2, class_key="c", more={"request_id": "r"})
    after = {"after": (f"{condition}:low",)}
    if waits:
        mesh.queue("next", "q", cpu=1, class_key="c", limits=after)
    mesh.leave("low", saved=True)
    if not waits:
        mesh.queue("next", "q", cpu=1, class_key="c", limits=after)
    has_gone_by_it = waits or condition != "ok"
    assert mesh.refolded().preempted["low"].is_final is has_gone_by_it
    assert mesh.rewritten().preempted["low"].is_final is has_gone_by_it
    mesh.fail("high")
    refused = mesh.state.answers["r"].outcome
    ends = (refused.not_restarted, refused.restarted)
    assert ends == ((("low",), ()) if has_gone_by_it else ((), ("low",)))


def test_a_member_by_the_end_of_whose_array_another_task_goes_does_not_return():
    mesh = Mesh(pool("p", cpu=2), pool("q", cpu=2), nodes=[node("a", cpu=2), node("b", cpu=2)])
    mesh.queue("x", priority=0.0, cpu=2, class_key="c", run="m", limits={"array": "0"})
    mesh.report("x[0]")
    mesh.submit("high", priority=9.0, cpu=2, class_key="c", more={"request_id": "r"})
    mesh.queue("next", "q", cpu=1, class_key="c", limits={"after": ("any:x",)})
    mesh.leave("x[0]", saved=True)
    assert "next" in mesh.starts
    mesh.fail("high")
    assert mesh.state.answers["r"].outcome.not_restarted == ("x[0]",)


def test_a_lost_task_that_ran_again_elsewhere_is_not_rebuilt():
    mesh = Mesh(pool("p", cpu=2))
    mesh.run("t", cpu=2, class_key="c")
    mesh.announce("u", "t")
    mesh.die("t")
    mesh.announce("t", "elsewhere")
    mesh.complete("t")
    assert [task.task_id for task, _ in mesh.state.lost["t"].tasks] == ["u"]
    mesh.announce("u", "elsewhere")
    assert mesh.state.lost == {}


def test_an_eviction_whose_state_was_not_saved_says_so_in_answer_and_record():
    mesh = Mesh(pool("p", cpu=1))
    mesh.run("low", priority=0.0, cpu=1)
    mesh.save("low")
    mesh.submit("high", priority=9.0, cpu=1, more={"request_id": "r"})
    mesh.handle(s.StateNotSaved(task_id="low", error="too large"))
    mesh.leave("low")
    past = mesh.state.preempted["low"]
    assert (past.state_key, past.fact.save_error) == ("state-low", "too large")
    mesh.report("high")
    (victim,) = mesh.state.answers["r"].outcome.preempted
    assert victim.save_error == "too large"


def test_a_task_preempted_alone_whose_state_was_not_saved_says_so():
    mesh = Mesh(pool("p", cpu=1))
    mesh.run("t", cpu=1)
    mesh.preempt(task_id="t", agent_name="t", reason=PreemptionReason.MANUAL, request_id="r")
    mesh.handle(s.StateNotSaved(task_id="t", error="too large"))
    assert cancel(mesh, "t").save_error == "too large"


def test_a_state_saved_later_makes_up_for_one_that_was_not():
    mesh = Mesh(pool("p", cpu=1))
    mesh.run("t", cpu=1)
    assert mesh.handle(s.StateNotSaved(task_id="t", error="not preempted")).facts == ()
    mesh.preempt(task_id="t", agent_name="t", reason=PreemptionReason.MANUAL, request_id="r")
    mesh.handle(s.StateNotSaved(task_id="t", error="too large"))
    mesh.save("t")
    assert cancel(mesh, "t").save_error == ""
    assert mesh.handle(s.StateNotSaved(task_id="gone", error="no")).facts == ()


def stores(mesh, key, ago_s=0.0, **attempt):
    stored = s.StateStored(task_id="t", state_key=key, saved_at=mesh.now - ago_s, **attempt)
    return mesh.handle(stored).facts


def test_of_two_saves_the_state_that_was_taken_last_is_kept_whichever_is_stored_last():
    mesh = Mesh(pool("p", cpu=1))
    mesh.run("t", cpu=1)
    mesh.tick(10.0)
    assert stores(mesh, "newer", 2.0)
    assert stores(mesh, "older", 3.0) == ()
    task = mesh.state.running.by_id["t"]
    assert (task.state_key, task.saved_at) == ("newer", mesh.now - 2.0)
    assert "older" not in referenced(take_snapshot(mesh.state))
    assert stores(mesh, "newest")
    assert task.state_key == "newest"


def test_a_state_is_kept_in_place_of_one_from_which_nothing_can_be_restored():
    mesh = Mesh(pool("p", cpu=1))
    mesh.run("t", cpu=1)
    mesh.tick(10.0)
    mesh.handle(s.StateStored(task_id="t", state_key="payload", restorable=False))
    assert stores(mesh, "state", 3.0)
    assert mesh.state.running.by_id["t"].state_key == "state"


def registered_again(mesh):
    """The task ends and is registered once more on the same incarnation of its agent."""
    mesh.complete("t", end_agent=False)
    mesh.tick(1.0)
    mesh.announce("t", "t")


def run_again(mesh):
    """The task ends with its agent, and its id is submitted again, at the same time."""
    mesh.complete("t")
    mesh.run("t", cpu=1)


def run_elsewhere(mesh):
    """The task ends, and is registered on an agent that the scheduler does not know."""
    mesh.complete("t")
    mesh.announce("t", "elsewhere")


@pytest.mark.parametrize("again", [registered_again, run_again, run_elsewhere])
def test_what_is_reported_of_a_former_attempt_changes_nothing(again):
    mesh = Mesh(pool("p", cpu=1))
    mesh.run("t", cpu=1)
    attempt = attempt_of(mesh.state, "t")
    mesh.tick(10.0)
    again(mesh)
    assert stores(mesh, "former", attempt=attempt) == ()
    mesh.preempt(task_id="t", reason=PreemptionReason.MANUAL, request_id="r")
    failed = s.StateNotSaved(task_id="t", error="the disk is full", attempt=attempt)
    assert mesh.handle(failed).facts == ()
    for timed_out in (False, True):
        cancelled = s.CancelAnswered(
            task_id="t", cancel_success=not timed_out, timed_out=timed_out, attempt=attempt
        )
        step = mesh.handle(cancelled)
        assert (step.facts, step.instructions, step.outcome) == ((), (), None)
    assert stores(mesh, "present", attempt=attempt_of(mesh.state, "t"))
    assert cancel(mesh, "t").save_error == ""


def test_a_task_whose_agent_became_known_during_its_eviction_is_cancelled_all_the_same():
    mesh = Mesh(pool("p", cpu=1))
    mesh.announce("t", "x")
    attempt = attempt_of(mesh.state, "t")
    mesh.preempt(task_id="t", reason=PreemptionReason.MANUAL, request_id="r")
    mesh.run("x", cpu=1)
    step = mesh.handle(s.CancelAnswered(task_id="t", cancel_success=True, attempt=attempt))
    assert isinstance(step.outcome, Evicted)


def job_of(**how):
    """A job that has run for 100 s on a GPU, and returns when it is evicted."""
    mesh = Mesh(pool("p", cpu=2, gpu=1), nodes=[node("a", cpu=2, gpu=1)])
    given = {
        "cpu": 2,
        "gpu": 1,
        "class_key": "c",
        "payload": JobPayload(),
        "on_preempted": "requeue",
    }
    mesh.run("j", priority=0.0, **{**given, **how})
    mesh.tick(100.0)
    return mesh


def writes(mesh, ago_s=0.0):
    return mesh.handle(s.WorkReported(task_id="j", agent_name="j", saved_at=mesh.now - ago_s)).facts


def test_a_job_has_saved_what_it_wrote_and_nothing_else():
    mesh = job_of()
    agent = mesh.state.agents["j"]
    assert not can_be_saved(mesh.state, agent)
    assert writes(mesh, 30.0)
    assert can_be_saved(mesh.state, agent)
    mesh.submit("high", priority=9.0, cpu=2, gpu=1)
    record = mesh.state.evictions.of_task("j")
    assert (record.state_saved, record.lost_s, record.lost_gpu_s) == (True, 30.0, 30.0)
    mesh.tick(5.0)
    writes(mesh)
    assert (record.lost_s, record.saved_at, record.state_key) == (0.0, mesh.now, None)
    assert mesh.state.evictions.lost_work_in("p", mesh.now) == 0.0
    assert differences(mesh.state, mesh.refolded()) == []
    assert differences(mesh.state, mesh.rewritten()) == []


def test_the_state_of_a_job_is_kept_beside_what_it_wrote_later():
    mesh = job_of()
    writes(mesh, 10.0)
    stored = s.StateStored(task_id="j", state_key="preserved", saved_at=mesh.now - 20.0)
    assert mesh.handle(stored).facts
    task = mesh.state.running.by_id["j"]
    assert (task.state_key, task.saved_at) == ("preserved", mesh.now - 10.0)


def test_what_was_written_before_the_attempt_or_is_known_already_is_no_news():
    mesh = job_of()
    assert writes(mesh, 100.0) == ()
    assert writes(mesh, 20.0)
    assert writes(mesh, 20.0) == ()
    assert writes(mesh, 50.0) == ()
    other = s.WorkReported(task_id="j", agent_name="another", saved_at=mesh.now)
    assert mesh.handle(other).facts == ()


def test_a_job_that_has_saved_in_an_earlier_attempt_can_be_saved():
    mesh = job_of()
    writes(mesh)
    mesh.submit("high", priority=9.0, cpu=2, gpu=1)
    mesh.leave("j")
    mesh.report("high")
    mesh.complete("high")
    mesh.report("j")
    task = mesh.state.running.by_id["j"]
    assert (task.saved_at, task.lost_work(mesh.now + 7.0)) == (None, 7.0)
    assert can_be_saved(mesh.state, mesh.state.agents["j"])


@pytest.mark.parametrize(
    ("saves", "reported", "restored"),
    [(True, None, True), (True, False, False), (False, None, False), (False, True, True)],
)
def test_a_job_returns_with_what_it_has_saved(saves, reported, restored):
    mesh = job_of()
    (first,) = (fact for fact in mesh.facts if type(fact).__name__ == "AgentStarted")
    assert first.state_restored is None
    if saves:
        writes(mesh)
    mesh.submit("high", priority=9.0, cpu=2, gpu=1)
    mesh.leave("j")
    mesh.report("high")
    mesh.complete("high")
    mesh.report("j", state_restored=reported)
    second = [fact for fact in mesh.facts if type(fact).__name__ == "AgentStarted"][-1]
    assert (second.agent_name, second.state_restored) == ("j", restored)


def test_what_an_evicted_job_wrote_counts_as_saved_while_it_waits_and_when_it_runs_again():
    mesh = job_of()
    writes(mesh)
    saved_at = mesh.now
    mesh.submit("high", priority=9.0, cpu=2, gpu=1)
    mesh.leave("j")
    mesh.report("high")

    def saved():
        explained = mesh.engine.explain("j", mesh.now)
        return explained.state, explained.saved_at, explained.eviction.saved_at

    assert saved() == ("queued", saved_at, saved_at)
    mesh.complete("high")
    mesh.report("j")
    assert saved() == ("running", saved_at, saved_at)
    mesh.tick(50.0)
    writes(mesh)
    assert saved() == ("running", mesh.now, saved_at)


def test_what_a_job_wrote_that_is_not_queued_again_counts_as_saved_until_it_completes():
    mesh = job_of(on_preempted="drop")
    writes(mesh)
    saved_at = mesh.now
    mesh.submit("high", priority=9.0, cpu=2, gpu=1)
    mesh.leave("j")
    explained = mesh.engine.explain("j", mesh.now)
    assert (explained.state, explained.reason) == ("cancelled", "preempted")
    assert explained.saved_at == explained.eviction.saved_at == saved_at


def test_a_job_that_wrote_nothing_has_lost_all():
    mesh = job_of()
    mesh.submit("high", priority=9.0, cpu=2, gpu=1)
    mesh.handle(s.StateNotSaved(task_id="j", error="it wrote nothing"))
    mesh.leave("j")
    record = mesh.state.evictions.of_task("j")
    assert (record.state_saved, record.lost_gpu_s) == (False, 100.0)
    assert record.save_error == "it wrote nothing"
