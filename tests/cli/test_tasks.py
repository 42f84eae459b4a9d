"""The commands about tasks, agents, nodes and the overview."""

from __future__ import annotations

import functools
import json

import pytest

from tests.engine.returns import room_taken
from tests.runtime.driven import Driven


@pytest.fixture
def busy(scheduler):
    """Two tasks run."""
    scheduler.pool(cpu=2, labels={"团队": "语言"})
    for name in ("甲", "b"):
        scheduler.submit(name, agent_name=f"agent-{name}", labels={"stage": name})
    return scheduler


def names(run, *words):
    return run(*words, "-o", "name").stdout.split()


def test_the_overview_has_pools_agents_and_tasks(busy, run):
    text = run("status").stdout
    for word in ("研究", "agent-甲", "cpu 2", "2 running, 0 queued"):
        assert word in text
    found = json.loads(run("status", "-o", "json").stdout)
    assert [len(found[kind]) for kind in ("pools", "agents", "tasks")] == [1, 2, 2]
    assert found["running_tasks"] == 2


def test_tasks_and_agents_are_chosen(busy, run):
    assert names(run, "tasks") == ["甲", "b"]
    assert names(run, "tasks", "-l", "stage=甲") == ["甲"]
    assert names(run, "tasks", "-f", "agent=agent-b", "-f", "state=running") == ["b"]
    assert names(run, "agents", "--pool", "研究") == ["agent-甲", "agent-b"]
    assert run("agents", "--pool", "nowhere").exit_code == 3
    assert run("tasks", "-f", "nonsense=1").exit_code == 2


def test_tasks_are_cancelled_in_one_request(busy, run):
    done = run("cancel", "甲", "gone", "-o", "json")
    assert done.exit_code == 3
    assert "gone" in done.stderr
    assert json.loads(done.stdout) == [
        {"name": "甲", "result": "cancelled"},
        {"name": "gone", "result": "refused: task_not_found"},
    ]
    assert names(run, "tasks") == ["b"]


def test_of_a_task_that_has_ended_it_is_said_that_it_had(busy, run):
    assert run("complete", "甲", "--end-agent").exit_code == 0
    done = run("cancel", "b", "甲", "-o", "json")
    assert done.exit_code == 0
    assert json.loads(done.stdout) == [
        {"name": "b", "result": "cancelled"},
        {"name": "甲", "result": "already_ended"},
    ]


def test_a_task_is_preempted(busy, run):
    done = run("preempt", "甲")
    assert (done.exit_code, done.stderr) == (0, "")
    assert "evicted 1" in done.stdout
    assert names(run, "tasks") == ["b"]
    listed = json.loads(run("preemptions", "-o", "json", "--since", "1h").stdout)
    assert [row["task_id"] for row in listed] == ["甲"]
    assert json.loads(run("preemptions", "-o", "json", "--since", "2030-01-01").stdout) == []
    assert run("preempt", "gone").exit_code == 3


def test_a_node_that_is_not_there_is_not_found(busy, run):
    assert run("cordon", "nowhere").exit_code == 3
    assert run("nodes", "-o", "json").stdout == "[]\n"


def test_the_health_of_agents(busy, run):
    found = json.loads(run("health", "-o", "json").stdout)
    assert (found["checked"], found["healthy"], found["details"]) == (2, 2, [])


def test_a_task_is_explained(busy, run):
    assert run("explain", "甲").stdout.startswith("task 甲 (pool 研究, priority 5, owner ")
    assert json.loads(run("explain", "甲", "-o", "json").stdout)["state"] == "running"
    done = run("explain", "gone", "--json")
    assert (done.exit_code, done.stdout) == (3, "")


def test_plugins_are_listed(run):
    assert "fragmentation_aware" in names(run, "plugins")
    assert names(run, "plugins", "-f", "for=victims") == [
        "score",
        "priority_first",
        "least_lost_work",
    ]


