"""The calls about the queue, from the client through the whole supervisor on a fake backend."""

from __future__ import annotations

import threading

import msgspec
import pytest

from schedulemesh.core.agent_actor import AgentActor
from schedulemesh.errors import InvalidRequestError, JournalError
from schedulemesh.protocol.requests import decode_request, encode_request
from tests.core.test_request_service import client
from tests.runtime.composition import InThread


class Worker(AgentActor):
    """A user's class."""


@pytest.fixture
def service(tmp_path):
    """A supervisor with an empty journal."""
    found = InThread(tmp_path / "j.sqlite")
    yield found
    found.close()


@pytest.fixture
def mesh(service):
    """A client with a pool of one CPU."""
    scheduler = client(service)
    assert scheduler.create_pool("p", resources={"cpu": 1})["success"]
    return scheduler


def submit(mesh, name, **how):
    return mesh.submit_task_with_preemption(name, "p", Worker, {"cpu": 1}, **how)


class Call:
    """A call in a thread of its own."""

    def __init__(self, call):
        self.answer = None
        self.thread = threading.Thread(target=self._run, args=(call,), daemon=True)
        self.thread.start()

    def _run(self, call):
        self.answer = call()

    def result(self):
        self.thread.join(20)
        assert not self.thread.is_alive(), "the call was not answered"
        return self.answer


def test_a_queued_task_is_answered_at_once(mesh):
    first = submit(mesh, "a", queue=True, agent_name="first")
    assert first == {
        "success": True,
        "state": "starting",
        "position": 0,
        "task_id": "a",
        "agent_name": "first",
        "pool_name": "p",
    }
    answers = [submit(mesh, name, queue=True) for name in ("b", "c")]
    assert [(answer["state"], answer["position"]) for answer in answers] == [
        ("queued", 1),
        ("queued", 2),
    ]


def test_the_same_request_gets_the_same_answer(mesh):
    submit(mesh, "a")
    first = submit(mesh, "b", queue=True, request_id="once")
    assert submit(mesh, "b", queue=True, request_id="once") == first
    assert submit(mesh, "b", queue=True)["reason"] == "duplicate_task"


def test_a_waiting_call_returns_with_the_agent_when_the_task_runs(mesh):
    submit(mesh, "a")
    waiting = Call(lambda: submit(mesh, "b", wait=True, agent_name="mine", request_id="once"))
    again = Call(lambda: submit(mesh, "b", wait=True, agent_name="mine", request_id="once"))
    assert mesh.complete_task("a", end_agent=True)["success"]
    answer = waiting.result()
    assert (answer["success"], answer["agent"]["name"], answer["task_id"]) == (True, "mine", "b")
    assert again.result()["agent"]["name"] == "mine"


def test_a_waiting_call_ends_with_its_time(mesh):
    submit(mesh, "a")
    answer = submit(mesh, "b", wait=0.1)
    assert (answer["success"], answer["reason"]) == (False, "wait_timeout")
    assert submit(mesh, "b", queue=True)["position"] == 1, "its id is free again"


@pytest.mark.parametrize("wait", [0, -1, "soon", float("nan"), float("inf")])
def test_a_wait_is_seconds(mesh, wait):
    with pytest.raises(InvalidRequestError, match=r"wait (must be|is .*; allowed are) seconds"):
        submit(mesh, "b", wait=wait)


def test_references_of_a_waiting_task_are_kept(service, mesh):
    submit(mesh, "a")
    references = service.running.executor.references
    refs = ([object()], [])
    given = mesh._connection.call
    mesh._connection.call = lambda method, data, *_refs, **how: given(method, data, refs, **how)
    submit(mesh, "b", queue=True)
    mesh._connection.call = given
    submit(mesh, "c", queue=True)
    assert len(references) == 1
    submit(mesh, "d", dry_run=True)
    assert len(references) == 1


def spec(name, **more):
    return {
        "task_id": name,
        "pool_name": "p",
        "actor_class": Worker,
        "resources": {"cpu": 1},
        "queue": True,
        **more,
    }


def ids(listed):
    return [task["task_id"] for task in listed["tasks"]]


