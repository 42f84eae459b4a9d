"""The phases of a start on a real cluster: what is told of them, their limits, and environments that fail."""

from __future__ import annotations

import time

from tests.integration.polling import until


class Slow:
    """Its constructor takes a while."""

    def __init__(self, name, labels, seconds):
        time.sleep(seconds)  # what the limit of the constructor is for


def test_explain_says_that_the_constructor_runs_and_it_has_a_limit_of_its_own(scheduler):
    scheduler.create_pool("pool", resources={"cpu": 1})
    scheduler.submit_task_with_preemption(
        "t",
        "pool",
        Slow,
        {"cpu": 1},
        actor_args=[60],
        start_limits={"constructor": 6},
        queue=True,
    )
    words = "its constructor runs for"
    detail = until(lambda: words in (d := scheduler.explain("t")["detail"]) and d, words)
    assert "of at most 6 s" in detail
    (row,) = scheduler.wait("t", timeout=60)["tasks"]
    assert row["state"] == "failed", row
    assert "6 s (start_limits['constructor']): its constructor was running" in row["error"]


def test_an_environment_that_fails_gives_its_cause_in_one_line_and_the_rest_in_the_log(scheduler):
    scheduler.create_pool("pool", resources={"cpu": 1})
    environment = {"conda": "no-such-environment-anywhere"}
    scheduler.submit_job("job", ["true"], "pool", {"cpu": 1}, runtime_env=environment, queue=True)
    (row,) = scheduler.wait("job", timeout=120)["tasks"]
    assert row["state"] == "failed", row
    assert "its runtime environment could not be set up: " in row["error"]
    assert "\n" not in row["error"]
    log = "".join(scheduler.job_logs("job"))
    assert row["error"] in log
    assert "Traceback" in log