def test_the_live_view_is_repeated(busy, run):
    busy.pool("空")
    busy.submit("waits", cpu=2, queue=True)
    done = run("top", "--count", "2", "--interval", "0.1", "-o", "json")
    first, second = (json.loads(line) for line in done.stdout.splitlines())
    assert first["pools"] == second["pools"]
    assert [(pool["name"], pool["share"]) for pool in first["pools"]] == [("研究", 1.0), ("空", 0)]
    assert [task["task_id"] for task in first["running"]] == ["b", "甲"]
    assert first["running"][0]["holds"] == {"cpu": 1.0}
    assert [task["task_id"] for task in first["waiting"]] == ["waits"]
    text = run("top", "--count", "1").stdout
    assert "################ 100%" in text
    limited = run("top", "--count", "1", "--limit", "1", "-o", "json")
    assert len(json.loads(limited.stdout)["running"]) == 1


@pytest.mark.parametrize("command", ["tasks", "jobs", "agents", "history"])
def test_a_filter_for_a_state_that_there_is_not_is_refused(scheduler, run, command):
    for given in ("state=runing", "state!=runing"):
        done = run(command, "-f", given)
        assert done.exit_code == 2, done.output
        assert "did you mean 'running'?" in done.stderr
    assert run(command, "-f", "state=Running").exit_code == 0


def test_a_filter_of_jobs_for_a_reason_that_there_is_not_is_refused(scheduler, run):
    done = run("jobs", "-f", "reason=insuficient_quota")
    assert (done.exit_code, "did you mean 'insufficient_quota'" in done.stderr) == (2, True)
    for reason in ("insufficient_quota", "run_raised", ""):
        assert run("jobs", "-f", f"reason={reason}").exit_code == 0


@pytest.mark.parametrize(
    ("words", "remark"),
    [
        (("history", "--since", "2100-01-01"), "--since is in the future; what has not ended"),
        (("usage", "--since", "2100-01-01"), "--since is in the future; what has not ended"),
        (("usage", "--until", "2100-01-01"), "--until is in the future; what there is ends now"),
    ],
)
def test_times_that_are_yet_to_come_are_remarked_on(scheduler, run, words, remark):
    done = run(*words)
    assert (done.exit_code, remark in done.stderr) == (0, True), done.stderr
    assert "in the future" not in run(words[0], "--since", "1d").stderr


def test_a_filter_of_the_queue_for_a_reason_that_there_is_not_is_refused(scheduler, run):
    done = run("queue", "-f", "reason=insuficient_quota")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "did you mean 'insufficient_quota'?" in done.stderr
    assert run("queue", "-f", "reason=insufficient_quota").exit_code == 0


@pytest.mark.parametrize("command", ["history", "events"])
def test_a_pool_that_there_is_not_is_refused(scheduler, run, command):
    scheduler.pool()
    done = run(command, "--pool", "nope")
    assert done.exit_code == 3, done.output
    assert "研究" in done.stderr
    assert run(command, "--pool", "研究").exit_code == 0


def test_a_kind_of_event_that_there_is_not_is_refused(scheduler, run):
    done = run("events", "--kind", "start")
    assert done.exit_code == 2, done.output
    assert "started" in done.stderr


def test_attempts_that_returned_before_they_ran_are_listed_with_the_reason(scheduler, run):
    room_taken(functools.partial(Driven, scheduler.connection.service))
    listed = run("history", "--state", "returned")
    assert "returned (room_taken)" in listed.stdout
    assert names(run, "history", "--state", "returned") == ["t"]
    assert names(run, "history", "--state", "failed") == []
    assert json.loads(run("usage", "-o", "json").stdout)[0]["failed"] == 0
    assert "returned" in run("events", "--kind", "returned").stdout


def test_the_overview_of_a_long_queue_has_the_first_tasks_as_a_table_and_all_as_data(
    scheduler, run
):
    scheduler.pool(cpu=1)
    scheduler.submit("z-runs")
    for number in range(25):
        scheduler.submit(f"waits-{number}", queue=True)
    done = run("status")
    tasks = done.stdout.partition("\ntasks\n")[2].splitlines()[1:]
    assert (len(tasks), tasks[0].split()[0]) == (20, "z-runs"), "what runs comes first"
    assert done.stderr == "20 of 26 tasks are shown; `schedulemesh tasks` lists all\n"
    found = json.loads(run("status", "-o", "json").stdout)
    assert len(found["tasks"]) == 26
    assert "共 26 个任务，显示 20 个" in run("status", "--lang", "zh").stderr
