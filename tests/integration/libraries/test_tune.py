"""A Tune experiment whose trials are tasks: two are evicted, resume, and end as if they had not been."""

from __future__ import annotations

import json
import tempfile
import threading
from pathlib import Path

import pytest

from schedulemesh.errors import InvalidRequestError, LeaseRefusedError
from tests.integration.polling import until

pytest.importorskip("pandas", reason="pandas, which ray.tune needs, is not installed")
pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.filterwarnings("default"),  # Ray Tune's own
]

STEPS = 10


def trial(config):
    """Counts, with a checkpoint at every step. The first attempts of the first two wait to be evicted."""
    import time

    from ray import tune

    begin = 0
    if (checkpoint := tune.get_checkpoint()) is not None:
        with checkpoint.as_directory() as folder:
            begin = json.loads(Path(folder, "state.json").read_text())
    for step in range(begin, STEPS):
        while begin == 0 and step == 2 and config["x"] < 3:
            time.sleep(0.1)  # until the process is ended
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "state.json").write_text(json.dumps(step + 1))
            reached = {"score": config["x"] * (step + 1), "begin": begin}
            tune.report(reached, checkpoint=tune.Checkpoint.from_directory(folder))


def test_what_the_scheduler_refuses_ends_the_experiment_with_its_reason(
    scheduler, namespace, tmp_path
):
    from ray import tune

    from schedulemesh.integrations.tune import leased_trials

    with (
        pytest.raises(InvalidRequestError, match=r"'prioritty'.*did you mean 'priority'"),
        leased_trials("trial", "search", prioritty=1.0),
    ):
        pass
    config = tune.RunConfig(storage_path=str(tmp_path), verbose=0)
    with (
        leased_trials("trial", "no-pool", scheduler="mesh", namespace=namespace),
        pytest.raises(LeaseRefusedError, match="no-pool"),
    ):
        tune.Tuner(trial, param_space={"x": 3}, run_config=config).fit()


def test_two_evicted_trials_resume_from_their_checkpoints(scheduler, namespace, tmp_path):
    from ray import tune

    from schedulemesh.integrations.tune import leased_trials

    scheduler.create_pool("search", resources={"cpu": 2})
    evicted = []

    def phase(task_id):
        tasks = {task["task_id"]: task["phase"] for task in scheduler.list_tasks()["tasks"]}
        return tasks.get(task_id)

    def trials_with_checkpoints():
        # Once there is a second one, Tune has registered the first.
        return {checkpoint.parent for checkpoint in tmp_path.glob("tuned/*/checkpoint_000001")}

    def evict():
        """Evict the first two trials once each has a checkpoint."""
        until(lambda: len(trials_with_checkpoints()) == 2, "no two checkpoints", 120)
        assert {phase("trial-1"), phase("trial-2")} == {"running"}
        evicted.extend(scheduler.preempt_task(name)["success"] for name in ("trial-1", "trial-2"))

    evictions = threading.Thread(target=evict)
    evictions.start()
    with leased_trials("trial", "search", scheduler="mesh", namespace=namespace, priority=1.0):
        results = tune.Tuner(
            trial,
            param_space={"x": tune.grid_search([1, 2, 3])},
            run_config=tune.RunConfig(
                name="tuned",
                storage_path=str(tmp_path),
                failure_config=tune.FailureConfig(max_failures=3),
                verbose=0,
            ),
        ).fit()
    evictions.join()
    assert evicted == [True, True]
    assert [result.error for result in results] == [None] * 3
    by_x = {result.config["x"]: result.metrics for result in results}
    assert {x: metrics["score"] for x, metrics in by_x.items()} == {1: 10, 2: 20, 3: 30}
    assert {x: metrics["begin"] > 0 for x, metrics in by_x.items()} == {1: True, 2: True, 3: False}
    assert scheduler.list_tasks()["tasks"] == []


def test_trials_of_thirds_of_a_device_share_it_and_nothing_outlives_the_block(
    scheduler, namespace, tmp_path
):
    from ray import tune

    from schedulemesh.integrations.tune import leased_trials

    scheduler.create_pool("search", resources={"cpu": 3, "gpu": 1, "memory": 4000})

    def score(config):
        tune.report({"score": config["x"]})

    shares = {"CPU": 0.5, "GPU": 1 / 3, "memory": 10**9}
    config = tune.RunConfig(storage_path=str(tmp_path), verbose=0)
    with leased_trials("thirds", "search", scheduler="mesh", namespace=namespace):
        trials = tune.with_resources(score, shares)
        found = tune.Tuner(
            trials, param_space={"x": tune.grid_search([1, 2, 3])}, run_config=config
        ).fit()
        assert sorted(result.metrics["score"] for result in found) == [1, 2, 3]
        assert not found.errors
    until(lambda: scheduler.list_tasks()["tasks"] == [], "a lease has outlived the block")


def test_a_block_that_is_left_by_an_error_releases_its_leases(scheduler, namespace):
    from ray.air.execution import ResourceRequest
    from ray.tune.execution import tune_controller

    from schedulemesh.integrations.tune import leased_trials

    scheduler.create_pool("search", resources={"cpu": 1})

    def work():
        manager = tune_controller.PlacementGroupResourceManager()
        for _ in range(3):  # one is granted, the others wait
            manager.request_resources(ResourceRequest([{"CPU": 1}]))
        until(lambda: manager.acquire_resources(ResourceRequest([{"CPU": 1}])), "none was granted")
        raise KeyboardInterrupt

    terms = {"scheduler": "mesh", "namespace": namespace}
    with pytest.raises(KeyboardInterrupt), leased_trials("left", "search", **terms):
        work()
    assert scheduler.list_tasks()["tasks"] == []
