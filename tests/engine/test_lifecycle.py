"""What becomes of agents and tasks: started, failed, ended, held, restarted."""

from __future__ import annotations

import pytest

from schedulemesh.domain.reasons import Change, Reason
from schedulemesh.domain.task import TaskPhase
from schedulemesh.engine.messages import facts as f
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.instructions import StopAgent
from schedulemesh.engine.messages.outcomes import Done, Pending
from schedulemesh.engine.state import past
from schedulemesh.engine.state.agents import Running
from tests.engine.builders import Mesh, amount, differences, names, node, pool


def evicted_pair(**policy):
    """A mesh where ``high`` waits for ``low`` to leave."""
    mesh = Mesh(pool("p", cpu=2), nodes=[node("a", cpu=2)], **policy)
    mesh.run("low", priority=0.0, cpu=2, class_key="c")
    mesh.submit("high", priority=9.0, cpu=2, more={"request_id": "r"})
    return mesh


def test_a_start_that_fails_gives_everything_back():
    mesh = Mesh(pool("p", cpu=2), nodes=[node("a", cpu=2)])
    mesh.submit("t", cpu=2, more={"request_id": "r"})

    refused = mesh.fail("t", "agent_start_timeout")

    assert (refused.reason, refused.error) == ("agent_start_timeout", "the class raised")
    assert mesh.state.answers["r"].outcome == refused
    assert mesh.free() == amount(cpu=2)
    assert mesh.state.agents == {}
    assert mesh.state.running.by_id == {}


def test_after_a_failed_start_the_victims_run_again_from_their_saved_state():
    mesh = evicted_pair()
    mesh.leave("low", saved=True)

    refused = mesh.fail("high")

    assert (refused.restarted, refused.not_restarted) == (("low",), ())
    assert mesh.starts["low"].state_key == "state-low"
    mesh.report("low")
    assert mesh.state.running.by_id["low"].phase is TaskPhase.RUNNING


@pytest.mark.parametrize("how", [{"class_key": ""}, {"class_key": "c", "restartable": False}])
def test_a_victim_that_cannot_be_made_again_is_named(how):
    mesh = Mesh(pool("p", cpu=2))
    mesh.run("low", priority=0.0, cpu=2, **how)
    mesh.submit("high", priority=9.0, cpu=2)
    mesh.leave("low")
    refused = mesh.fail("high")
    assert (refused.restarted, refused.not_restarted) == ((), ("low",))


def test_a_victim_for_which_there_is_no_room_any_more_waits_in_the_queue():
    mesh = evicted_pair()
    mesh.leave("low", saved=True)
    mesh.cordon("a")
    refused = mesh.fail("high")
    assert (refused.restarted, refused.requeued, refused.not_restarted) == ((), ("low",), ())
    assert mesh.waiting() == ["low"]
    mesh.cordon("a", cordoned=False)
    mesh.tick(1.0)
    assert mesh.starts["low"].state_key == "state-low"
    assert differences(mesh.state, mesh.refolded()) == []


@pytest.mark.parametrize("reason", ["cluster_out_of_resources", "group_unplaceable"])
def test_a_victim_that_runs_again_and_finds_no_room_waits_in_the_queue(reason):
    mesh = evicted_pair()
    mesh.leave("low", saved=True)
    assert mesh.fail("high").restarted == ("low",)
    mesh.fail("low", reason)
    assert mesh.waiting() == ["low"]
    assert returns_of(mesh, "low") == ["room_taken"]
    assert mesh.state.queue.by_id["low"].attempts.failures == 0
    mesh.tick(10.0)
    assert mesh.starts["low"].state_key == "state-low"
    mesh.report("low")
    assert mesh.state.running.by_id["low"].attempts.preemptions == 1
    assert differences(mesh.state, mesh.refolded()) == []


def test_one_that_cannot_be_made_again_does_not_wait():
    mesh = evicted_pair()
    mesh.leave("low")
    mesh.fail("high")
    mesh.delete("low")
    mesh.fail("low", "cluster_out_of_resources")
    assert mesh.waiting() == []


