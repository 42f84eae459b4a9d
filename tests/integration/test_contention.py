"""Many submitters at once: never more than there is, no victim twice, and zero in the end."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.integration.agents import Plain
from tests.integration.polling import assert_nothing_held

THREADS = 16


class Watch:
    """Checks the invariants of the pools continuously while others work."""

    def __init__(self, scheduler):
        self._scheduler = scheduler
        self._stop = threading.Event()
        self.looks = 0
        self.wrong = []
        self._thread = threading.Thread(target=self._run)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()

    def _run(self):
        while not self._stop.wait(0.02):
            self.looks += 1
            for pool in self._scheduler.list_pools()["pools"]:
                held = pool["used"].get("cpu", 0) + pool["reserved"].get("cpu", 0)
                if held > pool["resources"]["cpu"] or pool["free"].get("cpu", 0) < 0:
                    self.wrong.append(pool)
            for node in self._scheduler.cluster_snapshot()["nodes"]:
                if node["free"].get("cpu", 0) < 0:
                    self.wrong.append(node)


@pytest.fixture
def pool(scheduler):
    scheduler.create_pool("pool", resources={"cpu": 3.0})
    return scheduler


def at_once(submit):
    """What 16 threads that begin together answer, by thread."""
    together = threading.Barrier(THREADS)

    def one(i):
        together.wait()
        return submit(i)

    with ThreadPoolExecutor(THREADS) as threads:
        return list(threads.map(one, range(THREADS)))


def test_sixteen_threads_on_one_pool(pool):
    def submit(i, priority=5.0):
        return pool.submit_task_with_preemption(
            task_id=f"t{i}",
            pool_name="pool",
            resources={"cpu": 1.0},
            priority=priority,
            actor_class=Plain,
        )

    with Watch(pool) as watch:
        answers = at_once(submit)
        accepted = [a["task_id"] for a in answers if a["success"]]
        assert len(accepted) == 3
        assert {a["reason"] for a in answers if not a["success"]} == {"preemption_failed"}

        # now 16 that each outrank those 3, but not each other
        second = at_once(lambda i: submit(100 + i, priority=9.0))
        won = [a for a in second if a["success"]]
        assert len(won) == 3
        victims = [v["task_id"] for a in won for v in a["preempted"]]
        assert sorted(victims) == sorted(accepted), "each of the three once"
    assert watch.looks > 0
    assert watch.wrong == []
    tasks = {t["task_id"] for t in pool.list_tasks()["tasks"]}
    assert tasks == {a["task_id"] for a in won}
    assert pool.get_preemption_stats()["total_preemptions"] == 3
    at_once(lambda i: pool.complete_task(f"t{100 + i}", end_agent=True))
    assert_nothing_held(pool)


def test_submitters_and_finishers_across_two_pools(pool):
    """Each thread submits, completes and goes on; loans come and go between two pools."""
    pool.create_pool("other", resources={"cpu": 1.0})
    pool.update_preemption_policy(cross_pool_priority_threshold=2.0)

    def work(i):
        answers = []
        for n in range(2):
            task_id = f"t{i}-{n}"
            answer = pool.submit_task_with_preemption(
                task_id=task_id,
                pool_name="other" if i % 4 == 0 else "pool",
                resources={"cpu": 0.5 + 0.5 * (i % 2)},
                priority=float(i),
                actor_class=Plain,
            )
            answers.append(answer)
            if answer["success"]:
                pool.complete_task(task_id, end_agent=True)
        return answers

    with Watch(pool) as watch:
        answers = [answer for found in at_once(work) for answer in found]
    assert watch.wrong == []
    reasons = {a["reason"] for a in answers if not a["success"]}
    assert reasons <= {"preemption_failed", "agent_deleted", "agent_start_failed"}, answers
    victims = [v["task_id"] for a in answers if a["success"] for v in a["preempted"]]
    assert len(victims) == len(set(victims))
    assert_nothing_held(pool)


def test_the_same_request_from_sixteen_threads_runs_once(pool):
    answers = at_once(
        lambda _i: pool.submit_task_with_preemption(
            task_id="t",
            pool_name="pool",
            resources={"cpu": 1.0},
            actor_class=Plain,
            request_id="one",
        )
    )
    assert len({a["agent"]["name"] for a in answers}) == 1
    assert all(a["success"] for a in answers)
    assert len(pool.list_agents()["agents"]) == 1
    pool.complete_task("t", end_agent=True)
    assert_nothing_held(pool)
