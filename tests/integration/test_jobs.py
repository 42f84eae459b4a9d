"""Jobs on real Ray: a driver command runs as a task, and nothing of it outlives its end."""

from __future__ import annotations

import os
import signal
import sys
import textwrap

import pytest
import ray

from schedulemesh.errors import JobFailedError
from schedulemesh.simple import SimpleScheduler
from tests.integration.polling import actors_in, groups_in, process_exists, quota, until

#: A script that knows nothing of ScheduleMesh: an actor, a detached one, and a detached placement group.
PLAIN = """
    import sys
    import ray
    from ray.util.placement_group import placement_group

    ray.init()

    @ray.remote(num_cpus=1)
    class Worker:
        def double(self, x):
            return 2 * x

    namespace = sys.argv[1]
    worker = Worker.remote()
    kept = Worker.options(name="kept", namespace=namespace, lifetime="detached").remote()
    group = placement_group([{"CPU": 1}], name=f"@{namespace}: kept", lifetime="detached")
    ray.get([group.ready(), kept.double.remote(1)])
    print("result", ray.get(worker.double.remote(21)), flush=True)
"""
#: What follows in a script that runs until it is ended.
WAITS = """
    import time
    time.sleep(600)  # there to be ended
"""
#: A script that counts its attempts in its checkpoint folder, and exits when it is preempted.
RESUMING = """
    import sys, time
    from schedulemesh import job

    checkpoint = job.checkpoint_dir() / "step"
    step = int(checkpoint.read_text()) if checkpoint.exists() else 0
    print("attempt", job.attempt(), "from step", step, flush=True)
    if step:
        sys.exit(0)
    while not job.preempted():
        time.sleep(0.02)  # between two looks, as a training has between two steps
    checkpoint.write_text("7")
    print("saved", job.seconds_left() > 0, flush=True)
"""


@pytest.fixture
def pool(scheduler):
    """A scheduler with a pool of 4 CPUs."""
    scheduler.ensure_pool("p", resources={"cpu": 4})
    return scheduler


@pytest.fixture
def outside(namespace):
    """A Ray namespace in which jobs leave things behind."""
    return f"{namespace}-outside"


@pytest.fixture
def submit(pool, tmp_path):
    """Submits a script as a job of 3 CPUs."""

    def submitted(task_id, script, *arguments, **fields):
        (tmp_path / f"{task_id}.py").write_text(textwrap.dedent(script))
        command = [sys.executable, f"{task_id}.py", *arguments]
        given = {"resources": {"cpu": 3}, "working_dir": tmp_path, **fields}
        answer = pool.submit_job(task_id, command, "p", **given)
        assert answer["success"], answer
        return answer

    return submitted


def log_of(scheduler, task_id, **which):
    """All that a job has written."""
    return "".join(scheduler.job_logs(task_id, **which))


def result_of(scheduler, task_id):
    """The result of a job, once it has ended."""
    assert scheduler.wait([task_id], timeout=90)["pending"] == []
    return scheduler.result(task_id)


def until_written(scheduler, task_id, text):
    """Return when a job has written this."""
    until(lambda: text in log_of(scheduler, task_id), lambda: log_of(scheduler, task_id), 60)


def driver_of(scheduler, task_id):
    """The process id that a job's script has written."""
    return int(log_of(scheduler, task_id).split("driver ")[1].split()[0])


def until_restarted(scheduler, epoch):
    """Return when a later supervisor than that of this epoch serves; ``ray.kill`` does not wait for it."""
    until(lambda: scheduler.about()["epoch"] > epoch, "the supervisor did not return", 60)


def assert_nothing_is_left(scheduler, outside):
    """Assert that nothing of a job exists in Ray, and that its claim is free."""
    assert actors_in(outside) == []
    assert groups_in(outside) == {}
    assert quota(scheduler, "p")["free"] == {"cpu": 4.0}


def test_a_plain_script_runs_unchanged_and_nothing_of_it_is_left(pool, submit, outside):
    submit("train", PLAIN, outside)

    result = result_of(pool, "train")

    assert result["state"] == "completed"
    assert result["result"]["exit_code"] == 0
    assert "result 42" in log_of(pool, "train")
    until(lambda: not pool.list_agents()["agents"], "the runner did not end")
    assert_nothing_is_left(pool, outside)
    (listed,) = pool.jobs()["jobs"]
    assert (listed["task_id"], listed["state"], listed["attempt"]) == ("train", "completed", 1)


class Asks:
    """Asks the scheduler that started it."""

    def __init__(self, name, labels):
        self.name = name

    def work(self):
        """The name and the epoch of its scheduler."""
        with SimpleScheduler() as mesh:
            return mesh.name, mesh.about()["epoch"]