def returns_of(mesh, task_id):
    """Why a task gave its claim back before it ran, each time."""
    ended = (fact for fact in mesh.facts if isinstance(fact, f.AgentEnded))
    return [
        fact.returned.reason for fact in ended if fact.returned and fact.returned.task_id == task_id
    ]


def lost_while_it_starts(mesh, name, how):
    """The process of a start dies because its node dies, which is seen after that or before."""
    if how == "before":
        mesh.observe(node("b", cpu=2))
        return mesh.fail(name)
    if how == "died":
        mesh.observe(node("b", cpu=2))
        return mesh.die(name)
    if how == "timeout":
        mesh.observe(node("b", cpu=2))
        return mesh.fail(name, "agent_start_timeout")
    outcome = mesh.fail(name, room_lost=True)
    mesh.observe(node("b", cpu=2))
    return outcome


HOW = pytest.mark.parametrize("how", ["before", "after", "died", "timeout"])


@HOW
@pytest.mark.parametrize("retries", [0, 2])
def test_a_start_that_is_lost_with_its_node_is_returned_and_is_no_failure(how, retries):
    mesh = Mesh(pool("p", cpu=2), nodes=[node("a", cpu=2)])
    mesh.queue("t", cpu=2, class_key="c", retries=retries)
    lost_while_it_starts(mesh, "t", how)
    assert returns_of(mesh, "t") == ["room_lost"]
    mesh.tick(10.0)
    mesh.report("t", node_id="b")
    attempts = mesh.state.running.by_id["t"].attempts
    assert (attempts.failures, attempts.number) == (0, 1)
    assert differences(mesh.state, mesh.refolded()) == []


@HOW
def test_one_that_ran_before_waits_with_its_state(how):
    mesh = evicted_pair()
    mesh.leave("low", saved=True)
    mesh.fail("high")
    lost_while_it_starts(mesh, "low", how)
    assert returns_of(mesh, "low") == ["room_lost"]
    mesh.tick(10.0)
    assert mesh.starts["low"].state_key == "state-low"
    mesh.report("low", node_id="b")
    assert mesh.state.running.by_id["low"].attempts.failures == 0


@HOW
def test_one_that_does_not_wait_in_the_queue_is_refused_when_its_node_is_lost(how):
    mesh = Mesh(pool("p", cpu=2), nodes=[node("a", cpu=2)])
    mesh.submit("t", cpu=2, class_key="c", more={"request_id": "r"})
    assert lost_while_it_starts(mesh, "t", how).reason in (
        Reason.AGENT_START_FAILED,
        Reason.AGENT_START_TIMEOUT,
    )
    assert (mesh.waiting(), mesh.state.running.by_id) == ([], {})


def test_a_class_that_raises_still_counts():
    mesh = Mesh(pool("p", cpu=2), nodes=[node("a", cpu=2)])
    mesh.queue("t", cpu=2, class_key="c", retries=1)
    mesh.fail("t")
    assert mesh.state.queue.by_id["t"].attempts.failures == 1
    mesh.tick(10.0)
    mesh.fail("t")
    assert mesh.waiting() == []


def test_all_tasks_of_a_victim_run_again_together():
    mesh = Mesh(pool("p", cpu=2))
    mesh.run("low", priority=0.0, cpu=2, class_key="c")
    mesh.announce("second", "low", priority=1.0)
    mesh.submit("high", priority=9.0, cpu=2)
    mesh.leave("low")

    refused = mesh.fail("high")

    assert refused.restarted == ("low", "second")
    mesh.report("low")
    assert mesh.state.running.on_agent("low") == ("low", "second")


def test_an_agent_that_dies_while_it_starts_has_failed_to_start():
    mesh = evicted_pair()
    mesh.leave("low")
    refused = mesh.die("high")
    assert (refused.reason, refused.restarted) == ("agent_start_failed", ("low",))


def test_a_failure_told_of_an_agent_that_runs_means_that_it_is_gone():
    mesh = evicted_pair()
    mesh.leave("low")
    order = mesh.starts["high"]
    accepted = mesh.report("high")
    mesh.starts["high"] = order

    mesh.fail("high")

    assert mesh.state.answers["r"].outcome == accepted
    assert mesh.free() == amount(cpu=2)
    assert mesh.state.agents == {}


