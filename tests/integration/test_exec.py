"""Commands inside tasks on real Ray: where they run, what they see, and what ends them."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from threading import Thread

import pytest

from schedulemesh.core.agent.agent_actor import AgentActor
from schedulemesh.core.agent.process_marks import living
from schedulemesh.core.client.scheduler import RayScheduler
from tests.integration.polling import complete_lines, until

#: Runs until it is ended.
DRIVER = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
#: Says where it is.
LOOK = "import json, os; print(json.dumps([os.getcwd(), dict(os.environ)]))"


@pytest.fixture
def scheduler(ray_cluster, tmp_path):
    name = f"exec-{uuid.uuid4().hex[:8]}"
    mesh = RayScheduler(name, namespace=name, state_path=str(tmp_path))
    mesh.ensure_pool("p", resources={"cpu": 2, "gpu": 2})
    mesh.update_preemption_policy(allow_exec=True)
    yield mesh
    mesh.shutdown()


@pytest.fixture
def driver(scheduler, tmp_path):
    """A job that runs, and the id of its driver's process."""
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "train.py").write_text(DRIVER)
    environment = {"env_vars": {"COLOUR": "blue"}, "working_dir": str(folder)}
    fields = {"runtime_env": environment, "on_preempted": "drop"}
    answer = scheduler.submit_job("j", ["python", "train.py"], "p", {"cpu": 1, "gpu": 1}, **fields)
    assert answer["success"], answer

    def written():
        return complete_lines("".join(scheduler.job_logs("j")))

    return int(until(lambda: [word for word in written() if word.isdigit()], "no id", 60)[-1])


def test_a_command_is_where_the_driver_is(scheduler, driver):
    answer = scheduler.exec_in_task("j", ["python", "-c", LOOK], timeout=60)
    assert answer["success"], answer
    folder, environment = json.loads(answer["stdout"])
    process = Path(f"/proc/{driver}")
    entries = (process / "environ").read_text().split("\0")
    of_driver = dict(entry.partition("=")[::2] for entry in entries if entry)
    assert folder == str((process / "cwd").readlink())
    assert environment["COLOUR"] == "blue"
    assert environment["CUDA_VISIBLE_DEVICES"] in ("0", "1")
    # Python adds one for itself, and each shell counts.
    assert {k: v for k, v in environment.items() if of_driver.get(k) != v} == {}
    assert of_driver.keys() <= environment.keys()
    missing = scheduler.exec_in_task("j", ["no-such-program"], timeout=60)
    assert missing["error"].startswith("'no-such-program' cannot be started")


def test_the_end_of_the_job_ends_its_commands(scheduler, driver, tmp_path):
    mark = tmp_path / "pid"
    script = (
        f"trap '' HUP TERM; (sleep 600 & echo $! > {mark}.new; mv {mark}.new {mark}); sleep 600"
    )
    background = scheduler.exec_in_task("j", ["sh", "-c", f"{script} >/dev/null 2>&1 &"])
    assert background["exit_code"] == 0
    pid = until(lambda: mark.exists() and int(mark.read_text()), "no process")
    assert living(pid)
    assert scheduler.cancel_task("j")["success"]
    assert living(pid) is None
    assert scheduler.exec_in_task("j", ["true"])["reason"] == "task_not_running"


def test_a_command_in_a_lease_is_in_its_group_and_ends_with_it(scheduler, tmp_path):
    with scheduler.lease("l", "p", [[{"cpu": 1, "gpu": 1}]]) as lease:
        lease.wait(60)
        look = scheduler.exec_in_task("l", ["python", "-c", LOOK], timeout=60)
        assert look["success"], look
        folder, environment = json.loads(look["stdout"])
        assert folder == str(Path.home())
        assert environment["SCHEDULEMESH_LEASE"] == "l"
        assert environment["CUDA_VISIBLE_DEVICES"] in ("0", "1")
        (group,) = lease.placement_groups
        assert environment["SCHEDULEMESH_PLACEMENT_GROUP"] == group.id.hex()
        mark = tmp_path / "pid"
        script = f"trap '' HUP TERM; echo $$ > {mark}.new; mv {mark}.new {mark}; sleep 600"
        command = Thread(
            target=lambda: answers.append(scheduler.exec_in_task("l", ["sh", "-c", script]))
        )
        answers = []
        command.start()
        pid = until(lambda: mark.exists() and int(mark.read_text()), "no process", 60)
        assert living(pid)
    command.join(60)
    assert answers[0]["error"].startswith("lease 'l' has ended (")
    until(lambda: living(pid) is None, "the command lives")


def test_a_command_in_an_agent_and_in_a_member_of_a_gang_ends_with_it(scheduler, tmp_path):
    claim = {"cpu": 0.5, "gpu": 1}
    agent = scheduler.submit_task_with_preemption("t", "p", AgentActor, claim, agent_name="a")
    assert agent["success"]
    look = scheduler.exec_in_task("t", ["python", "-c", LOOK], timeout=60)
    assert look["success"], look
    environment = json.loads(look["stdout"])[1]
    assert environment["CUDA_VISIBLE_DEVICES"] in ("0", "1")
    assert environment["SCHEDULEMESH_TASK_ID"] == "t"
    mark = tmp_path / "pid"
    script = f"sleep 600 >/dev/null 2>&1 & echo $! > {mark}"
    assert scheduler.exec_in_task("t", ["sh", "-c", script], timeout=60)["exit_code"] == 0
    pid = int(mark.read_text())
    assert living(pid)
    assert scheduler.cancel_task("t")["success"]
    assert living(pid) is None
    fields = {"agent_name": "g", "replicas": 2}
    gang = scheduler.submit_task_with_preemption("g", "p", AgentActor, claim, **fields)
    assert gang["success"], gang
    looks = [
        scheduler.exec_in_task("g", ["python", "-c", LOOK], timeout=60, rank=rank)
        for rank in range(2)
    ]
    environments = [json.loads(look["stdout"])[1] for look in looks]
    assert [environment["RANK"] for environment in environments] == ["0", "1"]
    assert {environment["CUDA_VISIBLE_DEVICES"] for environment in environments} == {"0", "1"}
