"""What each Ray job holds is known exactly, from Ray's tables: after many random starts and ends."""

from __future__ import annotations

import json
from collections import Counter

import ray

from schedulemesh.core.backend.ray_internals import free_by_node
from schedulemesh.core.backend.ray_resources import resources_of
from schedulemesh.core.backend.ray_usage import UsageReader
from schedulemesh.domain.resources import NOTHING, UNIT, Resources, sum_of
from tests.integration.drivers import start_driver
from tests.integration.polling import until

#: Starts and ends per job, of three jobs.
STEPS = 67

#: Starts and ends actors and placement groups at random, says what it holds, then waits.
DRIVER = f"""
import random
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

chance = random.Random(int(sys.stdin.readline()))

@ray.remote
class Plain:
    def ping(self):
        return True

def start():
    kind = chance.choices(["actor", "group", "member"], [1, 6, 1])[0]
    if kind == "actor":
        cpus = chance.choice([0, 0.25, 0.5])
        actor = Plain.options(num_cpus=cpus).remote()
        ray.get(actor.ping.remote())
        return cpus, lambda: ray.kill(actor)
    bundles = [{{"CPU": chance.choice([0.125, 0.25])}} for _ in range(chance.randint(1, 3))]
    group = placement_group(bundles, strategy="PACK")
    ray.get(group.ready())
    if kind == "member":
        place = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=0)
        ray.get(Plain.options(num_cpus=0.125, scheduling_strategy=place).remote().ping.remote())
    return sum(b["CPU"] for b in bundles), lambda: remove_placement_group(group)

held = []
for _ in range({STEPS}):
    full = sum(cpus for cpus, _ in held) > 1.5
    if full or (held and chance.random() < 0.45):
        held.pop(chance.randrange(len(held)))[1]()
    else:
        held.append(start())
# Neither is placed: they wait, and hold nothing.
endless = Plain.options(num_cpus=64).remote()
waiting = placement_group([{{"CPU": 0.125}}, {{"CPU": 64}}])
print(json.dumps([ray.get_runtime_context().get_job_id(), sum(cpus for cpus, _ in held)]), flush=True)
sys.stdin.readline()
"""


def test_after_two_hundred_random_starts_and_ends_the_attribution_is_exact(tmp_path):
    read = UsageReader().read
    before = held_by_job(read())
    drivers = [start_driver(DRIVER, tmp_path) for _ in range(3)]
    try:
        for seed, driver in enumerate(drivers):
            driver.stdin.write(f"{seed}\n")
            driver.stdin.flush()
        expected = dict(json.loads(driver.stdout.readline()) for driver in drivers)
        claimed = Counter({job: round(cpus * UNIT) for job, cpus in expected.items()})
        until(
            lambda: held_by_job(read()) - before == claimed,
            lambda: f"{held_by_job(read())} instead of {claimed}",
        )
        # Ray's own sum lags by about 0.1 s.
        until(
            lambda: held_by_node(read()) == used_by_ray(),
            lambda: f"{held_by_node(read())} instead of {used_by_ray()}",
        )
        # Ray has an actor in its table some time after its driver has asked for it.
        all_wait = {job_id: [0.125, 64, 64] for job_id in expected}
        until(
            lambda: waiting_by_job(read(), expected) == all_wait,
            lambda: f"{waiting_by_job(read(), expected)} instead of {all_wait}",
        )
        for job_id in expected:
            assert "from schedulemesh" in read().jobs[job_id].entrypoint
    finally:
        for driver in drivers:
            driver.communicate("\n", timeout=60)
    # What was held before may have been given back since.
    until(lambda: not held_by_job(read()) - before, "what ended jobs held is still counted")
    until(lambda: all(read().jobs[job_id].ended for job_id in expected), "a job has not ended")


def held_by_job(usage):
    """CPU in units by job, of those that hold some."""
    return Counter(
        {
            job_id: cpu
            for job_id in {holder.job_id for holder in usage.holders}
            if (cpu := sum(a.cpu for h in usage.holders if h.job_id == job_id for _, a in h.held))
        }
    )


def waiting_by_job(usage, job_ids):
    """The CPUs of each part that waits for room, of these jobs."""
    waiting = {
        job_id: [w.cpu / UNIT for h in usage.holders if h.job_id == job_id for w in h.waiting]
        for job_id in job_ids
    }
    return {job_id: sorted(cpus) for job_id, cpus in waiting.items()}


def held_by_node(usage):
    parts = [part for holder in usage.holders for part in holder.held]
    nodes = {node_id for node_id, _ in parts}
    return {node: sum_of(amount for at, amount in parts if at == node) for node in nodes}


def used_by_ray():
    """What is not free, by node, as Ray says."""

    free = free_by_node()
    used: dict[str, Resources] = {}
    for node in ray.nodes():
        amount = resources_of(node["Resources"]) - free.get(node["NodeID"], NOTHING)
        if node["Alive"] and amount:
            used[node["NodeID"]] = amount
    return used
