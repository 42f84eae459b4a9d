"""Arrays and dependencies on real Ray: members know their index, run a few at a time, return and end."""

from __future__ import annotations

import re
import sys
import textwrap

import pytest

from tests.integration.polling import until

#: A member: notes who runs beside it; the first one waits for its eviction, the fourteenth fails.
MEMBER = """
    import os, pathlib, sys, time
    from schedulemesh import job

    folder, index = pathlib.Path(sys.argv[1]), job.array_index()
    here = folder / f"runs-{index}"
    here.touch()
    beside = len(list(folder.glob("runs-*")))
    (folder / f"seen-{index}-{beside}").touch()
    if index == 0 and job.attempt() == 1:
        while not job.preempted():
            time.sleep(0.02)  # between two looks, as a training has between two steps
    here.unlink()
    print(index, "of", os.environ["SCHEDULEMESH_ARRAY_COUNT"], flush=True)
    sys.exit(3 if index == 13 else 0)
"""


@pytest.fixture
def pool(scheduler):
    scheduler.create_pool("pool", resources={"cpu": 6.0})
    return "pool"


def state_of(scheduler, task_id):
    return scheduler.explain(task_id)["state"]


def test_an_array_of_jobs_runs_a_few_at_a_time_and_others_start_after_it(scheduler, pool, tmp_path):
    script = tmp_path / "member.py"
    script.write_text(textwrap.dedent(MEMBER), encoding="utf-8")
    folder = tmp_path / "folder"
    folder.mkdir()
    python = [sys.executable, str(script), str(folder)]
    size = {"resources": {"cpu": 1.0}, "queue": True}
    assert scheduler.submit_job("many", python, pool, array="0-19%4", **size)["success"]
    after = {
        "report": "any:many",
        "next": "many",
        "rescue": "fail:many[13]",
        "later": ["any:report", "rescue"],
    }
    for task_id, dependencies in after.items():
        answer = scheduler.submit_job(task_id, ["true"], pool, after=dependencies, **size)
        assert answer["success"], answer
    assert scheduler.explain("report")["reason"] == "dependency"
    rows = {task["task_id"]: task for task in scheduler.list_queue()["tasks"]}
    assert re.fullmatch(r"\d+-19%4", rows["many"]["array"])
    until((folder / "runs-0").exists, "its first member does not run")
    assert scheduler.preempt_task("many[0]")["success"]
    answer = scheduler.wait(["many", "report", "rescue", "later"], timeout=300.0)
    assert answer["pending"] == [], answer
    array = scheduler.array("many")
    assert (array["completed"], array["failed"], array["not_completed"]) == (19, 1, "13")
    assert (array["state"], array["members"][0]["preemptions"]) == ("failed", 1)
    seen = [[int(word) for word in file.name.split("-")[1:]] for file in folder.iterdir()]
    assert max(beside for _, beside in seen) <= 4, "more of them ran at once than may"
    assert {index for index, _ in seen} == set(range(20))
    ends = {task_id: state_of(scheduler, task_id) for task_id in after}
    assert ends == {
        "report": "completed",
        "next": "cancelled",
        "rescue": "completed",
        "later": "completed",
    }
    assert scheduler.explain("next")["reason"] == "dependency_not_met"
    assert "7 of 20" in "".join(scheduler.job_logs("many[7]"))


def test_an_array_of_functions_is_told_its_index_and_cancelled_in_part(scheduler, pool):
    def square(factor):
        from schedulemesh import job

        return factor * job.array_index() ** 2

    answer = scheduler.submit_task_with_preemption(
        "sweep", pool, square, {"cpu": 2.0}, run_args=[10], queue=True, array=5
    )
    assert answer["success"], answer
    assert scheduler.cancel_task("sweep[4]")["success"]
    assert scheduler.wait("sweep", timeout=120.0)["pending"] == []
    assert [scheduler.result(f"sweep[{index}]")["result"] for index in range(4)] == [0, 10, 40, 90]
    assert scheduler.explain("sweep")["error"] == "of 5 members 4 completed, 1 cancelled (4)"
    (row,) = scheduler.array("sweep", state="cancelled")["members"]
    assert row["task_id"] == "sweep[4]"
