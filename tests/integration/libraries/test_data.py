"""Pipelines of Ray Data: in a lease, and in jobs that know nothing of ScheduleMesh."""

from __future__ import annotations

import sys
import threading

import pytest
import ray

from schedulemesh.errors import InvalidRequestError, LeaseEndedError
from tests.integration.polling import actors_in, quota, until, used_by

pytest.importorskip("pandas", reason="pandas, which ray.data needs, is not installed")
pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.filterwarnings("default"),  # Ray Data's own
]

#: A pipeline in a script, with one actor that maps; it goes on while there is a file.
SCRIPT = """
import sys, time
from pathlib import Path
import ray
import ray.data

class Slow:
    def __call__(self, batch):
        while Path(sys.argv[1]).exists():
            time.sleep(0.05)  # until the test goes on
        return batch

ray.init()
rows = ray.data.range(40, override_num_blocks=4).map_batches(Slow, concurrency=1)
print("rows", rows.count(), flush=True)
"""


def placed(batch):
    """The batch with the placement group in which it was mapped."""
    group = ray.util.get_current_placement_group()
    batch["group"] = [group.id.hex() if group else ""] * len(batch["id"])
    return batch


class Placed:
    """The same as an actor."""

    def __call__(self, batch):
        return placed(batch)


def urgent():
    """Needs the whole pool for a moment."""


@pytest.fixture
def pool(scheduler):
    """A scheduler with a pool of 2 CPUs."""
    from ray.data import DataContext

    DataContext.get_current().enable_progress_bars = False
    scheduler.create_pool("p", resources={"cpu": 2})
    return scheduler


def blocks():
    """400 rows in 16 blocks: more than a lease of two CPUs maps at a time."""
    return ray.data.range(400, override_num_blocks=16)


def leased(scheduler, task_id="data", **fields):
    """A lease of a group with two bundles of one CPU."""
    return scheduler.lease(task_id, pool="p", groups=[[{"cpu": 1}] * 2], wait=60, **fields)


def test_a_pipeline_runs_in_the_group_of_a_lease(pool, tmp_path):
    from ray.data import DataContext

    from schedulemesh.integrations.data import leased_datasets

    before = DataContext.get_current().scheduling_strategy
    with leased(pool) as lease, leased_datasets(lease):
        group = lease.placement_groups[0].id.hex()
        mapped = blocks().map_batches(placed, batch_size=None)
        mapped.write_parquet(str(tmp_path))
        found = ray.data.read_parquet(str(tmp_path)).take_all()
        assert sorted(row["id"] for row in found) == list(range(400))
        assert {row["group"] for row in found} == {group}
        acted = blocks().map_batches(Placed, batch_size=None, concurrency=2).take_all()
        assert {row["group"] for row in acted} == {group}
    assert DataContext.get_current().scheduling_strategy == before
    assert quota(pool, "p")["free"] == {"cpu": 2.0}


def test_an_evicted_pipeline_fails_and_runs_in_the_next_lease(pool, tmp_path):
    from schedulemesh.integrations.data import leased_datasets

    reached = tmp_path / "reached"

    def waits(batch):
        import time

        reached.touch()
        time.sleep(600)  # there to be ended
        return batch

    def evict():
        until(reached.exists, "the pipeline does not begin", 60)
        pool.preempt_task("data")

    eviction = threading.Thread(target=evict)
    eviction.start()
    with (
        leased(pool) as first,
        leased_datasets(first),
        pytest.raises(LeaseEndedError, match=r"'data'.*has ended.*run the pipeline again"),
    ):
        blocks().map_batches(waits, batch_size=None).count()
    eviction.join()
    assert first.preempted()
    until(lambda: quota(pool, "p")["free"] == {"cpu": 2.0}, "something of the lease is left")
    with leased(pool, "again") as lease, leased_datasets(lease):
        assert blocks().map_batches(placed, batch_size=None).count() == 400


def test_a_lease_of_several_groups_is_refused(pool):
    from schedulemesh.integrations.data import leased_datasets

    with (
        pool.lease("two", pool="p", groups=[[{"cpu": 1}]] * 2, wait=60) as lease,
        pytest.raises(InvalidRequestError, match="in one placement group; this lease has 2"),
        leased_datasets(lease),
    ):
        pytest.fail("it was taken")


def test_actors_that_ray_data_shares_between_jobs_outlive_the_one_that_made_them(pool, tmp_path):
    """The first job makes them. The second, whose pipeline still runs, must not lose them."""
    (tmp_path / "pipeline.py").write_text(SCRIPT)
    holds = {name: tmp_path / f"hold-{name}" for name in ("first", "second")}
    for name, hold in holds.items():
        hold.touch()
        command = [sys.executable, "pipeline.py", str(hold)]
        answer = pool.submit_job(name, command, "p", {"cpu": 1}, working_dir=tmp_path)
        assert answer["success"], answer
        until(lambda name=name: used_by(pool, name) == {"cpu": 1.0}, f"{name} has no actor", 90)
    holds["first"].unlink()
    assert pool.wait(["first"], timeout=60)["pending"] == []
    assert actors_in("AutoscalingCoordinator") == ["AutoscalingCoordinator"]
    holds["second"].unlink()
    assert pool.wait(["second"], timeout=60)["pending"] == []
    for name in holds:
        assert pool.result(name)["result"]["exit_code"] == 0
        log = "".join(pool.job_logs(name))
        assert "rows 40" in log
        assert "ActorDiedError" not in log


def test_an_evicted_pipeline_in_a_job_leaves_nothing_and_runs_again(pool, tmp_path):
    (tmp_path / "pipeline.py").write_text(SCRIPT)
    hold = tmp_path / "hold"
    hold.touch()
    command = [sys.executable, "pipeline.py", str(hold)]
    pool.submit_job("data", command, "p", {"cpu": 2}, priority=1.0, working_dir=tmp_path, grace_s=1)
    until(lambda: used_by(pool, "data") == {"cpu": 1.0}, "it has no actor", 90)
    answer = pool.submit_task_with_preemption(
        "urgent", "p", urgent, {"cpu": 2}, priority=50.0, wait=60
    )
    assert [task["task_id"] for task in answer["preempted"]] == ["data"]
    hold.unlink()
    assert pool.wait(["data"], timeout=90)["pending"] == []
    assert pool.result("data")["result"]["exit_code"] == 0
    assert "rows 40" in "".join(pool.job_logs("data"))
