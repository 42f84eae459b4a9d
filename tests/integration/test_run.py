"""Tasks that run by themselves: methods and functions, their results, exceptions and cancellation."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import signal
import threading
import time
import traceback
from pathlib import Path

import pytest

from schedulemesh.config.settings import JournalSettings
from schedulemesh.core.agent.agent_actor import AgentActor
from schedulemesh.errors import InvalidRequestError, TaskFailedError
from tests.integration.polling import assert_nothing_held, until


class OwnError(Exception):
    """An exception of the job's own."""


def total(numbers, *, times=1):
    return sum(numbers) * times


def divided(number):
    if number == 0:
        raise OwnError("nothing to divide by")
    return 1 / number


def zeros(count):
    return bytes(count)


class Steps(AgentActor):
    """Trains until it is told to stop."""

    def __init__(self, name, labels, start=0):
        super().__init__(name, labels)
        self.step, self.restored = start, 0
        self._stop = threading.Event()

    def train(self, until_step):
        while self.step < until_step and not self._stop.wait(0.01):
            self.safe_point()
            self.step += 1
        return {"step": self.step, "restored": self.restored}

    def train_again(self, more):
        """Train until it was restored, and so many steps after that."""
        return self.train(self.restored + more if self.restored else 10**9)

    def cancel(self, task_id):
        self._stop.set()
        return {"success": True}

    def save_state(self):
        return {"step": self.step}

    def restore_state(self, saved):
        self.step = self.restored = saved["step"]


class DiesOnce(AgentActor):
    """Its process ends while it is built for the first time."""

    def __init__(self, name, labels, marker):
        super().__init__(name, labels)
        if not Path(marker).exists():
            Path(marker).touch()
            os._exit(1)

    def work(self):
        return "worked"


class Fragile(AgentActor):
    """As the documents show it, but what it saves fails; it returns once it has been started again."""

    def __init__(self, name, labels, marker, how):
        super().__init__(name, labels)
        self.count, self.marker, self.how = 0, Path(marker), how
        self._stop = threading.Event()

    def train(self):
        again, _ = self.marker.exists(), self.marker.touch()
        while not again and not self._stop.wait(0.01):
            self.count += 1
        return self.count

    def cancel(self, task_id):
        self._stop.set()
        return {"success": True}

    def save_state(self):
        if self.how == "dies":
            os._exit(1)
        if self.how == "is slow":
            time.sleep(60)  # longer than save_timeout
        if self.how != "returns None":
            raise OSError("no space left on device")

    def restore_state(self, saved):
        self.count = saved["count"]


class AsyncSteps:
    """The same as a coroutine, with a sync method that answers meanwhile."""

    def __init__(self, name, labels):
        self._go_on = asyncio.Event()

    async def work(self):
        await self._go_on.wait()
        return "worked"

    async def proceed(self):
        self._go_on.set()


@pytest.fixture
def simple(make_simple):
    made = make_simple()
    made.ensure_pool("pool", resources={"cpu": 2})
    return made


def test_a_function_runs_and_its_agent_ends_by_itself(simple):
    submitted = simple.submit(
        "sum", "pool", total, run_args=([1, 2, 3],), run_kwargs={"times": 2}, resources={"cpu": 1}
    )
    assert submitted["success"]
    waited = simple.wait("sum", timeout=60)
    assert (waited["done"], waited["pending"]) == (["sum"], [])
    assert waited["tasks"][0]["state"] == "completed"
    assert simple.result("sum") == {
        "success": True,
        "task_id": "sum",
        "state": "completed",
        "result": 12,
    }
    until(lambda: not simple.list_agents()["agents"], lambda: str(simple.list_agents()))
    assert_nothing_held(simple.scheduler)
    assert simple.cancel_task("sum")["detail"] == "already_ended"


def test_an_exception_is_raised_at_the_client_with_its_traceback(simple):
    simple.submit("bad", "pool", divided, run_args=(0,), resources={"cpu": 1})
    (status,) = simple.wait(["bad"], timeout=60)["tasks"]
    assert (status["state"], status["reason"]) == ("failed", "run_raised")
    assert status["error"].endswith("OwnError: nothing to divide by")
    with pytest.raises(OwnError, match="nothing to divide by") as raised:
        simple.result("bad")
    shown = "".join(traceback.format_exception(raised.value))
    assert 'raise OwnError("nothing to divide by")' in shown
    with pytest.raises(OwnError):
        simple.future("bad").result(timeout=60)


