"""Tasks that do not wait in the queue: where they run, what they wait for, by whom they were evicted."""

from __future__ import annotations

import msgspec

from schedulemesh.domain.end_reasons import TaskEndReason
from schedulemesh.domain.payloads import GangPayload, JobPayload
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.sentences import in_words
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.protocol.wording import in_commands
from tests.engine.builders import Mesh, node, pool


def mesh():
    return Mesh(pool("p", cpu=4), nodes=[node("n1", cpu=8)])


def explained(given, task_id):
    return given.engine.explain(task_id, given.now)


def test_a_running_task_says_where_and_for_how_long():
    given = mesh()
    given.run("t", cpu=1, duration=300.0)
    given.now += 60
    found = explained(given, "t")
    assert (found.state, found.reason, found.error) == ("running", "", "")
    assert (found.node_ids, found.since, found.ends_at) == (("n1",), 1000.0, 1300.0)
    assert found.detail == (
        "it runs on node n1 in agent 't' for 1m; 4m of its estimated duration are left"
    )
    given.now += 7200
    assert explained(given, "t").detail.endswith("longer than the 5m estimated")


def test_a_starting_task_says_that_its_process_is_being_started():
    given = mesh()
    given.submit("t", cpu=1)
    given.now += 3
    found = explained(given, "t")
    assert (found.state, found.waits_for) == ("starting", ())
    assert found.detail == "the process of its agent 't' is being started, since 3s"


def test_a_starting_task_names_the_victims_that_it_waits_for():
    given = mesh()
    given.run("a", cpu=2, priority=1)
    given.run("b", cpu=2, priority=1)
    given.submit("t", cpu=4, priority=9)
    found = explained(given, "t")
    assert found.waits_for == ("a", "b")
    assert found.detail == (
        "it starts as soon as its resources are free: it waits for tasks a, b to be evicted"
    )


def test_a_starting_gang_names_the_group_that_it_waits_for():

    given = Mesh(pool("p", cpu=4), nodes=[node("n1", cpu=8)])
    given.submit("t", bundles=[{"cpu": 1}, {"cpu": 1}], payload=GangPayload())
    found = explained(given, "t")
    assert len(found.waits_for) == 1
    assert "placement group" in found.detail
    given.make_all()
    given.report("t")
    assert explained(given, "t").node_ids == ("n1",)


def test_a_task_that_is_being_evicted_says_for_whom_and_by_which_rule():
    given = Mesh(pool("p", cpu=4), pool("q", cpu=4))
    given.run("t", cpu=4, priority=1)
    given.run("full", "q", 50.0, cpu=4)
    given.submit("urgent", "q", 9.0, cpu=4)
    found = explained(given, "t")
    assert (found.state, found.reason) == ("preempting", "cross_pool_preemption")
    assert found.error == (
        "it is being evicted for task 'urgent' in pool 'q' (cross_pool_preemption, score 8); "
        "after that it is not run again by itself"
    )
    assert (found.eviction.by_task, found.eviction.by_pool) == ("urgent", "q")
    assert "on_preempted='requeue'" in found.hint


def test_a_task_that_is_evicted_by_request_says_so():
    given = mesh()
    given.run("t", cpu=4, on_preempted="requeue", class_key="k")
    given.preempt(agent_name="t")
    found = explained(given, "t")
    assert found.error == (
        "it is being evicted by request (manual); after that it joins the queue again"
    )
    assert found.hint == ""


def test_a_task_that_leaves_for_a_drain_says_so():
    given = mesh()
    given.run("t", cpu=4, on_preempted="requeue", class_key="k")
    given.handle(s.DrainRequested(node_id="n1", drained=True, client="ada"))
    assert explained(given, "t").error == (
        "it is being evicted for a drain (drained); after that it joins the queue again"
    )


def test_a_task_whose_agent_ends_says_why():
    given = mesh()
    given.run("t", cpu=4)
    given.delete("t")
    found = explained(given, "t")
    assert (found.state, found.detail) == (
        "ending",
        "its agent 't' is being terminated: deleted",
    )


def test_an_evicted_task_says_by_which_rule_and_what_was_saved():
    given = mesh()
    given.run("t", cpu=4, priority=1, class_key="k")
    given.submit("new", cpu=4, priority=9)
    given.leave("t", saved=True)
    given.report("new")
    found = explained(given, "t")
    assert (found.state, found.reason) == ("cancelled", "preempted")
    assert "(same_pool_preemption, score 8); its state is stored" in found.error
    assert "restore_task" in found.hint
    assert found.eviction.state_saved


def test_a_lost_task_says_what_of_it_is_stored():
    given = mesh()
    given.run("t", cpu=4, class_key="k")
    given.die("t")
    found = explained(given, "t")
    assert (found.state, found.reason) == ("lost", "lost")
    assert "no state of it is stored" in found.error


