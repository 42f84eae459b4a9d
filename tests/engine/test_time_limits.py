"""Limits in time: when tasks are warned and ended, what becomes of them, and what counts on it."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schedulemesh.domain.end_reasons import TaskEndReason
from schedulemesh.domain.payloads import GangPayload, JobPayload, LeasePayload
from schedulemesh.domain.reasons import Change, PreemptionReason
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.facts import EvictionStarted
from schedulemesh.engine.messages.limit_facts import (
    IdleLimitCleared,
    IdleLimitNear,
    TimeLimitNear,
)
from schedulemesh.engine.messages.outcomes import Done, Refused
from tests.engine.builders import Mesh, differences, node, pool

HOUR = 3600.0


def mesh_of(*, cpu=8, gpu=0, queueing="best_effort", policy=None, **limits):
    """A pool of this size with these limits, on one node."""
    size = {"cpu": cpu, **({"gpu": gpu} if gpu else {})}
    spec = msgspec.structs.replace(pool("p", **size), queueing=queueing, **limits)
    mesh = Mesh(spec, nodes=[node("n", cpu=64, gpu=8)])
    mesh.policy(save_timeout=20.0, cancel_timeout=10.0, **(policy or {}))
    return mesh


def run(mesh, name="t", **how):
    mesh.run(name, class_key="c", **{"cpu": 1, **how})
    return mesh.state.running.by_id[name]


def limit(mesh, task_id, max_run_s, **how):
    return mesh.handle(s.TimeLimitRequested(task_id=task_id, max_run_s=max_run_s, **how)).outcome


def reasons(mesh):
    """The tasks whose evictions have begun, with their reasons."""
    return {f.task_id: f.reason for f in mesh.facts if isinstance(f, EvictionStarted)}


def warned(mesh):
    return {f.task_id: f.at for f in mesh.facts if isinstance(f, TimeLimitNear)}


def agree(mesh):
    """The state is what its facts lead to, and what its snapshot says."""
    assert differences(mesh.state, mesh.refolded()) == []
    assert differences(mesh.state, mesh.rewritten()) == []


# -- when


def test_a_task_is_ended_when_it_has_run_for_as_long_as_it_may_and_no_earlier():
    mesh = mesh_of()
    task = run(mesh, limits={"max_run_s": HOUR})
    mesh.tick(HOUR - 1.0)
    assert reasons(mesh) == {}
    mesh.tick(1.0)
    assert reasons(mesh) == {"t": PreemptionReason.TIME_LIMIT}
    assert mesh.ends["t"].task_ids == ("t",), (
        "it is noticed, saved and terminated as any evicted one"
    )
    assert task.limit_at == mesh.now
    agree(mesh)


@pytest.mark.parametrize(
    ("max_run_s", "before_s"), [(600.0, 60.0), (6000.0, 600.0), (7 * 24 * HOUR, 600.0)]
)
def test_its_owner_is_warned_once_ten_minutes_before_or_a_tenth_of_the_limit(max_run_s, before_s):
    mesh = mesh_of()
    run(mesh, limits={"max_run_s": max_run_s})
    mesh.tick(max_run_s - before_s - 1.0)
    assert warned(mesh) == {}
    mesh.tick(1.0)
    assert warned(mesh) == {"t": mesh.now}
    agree(mesh)
    mesh.tick(before_s / 2)
    assert mesh.told_facts("TimeLimitNear") == ["TimeLimitNear"]


def test_the_time_that_it_waits_or_starts_does_not_count():
    mesh = mesh_of(cpu=1)
    run(mesh, "busy")
    mesh.queue("t", cpu=1, class_key="c", limits={"max_run_s": HOUR})
    mesh.tick(5 * HOUR)
    mesh.complete("busy")
    mesh.tick(5 * HOUR)
    assert (mesh.state.running.by_id["t"].phase.value, reasons(mesh)) == ("starting", {})
    mesh.report("t")
    mesh.tick(HOUR - 1.0)
    assert reasons(mesh) == {}
    mesh.tick(1.0)
    assert list(reasons(mesh)) == ["t"]


def test_a_supervisor_that_was_down_lengthens_nothing():
    mesh = mesh_of()
    run(mesh, limits={"max_run_s": HOUR})
    mesh.engine.state = mesh.rewritten()
    mesh.tick(9 * HOUR)
    assert (list(reasons(mesh)), warned(mesh)) == (["t"], {})


def test_a_process_that_ray_restarts_goes_on_with_the_same_limit():
    mesh = mesh_of()
    run(mesh, limits={"max_run_s": HOUR})
    mesh.now += HOUR / 2
    incarnation = mesh.state.agents["t"].incarnation
    mesh.handle(s.AgentRestarted(agent_name="t", incarnation=incarnation, pid=2))
    mesh.tick(HOUR / 2)
    assert list(reasons(mesh)) == ["t"]


def test_what_is_started_again_after_a_loss_or_an_eviction_has_the_whole_time():
    mesh = mesh_of()
    mesh.queue("t", cpu=1, class_key="c", retries=3, run="go", limits={"max_run_s": HOUR})
    mesh.report("t")
    mesh.tick(HOUR / 2)
    mesh.die("t")
    mesh.tick(1.0)
    mesh.report("t")
    mesh.tick(HOUR - 1.0)
    assert reasons(mesh) == {}
    mesh.tick(1.0)
    assert list(reasons(mesh)) == ["t"]


# -- what becomes of it


def test_it_ends_as_cancelled_with_its_saved_state_and_counts_as_no_failure():
    mesh = mesh_of()
    run(mesh, limits={"max_run_s": HOUR}, retries=5, run="go")
    mesh.tick(HOUR)
    mesh.leave("t", saved=True)
    ended = mesh.state.ended["t"]
    assert (ended.state.value, ended.reason) == ("cancelled", TaskEndReason.TIME_LIMIT)
    attempts = ended.attempts
    assert (attempts.preemptions, attempts.failures, attempts.time_limits) == (0, 0, 1)
    assert mesh.state.preempted["t"].state_key == "state-t", "it can be restored"
    assert (mesh.waiting(), mesh.free("p").cpu) == ([], 8 * 10_000)
    agree(mesh)


def test_one_that_asks_for_it_joins_the_queue_again_and_has_the_whole_time():
    mesh = mesh_of()
    mesh.queue(
        "t",
        cpu=1,
        class_key="c",
        limits={"max_run_s": HOUR, "on_time_limit": "requeue"},
        on_preempted="drop",
    )
    mesh.report("t")
    for number in (1, 2):
        mesh.tick(HOUR)
        mesh.leave("t", saved=True)
        assert mesh.starts["t"].state_key == "state-t"
        mesh.report("t")
        attempts = mesh.state.running.by_id["t"].attempts
        assert (attempts.time_limits, attempts.preemptions, attempts.number) == (
            number,
            0,
            number + 1,
        )
    agree(mesh)


@pytest.mark.parametrize("ageing_per_hour", [0.0, 5.0])
def test_one_that_joins_again_at_its_limit_comes_behind_those_that_wait(ageing_per_hour):
    mesh = mesh_of(cpu=1)
    mesh.order_by(ageing_per_hour=ageing_per_hour)
    limits = {"max_run_s": HOUR, "on_time_limit": "requeue"}
    mesh.queue("t", cpu=1, class_key="c", limits=limits)
    mesh.report("t")
    mesh.tick(60.0)
    mesh.queue("waits", cpu=1)
    mesh.tick(HOUR)
    mesh.leave("t", saved=True)
    assert (list(mesh.starts), mesh.waiting()) == (["waits"], ["t"])
    agree(mesh)


def test_a_limit_counts_as_no_eviction_of_those_that_a_task_may_have():
    mesh = mesh_of(policy={"max_preemptions": 1})
    mesh.queue("t", cpu=1, class_key="c", limits={"max_run_s": HOUR, "on_time_limit": "requeue"})
    mesh.report("t")
    mesh.tick(HOUR)
    mesh.leave("t")
    mesh.report("t")
    assert mesh.state.running.by_id["t"].task_class.immune is False


def test_one_that_is_done_while_it_is_ended_is_completed():
    mesh = mesh_of()
    run(mesh, limits={"max_run_s": HOUR}, run="go")
    mesh.tick(HOUR)
    mesh.run_ends("t", result_key="r")
    mesh.leave("t")
    assert mesh.state.ended["t"].state.value == "completed"


@pytest.mark.parametrize("how", ["raised", "died"])
def test_one_that_fails_while_it_is_ended_has_not_failed(how):
    mesh = mesh_of()
    run(mesh, limits={"max_run_s": HOUR}, run="go", retries=5)
    mesh.tick(HOUR)
    if how == "raised":
        mesh.run_ends("t", reason=TaskEndReason.RUN_RAISED, error="SystemExit: 143")
    mesh.leave("t")
    assert mesh.state.ended["t"].reason == TaskEndReason.TIME_LIMIT
    assert mesh.waiting() == []


@pytest.mark.parametrize(
    "kind",
    [
        {"payload": JobPayload(), "run": "run"},
        {"payload": LeasePayload(), "bundles": [{"cpu": 1}], "cpu": 0},
        {"payload": GangPayload(), "bundles": [{"cpu": 1}] * 2, "cpu": 0},
    ],
    ids=["job", "lease", "gang"],
)
def test_jobs_leases_and_gangs_have_limits_too(kind):
    mesh = mesh_of()
    how = {"cpu": 1, **kind}
    if not how["cpu"]:
        del how["cpu"]
    mesh.submit("t", class_key="c", limits={"max_run_s": HOUR}, **how)
    mesh.make_all()
    mesh.report("t")
    mesh.tick(HOUR)
    assert reasons(mesh) == {"t": PreemptionReason.TIME_LIMIT}
    grace = {"job": 30.0, "lease": 30.0, "gang": 0.0}
    assert mesh.ends["t"].grace_s == grace[kind["payload"].kind]


def test_of_several_tasks_on_an_agent_one_ends_alone_and_the_last_with_the_agent():
    mesh = mesh_of()
    run(mesh, "first", limits={"max_run_s": HOUR})
    task = mesh.submission("second", limits={"max_run_s": 2 * HOUR}).task
    mesh.handle(s.TaskAnnounced(task=task, agent_name="first"))
    mesh.tick(HOUR)
    assert (list(mesh.task_evictions), mesh.ends) == (["first"], {})
    mesh.handle(
        s.CancelAnswered(
            task_id="first", cancel_success=False, timed_out=False, runs_on=True, error="no cancel"
        )
    )
    assert list(mesh.state.running.by_id) == ["second"], "a limit ends also what has no cancel()"
    mesh.tick(HOUR)
    assert list(mesh.ends) == ["first"]
    agree(mesh)


# -- limits of pools


def test_a_longer_limit_than_that_of_the_pool_is_refused_in_a_sentence_that_names_it():
    mesh = mesh_of(max_run_s=4 * HOUR)
    for refused in (
        mesh.submit("t", cpu=1, limits={"max_run_s": 8 * HOUR}),
        mesh.queue("t", cpu=1, limits={"max_run_s": 8 * HOUR}),
        mesh.dry("t", cpu=1, limits={"max_run_s": 8 * HOUR}),
    ):
        assert refused.reason == "exceeds_time_limit"
        assert refused.error == ("max_run_s is 8h, and tasks of pool 'p' may run for at most 4h")
    run(mesh, limits={"max_run_s": 4 * HOUR})
    task = mesh.submission("more", limits={"max_run_s": 8 * HOUR}).task
    refused = mesh.handle(s.TaskAnnounced(task=task, agent_name="t")).outcome
    assert refused.reason == "exceeds_time_limit"


@pytest.mark.parametrize(
    ("default_s", "most_s", "own_s", "expected_s"),
    [
        (None, None, None, None),
        (HOUR, None, None, HOUR),
        (None, 2 * HOUR, None, 2 * HOUR),
        (HOUR, 2 * HOUR, None, HOUR),
        (HOUR, 2 * HOUR, 1.5 * HOUR, 1.5 * HOUR),
        (HOUR, None, 9 * HOUR, 9 * HOUR),
    ],
)
def test_a_task_that_says_nothing_has_the_default_of_its_pool(default_s, most_s, own_s, expected_s):
    mesh = mesh_of(default_max_run_s=default_s, max_run_s=most_s)
    assert run(mesh, limits={"max_run_s": own_s}).max_run_s == expected_s


def test_an_attempt_keeps_the_limit_with_which_it_began_and_a_later_one_has_the_new():
    mesh = mesh_of(cpu=1, default_max_run_s=HOUR)
    run(mesh, "now")
    mesh.queue("later", cpu=1, limits={"max_run_s": 3 * HOUR})
    spec = mesh.state.ledger.accounts["p"].spec
    mesh.resize(msgspec.structs.replace(spec, default_max_run_s=60.0, max_run_s=2 * HOUR))
    assert mesh.state.running.by_id["now"].max_run_s == HOUR
    mesh.complete("now")
    mesh.report("later")
    assert mesh.state.running.by_id["later"].max_run_s == 2 * HOUR
    agree(mesh)


def test_a_task_that_names_no_pool_gets_one_in_which_it_may_run_for_as_long():
    short = msgspec.structs.replace(pool("a", cpu=4), max_run_s=HOUR)
    mesh = Mesh(short, pool("b", cpu=4), nodes=[node("n", cpu=64)])
    assert mesh.submit("long", "", cpu=1, limits={"max_run_s": 2 * HOUR}) is not None
    assert mesh.state.agents["long"].spec.pool_name == "b"


# -- changes


def test_an_operator_lengthens_the_limit_of_a_running_task_up_to_that_of_its_pool():
    mesh = mesh_of(max_run_s=4 * HOUR)
    run(mesh, limits={"max_run_s": HOUR})
    mesh.tick(HOUR - 60.0)
    assert limit(mesh, "t", 3 * HOUR) == Done()
    agree(mesh)
    assert limit(mesh, "t", 3 * HOUR).change is Change.UNCHANGED
    assert limit(mesh, "t", 5 * HOUR).reason == "exceeds_time_limit"
    mesh.tick(2 * HOUR)
    assert reasons(mesh) == {}
    mesh.tick(60.0)
    assert list(reasons(mesh)) == ["t"]
    assert limit(mesh, "t", 4 * HOUR).reason == "already_being_preempted"


def test_a_submitter_may_shorten_it_and_not_lengthen_it():
    mesh = mesh_of()
    run(mesh, limits={"max_run_s": 2 * HOUR})
    for longer in (3 * HOUR, None):
        refused = limit(mesh, "t", longer, may_lengthen=False)
        assert isinstance(refused, Refused)
        assert "may run for 2h" in refused.error
    assert limit(mesh, "t", HOUR, may_lengthen=False) == Done()
    mesh.tick(HOUR)
    assert list(reasons(mesh)) == ["t"]


def test_one_that_is_shorter_than_the_task_has_run_ends_it_at_once():
    mesh = mesh_of()
    run(mesh)
    mesh.tick(HOUR)
    assert limit(mesh, "t", 60.0) == Done()
    assert list(reasons(mesh)) == ["t"]


def test_the_limit_of_a_task_that_waits_is_changed_too_and_one_that_is_gone_has_none():
    mesh = mesh_of(cpu=1)
    run(mesh, "busy")
    mesh.queue("t", cpu=1)
    assert limit(mesh, "t", HOUR) == Done()
    agree(mesh)
    mesh.complete("busy")
    mesh.report("t")
    assert mesh.state.running.by_id["t"].max_run_s == HOUR
    assert limit(mesh, "busy", HOUR).reason == "task_not_found"


def test_the_limit_of_a_task_that_waits_for_its_next_attempt_is_changed_and_it_starts_again():
    mesh = mesh_of()
    mesh.queue("t", cpu=1, class_key="c", run="go", retries=3)
    mesh.report("t")
    mesh.run_ends("t", reason=TaskEndReason.RUN_RAISED)
    mesh.leave("t")
    assert mesh.starts == {}, "it waits a moment after a failure"
    assert limit(mesh, "t", HOUR) == Done()
    agree(mesh)
    mesh.tick(5.0)
    mesh.report("t")
    assert mesh.state.running.by_id["t"].max_run_s == HOUR


# -- what counts on it


def test_a_start_is_reserved_for_when_the_limit_has_ended_what_holds_the_room():
    mesh = mesh_of(cpu=4)
    run(mesh, "busy", cpu=4, limits={"max_run_s": HOUR})
    mesh.queue("first", cpu=4)
    mesh.tick(1.0)
    reservation = mesh.state.queue.by_id["first"].reservation
    assert reservation.at == 1000.0 + HOUR + 30.0, "its limit, and what saving and cancelling take"


@pytest.mark.parametrize(("max_run_s", "starts"), [(HOUR - 40.0, True), (HOUR, False)])
def test_a_task_whose_limit_ends_it_before_a_reserved_start_is_backfilled(max_run_s, starts):
    mesh = mesh_of(cpu=4)
    run(mesh, "busy", cpu=3, limits={"max_run_s": HOUR})
    mesh.queue("first", cpu=4)
    mesh.tick(1.0)
    mesh.queue("small", cpu=1, limits={"max_run_s": max_run_s})
    mesh.tick(1.0)
    assert ("small" not in mesh.waiting()) is starts


def test_an_estimate_counts_where_it_is_shorter_and_the_limit_where_that_is():
    mesh = mesh_of(cpu=4)
    run(mesh, "busy", cpu=4, duration=10 * HOUR, limits={"max_run_s": HOUR})
    mesh.queue("first", cpu=4)
    mesh.tick(1.0)
    assert mesh.state.queue.by_id["first"].reservation.at == 1000.0 + HOUR + 30.0
    mesh = mesh_of(cpu=4)
    run(mesh, "busy", cpu=4, duration=60.0, limits={"max_run_s": HOUR})
    mesh.queue("first", cpu=4)
    mesh.tick(1.0)
    assert mesh.state.queue.by_id["first"].reservation.at == 1060.0


def test_a_limit_changes_no_score_of_an_eviction():
    """It is no estimate: a task that may run for a day is no better victim than one that may run on."""
    mesh = mesh_of(cpu=2)
    run(mesh, "limited", priority=1.0, limits={"max_run_s": 24 * HOUR})
    run(mesh, "other", priority=1.0)
    scores = {c.task_id: c.preempt_score for c in mesh.evaluate(9.0).candidates}
    assert scores["limited"] == scores["other"]


# -- idle GPUs


def measured(mesh, *unused, since=None):
    """These agents are idle, since then or since they run."""
    start = mesh.now - 1e6 if since is None else since
    return mesh.handle(s.AgentsMeasured(unused=tuple((name, start) for name in unused)))


def test_gpus_that_are_idle_for_long_are_warned_of_and_then_their_task_ends():
    mesh = mesh_of(gpu=8)
    run(mesh, gpu=1, limits={"idle_s": 600.0})
    measured(mesh, "t")
    mesh.now += 599.0
    measured(mesh, "t")
    assert mesh.told_facts("IdleLimitNear") == []
    mesh.now += 1.0
    measured(mesh, "t")
    (fact,) = [f for f in mesh.facts if isinstance(f, IdleLimitNear)]
    assert (fact.since, fact.limit_at) == (1000.0, mesh.now + 600.0)
    agree(mesh)
    mesh.tick(900.0)
    assert reasons(mesh) == {}, "only a measurement ends it"
    measured(mesh, "t")
    assert reasons(mesh) == {"t": PreemptionReason.IDLE_LIMIT}
    mesh.leave("t", saved=True)
    assert mesh.state.ended["t"].reason == TaskEndReason.IDLE_LIMIT
    agree(mesh)


@pytest.mark.parametrize("then", ["used", "not measured"])
def test_one_whose_gpus_are_used_again_or_not_measured_any_more_runs_on(then):
    mesh = mesh_of(gpu=8)
    run(mesh, gpu=1, limits={"idle_s": 600.0})
    mesh.now += 600.0
    measured(mesh, "t")
    mesh.now += 300.0
    measured(mesh)
    assert [type(f) for f in mesh.facts[-1:]] == [IdleLimitCleared], then
    mesh.now += 300.0
    measured(mesh, "t", since=mesh.now - 10.0)
    assert reasons(mesh) == {}
    mesh.now += 600.0
    measured(mesh, "t", since=mesh.now - 610.0)
    assert mesh.told_facts("IdleLimitNear") == ["IdleLimitNear"] * 2
    agree(mesh)


def test_the_idle_limit_of_a_pool_is_for_its_tasks_with_gpus_that_name_none():
    mesh = mesh_of(gpu=8, idle_s=600.0)
    run(mesh, "default", gpu=1)
    run(mesh, "own", gpu=1, limits={"idle_s": 6000.0})
    run(mesh, "no-gpu")
    mesh.now += 600.0
    measured(mesh, "default", "own", "no-gpu")
    assert [f.task_id for f in mesh.facts if isinstance(f, IdleLimitNear)] == ["default"]


# -- random worlds


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_attempt_runs_longer_than_its_limit_and_none_is_ended_before(data):
    """An oracle that knows of each attempt its start and the limits that were in force at its start."""
    mesh = mesh_of(cpu=3)
    oracle: dict[str, tuple[float, float | None]] = {}
    names = [f"t{number}" for number in range(5)]

    def note_starts():
        for name in list(mesh.starts):
            mesh.report(name)
            spec = mesh.state.ledger.accounts["p"].spec
            task = mesh.state.running.by_id[name].spec
            asked = spec.default_max_run_s if task.max_run_s is None else task.max_run_s
            bounds = [bound for bound in (asked, spec.max_run_s) if bound is not None]
            oracle[name] = (mesh.now, min(bounds) if bounds else None)

    maybe = st.one_of(st.none(), st.integers(1, 60).map(float))
    for _ in range(data.draw(st.integers(5, 25))):
        action = data.draw(st.sampled_from(["submit", "tick", "leave", "pool", "limit", "restart"]))
        if action == "submit":
            own, again = data.draw(maybe), data.draw(st.sampled_from(["", "requeue"]))
            name = data.draw(st.sampled_from(names))
            limits = {"max_run_s": own, "on_time_limit": again}
            mesh.queue(name, cpu=1, class_key="c", limits=limits)
        elif action == "leave" and mesh.ends:
            mesh.leave(data.draw(st.sampled_from(sorted(mesh.ends))))
        elif action == "pool":
            spec = mesh.state.ledger.accounts["p"].spec
            default, most = data.draw(maybe), data.draw(maybe)
            mesh.resize(msgspec.structs.replace(spec, default_max_run_s=default, max_run_s=most))
        elif action == "limit" and mesh.state.running.by_id:
            name = data.draw(st.sampled_from(sorted(mesh.state.running.by_id)))
            asked = data.draw(st.integers(1, 60).map(float))
            if limit(mesh, name, asked) == Done():
                oracle[name] = (oracle[name][0], asked)
        elif action == "restart":
            agree(mesh)
            mesh.engine.state = mesh.rewritten()
        note_starts()
        before = len(mesh.facts)
        mesh.tick(data.draw(st.integers(0, 20).map(float)))
        for fact in mesh.facts[before:]:
            if isinstance(fact, EvictionStarted) and fact.reason == PreemptionReason.TIME_LIMIT:
                began, bound = oracle[fact.task_id]
                assert bound is not None
                assert mesh.now >= began + bound, "ended early"
        note_starts()
        for task in mesh.state.running.by_id.values():
            if task.phase.value == "running":
                began, bound = oracle[task.spec.task_id]
                assert bound is None or mesh.now < began + bound, "runs on"
    agree(mesh)
