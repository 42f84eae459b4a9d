"""Nothing leaks: after rounds of random submissions, evictions, ends and kills, Ray matches the state."""

from __future__ import annotations

import contextlib
import os
import random
import signal

import pytest
import ray

from schedulemesh.config.settings import CLIENT_HOLD_S
from tests.integration.agents import Counter, Exiting
from tests.integration.polling import assert_nothing_held, groups_in, quota, until
from tests.integration.test_pg_pools import (
    ONE,
    kill_supervisor,
    make_pool,
    runs,
    same_groups_as_ray,
    submit,
    submit_for_group,
)

ROUNDS = 200


class Rounds:
    """What may happen in a round."""

    def __init__(self, scheduler, rng):
        self.scheduler, self.rng = scheduler, rng
        self.next = 0
        self.refused = self.ran = 0

    def ours(self):
        return [a for a in self.scheduler.list_agents()["agents"] if a["state"] == "running"]

    def any_agent(self):
        return self.rng.choice(self.ours() or [None])

    def told(self, answer):
        if answer["success"]:
            runs(answer)
            self.ran += 1
        else:
            assert answer["reason"] in (
                "insufficient_quota",
                "group_unplaceable",
                "preemption_failed",
                "agent_start_failed",
            ), answer
            self.refused += 1

    def submit(self):
        self.next += 1
        need = self.rng.choice([ONE, ONE, {"cpu": 1.0}])
        priority = self.rng.choice([1.0, 4.0, 9.0, 12.0])
        self.told(submit(self.scheduler, f"t{self.next}", priority, resources=need))

    def submit_for_group(self):
        self.next += 1
        priority = self.rng.choice([2.0, 9.0, 15.0])
        fallback = self.rng.random() < 0.5
        self.told(submit_for_group(self.scheduler, f"t{self.next}", priority, fallback=fallback))

    def submit_two_bundles(self):
        self.next += 1
        bundles = [{"cpu": 1.0}, {"cpu": 1.0}]
        self.told(submit(self.scheduler, f"t{self.next}", 2.0, bundles=bundles))

    def submit_in_vain(self):
        self.next += 1
        self.told(submit(self.scheduler, f"t{self.next}", 9.0, actor_class=Exiting))

    def complete(self):
        agent = self.any_agent()
        if agent is not None:
            self.scheduler.complete_task(agent["tasks"][0], end_agent=True)

    def delete(self):
        agent = self.any_agent()
        if agent is not None:
            destroy = self.rng.choice([None, None, True, False])
            self.scheduler.delete_agent(agent["name"], destroy_pg=destroy)

    def evict(self):
        agent = self.any_agent()
        if agent is not None:
            self.scheduler.preempt_task(agent["tasks"][0])

    def kill_agent(self):
        agent = self.any_agent()
        if agent is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(agent["pid"], signal.SIGKILL)

    def ensure(self):
        self.scheduler.resize_pool("pool")

    def kill_supervisor(self):
        kill_supervisor(self.scheduler)


WEIGHTS = {
    Rounds.submit: 20,
    Rounds.submit_for_group: 20,
    Rounds.submit_two_bundles: 6,
    Rounds.submit_in_vain: 3,
    Rounds.complete: 16,
    Rounds.delete: 14,
    Rounds.evict: 8,
    Rounds.kill_agent: 8,
    Rounds.ensure: 6,
    Rounds.kill_supervisor: 3,
}


@pytest.mark.timeout(400)
def test_groups_in_ray_match_the_state_after_many_rounds(make_scheduler, namespace):
    seed = os.environ.get("LEAK_SEED", "1")
    scheduler = make_scheduler()
    make_pool(scheduler, cpu=7.0, warm={"actor_class": Counter}, idle_timeout_s=2.0)
    rounds = Rounds(scheduler, random.Random(seed))
    acts = rounds.rng.choices(list(WEIGHTS), list(WEIGHTS.values()), k=ROUNDS)
    for n, act in enumerate(acts):
        act(rounds)
        if n % 20 == 19:
            until(
                lambda: same_groups_as_ray(scheduler, namespace),
                f"LEAK_SEED={seed}, round {n}: Ray and the state differ",
            )
    assert rounds.ran > ROUNDS // 10, f"LEAK_SEED={seed}"
    for agent in scheduler.list_agents()["agents"]:
        scheduler.delete_agent(agent["name"])
    until(lambda: not scheduler.list_agents()["agents"], f"LEAK_SEED={seed}: agents stay")
    scheduler.resize_pool("pool")
    until(
        lambda: (
            [g["reserved"] for g in groups_of(scheduler)] == [True] * 2
            and same_groups_as_ray(scheduler, namespace)
        ),
        lambda: f"LEAK_SEED={seed}: {groups_of(scheduler)}, {groups_in(namespace)}",
    )
    # What a task that was evicted here has freed is held for this client for a while.
    until(
        lambda: not quota(scheduler, "pool")["reserved"],
        lambda: f"LEAK_SEED={seed}: {quota(scheduler, 'pool')}",
        CLIENT_HOLD_S + 10.0,
    )
    assert_nothing_held(scheduler)
    # What Ray returned late counted as external usage, until nothing has changed for a second.
    until(
        lambda: (
            node_of(scheduler)["free"]["cpu"] == node_of(scheduler)["total"]["cpu"] - 2 * ONE["cpu"]
        ),
        lambda: f"LEAK_SEED={seed}: {node_of(scheduler)}",
    )
    node = node_of(scheduler)
    until(
        lambda: ray.available_resources().get("CPU") == node["free"]["cpu"],
        lambda: f"LEAK_SEED={seed}: {ray.available_resources()}",
    )
    scheduler.shutdown()
    assert groups_in(namespace) == {}


def node_of(scheduler):
    (node,) = scheduler.cluster_snapshot()["nodes"]
    return node


def groups_of(scheduler):
    return scheduler.pg_pool_stats("pool")["pools"]["pool"]["groups"]