def test_many_submissions_are_one_message_and_one_commit(service, mesh):
    messages, commits = [], []
    call = mesh._connection.call
    journal = service.running.reactor._journal
    append = journal.append

    def counted(method, data, *refs, **how):
        messages.append(data)
        return call(method, data, *refs, **how)

    def written(record, blobs):
        if record:
            commits.append(record)
        return append(record, blobs)

    mesh._connection.call, journal.append = counted, written
    try:
        submit(mesh, "first")
        del messages[:], commits[:]
        answer = mesh.submit_many([spec(f"t{number}") for number in range(100)])
    finally:
        mesh._connection.call, journal.append = call, append
    assert (answer["success"], answer["refused"]) == (True, 0)
    assert [one["position"] for one in answer["results"]] == list(range(1, 101))
    assert (len(messages), len(commits)) == (1, 1)
    one = mesh.submit_many([spec("alone")])
    assert one["success"]
    assert len(messages[0]) < 100 * 700, "the class is sent once"


def test_a_refusal_does_not_concern_other_submissions(mesh):
    answer = mesh.submit_many(
        [spec("a"), spec("b", pool_name="none"), spec("a"), spec("c", resources={"cpu": 9})]
    )
    assert not answer["success"]
    assert answer["refused"] == 3
    assert "3 of 4 submissions were refused; the first is specs[1]" in answer["error"]
    reasons = [one.get("reason") for one in answer["results"]]
    assert reasons == [None, "pool_not_found", "duplicate_task", "exceeds_pool_capacity"]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"task_id": ""}, r"specs\[1\]"),
        ({"prioritty": 1}, r"specs\[1\] has 'prioritty' \(did you mean 'priority'\?\)"),
        ({"priority": "highest"}, r"specs\[1\]: priority"),
        ({"dry_run": True}, r"specs\[1\] has dry_run"),
    ],
)
def test_a_malformed_submission_refuses_the_whole_call(mesh, bad, message):
    with pytest.raises(ValueError, match=message):
        mesh.submit_many([spec("a"), spec("b", **bad)])
    assert mesh.list_tasks()["tasks"] == []


def test_many_submissions_may_wait_until_they_run(mesh):
    waiting = Call(lambda: mesh.submit_many([spec("a", wait=True), spec("b", wait=0.2)]))
    first, second = waiting.result()["results"]
    assert first["agent"]["handle"] is not None
    assert second["reason"] == "wait_timeout"


def test_each_of_many_keeps_its_own_references(service, mesh):
    call = mesh._connection.call
    refs = ([object(), object()], [])

    def with_refs(method, data, *_refs, **how):
        request = decode_request(data)
        changed = msgspec.structs.replace(request, references=((1, 0), (0, 0), (1, 0)))
        return call(method, encode_request(changed), refs, **how)

    submit(mesh, "first")
    mesh._connection.call = with_refs
    mesh.submit_many([spec(name) for name in ("a", "b", "c")])
    mesh._connection.call = call
    state, references = service.running.reactor.state, service.running.executor.references
    held = [
        references.references_of(state.queue.by_id[name].submission.agent)[0]
        for name in ("a", "b", "c")
    ]
    assert held == [[refs[0][0]], [], [refs[0][1]]]


def test_queued_tasks_are_held_released_moved_and_cancelled(mesh):
    submit(mesh, "first", priority=9.0)
    mesh.submit_many([spec(name) for name in ("a", "b", "c", "d")])
    assert mesh.hold_task("a")["success"]
    assert ids(mesh.list_queue()) == ["b", "c", "d", "a"]
    assert mesh.set_priority("d", 7.0)["success"]
    assert mesh.move_to_front("c")["success"]
    assert mesh.release_task("a")["success"]
    assert ids(mesh.list_queue("p")) == ["c", "d", "a", "b"]
    assert mesh.hold_task("first")["reason"] == "not_queued"
    assert mesh.move_to_front("none")["reason"] == "task_not_found"
    answer = mesh.cancel_tasks(["a", "none", "c"])
    assert (answer["success"], answer["cancelled"]) == (False, ["a", "c"])
    assert answer["refused"]["none"]["reason"] == "task_not_found"
    assert mesh.cancel_tasks(["b", "a"]) == {
        "success": True,
        "cancelled": ["b", "a"],
        "already_ended": ["a"],
        "refused": {},
    }
    assert ids(mesh.list_queue()) == ["d"]


def test_the_queue_is_listed_with_what_waits(mesh):
    submit(mesh, "first")
    mesh.submit_many([spec(name, estimated_duration=60.0) for name in ("a", "b", "c")])
    mesh.hold_task("a")
    listed = mesh.list_queue("p", limit=2)
    assert (ids(listed), listed["total"]) == (["b", "c"], 3)
    row = listed["tasks"][0]
    assert (row["state"], row["position"], row["held"], row["preemptions"]) == (
        "queued",
        1,
        False,
        0,
    )
    assert 0 <= row["waiting_time"] < 20
    tasks = mesh.list_tasks()["tasks"]
    assert [(task["task_id"], task["phase"]) for task in tasks] == [
        ("first", "running"),
        ("b", "queued"),
        ("c", "queued"),
        ("a", "queued"),
    ]
    assert [task.get("held") for task in tasks] == [None, False, False, True]
    assert mesh.list_queue("none")["reason"] == "pool_not_found"
    (pool,) = mesh.list_pools()["pools"]
    assert pool["queued"] == 3