def test_a_failure_told_of_an_agent_that_is_being_ended_lets_its_incoming_agent_in():
    mesh = evicted_pair()
    incarnation = mesh.state.agents["low"].incarnation
    mesh.handle(
        s.AgentStartFailed(
            agent_name="low", incarnation=incarnation, reason=Reason.AGENT_START_FAILED, error="y"
        )
    )
    assert "high" in mesh.starts


@pytest.mark.parametrize("kind", [s.AgentReported, s.AgentGone, s.AgentStartFailed])
def test_late_reports_of_a_former_incarnation_are_dropped(kind):
    mesh = Mesh(pool("p", cpu=2))
    mesh.run("t", cpu=2)
    old = mesh.state.agents["t"].incarnation
    mesh.complete("t")
    mesh.submit("t", cpu=2)
    more = {"reason": "x", "error": "y"} if kind is s.AgentStartFailed else {}

    step = mesh.handle(kind(agent_name="t", incarnation=old, **more))

    assert (step.facts, step.instructions, step.outcome) == ((), (), None)
    assert mesh.state.agents["t"].incarnation > old


def test_a_report_of_an_agent_that_is_being_ended_is_dropped():
    mesh = Mesh(pool("p", cpu=2))
    mesh.submit("t", cpu=2)
    mesh.delete("t")
    step = mesh.handle(
        s.AgentReported(agent_name="t", incarnation=mesh.state.agents["t"].incarnation)
    )
    assert step.facts == ()


def test_a_completed_task_ends_with_its_agent_and_the_quota_comes_back():
    mesh = Mesh(pool("p", cpu=2))
    mesh.run("t", cpu=2)
    asked = mesh.handle(s.TaskFinished(task_id="t", end_agent=True)).outcome
    assert asked == Pending(agent_name="t")
    assert isinstance(mesh.ends["t"], StopAgent)
    assert mesh.free() == amount()
    mesh.leave("t")
    assert mesh.free() == amount(cpu=2)


def test_a_completed_task_may_leave_its_agent_behind():
    mesh = Mesh(pool("p", cpu=2))
    mesh.run("t", cpu=2)
    assert mesh.complete("t", end_agent=False) == Done()
    assert isinstance(mesh.state.agents["t"].phase, Running)
    assert mesh.handle(s.TaskFinished(task_id="t")).outcome.reason == "task_not_found"


def test_finishing_what_is_ending_already_waits_for_it():
    mesh = Mesh(pool("p", cpu=2))
    mesh.run("t", cpu=2)
    mesh.delete("t")
    asked = mesh.handle(s.TaskFinished(task_id="t", end_agent=True)).outcome
    assert asked == Pending(agent_name="t")


def test_a_task_being_preempted_alone_cannot_be_completed():
    mesh = Mesh(pool("p", cpu=2))
    mesh.run("t", cpu=2)
    mesh.preempt(task_id="t")
    refused = mesh.complete("t", end_agent=False)
    assert refused.reason == "already_being_preempted"


def test_a_task_being_preempted_with_its_agent_cannot_be_completed():
    mesh = Mesh(pool("p", cpu=2))
    mesh.run("t", cpu=2)
    mesh.preempt(task_id="t", end_agent=True)
    asked = mesh.handle(s.TaskFinished(task_id="t", end_agent=True)).outcome
    assert asked.reason == "already_being_preempted"
    mesh.leave("t")
    assert "t" in mesh.state.preempted


def test_deleting_an_agent_stops_it_and_takes_its_tasks_off_the_book():
    mesh = Mesh(pool("p", cpu=2))
    mesh.run("t", cpu=2)
    assert mesh.delete("t") == Pending(agent_name="t")
    assert mesh.delete("t") == Pending(agent_name="t")
    mesh.leave("t")
    assert mesh.state.running.by_id == {}
    assert mesh.delete("t") == Done(change=Change.ALREADY_GONE)


