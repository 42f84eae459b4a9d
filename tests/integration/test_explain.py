"""``explain`` on a real Ray: why a task waits, who holds what it lacks, by whom it was evicted."""

from __future__ import annotations

import ray

from schedulemesh.cli.explain import WIDTH, text_of
from tests.integration.agents import Counter
from tests.integration.polling import until

TWO = {"cpu": 2.0}


def submit(scheduler, task_id, **how):
    answer = scheduler.submit_task_with_preemption(task_id, "pool", Counter, TWO, **how)
    assert answer["success"], answer
    return answer


def test_a_task_is_explained_while_it_runs_waits_and_after_it_was_evicted(scheduler):
    scheduler.create_pool("pool", resources=TWO)
    submit(scheduler, "low", priority=1.0, owner="ada", on_preempted="requeue")
    running = scheduler.explain("low")
    node_id = ray.get_runtime_context().get_node_id()
    assert (running["state"], running["node_ids"], running["error"]) == ("running", [node_id], "")

    submit(scheduler, "waits", priority=1.5, queue=True)
    waits = scheduler.explain("waits")
    assert (waits["state"], waits["reason"]) == ("queued", "insufficient_quota")
    assert (waits["position"], waits["short"]) == (1, {"quota": TWO})
    assert [holder["task_ids"] for holder in waits["holders"]] == [["low"]]
    assert waits["considered"]["turned_away"] == {"below_same_pool_threshold": 1}
    assert waits["considered"]["sufficient_priority"] == 2.0
    assert (waits["earliest_start"], bool(waits["no_estimate"])) == (None, True)

    submit(scheduler, "high", priority=9.0, owner="bob")
    until(lambda: scheduler.explain("low")["state"] == "queued", "its return to the queue")
    evicted = scheduler.explain("low")
    assert evicted["preemptions"] == 1
    assert evicted["eviction"]["by_task"] == "high"
    assert evicted["eviction"]["by_owner"] == "bob"
    assert evicted["eviction"]["used"] is True
    assert evicted["eviction"]["state_saved"] is True
    text = text_of(evicted, evicted["since"] + 5)
    assert "for task high of bob in pool pool" in text
    assert max(map(len, text.splitlines())) <= WIDTH

    unknown = scheduler.explain("wait")
    assert (unknown["success"], unknown["reason"]) == (False, "task_not_found")
    assert "'waits'" in unknown["error"]


def test_ray_work_that_is_not_ours_is_named(scheduler):
    @ray.remote(num_cpus=6)
    class Foreign:
        def ready(self):
            return True

    foreign = Foreign.remote()
    assert ray.get(foreign.ready.remote())
    scheduler.create_pool("pool", resources={"cpu": 8.0})
    until(
        lambda: scheduler.cluster_snapshot()["nodes"][0]["external_usage"].get("cpu") == 6.0,
        "the other work",
    )
    answer = scheduler.submit_task_with_preemption("t", "pool", Counter, {"cpu": 8.0}, queue=True)
    assert answer["state"] == "queued"
    waits = scheduler.explain("t")
    assert waits["reason"] == "external_ray_work"
    assert [usage["resources"]["cpu"] for usage in waits["external_usage"]] == [6.0]
    ray.kill(foreign)
    until(lambda: scheduler.explain("t")["state"] == "running", "its start")


def test_earlier_runs_say_how_long_a_task_runs_and_when_the_next_one_starts(scheduler):
    scheduler.create_pool("pool", resources=TWO)
    for number in range(3):
        submit(scheduler, f"train-{number}", owner="ada")
        assert scheduler.complete_task(f"train-{number}", end_agent=True)["success"]
    submit(scheduler, "train-3", owner="ada")
    submit(scheduler, "train-4", owner="ada", queue=True)
    waits = scheduler.explain("train-4")
    assert waits["earliest_start"] is not None
    rests_on = waits["start_rests_on"]
    assert (rests_on["task_id"], rests_on["runs"]) == ("train-3", 3)
    assert (rests_on["owner"], rests_on["pattern"]) == ("ada", "train-*")
    assert "3 earlier runs of owner ada, pattern train-*" in " ".join(
        text_of(waits, waits["since"]).split()
    )
