"""What agents write, read while they run and when their processes are gone."""

from __future__ import annotations

import os
import signal
import sys

import pytest
import ray

from schedulemesh.core.agent.agent_actor import AgentActor
from schedulemesh.core.backend.ray_internals import session_folder
from schedulemesh.errors import TaskFailedError
from tests.integration.polling import until


class Talking(AgentActor):
    """Writes what it is told to, to both streams."""

    def __init__(self, name: str, labels: dict[str, str]) -> None:
        super().__init__(name, labels)
        print("built", flush=True)

    def say(self, text: str) -> int:
        print(text, flush=True)
        print(f"error: {text}", file=sys.stderr, flush=True)
        return os.getpid()


def log_of(scheduler, task_id="t", **which):
    return "".join(scheduler.task_logs(task_id, **which))


@pytest.fixture
def pool(scheduler):
    scheduler.ensure_pool("p", resources={"cpu": 4})
    return scheduler


def test_both_streams_of_an_agent_are_read_also_when_its_process_is_gone(pool):
    answer = pool.submit_task_with_preemption("t", "p", Talking, {"cpu": 1})
    handle = answer["agent"]["handle"]
    ray.get(handle.say.remote("你好"))
    until(lambda: "你好" in log_of(pool, stream="stderr"), lambda: log_of(pool), 10)
    assert log_of(pool) == "built\n你好\n"
    assert log_of(pool, stream="stderr") == "error: 你好\n"
    assert pool.cancel_task("t")["success"]
    pool.wait(["t"], timeout=30)
    assert log_of(pool, attempt=1, tail=1) == "你好\n"
    for file in (session_folder() / "logs").glob("worker-*"):
        if "你好" in file.read_text(errors="replace"):
            file.unlink()
    with pytest.raises(TaskFailedError, match="Ray has removed"):
        log_of(pool)


def test_a_restarted_process_goes_on_with_the_log(pool):
    options = {"max_restarts": 1, "max_task_retries": 1}
    answer = pool.submit_task_with_preemption("t", "p", Talking, {"cpu": 1}, ray_options=options)
    handle = answer["agent"]["handle"]
    os.kill(ray.get(handle.say.remote("first")), signal.SIGKILL)
    ray.get(handle.say.remote("second"))
    until(lambda: "second" in log_of(pool), lambda: log_of(pool), 10)
    assert log_of(pool).split() == ["built", "first", "built", "second"]


def test_each_member_of_a_gang_has_a_log(pool):
    answer = pool.submit_task_with_preemption("g", "p", Talking, {"cpu": 1}, replicas=2)
    assert answer["success"], answer
    for rank, handle in enumerate(member["handle"] for member in answer["agents"]):
        ray.get(handle.say.remote(f"rank {rank}"))
    for rank in range(2):
        until(
            lambda rank=rank: f"rank {rank}" in log_of(pool, "g", rank=rank),
            lambda: "".join(str(p) for p in (session_folder() / "schedulemesh_agents").rglob("*")),
            10,
        )
    assert "rank 0" not in log_of(pool, "g", rank=1)