def test_deleting_an_incoming_agent_that_waits_lets_go_of_everything_at_once():
    mesh = evicted_pair()
    assert mesh.delete("high") == Done()
    assert mesh.state.answers["r"].outcome.reason == "agent_deleted"
    mesh.leave("low")
    assert mesh.free() == amount(cpu=2)
    assert mesh.state.past.preemption_counts == {"same_pool_preemption": 1}


def test_an_incoming_agent_of_the_same_name_inherits_no_victims():
    mesh = Mesh(pool("p", cpu=2), pool("q", cpu=2), pool("r", cpu=2))
    mesh.run("old-victim", "q", priority=0.0, cpu=2)
    mesh.run("p-full", "p", priority=9.0, cpu=2)
    mesh.submit("new", "p", priority=9.0, cpu=2)
    mesh.delete("new")
    mesh.run("r-low", "r", priority=0.0, cpu=2)
    mesh.submit("new", "r", priority=4.0, cpu=2)
    assert names(mesh.state.agents["new"].submission.evicting) == ["r-low"]

    mesh.leave("old-victim")
    assert mesh.free("q") == amount(cpu=2)
    mesh.slot("new")
    assert mesh.state.ledger.accounts["q"].lent == amount()


def test_deleting_an_agent_that_starts_answers_its_request():
    mesh = Mesh(pool("p", cpu=2))
    mesh.submit("t", cpu=2, more={"request_id": "r"})
    mesh.delete("t")
    mesh.leave("t")
    assert mesh.state.answers["r"].outcome.reason == "agent_deleted"


def test_an_agent_that_is_lost_frees_its_claim_and_its_tasks():
    mesh = Mesh(pool("p", cpu=2))
    mesh.run("t", cpu=2)
    mesh.die("t")
    assert (mesh.free(), mesh.state.running.by_id) == (amount(cpu=2), {})
    assert mesh.state.past.preemption_counts == {}


def test_an_agent_that_is_lost_while_it_waits_answers_its_request():
    mesh = evicted_pair()
    mesh.die("high")
    assert mesh.state.answers["r"].outcome.reason == "agent_deleted"
    mesh.leave("low")
    assert mesh.free() == amount(cpu=2)


def test_registering_an_identical_task_again_is_idempotent_and_a_different_one_is_refused():
    mesh = Mesh(pool("p", cpu=2))
    assert mesh.announce("t", "x") == Done()
    assert mesh.announce("t", "x") == Done(change=Change.ALREADY_REGISTERED)
    assert mesh.announce("t", "y").reason == "duplicate_task"
    assert mesh.announce("t", "x", priority=6.0).reason == "duplicate_task"


def test_a_task_on_an_unknown_agent_or_pool_is_evaluated_like_any_other_and_holds_nothing():
    mesh = Mesh(pool("p", cpu=2))
    mesh.announce("t", "unknown", "nowhere", priority=0.0)
    (found,) = mesh.evaluate(9.0).candidates
    assert (found.agent_name, found.pool_name, found.reason) == (
        "unknown",
        "nowhere",
        "cross_pool_preemption",
    )
    assert mesh.free() == amount(cpu=2)
    assert mesh.complete("t") == Done()


def test_a_task_registered_on_an_agent_that_starts_runs_when_the_agent_does():
    mesh = Mesh(pool("p", cpu=2))
    mesh.submit("agent", task=False, cpu=2)
    mesh.announce("t", "agent", priority=0.0)
    assert mesh.evaluate(9.0).candidates == ()
    mesh.tick(5)
    assert mesh.report("agent").task_id is None
    assert names(mesh.evaluate(9.0).candidates) == ["t"]
    assert mesh.state.running.by_id["t"].started_at == 1005.0


def test_no_task_is_registered_on_an_agent_that_is_being_ended():
    mesh = Mesh(pool("p", cpu=2))
    mesh.run("t", cpu=2)
    mesh.delete("t")
    assert mesh.announce("u", "t").reason == "agent_ending"


