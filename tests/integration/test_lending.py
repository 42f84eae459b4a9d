"""Two teams on one Ray: idle quota is borrowed, and its owner gets it back; the victim's state is saved."""

from __future__ import annotations

import ray

from tests.integration.agents import Counter
from tests.integration.polling import assert_nothing_held, quota

TWO = {"cpu": 2.0}


def submit(scheduler, task_id, pool, priority, **more):
    answer = scheduler.submit_task_with_preemption(
        task_id, pool, Counter, resources=TWO, priority=priority, **more
    )
    assert answer["success"], answer
    return answer


def test_two_teams_borrow_and_reclaim(scheduler):
    assert scheduler.ensure_cohort("company")["detail"] == "created"
    assert scheduler.ensure_cohort("research", parent="company")["detail"] == "created"
    for team in ("vision", "speech"):
        scheduler.ensure_pool(team, resources=TWO, cohort="research", weight=2)
    submit(scheduler, "own", "vision", 20.0)
    borrowed = submit(scheduler, "borrowed", "vision", 20.0)
    assert borrowed["preempted"] == []
    assert ray.get([borrowed["agent"]["handle"].add.remote() for _ in range(3)])[-1] == 3
    lender = quota(scheduler, "speech")
    assert (lender["cohort"], lender["weight"]) == ("research", 2.0)
    assert (lender["lent_to"], lender["free"]) == ({"vision": TWO}, {})
    assert quota(scheduler, "vision")["borrowed_from"] == {"speech": TWO}

    owner = submit(scheduler, "owner", "speech", 1.0)
    (victim,) = owner["preempted"]
    assert (victim["task_id"], victim["reason"]) == ("borrowed", "reclaim")
    assert quota(scheduler, "speech")["lent_to"] == {}
    assert scheduler.get_preemption_stats()["reclaims"] == 1

    back = scheduler.submit_task_with_preemption(
        "borrowed again", "vision", Counter, resources=TWO, priority=20.0
    )
    assert back["reason"] == "preemption_failed"
    assert back["turned_away"]["own_quota"] == 1
    assert "cohort 'research' has nothing idle" in back["error"]

    scheduler.complete_task("owner", end_agent=True)
    saved = scheduler.get_saved_state("borrowed")["saved_state"]
    restored = scheduler.restore_task(saved)
    assert restored["state_restored"], restored
    assert ray.get(restored["agent"]["handle"].add.remote()) == 4
    cohorts = {row["name"]: row for row in scheduler.list_cohorts()["cohorts"]}
    assert cohorts["company"]["cohorts"] == ["research"]
    assert (cohorts["research"]["resources"], cohorts["research"]["idle"]) == ({"cpu": 4.0}, {})
    for task_id in ("own", "borrowed"):
        scheduler.complete_task(task_id, end_agent=True)
    assert_nothing_held(scheduler)