def test_a_registered_task_on_a_foreign_agent_has_no_node():
    given = mesh()
    given.announce("t", "elsewhere")
    found = explained(given, "t")
    assert (found.state, found.node_ids) == ("running", ())
    assert found.detail == "it runs in agent 'elsewhere' for 0s"


def test_an_unknown_id_is_refused_with_the_nearest_ones():
    given = mesh()
    given.run("train-7", cpu=1)
    given.queue("train-8", cpu=4)
    given.run("other", cpu=1)
    refused = explained(given, "train-9")
    assert isinstance(refused, Refused)
    assert refused.reason is Reason.TASK_NOT_FOUND
    assert "'train-8', 'train-7'" in refused.error or "'train-7', 'train-8'" in refused.error
    assert "near ids" not in explained(given, "zzz").error


def test_an_explanation_is_sent_and_read_unchanged():
    given = mesh()
    given.run("a", cpu=4)
    given.queue("t", cpu=4)
    found = explained(given, "t")
    data = msgspec.msgpack.encode(found)
    assert msgspec.msgpack.decode(data, type=type(found)) == found


def test_a_completed_task_says_what_is_kept_of_it():
    given = mesh()
    given.run("t", cpu=1, run="train")
    given.run_ends("t", result_key="kept")
    found = explained(given, "t")
    assert (found.state, found.reason, found.error) == ("completed", "", "")
    assert found.detail == "it was completed; result('t') returns what it returned"
    given.run("u", cpu=1)
    given.complete("u")
    assert explained(given, "u").detail == "it was completed"


def test_a_task_whose_run_raised_says_what_and_how_to_have_it_retried():
    given = mesh()
    given.run("t", cpu=1, run="train")
    given.run_ends("t", result_key="why", reason=TaskEndReason.RUN_RAISED, error="ValueError: no")
    found = explained(given, "t")
    assert (found.state, found.reason) == ("failed", "run_raised")
    assert found.error == "ValueError: no"
    assert found.hint == "result('t') raises its exception; max_retries runs it again"


def test_a_job_that_has_run_says_where_its_output_is():
    given = mesh()
    for name, how in (
        ("ok", {"result_key": "kept"}),
        ("bad", {"result_key": "why", "reason": TaskEndReason.RUN_RAISED, "error": "code 1"}),
    ):
        given.run(name, cpu=1, run="train", payload=JobPayload())
        given.run_ends(name, **how)
    completed, failed = explained(given, "ok"), explained(given, "bad")
    assert completed.detail == "it was completed; job_logs('ok') shows what it wrote"
    assert (failed.state, failed.error) == ("failed", "code 1")
    assert failed.hint == "job_logs('bad') shows what it wrote; max_retries runs it again"
    assert in_commands(failed.hint) == (
        "`schedulemesh logs bad` shows what it wrote; --retries runs it again"
    )
    assert in_commands(in_words(failed.hint_text, "zh")) == (
        "用 `schedulemesh logs bad` 查看它的输出；设置 --retries 可自动重试"
    )


def test_a_job_that_is_retried_says_where_its_output_is():
    given = mesh()
    given.run("t", cpu=1, run="train", class_key="k", retries=2, payload=JobPayload())
    given.run_ends("t", result_key="why", reason=TaskEndReason.RUN_RAISED, error="code 1")
    given.leave("t")
    found = explained(given, "t")
    assert (found.state, found.reason) == ("queued", Reason.BACK_OFF)
    assert in_commands(found.hint) == "`schedulemesh logs t` shows what it wrote"


def test_a_run_that_is_retried_says_when_and_why():
    given = mesh()
    given.run("t", cpu=1, run="train", class_key="k", retries=2)
    given.run_ends("t", result_key="why", reason=TaskEndReason.RUN_RAISED, error="ValueError: no")
    given.leave("t")
    found = explained(given, "t")
    assert (found.state, found.reason, found.failures) == ("queued", Reason.BACK_OFF, 1)
    assert "because its run failed once" in found.error


def test_a_task_that_was_cancelled_in_the_queue_says_so():
    given = mesh()
    given.run("a", cpu=4)
    given.queue("t", cpu=4)
    given.cancel("t")
    found = explained(given, "t")
    assert (found.state, found.reason) == ("cancelled", Reason.CANCELLED)
    assert found.error == "It was cancelled by request"
    given.queue("u", cpu=4, more={"wait_s": 5.0})
    given.tick(6)
    assert explained(given, "u").error == "task 'u' did not start within 5 s"


def test_a_task_whose_agent_was_deleted_says_so():
    given = mesh()
    given.run("t", cpu=4)
    given.delete("t")
    given.leave("t")
    found = explained(given, "t")
    assert (found.state, found.reason) == ("cancelled", "deleted")
    assert found.error == "Its agent was deleted"
