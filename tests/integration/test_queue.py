"""The queue on real Ray: tasks that wait survive their client and the supervisor, victims return."""

from __future__ import annotations

import json
import os
import signal
import threading

import ray

from tests.integration.agents import Counter, Plain
from tests.integration.drivers import run_driver, start_driver
from tests.integration.polling import until


def running(scheduler):
    """The ids of the tasks that run."""
    return {
        task["task_id"] for task in scheduler.list_tasks()["tasks"] if task["phase"] == "running"
    }


def kill_supervisor(scheduler):
    """Kill the supervisor's process; Ray starts another one."""
    os.kill(scheduler.about()["pid"], signal.SIGKILL)


def test_a_waiting_submission_returns_with_the_handle_also_when_the_supervisor_dies(scheduler):
    scheduler.create_pool("pool", resources={"cpu": 1})
    scheduler.submit_task_with_preemption("first", "pool", Plain, {"cpu": 1})
    answers = []

    def wait():
        answers.append(
            scheduler.submit_task_with_preemption(
                "second", "pool", Counter, {"cpu": 1}, actor_kwargs={"start": 5}, wait=True
            )
        )

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    until(lambda: scheduler.about()["queued_tasks"] == 1, "the task is not queued")
    kill_supervisor(scheduler)
    assert scheduler.complete_task("first", end_agent=True)["success"]
    waiting.join(60)
    (answer,) = answers
    assert answer["success"], answer
    assert ray.get(answer["agent"]["handle"].add.remote(1)) == 6


def test_an_acknowledged_task_survives_its_client_and_the_supervisor(
    scheduler, namespace, tmp_path
):
    scheduler.create_pool("pool", resources={"cpu": 1})
    scheduler.submit_task_with_preemption("first", "pool", Plain, {"cpu": 1})
    source = f"""
    scheduler = RayScheduler.attach("mesh", namespace={namespace!r})
    answer = scheduler.submit_task_with_preemption("second", "pool", AgentActor, {{"cpu": 1}}, queue=True)
    print(answer["state"], answer["position"], flush=True)
    sys.stdin.read()
    """
    with start_driver(source, tmp_path) as client:
        assert client.stdout.readline().split() == ["queued", "1"]
        kill_supervisor(scheduler)
        client.kill()
    assert scheduler.complete_task("first", end_agent=True)["success"]
    until(lambda: running(scheduler) == {"second"}, "the queued task does not run")


def test_a_victim_returns_by_itself_with_its_state(scheduler):
    scheduler.create_pool("pool", resources={"cpu": 1})
    victim = scheduler.submit_task_with_preemption(
        "training",
        "pool",
        Counter,
        {"cpu": 1},
        priority=1.0,
        queue=True,
        on_preempted="requeue",
        wait=True,
    )
    assert ray.get(victim["agent"]["handle"].add.remote(7)) == 7
    urgent = scheduler.submit_task_with_preemption(
        "urgent", "pool", Plain, {"cpu": 1}, priority=9.0, queue=True
    )
    assert urgent["success"], urgent
    until(lambda: running(scheduler) == {"urgent"}, "the urgent task does not run")
    assert scheduler.about()["queued_tasks"] == 1
    scheduler.complete_task("urgent", end_agent=True)
    until(lambda: running(scheduler) == {"training"}, "the victim does not return")
    (agent,) = scheduler.list_agents()["agents"]
    assert agent["name"] == victim["agent"]["name"]
    assert ray.get(agent["handle"].add.remote(1)) == 8


#: Trains until it is evicted, and so many steps after it has returned.
MORE = 50
TRAINING = """
    import time
    scheduler = RayScheduler.attach("mesh", namespace={namespace!r})

    class Training(AgentActor):
        def __init__(self, name, labels, log):
            super().__init__(name, labels)
            self.log, self.step, self.loss, self.returned_at = log, 0, 100.0, None

        def train(self, more):
            while self.returned_at is None or self.step < self.returned_at + more:
                self.safe_point()
                if self.is_cancelled("training"):
                    return None
                step, loss = self.step, self.loss
                self.step, self.loss = step + 1, loss * 0.97 + step % 7 / 10
                with open(self.log, "a") as file:
                    print(os.getpid(), self.step, file=file)
                time.sleep(0.02)  # the work of a step
            return {{"step": self.step, "loss": self.loss}}

        def save_state(self):
            return {{"step": self.step, "loss": self.loss}}

        def restore_state(self, saved):
            self.step, self.loss = saved["step"], saved["loss"]
            self.returned_at = self.step

    answer = scheduler.submit_task_with_preemption(
        "training", "pool", Training, {{"cpu": 1}}, priority=1.0, queue=True, actor_args=[{log!r}],
        run="train", run_args=({more},), on_preempted="requeue",
    )
    print(answer["success"], flush=True)
    sys.stdin.read()
"""


def test_an_evicted_training_whose_submitter_is_gone_returns_and_ends_with_the_right_loss(
    scheduler, namespace, tmp_path
):
    scheduler.create_pool("pool", resources={"cpu": 1})
    log = tmp_path / "steps"
    source = TRAINING.format(namespace=namespace, log=str(log), more=MORE)
    with start_driver(source, tmp_path) as submitter:
        assert submitter.stdout.readline() == "True\n"
        submitter.kill()
    until(lambda: log.exists() and len(log.read_text().splitlines()) >= 20, "it does not train")
    urgent = scheduler.submit_task_with_preemption(
        "urgent", "pool", Plain, {"cpu": 1}, priority=9.0, queue=True
    )
    assert urgent["success"], urgent
    until(lambda: running(scheduler) == {"urgent"}, "the training is not evicted")
    scheduler.complete_task("urgent", end_agent=True)
    assert scheduler.wait("training", timeout=60)["done"] == ["training"]

    steps = [tuple(map(int, line.split())) for line in log.read_text().splitlines()]
    count = len(steps)
    assert [step for _, step in steps] == list(range(1, count + 1)), "no step is lost or repeated"
    first, second = dict.fromkeys(pid for pid, _ in steps)
    assert [pid for pid, _ in steps] == [first] * (count - MORE) + [second] * MORE
    other_job = f"""
    scheduler = RayScheduler.attach("mesh", namespace={namespace!r})
    print(json.dumps(scheduler.result("training")["result"]))
    """
    result = json.loads(run_driver(other_job, tmp_path))
    loss = 100.0
    for step in range(count):
        loss = loss * 0.97 + step % 7 / 10
    assert result == {"step": count, "loss": loss}