@pytest.mark.smoke
def test_in_a_job_and_in_an_agent_a_scheduler_without_a_name_is_their_own(pool, submit):
    submit(
        "asks",
        """
        from schedulemesh import SimpleScheduler

        with SimpleScheduler() as mesh:
            about = mesh.about()
        print("found", about["name"], about["namespace"], mesh, flush=True)
        """,
    )
    assert result_of(pool, "asks")["state"] == "completed"
    about = pool.about()
    assert f"found {about['name']} {about['namespace']} " in log_of(pool, "asks")

    answer = pool.submit_task_with_preemption("in-agent", "p", Asks, {"cpu": 1}, run="work")
    assert answer["success"], answer
    assert result_of(pool, "in-agent")["result"] == (about["name"], about["epoch"])


#: A driver that starts tasks: a child and a detached one in its first attempt, the child again in its second.
FAMILY = """
    import time
    from schedulemesh import SimpleScheduler, job

    def works():
        time.sleep(600)  # there to be ended

    mesh = SimpleScheduler()
    parents = lambda: {task["task_id"]: task["parent"] for task in mesh.list_tasks()["tasks"]}
    assert mesh.submit("child", "p", works, wait=60.0, resources={"cpu": 1})["success"]
    if job.attempt() == 1:
        apart = mesh.submit("apart", "p", works, wait=60.0, resources={"cpu": 1}, detached=True)
        assert apart["success"], apart
        mesh.submit("waits", "p", works, queue=True, resources={"cpu": 4})
        print("first", parents(), flush=True)
        while not job.preempted():
            time.sleep(0.02)  # between two looks, as a training has between two steps
        print("in the grace", parents(), flush=True)
        time.sleep(600)  # there to be ended
    print("second", parents(), flush=True)
"""


def test_tasks_that_a_driver_has_started_end_with_an_eviction_and_stay_when_it_completes(
    pool, submit
):
    submit("family", FAMILY, resources={"cpu": 1}, grace_s=15.0)
    until_written(pool, "family", "first")
    first = "{'family': '', 'child': 'family', 'apart': '', 'waits': 'family'}"
    assert f"first {first}" in log_of(pool, "family")

    assert pool.preempt_task("family")["success"]

    until_written(pool, "family", "second")
    earlier = log_of(pool, "family", attempt=1)
    assert "in the grace" in earlier
    assert "'child': 'family'" in earlier.split("in the grace")[1]
    explained = pool.explain("waits")
    assert (explained["state"], explained["reason"]) == ("cancelled", "parent_ended")
    assert result_of(pool, "family")["state"] == "completed"
    parents = {task["task_id"]: task["parent"] for task in pool.list_tasks()["tasks"]}
    assert parents == {"apart": "", "child": ""}
    for task_id in parents:
        assert pool.cancel_task(task_id)["success"]


def test_the_exit_code_and_the_last_line_tell_why_a_job_failed(pool, submit):
    submit("fails", "import sys\nprint('out of luck')\nsys.exit(3)\n")
    with pytest.raises(JobFailedError, match=r"exit code 3.*out of luck") as failed:
        result_of(pool, "fails")
    assert failed.value.exit_code == 3


def test_an_evicted_job_returns_by_itself_with_its_checkpoint(pool, submit):
    submit("low", RESUMING, priority=1.0, grace_s=30.0)
    until_written(pool, "low", "attempt 1 from step 0")

    answer = pool.submit_task_with_preemption(
        "high", "p", Quick, {"cpu": 4}, 9.0, run="work", wait=60.0
    )

    assert [victim["task_id"] for victim in answer["preempted"]] == ["low"]
    assert result_of(pool, "high")["result"] == "done"
    assert result_of(pool, "low")["result"]["attempt"] == 2
    assert "saved True" in log_of(pool, "low", attempt=1)
    assert "attempt 2 from step 7" in log_of(pool, "low")
    again, first = pool.history("low")["attempts"]
    assert (first["restored"], again["restored"]) == (None, True)


SAVES_AND_WAITS = """
import time
from schedulemesh import job
(job.checkpoint_dir() / "step").write_text("7")
print("saved", flush=True)
time.sleep(600)  # there to be evicted
"""


@pytest.mark.parametrize("saves", [True, False])
def test_the_record_of_an_evicted_job_says_whether_it_has_saved(pool, submit, saves):
    script = SAVES_AND_WAITS if saves else SAVES_AND_WAITS.replace("(job.", "0 and (job.")
    submit("low", script, priority=1.0, grace_s=0.0, on_preempted="drop")
    until_written(pool, "low", "saved")
    (evicted,) = pool.preempt_task("low")["preempted"]
    (row,) = pool.list_preemptions()["preemptions"]
    assert {evicted["state_saved"], row["state_saved"]} == {saves}
    assert ("checkpoint folder" in row.get("save_error", "")) is not saves