def test_a_method_runs_while_commands_get_through_and_other_calls_wait(simple):
    simple.submit("t", "pool", Steps, run="train", run_args=(10**9,), resources={"cpu": 1})
    assert simple.wait("t", timeout=30, until="running")["done"] == ["t"]
    refused = simple.result("t")
    assert (refused["success"], refused["reason"]) == (False, "task_not_ended")
    assert simple.wait("t", timeout=0.1)["pending"] == ["t"]
    assert simple.save_task_state("t")["saved_state"]["state"]["step"] >= 0
    future = simple.future("t")
    assert simple.cancel_task("t") == {"success": True}
    assert simple.result("t")["reason"] == "task_cancelled"
    with pytest.raises(concurrent.futures.CancelledError):
        future.result(timeout=30)
    assert_nothing_held(simple.scheduler)


def test_a_coroutine_runs_on_the_loop_beside_other_methods(simple):
    answer = simple.submit("t", "pool", AsyncSteps, run="work", resources={"cpu": 1})
    future = simple.future("t")
    assert not future.done()
    answer["agent"]["handle"].proceed.remote()

    async def awaited():
        return await future

    assert asyncio.run(asyncio.wait_for(awaited(), 60)) == "worked"


def test_an_evicted_run_is_cancelled_and_its_early_result_is_not_kept(simple):
    simple.submit("low", "pool", Steps, run="train", run_args=(10**9,), priority=1.0)
    assert simple.submit("high", "pool", total, run_args=([1],), priority=9.0)["success"]
    (low,) = simple.wait("low", timeout=30)["tasks"]
    assert (low["state"], low["reason"]) == ("cancelled", "preempted")
    assert simple.wait("high", timeout=60)["done"] == ["high"]
    restored = simple.restore_task(simple.get_saved_state("low")["saved_state"])
    assert restored["state_restored"] is True
    assert simple.wait("low", timeout=30, until="running")["tasks"][0]["state"] == "running"
    assert simple.future("low").cancel()


def test_a_result_that_is_too_large_is_refused_with_the_limit(make_scheduler):
    scheduler = make_scheduler(journal=JournalSettings(result_bytes=1000))
    scheduler.ensure_pool("pool", resources={"cpu": 2})
    scheduler.submit_task_with_preemption("big", "pool", zeros, run_args=(2000,))
    (status,) = scheduler.wait("big", timeout=60)["tasks"]
    assert (status["state"], status["reason"]) == ("failed", "result_too_large")
    with pytest.raises(TaskFailedError, match=r"more than 1000 bytes.*result_bytes"):
        scheduler.result("big")


def fails_before(folder, attempts):
    """Fail until it was called so often; each call leaves a file."""
    made = len(list(Path(folder).iterdir()))
    Path(folder, str(made)).touch()
    if made == 0:
        os._exit(1)
    if made < attempts:
        raise OwnError(f"attempt {made}")
    return made


def test_a_lost_agent_and_a_run_that_raised_are_tried_again(simple, tmp_path):
    simple.submit("t", "pool", fails_before, run_args=(str(tmp_path), 2), max_retries=2)
    (status,) = simple.wait("t", timeout=90)["tasks"]
    assert status["state"] == "completed", status
    assert simple.result("t")["result"] == 2
    assert len(list(tmp_path.iterdir())) == 3
    assert_nothing_held(simple.scheduler)


def test_a_task_whose_process_dies_while_it_starts_is_tried_again(simple, tmp_path):
    marker = str(tmp_path / "built before")
    simple.submit("t", "pool", DiesOnce, actor_args=[marker], run="work", queue=True, max_retries=1)
    (status,) = simple.wait("t", timeout=90)["tasks"]
    assert (status["state"], status["failures"]) == ("completed", 1), status
    assert simple.result("t")["result"] == "worked"