def held_for_q():
    """Quota of p, freed on request and held for q."""
    mesh = Mesh(pool("p", cpu=4), pool("q", cpu=2))
    mesh.run("low", "p", cpu=3)
    mesh.run("q-full", "q", priority=9.0, cpu=2)
    mesh.preempt(agent_name="low", end_agent=True, for_pool="q")
    mesh.leave("low")
    return mesh


def test_quota_freed_on_request_is_held_for_the_pool_that_it_was_freed_for():
    mesh = held_for_q()
    p = mesh.state.ledger.accounts["p"]
    assert (p.reserved, p.lent, mesh.free("p")) == (amount(cpu=3), amount(cpu=3), amount(cpu=1))
    assert mesh.dry("thief", "p", priority=1.0, cpu=2).reason == "preemption_failed"

    assert mesh.submit("t", "q", priority=1.0, cpu=2) == Pending(agent_name="t")
    mesh.report("t")
    assert (p.used, p.reserved, p.lent) == (amount(cpu=2), amount(cpu=1), amount(cpu=3))


def test_a_hold_ends_after_sixty_seconds():
    mesh = held_for_q()
    mesh.tick(59.9)
    assert mesh.state.ledger.holds
    mesh.tick(0.1)
    assert not mesh.state.ledger.holds
    assert mesh.free("p") == amount(cpu=4)


def test_a_loan_drawn_from_a_hold_outlives_the_hold():
    mesh = held_for_q()
    mesh.run("t", "q", priority=1.0, cpu=2)
    mesh.tick(61)
    p = mesh.state.ledger.accounts["p"]
    assert (p.used, p.reserved, p.lent) == (amount(cpu=2), amount(), amount(cpu=2))
    mesh.complete("t")
    assert (p.used, p.lent) == (amount(), amount())


def test_of_several_victims_all_must_have_left():
    mesh = Mesh(pool("p", cpu=2), nodes=[node("a", cpu=2)])
    mesh.run("x", priority=0.0, cpu=1)
    mesh.run("y", priority=0.0, cpu=1)
    mesh.submit("high", priority=9.0, cpu=2)
    assert set(mesh.ends) == {"x", "y"}
    mesh.leave("y")
    assert "high" not in mesh.starts
    mesh.leave("x")
    assert "high" in mesh.starts


def test_a_victim_that_dies_by_itself_lets_its_incoming_agent_in_too():
    mesh = evicted_pair()
    mesh.ends.pop("low")
    mesh.die("low")
    assert mesh.report("high").agent_name == "high"


def test_one_of_two_tasks_of_an_agent_is_done_and_the_agent_goes_on_with_the_other():
    mesh = Mesh(pool("p", cpu=2))
    mesh.run("a", cpu=2)
    mesh.announce("b", "a")
    done = mesh.complete("a")
    assert (done.change, mesh.ends) == ("agent_kept", {})
    assert "1 of its tasks go on ('b')" in done.warnings[0]
    assert mesh.state.running.on_agent("a") == ("b",)
    mesh.complete("b")
    assert mesh.state.agents == {}


def test_deleting_an_agent_that_is_gone_is_no_error_and_one_that_never_was_is_refused():
    mesh = Mesh(pool("p", cpu=2))
    mesh.run("a", cpu=2)
    mesh.delete("a")
    mesh.leave("a")
    assert mesh.delete("a").change == "already_gone"
    refused = mesh.delete("b")
    assert refused.reason == "agent_not_found"
    assert "'b'" in refused.error
    assert list(mesh.rewritten().former) == ["a"]


def test_deleting_an_unknown_agent_ends_what_was_registered_on_it():
    mesh = Mesh(pool("p", cpu=2))
    mesh.announce("t", "elsewhere")
    assert mesh.delete("elsewhere").change is None
    assert mesh.state.running.by_id == {}
    assert mesh.delete("elsewhere").change == "already_gone"


def test_only_so_many_names_of_former_agents_are_kept(monkeypatch):
    monkeypatch.setattr(past, "FORMER", 2)
    mesh = Mesh(pool("p", cpu=2))
    for name in ("a", "b", "c"):
        mesh.run(name, cpu=1)
        mesh.delete(name)
        mesh.leave(name)
    assert list(mesh.state.former) == ["b", "c"]