class Quick:
    """Takes its pool for a moment."""

    def __init__(self, name, labels):
        self.name = name

    def work(self):
        """Return at once."""
        return "done"


def test_cancelling_a_job_ends_all_that_it_has_started(pool, submit, outside):
    submit("train", PLAIN + WAITS, outside)
    until_written(pool, "train", "result 42")
    assert actors_in(outside) == ["kept"]
    assert len(groups_in(outside)) == 1

    assert pool.cancel_task("train")["success"]

    assert_nothing_is_left(pool, outside)


def test_a_job_that_is_cancelled_has_notice_and_grace(pool, submit):
    submit("train", RESUMING, grace_s=30.0)
    until_written(pool, "train", "attempt 1 from step 0")

    assert pool.cancel_task("train")["success"]

    assert "saved True" in log_of(pool, "train")
    (listed,) = pool.jobs()["jobs"]
    assert (listed["state"], listed["attempt"]) == ("cancelled", 1)


def test_a_job_that_holds_more_than_it_claims_fails_where_the_policy_says_so(pool, submit, outside):
    answer = {"resources": {"cpu": 1}, "over_claim": "end", "max_retries": 3}
    submit("train", PLAIN + WAITS, outside, **answer)
    # Its actors start one after the other; it is to be ended when it holds all.
    until_written(pool, "train", "result 42")

    pool.update_preemption_policy(over_claim_s=0.5)

    assert pool.wait(["train"], timeout=90)["pending"] == []

    (listed,) = pool.jobs()["jobs"]
    assert (listed["state"], listed["reason"], listed["attempt"]) == ("failed", "over_claim", 1)
    assert "held cpu 2 more in Ray than the cpu 1 that it claims" in listed["error"]
    until(lambda: not pool.list_agents()["agents"], "the runner did not end")
    assert_nothing_is_left(pool, outside)


@pytest.mark.parametrize("killed", ["driver", "runner"])
def test_a_job_whose_process_is_killed_leaves_nothing_and_is_retried(pool, submit, outside, killed):
    script = "import os\nprint('driver', os.getpid(), flush=True)\n" + textwrap.dedent(
        PLAIN + WAITS
    )
    submit("train", script, outside, max_retries=1)
    until_written(pool, "train", "result 42")
    driver = driver_of(pool, "train")
    runner = pool.list_agents()["agents"][0]["pid"]

    os.kill(driver if killed == "driver" else runner, signal.SIGKILL)

    until(lambda: pool.jobs()["jobs"][0]["attempt"] == 2, "it was not started again", 60)
    assert not process_exists(driver)
    until(
        lambda: f"driver {driver}" not in log_of(pool, "train"), "the second attempt wrote nothing"
    )
    until_written(pool, "train", "result 42")
    assert actors_in(outside) == ["kept"]
    pool.cancel_task("train")
    assert_nothing_is_left(pool, outside)


def test_a_job_survives_its_supervisor_and_ends_whole(pool, submit, outside, namespace):
    submit("train", PLAIN + WAITS, outside)
    until_written(pool, "train", "result 42")
    supervisor = ray.get_actor("schedulemesh:mesh", namespace=namespace)
    epoch = pool.about()["epoch"]

    ray.kill(supervisor, no_restart=False)

    until_restarted(pool, epoch)
    (listed,) = pool.jobs()["jobs"]
    assert (listed["state"], listed["attempt"]) == ("running", 1)
    assert log_of(pool, "train").count("result 42") == 1
    pool.cancel_task("train")
    assert_nothing_is_left(pool, outside)


def test_a_job_whose_runner_and_supervisor_die_together_leaves_nothing(
    pool, submit, outside, namespace
):
    submit("train", PLAIN + WAITS, outside)
    until_written(pool, "train", "result 42")
    runner = pool.list_agents()["agents"][0]["pid"]
    supervisor = ray.get_actor("schedulemesh:mesh", namespace=namespace)
    epoch = pool.about()["epoch"]

    os.kill(runner, signal.SIGKILL)
    ray.kill(supervisor, no_restart=False)

    until_restarted(pool, epoch)
    (listed,) = until(
        lambda: [job for job in pool.jobs()["jobs"] if job["state"] == "lost"],
        "the loss was not found",
        60,
    )
    assert listed["attempt"] == 1
    until(lambda: quota(pool, "p")["free"] == {"cpu": 4.0}, "the claim was not released")
    assert_nothing_is_left(pool, outside)
