"""A client of the queue's benchmark, in a process of its own.

``python -m benchmarks.queue_client ADDRESS NUMBER`` attaches, and prints an empty list when it is ready. Each
line that it reads is a JSON list: submissions, submissions in a call, pools, resources of a
task. After each call it prints the acknowledged ids as a JSON list, and an empty list at the end.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator

import ray

from benchmarks.pairs import worker_class
from schedulemesh.core import RayScheduler

NAME, NAMESPACE = "queue", "benchmark"


def main() -> None:
    """Submit as often as is asked on the standard input."""
    address, number = sys.argv[1:]
    ray.init(address, log_to_driver=False, logging_level="ERROR")
    scheduler = RayScheduler.attach(NAME, namespace=NAMESPACE)
    scheduler.list_pools()
    numbers = itertools.count()
    _say([])
    for line in sys.stdin:
        count, batch, pools, need = json.loads(line)
        specs = (_spec(f"{number}-{n}", n % pools, need) for n in itertools.islice(numbers, count))
        for acknowledged in _submitted(scheduler, specs, batch):
            _say(acknowledged)
        _say([])


def _submitted(
    scheduler: RayScheduler, specs: Iterator[dict[str, object]], batch: int
) -> Iterator[list[str]]:
    """The ids of the tasks of each call, once it is answered; ``batch`` of 1: calls of their own."""
    while chunk := list(itertools.islice(specs, batch)):
        if batch == 1:
            results = [scheduler.submit_task_with_preemption(**chunk[0])]  # type: ignore[arg-type]
        else:
            results = scheduler.submit_many(chunk)["results"]
        yield [result["task_id"] for result in results if result["state"] == "queued"]


_CLASS = worker_class()


def _spec(number: str, pool: int, need: dict[str, float]) -> dict[str, object]:
    return {
        "task_id": f"task-{number}",
        "pool_name": f"pool-{pool}",
        "actor_class": _CLASS,
        "resources": need,
        "queue": True,
    }


def _say(ids: list[str]) -> None:
    print(json.dumps(ids), flush=True)


if __name__ == "__main__":
    main()