def test_an_evicted_run_returns_by_itself_and_finishes_from_its_saved_step(simple):
    given = {"run": "train_again", "run_args": (20,), "priority": 1.0, "on_preempted": "requeue"}
    simple.submit("low", "pool", Steps, **given)
    until(lambda: simple.save_task_state("low")["saved_state"]["state"]["step"] >= 5, "no step")
    assert simple.submit("high", "pool", total, run_args=([1],), priority=9.0)["success"]
    (status,) = simple.wait("low", timeout=90)["tasks"]
    assert status["state"] == "completed", status
    result = simple.result("low")["result"]
    assert result["restored"] >= 5
    assert result["step"] == result["restored"] + 20


@pytest.mark.parametrize("how", ["raises", "is slow", "dies", "returns None"])
def test_a_task_whose_save_fails_returns_and_starts_anew(simple, tmp_path, how):
    simple.configure_preemption(save_timeout=1.0, cancel_timeout=1.0)
    marker = tmp_path / "ran"
    given = {"run": "train", "priority": 1.0, "on_preempted": "requeue"}
    simple.submit("low", "pool", Fragile, actor_args=[str(marker), how], **given)
    until(marker.exists, "it does not run")
    high = simple.submit("high", "pool", total, run_args=([1],), priority=9.0)
    assert [victim["state_saved"] for victim in high["preempted"]] == [False]
    (status,) = simple.wait("low", timeout=90)["tasks"]
    assert (status["state"], status["preemptions"]) == ("completed", 1), status
    assert simple.result("low")["result"] == 0, "it has started anew"
    (row,) = simple.list_preemptions()["preemptions"]
    assert (row["state_saved"], row["requeued"]) == (False, True)
    assert row["save_error"]
    assert row["lost_work"] > 0
    again, first = simple.history("low")["attempts"]
    assert (first["saved_at"], again["restored"]) == (None, False)
    assert first["lost_s"] > 0


@pytest.mark.smoke
def test_a_run_its_result_and_those_who_wait_survive_the_supervisor(simple, tmp_path):
    go_on, runs = tmp_path / "go", tmp_path / "runs"
    simple.submit("t", "pool", waits_for, run_args=(str(go_on), str(runs)))
    future = simple.future("t")
    until(runs.exists, "it does not run")
    os.kill(simple.about()["pid"], signal.SIGKILL)
    assert simple.wait("t", timeout=0.5)["pending"] == ["t"]
    go_on.touch()
    assert simple.wait("t", timeout=60)["done"] == ["t"]
    assert future.result(timeout=60) == "went on"
    assert runs.read_text(encoding="utf-8") == "run\n"


def waits_for(go_on, runs):
    with Path(runs).open("a", encoding="utf-8") as file:
        file.write("run\n")
    while not Path(go_on).exists():
        time.sleep(0.02)  # a run that ends when the test says so
    return "went on"


def test_every_member_of_a_gang_runs(simple):
    simple.ensure_pool("wide", resources={"cpu": 3})
    simple.submit("gang", "wide", rank, resources={"cpu": 1}, replicas=3)
    simple.submit("bad", "pool", fails_at, run_args=(1,), resources={"cpu": 1}, replicas=2)
    assert simple.wait(["gang", "bad"], timeout=90)["pending"] == []
    assert simple.result("gang")["result"] == [0, 1, 2]
    with pytest.raises(OwnError, match="rank 1"):
        simple.result("bad")
    until(lambda: not simple.list_agents()["agents"], lambda: str(simple.list_agents()))
    assert_nothing_held(simple.scheduler)


def rank():
    return int(os.environ["RANK"])


def fails_at(failing):
    if rank() == failing:
        raise OwnError(f"rank {failing}")
    threading.Event().wait()


def test_unknown_tasks_and_wrong_calls_are_refused(simple):
    for answer in (simple.wait(["x"]), simple.result("x"), simple.cancel_task("x")):
        assert (answer["success"], answer["reason"]) == (False, "task_not_found")
    with pytest.raises(TaskFailedError, match="there is no task 'x'"):
        simple.future("x").result(timeout=30)
    with pytest.raises(InvalidRequestError, match="has no method 'fly'"):
        simple.submit("t", "pool", Steps, run="fly")
    with pytest.raises(InvalidRequestError, match="does not take run_args"):
        simple.submit("t", "pool", total, run_args=(1, 2, 3))
    with pytest.raises(InvalidRequestError, match="until must be"):
        simple.wait("t", until="done")