def test_the_policy_of_the_queue_is_changed_and_kept(service, mesh):
    assert mesh.get_queue_policy()["policy"]["order"] == "priority"
    changed = mesh.configure_queue(order="fifo", ageing_per_hour=2)
    assert changed["policy"] == mesh.get_queue_policy()["policy"]
    assert (changed["policy"]["order"], changed["policy"]["ageing_per_hour"]) == ("fifo", 2.0)
    assert mesh.configure_queue(order="priority")["policy"]["ageing_per_hour"] == 2.0
    assert service.reloaded().queue.policy.ageing_per_hour == 2.0
    changed = mesh.configure_queue(order="two_level_las", las_threshold_gpu_hours=0.5)
    assert changed["policy"]["las_threshold_gpu_hours"] == 0.5
    assert service.reloaded().queue.policy.las_threshold_gpu_hours == 0.5
    with pytest.raises(InvalidRequestError, match="order is 'lifo'; allowed are priority, fifo"):
        mesh.configure_queue(order="lifo")
    with pytest.raises(InvalidRequestError, match="no argument 'ageing'"):
        mesh.configure_queue(ageing=1)


def test_pools_say_how_their_queue_is_served(mesh):
    changed = mesh.ensure_pool("p", queueing="strict", on_preempted="requeue")
    assert (changed["pool"]["queueing"], changed["pool"]["on_preempted"]) == ("strict", "requeue")
    assert mesh.ensure_pool("p", resources={"cpu": 2})["pool"]["queueing"] == "strict"
    (pool,) = mesh.list_pools()["pools"]
    assert (pool["queueing"], pool["on_preempted"]) == ("strict", "requeue")
    reset = mesh.resize_pool("p", queueing=None, on_preempted=None)["pool"]
    assert (reset["queueing"], reset["on_preempted"]) == ("best_effort", "drop")
    with pytest.raises(InvalidRequestError, match="queueing is 'lifo'; allowed are best_effort"):
        mesh.create_pool("q", queueing="lifo")


def test_the_queue_shows_how_long_tasks_run_by_earlier_runs(mesh):
    for number in range(3):
        submit(mesh, f"train-{number}")
        assert mesh.complete_task(f"train-{number}", end_agent=True)["success"]
    submit(mesh, "train-3")
    submit(mesh, "train-4", queue=True)
    submit(mesh, "declared", queue=True, estimated_duration=60.0)
    assert mesh.configure_queue(estimates=True)["policy"]["estimates"] is True
    estimated, declared = mesh.list_queue()["tasks"]
    assert (estimated["task_id"], estimated["estimated_from"]) == ("train-4", 3)
    assert estimated["expected_duration"] >= 0.0
    assert (declared["expected_duration"], declared["estimated_from"]) == (60.0, 0)
    found = mesh.explain("train-4")["expected_duration"]
    assert (found["runs"], found["pattern"], found["cpus"]) == (3, "train-*", 1.0)
    assert mesh.explain("declared")["expected_duration"] is None


@pytest.mark.parametrize("fails_at", [None, 0, 2])
def test_others_are_served_between_large_submissions(service, mesh, monkeypatch, fails_at):
    """Four groups of sixty bundles, each of which is decided by itself."""
    reactor, portions = service.running.reactor, []
    steps = reactor.steps

    async def noted(stimuli, blobs):
        if len(portions) == fails_at:
            raise JournalError("the disk is full")
        portions.append([one.task.task_id for one in stimuli])
        return await steps(stimuli, blobs)

    monkeypatch.setattr(reactor, "steps", noted)
    large = {"bundles": [{"cpu": 0.01}] * 60, "resources": None}
    specs = [spec("small"), *(spec(f"t{number}", **large) for number in range(4))]
    answers = mesh.submit_many(specs)
    if fails_at == 0:
        assert answers["reason"] == "journal_unavailable"
        return
    assert portions == [["small", "t0"], ["t1"], ["t2"], ["t3"]][:fails_at]
    reasons = [one.get("reason") for one in answers["results"]]
    # What is decided is refused, too: the pool has no groups.
    assert reasons[3:] == ["no_pg_pool" if fails_at is None else "journal_unavailable"] * 2
